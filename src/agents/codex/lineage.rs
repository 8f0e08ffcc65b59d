//! Which files, and how much of each, make up a thread's history.
//!
//! A file may begin where another one stops (`history_base`): the client's reverts and its forks of
//! paginated threads do. What is in no file any more is damage and named as such.

use std::cell::LazyCell;
use std::sync::Arc;

use super::heads::{self, Head, NoMeta};
use super::layout::{Folders, Rollout};
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
        let known = LazyCell::new(|| Folders::list(store).rollouts);
        let mut broken = None;
        while let Some(base) = segments[segments.len() - 1].base().cloned() {
            let found = known.get(&base.thread_id);
            let circle = segments.iter().any(|segment| segment.rollout.id == base.thread_id);
            let what = match found {
                Some(_) if circle => format!("the history leads back to {} in a circle", base.thread_id),
                Some(_) if segments.len() >= LONGEST => "the chain of rollouts is too long".to_owned(),
                Some(rollout) => {
                    let head = Arc::new(heads::read(store, &rollout.file)?);
                    segments.push(Segment { rollout: rollout.clone(), head, end: Some(base) });
                    continue;
                }
                None => format!("the rollout {} that this history continues is not there", base.thread_id),
            };
            broken = Some(lost(&segments[segments.len() - 1].rollout, &what));
            break;
        }
        segments.reverse();
        Ok(Lineage { segments, broken })
    }
}

/// A piece of the history is gone; told at the line that refers to it.
pub fn lost(from: &Rollout, what: &str) -> Damage {
    let message = format!("{what}; Codex cannot resume such a thread");
    at_first_line(from, DamageClass::DanglingParent, message)
}

fn at_first_line(rollout: &Rollout, class: DamageClass, message: String) -> Damage {
    Damage { file: rollout.file.display().to_string(), line: 1, byte: 0, class, message }
}

impl Segment {
    fn base(&self) -> Option<&HistoryBase> {
        self.head.meta.as_ref().ok()?.history_base.as_ref()
    }

    /// What is wrong with the first line.
    pub fn first_line_damage(&self) -> Option<Damage> {
        let thread = &self.rollout.thread;
        let (class, message) = match &self.head.meta {
            Ok(meta) if meta.id != *thread => (
                DamageClass::FirstRecord,
                format!(
                    "the file's name says thread {thread}, its first line {}; Codex does not resume such a thread",
                    meta.id
                ),
            ),
            Err(NoMeta::Damaged(class)) => {
                let says = match class {
                    DamageClass::Bom => "the file begins with a byte order mark",
                    _ => "the first line is not the session's own record (session_meta)",
                };
                (*class, format!("{says}; Codex does not list or resume such a file"))
            }
            _ => return None,
        };
        Some(at_first_line(&self.rollout, class, message))
    }
}
