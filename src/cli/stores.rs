//! The stores that a command works on, and turnfs's own state.

use std::sync::Arc;

use super::args::StoreArgs;
use super::exit::Failure;
use super::output;
use crate::catalog::Catalog;
use crate::cut::{self, StateDir};
use crate::daemon;
use crate::host::Environment;
use crate::session::Refusal;

/// The catalog of the stores that the arguments name.
///
/// # Errors
/// If no store has a place (HOME is not set).
pub fn open(args: &StoreArgs) -> Result<Arc<Catalog>, Failure> {
    args.must_exist()?;
    let catalog = Catalog::for_one_command(&Environment::of_process(), &args.options());
    if catalog.stores().is_empty() {
        return Err(daemon::Failure::NoStore.into());
    }
    // Also before commands that only read: half a cut must not be shown as a session.
    match recovered_state() {
        Ok(_) | Err(Failure::Refused(Refusal::NotFound { .. })) => {}
        Err(failure) => {
            output::warn(&failure.to_string());
            failure.hints().iter().for_each(|hint| output::hint(hint));
        }
    }
    Ok(Arc::new(catalog))
}

/// turnfs's state directory as it is.
///
/// # Errors
/// If its place is not known (no HOME).
pub fn state() -> Result<StateDir, Failure> {
    Ok(StateDir::of(&Environment::of_process())?)
}

/// turnfs's state directory, after what a crash left half done in a store was finished or rolled back.
///
/// # Errors
/// If its place is not known, or it cannot be read.
pub fn recovered_state() -> Result<StateDir, Failure> {
    let state = state()?;
    for sentence in cut::recover(&state)? {
        output::warn(&sentence);
    }
    Ok(state)
}
