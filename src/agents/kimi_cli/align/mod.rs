//! Which context lines belong to which turns, and so where a session can be cut.
//!
//! The wire's operations are split into epochs, each epoch gets its file, `replay` (or else `matching`)
//! says where the operations lie in it. Whoever shows, plans or cuts uses the cut points made here and
//! never looks at context records itself. Rules: `docs/stores/kimi-cli.md`, "4. Alignment".

mod doubt;
pub mod epoch;
pub mod from_context;
mod hidden;
pub mod matching;
pub mod replay;

#[cfg(test)]
mod hard_cases;
#[cfg(test)]
mod made_by_hand;
#[cfg(test)]
mod old_cases;
#[cfg(test)]
mod sample_store;
#[cfg(test)]
mod samples;

use std::path::PathBuf;

use super::records::ContextFile;
use super::turns::{NewEpoch, Op, OpKind, Walk};
use crate::session::{Confidence, CutPoint, Kept, Refusal};
use epoch::{Fit, fit};

/// The file of the live epoch; also the name that any epoch's file gets when it becomes the live one.
pub const LIVE: &str = "context.jsonl";

/// The wire's name.
pub const WIRE: &str = "wire.jsonl";

/// The cut points of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alignment {
    /// Entry `i` keeps the turns before turn `i` (and the rest of turn `i - 1`'s group); the last entry
    /// keeps all. File names are relative to the session's directory, the wire comes last.
    pub cuts: Vec<Result<CutPoint, Refused>>,
    /// For each epoch its file; `None` if it is not on disk.
    pub epochs: Vec<Option<String>>,
    /// Facts for the user that are no damage.
    pub notes: Vec<String>,
}

/// Why a cut is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// More than one cut fits; the smallest option never leaks an undone turn.
    Ambiguous { options: Vec<PlaceOption> },
    /// There are too many turns and runs to find the cut in bounded time.
    TooLarge { file: String },
    /// The context epoch that was live at the end of this turn is not on disk.
    Lost,
}

/// One of several places where a file might have to be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceOption {
    pub file: String,
    /// Lines kept.
    pub lines: u64,
}

impl Refused {
    pub fn confidence(&self) -> Confidence {
        match self {
            Refused::Ambiguous { .. } | Refused::TooLarge { .. } => Confidence::Ambiguous,
            Refused::Lost => Confidence::Lost,
        }
    }

    /// The refusal of the cut before turn `n`.
    pub fn refusal(&self, n: usize) -> Refusal {
        let asked = match n.checked_sub(1) {
            Some(last) => last.to_string(),
            None => "none".into(),
        };
        match self {
            Refused::Ambiguous { options } => {
                let places: Vec<_> =
                    options.iter().map(|place| format!("{} lines of {}", place.lines, place.file)).collect();
                let options = match places.is_empty() {
                    true => "its checkpoints prove no place".into(),
                    false => format!("it could be {}", places.join(" or ")),
                };
                Refusal::Ambiguous { asked, options }
            }
            Refused::TooLarge { file } => {
                Refusal::Ambiguous { asked, options: format!("{file} has too many runs to tell them apart") }
            }
            Refused::Lost => Refusal::Lost {
                what: "the context epoch that was live at the end of this turn was removed".into(),
                hint: None,
            },
        }
    }
}

#[cfg(test)]
impl Alignment {
    /// How sure the cut is that keeps everything up to and including this turn.
    pub fn confidence(&self, turn: usize) -> Confidence {
        match self.cuts.get(turn + 1) {
            Some(Ok(point)) => point.confidence,
            Some(Err(refused)) => refused.confidence(),
            None => Confidence::Lost,
        }
    }
}

/// An epoch of the context, and what was done in it.
struct Epoch<'a> {
    /// `None`: the session's first epoch.
    begun_by: Option<NewEpoch>,
    /// The group whose op began it; `None` for the first epoch.
    begun_in: Option<u32>,
    ops: &'a [Op],
}

/// Aligns a session whose wire has turns. `files` are the context files in the order of their numbers,
/// the live one (if it is there) last.
///
/// Runs that the context has before the wire's first turn (a session that began without a wire) are no
/// turns here: they have no number, stay in every cut, and are named in the notes.
pub fn align(walk: &Walk, files: &[ContextFile]) -> Alignment {
    match doubt::readings(&walk.ops) {
        None => {
            let plain = align_ops(walk, &walk.ops, files);
            if plain.extra == 0 || plain.proved {
                plain.alignment
            } else {
                hidden::settle(walk, files, plain)
            }
        }
        Some(readings) => doubt::settle(readings.iter().map(|ops| align_ops(walk, ops, files)).collect()),
    }
}

/// An alignment, and how well it explains the files.
struct Reading {
    alignment: Alignment,
    /// Every epoch's file is proved by its checkpoints.
    proved: bool,
    /// Files without an epoch and epochs without a file.
    misfits: usize,
    /// Of these, the files.
    extra: usize,
}

fn align_ops(walk: &Walk, ops: &[Op], files: &[ContextFile]) -> Reading {
    let epochs = split(ops);
    let mut notes = Vec::new();
    if walk.invalid > 0 {
        notes.push("wire has invalid lines".to_owned());
    }
    let places = map_files(epochs.len(), files);
    let lost = places.iter().filter(|file| file.is_none()).count();
    if lost > 0 {
        notes.push(format!("{lost} rotated context file(s) missing (client fork or cleanup)"));
    }
    let extra = files.len() - (epochs.len() - lost);
    if extra > 0 {
        notes.push(format!("{extra} context file(s) more than the wire has epochs"));
    }
    let mut fits = Vec::with_capacity(epochs.len());
    for (epoch, place) in epochs.iter().zip(&places) {
        let fit = place.map(|file| fit(walk, epoch.ops, epoch.begun_by, &files[file]));
        notes.extend(fit.iter().flat_map(|fit| fit.notes.iter().cloned()));
        fits.push(fit);
    }
    let cutter = Cutter { walk, files, epochs: &epochs, places: &places, fits: &fits };
    let groups = walk.turns.iter().map(|turn| Some(turn.group));
    let cuts: Vec<_> = [None].into_iter().chain(groups).map(|group| cutter.cut(group)).collect();
    let none_kept = match &cuts[0] {
        Ok(point) => point.confidence,
        Err(refused) => refused.confidence(),
    };
    if none_kept != Confidence::Exact {
        notes.push(format!("keep -1: {none_kept}"));
    }
    let names = places.iter().map(|place| place.map(|file| files[file].name.clone())).collect();
    let proved = fits.iter().flatten().all(|fit| fit.exact);
    Reading { alignment: Alignment { cuts, epochs: names, notes }, proved, misfits: extra + lost, extra }
}

fn split(ops: &[Op]) -> Vec<Epoch<'_>> {
    let mut epochs = Vec::new();
    let (mut begun_by, mut begun_in) = (None, None);
    let mut start = 0;
    for (index, op) in ops.iter().enumerate() {
        if let OpKind::NewEpoch(by) = op.kind {
            epochs.push(Epoch { begun_by, begun_in, ops: &ops[start..index] });
            (begun_by, begun_in) = (Some(by), Some(op.group));
            start = index + 1;
        }
    }
    epochs.push(Epoch { begun_by, begun_in, ops: &ops[start..] });
    epochs
}

/// Each epoch's file, counted from the end, since early files are what goes missing: the client's own forks
/// leave them out. A gap in the numbers is a file that was there.
fn map_files(epochs: usize, files: &[ContextFile]) -> Vec<Option<usize>> {
    let mut used: Vec<usize> = (0..files.len()).collect();
    // A rotation that was killed leaves a reserved name: an empty file that was never an epoch.
    while used.len() > epochs
        && let Some(at) =
            used.iter().rposition(|&file| files[file].lines.is_empty() && files[file].name != LIVE)
    {
        used.remove(at);
    }
    let mut places = vec![None; epochs];
    let mut back = 0;
    let mut later: Option<u64> = None;
    if files.last().is_none_or(|file| file.name != LIVE) {
        back = 1;
    }
    for &file in used.iter().rev() {
        let number = rotation_number(&files[file].name);
        if let (Some(number), Some(later)) = (number, later) {
            // Names between two files that are both there were given to epochs, unless left empty above.
            let between = (number + 1..later).filter(|n| !is_empty_file(files, *n)).count();
            back += between;
        }
        later = number.or(later);
        let Some(epoch) = epochs.checked_sub(back + 1) else { break };
        places[epoch] = Some(file);
        back += 1;
    }
    places
}

fn is_empty_file(files: &[ContextFile], number: u64) -> bool {
    files.iter().any(|file| rotation_number(&file.name) == Some(number) && file.lines.is_empty())
}

/// K of `context_K.jsonl`.
fn rotation_number(name: &str) -> Option<u64> {
    name.strip_prefix("context_")?.strip_suffix(".jsonl")?.parse().ok()
}

struct Cutter<'a> {
    walk: &'a Walk,
    files: &'a [ContextFile],
    epochs: &'a [Epoch<'a>],
    /// Each epoch's index into `files`.
    places: &'a [Option<usize>],
    fits: &'a [Option<Fit>],
}

impl Cutter<'_> {
    /// The cut that keeps everything up to and including a group; `None` keeps nothing.
    fn cut(&self, group: Option<u32>) -> Result<CutPoint, Refused> {
        let kept = |turn_group: u32| group.is_some_and(|group| turn_group <= group);
        let begun = self.epochs.partition_point(|epoch| epoch.begun_in.is_none_or(kept));
        let live = begun.saturating_sub(1);
        let (Some(place), Some(fit)) = (self.places[live], &self.fits[live]) else {
            return Err(Refused::Lost);
        };
        let file = &self.files[place];
        let ops = self.epochs[live].ops;
        let first_dropped = ops.partition_point(|op| kept(op.group));
        if fit.too_large && first_dropped < ops.len() {
            return Err(Refused::TooLarge { file: file.name.clone() });
        }
        let mut dropped = fit.places[first_dropped..].iter().filter(|places| !places.is_empty());
        // Nothing of any dropped turn may stay: a place behind one of a later turn is none.
        let bound = dropped.clone().filter_map(|places| places.last()).min().copied();
        let mut places: Vec<usize> = dropped.next().cloned().unwrap_or_default();
        places.retain(|line| Some(*line) <= bound);
        let line = match (&places[..], bound) {
            ([], bound) => bound.unwrap_or(file.lines.len()),
            ([line], _) => *line,
            (several, _) => {
                let option = |&line: &usize| PlaceOption { file: file.name.clone(), lines: line as u64 };
                return Err(Refused::Ambiguous { options: several.iter().map(option).collect() });
            }
        };
        let mut files: Vec<Kept> = self.files[..place].iter().map(whole).collect();
        files.push(Kept {
            file: PathBuf::from(LIVE),
            source: PathBuf::from(&file.name),
            lines: line as u64,
            bytes: file.byte_of(line),
            rebuilt: false,
        });
        files.push(self.wire(group));
        let confidence = if fit.exact { Confidence::Exact } else { Confidence::Aligned };
        Ok(CutPoint { confidence, kept: files, at: None })
    }

    fn wire(&self, group: Option<u32>) -> Kept {
        let turns = &self.walk.turns;
        let end = group.and_then(|group| turns[group as usize].end);
        let next = turns.partition_point(|turn| group.is_some_and(|group| turn.group <= group));
        let (lines, bytes) = match (end, turns.get(next)) {
            (Some(end), _) => (end.line, end.byte),
            (None, Some(next)) => (next.line - 1, next.start),
            (None, None) => (self.walk.lines, self.walk.end),
        };
        Kept { file: PathBuf::from(WIRE), source: PathBuf::from(WIRE), lines, bytes, rebuilt: false }
    }
}

fn whole(file: &ContextFile) -> Kept {
    let lines = file.lines.len();
    let name = PathBuf::from(&file.name);
    Kept { file: name.clone(), source: name, lines: lines as u64, bytes: file.byte_of(lines), rebuilt: false }
}
