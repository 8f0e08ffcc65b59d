//! Which files, and how much of each, make up a thread's history.
//!
//! A file may begin where another one stops (`history_base`): the client's reverts and its forks of
//! paginated threads do. What is in no file any more is damage and named as such.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::heads::{self, Head, NoMeta};
use super::layout::{Rollout, rollouts};
use super::records::HistoryBase;
use crate::session::{Damage, DamageClass, Result};
use crate::transcript::StoreDir;

/// Longest chain of files that is followed; the client itself names the file that holds a cut and so keeps
/// chains short.
const LONGEST: usize = 1000;

/// One file's part of a history.
pub struct Segment {
    pub rollout: Rollout,
    pub head: Arc<Head>,
    /// Where the next segment takes over; `None` for the last one, which counts to its end.
    pub end: Option<HistoryBase>,
}

/// A thread's files, oldest first.
pub struct Lineage {
    pub segments: Vec<Segment>,
    /// Set where the chain is broken; the segments after the break are there.
    pub broken: Option<Damage>,
}

impl Lineage {
    /// Follows the chain back from `current`.
    ///
    /// # Errors
    /// What prevents reading a file that is there.
    pub fn of(store: &StoreDir, current: Rollout) -> Result<Lineage> {
        let head = Arc::new(heads::read(store, &current.file)?);
        let mut segments = vec![Segment { rollout: current, head, end: None }];
        let mut known: Option<BTreeMap<String, Rollout>> = None;
        let mut broken = None;
        while let Some(base) = base_of(&segments[segments.len() - 1]) {
            let from = &segments[segments.len() - 1].rollout;
            if known.is_none() {
                known = Some(rollouts(store));
            }
            let found = known.as_ref().and_then(|all| all.get(&base.thread_id));
            let circle = segments.iter().any(|segment| segment.rollout.id == base.thread_id);
            let what = match found {
                None => {
                    Some(format!("the rollout {} that this history continues is not there", base.thread_id))
                }
                Some(_) if circle => {
                    Some(format!("the history leads back to {} in a circle", base.thread_id))
                }
                Some(_) if segments.len() >= LONGEST => Some("the chain of rollouts is too long".to_owned()),
                Some(_) => None,
            };
            let (Some(rollout), None) = (found, &what) else {
                broken = what.map(|what| lost(from, &what));
                break;
            };
            let head = Arc::new(heads::read(store, &rollout.file)?);
            segments.push(Segment { rollout: rollout.clone(), head, end: Some(base) });
        }
        segments.reverse();
        Ok(Lineage { segments, broken })
    }
}

/// A piece of the history is gone; told at the line that refers to it.
pub fn lost(from: &Rollout, what: &str) -> Damage {
    Damage {
        file: from.file.display().to_string(),
        line: 1,
        byte: 0,
        class: DamageClass::DanglingParent,
        message: format!("{what}; Codex cannot resume such a thread"),
    }
}

fn base_of(segment: &Segment) -> Option<HistoryBase> {
    segment.head.meta.as_ref().ok()?.history_base.clone()
}

/// What is wrong with a first line.
pub fn first_record(rollout: &Rollout, what: NoMeta) -> Option<Damage> {
    let NoMeta::Damaged(class) = what else { return None };
    let says = match class {
        DamageClass::Bom => "the file begins with a byte order mark",
        _ => "the first line is not the session's own record (session_meta)",
    };
    let message = format!("{says}; Codex does not list or resume such a file");
    Some(Damage { file: rollout.file.display().to_string(), line: 1, byte: 0, class, message })
}
