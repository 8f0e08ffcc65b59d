//! `Node::HostLink`: looks at the host's own directory tree, only to answer a name that no recorded project
//! explains: is it a symlink that leads to one? Bounded in time, because a dead network mount answers never.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::host::{self, Host};

/// How long a caller waits for the host.
const LIMIT: Duration = Duration::from_millis(300);
/// How many looks may hang at once; more are answered "nothing there".
const MAX_HANGING: usize = 8;

/// What is at a path on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Directory,
    /// A symlink to a directory, by that directory's resolved path.
    LinkTo(PathBuf),
}

/// Looks at the host's tree, never at what is below our own mount.
pub(super) struct HostLinks {
    host: Arc<Host>,
    hanging: Arc<AtomicUsize>,
}

impl HostLinks {
    pub fn new(host: Arc<Host>) -> HostLinks {
        HostLinks { host, hanging: Arc::default() }
    }

    /// What is at `path`; nothing, if it lies in our mount or the answer takes more than 300 ms.
    pub fn look(&self, path: &Path) -> Found {
        if self.hanging.load(Ordering::Relaxed) >= MAX_HANGING {
            return Found::Nothing;
        }
        self.hanging.fetch_add(1, Ordering::Relaxed);
        let (host, hanging, asked) = (self.host.clone(), self.hanging.clone(), path.to_path_buf());
        let answer = host::within(LIMIT, move || {
            let found = look(&host, &asked);
            hanging.fetch_sub(1, Ordering::Relaxed);
            found
        });
        answer.unwrap_or(Found::Nothing)
    }
}

/// A symlink may stand further up: where one is a recorded project itself, it was not answered as a link.
fn look(host: &Host, path: &Path) -> Found {
    match host.way(path).there() {
        Some(place) if !place.is_dir() => Found::Nothing,
        Some(place) if place == path => Found::Directory,
        Some(place) => Found::LinkTo(place),
        None => Found::Nothing,
    }
}

/// The content of a symlink in the mount, in the directory that stands for the host's `from`, to the
/// directory that stands for the host's `to`. Both absolute and without `.` and `..`.
pub(super) fn relative(from: &Path, to: &Path) -> PathBuf {
    let shared = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(shared).map(|_| "..");
    let mut path: PathBuf = up.collect();
    path.extend(to.components().skip(shared));
    if path.as_os_str().is_empty() { ".".into() } else { path }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn links_are_relative_and_stay_in_the_mount() {
        for (from, to, expected) in [
            ("/home/ana", "/data/app", "../../data/app"),
            ("/home/ana", "/home/ana/app", "app"),
            ("/home/ana/x", "/home/ana", ".."),
            ("/home/ana", "/home/ana", "."),
            ("/", "/data", "data"),
            ("/home", "/", ".."),
            ("/home/an", "/home/ana", "../ana"),
        ] {
            let link = relative(Path::new(from), Path::new(to));
            assert_eq!(link, Path::new(expected), "{from} -> {to}");
            assert!(link.is_relative());
        }
    }

    #[test]
    fn only_directories_and_links_to_them_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("real")).unwrap();
        std::fs::write(base.join("file"), "").unwrap();
        std::os::unix::fs::symlink("real", base.join("link")).unwrap();
        std::os::unix::fs::symlink("file", base.join("to-file")).unwrap();
        std::os::unix::fs::symlink("loop", base.join("loop")).unwrap();
        let host = HostLinks::new(Arc::default());
        assert_eq!(host.look(&base.join("real")), Found::Directory);
        assert_eq!(host.look(&base.join("link")), Found::LinkTo(base.join("real")));
        std::fs::create_dir(base.join("real/below")).unwrap();
        assert_eq!(host.look(&base.join("link/below")), Found::LinkTo(base.join("real/below")));
        for name in ["file", "to-file", "loop", "absent"] {
            assert_eq!(host.look(&base.join(name)), Found::Nothing, "{name}");
        }
    }

    #[test]
    fn our_own_mount_is_never_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let mount = base.join("mount");
        std::fs::create_dir_all(mount.join("inside")).unwrap();
        std::os::unix::fs::symlink("mount/inside", base.join("link")).unwrap();
        let host = HostLinks::new(Arc::new(Host::new([], vec![mount.clone()])));
        assert_eq!(host.look(&mount), Found::Nothing);
        assert_eq!(host.look(&mount.join("inside")), Found::Nothing);
        assert_eq!(host.look(&base.join("link")), Found::Nothing);
    }
}
