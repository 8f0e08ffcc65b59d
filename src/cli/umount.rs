//! `turnfs umount`.

use super::args::UmountArgs;
use super::exit::{Exit, Failure};
use super::output;
use crate::cut::StateDir;
use crate::daemon::{self, Detached};
use crate::host::Environment;

pub fn run(args: &UmountArgs) -> Result<Exit, Failure> {
    // Without a state directory there is only no way to see when the daemon has gone.
    let state = StateDir::of(&Environment::of_process()).ok();
    let how = daemon::umount(state.as_ref(), &args.mountpoint)?;
    if how == Detached::Lazily {
        output::warn("a program was still using the mount, so it was detached: its open files end now");
    }
    Ok(Exit::Done)
}
