//! Looks at the host's own directory tree, only to answer a name that no recorded project explains: is it
//! a symlink that leads to one? Bounded in time, because a dead network mount answers never.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// How long a caller waits for the host.
const LIMIT: Duration = Duration::from_millis(300);
/// How long a command waits for the host, which nobody else waits for meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
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

/// The answer of `look`, if the host gives one within 2 s; else a thread is left waiting. For commands.
pub fn within<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (answer, answered) = mpsc::channel();
    let look = move || {
        // Nobody may be waiting any more.
        let _ = answer.send(look());
    };
    std::thread::Builder::new().name("host".into()).spawn(look).ok()?;
    answered.recv_timeout(PATIENCE).ok()
}

/// The host's tree, without what is below our own mount.
pub(super) struct Host {
    /// As given and as resolved.
    own: Vec<PathBuf>,
    hanging: Arc<AtomicUsize>,
}

impl Host {
    pub fn new(mountpoint: &Path) -> Host {
        let mut own = vec![mountpoint.to_path_buf()];
        own.extend(mountpoint.canonicalize().ok());
        own.dedup();
        Host { own, hanging: Arc::default() }
    }

    /// What is at `path`; nothing, if it lies in our mount or the answer takes more than 300 ms.
    pub fn look(&self, path: &Path) -> Found {
        if self.is_own(path) || self.hanging.load(Ordering::Relaxed) >= MAX_HANGING {
            return Found::Nothing;
        }
        let (answer, answered) = mpsc::channel();
        let hanging = self.hanging.clone();
        let asked = path.to_path_buf();
        hanging.fetch_add(1, Ordering::Relaxed);
        let look = move || {
            // Nobody may be waiting any more.
            let _ = answer.send(look(&asked));
            hanging.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("host".into()).stack_size(256 * 1024).spawn(look).is_err() {
            self.hanging.fetch_sub(1, Ordering::Relaxed);
            return Found::Nothing;
        }
        match answered.recv_timeout(LIMIT) {
            Ok(Found::LinkTo(target)) if self.is_own(&target) => Found::Nothing,
            Ok(found) => found,
            Err(_) => Found::Nothing,
        }
    }

    fn is_own(&self, path: &Path) -> bool {
        self.own.iter().any(|own| path.starts_with(own))
    }
}

fn look(path: &Path) -> Found {
    let Ok(found) = path.symlink_metadata() else { return Found::Nothing };
    if !found.is_dir() && !found.is_symlink() {
        return Found::Nothing;
    }
    // The symlink may stand further up: where one is a recorded project itself, it was not answered as a link.
    match path.canonicalize() {
        Ok(target) if target == path => Found::Directory,
        Ok(target) if target.is_dir() => Found::LinkTo(target),
        _ => Found::Nothing,
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
        let host = Host::new(&base.join("mount"));
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
        let host = Host::new(&mount);
        assert_eq!(host.look(&mount), Found::Nothing);
        assert_eq!(host.look(&mount.join("inside")), Found::Nothing);
        assert_eq!(host.look(&base.join("link")), Found::Nothing);
    }
}
