//! The host outside the stores: where a path leads now, what is mounted, which processes run and what they
//! hold, and the environment that this one was started with. Used by everything that asks about what no store
//! tells.
//!
//! A path can lie on a file system that answers never. Whoever waits for a network mount can be let go, so
//! that is bounded in time; whoever waits for a FUSE file system cannot be killed, not even at the end of the
//! process, so one that nothing here relies on anyway is not touched at all.

mod environment;
pub mod locks;
pub mod mountinfo;
pub mod processes;
pub mod sys;
pub mod work_tree;

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

pub use environment::Environment;
use mountinfo::{Device, MountEntry};

/// How long a command waits for the host.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How many symlinks are followed, as by the kernel.
const MOST_LINKS: u32 = 40;

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// To this place, which is there. No symlink is left in it.
    Leads(PathBuf),
    /// To this place, and nothing is there.
    Missing(PathBuf),
    /// It was not followed beyond this place, which is not touched.
    Untouched(PathBuf),
}

impl Resolution {
    /// The resolved path of something that is there.
    pub fn there(self) -> Option<PathBuf> {
        match self {
            Resolution::Leads(place) => Some(place),
            Resolution::Missing(_) | Resolution::Untouched(_) => None,
        }
    }
}

/// What may be touched.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Resolved places that are used anyway: their file systems may be looked at.
    relied_on: Vec<PathBuf>,
    /// Resolved places that are never entered.
    avoided: Vec<PathBuf>,
}

impl Host {
    pub fn new(relied_on: impl IntoIterator<Item = PathBuf>, avoided: Vec<PathBuf>) -> Host {
        Host {
            relied_on: relied_on.into_iter().filter_map(|place| place.canonicalize().ok()).collect(),
            avoided,
        }
    }

    /// For a command: its HOME and the directory that it was started in.
    pub fn of_process() -> Host {
        // Either may lie in a mount that does not answer.
        let resolved = |place: PathBuf| within(PATIENCE, move || place.canonicalize().ok()).flatten();
        let own = std::env::home_dir().into_iter().chain(std::env::current_dir());
        Host { relied_on: own.filter_map(resolved).collect(), avoided: Vec::new() }
    }

    /// Where `path` (absolute) leads. As slow as the slowest file system on the way that may be looked at.
    pub fn way(&self, path: &Path) -> Resolution {
        self.resolve_among(path, &mountinfo::read().unwrap_or_default())
    }

    /// What is there, with its path resolved. A place that does not answer within [`PATIENCE`] counts as not there.
    pub fn resolved(&self, path: &Path) -> Option<PathBuf> {
        let (host, path) = (self.clone(), path.to_owned());
        within(PATIENCE, move || host.way(&path).there()).flatten()
    }

    fn resolve_among(&self, path: &Path, mounts: &[MountEntry]) -> Resolution {
        let relied_on = self.relied_on.iter().filter_map(|place| mountinfo::containing(mounts, place));
        let relied_on: Vec<Device> = relied_on.map(|mount| mount.device).collect();
        let is_barred = |place: &Path| {
            self.avoided.iter().any(|avoided| avoided == place)
                || mountinfo::top_at(mounts, place).is_some_and(|mount| {
                    mount.fs_type.starts_with("fuse")
                        && !mount.is_turnfs()
                        && !relied_on.contains(&mount.device)
                })
        };
        let mut place = PathBuf::from("/");
        let mut rest = parts(path);
        let mut links = 0;
        while let Some(part) = rest.pop() {
            if part == ".." {
                place.pop();
                continue;
            }
            let next = place.join(&part);
            if is_barred(&next) {
                return Resolution::Untouched(next);
            }
            let missing = |rest: Vec<OsString>| {
                let rest: PathBuf = rest.into_iter().rev().collect();
                Resolution::Missing(if rest.as_os_str().is_empty() { next.clone() } else { next.join(rest) })
            };
            let Ok(facts) = next.symlink_metadata() else { return missing(rest) };
            if !facts.is_symlink() {
                place = next;
                continue;
            }
            links += 1;
            let Ok(target) = next.read_link() else { return missing(rest) };
            if links > MOST_LINKS {
                return missing(rest);
            }
            if target.is_absolute() {
                place = PathBuf::from("/");
            }
            rest.extend(parts(&target));
        }
        Resolution::Leads(place)
    }
}

/// The paths that a directory can stand for where paths are recorded as somebody spelled them: as given and as
/// found out otherwise (resolved, for example), in this order, each once.
pub fn spellings<const N: usize>(given: &Path, others: [Option<PathBuf>; N]) -> Vec<PathBuf> {
    let mut paths = vec![given.to_owned()];
    for other in others.into_iter().flatten() {
        if !paths.contains(&other) {
            paths.push(other);
        }
    }
    paths
}

/// The path without `.` and `..`, as `cd` counts them; nothing is resolved on disk.
pub fn lexically_normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// The names of a path, last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

/// The answer of `look`, if there is one within `limit`; else a thread is left waiting for it, for a system call on a
/// mount that hangs cannot be given up.
pub fn within<T: Send + 'static>(limit: Duration, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (answer, answered) = mpsc::channel();
    let look = move || {
        // Nobody may be waiting any more.
        let _ = answer.send(look());
    };
    std::thread::Builder::new().name("host".into()).stack_size(256 * 1024).spawn(look).ok()?;
    answered.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn a_path_leads_where_the_kernel_says_it_does() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("real/below")).unwrap();
        std::fs::write(base.join("file"), "").unwrap();
        for (target, name) in
            [("real", "link"), ("loop", "loop"), ("nowhere", "dangling"), ("../link/../real", "real/up")]
        {
            std::os::unix::fs::symlink(target, base.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(base.join("link"), base.join("twice")).unwrap();
        let host = Host::default();
        for name in [
            "",
            "real",
            "link",
            "link/below",
            "twice/below",
            "real/up/below",
            "file",
            "link/../real",
            "real/./below",
        ] {
            let path = base.join(name);
            assert_eq!(host.way(&path), Resolution::Leads(path.canonicalize().unwrap()), "{name}");
        }
        for (name, place) in
            [("gone/x", "gone/x"), ("dangling/x", "nowhere/x"), ("dangling", "nowhere"), ("file/x", "file/x")]
        {
            assert_eq!(host.way(&base.join(name)), Resolution::Missing(base.join(place)), "{name}");
        }
        assert!(matches!(host.way(&base.join("loop")), Resolution::Missing(_)));
    }

    #[test]
    fn a_foreign_fuse_mount_and_what_is_avoided_are_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("remote/home")).unwrap();
        std::os::unix::fs::symlink("remote/home", base.join("link")).unwrap();
        let line =
            |kind: &str| format!("9 1 0:99 / {} rw - {kind} x rw,user_id=0\n", base.join("remote").display());
        let way = |host: &Host, kind: &str, name: &str| {
            host.resolve_among(&base.join(name), &mountinfo::parse(line(kind).as_bytes()))
        };
        let there = Resolution::Leads(base.join("remote/home"));
        for name in ["remote/home", "link", "link/home"] {
            assert_eq!(
                way(&Host::default(), "fuse.sshfs", name),
                Resolution::Untouched(base.join("remote")),
                "{name}"
            );
        }
        for kind in ["nfs4", "ext4", "fuse.turnfs"] {
            assert_eq!(way(&Host::default(), kind, "link"), there, "{kind}");
        }
        let relying = Host::new([base.join("remote/home")], Vec::new());
        assert_eq!(way(&relying, "fuse.gocryptfs", "link"), there);
        let avoiding = Host::new([], vec![base.join("remote")]);
        assert_eq!(way(&avoiding, "ext4", "link"), Resolution::Untouched(base.join("remote")));
    }
}
