//! Versions, running servers, odd projects, migrated sessions, and what finding sessions costs.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use turnfs::agents::open;
use turnfs::session::{AgentKind, Errno, State, now};
use turnfs::transcript::Passes;

use crate::support::TestStore;
use crate::wires::{ID, Store};

#[test]
fn an_unknown_major_version_is_unsupported_and_a_new_minor_one_is_not() {
    for (version, state) in
        [("1.5", State::Ok), ("1.9", State::Ok), ("2.0", State::Unsupported), ("", State::Unsupported)]
    {
        let mut store = Store::new();
        store.turn("a");
        let text = fs::read_to_string(store.wire()).unwrap().replace("\"1.5\"", &format!("\"{version}\""));
        fs::write(store.wire(), text).unwrap();
        assert_eq!(store.history().state, state, "{version}");
        if state == State::Unsupported {
            assert_eq!(store.undo(0).unwrap_err().errno(), Errno::OPNOTSUPP, "{version}");
        }
    }
    let mut store = Store::new();
    store.turn("a");
    let text = fs::read_to_string(store.wire()).unwrap();
    fs::write(store.wire(), text.split_once('\n').unwrap().1).unwrap();
    assert_eq!(store.history().state, State::Unsupported, "no version at all");
}

#[test]
fn blank_lines_and_crlf_are_what_they_are_to_the_client() {
    let mut store = Store::new();
    store.turn("a");
    store.turn("b");
    let text = fs::read_to_string(store.wire()).unwrap();
    fs::write(store.wire(), text.replace('\n', "\r\n").replacen("\r\n", "\r\n\n  \n", 3)).unwrap();
    assert_eq!((store.history().state, store.prompts().len()), (State::Ok, 2));
    store.undo(1).unwrap();
    assert_eq!(store.prompts(), ["a"], "lines are counted without the blank ones");
}

#[test]
fn records_of_unknown_types_are_kept_and_shown_as_such() {
    let mut store = Store::new();
    store.prompt("a", false);
    store.put("from.the.future", json!({"x": 1}));
    store.reply("b");
    store.end("completed");
    let history = store.history();
    let session = store.session();
    let bytes = fs::read(store.wire()).unwrap();
    let span = &bytes[history.turns[0].span.start as usize..history.turns[0].span.end as usize];
    let text = turnfs::agents::turn_text(&*store.agent, &session, &history.turns[0], span).unwrap();
    assert!(text.contains("from.the.future"), "{text}");
    assert_eq!(text.len() as u64, history.turns[0].text_len);
    let fork = store.fork(0).unwrap();
    assert!(fs::read_to_string(store.root().join(&fork.files[0])).unwrap().contains("from.the.future"));
}

/// A process that runs until it is dropped.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeper() -> Running {
    Running(Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap())
}

#[test]
fn a_server_that_runs_refuses_an_undo_and_no_fork() {
    let mut store = Store::new();
    store.turn("a");
    store.turn("b");
    let instances = store.root().join("server/instances");
    fs::create_dir_all(&instances).unwrap();
    let server = sleeper();
    let says = |pid: u32, age: i64| {
        let at = now().as_millisecond() - age;
        let instance = json!({"server_id": "s", "pid": pid, "host": "127.0.0.1", "port": 1, "started_at": at, "heartbeat_at": at});
        fs::write(instances.join("01.json"), instance.to_string()).unwrap();
    };
    says(server.0.id(), 1000);
    let refusal = store.undo(1).unwrap_err();
    assert_eq!(refusal.errno(), Errno::BUSY);
    assert!(refusal.to_string().contains(&server.0.id().to_string()), "{refusal}");
    store.fork(0).unwrap();
    // Another process has got the number of a server that is long gone.
    says(server.0.id(), 3_600_000);
    store.undo(1).unwrap();
    says(server.0.id(), 1000);
    assert_eq!(store.redo().unwrap_err().errno(), Errno::BUSY);
    drop(server);
    store.redo().unwrap();
    assert_eq!(store.prompts(), ["a", "b"]);
}

#[test]
fn a_turn_that_was_written_to_just_now_is_running() {
    let mut store = Store::new();
    store.turn("a");
    store.prompt("b", false);
    let text = fs::read_to_string(store.wire()).unwrap();
    let last = text.lines().last().unwrap();
    let mut record: Value = serde_json::from_str(last).unwrap();
    record["time"] = now().as_millisecond().into();
    store.raw(record);
    assert_eq!(store.undo(1).unwrap_err().errno(), Errno::BUSY);
    assert_eq!(store.fork(1).unwrap_err().errno(), Errno::BUSY);
    store.fork(0).unwrap();
}

#[test]
fn paths_of_three_hundred_characters_and_with_emoji_are_projects_like_others() {
    for project in [format!("/w/{}", "very-long-name/".repeat(20)), "/w/\u{1f600} \u{202e}x/\"q\"".to_owned()]
    {
        let mut store = Store::of(&project);
        store.turn("a \u{1f600}");
        store.turn("b");
        let session = store.session();
        let wanted: std::path::PathBuf = std::path::Path::new(&project).components().collect();
        assert_eq!(session.project(), Some(&*wanted));
        let fork = store.fork(0).unwrap();
        assert_eq!(fork.project(), Some(&*wanted));
        assert_eq!(fork.name.as_deref(), Some("Fork: a \u{1f600}"));
        store.undo(1).unwrap();
        assert_eq!(store.prompts(), ["a \u{1f600}"]);
        store.redo().unwrap();
    }
}

#[test]
fn a_migrated_session_says_where_it_comes_from() {
    let store = TestStore::of("kimi-code", "migrated-c-compact");
    let mount = store.mount::<&str>(&[]);
    let dir = mount.session(&store, None);
    let meta: Value = serde_json::from_slice(&fs::read(dir.join("meta.json")).unwrap()).unwrap();
    let from = meta["migrated_from"].as_str().unwrap();
    assert!(from.ends_with("1473b527-dfc7-46c2-b4e0-c7ca83718181"), "{from}");
    let plain = TestStore::of("kimi-code", "a-plain");
    let mount = plain.mount::<&str>(&[]);
    let meta = fs::read_to_string(mount.session(&plain, None).join("meta.json")).unwrap();
    assert!(!meta.contains("migrated_from"), "{meta}");
}

#[test]
fn a_fork_takes_pictures_and_plans_along_and_no_running_jobs() {
    let mut store = Store::new();
    store.turn("a");
    for file in [
        "media/p/1.png",
        "agents/main/plan/p.md",
        "agents/main/tasks/t.json",
        "agents/main/cron/c.json",
        "logs/l",
        "notify/state.json",
    ] {
        let path = store.dir().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    let fork = store.fork(0).unwrap();
    let there = |file: &str| fork.key.absolute().join(file).exists();
    assert!(there("media/p/1.png") && there("agents/main/plan/p.md"));
    assert!(!there("agents/main/tasks") && !there("agents/main/cron") && !there("logs") && !there("notify"));
    let index = store.root().join("session_index.jsonl");
    assert!(!index.exists(), "an index that the client does not need is not made");
}

#[test]
fn a_sub_agent_that_began_after_the_cut_is_not_in_a_fork() {
    let sample = TestStore::of("kimi-code", "j-sub");
    let store = open(AgentKind::KimiCode, &*sample.root);
    let session = store.discover().unwrap().sessions[0].clone();
    let state = turnfs::cut::StateDir::at(&sample.state.join("turnfs"));
    for (n, agents) in [(0, 0), (1, 1), (2, 1)] {
        let history = store.load(&session).unwrap();
        let id = turnfs::cut::fork(&*store, &state, &session, &history, n).unwrap();
        let found = store.discover().unwrap();
        let fork = found.sessions.iter().find(|session| session.id == id).unwrap();
        assert_eq!(store.subagents(fork).unwrap().len(), agents, "fork {n}");
    }
    let agent = store.subagents(&session).unwrap().remove(0);
    let history = store.load(&agent).unwrap();
    assert_eq!(history.turns.len(), 1);
    assert!(turnfs::cut::fork(&*store, &state, &agent, &history, 0).is_err());
}

#[test]
fn a_second_look_at_many_sessions_reads_nothing_and_an_append_costs_its_own_bytes() {
    use turnfs::transcript::metrics::{ReadKind, bytes};
    let mut store = Store::new();
    store.turn("a");
    for n in 0..300 {
        let dir = store.dir().with_file_name(format!("session_{n:04}"));
        fs::create_dir_all(dir.join("agents/main")).unwrap();
        fs::copy(store.wire(), dir.join("agents/main/wire.jsonl")).unwrap();
        let state = fs::read_to_string(store.dir().join("state.json")).unwrap();
        fs::write(dir.join("state.json"), state.replace(ID, &format!("session_{n:04}"))).unwrap();
    }
    assert_eq!(store.agent.discover().unwrap().sessions.len(), 301);
    // Until stamps vouch.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    store.agent.discover().unwrap();
    let read = || {
        [ReadKind::Index, ReadKind::Transcript, ReadKind::Sidecar]
            .map(|kind| bytes(AgentKind::KimiCode, kind))
    };
    let before = read();
    assert_eq!(store.agent.discover().unwrap().sessions.len(), 301);
    let session = store.session();
    store.agent.updated(&session).unwrap();
    assert_eq!(read(), before);

    for n in 0..2000 {
        store.turn(&format!("turn {n}"));
    }
    let mut passes = Passes::default();
    store.agent.load_again(&session, &mut passes).unwrap();
    let (length, before) =
        (fs::metadata(store.wire()).unwrap().len(), bytes(AgentKind::KimiCode, ReadKind::Transcript));
    store.turn("one more");
    let added = fs::metadata(store.wire()).unwrap().len() - length;
    let history = store.agent.load_again(&session, &mut passes).unwrap();
    assert_eq!(history.turns.len(), 2002);
    assert_eq!(bytes(AgentKind::KimiCode, ReadKind::Transcript) - before, added);
}
