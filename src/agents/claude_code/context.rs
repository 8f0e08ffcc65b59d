//! What the model is sent on resume: the conversation from its last compaction on, with what that preserved.
//! Facts: `docs/stores/claude-code.md`, "3. Which records are the conversation", 5 to 7.

use std::collections::HashSet;

use super::history::{self, Reading};
use super::items::{self, As};
use super::lines::Preserved;
use super::records::{Kind, Record};
use super::tree::Tree;
use crate::session::{Item, ItemSink, Refusal, Result, Session};
use crate::transcript::{self, Passes};

/// Gives what is sent to `sink`, in order.
pub(super) fn context(session: &Session, sink: &mut ItemSink<'_>) -> Result<()> {
    let (root, file) = (&session.key.root, &session.key.path);
    let sidechain = session.subagent.is_some();
    let (transcript, _) = history::read(root, file, sidechain, &mut Passes::default())?;
    let Some(transcript) = transcript else { return Ok(()) };
    let reading = Reading::of(&transcript, file, sidechain);
    let changed = || Refusal::Changed { what: file.display().to_string() };
    let tree = &reading.tree;
    let sent = sent(tree);
    let says = |index: &&usize| {
        tree.node(**index).is_some_and(|node| matches!(node.kind, Kind::User | Kind::Assistant))
    };
    let last = sent.iter().rev().find(says).copied();
    for index in sent {
        let line = &tree.lines[index];
        let bytes = transcript::read_range(root, file, line.start..line.end)?;
        let record = Record::parse(bytes.trim_ascii()).map_err(|_| changed())?;
        let node = tree.node(index);
        let what = if node.is_some_and(|node| node.may_begin_turn) { As::Prompt } else { As::Said };
        let time = record.time();
        items::of(&record, &bytes, what, &mut |item| sink(time, item));
        if let Some(node) =
            node.filter(|node| Some(index) == last && node.kind == Kind::User && !node.has_results)
        {
            // The client puts these there itself, so that the next prompt follows an answer.
            if !node.may_begin_turn && !node.is_interrupt && !node.meta {
                let text = "Continue from where you left off.".into();
                sink(None, Item::Notice { kind: "claude".into(), text });
            }
            sink(None, Item::Assistant { text: "No response requested.".into() });
        }
    }
    Ok(())
}

/// The lines of what is sent.
fn sent(tree: &Tree<'_>) -> Vec<usize> {
    let story = &tree.path.story;
    let boundary = |index: &usize| tree.node(*index).is_some_and(|node| node.is_boundary);
    let from = story.iter().rposition(boundary).unwrap_or(0);
    let since = &story[from..];
    let preserved = since.first().and_then(|first| tree.node(*first)).map(|node| &node.preserved);
    let mut all: Vec<usize> =
        since.iter().copied().chain(tree.beside(since).into_iter().map(|(index, _)| index)).collect();
    all.sort_unstable();
    let mut sent = Vec::new();
    for index in all {
        sent.push(index);
        if let Some(Preserved { anchor: Some(anchor), records, .. }) = preserved
            && tree.place(*anchor) == Some(index)
        {
            sent.extend(records.iter().filter_map(|uuid| tree.place(*uuid)));
        }
    }
    let mut once = HashSet::new();
    sent.retain(|index| once.insert(*index));
    sent
}
