//! A path below `agents/` or `undone/` means what it shows, never the session above it.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::support::{Mount, TestStore};
use super::{OLDER, rollout};

fn run(store: &TestStore, command: &str, path: &Path, rest: &[&str]) -> super::support::Ran {
    let mut arguments: Vec<PathBuf> = vec![command.into(), path.into()];
    arguments.extend(rest.iter().map(PathBuf::from));
    store.run(&arguments)
}

/// A Kimi CLI session with a sub-agent, and the sub-agent's directory.
fn kimi() -> (TestStore, Mount, PathBuf, PathBuf) {
    let store = TestStore::from_sample("j-sub");
    let mount = store.mount(&[] as &[&str]);
    let session = mount.session(&store, None);
    let agent = fs::read_dir(session.join("agents")).unwrap().next().unwrap().unwrap().path();
    (store, mount, session, agent)
}

#[test]
fn a_sub_agent_is_shown_by_its_path_and_by_its_id() {
    let (store, _mount, _, agent) = kimi();
    let text = fs::read_to_string(agent.join("turns/000")).unwrap();
    let id = agent.file_name().unwrap().to_str().unwrap();
    assert!(text.contains("sub prompt please"), "{text}");
    assert_eq!(run(&store, "show", &agent, &["0"]).ok(), text);
    assert_eq!(run(&store, "show", &agent.join("turns/000"), &[]).ok(), text);
    assert_eq!(run(&store, "show", Path::new(id), &["0"]).ok(), text);
    assert_eq!(run(&store, "show", &agent, &["--json"]).json()["id"], id);
    assert!(run(&store, "show", agent.parent().unwrap(), &[]).refused().contains("is not a session"));
}

#[test]
fn no_cut_of_a_sub_agent_touches_its_session() {
    let (store, _mount, _, agent) = kimi();
    let before = store.snapshot();
    let id = agent.file_name().unwrap();
    for target in [agent.as_path(), Path::new(id)] {
        for (command, rest) in
            [("undo", &["0"][..]), ("undo", &["0", "--force"]), ("redo", &[]), ("rescue", &[])]
        {
            let said = run(&store, command, target, rest).refused();
            assert!(said.contains("sub-agent"), "{command}: {said}");
        }
    }
    assert!(store.snapshot() == before);
}

#[test]
fn a_fork_of_a_kimi_sub_agent_is_a_session_of_its_parents_project() {
    let (store, _mount, session, agent) = kimi();
    let before = store.snapshot();
    let id = agent.file_name().unwrap();
    for target in [agent.as_path(), Path::new(id)] {
        let fork = run(&store, "fork", target, &["0"]).ok().trim().to_owned();
        assert!(store.run(&["show", &fork, "0"]).ok().contains("sub prompt please"));
        let listed = store.run(&["ls", "--all", "--json"]).json();
        let listed = listed.as_array().unwrap();
        let of = |id: &str| listed.iter().find(|session| session["id"] == id).unwrap();
        let parent = session.file_name().unwrap().to_str().unwrap();
        let parent = listed.iter().find(|session| session["path"].as_str().unwrap().ends_with(parent));
        assert_eq!(of(&fork)["project"], parent.unwrap()["project"]);
    }
    let now = store.snapshot();
    assert!(
        before.iter().all(|(path, file)| now.get(path) == Some(file)),
        "the session and its sub-agent are as they were"
    );
}

#[test]
fn what_an_undo_removed_is_shown_by_its_path_and_never_the_live_session() {
    let (store, _mount, session, _) = kimi();
    let removed = fs::read_to_string(session.join("turns/002")).unwrap();
    fs::write(session.join("undo"), "2").unwrap();
    let before = store.snapshot();
    let undone = session.join("undone/1");
    assert_eq!(run(&store, "show", &undone, &["2"]).ok(), removed);
    assert_eq!(run(&store, "show", &undone.join("turns/002"), &[]).ok(), removed);
    assert_eq!(run(&store, "show", &undone, &["--json"]).json()["turns"][0]["n"], 2);
    assert!(run(&store, "show", &undone, &["0"]).refused().contains("undo 1"));
    assert!(run(&store, "show", undone.parent().unwrap(), &[]).refused().contains("is not a session"));
    for (command, rest) in [("undo", &["1"][..]), ("undo", &["last", "--dry-run"]), ("rescue", &[])] {
        let said = run(&store, command, &undone, rest).refused();
        assert!(said.contains("what undo 1 of") && said.contains("turnfs redo"), "{command}: {said}");
    }
    assert!(run(&store, "redo", &undone, &["2"]).refused().contains("undo 1"));
    assert!(store.snapshot() == before);
    // The undo itself is what `redo` is about.
    assert!(run(&store, "redo", &undone, &[]).ok().contains("(undo 1)"));
    assert_eq!(fs::read_to_string(session.join("turns/002")).unwrap(), removed);
}

#[test]
fn a_fork_of_a_codex_sub_agent_is_a_session_of_its_own() {
    const AGENT: &str = "01a22cb1-8565-71c1-997b-0000000000aa";
    let store = TestStore::of("codex", "a_plain4");
    let file = rollout(&store, OLDER);
    let text = fs::read_to_string(&file).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let mut meta: serde_json::Value = serde_json::from_str(first).unwrap();
    let payload = &mut meta["payload"];
    payload["id"] = AGENT.into();
    payload["parent_thread_id"] = OLDER.into();
    payload["thread_source"] = "subagent".into();
    payload["agent_nickname"] = "Scout".into();
    payload["source"] = json!({"subagent": {"thread_spawn": {"parent_thread_id": OLDER, "depth": 1}}});
    let own = rest.replace("one ALPHA", "look around");
    fs::write(file.to_str().unwrap().replace(OLDER, AGENT), format!("{meta}\n{own}")).unwrap();
    let index = store.thread_index().unwrap();
    index.execute_batch(&format!("CREATE TEMP TABLE one AS SELECT * FROM threads; UPDATE one SET id = '{AGENT}', source = '{{}}', thread_source = 'subagent', agent_nickname = 'Scout', rollout_path = replace(rollout_path, '{OLDER}', '{AGENT}'); INSERT INTO threads SELECT * FROM one")).unwrap();
    drop(index);

    let mount = store.mount(&[] as &[&str]);
    let parent = mount.session(&store, None);
    let agent = parent.join("agents/scout-000000aa");
    assert!(fs::read_to_string(agent.join("turns/000")).unwrap().contains("look around"));
    for name in [AGENT, "scout-000000aa"] {
        assert_eq!(store.run(&["show", name, "--json"]).json()["id"], AGENT, "{name}");
    }
    let before = store.snapshot();
    let said = run(&store, "undo", &agent, &["0"]).refused();
    assert!(said.contains("sub-agent"), "{said}");
    assert!(store.snapshot() == before);

    let fork = run(&store, "fork", &agent, &["1"]).ok().trim().to_owned();
    let listed = store.run(&["ls", "--all", "--json"]).json();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(listed[0]["id"], *fork);
    assert_eq!(store.run(&["show", &fork, "--json"]).json()["turns"].as_array().unwrap().len(), 2);
    assert!(store.run(&["show", &fork, "0"]).ok().contains("look around"));
    let text = fs::read_to_string(rollout(&store, &fork)).unwrap();
    let meta: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(meta["payload"]["source"], "cli");
    for field in ["parent_thread_id", "thread_source", "agent_nickname"] {
        assert!(meta["payload"].get(field).is_none(), "{field}");
    }
    let index = store.thread_index().unwrap();
    let row = "SELECT source || '/' || coalesce(thread_source, '-') || '/' || coalesce(agent_nickname, '-') FROM threads WHERE id = ?1";
    assert_eq!(index.query_row(row, [&fork], |row| row.get::<_, String>(0)).unwrap(), "cli/-/-");
}

/// An OpenMax store with these sessions, as ids with the projects that the index records.
fn openmax(sessions: &[(&str, &str)]) -> TestStore {
    let store = TestStore::empty_of("openmax");
    let dir = store.root.join("sessions");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).unwrap();
    let entry = |(id, project): &(&str, &str)| json!({"id": id, "project": project, "title": "t", "created_at": 1, "updated_at": 1});
    let index: Vec<_> = sessions.iter().map(entry).collect();
    fs::write(dir.join("index.json"), serde_json::to_vec(&index).unwrap()).unwrap();
    for (id, _) in sessions {
        let records = "{\"role\":\"system\",\"content\":\"s\"}\n{\"role\":\"user\",\"content\":\"q\"}\n";
        fs::write(dir.join(format!("{id}.messages.json")), records).unwrap();
    }
    store
}

#[test]
fn a_project_at_a_sessions_place_hides_no_session() {
    let name = "1970-01-01-openmax-t-pppp0001";
    let sessions = [
        ("pppp0001", "/p".to_owned()),
        ("qqqq0002", format!("/p/{name}")),
        // Deeper, and at the place that the session then would have.
        ("rrrr0003", format!("/p/{name}/turns")),
        ("ssss0004", format!("/p/{name}-pppp0001")),
    ];
    let sessions: Vec<_> = sessions.iter().map(|(id, project)| (*id, project.as_str())).collect();
    let store = openmax(&sessions);
    let mount = store.mount(&[] as &[&str]);
    let listed = store.run(&["ls", "--all", "--json"]).json();
    for session in listed.as_array().unwrap() {
        let (id, path) = (&session["id"], session["path"].as_str().unwrap());
        let dir = mount.path.join(path);
        let meta: serde_json::Value =
            serde_json::from_slice(&fs::read(dir.join("meta.json")).unwrap()).unwrap();
        assert_eq!(meta["id"], *id, "{path}");
        assert!(dir.join("turns/000").exists(), "{path}");
        assert_eq!(run(&store, "show", &dir, &["--json"]).json()["id"], *id, "{path}");
        let beside = fs::read_dir(dir.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(beside.filter(|entry| *entry == *dir.file_name().unwrap()).count(), 1, "{path}");
    }
    let p = mount.path.join("p");
    let latest = fs::canonicalize(p.join("latest")).unwrap();
    let meta: serde_json::Value =
        serde_json::from_slice(&fs::read(latest.join("meta.json")).unwrap()).unwrap();
    assert_eq!(meta["id"], "pppp0001");
    assert!(p.join("pppp0001/turns/000").exists(), "by its full id");
    let status = fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
    assert!(
        status.contains("note: /p shows a session as") && status.contains(&format!("the path /p/{name}")),
        "{status}"
    );
}
