//! A client that was killed in a compaction or a /clear: did it rotate the context?
//!
//! The wire does not tell, so every answer is tried, and the context files decide: the answer is taken under
//! which all checkpoints come out even. Without one, no cut is made that is not proved.

use super::super::turns::{NewEpoch, Op, OpKind};
use super::{Alignment, PlaceOption, Reading, Refused};
use crate::session::{Confidence, CutPoint};

/// With more answers than this to try, only the plain one is.
const MOST_READINGS: usize = 81;

/// The ops under every answer, the plain one (nothing was rotated) first; `None` where nothing is in doubt.
pub(super) fn readings(ops: &[Op]) -> Option<Vec<Vec<Op>>> {
    if !ops.iter().any(|op| matches!(op.kind, OpKind::MaybeEpoch(_))) {
        return None;
    }
    let mut readings: Vec<Vec<Op>> = vec![Vec::new()];
    for op in ops {
        let OpKind::MaybeEpoch(by) = op.kind else {
            readings.iter_mut().for_each(|reading| reading.push(op.clone()));
            continue;
        };
        // A compaction that was killed before it wrote its first checkpoint left what a /clear leaves.
        let answers = match by {
            NewEpoch::Compaction => vec![by, NewEpoch::Clear],
            NewEpoch::Clear | NewEpoch::Revert { .. } => vec![by],
        };
        let plain = readings.clone();
        for answer in answers {
            if readings.len() + plain.len() > MOST_READINGS {
                break;
            }
            let begun = Op { kind: OpKind::NewEpoch(answer), ..op.clone() };
            readings
                .extend(plain.iter().map(|reading| [&reading[..], std::slice::from_ref(&begun)].concat()));
        }
    }
    Some(readings)
}

/// The alignment that the files prove. Where several do, only cuts that all of them agree on.
pub(super) fn settle(readings: Vec<Reading>) -> Alignment {
    let fewest = readings.iter().filter(|reading| reading.proved).map(|reading| reading.misfits).min();
    let best = |reading: &Reading| reading.proved && Some(reading.misfits) == fewest;
    let (best, mut others): (Vec<_>, Vec<_>) = readings.into_iter().partition(best);
    let mut best = best.into_iter().map(|reading| reading.alignment);
    let Some(mut alignment) = best.next() else {
        // The plain reading is the first one.
        let mut alignment = others.swap_remove(0).alignment;
        alignment.cuts.iter_mut().for_each(refuse_unless_proved);
        alignment.notes.push("whether a killed client rotated the context cannot be told".to_owned());
        return alignment;
    };
    for other in best {
        for (cut, other) in alignment.cuts.iter_mut().zip(other.cuts) {
            if *cut != other {
                let places = [&*cut, &other].into_iter().filter_map(|cut| cut.as_ref().ok());
                let options = places.filter_map(place).collect();
                *cut = Err(Refused::Ambiguous { options });
            }
        }
    }
    alignment
}

pub(super) fn refuse_unless_proved(cut: &mut Result<CutPoint, Refused>) {
    if let Ok(point) = cut
        && point.confidence != Confidence::Exact
    {
        *cut = Err(Refused::Ambiguous { options: place(point).into_iter().collect() });
    }
}

/// Where a cut point cuts the context.
fn place(point: &CutPoint) -> Option<PlaceOption> {
    let live = point.kept.iter().find(|kept| kept.file.as_os_str() == super::LIVE)?;
    Some(PlaceOption { file: live.source.to_string_lossy().into_owned(), lines: live.lines })
}
