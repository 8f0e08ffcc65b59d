//! One epoch: its operations and its file brought together, by replay or else by matching.

use super::super::records::{ContextFile, ContextRecord, TextKey, checkpoint_marker, is_injected};
use super::super::turns::{NewEpoch, Op, OpKind, Walk};
use super::matching::{Candidate, Expected, matching};
use super::replay::replay;

/// How an epoch's ops lie in its file.
#[derive(Debug)]
pub struct Fit {
    /// Proved by the checkpoints.
    pub exact: bool,
    /// For each op the line indices at which the file may have to be cut to end before that op: one if it
    /// is certain, several (ascending) if it is not, none if the op left no such place. The number of
    /// lines stands for the end of the file.
    pub places: Vec<Vec<usize>>,
    /// Too many runs and candidates to compare; the places are not known.
    pub too_large: bool,
    pub notes: Vec<String>,
}

/// Where the file's runs begin that can be the wire's.
#[derive(Debug)]
pub struct CandidateRun {
    /// Line index of its checkpoint; of its user record in a file without checkpoints.
    pub line: usize,
    /// Line index of its user record.
    pub user_line: usize,
    pub text: TextKey,
}

/// Brings an epoch's ops and its file together.
pub fn fit(walk: &Walk, ops: &[Op], begun_by: Option<NewEpoch>, file: &ContextFile) -> Fit {
    match replay(file, begun_by, ops, &walk.steps) {
        Some(replay) => {
            let mut places: Vec<Vec<usize>> = ops
                .iter()
                .zip(&replay.positions)
                .map(|(op, position)| match op.kind {
                    OpKind::Run { .. } => position.iter().copied().collect(),
                    _ => Vec::new(),
                })
                .collect();
            // Turns that were killed at once and end the epoch: the lone checkpoint is theirs. Left behind, it
            // would look like the beginning of whatever comes next.
            for (op, place) in ops.iter().zip(&mut places).rev() {
                let OpKind::Unanswered { .. } = op.kind else { break };
                place.extend(replay.last_lone);
            }
            place_side_records(file, begun_by, ops, &mut places, |op| replay.positions[op]);
            let notes = match replay.lone {
                0 => Vec::new(),
                n => vec![format!(
                    "{}: {n} lone checkpoint(s), as the client's own /fork leaves them",
                    file.name
                )],
            };
            Fit { exact: true, places, too_large: false, notes }
        }
        None => matched(walk, ops, begun_by, file),
    }
}

fn matched(walk: &Walk, ops: &[Op], begun_by: Option<NewEpoch>, file: &ContextFile) -> Fit {
    let mut runs = Vec::new();
    let mut run_ops = Vec::new();
    for (index, op) in ops.iter().enumerate() {
        if let Some(run) = expected(walk, op) {
            runs.push(run);
            run_ops.push(index);
        }
    }
    let known = |text: &TextKey| runs.iter().any(|run| run.text == Some(text.hash));
    let from = match begun_by {
        Some(NewEpoch::Compaction) => file.behind_first_usage().unwrap_or(0),
        _ => 0,
    };
    let found = candidate_runs(file, from, known);
    let candidates = evidence(file, &found);
    let Some(matching) = matching(&runs, &candidates) else {
        let notes = vec![format!(
            "{}: checkpoint replay failed, and {} turns and {} runs are too many to align",
            file.name,
            runs.len(),
            found.len()
        )];
        return Fit { exact: false, places: vec![Vec::new(); ops.len()], too_large: true, notes };
    };
    let line_of = |candidate: usize| found.get(candidate).map_or(file.lines.len(), |run| run.line);
    let mut places = vec![Vec::new(); ops.len()];
    for (&op, boundary) in run_ops.iter().zip(&matching.boundaries) {
        places[op] = boundary.iter().map(|&candidate| line_of(candidate)).collect();
    }
    place_side_records(file, begun_by, ops, &mut places, |_| None);
    let mut notes = Vec::new();
    let unknown: Vec<String> = matching
        .unused
        .iter()
        .filter(|&&candidate| !candidates[candidate].injected)
        .map(|&candidate| format!("'{}'", found[candidate].text.head.chars().take(40).collect::<String>()))
        .collect();
    if !unknown.is_empty() {
        let list = unknown.join(", ");
        let count = unknown.len();
        notes.push(format!("{}: context holds {count} run(s) unknown to the wire: [{list}]", file.name));
    }
    notes.push(format!("{}: checkpoint replay failed, sequence alignment used", file.name));
    Fit { exact: false, places, too_large: false, notes }
}

/// What the wire tells of a run.
fn expected(walk: &Walk, op: &Op) -> Option<Expected> {
    match &op.kind {
        OpKind::Run { text, steps } => {
            let steps = &walk.steps[steps.clone()];
            let mut said: Vec<u128> = steps.iter().filter_map(|step| step.text).collect();
            let mut calls: Vec<u128> = steps.iter().flat_map(|step| step.calls.iter().copied()).collect();
            said.sort_unstable();
            calls.sort_unstable();
            Some(Expected { text: text.as_ref().map(|text| text.hash), said, calls })
        }
        OpKind::Unanswered { text } => Some(Expected { text: Some(text.hash), ..Expected::default() }),
        _ => None,
    }
}

/// The user records from line index `from` on that may begin a run: those behind a checkpoint; where the
/// file has no checkpoints at all, every one of the whole file. `known` tells whether some turn's own text
/// is this one, since a user can type what looks like a checkpoint marker.
pub fn candidate_runs(
    file: &ContextFile,
    from: usize,
    known: impl Fn(&TextKey) -> bool,
) -> Vec<CandidateRun> {
    let checkpoints = file.checkpoints();
    if checkpoints.is_empty() {
        let users = file.lines.iter().enumerate().filter_map(|(line, context)| match &context.record {
            ContextRecord::User { text } if !looks_like_marker(text) => {
                Some(CandidateRun { line, user_line: line, text: text.clone() })
            }
            _ => None,
        });
        return users.collect();
    }
    let behind = |&(line, id): &(usize, i64)| {
        let (user_line, text) = file.user_from(line + 1)?;
        let marker = checkpoint_marker(id);
        if *text != marker {
            return Some(CandidateRun { line, user_line, text: text.clone() });
        }
        match file.user_from(user_line + 1) {
            Some((user_line, text)) => Some(CandidateRun { line, user_line, text: text.clone() }),
            None => known(&marker).then_some(CandidateRun { line, user_line, text: marker }),
        }
    };
    checkpoints.iter().filter(|(line, _)| *line >= from).filter_map(behind).collect()
}

fn looks_like_marker(text: &TextKey) -> bool {
    let number =
        text.head.strip_prefix("<system>CHECKPOINT ").and_then(|rest| rest.strip_suffix("</system>"));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
}

/// What was said from each candidate up to the next.
fn evidence(file: &ContextFile, found: &[CandidateRun]) -> Vec<Candidate> {
    let ends = found.iter().skip(1).map(|next| next.line).chain([file.lines.len()]);
    found
        .iter()
        .zip(ends)
        .map(|(run, end)| {
            let mut candidate =
                Candidate { text: run.text.hash, injected: is_injected(&run.text), ..Candidate::default() };
            for context in &file.lines[run.line..end] {
                if let ContextRecord::Assistant { text, tool_calls } = &context.record {
                    candidate.said.extend(text.iter().filter(|text| !text.is_empty()).map(|text| text.hash));
                    candidate.calls.extend(tool_calls);
                }
            }
            candidate.said.sort_unstable();
            candidate.calls.sort_unstable();
            candidate
        })
        .collect()
}

/// Finds the records that commands wrote themselves: the first user record with the op's prefix behind the
/// previous op that has a place (or, by `stepped`, a step's checkpoint) and before the next run.
fn place_side_records(
    file: &ContextFile,
    begun_by: Option<NewEpoch>,
    ops: &[Op],
    places: &mut [Vec<usize>],
    stepped: impl Fn(usize) -> Option<usize>,
) {
    // What a compaction copied from the old epoch can hold an older command's record.
    let mut from = match begun_by {
        Some(NewEpoch::Compaction) => file.behind_first_usage().unwrap_or(0),
        _ => 0,
    };
    let mut contested = None;
    for index in 0..ops.len() {
        let OpKind::SideRecord { prefix, sure } = ops[index].kind else {
            let own = places[index].last().copied().or_else(|| stepped(index));
            // A run that is lost begins where the next one does: nothing lies behind it.
            let next = next_run(ops, places, index, file);
            from = own.filter(|&line| line < next).map_or(from, |line| from.max(line + 1));
            continue;
        };
        let until = next_run(ops, places, index, file);
        let found: Vec<usize> = (from..until)
            .filter(|&at| match &file.lines[at].record {
                ContextRecord::User { text } => text.starts_with(prefix),
                _ => false,
            })
            .collect();
        let later = ops[index + 1..].iter().take_while(|op| !is_run(op));
        let rivals: Vec<bool> = later.filter_map(|op| same_record(op, prefix)).collect();
        let sure_rivals = rivals.iter().filter(|sure| **sure).count();
        places[index] = match found.first() {
            None => Vec::new(),
            // It may be an earlier killed command's.
            Some(line) if contested == Some(*line) && !sure => [&found[..], &[until]].concat(),
            Some(&line) if sure || found.len() > rivals.len() => {
                from = line + 1;
                vec![line]
            }
            // All that there are belong to commands that said so.
            Some(_) if found.len() <= sure_rivals => Vec::new(),
            // It is this one's, or a later killed one's.
            Some(&line) => {
                contested = Some(line);
                vec![line]
            }
        };
    }
}

fn is_run(op: &Op) -> bool {
    matches!(op.kind, OpKind::Run { .. } | OpKind::Unanswered { .. })
}

/// Whether another command writes a record with this prefix; and if so, whether it is sure.
fn same_record(op: &Op, of: &str) -> Option<bool> {
    match op.kind {
        OpKind::SideRecord { prefix, sure } if prefix == of => Some(sure),
        _ => None,
    }
}

/// The line index before which everything between op `index` and the next run must lie.
fn next_run(ops: &[Op], places: &[Vec<usize>], index: usize, file: &ContextFile) -> usize {
    let later = ops.iter().zip(places).skip(index + 1);
    let run = later.filter(|(op, _)| is_run(op));
    run.filter_map(|(_, places)| places.first()).next().copied().unwrap_or(file.lines.len())
}
