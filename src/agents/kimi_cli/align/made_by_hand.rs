//! Records as the client writes them (`docs/stores/kimi-cli.md`, "2. Records"), and small sessions of them, for tests.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::{Value, json};

use super::super::turns::Walk;
use super::sample_store::{context, walk};
use super::{Alignment, Refused, align};
use crate::session::{Confidence, CutPoint};

pub(super) fn message(kind: &str, payload: Value) -> Value {
    json!({"timestamp": 1.5, "message": {"type": kind, "payload": payload}})
}
pub(super) fn turn(text: &str) -> Value {
    message("TurnBegin", json!({"user_input": text}))
}
pub(super) fn end() -> Value {
    message("TurnEnd", json!({}))
}
pub(super) fn step(n: i64) -> Value {
    message("StepBegin", json!({"n": n}))
}
pub(super) fn says(text: &str) -> Value {
    message("ContentPart", json!({"type": "text", "text": text}))
}
pub(super) fn steer(text: &str) -> Value {
    message("SteerInput", json!({"user_input": text}))
}
pub(super) fn event(kind: &str) -> Value {
    message(kind, json!({}))
}
/// A turn of one step.
pub(super) fn plain(text: &str) -> Vec<Value> {
    vec![turn(text), step(1), says(&format!("re {text}")), end()]
}
/// A command that only replies.
pub(super) fn command(text: &str, reply: &str) -> Vec<Value> {
    vec![turn(text), says(reply), end()]
}
pub(super) fn compact() -> Vec<Value> {
    vec![turn("/compact"), event("CompactionBegin"), event("CompactionEnd"), says("compacted"), end()]
}

pub(super) fn system() -> Value {
    json!({"role": "_system_prompt", "content": "S"})
}
pub(super) fn checkpoint(id: i64) -> Value {
    json!({"role": "_checkpoint", "id": id})
}
pub(super) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}
pub(super) fn usage() -> Value {
    json!({"role": "_usage", "token_count": 1})
}
pub(super) fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}
/// The 6 records of a run of one step whose first checkpoint is `id`.
pub(super) fn run(id: i64, text: &str) -> Vec<Value> {
    let reply = assistant(&format!("re {text}"));
    vec![checkpoint(id), user(text), checkpoint(id + 1), usage(), reply, usage()]
}
/// The head of an epoch that a compaction began, with the copied messages: `kept.len() + 4` records.
pub(super) fn compacted(kept: Vec<Value>) -> Vec<Value> {
    let summary = json!([
        {"type": "text", "text": "<system>Previous context has been compacted. Here is the compaction output:</system>"},
        {"type": "text", "text": "summary"},
    ]);
    let head = vec![system(), checkpoint(0), json!({"role": "user", "content": summary})];
    [head, kept, vec![usage()]].concat()
}

pub(super) fn bytes(records: &[Value]) -> Vec<u8> {
    records.iter().flat_map(|record| format!("{record}\n").into_bytes()).collect()
}

pub(super) fn walked(wire: &[Vec<Value>]) -> Walk {
    walk(&bytes(&[vec![json!({"type": "metadata", "protocol_version": "1.10"})], wire.concat()].concat()))
}

/// Aligns a session; the last context is the live one.
pub(super) fn aligned(wire: &[Vec<Value>], contexts: &[Vec<Value>]) -> Alignment {
    let live = contexts.len() - 1;
    let files: Vec<_> = contexts
        .iter()
        .enumerate()
        .map(|(index, records)| {
            let name =
                if index == live { "context.jsonl".into() } else { format!("context_{}.jsonl", index + 1) };
            context(&name, &bytes(records))
        })
        .collect();
    align(&walked(wire), &files)
}

/// For each cut, from the one that keeps nothing: the file that it keeps as the live one, and how many
/// lines of it; all of them must be this sure.
pub(super) fn cuts(alignment: &Alignment, confidence: Confidence) -> Vec<(String, u64)> {
    let sure =
        |cut: &Result<CutPoint, Refused>| cut.as_ref().is_ok_and(|point| point.confidence == confidence);
    assert!(alignment.cuts.iter().all(sure), "{alignment:#?}");
    alignment.cuts.iter().map(live_part).map(|(file, lines)| (file.to_owned(), lines)).collect()
}

pub(super) fn live_part(cut: &Result<CutPoint, Refused>) -> (&str, u64) {
    let kept = &cut.as_ref().unwrap().kept;
    let live = &kept[kept.len() - 2];
    (live.source.to_str().unwrap(), live.lines)
}

/// [`cuts`] of a session with one context file: only the lines.
pub(super) fn lines(alignment: &Alignment, confidence: Confidence) -> Vec<u64> {
    cuts(alignment, confidence).into_iter().map(|(_, lines)| lines).collect()
}

pub(super) fn in_files(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|(file, lines)| ((*file).to_owned(), *lines)).collect()
}
