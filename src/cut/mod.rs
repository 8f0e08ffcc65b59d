//! Cuts: plan, verify, journal, apply, read again, commit. The only code that writes into a store.
//!
//! An agent's folder says what to do as data (`session::Plan`): steps for an undo, new files for a fork. This
//! folder makes it durable, reversible and safe against a crash, for every store alike. Called by `fs` (control
//! files), `cli`, and by `daemon` for recovery. `docs/DURABILITY.md` says what is on disk when.
//!
//! - `execute` plans an undo or redo, `fork` a fork, rescue or adoption, `branch` a fork of what an undo removed;
//!   `transaction` carries out each of them: one list of changes, made forwards, rolled back backwards. `recover` rolls
//!   back what a crash left. No other path changes a store.
//! - `resolve` turns steps into changes; `apply` makes them and rolls them back (files itself, a shared index by
//!   `entry`, a database by `row`). `verify` compares what is read afterwards with the promise, `writers` refuses
//!   while somebody else is at work.
//! - `several_names` keeps hard-linked files out of in-place changes.
//! - `lease` holds the store's files and locks meanwhile (`host` names who else does), `scan` compares what is in them.
//! - `state` is turnfs's own folder for a session, in it `journal` (what is under way or was done), `undone`
//!   (what undos removed; `prune` deletes it) and `adopted`; `private` refuses what somebody else may have put
//!   there. `disk` has every operation on files; `fault` makes it fail in tests.

mod adopted;
mod apply;
mod branch;
mod disk;
mod entry;
mod execute;
mod fault;
mod fork;
mod journal;
mod lease;
mod private;
mod prune;
mod recover;
mod resolve;
mod row;
mod scan;
mod several_names;
mod state;
mod transaction;
mod undone;
mod verify;
mod without;
mod writers;

#[cfg(test)]
mod tests;

pub use branch::{fork as fork_undone, fork_abandoned};
pub use execute::{redo, undo};
pub use fork::adopt;
pub use private::PrivateDir;
pub use prune::{Pruned, prune};
pub use recover::{Leftover, leftovers, recover};
pub use state::StateDir;
pub use undone::{Undone, undone, undone_span};
pub use without::fork_without;

use std::path::Path;

use crate::agents::AgentStore;
use crate::session::{History, Refusal, Result, Session, time_of_writing};
use verify::Proof;

/// What an undo did.
#[derive(Clone, Debug)]
pub struct UndoDone {
    /// Its number under `undone/`.
    pub number: u32,
    /// Turns left.
    pub keeps: u32,
    /// Turns removed.
    pub drops: u32,
}

/// Makes a new session with the turns 0..=n of `session`; returns its id.
///
/// # Errors
/// Nothing is left behind whenever an error is returned, except with [`Refusal::NotPutBack`].
pub fn fork(
    agent: &dyn AgentStore,
    state: &StateDir,
    session: &Session,
    seen: &History,
    n: u32,
) -> Result<String> {
    time_of_writing()?;
    fork::fork(agent, state, session, seen, n, Proof::Turns)
}

/// Makes a new session of a damaged one's turns that end before the first damage: as many as can be proved
/// to be in it alone. Returns its id and how many turns it has.
///
/// # Errors
/// [`Refusal::NothingToRescue`]. The damaged session is as before in any case, and nothing is left behind
/// whenever an error is returned.
pub fn rescue(
    agent: &dyn AgentStore,
    state: &StateDir,
    session: &Session,
    seen: &History,
) -> Result<(String, u32)> {
    time_of_writing()?;
    let salvaged = seen.salvaged()?;
    let mut why = None;
    for n in (0..salvaged.turns.len() as u32).rev() {
        let keeps = salvaged.turns_kept(n + 1);
        match fork::fork(agent, state, session, &salvaged, n, Proof::Sound) {
            Ok(id) => return Ok((id, keeps)),
            // Behind a damage it may not be certain what belongs to the turn; before the turn it may be.
            Err(
                refusal @ (Refusal::NotAsPromised { .. } | Refusal::Ambiguous { .. } | Refusal::Lost { .. }),
            ) => {
                why.get_or_insert(refusal);
            }
            Err(refusal) => return Err(refusal),
        }
    }
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    Err(Refusal::NothingToRescue {
        why: format!("turns end before the damage, but what belongs to them alone cannot be proved{why}"),
        hint: None,
    })
}

/// A session of another project that holds the whole of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adopted {
    Now {
        id: String,
    },
    /// By an earlier call.
    Before {
        id: String,
    },
}

/// The id of the copy that [`adopt`] would find; changes nothing.
///
/// # Errors
/// What prevents reading turnfs's own state.
pub fn adopted_before(
    state: &StateDir,
    session: &Session,
    project: &Path,
    is_there: &dyn Fn(&str) -> bool,
) -> Result<Option<String>> {
    let Some(folder) = state::Folder::find(state, &session.key)? else { return Ok(None) };
    Ok(adopted::copies(&folder, project)?.into_iter().find(|id| is_there(id)))
}
