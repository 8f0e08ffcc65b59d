//! A session on a mount while its client works: what it writes is seen at once, and in a steady state nothing is read.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{Mount, TestStore, copy_tree};

fn wire(store: &TestStore) -> PathBuf {
    let mut dirs = vec![store.root.join("sessions")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            match path.is_dir() {
                true => dirs.push(path),
                false if path.ends_with("agents/main/wire.jsonl") => return path,
                false => {}
            }
        }
    }
    panic!("no wire");
}

#[track_caller]
fn soon(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "{what} is not seen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Appends the lines of the last turn once more, as another turn.
fn append_turn(wire: &Path, text: &str) {
    let whole = fs::read_to_string(wire).unwrap();
    let from = whole.find("{\"type\":\"turn.prompt\"").unwrap();
    let to = whole[from + 1..].find("{\"type\":\"turn.prompt\"").unwrap() + from + 1;
    let turn = whole[from..to].replace("turn one", text).replace("msg_", &format!("msg_{}", whole.len()));
    File::options().append(true).open(wire).unwrap().write_all(turn.as_bytes()).unwrap();
}

fn read_of(mount: &Mount) -> Vec<String> {
    let metrics = fs::read_to_string(mount.path.join(".turnfs/metrics")).unwrap();
    let lines = metrics.lines().filter(|line| line.starts_with("turnfs_store_bytes_read_total"));
    lines.filter(|line| line.contains("kimi-code")).map(str::to_owned).collect()
}

#[test]
fn turns_sessions_titles_and_sub_agents_of_a_running_client_are_seen_at_once() {
    let store = TestStore::of("kimi-code", "a-plain");
    let mount = store.mount::<&str>(&[]);
    let dir = mount.session(&store, None);
    let wire = wire(&store);
    let status = || fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
    soon("the watch", || status().contains("watch: kimi-code pushed"));
    for n in 4..8 {
        assert!(!dir.join(format!("turns/{n:03}")).exists());
        append_turn(&wire, &format!("later {n}"));
        soon("a turn", || dir.join(format!("turns/{n:03}")).exists());
        let text = fs::read_to_string(dir.join(format!("turns/{n:03}"))).unwrap();
        assert!(text.contains(&format!("later {n}")), "{text}");
    }
    let own = wire.ancestors().nth(3).unwrap();
    let state = fs::read_to_string(own.join("state.json")).unwrap();
    fs::write(own.join("state.json"), state.replace("\"title\":\"turn one\"", "\"title\":\"Renamed\""))
        .unwrap();
    soon("a title", || fs::read_to_string(dir.join("meta.json")).unwrap().contains("Renamed"));
    let other = own.with_file_name("session_99999999-2222-4333-8444-555555555555");
    copy_tree(own, &other);
    let id = other.file_name().unwrap().to_str().unwrap().to_owned();
    let state = fs::read_to_string(other.join("state.json")).unwrap();
    let old = own.file_name().unwrap().to_str().unwrap();
    fs::write(other.join("state.json"), state.replace(old, &id)).unwrap();
    soon("a session", || dir.parent().unwrap().join(&id).join("turns/007").exists());
    assert!(!dir.join("agents").exists());
    let agent = own.join("agents/agent-0");
    fs::create_dir(&agent).unwrap();
    fs::copy(&wire, agent.join("wire.jsonl")).unwrap();
    // The client notes that it has begun.
    append_turn(&wire, "with a sub-agent");
    soon("a sub-agent", || dir.join("agents/agent-0/turns/000").exists());
}

#[test]
fn an_undo_on_a_mount_is_seen_as_soon_as_it_is_written_and_what_it_removed_can_be_read() {
    let store = TestStore::of("kimi-code", "c-compact-undo");
    let mount = store.mount::<&str>(&[]);
    let dir = mount.session(&store, None);
    let texts: Vec<String> =
        (0..3).map(|n| fs::read_to_string(dir.join(format!("turns/{n:03}"))).unwrap()).collect();
    for n in [2, 1, 0] {
        fs::write(dir.join("undo"), format!("{n}\n")).unwrap();
        assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), n);
    }
    for (undo, n) in [(1, 2), (2, 1), (3, 0)] {
        let removed = fs::read_to_string(dir.join(format!("undone/{undo}/turns/{n:03}"))).unwrap();
        assert_eq!(removed, texts[n], "undone/{undo}");
    }
    assert_eq!(fs::read_to_string(dir.join("context.md")).unwrap().matches("turn one").count(), 0);
    for n in 1..=3 {
        fs::write(dir.join("redo"), "last\n").unwrap();
        assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), n);
    }
    let now: Vec<String> =
        (0..3).map(|n| fs::read_to_string(dir.join(format!("turns/{n:03}"))).unwrap()).collect();
    assert_eq!(now, texts);
}

#[test]
fn in_a_steady_state_nothing_is_read() {
    let store = TestStore::of("kimi-code", "j-sub");
    let mount = store.mount::<&str>(&[]);
    let dir = mount.session(&store, None);
    let all = || {
        for n in 0..3 {
            fs::read(dir.join(format!("turns/{n:03}"))).unwrap();
        }
        fs::read_dir(dir.parent().unwrap()).unwrap().for_each(drop);
        fs::read(dir.join("status")).unwrap();
    };
    all();
    std::thread::sleep(Duration::from_millis(2500));
    all();
    let before = read_of(&mount);
    for _ in 0..5 {
        all();
    }
    assert!(!before.is_empty());
    assert_eq!(read_of(&mount), before);
}
