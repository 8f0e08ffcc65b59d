//! Codex stores that are not as the client left them: each is told clearly, in bounded time, and nothing
//! is written.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod codex_store;
#[path = "support/racy.rs"]
mod racy;

use std::fs;

use codex_store::{Store, content};
use serde_json::{Value, json};
use turnfs::agents::AgentStore as _;
use turnfs::agents::store_of;
use turnfs::cut;
use turnfs::session::{DamageClass, Errno, History, Place, Session, State};

const THREAD: &str = "01a22cb1-8565-71c1-997b-000000000001";

fn line(ordinal: Option<u64>, kind: &str, payload: Value) -> String {
    let mut line = json!({"timestamp": "2026-11-30T10:00:00.000Z", "type": kind, "payload": payload});
    if let Some(ordinal) = ordinal {
        line["ordinal"] = ordinal.into();
    }
    format!("{line}\n")
}

fn meta(mode: Value) -> String {
    let ordinal = (mode == "paginated").then_some(0);
    line(
        ordinal,
        "session_meta",
        json!({"id": THREAD, "session_id": THREAD, "cwd": "/w/app", "source": "cli",
        "timestamp": "2026-11-30T10:00:00.000Z", "history_mode": mode}),
    )
}

/// A turn of a legacy thread with these user messages.
fn turn(id: &str, prompts: &[&str]) -> String {
    let mut lines = line(None, "event_msg", json!({"type": "task_started", "turn_id": id}));
    for prompt in prompts {
        lines += &line(
            None,
            "response_item",
            json!({"type": "message", "role": "user",
            "content": [{"type": "input_text", "text": prompt}],
            "internal_chat_message_metadata_passthrough": {"content_item_kinds": ["user.text"]}}),
        );
        lines += &line(None, "event_msg", json!({"type": "user_message", "message": prompt}));
        lines +=
            &line(None, "event_msg", json!({"type": "agent_message", "message": format!("re {prompt}")}));
        lines += &line(
            None,
            "response_item",
            json!({"type": "message", "role": "assistant",
            "content": [{"type": "output_text", "text": format!("re {prompt}")}]}),
        );
    }
    lines + &line(None, "event_msg", json!({"type": "task_complete", "turn_id": id}))
}

/// The session and its history; every cut is tried and must be refused with `errno`, changing nothing.
#[track_caller]
fn refused(store: &Store, errno: Errno) -> (Session, History) {
    let before = content(&store.root);
    let session = store.only();
    let history = store.load(&session);
    for result in [
        cut::undo(&*store_of(&session), &store.state, &session, &history, 0, false).map(|_| ()),
        cut::undo(&*store_of(&session), &store.state, &session, &history, 0, true).map(|_| ()),
        cut::fork(&*store_of(&session), &store.state, &session, &history, 0).map(|_| ()),
    ] {
        let refusal = result.unwrap_err();
        assert_eq!(refusal.errno(), errno, "{refusal}");
    }
    assert_eq!(content(&store.root), before);
    (std::sync::Arc::unwrap_or_clone(session), history)
}

#[test]
fn an_unknown_history_mode_is_listed_and_never_treated_as_a_known_one() {
    for mode in [json!("sharded"), json!("Paginated"), json!(2), json!(null)] {
        let store = Store::empty();
        store.rollout(THREAD, (meta(mode.clone()) + &turn("t", &["one"])).as_bytes());
        let (session, history) = refused(&store, Errno::OPNOTSUPP);
        assert_eq!(session.place, Place::Project("/w/app".into()), "{mode}");
        assert_eq!(session.first_prompt.as_deref(), Some("one"), "{mode}");
        assert_eq!(history.state, State::Unsupported, "{mode}");
        assert!(history.turns.is_empty() && history.cuts.is_empty(), "{mode}");
        let sentence = history.readable().unwrap_err().to_string();
        assert!(sentence.contains("history mode"), "{sentence}");
    }
}

#[test]
fn a_missing_history_mode_is_legacy() {
    let store = Store::empty();
    let meta = line(None, "session_meta", json!({"id": THREAD, "cwd": "/w/app"}));
    store.rollout(THREAD, (meta + &turn("t", &["one"])).as_bytes());
    let session = store.only();
    assert_eq!(session.history_mode.as_deref(), Some("legacy"));
    assert_eq!(store.load(&session).state, State::Ok);
}

#[test]
fn a_first_line_that_is_not_the_sessions_own_is_damage_and_the_id_comes_from_the_name() {
    let good = meta(json!("legacy"));
    let cases: [(String, DamageClass); 4] = [
        (good[..good.len() / 2].to_owned() + "\n", DamageClass::FirstRecord),
        (turn("x", &["zero"]), DamageClass::FirstRecord),
        ("[1, 2]\n".to_owned(), DamageClass::FirstRecord),
        (format!("\u{feff}{good}"), DamageClass::Bom),
    ];
    for (first, class) in cases {
        let store = Store::empty();
        store.rollout(THREAD, (first.clone() + &turn("t", &["one"])).as_bytes());
        let (session, history) = refused(&store, Errno::UCLEAN);
        assert_eq!(session.id, THREAD);
        assert!(matches!(session.place, Place::Unplaced { .. }), "{first}");
        assert_eq!(history.state, State::Damaged, "{first}");
        let damage = &history.damages[0];
        assert_eq!((damage.class, damage.line, damage.byte), (class, 1, 0), "{damage:?}");
        assert_eq!(history.sound_turns, 0, "{first}");
    }
}

#[test]
fn an_empty_file_is_listed_as_empty() {
    let store = Store::empty();
    store.rollout(THREAD, b"");
    let (session, history) = refused(&store, Errno::RANGE);
    assert!(matches!(session.place, Place::Unplaced { .. }));
    assert_eq!((history.state, history.turns.len()), (State::Empty, 0));
}

#[test]
fn damage_in_the_middle_names_its_line_and_keeps_the_turns_before_it_apart() {
    let (one, two) = (turn("a", &["one"]), turn("b", &["two"]));
    let cases: [(&[u8], DamageClass); 4] = [
        (b"{\"timestamp\":\"x\",\"type\":\"event_msg\",\"payl\n", DamageClass::BadLine),
        (b"{\"type\":\"event_msg\",\"payload\":{\"text\":\"\xff\"}}\n", DamageClass::InvalidUtf8),
        (b"\0\0\0\0\n", DamageClass::NulRun),
        (b"{\"no\":\"type\"}\n", DamageClass::BadRecord),
    ];
    for (bad, class) in cases {
        let store = Store::empty();
        let head = meta(json!("legacy")) + &one;
        store.rollout(THREAD, &[head.as_bytes(), bad, two.as_bytes()].concat());
        let (_, history) = refused(&store, Errno::UCLEAN);
        let damage = &history.damages[0];
        let line = head.lines().count() as u64 + 1;
        assert_eq!((damage.class, damage.line, damage.byte), (class, line, head.len() as u64), "{damage:?}");
        assert_eq!(history.state, State::Damaged, "{class}");
        assert_eq!(history.sound_turns, 1, "{class}: the turn before it has ended");
        assert_eq!(history.turns[0].span.end, damage.byte, "{class}: and ends there");
    }
}

#[test]
fn ordinals_that_a_client_would_not_write_are_damage() {
    let started = |n| line(n, "event_msg", json!({"type": "task_started", "turn_id": "t"}));
    let other = |n| line(n, "event_msg", json!({"type": "token_count"}));
    let cases: [(Vec<String>, u64, &str); 5] = [
        (vec![started(Some(1)), other(Some(2)), other(None)], 4, "last line"),
        (vec![started(Some(1)), other(None), other(Some(3)), other(Some(3))], 3, "no ordinal"),
        (vec![started(Some(1)), other(Some(2)), other(Some(2))], 4, "line 3"),
        (vec![started(Some(5)), other(Some(0)), other(Some(1))], 3, "line 2"),
        (vec![started(Some(0))], 2, "line 1"),
    ];
    for (lines, at, says) in cases {
        let store = Store::empty();
        store.rollout(THREAD, (meta(json!("paginated")) + &lines.concat()).as_bytes());
        let (_, history) = refused(&store, Errno::UCLEAN);
        let damage = &history.damages[0];
        assert_eq!((damage.class, damage.line), (DamageClass::Ordinal, at), "{damage:?}");
        assert!(damage.message.contains(says), "{damage:?}");
    }
    // Gaps are the client's own.
    let store = Store::empty();
    store.rollout(THREAD, (meta(json!("paginated")) + &started(Some(7)) + &other(Some(90))).as_bytes());
    assert_eq!(store.load(&store.only()).state, State::Ok);
}

#[test]
fn an_ancestor_that_is_gone_or_too_short_is_named() {
    for (shorten, says) in [(None, "is not there"), (Some(9000), "shorter"), (Some(14_000), "shorter")] {
        let store = Store::of("e_client_revert");
        let session = store.only();
        let ancestor = store.root.join(&session.files[1]);
        match shorten {
            None => fs::remove_file(&ancestor).unwrap(),
            Some(len) => fs::File::options().write(true).open(&ancestor).unwrap().set_len(len).unwrap(),
        }
        let (_, history) = refused(&store, Errno::UCLEAN);
        assert_eq!(history.state, State::Damaged);
        let damage = history.damages.iter().find(|damage| !damage.class.is_torn()).unwrap();
        assert_eq!(damage.class, DamageClass::DanglingParent, "{damage:?}");
        assert!(damage.message.contains(says), "{damage:?}");
    }
}

#[test]
fn a_history_in_a_circle_ends() {
    let store = Store::empty();
    let base = json!({"thread_id": THREAD, "end_ordinal_exclusive": 1, "end_byte_offset": 10});
    let first = line(
        Some(1),
        "session_meta",
        json!({"id": THREAD, "cwd": "/w", "history_mode": "paginated",
        "history_base": base}),
    );
    store.rollout(THREAD, first.as_bytes());
    let history = store.load(&store.only());
    assert_eq!(history.damages[0].class, DamageClass::DanglingParent);
    assert!(history.damages[0].message.contains("circle"), "{:?}", history.damages);
}

#[test]
fn a_database_that_is_locked_missing_or_no_database_hides_no_session() {
    let wanted = |store: &Store| {
        // It is held until this test lets go of it: who waited for it would wait for ever.
        let found = store.found();
        assert_eq!(found.sessions.len(), 3);
        assert_eq!(store.load(&found.sessions[0]).state, State::Ok);
        found.problems
    };
    let store = Store::of("f_client_fork");
    let db = store.db();
    db.execute_batch("BEGIN EXCLUSIVE; UPDATE threads SET title = 'half done'").unwrap();
    wanted(&store);
    db.execute_batch("ROLLBACK; PRAGMA journal_mode = WAL; UPDATE threads SET title = 'in the log'").unwrap();
    let before = content(&store.root);
    assert!(store.root.join("state_5.sqlite-wal").exists());
    assert!(wanted(&store).is_empty());
    assert!(store.found().sessions.iter().all(|session| session.title.as_deref() == Some("in the log")));
    assert_eq!(content(&store.root), before, "reading left a trace");
    drop(db);
    fs::write(store.root.join("state_5.sqlite"), "no database at all, but long enough to be looked at")
        .unwrap();
    let problems = wanted(&store);
    assert_eq!((problems.len(), problems[0].class), (1, DamageClass::Sidecar));
    fs::remove_file(store.root.join("state_5.sqlite")).unwrap();
    assert!(wanted(&store).is_empty());
}

#[test]
fn a_database_of_a_newer_client_is_used_as_far_as_it_is_known() {
    let store = Store::of("a_plain4");
    store.db().execute_batch("ALTER TABLE threads ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'").unwrap();
    assert_eq!(store.only().title.as_deref(), Some("one ALPHA"));
    // Rows keep what is not known.
    let (files, rows) = (store.files(), store.rows());
    let session = store.only();
    let history = store.load(&session);
    let new = cut::fork(&*store_of(&session), &store.state, &session, &history, 0).unwrap();
    assert!(store.rows()[&new].contains("calm") || store.rows()[&new].contains("Text("));
    fs::remove_file(store.path_of(&new)).unwrap();
    store.db().execute("DELETE FROM threads WHERE id = ?1", [&new]).unwrap();
    cut::undo(&*store_of(&session), &store.state, &session, &history, 1, false).unwrap();
    cut::redo(&*store_of(&store.only()), &store.state, &store.only(), None, false).unwrap();
    assert_eq!((store.files(), store.rows()), (files, rows));

    store
        .db()
        .execute_batch("ALTER TABLE threads DROP COLUMN name; ALTER TABLE threads DROP COLUMN model")
        .unwrap();
    let found = store.found();
    assert_eq!((found.sessions.len(), found.problems.len()), (1, 0), "{:?}", found.problems);

    store.db().execute_batch("ALTER TABLE threads RENAME COLUMN rollout_path TO place").unwrap();
    let found = store.found();
    assert_eq!((found.sessions.len(), found.problems.len()), (1, 1));
    let session = store.only();
    let history = store.load(&session);
    let files = store.files();
    let refusal = cut::undo(&*store_of(&session), &store.state, &session, &history, 1, false).unwrap_err();
    assert_eq!(refusal.errno(), Errno::UCLEAN, "{refusal}");
    assert_eq!(store.files(), files);
    // A fork needs no row.
    cut::fork(&*store_of(&session), &store.state, &session, &history, 1).unwrap();
}

#[test]
fn a_rollback_record_takes_back_user_messages_and_not_turns() {
    let back = |n: u64| line(None, "event_msg", json!({"type": "thread_rolled_back", "num_turns": n}));
    let store = Store::empty();
    let lines = [
        meta(json!("legacy")),
        turn("a", &["one"]),
        turn("b", &["two"]),
        turn("c", &["three"]),
        back(1),
        turn("d", &["four", "steer"]),
        back(1),
    ];
    store.rollout(THREAD, lines.concat().as_bytes());
    let session = store.only();
    let history = store.load(&session);
    let prompts: Vec<_> = history.turns.iter().map(|turn| turn.prompt.as_deref().unwrap()).collect();
    assert_eq!(prompts, ["one", "two", "four"]);
    let texts: Vec<_> = (0..3).map(|n| store.text(&session, &history, n)).collect();
    assert!(!texts[1].contains("three"), "{}", texts[1]);
    assert!(texts[2].contains("re four") && !texts[2].contains("steer"), "{}", texts[2]);
    let mut sent = Vec::new();
    store_of(&session)
        .context(&session, &history, &mut |_, item| {
            if let turnfs::session::Item::User { text } = item {
                sent.push(text.into_owned());
            }
        })
        .unwrap();
    assert_eq!(sent, ["one", "two", "four"]);
    // A fork at turn 1 ends before turn "four", with the record that takes "three" back.
    let new = cut::fork(&*store_of(&session), &store.state, &session, &history, 1).unwrap();
    let forked = store.session(&new);
    let forked = store.load(&forked);
    assert_eq!(
        forked.turns.iter().map(|turn| turn.prompt.as_deref().unwrap()).collect::<Vec<_>>(),
        ["one", "two"]
    );
}

#[test]
fn a_lone_surrogate_is_shown_as_a_replacement_character_and_kept_in_the_bytes() {
    let store = Store::empty();
    let odd = turn("a", &["odd MARK end\u{2028}next"]).replace("MARK", "\\ud800");
    store.rollout(THREAD, (meta(json!("legacy")) + &odd + &turn("b", &["two"])).as_bytes());
    let session = store.only();
    let history = store.load(&session);
    assert_eq!((history.state, history.turns.len()), (State::Ok, 2));
    assert_eq!(history.turns[0].prompt.as_deref(), Some("odd \u{fffd} end\u{2028}next"));
    assert_eq!(store.text(&session, &history, 0).matches("\n## User\n").count(), 1);
    let new = cut::fork(&*store_of(&session), &store.state, &session, &history, 0).unwrap();
    let file = store.session(&new).files[0].clone();
    assert!(fs::read_to_string(store.root.join(file)).unwrap().contains("\\ud800"));
}

#[test]
fn sub_agents_stand_under_the_thread_that_started_them() {
    const CHILD: &str = "01a22cb1-8565-71c1-997b-00000000000c";
    let store = Store::empty();
    store.rollout(THREAD, (meta(json!("legacy")) + &turn("a", &["one"])).as_bytes());
    let child = line(
        None,
        "session_meta",
        json!({"id": CHILD, "session_id": THREAD, "cwd": "/w/app",
        "parent_thread_id": THREAD, "agent_nickname": "Scout/1",
        "source": {"subagent": {"thread_spawn": {"parent_thread_id": THREAD, "depth": 1}}}}),
    );
    store.rollout(CHILD, (child + &turn("x", &["look"])).as_bytes());
    let session = store.only();
    let agents = store_of(&session).subagents(&session).unwrap();
    assert_eq!(agents.len(), 1);
    assert_eq!(agents[0].subagent.as_deref(), Some("scout-1-0000000c"));
    assert!(agents[0].key.path.starts_with(&session.key.path));
    assert_eq!(store.load(&agents[0]).turns[0].prompt.as_deref(), Some("look"));
    // Without its parent it is a thread like any other, so that nothing is hidden.
    fs::remove_file(store.root.join(&session.files[0])).unwrap();
    assert_eq!(store.only().id, CHILD);
}

#[test]
fn two_thousand_rollouts_are_read_once_and_then_no_more() {
    let store = Store::empty();
    for n in 0..2000u32 {
        let thread = format!("01a22cb1-8565-71c1-997b-{n:012}");
        let day = n / 10;
        let dir = store.root.join(format!("sessions/2026/{:02}/{:02}", day / 28 + 1, day % 28 + 1));
        fs::create_dir_all(&dir).unwrap();
        let text = (meta(json!("legacy")) + &turn("t", &["one"])).replace(THREAD, &thread);
        fs::write(dir.join(format!("rollout-2026-01-01T10-00-00-{thread}.jsonl")), text).unwrap();
    }
    racy::shorten_here();
    racy::settle();
    let codex = turnfs::agents::codex::Codex::at(&*store.root);
    for _ in 0..3 {
        let found = codex.discover().unwrap();
        assert_eq!(found.sessions.len(), 2000);
        assert_eq!(codex.heads_read(), 2000);
    }
}
