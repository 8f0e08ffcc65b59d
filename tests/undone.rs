//! What undos removed, in a mount and by commands: which undo it was, and sessions made of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use support::TestStore;

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_entry_below_undone_says_which_undo_it_was() {
    let store = TestStore::from_sample("a-plain");
    let mount = store.mount::<&str>(&[]);
    let session = mount.session(&store, None);
    fs::write(session.join("undo"), "3\n").unwrap();
    fs::write(session.join("undo"), "1\n").unwrap();
    // Whoever lists them reads the number, the turn that was written, and the time.
    let listed = names(&session.join("undone"));
    let [one, one_label, two, two_label] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((one.as_str(), two.as_str()), ("1", "2"));
    for (number, label, written) in [("1", one_label, 3), ("2", two_label, 1)] {
        let link = session.join("undone").join(label);
        assert_eq!(fs::read_link(&link).unwrap(), Path::new(number));
        assert_eq!(fs::symlink_metadata(&link).unwrap().len(), number.len() as u64);
        assert_eq!(names(&link), ["fork", "status", "turns"]);
        let rest = label.strip_prefix(&format!("{number}-undo-{written}-20")).unwrap();
        assert!(rest.len() == 17 && rest.as_bytes()[8] == b'T', "{label}");
        // By no other label, and by none when it is gone.
        let wrong = session.join("undone").join(label.replace("-undo-", "-undo-9"));
        assert_eq!(fs::read_link(wrong).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
    assert_eq!(names(&session.join("undone/2")), ["fork", "status", "turns"]);
    let first = text(&session.join("undone/1/status"));
    assert!(first.starts_with("undo: undone/1: undo 3 at 20"), "{first}");
    assert!(first.lines().next().unwrap().ends_with("Z removed turn 3"), "{first}");
    let second = text(&session.join("undone/2/status"));
    assert!(second.lines().next().unwrap().ends_with("removed 2 turns, 1 to 2"), "{second}");
    for file in ["status", "redo"] {
        let told = text(&session.join(file));
        for number in [1, 2] {
            assert!(told.contains(&format!("undone/{number}: undo ")), "{file}: {told}");
        }
    }
    // The listing shows when the undo was; the sizes are exact.
    let facts = fs::metadata(session.join("undone/1")).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!((now as i64 - facts.mtime()).abs() < 60);
    let status = session.join("undone/1/status");
    assert_eq!(fs::metadata(&status).unwrap().len(), first.len() as u64);
    assert_eq!(fs::metadata(&status).unwrap().mode() & 0o777, 0o400);
}

#[test]
fn a_branch_is_forked_by_its_control_file() {
    let store = TestStore::from_sample("a-plain");
    let mount = store.mount::<&str>(&[]);
    let session = mount.session(&store, None);
    let prompts = |session: &Path| {
        let turns = names(&session.join("turns"));
        turns.iter().map(|turn| text(&session.join("prompts").join(turn))).collect::<Vec<_>>()
    };
    let all = prompts(&session);
    fs::write(session.join("undo"), "2\n").unwrap();
    let fork = session.join("undone/1/fork");
    assert_eq!(fs::metadata(&fork).unwrap().mode() & 0o777, 0o600);
    assert_eq!(text(&fork), "");
    for (word, turns) in [("2", 3), ("last", 4)] {
        fs::write(&fork, format!("{word}\n")).unwrap();
        let id = text(&fork).trim().to_owned();
        let new = mount.session(&store, Some(&id));
        assert_eq!(prompts(&new), all[..turns], "{word}");
        assert_eq!(text(&session.join("fork")), "", "the session's own file tells of its own forks");
    }
    let status = text(&session.join("status"));
    assert!(
        status.lines().last().unwrap().starts_with("last: undone/1/fork: done, turns 0 to 3"),
        "{status}"
    );
    // A path below it means the branch, never the session as it is.
    let by_path = store.run(&["fork", session.join("undone/1").to_str().unwrap(), "3"]).ok();
    assert_eq!(prompts(&mount.session(&store, Some(by_path.trim()))), all);
    for (word, errno) in
        [("1", libc::ERANGE), ("4", libc::ERANGE), ("x", libc::EINVAL), ("force 2", libc::EINVAL)]
    {
        let error = fs::write(&fork, format!("{word}\n")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno), "{word}");
    }
    let status = text(&session.join("status"));
    assert!(status.lines().last().unwrap().starts_with("last: undone/1/fork refused: "), "{status}");
    fs::write(&fork, "\n").unwrap();
    // What was undone is still there, and what is left can be redone.
    fs::write(session.join("redo"), "last\n").unwrap();
    assert!(!session.join("undone").exists());
    assert_eq!(prompts(&session), all);
}

#[test]
fn a_read_only_mount_forks_no_branch() {
    let store = TestStore::from_sample("a-plain");
    store.run(&["undo", "e8ac2706", "2"]).ok();
    let mount = store.mount(&["--read-only"]);
    let session = mount.session(&store, None);
    let error = fs::write(session.join("undone/1/fork"), "2\n").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
}

#[test]
fn a_branch_is_forked_by_the_command() {
    for (agent, sample) in [
        ("kimi-cli", "a-plain"),
        ("kimi-code", "a-plain"),
        ("codex", "a_plain4"),
        ("codex", "a_plain4_legacy"),
        ("openmax", "a_plain"),
    ] {
        let store = TestStore::of(agent, sample);
        let sessions = store.run(&["ls", "--all", "--json"]).json();
        let id = sessions[0]["id"].as_str().unwrap().to_owned();
        let shown = |id: &str| store.run(&["show", id, "--json"]).json()["turns"].clone();
        let prompts = |id: &str, turns: usize| {
            let all = shown(id);
            all.as_array().unwrap().iter().take(turns).map(|turn| turn["prompt"].clone()).collect::<Vec<_>>()
        };
        let all = shown(&id).as_array().unwrap().len();
        let before = prompts(&id, all);
        store.run(&["undo", &id, "1"]).ok();
        for (words, turns) in [(&["1"][..], 2), (&["last"], all), (&[], all)] {
            let mut args = vec!["fork", &id, "--undone", "1"];
            args.extend(words);
            let ran = store.run(&args);
            let new = ran.stdout.trim().to_owned();
            assert_eq!((ran.code, new.len()), (0, new.len().max(8)), "{agent} {sample}: {}", ran.stderr);
            assert_eq!(prompts(&new, 99), before[..turns], "{agent} {sample} {words:?}");
        }
        assert!(store.run(&["fork", &id, "--undone", "7"]).refused().contains("no undo of this session"));
        assert!(store.run(&["fork", &id, "--undone", "1", "0"]).refused().contains("did not remove turn 0"));
        assert_eq!(store.run(&["fork", &id]).code, 2, "a turn is needed");
    }
}
