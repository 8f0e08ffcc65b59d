//! What Codex sessions are called, and whether they are archived: the same wherever it is told.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use support::TestStore;

const THREAD: &str = "019f7ed6-0000-7000-8000-000000000008";
const OTHER: &str = "019f7ed6-0000-7000-8000-000000000009";

/// A store with one thread of one turn with this prompt, and these events behind it.
fn store(prompt: &str, events: &[Value]) -> TestStore {
    let store = TestStore::empty_of("codex");
    let dir = store.root.join("sessions/2026/07/20");
    fs::create_dir_all(&dir).unwrap();
    let mut lines = vec![
        json!({"type": "session_meta", "payload": {
            "id": THREAD, "timestamp": "2026-07-20T09:00:00.000Z", "cwd": "/home/dev/app", "cli_version": "0.146.0"}}),
        json!({"type": "event_msg", "payload": {"type": "task_started", "turn_id": "t0"}}),
        json!({"type": "response_item", "payload": {
            "type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}}),
        json!({"type": "event_msg", "payload": {"type": "user_message", "message": prompt}}),
    ];
    lines.extend(events.iter().map(|payload| json!({"type": "event_msg", "payload": payload})));
    lines.push(json!({"type": "event_msg", "payload": {"type": "task_complete", "turn_id": "t0"}}));
    let stamped = lines.into_iter().map(|mut line| {
        line["timestamp"] = "2026-07-20T09:00:01.000Z".into();
        format!("{line}\n")
    });
    let content: String = stamped.collect();
    fs::write(dir.join(format!("rollout-2026-07-20T09-00-00-{THREAD}.jsonl")), content).unwrap();
    store
}

fn named(name: &str) -> Value {
    json!({"type": "thread_name_updated", "thread_id": THREAD, "thread_name": name})
}

fn row(store: &TestStore, columns: &str, values: &[&str]) {
    let db = rusqlite::Connection::open(store.root.join("state_5.sqlite")).unwrap();
    db.execute_batch(
        "CREATE TABLE threads (id TEXT, rollout_path TEXT, title TEXT, name TEXT, archived INTEGER NOT NULL DEFAULT 0)",
    )
    .unwrap();
    let places = vec!["?"; values.len()].join(", ");
    let sql = format!("INSERT INTO threads ({columns}) VALUES ({places})");
    db.execute(&sql, rusqlite::params_from_iter(values)).unwrap();
}

fn file(store: &TestStore) -> String {
    store
        .root
        .join(format!("sessions/2026/07/20/rollout-2026-07-20T09-00-00-{THREAD}.jsonl"))
        .display()
        .to_string()
}

/// The title that every place tells, and the name of the directory.
#[track_caller]
fn told(store: &TestStore) -> (String, String) {
    let listed = store.run(&["ls", "--all", "--json"]).json();
    let title = listed[0]["title"].as_str().unwrap().to_owned();
    let table = store.run(&["ls", "--all"]).ok();
    let row = table.lines().nth(1).unwrap();
    let start: String = title.chars().take(60).collect();
    assert!(row.contains(&start), "{title:?}:\n{table}");
    let shown = store.run(&["show", THREAD]).ok();
    assert!(shown.contains(&format!("title: {title}\n")), "{title:?}:\n{shown}");
    let mount = store.mount(&["--read-only"]);
    let dir = mount.session(store, None);
    let meta: Value = serde_json::from_slice(&fs::read(dir.join("meta.json")).unwrap()).unwrap();
    assert_eq!(meta["title"], title.as_str());
    (title, dir.file_name().unwrap().to_string_lossy().into_owned())
}

#[test]
fn a_title_is_what_was_asked_without_what_an_editor_put_around_it() {
    let tabs = "- a.lua: src/a.lua\n".repeat(400);
    for (prompt, title, slug) in [
        (
            "# Context from my IDE setup:\n\n## Active file: a.lua\n\n## My request for Codex:\nwhy does it not revive\n",
            "why does it not revive",
            "why-does-it-not-revive",
        ),
        (
            &*format!(
                "# Context from my IDE setup:\n\n## Open tabs:\n{tabs}\n## My request for Codex:\nfind it"
            ),
            "find it",
            "find-it",
        ),
        (
            "# Files mentioned by the user:\n\n## shot.png: /tmp/shot.png\n\nmake it look so\nplease",
            "make it look so",
            "make-it-look-so-please",
        ),
        (
            "# Context from my IDE setup:\n\n## Active file: a.lua\n",
            "# Context from my IDE setup:",
            "context-from-my-ide-setup-active-file-a",
        ),
        ("plain words\nin two lines", "plain words", "plain-words-in-two-lines"),
    ] {
        let store = store(prompt, &[]);
        assert_eq!(told(&store), (title.to_owned(), format!("2026-07-20-codex-{slug}-00000008")), "{prompt}");
        // Nothing of the prompt is lost.
        let mount = store.mount(&["--read-only"]);
        let dir = mount.session(&store, None);
        assert_eq!(fs::read_to_string(dir.join("prompts/000")).unwrap(), prompt);
        assert!(fs::read_to_string(dir.join("turns/000")).unwrap().contains(prompt));
        let listed = store.run(&["show", THREAD]).ok();
        assert!(listed.lines().last().unwrap().ends_with(title), "{listed}");
    }
}

#[test]
fn a_name_that_was_given_comes_before_titles_and_prompts_and_leaves_the_directory_alone() {
    let slug = "2026-07-20-codex-the-prompt-00000008";
    let events = [named("first"), named("last\u{1b}[2J")];
    let index =
        format!("{{\"id\":\"{THREAD}\",\"thread_name\":\"of the names file\",\"updated_at\":\"x\"}}\n");

    let plain = store("the prompt", &[]);
    row(&plain, "id, rollout_path, title", &[THREAD, &file(&plain), "made by the client"]);
    assert_eq!(told(&plain), ("made by the client".into(), slug.into()));

    let in_file = store("the prompt", &[named("first"), named("second")]);
    assert_eq!(told(&in_file), ("second".into(), slug.into()));
    row(&in_file, "id, rollout_path, title", &[THREAD, &file(&in_file), "made by the client"]);
    assert_eq!(told(&in_file), ("second".into(), slug.into()));

    fs::write(in_file.root.join("session_index.jsonl"), index).unwrap();
    assert_eq!(told(&in_file), ("of the names file".into(), slug.into()));

    let in_row = store("the prompt", &events);
    row(
        &in_row,
        "id, rollout_path, title, name",
        &[THREAD, &file(&in_row), "made by the client", "of the row"],
    );
    assert_eq!(told(&in_row), ("of the row".into(), slug.into()));

    // Control characters never reach a terminal.
    let table = store("the prompt", &events).run(&["ls", "--all"]).ok();
    assert!(table.contains("last␛[2J"), "{table:?}");
}

#[test]
fn a_name_that_was_taken_away_or_is_another_threads_does_not_count() {
    let gone =
        store("the prompt", &[named("once"), json!({"type": "thread_name_updated", "thread_id": THREAD})]);
    assert_eq!(told(&gone).0, "the prompt");
    let copied = json!({"type": "thread_name_updated", "thread_id": OTHER, "thread_name": "of the parent"});
    assert_eq!(told(&store("the prompt", &[copied])).0, "the prompt");
}

/// Whether each place says that the only session is archived.
#[track_caller]
fn archived(store: &TestStore) -> bool {
    let listed = store.run(&["ls", "--all", "--json"]).json();
    let mount = store.mount(&["--read-only"]);
    let meta = fs::read(mount.session(store, None).join("meta.json")).unwrap();
    let meta: Value = serde_json::from_slice(&meta).unwrap();
    assert_eq!(meta["archived"], listed[0]["archived"]);
    listed[0]["archived"].as_bool().unwrap()
}

/// Moves the thread's file into the archive, if it is to be there.
fn placed(store: &TestStore, in_archive: bool) {
    if in_archive {
        let to = store.root.join("archived_sessions");
        fs::create_dir(&to).unwrap();
        let from = file(store);
        fs::rename(&from, to.join(Path::new(&from).file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_thread_is_archived_if_its_row_says_so_and_without_a_row_if_its_file_is_in_the_archive() {
    for in_archive in [false, true] {
        let store = store("the prompt", &[]);
        placed(&store, in_archive);
        assert_eq!(archived(&store), in_archive);
        for says in [false, true] {
            fs::remove_file(store.root.join("state_5.sqlite")).ok();
            row(&store, "id, rollout_path, archived", &[THREAD, &file(&store), if says { "1" } else { "0" }]);
            assert_eq!(archived(&store), says, "file in the archive: {in_archive}");
        }
    }
}

#[test]
fn an_undo_of_an_archived_thread_says_what_the_client_accepts_in_that_state() {
    // Where the file is, where the row has it (without one: None), whether the row says archived; and the advice.
    for (in_archive, row_in_archive, says, advice) in [
        (true, None, "", Some("codex unarchive")),
        (true, Some(true), "1", Some("codex unarchive")),
        (true, Some(true), "0", Some("codex unarchive")),
        (true, Some(false), "0", Some("move")),
        (true, Some(false), "1", Some("move, codex archive, codex unarchive")),
        (false, Some(true), "1", Some("move, codex unarchive")),
        (false, Some(false), "1", Some("codex archive, codex unarchive")),
        (false, Some(false), "0", None),
        (false, None, "", None),
    ] {
        let what = format!("file {in_archive}, row {row_in_archive:?} {says}");
        let store = store("the prompt", &[]);
        placed(&store, in_archive);
        let plain = file(&store);
        let name = Path::new(&plain).file_name().unwrap().to_str().unwrap();
        let packed = store.root.join("archived_sessions").join(name).display().to_string();
        if let Some(row_in_archive) = row_in_archive {
            let path = if row_in_archive { &packed } else { &plain };
            row(&store, "id, rollout_path, archived", &[THREAD, path, says]);
        }
        let before = store.snapshot();
        let undo = store.run(&["undo", THREAD, "0", "--dry-run"]);
        let Some(advice) = advice else {
            undo.ok();
            continue;
        };
        let sentence = undo.refused();
        let mut behind = &*sentence;
        for step in advice.split(", ") {
            let step = match step {
                "move" if in_archive => format!("move {packed} to {plain}"),
                "move" => format!("move {plain} to {packed}"),
                command => format!("`{command} {THREAD}`"),
            };
            let at = behind.find(&step).unwrap_or_else(|| panic!("{what}: no {step:?} in {sentence}"));
            behind = &behind[at + step.len()..];
        }
        assert!(!behind.contains("codex") && behind.contains("`fork`"), "{what}: {sentence}");
        store.run(&["undo", THREAD, "0"]).refused();
        assert!(store.snapshot() == before, "{what}");
        store.run(&["fork", THREAD, "0"]).ok();
    }
}
