//! Which records are the history, in wires with every kind of undo.

use std::fs;

use serde_json::{Value, json};
use turnfs::session::{Errno, State};

use crate::wires::Store;

fn with_turns(turns: &[&str]) -> Store {
    let mut store = Store::new();
    turns.iter().for_each(|turn| store.turn(turn));
    store
}

#[test]
fn an_undo_of_the_old_form_takes_the_last_turns_and_none_across_a_compaction() {
    let mut store = with_turns(&["a", "b", "c"]);
    store.put("context.undo", json!({"count": 2}));
    assert_eq!(store.prompts(), ["a"]);
    store.turn("d");
    store.compact("S", 2);
    store.turn("e");
    assert_eq!(store.prompts(), ["a", "d", "e"]);
    // The client does nothing at all then, not even half of it.
    store.put("context.undo", json!({"count": 2}));
    assert_eq!(store.prompts(), ["a", "d", "e"]);
    store.put("context.undo", json!({"count": 1}));
    assert_eq!(store.prompts(), ["a", "d"]);
    assert_eq!(store.context(), ["user: a", "user: d", "summary: S"]);
}

#[test]
fn our_undo_goes_back_across_a_compaction_and_redo_brings_it_back() {
    let mut store = with_turns(&["a", "b"]);
    store.compact("S", 2);
    store.turn("c");
    let (before, said) = (fs::read(store.wire()).unwrap(), store.context());
    assert_eq!(said, ["user: a", "user: b", "summary: S", "user: c", "assistant: reply to c"]);
    store.undo(1).unwrap();
    assert_eq!(store.context(), ["user: a", "assistant: reply to a"]);
    assert!(fs::read(store.wire()).unwrap().starts_with(&before), "nothing that was there has changed");
    store.redo().unwrap();
    assert_eq!(fs::read(store.wire()).unwrap(), before);
    assert_eq!(store.context(), said);
}

#[test]
fn a_branch_that_begins_with_a_turn_is_undone_to_where_it_branched_off() {
    // A switch of somebody else's, without the client's other records: the line before the turn is the switch's own.
    let mut store = with_turns(&["a", "b"]);
    let line = 3 + 5;
    store.switch("mine", "main", line, None);
    let id = "msg_x";
    store.message("c", Some(id), json!({"kind": "user"}));
    store.reply("reply to c");
    assert_eq!(store.prompts(), ["a", "c"]);
    store.undo(1).unwrap();
    assert_eq!(store.prompts(), ["a"], "b does not come back");
}

#[test]
fn a_new_branch_gets_a_name_that_no_other_has() {
    let mut store = with_turns(&["a", "b"]);
    store.switch("b2", "main", store.lines(), None);
    store.undo(1).unwrap();
    let text = fs::read_to_string(store.wire()).unwrap();
    let switched: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|record| record["type"] == "agent.switched")
        .collect();
    assert_eq!((&switched[1]["branch"], &switched[1]["turns"]), (&"b3".into(), &1.into()));
    assert_eq!(store.history().state, State::Ok);
}

#[test]
fn an_undo_takes_what_was_put_in_for_the_prompt_and_nothing_else() {
    let mut store = with_turns(&["a"]);
    store.message("<system-reminder>date</system-reminder>", None, json!({"kind": "injection"}));
    store.prompt("b", true);
    store.reply("reply to b");
    store.end("completed");
    let turns = store.history().turns;
    assert_eq!(
        (turns[1].line, turns[0].line),
        (3 + 5 + 1 + 2, 5),
        "the injection is the turn's first record"
    );
    store.undo(1).unwrap();
    let text = fs::read_to_string(store.wire()).unwrap();
    let switched = text.lines().find(|line| line.contains("agent.switched")).unwrap();
    assert!(switched.contains(r#""base":{"branch":"main","line":10}"#), "{switched}");
    let fork = store.fork(0).unwrap();
    let wire = fs::read_to_string(store.root().join(&fork.files[0])).unwrap();
    assert!(!wire.contains("for b") && wire.contains("date"), "{wire}");
}

#[test]
fn a_prompt_that_stands_there_twice_is_one_turn_and_equal_texts_are_two() {
    let mut store = with_turns(&["a", "a"]);
    let text = fs::read_to_string(store.wire()).unwrap();
    let anchor = text.lines().rfind(|line| line.contains("context.append_message")).unwrap().to_owned();
    store.raw(serde_json::from_str(&anchor).unwrap());
    assert_eq!(store.prompts(), ["a", "a"]);
}

#[test]
fn an_impossible_branch_is_damage_and_the_turns_before_it_are_salvaged() {
    for (branch, base, line) in [("main", "main", 4), ("x", "nowhere", 4), ("x", "main", 999)] {
        let mut store = with_turns(&["a", "b"]);
        let lines = store.lines();
        store.switch(branch, base, line, None);
        store.turn("c");
        let history = store.history();
        assert_eq!(history.state, State::Damaged, "{branch} {base} {line}");
        assert_eq!(history.damages[0].line, lines as u64 + 1);
        assert_eq!(history.sound().len(), 2);
        assert_eq!(store.undo(1).unwrap_err().errno(), Errno::UCLEAN);
    }
}

#[test]
fn a_clear_ends_what_the_model_is_sent_and_no_turn() {
    let mut store = with_turns(&["a"]);
    store.put("context.clear", json!({}));
    store.turn("b");
    assert_eq!(store.prompts(), ["a", "b"]);
    assert_eq!(store.context(), ["user: b", "assistant: reply to b"]);
}

#[test]
fn an_undo_writes_the_newline_that_is_missing_and_redo_takes_it_away_again() {
    let mut store = with_turns(&["a", "b"]);
    store.turn("c");
    let mut bytes = fs::read(store.wire()).unwrap();
    bytes.pop();
    fs::write(store.wire(), &bytes).unwrap();
    assert_eq!(store.history().state, State::Torn);
    store.undo(2).unwrap();
    assert_eq!((store.history().state, store.prompts()), (State::Ok, vec!["a".to_owned(), "b".to_owned()]));
    let fork = store.fork(1).unwrap();
    assert_eq!(store.history_of(&fork).turns.len(), 2);
    store.redo().unwrap();
    assert_eq!(fs::read(store.wire()).unwrap(), bytes);
    let fork = store.fork(2).unwrap();
    assert_eq!(store.history_of(&fork).state, State::Ok);
}

#[test]
fn redo_is_refused_once_the_client_has_gone_on() {
    let mut store = with_turns(&["a", "b", "c"]);
    store.undo(2).unwrap();
    store.undo(1).unwrap();
    store.redo().unwrap();
    assert_eq!(store.prompts(), ["a", "b"]);
    store.turn("d");
    assert_eq!(store.redo().unwrap_err().errno(), Errno::STALE);
    assert_eq!(store.prompts(), ["a", "b", "d"]);
}
