//! Replay of one epoch: the wire's operations consume the file's checkpoints one by one.
//!
//! Both files count the same events, so if everything comes out even the positions are proved and no text
//! has to be matched. Anything that does not come out even ends the replay: then `matching` decides.
//! Rules: `docs/stores/kimi-cli.md`, "4.4 Replay of one epoch".

use super::super::records::{ContextFile, ContextRecord, TextKey, checkpoint_marker, is_injected};
use super::super::turns::{NewEpoch, Op, OpKind, StepFacts};

/// A replay that came out even.
#[derive(Debug)]
pub struct Replay {
    /// For each op the line index of the checkpoint that it consumed.
    pub positions: Vec<Option<usize>>,
    /// Checkpoints that belong to no op, as the client's own fork leaves them.
    pub lone: usize,
    /// Line index of the one behind all ops, if there is one.
    pub last_lone: Option<usize>,
}

/// The first checkpoint id that belongs to an op of an epoch; those below it are of the rebuilt prefix.
pub(super) fn first_id(begun_by: Option<NewEpoch>) -> i64 {
    match begun_by {
        None | Some(NewEpoch::Clear) => 0,
        Some(NewEpoch::Compaction) => 1,
        Some(NewEpoch::Revert { checkpoint }) => checkpoint.saturating_add(1),
    }
}

/// Replays the ops of one epoch over its file. `None`: it does not come out even.
pub fn replay(
    file: &ContextFile,
    begun_by: Option<NewEpoch>,
    ops: &[Op],
    steps: &[StepFacts],
) -> Option<Replay> {
    let all = file.checkpoints();
    if all.windows(2).any(|pair| pair[0].1.checked_add(1) != Some(pair[1].1)) {
        return None;
    }
    let has_runs = ops.iter().any(|op| matches!(op.kind, OpKind::Run { .. }));
    if has_runs && all.is_empty() {
        return None;
    }
    let first = all.iter().position(|&(_, id)| id >= first_id(begun_by)).unwrap_or(all.len());
    let mut replayer =
        Replayer { file, checkpoints: &all, next: first, lone: 0, unanswered: unanswered(ops) };
    let mut positions = Vec::with_capacity(ops.len());
    for op in ops {
        positions.push(match &op.kind {
            OpKind::Run { text, .. } => Some(replayer.run(text.as_ref())?),
            OpKind::Step { step } => Some(replayer.step(&steps[*step])?),
            _ => None,
        });
    }
    let last_lone = replayer.checkpoints.get(replayer.next).map(|&(line, _)| line);
    let lone = replayer.finish()?;
    Some(Replay { positions, lone, last_lone })
}

fn unanswered(ops: &[Op]) -> Vec<&TextKey> {
    let texts = ops.iter().map(|op| match &op.kind {
        OpKind::Unanswered { text } => Some(text),
        _ => None,
    });
    texts.flatten().collect()
}

struct Replayer<'a> {
    file: &'a ContextFile,
    checkpoints: &'a [(usize, i64)],
    /// Index of the next checkpoint to consume.
    next: usize,
    lone: usize,
    /// Texts of turns that may have left a run, or nothing.
    unanswered: Vec<&'a TextKey>,
}

impl Replayer<'_> {
    /// Consumes the checkpoint of a run; its line index.
    fn run(&mut self, text: Option<&TextKey>) -> Option<usize> {
        let found = match run_text(self.file, *self.checkpoints.get(self.next)?, text) {
            Some(found) => found,
            None => {
                // The client's own fork leaves one checkpoint without anything behind it.
                if self.lone > 0 || !self.is_lone(self.next) {
                    return None;
                }
                self.lone += 1;
                self.next += 1;
                run_text(self.file, *self.checkpoints.get(self.next)?, text)?
            }
        };
        let fits = match text {
            Some(text) => found == text,
            None => !is_injected(found),
        };
        let line = self.checkpoints[self.next].0;
        self.next += 1;
        fits.then_some(line)
    }

    /// Consumes the checkpoint of a step; its line index.
    fn step(&mut self, step: &StepFacts) -> Option<usize> {
        let &(line, id) = self.checkpoints.get(self.next)?;
        self.next += 1;
        let end = self.checkpoints.get(self.next).map_or(self.file.lines.len(), |next| next.0);
        // A turn that was killed between its user record and its first step left a run that the wire does
        // not count. Taken for this step, it would shift everything by one run.
        let behind = self.file.user_from(line + 1).map(|(_, text)| text);
        if behind.is_some_and(|text| *text != checkpoint_marker(id) && self.unanswered.contains(&text)) {
            return None;
        }
        let own = self.file.lines[line..end].iter().all(|context| match &context.record {
            ContextRecord::Assistant { tool_calls, .. } => {
                tool_calls.iter().all(|call| step.calls.contains(call))
            }
            _ => true,
        });
        own.then_some(line)
    }

    /// All checkpoints are consumed, or all but a lone last one; how many were lone.
    fn finish(self) -> Option<usize> {
        match self.checkpoints.len() - self.next {
            0 => Some(self.lone),
            1 if self.is_lone(self.next) => Some(self.lone + 1),
            _ => None,
        }
    }

    /// Nothing but its own marker stands between this checkpoint and the next one, or the end.
    fn is_lone(&self, index: usize) -> bool {
        let (line, id) = self.checkpoints[index];
        let behind = match self.file.user_from(line + 1) {
            Some((at, text)) if *text == checkpoint_marker(id) => at + 1,
            _ => line + 1,
        };
        matches!(self.file.record_from(behind), None | Some((_, ContextRecord::Checkpoint { .. })))
    }
}

/// The user text of the run that begins at a checkpoint: the record behind it, or behind its marker.
/// `known` is the turn's own text: a user can type exactly what looks like a marker.
fn run_text<'a>(
    file: &'a ContextFile,
    checkpoint: (usize, i64),
    known: Option<&TextKey>,
) -> Option<&'a TextKey> {
    let (line, id) = checkpoint;
    let (at, text) = file.user_from(line + 1)?;
    let marker = checkpoint_marker(id);
    if *text != marker {
        return Some(text);
    }
    let behind = file.user_from(at + 1).map(|(_, text)| text);
    match known {
        Some(known) if *known == marker && behind != Some(known) => Some(text),
        _ => behind,
    }
}
