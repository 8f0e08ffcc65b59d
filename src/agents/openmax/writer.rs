//! Who has a session open. Facts: `docs/stores/openmax.md`, "4. Locks".
//!
//! Newer clients hold `<id>.lock`; that lock is never tried here, since even a shared one for an instant
//! makes a client that starts fail. /proc/locks tells who has it. Older clients hold nothing: a process of
//! that name that works in the project is the only sign of them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::layout::Files;
use crate::session::{AgentKind, Session, Writer};

/// How long /proc is searched at most.
const TIME: Duration = Duration::from_millis(100);
/// How many processes are looked at, at most.
const ENTRIES: usize = 20_000;

pub(super) fn writer(session: &Session) -> Option<Writer> {
    claim(session).or_else(|| process(session))
}

/// The holder of the session's lock file.
fn claim(session: &Session) -> Option<Writer> {
    let lock = session.key.root.join(Files::of(&session.key).lock);
    let facts = std::fs::symlink_metadata(lock).ok()?;
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (rustix::fs::major(facts.dev()), rustix::fs::minor(facts.dev()));
    let pid = table.lines().find_map(|line| holder(line, major, minor, facts.ino()))?;
    let evidence = "has it open and holds its lock".to_owned();
    // A holder in another pid namespace has no number here.
    Some(Writer { agent: AgentKind::OpenMax, pid: u32::try_from(pid).ok().filter(|pid| *pid > 0), evidence })
}

/// The process of a line of /proc/locks, if it holds this file by flock and exclusively:
/// `1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`. A line with `->` only waits.
fn holder(line: &str, major: u32, minor: u32, inode: u64) -> Option<i64> {
    let mut words = line.split_whitespace().skip(1);
    if (words.next()?, words.next()?, words.next()?) != ("FLOCK", "ADVISORY", "WRITE") {
        return None;
    }
    let pid = words.next()?.parse().ok()?;
    let mut file = words.next()?.split(':');
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let found = (hex(file.next()?)?, hex(file.next()?)?, file.next()?.parse::<u64>().ok()?);
    (found == (major, minor, inode)).then_some(pid)
}

/// An openmax process that works in the session's project. The project itself is never touched: it may be
/// on a dead network mount.
fn process(session: &Session) -> Option<Writer> {
    let project = session.project()?;
    let start = Instant::now();
    let own = std::process::id();
    let uid = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir("/proc").ok()?.flatten().take(ENTRIES) {
        if start.elapsed() > TIME {
            return None;
        }
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let proc = entry.path();
        if pid == own || !is_openmax(&proc) || !entry.metadata().is_ok_and(|facts| facts.uid() == uid) {
            continue;
        }
        if std::fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd == project) {
            let evidence = format!("works in {}", project.display());
            return Some(Writer { agent: AgentKind::OpenMax, pid: Some(pid), evidence });
        }
    }
    None
}

fn is_openmax(proc: &Path) -> bool {
    let named = |text: &[u8]| Path::new(OsStr::from_bytes(text)).file_name() == Some(OsStr::new("openmax"));
    let name = std::fs::read(proc.join("comm")).unwrap_or_default();
    let command_line = std::fs::read(proc.join("cmdline")).unwrap_or_default();
    named(name.trim_ascii()) || command_line.split(|byte| *byte == 0).next().is_some_and(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_holder_of_the_very_file_is_a_writer() {
        let table = [
            ("1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF", Some(1234)),
            ("1: FLOCK  ADVISORY  WRITE 0 08:01:5678 0 EOF", Some(0)),
            ("1: FLOCK  ADVISORY  READ  1234 08:01:5678 0 EOF", None),
            ("1: POSIX  ADVISORY  WRITE 1234 08:01:5678 0 EOF", None),
            ("1: -> FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF", None),
            ("1: FLOCK  ADVISORY  WRITE 1234 08:02:5678 0 EOF", None),
            ("1: FLOCK  ADVISORY  WRITE 1234 08:01:5679 0 EOF", None),
            ("", None),
        ];
        for (line, expected) in table {
            assert_eq!(holder(line, 8, 1, 5678), expected, "{line}");
        }
    }
}
