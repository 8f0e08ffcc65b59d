//! turnfs as a service of the user's systemd: its unit is written, enabled, started, asked about and removed again.
//!
//! Called by the command line only. `unit` is the unit file's text, `systemctl` asks systemd; the service itself is
//! `turnfs mount --foreground`, which tells systemd by notify when the mount answers (`daemon/readiness.rs`).

mod failure;
mod systemctl;
mod unit;

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use crate::cut::StateDir;
use crate::daemon::{self, Answer, Running};
use crate::host::{Environment, mountinfo};
pub use failure::Failure;
pub use systemctl::State;
use systemctl::UNIT;
pub use unit::Wanted;

/// How many lines of the service's log are shown.
const LOG_LINES: u32 = 5;

/// The service, whether it is installed or not.
#[derive(Clone, Debug)]
pub struct Service {
    /// Where its unit file is, or would be.
    place: PathBuf,
}

/// What `install` found or did.
#[derive(Debug)]
pub struct Installed {
    pub unit: PathBuf,
    pub mount_point: PathBuf,
    /// The unit file is new, or another one than before.
    pub written: bool,
    pub enabled: bool,
    /// It was started, or restarted.
    pub started: bool,
    /// A mount that was made by hand at that place was ended first.
    pub took_over: bool,
    /// The environment variables that are set in the unit.
    pub variables: Vec<&'static str>,
}

/// What `remove` found.
#[derive(Debug, PartialEq, Eq)]
pub enum Removed {
    Removed { unit: PathBuf },
    NotInstalled,
}

/// What stands at the place of the unit file.
#[derive(Debug, PartialEq, Eq)]
pub enum UnitFile {
    Absent,
    Ours {
        text: String,
    },
    /// Somebody else wrote it: it is left as it is.
    Foreign,
}

/// The service as it is now.
#[derive(Debug)]
pub struct Status {
    pub place: PathBuf,
    pub file: UnitFile,
    /// What systemd says, or why it cannot be asked.
    pub state: Result<State, Failure>,
    /// Where the service mounts; `None` if only systemd knows.
    pub mount_point: Option<PathBuf>,
    /// How the mount there answers; `None` where there is none.
    pub answer: Option<Answer>,
    /// The end of its log, oldest line first.
    pub log: Vec<String>,
}

impl Status {
    /// Whether everything is as it should be: installed, running, and its mount answers.
    pub fn is_well(&self) -> bool {
        let runs = self.state.as_ref().is_ok_and(State::is_active);
        self.file != UnitFile::Absent && runs && self.answer == Some(Answer::Alive)
    }
}

impl Service {
    /// The service of this user.
    ///
    /// # Errors
    /// When there is no HOME.
    pub fn of(env: &Environment) -> Result<Service, Failure> {
        // The XDG rules: a relative path counts as unset.
        let config = env.path("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
        let config = config.or_else(|| Some(env.home.as_ref()?.join(".config"))).ok_or(Failure::NoHome)?;
        Ok(Service { place: config.join("systemd/user").join(UNIT) })
    }

    /// Installs it, enables it and waits until its mount answers. What is so already is left alone.
    ///
    /// # Errors
    /// Why it does not run. Nothing was written if systemd cannot be asked, or if somebody else wrote the unit.
    pub fn install(&self, env: &Environment, wanted: &Wanted) -> Result<Installed, Failure> {
        let mount_point = daemon::resolve(&wanted.mount_point)?;
        systemctl::must_answer(&mount_point)?;
        let variables = unit::variables(env, &systemctl::environment()?);
        let text = unit::text(wanted, &mount_point, &variables)?;
        let written = match self.file()? {
            UnitFile::Foreign => return Err(Failure::Foreign { unit: self.place.clone() }),
            UnitFile::Ours { text: before } if before == text => false,
            UnitFile::Ours { .. } | UnitFile::Absent => {
                self.write(&text)?;
                systemctl::run(&["daemon-reload"])?;
                true
            }
        };
        let before = systemctl::state()?;
        let enabled = !before.is_enabled();
        if enabled {
            systemctl::run(&["enable", UNIT])?;
        }
        let runs = before.is_active() && answer(&mount_point) == Some(Answer::Alive);
        let started = written || !runs;
        let took_over = started && end_mount_by_hand(env, &mount_point, before.pid)?;
        if started {
            systemctl::start(LOG_LINES)?;
        }
        let variables = variables.into_iter().map(|(name, _)| name).collect();
        Ok(Installed {
            unit: self.place.clone(),
            mount_point,
            written,
            enabled,
            started,
            took_over,
            variables,
        })
    }

    /// How it is.
    ///
    /// # Errors
    /// When the unit file cannot be read.
    pub fn status(&self, env: &Environment) -> Result<Status, Failure> {
        let file = self.file()?;
        let usual = || Some(env.home.as_ref()?.join("turns"));
        let mount_point = match &file {
            UnitFile::Ours { text } => unit::mount_point(text),
            UnitFile::Foreign | UnitFile::Absent => usual(),
        };
        let state = systemctl::must_answer(mount_point.as_deref().unwrap_or(Path::new("/")))
            .and_then(|()| systemctl::state());
        let answer = mount_point.as_deref().and_then(answer);
        let log = systemctl::log(LOG_LINES);
        Ok(Status { place: self.place.clone(), file, state, mount_point, answer, log })
    }

    /// Stops it and removes what `install` made; what somebody else wrote stays.
    ///
    /// # Errors
    /// Why it is still there.
    pub fn remove(&self) -> Result<Removed, Failure> {
        match self.file()? {
            UnitFile::Absent => return Ok(Removed::NotInstalled),
            UnitFile::Foreign => return Err(Failure::Foreign { unit: self.place.clone() }),
            UnitFile::Ours { text } => {
                let mount_point = unit::mount_point(&text).unwrap_or_default();
                systemctl::must_answer(&mount_point)?;
            }
        }
        systemctl::run(&["disable", "--now", UNIT])?;
        fs::remove_file(&self.place).map_err(|error| Failure::io("cannot remove", &self.place, error))?;
        systemctl::run(&["daemon-reload"])?;
        // Of a service that had failed; of another one systemd says that there is nothing to reset.
        let _ = systemctl::run(&["reset-failed", UNIT]);
        Ok(Removed::Removed { unit: self.place.clone() })
    }

    fn file(&self) -> Result<UnitFile, Failure> {
        let failed = |error| Failure::io("cannot read", &self.place, error);
        match self.place.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(UnitFile::Absent),
            Err(error) => Err(failed(error)),
            // A link, to /dev/null (masked) or to somebody's collection of units.
            Ok(facts) if !facts.is_file() => Ok(UnitFile::Foreign),
            Ok(_) => {
                let text = fs::read(&self.place).map_err(failed)?;
                Ok(match String::from_utf8(text) {
                    Ok(text) if unit::is_ours(&text) => UnitFile::Ours { text },
                    Ok(_) | Err(_) => UnitFile::Foreign,
                })
            }
        }
    }

    /// All of it or nothing: systemd may read it at any time.
    fn write(&self, text: &str) -> Result<(), Failure> {
        let failed = |error| Failure::io("cannot write", &self.place, error);
        let dir = self.place.parent().unwrap_or(Path::new("/"));
        let write = || -> io::Result<()> {
            fs::create_dir_all(dir)?;
            let mut file = tempfile::NamedTempFile::new_in(dir)?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&self.place)?;
            Ok(())
        };
        write().map_err(failed)
    }
}

/// How the turnfs mount at `mount_point` answers; `None` where there is none.
fn answer(mount_point: &Path) -> Option<Answer> {
    let mounts = mountinfo::read().unwrap_or_default();
    let top = mountinfo::top_at(&mounts, mount_point)?;
    top.is_turnfs().then(|| daemon::ask(mount_point))
}

/// Ends the mount at `mount_point` if it answers and is not the service's own: the service could only say that
/// somebody has mounted there already. Whether there was one.
fn end_mount_by_hand(env: &Environment, mount_point: &Path, service: Option<u32>) -> Result<bool, Failure> {
    if answer(mount_point) != Some(Answer::Alive) {
        return Ok(false);
    }
    if Running::ask(mount_point).is_some_and(|running| Some(running.pid) == service) {
        return Ok(false);
    }
    daemon::umount(StateDir::of(env).ok().as_ref(), mount_point)?;
    Ok(true)
}
