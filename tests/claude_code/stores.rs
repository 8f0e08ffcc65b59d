//! Which sessions a store has, and who is at work in one.

use std::fs;
use std::path::Path;

use serde_json::json;
use turnfs::session::{Errno, Refusal};

use crate::transcript::{ID, Store};

/// Field 22 of /proc/PID/stat.
fn started(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().to_owned()
}

#[test]
fn a_client_that_has_the_session_prevents_an_undo_but_no_fork_and_one_that_was_killed_neither() {
    let store = Store::with_turns(&["a", "b"]);
    let mut client = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let dir = store.root().join("sessions");
    fs::create_dir_all(&dir).unwrap();
    let note = |start: &str, session: &str| {
        let note = json!({"pid": client.id(), "sessionId": session, "procStart": start, "status": "idle"});
        fs::write(dir.join(format!("{}.json", client.id())), note.to_string()).unwrap();
    };
    note(&started(client.id()), ID);
    let refusal = store.undo(1).unwrap_err();
    assert_eq!(refusal.errno(), Errno::BUSY);
    let writer = match &refusal {
        Refusal::Live { writer, .. } | Refusal::Locked { writer } => writer,
        other => panic!("{other:?}"),
    };
    assert_eq!(writer.pid, Some(client.id()));
    assert_eq!(store.fork(0).0, ["a"]);
    // Another process has that number now, or the client has another session.
    note("1", ID);
    store.undo(1).unwrap();
    store.redo().unwrap();
    note(&started(client.id()), "another");
    store.undo(1).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn a_turn_that_a_busy_client_is_at_is_not_forked() {
    let store = Store::with_turns(&["a", "b"]);
    let mut client = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let dir = store.root().join("sessions");
    fs::create_dir_all(&dir).unwrap();
    let note =
        json!({"pid": client.id(), "sessionId": ID, "procStart": started(client.id()), "status": "busy"});
    fs::write(dir.join("n.json"), note.to_string()).unwrap();
    assert_eq!(store.fork(0).0, ["a"]);
    let session = store.session();
    let plan = store.agent.plan_fork(&session, &store.history(), 1, None);
    assert_eq!(plan.unwrap_err().errno(), Errno::BUSY);
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn sub_agents_of_both_layouts_belong_to_their_session() {
    let store = Store::with_turns(&["a"]);
    let own = store.root().join(format!("projects/-w-p/{ID}/subagents"));
    fs::create_dir_all(&own).unwrap();
    let record = |session: &str| {
        json!({"parentUuid": null, "isSidechain": true, "type": "user", "uuid": "s", "sessionId": session, "cwd": "/w/p",
            "timestamp": "2026-01-02T03:04:05.000Z", "message": {"role": "user", "content": "look"}})
        .to_string()
            + "\n"
    };
    fs::write(own.join("agent-abc.jsonl"), record(ID)).unwrap();
    fs::write(own.join("agent-abc.meta.json"), r#"{"agentType":"explore","description":"find it"}"#).unwrap();
    fs::write(store.root().join("projects/-w-p/agent-old.jsonl"), record(ID)).unwrap();
    fs::write(store.root().join("projects/-w-p/agent-other.jsonl"), record("another")).unwrap();
    let found = store.agent.discover().unwrap();
    assert_eq!(found.sessions.len(), 1, "sub-agents are no sessions");
    let agents = store.agent.subagents(&store.session()).unwrap();
    let seen: Vec<_> = agents.iter().map(|agent| (agent.id.as_str(), agent.title.as_deref())).collect();
    assert_eq!(seen, [("abc", Some("explore: find it")), ("old", None)]);
    for agent in &agents {
        assert_eq!(store.agent.load(agent).unwrap().turns[0].prompt.as_deref(), Some("look"));
        assert_eq!(store.agent.parents_of(&agent.key.path), [store.session().key.path.to_path_buf()]);
    }
}

#[test]
fn a_folder_that_a_link_leads_to_is_listed_once() {
    let store = Store::with_turns(&["a"]);
    let projects = store.root().join("projects");
    std::os::unix::fs::symlink(projects.join("-w-p"), projects.join("-a-linked")).unwrap();
    let found = store.agent.discover().unwrap();
    assert_eq!(found.sessions.len(), 1, "{:?}", found.sessions);
    assert!(found.sessions[0].key.path.starts_with("projects/-w-p"), "under its own name");
    assert!(found.links.iter().any(|link| link.ends_with("-a-linked")), "and the link is watched");
}

#[test]
fn a_look_that_finds_nothing_new_is_the_very_same_and_titles_follow_the_file() {
    let mut store = Store::with_turns(&["<bash-input>ls</bash-input>"]);
    assert_eq!(store.session().first_prompt.as_deref(), Some("!ls"));
    let first = store.agent.discover().unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &store.agent.discover().unwrap()));
    store.raw(&json!({"type": "ai-title", "aiTitle": "By the model", "sessionId": ID}));
    assert_eq!(store.session().title.as_deref(), Some("By the model"));
    store.raw(&json!({"type": "custom-title", "customTitle": "Mine", "sessionId": ID}));
    store.turn("more");
    let session = store.session();
    assert_eq!((session.title.as_deref(), session.name.as_deref()), (Some("Mine"), Some("Mine")));
    // Far from both ends it is found when the session is read.
    store.turn(&"x".repeat(200_000));
    assert_eq!(store.history().name.as_deref(), Some("Mine"));
}

/// `/cd` in the client: the transcript goes to the other project's folder, and says so.
#[test]
fn a_session_that_was_moved_belongs_to_the_project_it_was_moved_to_and_so_do_its_cuts() {
    for last in ["/w/p", "/w-p"] {
        let mut store = Store::with_turns(&["a"]);
        // It was in another project that has the same folder, and perhaps came back.
        for project in ["/w-p", last] {
            store.raw(&json!({"type": "relocated", "sessionId": ID, "relocatedCwd": project}));
            store.turn("b");
        }
        assert_eq!(store.projects(), [Path::new(last)]);
        for n in [0, 1, 2] {
            store.fork(n);
            assert_eq!(store.projects(), [Path::new(last)], "fork {n}");
        }
        let before = fs::read(store.file()).unwrap();
        for n in [2, 1] {
            store.undo(n).unwrap();
            assert_eq!(store.prompts().len(), n as usize);
            assert_eq!(store.projects(), [Path::new(last)], "undo {n}");
            store.redo().unwrap();
            assert_eq!(fs::read(store.file()).unwrap(), before);
        }
    }
}

/// Somebody renamed a project and the store's folder with it, and the client went on there.
#[test]
fn a_session_that_goes_on_in_the_folder_of_another_project_belongs_there() {
    let mut store = Store::new();
    store.cwd = "/w/old".into();
    store.turn("a");
    assert_eq!(store.projects(), [Path::new("/w/old")]);
    store.cwd = "/w/p".into();
    store.turn("b");
    assert_eq!(store.projects(), [Path::new("/w/p")]);
    store.fork(0);
    assert_eq!(store.projects(), [Path::new("/w/p")]);
    store.undo(1).unwrap();
    assert_eq!(store.projects(), [Path::new("/w/p")]);
    store.redo().unwrap();
    // A directory below the project is no other project.
    store.cwd = "/w/p/sub".into();
    store.turn("c");
    assert_eq!(store.projects(), [Path::new("/w/p")]);
}
