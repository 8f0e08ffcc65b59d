//! A mount point that can be used: the type cannot exist unless every check has passed.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use super::detach::{self, Detached};
use super::failure::Failure;
use super::made::Notes;
use crate::host::mountinfo::{self, MountEntry};
use crate::host::within;

/// How long a mount may take to answer before it counts as silent.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Symbolic links followed in the last component before we give up.
const LINKS: u32 = 16;

/// An empty directory, not in a store, with nothing mounted on it. If turnfs made it (this daemon, or an earlier
/// one that was killed), it goes when this is dropped (which fails harmlessly while something is mounted there
/// or lies in it).
#[derive(Debug)]
pub struct MountPoint {
    path: PathBuf,
    made: Option<Notes>,
}

/// What stands at a place where we are asked to mount.
#[derive(Debug)]
pub enum MountTarget {
    Free(MountPoint),
    /// Already a turnfs mount that answers.
    AlreadyMounted,
}

/// How a mounted file system behaves when asked for its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Alive,
    /// Its daemon has gone ("Transport endpoint is not connected").
    Dead,
    /// It belongs to somebody else.
    NotForUs,
    /// No answer in time.
    Silent,
}

impl MountPoint {
    /// Checks (and if missing makes) the directory at `path`, which [`resolve`] gave. `stores` are the
    /// places that must not be hidden and must not be mounted in. A dead mount of ours is cleared. `notes` tell
    /// what earlier daemons made.
    ///
    /// # Errors
    /// Why nothing can be mounted there. Nothing was made then.
    pub fn prepare(path: &Path, stores: &[PathBuf], notes: &Notes) -> Result<MountTarget, Failure> {
        let mounts = mountinfo::read()
            .map_err(|error| Failure::io("cannot read", Path::new("/proc/self/mountinfo"), error))?;
        if let Some(top) = mountinfo::top_at(&mounts, path) {
            match state_of(top)? {
                Answer::Alive => return Ok(MountTarget::AlreadyMounted),
                _ => clear_dead(top)?,
            }
        }
        let outside = path.parent().and_then(|parent| mountinfo::containing(&mounts, parent));
        if let Some(mount) = outside.filter(|mount| mount.is_turnfs()) {
            return Err(Failure::InsideMount { path: path.into(), mount: mount.mount_point.clone() });
        }
        for store in stores {
            let resolved = store.canonicalize();
            for place in [Some(store), resolved.as_ref().ok()].into_iter().flatten() {
                if mountinfo::is_within(path, place) {
                    return Err(Failure::InsideStore { path: path.into(), store: store.clone() });
                }
                if mountinfo::is_within(place, path) {
                    return Err(Failure::StoreInside { path: path.into(), store: store.clone() });
                }
            }
        }
        let made = make_or_check(path)?;
        if made {
            notes.put(path);
        }
        let made = (made || notes.has(path)).then(|| notes.clone());
        Ok(MountTarget::Free(MountPoint { path: path.into(), made }))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Some(notes) = &self.made {
            // Not empty or still busy: then it is not ours to remove.
            let _ = std::fs::remove_dir(&self.path);
            notes.remove(&self.path);
        }
    }
}

/// Whether we made the directory.
fn make_or_check(path: &Path) -> Result<bool, Failure> {
    let failed = |action| move |error| Failure::io(action, path, error);
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.is_dir() => return Err(Failure::NotADirectory { path: path.into() }),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().mode(0o700).create(path).map_err(failed("cannot make"))?;
            return Ok(true);
        }
        Err(error) => return Err(failed("cannot look at")(error)),
    }
    match std::fs::read_dir(path).map_err(failed("cannot read"))?.next() {
        None => Ok(false),
        Some(_) => Err(Failure::NotEmpty { path: path.into() }),
    }
}

/// What the mount at the place of ours is: alive, or dead; any other is an error.
fn state_of(mount: &MountEntry) -> Result<Answer, Failure> {
    let path = mount.mount_point.clone();
    if !mount.is_turnfs() {
        return Err(Failure::Foreign { path, fs_type: mount.fs_type.clone() });
    }
    // With --allow-root, another user's mount answers root, too.
    let ours = mount.user.is_none_or(|user| user == rustix::process::geteuid().as_raw());
    match if ours { ask(&path) } else { Answer::NotForUs } {
        answer @ (Answer::Alive | Answer::Dead) => Ok(answer),
        Answer::NotForUs => Err(Failure::OtherUser { path, user: mount.user.unwrap_or_default() }),
        Answer::Silent => Err(Failure::Silent { path }),
    }
}

fn clear_dead(mount: &MountEntry) -> Result<(), Failure> {
    log::warn!("clearing a dead turnfs mount at {}", mount.mount_point.display());
    match detach::detach_lazily(&mount.mount_point, mount.device)? {
        Detached::Cleanly | Detached::Lazily | Detached::GoneAlready => Ok(()),
    }
}

/// Asks a mount for the attributes of its root, in bounded time.
pub fn ask(path: &Path) -> Answer {
    let asked = path.to_owned();
    match within(ANSWER_LIMIT, move || rustix::fs::stat(&asked)) {
        Some(Ok(_)) => Answer::Alive,
        Some(Err(Errno::ACCESS | Errno::PERM)) => Answer::NotForUs,
        Some(Err(_)) => Answer::Dead,
        None => Answer::Silent,
    }
}

/// The path as mountinfo would name it: absolute, the parent resolved, a last component that is a
/// symbolic link followed. The last component itself is not opened: it may be a dead mount.
///
/// # Errors
/// When the parent is not there.
pub fn resolve(path: &Path) -> Result<PathBuf, Failure> {
    resolve_links(path, LINKS)
}

fn resolve_links(path: &Path, links_left: u32) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(path).map_err(|error| Failure::io("cannot find", path, error))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        // The root, or a name that ends with `..`.
        return absolute.canonicalize().map_err(|error| Failure::io("cannot find", &absolute, error));
    };
    let parent = parent.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::NoParent { parent: parent.into() },
        _ => Failure::io("cannot find", parent, error),
    })?;
    let resolved = parent.join(name);
    match std::fs::read_link(&resolved) {
        Ok(target) if links_left > 0 => resolve_links(&parent.join(target), links_left - 1),
        _ => Ok(resolved),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        (dir, path)
    }

    fn prepare(path: &Path, stores: &[PathBuf]) -> Result<MountTarget, Failure> {
        let state = tempfile::tempdir().unwrap();
        let mounts = super::super::claim::of_mounts(&crate::cut::StateDir::at(state.path())).unwrap();
        MountPoint::prepare(path, stores, &Notes::in_dir(mounts))
    }

    fn refusal(path: &Path, stores: &[PathBuf]) -> String {
        prepare(path, stores).unwrap_err().to_string()
    }

    #[test]
    fn only_an_empty_directory_outside_of_the_stores_is_a_mount_point() {
        let (_guard, base) = directory();
        let store = base.join("store");
        std::fs::create_dir_all(store.join("sessions")).unwrap();
        std::fs::create_dir(base.join("empty")).unwrap();
        std::fs::write(base.join("file"), "x").unwrap();
        let stores = [store.clone()];
        assert!(refusal(&base.join("file"), &stores).contains("is not a directory"));
        assert!(refusal(&store.join("sessions"), &stores).contains("inside the store"));
        assert!(refusal(&store, &stores).contains("inside the store"));
        assert!(refusal(&base, &stores).contains("would be hidden"));
        assert!(refusal(&base, &[]).contains("is not empty"));
        assert!(refusal(&base.join("file/x"), &[]).contains("cannot look at"));
        assert!(refusal(Path::new("/proc"), &[]).contains("another file system (proc)"));
        assert!(matches!(prepare(&base.join("empty"), &stores).unwrap(), MountTarget::Free(_)));
        assert!(base.join("empty").exists(), "a directory that was there stays");
        // A name that only begins like the store's is outside.
        assert!(matches!(prepare(&base.join("store2"), &stores).unwrap(), MountTarget::Free(_)));
    }

    #[test]
    fn a_store_behind_a_symbolic_link_is_seen() {
        let (_guard, base) = directory();
        std::fs::create_dir(base.join("real")).unwrap();
        symlink(base.join("real"), base.join("link")).unwrap();
        assert!(refusal(&base.join("real/mnt"), &[base.join("link")]).contains("inside the store"));
        assert!(!base.join("real/mnt").exists());
    }

    #[test]
    fn a_missing_directory_is_made_for_the_owner_only_and_removed_again() {
        let (_guard, base) = directory();
        let path = base.join("mnt");
        let MountTarget::Free(spot) = prepare(&path, &[]).unwrap() else { panic!("nothing is mounted") };
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
        drop(spot);
        assert!(!path.exists());
    }

    #[test]
    fn paths_are_resolved_as_mountinfo_names_them() {
        let (_guard, base) = directory();
        std::fs::create_dir(base.join("real")).unwrap();
        symlink("real", base.join("link")).unwrap();
        symlink("link/mnt", base.join("deep")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        let table = [
            ("real/mnt", "real/mnt"),
            ("link/mnt", "real/mnt"),
            ("link", "real"),
            ("deep", "real/mnt"),
            ("real/../link/mnt/", "real/mnt"),
            ("real/.", "real"),
            ("loop", "loop"),
        ];
        for (given, expected) in table {
            assert_eq!(resolve(&base.join(given)).unwrap(), base.join(expected), "{given}");
        }
        assert!(matches!(resolve(&base.join("no/mnt")), Err(Failure::NoParent { .. })));
        assert_eq!(resolve(Path::new("/")).unwrap(), Path::new("/"));
    }
}
