//! Asking the user's systemd, by its own program: the interface that is stable, and the one that works wherever
//! systemd does.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::failure::Failure;
use super::unit;

/// The service's name.
pub(super) const UNIT: &str = "turnfs.service";

/// systemd's view of the service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// `active`, `inactive`, `failed`, `activating` ...
    pub active: String,
    /// `enabled`, `disabled`, empty where there is no such unit ...
    pub enabled: String,
    /// Its main process.
    pub pid: Option<u32>,
    /// When it last became active, in systemd's words; empty if never.
    pub since: String,
    /// Which file is its unit; empty if none.
    pub file: String,
    /// How often it was started again after a failure.
    pub restarts: u32,
}

impl State {
    pub fn is_active(&self) -> bool {
        self.active == "active"
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled == "enabled"
    }
}

/// Makes sure that the user's systemd answers. `mount_point`: for the hint what to do without one.
///
/// # Errors
/// [`Failure::NoSystemd`] or [`Failure::NoUserManager`].
pub(super) fn must_answer(mount_point: &Path) -> Result<(), Failure> {
    let login = unit::login_line(mount_point);
    let why = match call("systemctl", &["--user", "show-environment"]) {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => last_line(&output.stderr),
        Err(_) => return Err(Failure::NoSystemd { login }),
    };
    // sd_booted(3).
    if !Path::new("/run/systemd/system").is_dir() {
        return Err(Failure::NoSystemd { login });
    }
    Err(Failure::NoUserManager { why, user: rustix::process::getuid().as_raw(), login })
}

/// Runs `systemctl --user` with `args`; its standard output.
///
/// # Errors
/// What it said.
pub(super) fn run(args: &[&str]) -> Result<String, Failure> {
    let failed = |why: String| Failure::Systemctl { command: args.join(" "), why };
    let all: Vec<&str> = ["--user"].into_iter().chain(args.iter().copied()).collect();
    let output = call("systemctl", &all).map_err(|error| match error.kind() {
        ErrorKind::NotFound => failed("systemctl is not installed".into()),
        _ => failed(error.to_string()),
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(last_line(&output.stderr))),
    }
}

/// The environment that the user's systemd gives its services. (Values that need quotes keep them: no path that is
/// compared here has any.)
///
/// # Errors
/// When it cannot be asked.
pub(super) fn environment() -> Result<HashMap<String, String>, Failure> {
    Ok(pairs(&run(&["show-environment"])?))
}

/// How the service is.
///
/// # Errors
/// When systemd cannot be asked. A unit that is not there is no error.
pub(super) fn state() -> Result<State, Failure> {
    let properties =
        "--property=ActiveState,UnitFileState,MainPID,ActiveEnterTimestamp,FragmentPath,NRestarts";
    let mut told = pairs(&run(&["show", UNIT, properties])?);
    let mut take = |name: &str| told.remove(name).unwrap_or_default();
    Ok(State {
        active: take("ActiveState"),
        enabled: take("UnitFileState"),
        pid: take("MainPID").parse().ok().filter(|pid| *pid != 0),
        since: take("ActiveEnterTimestamp"),
        file: take("FragmentPath"),
        restarts: take("NRestarts").parse().unwrap_or(0),
    })
}

/// Starts the service (again), and waits until it says that it is ready.
///
/// # Errors
/// That it does not start, with the last line of its log, of which `lines` are looked at.
pub(super) fn start(lines: u32) -> Result<(), Failure> {
    // One that failed too often may be started again.
    let _ = run(&["reset-failed", UNIT]);
    match run(&["restart", UNIT]) {
        Ok(_) => Ok(()),
        Err(Failure::Systemctl { why, .. }) => {
            let own = log(lines)
                .into_iter()
                .rev()
                .find_map(|line| line.split_once("]: turnfs: ").map(|(_, sentence)| sentence.to_owned()));
            Err(Failure::NotStarted { why: own.unwrap_or(why) })
        }
        Err(other) => Err(other),
    }
}

/// The last lines of the service's log, oldest first; none where no journal is kept.
pub(super) fn log(lines: u32) -> Vec<String> {
    let lines = lines.to_string();
    let args = ["--user", "--unit", UNIT, "--lines", &lines, "--no-pager", "--quiet", "--output=short-iso"];
    let output = call("journalctl", &args).map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().map(str::to_owned).collect()
}

fn call(program: &str, args: &[&str]) -> std::io::Result<Output> {
    Command::new(program).args(args).env("LC_ALL", "C").stdin(Stdio::null()).output()
}

fn pairs(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn last_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given").trim().to_owned()
}
