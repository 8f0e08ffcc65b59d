//! How a command ends: its exit code, or the message and hints on stderr.

use std::io;
use std::process::ExitCode;

use crate::daemon;
use crate::search::BadQuery;
use crate::service;
use crate::session::{AgentKind, Refusal};

/// A command's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    /// Refused or failed, and the reason is on stderr; or `check` found damage, or `search` nothing.
    Failed = 1,
    /// Wrong usage; or `check` could not run, or could not read everything and found no damage in the rest; or `search`
    /// could not run, or could not search everything and found nothing in the rest.
    NotRun = 2,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Mount(#[from] daemon::Failure),
    #[error(transparent)]
    Service(#[from] service::Failure),
    #[error("cannot tell where turnfs itself is: {0}")]
    NoProgram(io::Error),
    #[error("HOME is not set, so there is no default mount point")]
    NoDefaultMountPoint,
    #[error("--store {agent}={dir}: there is no such directory")]
    NoStoreAt { agent: AgentKind, dir: String },
    #[error("--store {agent}={dir} is given twice")]
    StoreTwice { agent: AgentKind, dir: String },
    #[error("--store names a place for {agent}, and --agents leaves {agent} out")]
    StoreNotWanted { agent: AgentKind },
    #[error("--project {dir}: there is no such directory, and no session was recorded for it")]
    NoSuchProject { dir: String },
    #[error("no sessions belong to {dir}")]
    NothingToCheck { dir: String },
    #[error("cannot tell the working directory: {0}")]
    NoWorkingDirectory(io::Error),
    #[error("the mount at {path} does not answer: its daemon hangs or is stopped")]
    SilentMount { path: String },
    #[error("the daemon of the mount at {path} is gone")]
    DeadMount { path: String },
    #[error("there is no directory {dir}, and no session was recorded for it")]
    NoSuchDirectory { dir: String, hint: String },
    #[error("no session has {text:?} in its title{no_directory}")]
    NoSuchTitle { text: String, no_directory: String, hint: String },
    #[error("no sessions of {dir}")]
    NoSessionHere { dir: String, hint: String },
    #[error("unknown command {name:?}")]
    UnknownCommand { name: String },
    #[error("{path} is not in a turnfs mount")]
    NotInAMount { path: String },
    #[error("{path} is not a session")]
    NotASession { path: String },
    #[error("{path} already has these sessions")]
    SamePlace { path: String },
    #[error("{path} still exists, so its project does not seem to have moved (EEXIST)")]
    OldIsThere { path: String },
    #[error("no sessions of {dir} are known")]
    NothingToAdopt { dir: String },
    #[error("{text:?} is not a session of {dir}")]
    NotOfProject { text: String, dir: String },
    #[error("cannot search: {0}")]
    BadQuery(#[from] BadQuery),
    #[error("cannot write {path}: {error}")]
    NotWritten { path: String, error: io::Error },
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl Failure {
    /// What to do next, as [`Refusal::hints`].
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Failure::Refused(refusal) => return refusal.hints(),
            Failure::Mount(failure) => return failure.hints(),
            Failure::Service(failure) => return failure.hints(),
            Failure::NoDefaultMountPoint => "name one: `turnfs mount DIR`".into(),
            Failure::NoSuchProject { .. } => "`turnfs ls --all` lists the projects that have sessions".into(),
            Failure::NothingToCheck { .. } => {
                "`turnfs check --all` checks every session, `turnfs check SESSION` a single one".into()
            }
            Failure::NoWorkingDirectory(_) => "name a directory".into(),
            Failure::SilentMount { path } | Failure::DeadMount { path } => {
                format!("`turnfs umount {path}` takes the mount away")
            }
            Failure::NoSuchDirectory { hint, .. }
            | Failure::NoSuchTitle { hint, .. }
            | Failure::NoSessionHere { hint, .. } => hint.clone(),
            Failure::UnknownCommand { .. } => "`turnfs help` lists the commands".into(),
            Failure::NotInAMount { .. } => "name a session by its id or directory name".into(),
            Failure::NotASession { .. } => "go one level deeper, or name a session by its id".into(),
            Failure::BadQuery(_) => "`turnfs help search` says how to write one".into(),
            Failure::OldIsThere { .. } => "copy anyway with --force".into(),
            Failure::NothingToAdopt { .. } => "`turnfs ls --all` lists all projects".into(),
            Failure::NoProgram(_)
            | Failure::NotWritten { .. }
            | Failure::NoStoreAt { .. }
            | Failure::StoreTwice { .. }
            | Failure::StoreNotWanted { .. }
            | Failure::SamePlace { .. }
            | Failure::NotOfProject { .. }
            | Failure::Output(_)
            | Failure::Json(_) => return Vec::new(),
        };
        vec![hint]
    }
}
