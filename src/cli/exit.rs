//! How a command ends: its exit code, or the sentence on stderr.

use std::io;
use std::process::ExitCode;

use crate::daemon;
use crate::session::{AgentKind, Refusal};

/// A command's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done,
    /// Refused or failed; the reason is on stderr.
    Failed,
    /// `check` found damage.
    Damage,
    Usage,
    /// `check` could not run.
    CouldNotRun,
    /// `check` could not read everything, and found no damage in the rest.
    Incomplete,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed | Exit::Damage => 1,
            Exit::Usage | Exit::CouldNotRun | Exit::Incomplete => 2,
        })
    }
}

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Mount(#[from] daemon::Failure),
    #[error("HOME is not set, so there is no default mount point; name one")]
    NoDefaultMountPoint,
    #[error("--store {agent}={dir}: there is no such directory")]
    NoStoreAt { agent: AgentKind, dir: String },
    #[error("--store {agent}={dir} is given twice")]
    StoreTwice { agent: AgentKind, dir: String },
    #[error("--store names a place for {agent}, and --agents leaves {agent} out")]
    StoreNotWanted { agent: AgentKind },
    #[error(
        "--project {dir}: there is no such directory, and no session was recorded for it; `turnfs ls --all` lists the projects that have sessions"
    )]
    NoSuchProject { dir: String },
    #[error(
        "no sessions belong to {dir}; `turnfs check --all` checks every session, `turnfs check SESSION` a single one"
    )]
    NothingToCheck { dir: String },
    #[error("cannot tell the working directory: {0}; name a directory")]
    NoWorkingDirectory(io::Error),
    #[error(
        "the mount at {path} does not answer; its daemon hangs or is stopped: `turnfs umount {path}` takes it away"
    )]
    SilentMount { path: String },
    #[error("the daemon of the mount at {path} is gone; `turnfs umount {path}` takes the mount away")]
    DeadMount { path: String },
    #[error("there is no directory {dir}, and no session was recorded for it{near}")]
    NoSuchDirectory { dir: String, near: String },
    #[error("no sessions of {dir}{near}")]
    NoSessionHere { dir: String, near: String },
    #[error("unknown command {name:?}; `turnfs help` lists the commands")]
    UnknownCommand { name: String },
    #[error("{path} is in no turnfs mount; name a session by its id or directory name")]
    NotInAMount { path: String },
    #[error("{path} is not a session; go one level deeper, or name a session by its id")]
    NotASession { path: String },
    #[error("{path} already has these sessions")]
    SamePlace { path: String },
    #[error(
        "{path} still exists, so its project does not seem to have moved (EEXIST); copy anyway with --force"
    )]
    OldIsThere { path: String },
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
}
