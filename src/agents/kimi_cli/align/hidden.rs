//! Rotations that the wire does not tell: the shells of clients before 0.66 did /compact and /init without a word
//! in it, those before 0.79 /clear (`docs/stores/kimi-cli.md`, "6. Older clients").
//!
//! More files are there than the wire has epochs. Where each of them ends is told by its checkpoints, which runs and
//! steps consume one by one; it is believed only if everything comes out even in every file. Without that, no cut is
//! made that is not proved.

use super::super::records::{COMPACTION_SUMMARY, ContextFile, ContextRecord};
use super::super::turns::{NewEpoch, Op, OpKind, Walk};
use super::doubt::refuse_unless_proved;
use super::{Alignment, LIVE, Reading, align_ops, replay};

/// The alignment with the rotations that the files prove; without such proof what is proved of the plain one.
pub(super) fn settle(walk: &Walk, files: &[ContextFile], plain: Reading) -> Alignment {
    // A /clear left no live file until there was something to write into it.
    let absent = usize::from(files.last().is_none_or(|file| file.name != LIVE));
    let unused = files.iter().filter(|file| is_reserved(file)).count() + absent;
    let found = with_rotations(&walk.ops, files).map(|(ops, hidden)| (align_ops(walk, &ops, files), hidden));
    match found {
        Some((Reading { proved: true, misfits, mut alignment, .. }, hidden)) if misfits == unused => {
            alignment.notes.push(format!("{hidden} rotation(s) of the context are not in the wire"));
            alignment
        }
        _ => {
            let mut alignment = plain.alignment;
            alignment.cuts.iter_mut().for_each(refuse_unless_proved);
            alignment
        }
    }
}

/// The ops with an epoch begun where a file has no checkpoints left for what follows, and how many were added. `None`
/// if files and ops cannot be brought together so.
fn with_rotations(ops: &[Op], files: &[ContextFile]) -> Option<(Vec<Op>, usize)> {
    let mut all = Vec::with_capacity(ops.len() + files.len());
    let mut rest = ops.iter().peekable();
    let mut hidden = 0;
    let mut begun_by = None;
    let files_end_without_live = files.last().is_none_or(|file| file.name != LIVE);
    let mut files = files.iter().filter(|file| !is_reserved(file)).peekable();
    while let Some(file) = files.next() {
        let first = replay::first_id(begun_by);
        let ids = file.checkpoints();
        let mut left = ids.iter().filter(|(_, id)| *id >= first).count();
        // What the last run consumes decides, so that an op without a checkpoint stays with the run before it.
        while let Some(op) = rest.peek() {
            match op.kind {
                OpKind::NewEpoch(_) | OpKind::MaybeEpoch(_) => break,
                OpKind::Run { .. } | OpKind::Unanswered { .. } if left == 0 => break,
                OpKind::Run { .. } | OpKind::Step { .. } => left = left.checked_sub(1)?,
                _ => {}
            }
            all.extend(rest.next().cloned());
        }
        let Some(next) = files.peek() else { break };
        match rest.peek() {
            Some(Op { kind: OpKind::NewEpoch(by), .. }) => {
                begun_by = Some(*by);
                all.extend(rest.next().cloned());
            }
            after => {
                let by = if is_compacted(next) { NewEpoch::Compaction } else { NewEpoch::Clear };
                // It goes with the turn that follows: who undoes that gets the context back that was there before.
                let group = after.map_or_else(|| all.last().map_or(0, |op| op.group), |op| op.group);
                all.push(Op { group, kind: OpKind::NewEpoch(by) });
                begun_by = Some(by);
                hidden += 1;
            }
        }
    }
    if files_end_without_live {
        all.push(Op { group: all.last().map_or(0, |op| op.group), kind: OpKind::NewEpoch(NewEpoch::Clear) });
        hidden += 1;
    }
    rest.peek().is_none().then_some((all, hidden))
}

/// Whether only the name was given to a file, by a rotation that was killed.
fn is_reserved(file: &ContextFile) -> bool {
    file.lines.is_empty() && file.name != LIVE
}

/// Whether an epoch begins with a summary.
fn is_compacted(file: &ContextFile) -> bool {
    file.lines.iter().find_map(|line| match &line.record {
        ContextRecord::User { text } => Some(text.starts_with(COMPACTION_SUMMARY)),
        ContextRecord::Assistant { .. } | ContextRecord::Tool { .. } => Some(false),
        _ => None,
    }) == Some(true)
}
