//! Which records are the conversation, and what a cut must keep of them.

use std::fs;

use serde_json::{Value, json};
use turnfs::session::{Errno, State, TurnDetail, TurnStatus};

use crate::transcript::{ID, Store};

/// Five turns of which the last two were left for another one.
fn rewound() -> Store {
    let mut store = Store::with_turns(&["a", "b"]);
    let there = store.last.clone();
    store.turn("c");
    store.turn("d");
    store.last = there;
    store.turn("e");
    store
}

#[test]
fn what_was_rewound_is_a_branch_and_an_undo_does_not_bring_it_back() {
    let store = rewound();
    assert_eq!(store.prompts(), ["a", "b", "e"]);
    let history = store.history();
    assert_eq!(history.branches.len(), 1);
    let branch: Vec<_> =
        history.branches[0].turns.iter().map(|turn| (turn.n, turn.prompt.clone().unwrap())).collect();
    assert_eq!((history.branches[0].shared, branch), (2, vec![(2, "c".into()), (3, "d".into())]));
    let before = fs::read(store.file()).unwrap();
    // A client that resumes a file that is only cut off would go on with d.
    store.undo(2).unwrap();
    assert_eq!(store.prompts(), ["a", "b"]);
    assert!(!fs::read_to_string(store.file()).unwrap().contains("reply to d"));
    store.redo().unwrap();
    assert_eq!(fs::read(store.file()).unwrap(), before);
}

#[test]
fn an_abandoned_branch_is_forked_with_what_leads_to_it() {
    let store = rewound();
    assert_eq!(store.fork_abandoned(1, None).unwrap().0, ["a", "b", "c", "d"]);
    let (prompts, sent) = store.fork_abandoned(1, Some(2)).unwrap();
    assert_eq!(prompts, ["a", "b", "c"]);
    assert_eq!(sent.last().unwrap(), "assistant: reply to c");
    assert_eq!(store.fork_abandoned(1, Some(1)).unwrap_err().errno(), Errno::RANGE);
    assert_eq!(store.fork_abandoned(1, Some(4)).unwrap_err().errno(), Errno::RANGE);
    assert_eq!(store.fork_abandoned(2, None).unwrap_err().errno(), Errno::NOENT);
    assert_eq!(store.fork_abandoned(0, None).unwrap_err().errno(), Errno::NOENT);
}

#[test]
fn a_branch_of_a_branch_and_one_before_the_first_turn_are_branches() {
    let mut store = rewound();
    // Back into the dead branch, from its first turn.
    let dead = store.history().branches[0].turns[0].line;
    assert_eq!(dead, 5);
    store.last = Some("record-6".into());
    store.turn("f");
    assert_eq!(store.prompts(), ["a", "b", "c", "f"]);
    let all = |store: &Store| -> Vec<(u32, Vec<String>)> {
        let branches = store.history().branches;
        let prompts = |branch: &turnfs::session::Branch| {
            branch.turns.iter().map(|turn| turn.prompt.clone().unwrap()).collect()
        };
        branches.iter().map(|branch| (branch.shared, prompts(branch))).collect()
    };
    assert_eq!(all(&store), [(3, vec!["d".to_owned()]), (2, vec!["e".to_owned()])]);
    store.last = None;
    store.turn("root");
    assert_eq!(store.prompts(), ["root"]);
    let lead = |last: &str| vec!["a".to_owned(), "b".into(), last.into()];
    assert_eq!(
        all(&store),
        [
            (0, vec!["a".into(), "b".into(), "c".into(), "d".into()]),
            (0, lead("e")),
            (0, vec!["a".into(), "b".into(), "c".into(), "f".into()])
        ]
    );
    assert_eq!(store.fork_abandoned(2, None).unwrap().0, lead("e"));
}

#[test]
fn the_last_note_decides_which_branch_is_the_conversation() {
    let mut store = rewound();
    store.note("record-8".into(), false);
    assert_eq!(store.prompts(), ["a", "b", "c", "d"]);
    // A record in the middle cuts nothing off, one that is not there says nothing.
    store.note("record-2".into(), false);
    assert_eq!(store.prompts(), ["a", "b", "e"]);
    store.note("nowhere".into(), false);
    assert_eq!(store.prompts(), ["a", "b", "e"]);
    // But an explicit one ends there.
    store.note("record-2".into(), true);
    assert_eq!(store.prompts(), ["a"]);
    assert_eq!(store.history().branches.len(), 2);
    store.last = Some("record-2".into());
    store.turn("x");
    assert_eq!(store.prompts(), ["a", "x"]);
    store.note(Value::Null, true);
    assert_eq!(store.prompts(), Vec::<String>::new());
}

#[test]
fn an_undo_of_a_session_with_an_explicit_note_leaves_no_note_that_leads_elsewhere() {
    let mut store = Store::with_turns(&["a", "b", "c"]);
    store.note("record-4".into(), true);
    assert_eq!(store.prompts(), ["a", "b"]);
    store.last = Some("record-4".into());
    store.turn("d");
    store.turn("e");
    store.undo(3).unwrap();
    assert_eq!(store.prompts(), ["a", "b", "d"]);
    assert!(!fs::read_to_string(store.file()).unwrap().contains("last-prompt"));
}

#[test]
fn parallel_results_stay_with_their_turn_in_every_cut() {
    let mut store = Store::new();
    store.user("p");
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "Bash", "input": {}});
    let first = store.reply("m", call("t1"));
    let second = store.reply("m", call("t2"));
    store.last = Some(first);
    store.result("t1", "one");
    store.last = Some(second);
    store.result("t2", "two");
    store.says("done");
    store.turn("q");
    let sent = ["user: p", "call: t1", "call: t2", "result: one", "result: two", "assistant: done"];
    assert_eq!(store.fork(0).1, sent);
    store.undo(1).unwrap();
    assert_eq!(store.context(), sent);
    assert_eq!(store.history().turns[0].status, TurnStatus::Complete);
}

#[test]
fn a_result_beside_the_end_does_not_become_the_end_of_a_fork() {
    // Killed when only the first of two results was there, behind the record with which the chain ends.
    let mut store = Store::with_turns(&["a"]);
    store.user("p");
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "Bash", "input": {}});
    let first = store.reply("m", call("t1"));
    let second = store.reply("m", call("t2"));
    store.last = Some(second.clone());
    store.result("t2", "two");
    let end = store.says("done");
    store.last = Some(first);
    store.result("t1", "one");
    store.note(end.into(), false);
    assert_eq!(store.prompts(), ["a", "p"]);
    let said = [
        "user: a",
        "assistant: reply to a",
        "user: p",
        "call: t1",
        "call: t2",
        "result: two",
        "assistant: done",
        "result: one",
    ];
    assert_eq!(store.context(), said);
    assert_eq!(store.fork(1).1, said);
}

#[test]
fn all_turns_are_shown_across_two_compactions_and_the_model_is_sent_the_last_one() {
    let mut store = Store::with_turns(&["a", "b"]);
    store.compact("first", &["record-4"]);
    let kept = store.turn("c");
    store.compact("second", &[&kept]);
    store.turn("d");
    assert_eq!(store.prompts(), ["a", "b", "c", "d"]);
    assert_eq!(
        store.context(),
        ["summary: second", "assistant: reply to c", "user: d", "assistant: reply to d"]
    );
    assert_eq!(store.fork(2).1, ["summary: second", "assistant: reply to c"]);
    assert_eq!(store.fork(0).1, ["user: a", "assistant: reply to a"]);
    store.undo(1).unwrap();
    assert_eq!(store.context(), ["user: a", "assistant: reply to a"]);
}

#[test]
fn what_the_client_says_itself_begins_no_turn() {
    let mut store = Store::with_turns(&["a"]);
    store.put("user", json!({"isMeta": true, "message": {"role": "user", "content": "hint"}}));
    store.user("<local-command-stdout>x</local-command-stdout>");
    store.user("<command-name>/compact</command-name>\n<command-message>compact</command-message>");
    store.user("<task-notification>done</task-notification>");
    store.put("user", json!({"origin": {"kind": "task"}, "message": {"role": "user", "content": "ended"}}));
    store.put("attachment", json!({"attachment": {"type": "queued_command", "prompt": "typed meanwhile"}}));
    store.says("on");
    assert_eq!(store.prompts(), ["a"]);
    assert!(store.context().contains(&"steer: typed meanwhile".to_owned()));
    // A command that stands for a text is one, also with what hooks put in between.
    store.user("<command-message>greet</command-message>\n<command-name>/greet</command-name>");
    store.put("attachment", json!({"attachment": {"type": "hook_success", "content": "x"}}));
    store.put("user", json!({"isMeta": true, "message": {"role": "user", "content": "Say hello"}}));
    store.says("hello");
    assert_eq!(store.prompts().len(), 2);
}

#[test]
fn the_end_of_a_turn_tells_its_status() {
    let mut store = Store::with_turns(&["a"]);
    store.user("interrupted");
    store.says("w0 w1");
    store.user(json!([{"type": "text", "text": "[Request interrupted by user]"}]));
    store.user("in a tool");
    store.reply("m", json!({"type": "tool_use", "id": "t", "name": "Bash", "input": {}}));
    let ends: Vec<_> = store.history().turns.iter().map(|turn| (turn.status, turn.detail)).collect();
    let expected = [
        (TurnStatus::Complete, None),
        (TurnStatus::Interrupted, None),
        (TurnStatus::Interrupted, Some(TurnDetail::OpenCalls)),
    ];
    assert_eq!(ends, expected);
    store.result("t", "out");
    assert_eq!(store.history().turns[2].detail, Some(TurnDetail::EndedInTool));
    store.user("unanswered");
    assert_eq!(store.history().turns[3].detail, Some(TurnDetail::Open));
}

#[test]
fn a_missing_parent_and_a_circle_are_damage_and_the_turns_before_can_be_told() {
    let mut store = Store::with_turns(&["a", "b"]);
    let record = json!({"parentUuid": "nowhere", "type": "user", "uuid": "x", "sessionId": ID, "cwd": "/w/p",
        "message": {"role": "user", "content": "c"}});
    store.raw(&record);
    let history = store.history();
    let damage = &history.damages[0];
    assert_eq!((history.state, damage.class.name(), damage.line), (State::Damaged, "dangling-parent", 5));
    // Nothing says that the second turn had ended.
    assert_eq!((history.turns.len(), history.sound_turns), (2, 1));
    assert_eq!(store.undo(1).unwrap_err().errno(), Errno::UCLEAN);

    store = Store::new();
    for (uuid, parent) in [("x", "y"), ("y", "x")] {
        let record = json!({"parentUuid": parent, "type": "user", "uuid": uuid, "sessionId": ID, "cwd": "/w/p",
            "message": {"role": "user", "content": uuid}});
        store.raw(&record);
    }
    assert_eq!(store.history().state, State::Damaged);
}

#[test]
fn a_file_that_stands_there_twice_is_one_conversation() {
    let store = Store::with_turns(&["a", "b", "c"]);
    let once = fs::read(store.file()).unwrap();
    fs::write(store.file(), [once.clone(), once].concat()).unwrap();
    assert_eq!(store.prompts(), ["a", "b", "c"]);
    store.undo(2).unwrap();
    assert_eq!(store.prompts(), ["a", "b"]);
}

#[test]
fn records_of_sub_agents_among_the_others_are_left_out_and_left_alone() {
    let mut store = Store::with_turns(&["a"]);
    let there = store.last.clone();
    store.last = None;
    store.put("user", json!({"isSidechain": true, "message": {"role": "user", "content": "sub"}}));
    store.last = there;
    store.turn("b");
    assert_eq!(store.prompts(), ["a", "b"]);
    assert!(store.history().branches.is_empty());
    store.undo(1).unwrap();
    assert_eq!(store.prompts(), ["a"]);
}

#[test]
fn turn_0_cannot_be_undone() {
    let store = Store::with_turns(&["a", "b"]);
    let before = fs::read(store.file()).unwrap();
    let refusal = store.undo(0).unwrap_err();
    assert_eq!(refusal.errno(), Errno::OPNOTSUPP);
    assert!(refusal.to_string().contains("no session without a prompt"), "{refusal}");
    assert_eq!(fs::read(store.file()).unwrap(), before);
}
