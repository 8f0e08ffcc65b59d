//! What the model is sent on resume: the conversation from its last compaction on, with what that preserved.
//! Facts: `docs/stores/claude-code.md`, "Which records are the history", 5 and 6.

use std::collections::HashSet;

use super::history::{self, Reading};
use super::items::{self, As};
use super::records::Record;
use super::tree::Tree;
use crate::session::{ItemSink, Refusal, Result, Session};
use crate::transcript::{self, Passes};

/// Gives what is sent to `sink`, in order.
pub(super) fn context(session: &Session, sink: &mut ItemSink<'_>) -> Result<()> {
    let (root, file) = (&session.key.root, &session.key.path);
    let sidechain = session.subagent.is_some();
    let (transcript, _) = history::read(root, file, sidechain, &mut Passes::default())?;
    let Some(transcript) = transcript else { return Ok(()) };
    let reading = Reading::of(&transcript, file, sidechain);
    let changed = || Refusal::Changed { what: file.display().to_string() };
    for index in sent(&reading.tree) {
        let line = &reading.tree.lines[index];
        let bytes = transcript::read_range(root, file, line.start..line.end)?;
        let record = Record::parse(bytes.trim_ascii()).map_err(|_| changed())?;
        let begins = line.node().is_some_and(|node| node.may_begin_turn);
        let what = if begins { As::Prompt } else { As::Said };
        let time = record.time();
        items::of(&record, &bytes, what, &mut |item| sink(time, item));
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
    let mut sent = Vec::new();
    let beside = tree.beside(since);
    for index in since {
        sent.push(*index);
        let mut with: Vec<usize> = beside.iter().filter(|(_, of)| *of == index).map(|(at, _)| *at).collect();
        with.sort_unstable();
        sent.extend(with);
        if let Some((Some(anchor), uuids)) = preserved
            && tree.place(*anchor) == Some(*index)
        {
            sent.extend(uuids.iter().filter_map(|uuid| tree.place(*uuid)));
        }
    }
    let mut once = HashSet::new();
    sent.retain(|index| once.insert(*index));
    sent
}
