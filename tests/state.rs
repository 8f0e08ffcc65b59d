//! What turnfs keeps of its own: who may look at it, who deletes it, what is said of what a crash left; and
//! the times that cuts give to a store's files.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use support::{Mount, TestStore, expected};

const NONE: [&str; 0] = [];

fn id(sample: &str) -> String {
    expected(sample)["session"].as_str().unwrap().to_owned()
}

fn session_path(store: &TestStore, sample: &str) -> PathBuf {
    store.root.join(expected(sample)["session_path"].as_str().unwrap())
}

/// Everything below turnfs's state directory: path, mode, size.
fn state(store: &TestStore) -> Vec<(PathBuf, u32, u64)> {
    let mut all = Vec::new();
    let mut paths = vec![store.state.join("turnfs")];
    while let Some(path) = paths.pop() {
        let Ok(facts) = fs::symlink_metadata(&path) else { continue };
        if facts.is_dir() {
            paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        all.push((path, facts.mode(), facts.len()));
    }
    all.sort();
    all
}

/// The backups that can be redone or read.
fn backups(store: &TestStore) -> usize {
    state(store).iter().filter(|(path, ..)| path.ends_with("undo.json")).count()
}

/// The folder of the only session in the state directory.
fn folder(store: &TestStore) -> PathBuf {
    let mut entries = fs::read_dir(store.state.join("turnfs/sessions")).unwrap();
    entries.next().unwrap().unwrap().path()
}

#[test]
fn only_prune_deletes_backups() {
    let sample = "m-autocompact";
    let store = TestStore::from_sample(sample);
    let id = id(sample);
    store.run(&["undo", &id, "4"]).ok();
    store.run(&["undo", &id, "2"]).ok();
    // A redo gives its backup back to the session; the older undo stays.
    store.run(&["redo", &id]).ok();
    assert_eq!(backups(&store), 1);
    store.run(&["undo", &id, "1"]).ok();
    let mount: Mount = store.mount(&NONE);
    let session = mount.session(&store, Some(&id));
    fs::read_dir(session.join("undone")).unwrap();
    fs::read(session.join("undone/1/turns/004")).unwrap();
    mount.stop();
    for args in [&["ls", "--all"][..], &["check", "--all"], &["doctor"], &["show", &id], &["fork", &id, "0"]]
    {
        store.run(args);
        assert_eq!(backups(&store), 2, "{args:?}");
    }
    let ran = store.run(&["prune"]);
    assert!(ran.stderr.contains("deleted 0 backups"), "{}", ran.stderr);
    let before = state(&store);
    let ran = store.run(&["prune", "--older-than", "0s", "--dry-run"]);
    assert!(ran.stderr.contains("would delete 2 backups"), "{}", ran.stderr);
    assert_eq!(state(&store), before, "a dry run changes nothing");
    store.run(&["prune", "--older-than", "0s"]).ok();
    assert_eq!(backups(&store), 0);
    // Numbers are not used again.
    store.run(&["undo", &id, "0"]).ok();
    store.run(&["show", &id, "--undone", "4"]).ok();
}

#[test]
fn backups_of_a_session_that_its_agent_deleted_are_named_and_pruned_whatever_their_age() {
    let store = TestStore::from_samples(&["a-plain", "c-compact"]);
    let (gone, stays) = (id("a-plain"), id("c-compact"));
    store.run(&["undo", &gone, "1"]).ok();
    store.run(&["undo", &stays, "1"]).ok();
    fs::remove_dir_all(session_path(&store, "a-plain")).unwrap();
    // That it is gone is no reason for anything else to delete what was saved of it.
    for args in [&["ls", "--all"][..], &["redo", &stays, "9"], &["doctor"]] {
        store.run(args);
    }
    store.mount(&NONE).stop();
    assert_eq!(backups(&store), 2);
    let would = store.run(&["prune", "--dry-run"]).ok();
    assert!(would.contains(&gone) && would.contains("session deleted"), "{would}");
    assert!(!would.contains(&stays), "{would}");
    store.run(&["prune"]).ok();
    assert_eq!(backups(&store), 1);
    store.run(&["redo", &stays]).ok();
}

#[test]
fn the_state_is_for_its_owner_only_whatever_the_umask() {
    let store = TestStore::from_sample("m-autocompact");
    let id = id("m-autocompact");
    let script = format!(
        "umask 0; turnfs undo {id} 4 && turnfs undo {id} 1 && turnfs redo {id} && turnfs fork {id} 1 && \
         turnfs prune && mkdir -m 700 m && turnfs mount m && turnfs umount m"
    );
    store.sh(&script).ok();
    let all = state(&store);
    assert!(all.len() > 10, "{all:?}");
    for (path, mode, _) in all {
        let wanted = if mode & libc::S_IFMT == libc::S_IFDIR { 0o700 } else { 0o600 };
        assert_eq!(mode & 0o777, wanted, "{}", path.display());
    }
}

#[test]
fn a_journal_that_does_not_parse_is_named_by_doctor_and_at_every_start_and_kept() {
    let store = TestStore::from_sample("c-compact");
    let id = id("c-compact");
    store.run(&["undo", &id, "3"]).ok();
    let journal = folder(&store).join("journal.json");
    fs::write(&journal, "{\"version\": 1, \"kind\": \"und").unwrap();
    fs::set_permissions(&journal, fs::Permissions::from_mode(0o600)).unwrap();
    let before = state(&store);
    let told = store.run(&["doctor"]).stdout;
    assert!(told.contains("journal.json cannot be read"), "{told}");
    assert_eq!(state(&store), before, "doctor only looks");

    let (_, log) = store.mount(&NONE).stop();
    assert!(log.contains("journal.bad-") && log.contains("is kept"), "{log}");
    assert!(!journal.exists());
    for _ in 0..2 {
        let ran = store.run(&["fork", &id, "0"]);
        assert!(ran.stderr.contains("journal.bad-"), "{}", ran.stderr);
    }
    let told = store.run(&["doctor"]).stdout;
    assert!(told.contains("journal.bad-"), "{told}");
    // It may be all that tells what happened: prune leaves the session's backups alone.
    store.run(&["prune", "--older-than", "0s"]).ok();
    assert_eq!(backups(&store), 1);
    store.run(&["redo", &id]).ok();
}

#[test]
fn doctor_names_an_interrupted_cut_and_leaves_it_to_the_next_start() {
    let store = TestStore::from_sample("c-compact");
    let id = id("c-compact");
    let whole = store.snapshot();
    store.run(&["undo", &id, "1"]).ok();
    // As a kill just before the commit would leave it.
    let folder = folder(&store);
    fs::rename(folder.join("undone/1/undo.json"), folder.join("journal.json")).unwrap();
    let (before, cut) = (state(&store), store.snapshot());
    let told = store.run(&["doctor"]).stdout;
    assert!(told.contains(&id) && told.contains("was interrupted"), "{told}");
    assert_eq!((state(&store), store.snapshot()), (before, cut), "doctor only looks");
    let ran = store.run(&["redo", &id]);
    assert!(
        ran.stderr.contains("was rolled back") && ran.stderr.contains("nothing to redo"),
        "{}",
        ran.stderr
    );
    assert_eq!(store.snapshot(), whole);
    let told = store.run(&["doctor"]).stdout;
    assert!(!told.contains("interrupted"), "{told}");
}

fn mtime(path: &Path) -> SystemTime {
    fs::metadata(path).unwrap().modified().unwrap()
}

/// The sessions as `turnfs ls` lists them, and as the client does: by the time of context.jsonl.
fn orders(store: &TestStore, samples: &[&str]) -> [Vec<String>; 2] {
    let listed = store.run(&["ls", "--all", "--json"]).json();
    let ours = listed.as_array().unwrap().iter().map(|session| session["id"].as_str().unwrap().to_owned());
    let mut theirs: Vec<_> = samples
        .iter()
        .map(|sample| (mtime(&session_path(store, sample).join("context.jsonl")), id(sample)))
        .collect();
    theirs.sort();
    [ours.collect(), theirs.into_iter().rev().map(|(_, id)| id).collect()]
}

#[test]
fn an_undo_is_activity_where_the_client_looks_and_a_refused_one_is_not() {
    let samples = ["a-plain", "c-compact", "e-slash"];
    let store = TestStore::from_samples(&samples);
    let long_ago = SystemTime::now() - Duration::from_secs(86_400);
    for (n, sample) in samples.iter().enumerate() {
        for entry in fs::read_dir(session_path(&store, sample)).unwrap() {
            let file = fs::File::options().write(true).open(entry.unwrap().path()).unwrap();
            file.set_modified(long_ago - Duration::from_secs(n as u64)).unwrap();
        }
    }
    let [plain, compact, slash] = samples.map(id);
    let in_order = |ids: [&String; 3]| ids.map(String::clone).to_vec();
    assert_eq!(orders(&store, &samples), [(); 2].map(|()| in_order([&plain, &compact, &slash])));
    // Refused: nothing moves.
    store.run(&["undo", &compact, "99"]).refused();
    assert_eq!(orders(&store, &samples), [(); 2].map(|()| in_order([&plain, &compact, &slash])));
    // An undo, and a redo, that change the context: the session comes first, in both lists.
    store.run(&["undo", &compact, "3"]).ok();
    assert_eq!(orders(&store, &samples), [(); 2].map(|()| in_order([&compact, &plain, &slash])));
    store.run(&["undo", &plain, "1"]).ok();
    // A file's time is that of the kernel's last tick.
    let before = SystemTime::now() - Duration::from_millis(20);
    store.run(&["redo", &plain]).ok();
    assert_eq!(orders(&store, &samples), [(); 2].map(|()| in_order([&plain, &compact, &slash])));
    // A redone file has the time of the redo, and one that neither changed keeps its own.
    let context = session_path(&store, "a-plain").join("context.jsonl");
    assert!(mtime(&context) >= before);
    assert!(
        mtime(&session_path(&store, "c-compact").join("context_1.jsonl"))
            < SystemTime::now() - Duration::from_secs(3600)
    );
}

#[test]
fn an_undo_of_a_turn_without_a_request_is_no_activity_for_the_client() {
    let store = TestStore::from_sample("e-slash");
    let id = id("e-slash");
    let dir = session_path(&store, "e-slash");
    // Make a turn that is only in the wire the last one.
    let prompts = expected("e-slash")["turns"].as_array().unwrap().len();
    let wire = dir.join("wire.jsonl");
    let mut text = fs::read_to_string(&wire).unwrap();
    text.push_str(concat!(
        r#"{"timestamp": 1796045290.0, "message": {"type": "TurnBegin", "payload": {"user_input": "/yolo"}}}"#, "\n",
        r#"{"timestamp": 1796045290.1, "message": {"type": "ContentPart", "payload": {"type": "text", "text": "You only live once!"}}}"#, "\n",
        r#"{"timestamp": 1796045290.2, "message": {"type": "TurnEnd", "payload": {}}}"#, "\n",
    ));
    fs::write(&wire, text).unwrap();
    let before = mtime(&dir.join("context.jsonl"));
    store.run(&["undo", &id, &prompts.to_string()]).ok();
    assert_eq!(mtime(&dir.join("context.jsonl")), before);
    store.run(&["redo", &id]).ok();
    assert_eq!(mtime(&dir.join("context.jsonl")), before);
}

#[test]
fn three_commands_that_start_at_once_put_an_interrupted_cut_in_order_once() {
    let id = id("c-compact");
    for _ in 0..10 {
        let store = TestStore::from_sample("c-compact");
        let whole = store.snapshot();
        store.run(&["undo", &id, "1"]).ok();
        let folder = folder(&store);
        fs::rename(folder.join("undone/1/undo.json"), folder.join("journal.json")).unwrap();
        let ran = std::thread::scope(|scope| {
            let start = || scope.spawn(|| store.run(&["redo", &id]));
            [start(), start(), start()].map(|thread| thread.join().unwrap())
        });
        let told = ran.iter().filter(|ran| ran.stderr.contains("rolled back")).count();
        assert_eq!(told, 1, "{ran:?}");
        assert_eq!(store.snapshot(), whole);
    }
}

/// That what users build has no such code, `scripts/test` checks: tests are built with it.
#[test]
fn the_binary_can_inject_faults_and_a_racy_window_only_when_it_was_built_for_that() {
    let binary = fs::read(env!("CARGO_BIN_EXE_turnfs")).unwrap();
    for variable in ["TURNFS_FAULT", "TURNFS_RACY_WINDOW"] {
        let found = memchr::memmem::find(&binary, variable.as_bytes()).is_some();
        assert_eq!(found, cfg!(feature = "faults"), "{variable}");
    }
}
