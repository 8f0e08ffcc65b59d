//! What changes outside is seen at the next look, and what is damaged is refused until it is repaired.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use support::{Mount, TestStore};

const A_PLAIN: &str = "sessions/301f8022c44669fd30b93f123c419b45/0c45fd13-bf97-4bf8-9665-76d7e8ac2706";

struct Case {
    #[allow(dead_code)] // held so that the mount goes when the test ends
    mount: Mount,
    store: TestStore,
    dir: PathBuf,
}

impl Case {
    fn new() -> Case {
        let store = TestStore::from_sample("a-plain");
        let mount = store.mount::<&str>(&[]);
        let dir = mount.session(&store, None);
        Case { mount, store, dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.store.root.join(A_PLAIN).join(name)
    }

    fn status(&self) -> String {
        fs::read_to_string(self.dir.join("status")).unwrap()
    }
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// What changes outside is pushed; what is not would stay as it is for as long as the kernel remembers it. The
/// limit is generous to a busy machine.
fn soon(what: &str, is_so: impl Fn() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !is_so() {
        assert!(std::time::Instant::now() < end, "not within 20 s: {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn turns(dir: &Path) -> usize {
    fs::read_dir(dir.join("turns")).unwrap().count()
}

#[test]
fn a_damaged_line_is_named_and_refused_until_it_is_repaired() {
    for (name, line) in [("wire.jsonl", 5), ("context.jsonl", 10)] {
        let case = Case::new();
        assert_eq!(turns(&case.dir), 4);
        let whole = fs::read_to_string(case.file(name)).unwrap();
        let mut lines: Vec<&str> = whole.lines().collect();
        let byte: usize = lines[..line - 1].iter().map(|line| line.len() + 1).sum();
        lines[line - 1] = &lines[line - 1][..lines[line - 1].len() / 2];
        fs::write(case.file(name), lines.join("\n") + "\n").unwrap();
        let before = case.store.snapshot();

        assert_eq!(errno(fs::read_dir(case.dir.join("turns"))), Some(libc::EUCLEAN), "{name}");
        assert_eq!(errno(fs::read(case.dir.join("turns/000"))), Some(libc::EUCLEAN), "{name}");
        for control in ["undo", "fork", "redo"] {
            let open = fs::File::options().write(true).open(case.dir.join(control));
            assert_eq!(errno(open), Some(libc::EUCLEAN), "{name}: {control}");
        }
        let status = case.status();
        assert!(status.contains("state: damaged"), "{status}");
        for fact in [name, &format!("line: {line}\n"), &format!("byte: {byte}\n"), "bad-line"] {
            assert!(status.contains(fact), "{fact} is not in\n{status}");
        }
        let raw = fs::read(case.dir.join("raw").join(name)).unwrap();
        assert_eq!(raw, fs::read(case.file(name)).unwrap());
        fs::read_to_string(case.dir.join("meta.json")).unwrap();
        assert!(case.store.snapshot() == before);
        let check = case.store.run(&["check", "--all"]);
        assert_eq!(check.code, 1);
        assert!(check.stdout.contains(&format!("{name}:{line}")), "{}", check.stdout);

        fs::write(case.file(name), &whole).unwrap();
        assert_eq!(turns(&case.dir), 4);
        assert!(case.status().contains("state: ok"));
        fs::write(case.dir.join("undo"), "3\n").unwrap();
        assert_eq!(turns(&case.dir), 3);
    }
}

#[test]
fn salvage_shows_the_turns_before_the_damage() {
    let case = Case::new();
    let first = fs::read(case.dir.join("turns/000")).unwrap();
    let whole = fs::read_to_string(case.file("wire.jsonl")).unwrap();
    let mut lines: Vec<String> = whole.lines().map(str::to_owned).collect();
    lines[12] = "{\"timestamp\": 17".into(); // in turn 2
    fs::write(case.file("wire.jsonl"), lines.join("\n") + "\n").unwrap();
    let mut names: Vec<_> =
        fs::read_dir(case.dir.join("salvage")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["000", "001"]);
    assert_eq!(fs::read(case.dir.join("salvage/000")).unwrap(), first);
}

#[test]
fn a_torn_last_line_is_readable_and_is_cut_with_the_turn_after_it() {
    let case = Case::new();
    let mut wire = fs::File::options().append(true).open(case.file("wire.jsonl")).unwrap();
    wire.write_all(b"{\"timestamp\": 1796045261.0, \"mess").unwrap();
    drop(wire);
    assert_eq!(turns(&case.dir), 4);
    assert!(case.status().contains("state: torn"), "{}", case.status());
    fs::read(case.dir.join("turns/003")).unwrap();
    let before = case.store.snapshot();
    fs::write(case.dir.join("fork"), "3\n").unwrap();
    let id = fs::read_to_string(case.dir.join("fork")).unwrap();
    let forked = case.file("x").parent().unwrap().with_file_name(id.trim()).join("wire.jsonl");
    assert!(fs::read(&forked).unwrap().ends_with(b"\n"), "a torn tail was copied");
    fs::remove_dir_all(forked.parent().unwrap()).unwrap();
    fs::write(case.dir.join("undo"), "force 2\n").unwrap();
    assert_eq!(turns(&case.dir), 2);
    fs::write(case.dir.join("redo"), "last\n").unwrap();
    assert!(case.store.snapshot() == before);
}

#[test]
fn an_edit_of_the_same_length_with_its_time_put_back_is_seen() {
    let case = Case::new();
    for round in 0..50 {
        let path = case.file("wire.jsonl");
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let (old, new) =
            if round % 2 == 0 { ("turn three", "TURN THREE") } else { ("TURN THREE", "turn three") };
        let text = fs::read_to_string(&path).unwrap().replace(old, new);
        let target = if round % 3 == 0 { path.with_extension("tmp") } else { path.clone() };
        fs::write(&target, text).unwrap();
        let file = fs::File::options().write(true).open(&target).unwrap();
        file.set_modified(modified).unwrap();
        drop(file);
        if target != path {
            fs::rename(&target, &path).unwrap();
        }
        let shown = fs::read_to_string(case.dir.join("prompts/002")).unwrap();
        assert_eq!(shown, new, "round {round}");
        assert!(fs::read_to_string(case.dir.join("turns/002")).unwrap().contains(new), "round {round}");
    }
}

#[test]
fn an_append_is_seen_and_an_open_reader_keeps_its_version() {
    let case = Case::new();
    let old = fs::read(case.dir.join("turns/003")).unwrap();
    let mut reader = fs::File::open(case.dir.join("turns/003")).unwrap();
    let mut got = vec![0; 10];
    reader.read_exact(&mut got).unwrap();
    let wire = fs::read_to_string(case.file("wire.jsonl")).unwrap();
    let context = fs::read_to_string(case.file("context.jsonl")).unwrap();
    // The last turn grows by a step, and a fifth turn follows.
    let grown = wire.replace("reply to <turn four>", "reply to <turn four>, and much more than before");
    let turn = "{\"timestamp\": 1796045270.0, \"message\": {\"type\": \"TurnBegin\", \"payload\": {\"user_input\": \"turn five\"}}}\n{\"timestamp\": 1796045271.0, \"message\": {\"type\": \"TurnEnd\", \"payload\": {}}}\n";
    fs::write(case.file("wire.jsonl"), grown + turn).unwrap();
    fs::write(
        case.file("context.jsonl"),
        context.replace("reply to <turn four>", "reply to <turn four>, and much more than before"),
    )
    .unwrap();
    reader.read_to_end(&mut got).unwrap();
    assert_eq!(got, old, "a reader saw a mixture of two versions");
    assert_eq!(turns(&case.dir), 5);
    let new = fs::read_to_string(case.dir.join("turns/003")).unwrap();
    assert!(new.contains("and much more than before"));
}

#[test]
fn new_sessions_titles_and_projects_appear_and_gone_ones_go() {
    let case = Case::new();
    let project = case.dir.parent().unwrap().to_owned();
    assert_eq!(fs::read_dir(&project).unwrap().count(), 2, "the session and latest");
    let source = case.file("wire.jsonl").parent().unwrap().to_owned();
    let copy = source.with_file_name("11111111-2222-3333-4444-555555555555");
    support::copy_tree(&source, &copy);
    assert_eq!(fs::read_dir(&project).unwrap().count(), 3);
    assert!(project.join("11111111-2222-3333-4444-555555555555/turns/000").exists());
    fs::remove_dir_all(&copy).unwrap();
    assert_eq!(fs::read_dir(&project).unwrap().count(), 2);
    soon("a session that is gone", || !project.join("11111111-2222-3333-4444-555555555555").exists());

    let index = fs::read_to_string(case.store.root.join("kimi.json")).unwrap();
    fs::write(case.store.root.join("kimi.json"), index.replace("a-plain", "b-plain")).unwrap();
    soon("a project without sessions", || !project.exists());
    let unplaced = case.mount.path.join(".turnfs/unplaced");
    let name = fs::read_dir(&unplaced).unwrap().next().unwrap().unwrap().file_name();
    let before = case.store.snapshot();
    assert_eq!(turns(&unplaced.join(&name)), 4);
    assert_eq!(errno(fs::write(unplaced.join(&name).join("undo"), "1\n")), Some(libc::EOPNOTSUPP));
    assert_eq!(errno(fs::write(unplaced.join(&name).join("fork"), "1\n")), Some(libc::EOPNOTSUPP));
    assert!(case.store.snapshot() == before);
}

#[test]
fn a_change_after_the_control_file_was_opened_is_not_cut() {
    let case = Case::new();
    let mut undo = fs::File::options().write(true).open(case.dir.join("undo")).unwrap();
    let wire = fs::read_to_string(case.file("wire.jsonl")).unwrap();
    fs::write(case.file("wire.jsonl"), wire.replace("turn four", "turn 4444")).unwrap();
    let before = case.store.snapshot();
    assert_eq!(errno(undo.write_all(b"2\n")), Some(libc::ESTALE));
    assert!(case.store.snapshot() == before);
}

#[test]
fn a_running_turn_and_a_live_client_are_respected() {
    let case = Case::new();
    let mut wire = fs::File::options().append(true).open(case.file("wire.jsonl")).unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    writeln!(wire, "{{\"timestamp\": {now}.0, \"message\": {{\"type\": \"TurnBegin\", \"payload\": {{\"user_input\": \"turn five\"}}}}}}").unwrap();
    drop(wire);
    let before = case.store.snapshot();
    assert_eq!(errno(fs::write(case.dir.join("undo"), "4\n")), Some(libc::EBUSY));
    assert_eq!(errno(fs::write(case.dir.join("fork"), "4\n")), Some(libc::EBUSY));
    assert!(case.store.snapshot() == before);
    assert!(case.status().lines().last().unwrap().starts_with("last: "), "{}", case.status());
    assert!(
        fs::read_to_string(case.dir.join("turns/004")).unwrap().lines().next().unwrap().contains("running")
    );
    fs::write(case.dir.join("fork"), "last\n").unwrap();
    fs::write(case.dir.join("undo"), "force 4\n").unwrap();
    assert_eq!(turns(&case.dir), 4);
}

#[test]
fn a_session_keeps_its_name_when_undo_takes_its_first_prompt_away() {
    let case = Case::new();
    fs::write(case.dir.join("undo"), "0\n").unwrap();
    assert_eq!(turns(&case.dir), 0);
    assert!(case.status().contains("state: empty"), "{}", case.status());
    // A mount that never saw the prompt gives it the same name, but for the day: without a turn only the birth of
    // the directory tells when the session began, and this copy was born today.
    let listed = case.store.run(&["ls", "--all", "--json"]).json();
    let name = case.dir.file_name().unwrap().to_str().unwrap();
    assert_eq!(listed[0]["name"].as_str().map(|name| &name[10..]), Some(&name[10..]));
    fs::write(case.dir.join("redo"), "last\n").unwrap();
    assert_eq!(turns(&case.dir), 4);
}
