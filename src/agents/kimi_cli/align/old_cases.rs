//! Small sessions of older clients (`docs/stores/kimi-cli.md`, "6. Older clients") that the samples do not hold.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::Value;

use super::super::turns::Walk;
use super::made_by_hand::{
    assistant, bytes, checkpoint, compacted, cuts, event, in_files, run, says, step, turn, usage, user,
};
use super::sample_store::{context, walk};
use super::{Alignment, Refused, align};
use crate::session::{Confidence, TurnDetail, TurnStatus};

/// A turn of one step, as a client writes it that knows no TurnEnd.
fn endless(text: &str) -> Vec<Value> {
    vec![turn(text), step(1), says(&format!("re {text}"))]
}

fn walked(wire: &[Vec<Value>]) -> Walk {
    walk(&bytes(&wire.concat()))
}

/// The last context is the live one.
fn aligned(wire: &[Vec<Value>], contexts: &[Vec<Value>]) -> Alignment {
    let files = contexts.iter().enumerate().map(|(index, records)| {
        let rotated = index + 1 < contexts.len();
        let name = if rotated { format!("context_{}.jsonl", index + 1) } else { "context.jsonl".into() };
        context(&name, &bytes(records))
    });
    align(&walked(wire), &files.collect::<Vec<_>>())
}

/// An epoch behind a compaction, without system prompt.
fn old_compacted() -> Vec<Value> {
    compacted(Vec::new())[1..3].to_vec()
}

#[test]
fn without_turn_ends_a_turn_ends_where_the_next_begins_and_its_answer_says_how() {
    let unanswered = vec![turn("two"), step(1), says("calling"), event("ToolCall")];
    let mut unanswered = unanswered;
    unanswered[3]["message"]["payload"] = serde_json::json!({"id": "c", "function": {"name": "f"}});
    let failed = vec![turn("three"), step(1), event("StepInterrupted")];
    let wire =
        [endless("one"), unanswered.clone(), failed, vec![turn("/yolo"), says("yes")], endless("last")];
    let seen = |walk: Walk| walk.turns.into_iter().map(|turn| (turn.status, turn.detail)).collect::<Vec<_>>();
    let (done, stopped) = (TurnStatus::Complete, TurnStatus::Interrupted);
    let command = (done, Some(TurnDetail::Command));
    assert_eq!(seen(walked(&wire)), [(done, None), (stopped, None), (stopped, None), command, (done, None)]);
    // Only of the last one nobody knows whether it goes on.
    assert_eq!(
        seen(walked(&[endless("one"), unanswered])),
        [(done, None), (stopped, Some(TurnDetail::Open))]
    );
    // A newer client goes on with the file: from its first TurnEnd on, a turn without one was killed.
    let ended = [endless("two"), vec![event("TurnEnd")]].concat();
    let killed = vec![turn("three"), step(1), says("half")];
    let upgraded = [endless("one"), ended.clone(), killed, ended];
    assert_eq!(
        seen(walked(&upgraded)),
        [(done, None), (done, None), (stopped, Some(TurnDetail::Open)), (done, None)]
    );
}

#[test]
fn a_compaction_of_which_only_the_reply_tells_begins_an_epoch() {
    let command = vec![turn("/compact"), says("The context has been compacted.")];
    let wire = [endless("one"), command, endless("two")];
    let alignment = aligned(&wire, &[run(0, "one"), [old_compacted(), run(1, "two")].concat()]);
    let expected =
        [("context_1.jsonl", 0), ("context_1.jsonl", 6), ("context.jsonl", 2), ("context.jsonl", 8)];
    assert_eq!(cuts(&alignment, Confidence::Exact), in_files(&expected));
    assert!(alignment.notes.is_empty(), "{:?}", alignment.notes);
}

#[test]
fn a_rotation_that_the_wire_does_not_tell_is_found_by_the_checkpoints() {
    let wire = [endless("one"), endless("two"), endless("two"), endless("three")];
    let first = [run(0, "one"), run(2, "two")].concat();
    let last = [old_compacted(), run(1, "three")].concat();
    // A /clear between two equal prompts, then a /compact.
    let alignment = aligned(&wire, &[first.clone(), run(0, "two"), last.clone()]);
    let expected = [
        ("context_1.jsonl", 0),
        ("context_1.jsonl", 6),
        ("context_1.jsonl", 12),
        ("context_2.jsonl", 6),
        ("context.jsonl", 8),
    ];
    assert_eq!(cuts(&alignment, Confidence::Exact), in_files(&expected));
    assert_eq!(alignment.notes, ["2 rotation(s) of the context are not in the wire"]);
}

#[test]
fn a_rotation_that_nothing_proves_is_not_guessed_at() {
    let wire = [endless("one"), endless("two"), endless("three")];
    // The rotated file lost its checkpoints; in the live one all comes out even.
    let lost = vec![user("one"), assistant("re one"), user("two"), assistant("re two"), usage()];
    let alignment = aligned(&wire, &[lost, run(0, "three")]);
    for cut in &alignment.cuts[..3] {
        assert!(matches!(cut, Err(Refused::Ambiguous { .. })), "{alignment:#?}");
    }
    // A step that is in no file.
    let longer = [endless("one"), [endless("two"), vec![step(2), says("more")]].concat(), endless("three")];
    let alignment = aligned(&longer, &[[run(0, "one"), run(2, "two")].concat(), run(0, "three")]);
    assert!(alignment.cuts.iter().all(Result::is_err), "{alignment:#?}");
}

#[test]
fn the_run_of_an_init_without_turn_ends_is_undone_with_what_it_left() {
    let init =
        vec![turn("/init"), turn("You are a software engineering expert, explore"), step(1), says("done")];
    let record = user("<system>The user just ran `/init` slash command. X");
    let wire = [endless("one"), init, endless("two")];
    let alignment = aligned(&wire, &[[run(0, "one"), vec![record], run(2, "two")].concat()]);
    let live = |lines| ("context.jsonl", lines);
    assert_eq!(
        cuts(&alignment, Confidence::Exact),
        in_files(&[live(0), live(6), live(7), live(7), live(13)])
    );
    let groups: Vec<_> = walked(&wire).turns.iter().map(|turn| turn.group).collect();
    assert_eq!(groups, [0, 1, 1, 3]);
}

#[test]
fn a_lone_checkpoint_of_a_failed_step_does_not_shift_a_rotation() {
    let failed = vec![turn("bad"), step(1), event("StepInterrupted")];
    let wire = [endless("one"), failed, endless("two")];
    let first = [run(0, "one"), vec![checkpoint(2), user("bad"), checkpoint(3)]].concat();
    let alignment = aligned(&wire, &[first, run(0, "two")]);
    let expected =
        [("context_1.jsonl", 0), ("context_1.jsonl", 6), ("context_1.jsonl", 9), ("context.jsonl", 6)];
    assert_eq!(cuts(&alignment, Confidence::Exact), in_files(&expected));
}
