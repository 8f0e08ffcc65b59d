//! Starting the daemon in the background: ourselves once more, in a session of its own, and a pipe through
//! which it says that the mount answers, or why there is none.
//!
//! A fresh process instead of a fork: nothing of the starter (threads, locks, open files) lives on in it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::failure::Failure;
use super::log_file;
use super::readiness::{ALREADY, FAILED, READY};

/// How long a daemon may take to be ready.
const READY_LIMIT: Duration = Duration::from_secs(5);
/// How long a daemon that was not ready in time may take to undo what it did.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// What a daemon that was started said.
#[derive(Debug, PartialEq, Eq)]
pub enum Started {
    Ready { mountpoint: String },
    AlreadyMounted { mountpoint: String },
}

/// Runs ourselves with `args` (which make it report to its standard output) in the background, and waits
/// for its word. `state` is where its log is.
///
/// # Errors
/// The daemon's own reason, or that it said nothing in time; then it has been ended.
pub fn start(args: &[OsString], state: &Path, mountpoint: &Path) -> Result<Started, Failure> {
    // Not by name: that program may have been replaced since we were started.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("turnfs")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Until the daemon opens its log there is nothing that it would write here.
        .stderr(Stdio::null());
    crate::host::sys::detach(&mut command);
    let mut child =
        command.spawn().map_err(|error| Failure::io("cannot start", Path::new("/proc/self/exe"), error))?;
    let log = log_file::path(state);
    let word = first_line(&mut child, READY_LIMIT);
    match word {
        Word::Line(line) => understand(&line, log),
        Word::Ended => Err(Failure::EndedEarly { log }),
        Word::Late => {
            stop(&mut child);
            Err(Failure::NotReady { path: mountpoint.into(), seconds: READY_LIMIT.as_secs(), log })
        }
    }
}

enum Word {
    Line(String),
    Ended,
    Late,
}

fn first_line(child: &mut Child, limit: Duration) -> Word {
    let Some(stdout) = child.stdout.take() else { return Word::Ended };
    let read = move || {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).map(|_| line)
    };
    match crate::host::within(limit, read) {
        Some(Ok(line)) if line.ends_with('\n') => Word::Line(line),
        Some(_) => Word::Ended,
        None => Word::Late,
    }
}

fn understand(line: &str, log: PathBuf) -> Result<Started, Failure> {
    let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line, ""));
    match word {
        READY => Ok(Started::Ready { mountpoint: rest.into() }),
        ALREADY => Ok(Started::AlreadyMounted { mountpoint: rest.into() }),
        FAILED => {
            let mut parts = rest.split('\t').map(str::to_owned);
            Err(Failure::Reported { message: parts.next().unwrap_or_default(), hints: parts.collect() })
        }
        _ => Err(Failure::EndedEarly { log }),
    }
}

/// Ends a daemon that is not ready: asked first, so that it takes its mount away.
fn stop(child: &mut Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    let start = Instant::now();
    while start.elapsed() < STOP_LIMIT {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemons_word_is_understood() {
        let log = PathBuf::from("/s/turnfs.log");
        let understood = |line: &str| understand(line, log.clone()).map_err(|failure| failure.to_string());
        assert_eq!(understood("ready /a b\n"), Ok(Started::Ready { mountpoint: "/a b".into() }));
        assert_eq!(understood("already /a\n"), Ok(Started::AlreadyMounted { mountpoint: "/a".into() }));
        assert_eq!(understood("failed no such thing\n"), Err("no such thing".into()));
        assert_eq!(understood("thread main panicked\n"), Err("the daemon ended before it was ready".into()));
        let failure = understand("failed no such thing\tmake it\n", log).map_err(|failure| failure.hints());
        assert_eq!(failure, Err(vec!["make it".to_owned()]));
    }
}
