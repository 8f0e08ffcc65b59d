//! Why the service cannot be installed, asked or removed: one sentence each, and hints that say what to do.

use std::io;
use std::path::{Path, PathBuf};

use crate::daemon;
use crate::render::shell_word;

/// Why the service is not as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("there is no place for a unit, because HOME is not set")]
    NoHome,
    #[error("this machine is not run by systemd, so it has no services of users")]
    NoSystemd { login: String },
    /// `why`: systemctl's own words.
    #[error("your user's systemd does not answer ({why})")]
    NoUserManager { why: String, user: u32, login: String },
    #[error("{} was not written by `turnfs service install`, so it stays as it is", .unit.display())]
    Foreign { unit: PathBuf },
    #[error("{what:?} cannot be written into a unit: it is not UTF-8, or has control characters")]
    NotForAUnit { what: String },
    #[error("`systemctl --user {command}` failed: {why}")]
    Systemctl { command: String, why: String },
    #[error("the service is installed, but it does not start: {why}")]
    NotStarted { why: String },
    #[error("{action} {}: {error}", .path.display())]
    Io { action: &'static str, path: PathBuf, error: io::Error },
    #[error(transparent)]
    Mount(#[from] daemon::Failure),
}

impl Failure {
    pub(super) fn io(action: &'static str, path: &Path, error: io::Error) -> Failure {
        Failure::Io { action, path: path.to_owned(), error }
    }

    /// What to do next.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Failure::NoHome => vec!["set HOME".into()],
            Failure::NoSystemd { login } => vec![at_login(login)],
            Failure::NoUserManager { user, login, .. } => vec![
                format!(
                    "after `su` or `sudo`, log in as the user itself, or run `export XDG_RUNTIME_DIR=/run/user/{user}` first"
                ),
                at_login(login),
            ],
            Failure::Foreign { unit } => {
                let unit = shell_word(unit.as_os_str());
                vec![format!("move it away (`mv {unit} {unit}.old`), then run the command again")]
            }
            Failure::NotStarted { .. } => vec![
                "`turnfs service status` shows its log".into(),
                "when that is mended, run `turnfs service install` again".into(),
            ],
            Failure::Mount(failure) => failure.hints(),
            Failure::NotForAUnit { .. } | Failure::Systemctl { .. } | Failure::Io { .. } => Vec::new(),
        }
    }
}

fn at_login(login: &str) -> String {
    format!("without a service, mount at login: add the line `{login}` to ~/.profile")
}
