//! Sessions whose wire has no turn: the old flat form, or a lost wire. The context itself is numbered.
//!
//! Only the live file counts: its runs are what the model still sees, and without a wire nothing tells how
//! the rotated files follow each other. Facts: `docs/stores/kimi-cli.md`, "2.4 Old flat form".

use std::path::PathBuf;

use super::super::records::{COMPACTION_SUMMARY, ContextFile, TextKey, is_the_clients_own};
use super::super::turns::Walk;
use super::epoch::candidate_runs;
use super::{Alignment, PlaceOption, Refused, WIRE, whole};
use crate::session::{Confidence, CutPoint, Kept};

/// A turn read from the context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextTurn {
    pub text: TextKey,
    /// First line (its checkpoint's, where it has one), counted from 1.
    pub line: u64,
    /// Byte offset of that line.
    pub start: u64,
    /// Line index (from 0) of its user record in the live file.
    pub user_line: usize,
}

/// Numbers the runs of the live context (the last of `files`) and gives their cut points. A cut that does
/// not keep all needs consistent checkpoints: without them a steer cannot be told from a turn.
pub fn align_without_wire(walk: &Walk, files: &[ContextFile]) -> (Vec<ContextTurn>, Alignment) {
    let Some((live, earlier)) = files.split_last() else {
        return (Vec::new(), Alignment::default());
    };
    let checkpoints = live.checkpoints();
    let consistent = !checkpoints.is_empty()
        && checkpoints.windows(2).all(|pair| pair[0].1.checked_add(1) == Some(pair[1].1));
    let compacted = candidate_runs(live, 0, |_| false)
        .first()
        .is_some_and(|first| first.text.starts_with(COMPACTION_SUMMARY));
    let from = if compacted { live.behind_first_usage().unwrap_or(0) } else { 0 };
    let runs = candidate_runs(live, from, |_| false).into_iter().filter(|run| !is_the_clients_own(&run.text));
    let turns: Vec<ContextTurn> = runs
        .map(|run| ContextTurn {
            line: run.line as u64 + 1,
            start: live.byte_of(run.line),
            user_line: run.user_line,
            text: run.text,
        })
        .collect();
    let keep = |lines: u64, bytes: u64, confidence| {
        let name = PathBuf::from(&live.name);
        let mut kept: Vec<Kept> = earlier.iter().map(whole).collect();
        kept.push(Kept { file: name.clone(), source: name, lines, bytes, rebuilt: false });
        if walk.lines > 0 {
            let wire = PathBuf::from(WIRE);
            kept.push(Kept {
                file: wire.clone(),
                source: wire,
                lines: walk.lines,
                bytes: walk.end,
                rebuilt: false,
            });
        }
        CutPoint { confidence, kept, at: None }
    };
    let before_turn = |turn: &ContextTurn| match consistent {
        true => Ok(keep(turn.line - 1, turn.start, Confidence::Exact)),
        false => Err(Refused::Ambiguous {
            options: vec![PlaceOption { file: live.name.clone(), lines: turn.line - 1 }],
        }),
    };
    let mut cuts: Vec<_> = turns.iter().map(before_turn).collect();
    let (end, confidence) =
        (live.lines.len(), if consistent { Confidence::Exact } else { Confidence::Aligned });
    cuts.push(Ok(keep(end as u64, live.byte_of(end), confidence)));
    let mut notes =
        vec!["the wire has no turns: these are the runs of the context, numbered by it".to_owned()];
    if !earlier.is_empty() {
        notes.push(format!("{} earlier context file(s) are kept but not numbered", earlier.len()));
    }
    if !consistent && !turns.is_empty() {
        notes.push(format!(
            "{}: no consistent checkpoints, so nothing proves where its turns begin",
            live.name
        ));
    }
    (turns, Alignment { cuts, epochs: vec![Some(live.name.clone())], notes })
}
