//! What stands now at the path that a session records as its project. Only for display: which sessions a
//! project has is decided by what is recorded, never by this.
//!
//! A recorded path can lie on a network mount that answers never. So a file's size or a listing never asks;
//! reading `meta.json` does, in a thread of its own and for a bounded time, and nobody asks twice for a path
//! whose answer is still awaited.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, StatxFlags};

use crate::host::{Host, Resolution};

/// How long a reader waits for an answer.
const LIMIT: Duration = Duration::from_millis(300);
/// How long an answer is good enough.
const GOOD_FOR: Duration = Duration::from_secs(1);
/// How many questions may be open at once; more are not asked.
const MOST_OPEN: usize = 8;
/// How many answers are remembered.
const MOST_KNOWN: usize = 4096;

/// What is at a recorded path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Missing,
    /// A directory, and when it was made where the file system tells that.
    Directory {
        born: Option<Timestamp>,
    },
    /// Another place, reached over a symlink.
    LeadsTo(PathBuf),
    NoDirectory,
    /// It is not looked at.
    Untouched,
}

/// The state of a session's project in `meta.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProjectState {
    Present,
    Missing,
    /// A symlink is on the way: this is where the path leads now.
    Symlink(PathBuf),
    /// The directory was made after the session's last activity: it is not the one of the session.
    Replaced,
    /// Not looked at, or no answer in time.
    Unknown,
}

impl ProjectState {
    /// Of a session with this last activity.
    pub fn of(found: Option<Found>, updated: Timestamp) -> ProjectState {
        match found {
            None | Some(Found::Untouched) => ProjectState::Unknown,
            Some(Found::Missing) => ProjectState::Missing,
            Some(Found::LeadsTo(place)) => ProjectState::Symlink(place),
            Some(Found::Directory { born: Some(born) }) if born > updated => ProjectState::Replaced,
            Some(Found::Directory { .. }) => ProjectState::Present,
            Some(Found::NoDirectory) => ProjectState::Replaced,
        }
    }

    /// The value of `project_state` in `meta.json`.
    pub fn name(&self) -> &'static str {
        match self {
            ProjectState::Present => "present",
            ProjectState::Missing => "missing",
            ProjectState::Symlink(_) => "symlink",
            ProjectState::Replaced => "replaced",
            ProjectState::Unknown => "unknown",
        }
    }
}

#[derive(Default)]
struct Answers {
    known: HashMap<PathBuf, (Instant, Found)>,
    open: Vec<PathBuf>,
}

/// Asks what is at recorded paths, and keeps the answers.
pub(super) struct ProjectStates {
    host: Arc<Host>,
    answers: Arc<(Mutex<Answers>, Condvar)>,
}

impl ProjectStates {
    pub fn new(host: Arc<Host>) -> ProjectStates {
        ProjectStates { host, answers: Arc::default() }
    }

    /// The last answer, however old.
    pub fn last(&self, path: &Path) -> Option<Found> {
        self.answers.0.lock().known.get(path).map(|(_, found)| found.clone())
    }

    /// What is at `path` now; `None` if no answer comes in time.
    pub fn ask(&self, path: &Path) -> Option<Found> {
        let (answers, answered) = &*self.answers;
        let mut now = answers.lock();
        if let Some((at, found)) = now.known.get(path)
            && at.elapsed() < GOOD_FOR
        {
            return Some(found.clone());
        }
        if now.open.iter().any(|open| open == path) || now.open.len() >= MOST_OPEN {
            return None;
        }
        now.open.push(path.to_owned());
        let (asked, shared, host) = (path.to_owned(), self.answers.clone(), self.host.clone());
        let look = move || {
            let found = look(&host, &asked);
            let (answers, answered) = &*shared;
            let mut now = answers.lock();
            now.open.retain(|open| *open != asked);
            if now.known.len() >= MOST_KNOWN {
                now.known.clear();
            }
            now.known.insert(asked, (Instant::now(), found));
            answered.notify_all();
        };
        if std::thread::Builder::new().name("place".into()).stack_size(256 * 1024).spawn(look).is_err() {
            now.open.retain(|open| open != path);
            return None;
        }
        let end = Instant::now() + LIMIT;
        while now.open.iter().any(|open| open == path) {
            if answered.wait_until(&mut now, end).timed_out() {
                return None;
            }
        }
        now.known.get(path).map(|(_, found)| found.clone())
    }
}

fn look(host: &Host, path: &Path) -> Found {
    match host.way(path) {
        Resolution::Untouched(_) => return Found::Untouched,
        Resolution::Missing(place) if place == path => return Found::Missing,
        Resolution::Leads(place) | Resolution::Missing(place) if place != path => {
            return Found::LeadsTo(place);
        }
        Resolution::Leads(_) | Resolution::Missing(_) => {}
    }
    let wanted = StatxFlags::TYPE | StatxFlags::BTIME;
    let Ok(attrs) = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted) else {
        return Found::Missing;
    };
    if rustix::fs::FileType::from_raw_mode(u32::from(attrs.stx_mode)) != rustix::fs::FileType::Directory {
        return Found::NoDirectory;
    }
    let told = attrs.stx_mask & StatxFlags::BTIME.bits() != 0;
    let born = attrs.stx_btime;
    let born = Timestamp::new(born.tv_sec, i32::try_from(born.tv_nsec).unwrap_or(0)).ok();
    Found::Directory { born: born.filter(|_| told) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn a_directory_that_is_younger_than_the_last_activity_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let states = ProjectStates::new(Arc::new(Host::new([], vec![base.join("mount")])));
        std::fs::create_dir(base.join("app")).unwrap();
        std::fs::write(base.join("file"), "").unwrap();
        std::os::unix::fs::symlink("app", base.join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", base.join("dangling")).unwrap();
        let now = crate::session::now();
        let hour = jiff::SignedDuration::from_hours(1);
        let of = |name: &str, updated| ProjectState::of(states.ask(&base.join(name)), updated);
        assert_eq!(of("app", now.saturating_add(hour).unwrap()), ProjectState::Present);
        if let Some(Found::Directory { born: None }) = states.ask(&base.join("app")) {
            eprintln!("SKIPPED: this file system does not tell when a directory was made");
        } else {
            assert_eq!(of("app", now.saturating_sub(hour).unwrap()), ProjectState::Replaced);
        }
        assert_eq!(of("gone", now), ProjectState::Missing);
        assert_eq!(of("file", now), ProjectState::Replaced);
        assert_eq!(of("link", now), ProjectState::Symlink(base.join("app")));
        assert_eq!(of("dangling", now), ProjectState::Symlink(base.join("nowhere")));
        assert_eq!(of("mount/x", now), ProjectState::Unknown, "our own mount is never looked at");
        assert_eq!(states.last(&base.join("never/asked")), None);
    }
}
