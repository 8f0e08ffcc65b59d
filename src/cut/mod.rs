//! Cuts: plan, journal, verify, apply, verify, commit. The only code that writes into a store.
//!
//! An agent's folder says what to do as a list of steps (`session::Step`); this folder makes them durable,
//! reversible and safe against a crash, for every store alike. Called by `fs` (control files) and `cli`.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::agents::Environment;
use crate::session::{History, Refusal, Result, Session, SessionKey, Turn};

/// turnfs's own state directory: journals, backups, locks. 0700; files 0600.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// `$XDG_STATE_HOME/turnfs`, or `~/.local/state/turnfs`; made when first written to.
    ///
    /// # Errors
    /// When neither is set.
    pub fn of(env: &Environment) -> Result<StateDir> {
        let _ = env;
        Err(Refusal::Internal { what: "not built yet".into() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

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

/// An undo that can still be read under `undone/` (and perhaps redone).
#[derive(Clone, Debug)]
pub struct Undone {
    /// From 1, growing for the life of the session; never used again.
    pub number: u32,
    pub at: Timestamp,
    /// The removed turns, with their numbers, spans and sizes as they were.
    pub turns: Vec<Turn>,
    /// The backup's directory.
    pub dir: PathBuf,
}

/// Removes turn `n` and everything after it from `session`. `seen` is the view that the caller decided
/// on: if the content differs from it now, the cut is refused. Blocks until it is durable.
///
/// # Errors
/// The store is as before whenever an error is returned.
pub fn undo(state: &StateDir, session: &Session, seen: &History, n: u32, force: bool) -> Result<UndoDone> {
    let _ = (state, session, seen, n, force);
    Err(Refusal::Internal { what: "not built yet".into() })
}

/// Brings back what an undo removed, byte for byte: the latest, or the one with this number.
/// Returns its number and how many turns came back.
///
/// # Errors
/// [`Refusal::NothingToRedo`]; [`Refusal::MovedOn`] when anything changed since. The store is as before.
pub fn redo(state: &StateDir, session: &Session, number: Option<u32>, force: bool) -> Result<(u32, u32)> {
    let _ = (state, session, number, force);
    Err(Refusal::Internal { what: "not built yet".into() })
}

/// Makes a new session with the turns 0..=n of `session`; returns its id.
///
/// # Errors
/// Nothing is left behind whenever an error is returned.
pub fn fork(state: &StateDir, session: &Session, seen: &History, n: u32) -> Result<String> {
    let _ = (state, session, seen, n);
    Err(Refusal::Internal { what: "not built yet".into() })
}

/// The undos of a session that can be read, oldest first. Costs one readdir when there are none.
///
/// # Errors
/// What prevents reading turnfs's own state.
pub fn undone(state: &StateDir, key: &SessionKey) -> Result<Vec<Undone>> {
    let _ = (state, key);
    Ok(Vec::new())
}

/// The record bytes of a removed turn.
///
/// # Errors
/// What prevents reading the backup.
pub fn undone_span(undone: &Undone, turn: &Turn) -> Result<Vec<u8>> {
    let _ = (undone, turn);
    Err(Refusal::Internal { what: "not built yet".into() })
}

/// Finishes or rolls back what a crash left half done; one sentence for each. Called at every start.
///
/// # Errors
/// What prevents reading turnfs's own state.
pub fn recover(state: &StateDir) -> Result<Vec<String>> {
    let _ = state;
    Ok(Vec::new())
}
