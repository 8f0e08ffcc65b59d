//! Opening what lies in a store, and nothing else.
//!
//! Every path is resolved from a handle on the store's root, without following any symlink and without
//! leaving the root, so that a link planted in a store cannot make turnfs read or change foreign files.
//! Only regular files are opened, and never in a way that waits: a FIFO in a store must not hang a mount.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use super::stamp::{Ground, Stamp};
use crate::session::{Refusal, Result};

/// Set when the kernel (or a sandbox around us) does not offer openat2.
static WITHOUT_OPENAT2: AtomicBool = AtomicBool::new(false);

/// How a directory is held: without reading it, which whoever watches it would hear of each time.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// A store's root directory, held open.
#[derive(Debug)]
pub struct StoreDir {
    handle: OwnedFd,
    path: PathBuf,
    /// What stamps of files in it are worth.
    ground: Ground,
}

/// A name in a directory of a store.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub name: OsString,
    pub kind: EntryKind,
}

/// What a name stands for; symlinks are not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    Dir,
    File,
    Symlink,
    Other,
}

/// How long an open waits for a lease to be given back. A cut holds one for milliseconds, on a busy machine
/// and a slow disk for seconds.
const LEASE_PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

impl StoreDir {
    /// Opens a store's root; the root itself may be reached through symlinks, the user named it.
    /// `None` if it is not there.
    ///
    /// # Errors
    /// What prevents opening it as a directory.
    pub fn open(root: &Path) -> Result<Option<StoreDir>> {
        match rustix::fs::openat(CWD, root, DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(handle) => {
                let ground = Ground::of(&handle);
                let dir = StoreDir { handle, path: root.to_owned(), ground };
                dir.must_be_readable()?;
                Ok(Some(dir))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Refusal::Io { action: "cannot open", path: root.to_owned(), errno }),
        }
    }

    /// Opens a regular file for reading. `None` if it is not there.
    ///
    /// # Errors
    /// ELOOP for a symlink anywhere on the way, EINVAL for what is not a regular file, and what the
    /// system reports.
    pub fn file(&self, file: &Path) -> Result<Option<File>> {
        // Without NONBLOCK the open of a FIFO waits for its other end. It has no effect on regular files.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Some(handle) = self.resolve("cannot open", file, flags)? else { return Ok(None) };
        let opened = File::from(handle);
        match rustix::fs::fstat(&opened) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile => Ok(Some(opened)),
            Ok(_) => Err(self.refuse("cannot read (not a regular file)", file, Errno::INVAL)),
            Err(errno) => Err(self.refuse("cannot look at", file, errno)),
        }
    }

    /// What `file` is; a symlink as its last component is not followed, one before it is refused.
    /// `None` if nothing is there.
    ///
    /// # Errors
    /// What the system reports.
    pub fn stat(&self, file: &Path) -> Result<Option<Stamp>> {
        super::metrics::count_stats(1);
        let Some((parent, name)) = file.parent().zip(file.file_name()) else {
            return Stamp::of(&self.handle)
                .map(Some)
                .map_err(|error| Refusal::io("cannot look at", &self.path, error));
        };
        let opened;
        let parent = if parent.as_os_str().is_empty() {
            self.handle.as_fd()
        } else {
            let Some(handle) = self.resolve("cannot look at", parent, DIRECTORY)? else { return Ok(None) };
            opened = handle;
            opened.as_fd()
        };
        match Stamp::at(parent, Path::new(name), &self.ground) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(self.refuse("cannot look at", file, errno)),
        }
    }

    /// As [`StoreDir::stat`], in one system call. Only for paths whose directories the caller has just seen
    /// to be directories: a symlink that takes their place meanwhile would be followed, so the answer is
    /// good for comparing and for nothing else.
    ///
    /// # Errors
    /// What the system reports.
    pub fn stat_to_compare(&self, file: &Path) -> Result<Option<Stamp>> {
        super::metrics::count_stats(1);
        match Stamp::at(&self.handle, file, &self.ground) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(self.refuse("cannot look at", file, errno)),
        }
    }

    /// Opens a directory of the store as a root of its own, so that many files in it cost no long paths.
    /// `None` if it is not there.
    ///
    /// # Errors
    /// ELOOP for a symlink anywhere on the way, and what the system reports.
    pub fn dir(&self, dir: &Path) -> Result<Option<StoreDir>> {
        let Some(handle) = self.resolve("cannot open", dir, DIRECTORY)? else { return Ok(None) };
        let dir = StoreDir { handle, path: self.path.join(dir), ground: self.ground };
        dir.must_be_readable()?;
        Ok(Some(dir))
    }

    /// An open with `O_PATH` asks for no permission. Told here, where a directory is opened, it is a problem of
    /// that directory.
    fn must_be_readable(&self) -> Result<()> {
        let readable = rustix::fs::accessat(&self.handle, ".", Access::READ_OK, AtFlags::EACCESS);
        readable.map_err(|errno| Refusal::Io { action: "cannot open", path: self.path.clone(), errno })
    }

    /// The names in this directory, sorted, without `.` and `..`.
    ///
    /// # Errors
    /// What prevents listing it.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let refuse = |errno| Refusal::Io { action: "cannot list", path: self.path.clone(), errno };
        let mut entries = Vec::new();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = rustix::fs::openat(&self.handle, ".", flags, Mode::empty()).map_err(refuse)?;
        for entry in Dir::new(listed).map_err(refuse)? {
            let entry = entry.map_err(refuse)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let mut found = kind(entry.file_type());
            if entry.file_type() == FileType::Unknown {
                // Some file systems do not say in the listing.
                let at = AtFlags::SYMLINK_NOFOLLOW;
                found = match rustix::fs::statx(&self.handle, entry.file_name(), at, StatxFlags::TYPE) {
                    Ok(stat) => kind(FileType::from_raw_mode(stat.stx_mode.into())),
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(refuse(errno)),
                };
            }
            entries.push(Entry { name: OsString::from_vec(name.to_vec()), kind: found });
        }
        entries.sort();
        Ok(entries)
    }

    /// The directory's own path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn refuse(&self, action: &'static str, file: &Path, errno: Errno) -> Refusal {
        Refusal::Io { action, path: self.path.join(file), errno }
    }

    /// Opens `file`, waiting at most [`LEASE_PATIENCE`] while a cut (or somebody else) has a lease on it.
    fn resolve(&self, action: &'static str, file: &Path, flags: OFlags) -> Result<Option<OwnedFd>> {
        let start = std::time::Instant::now();
        loop {
            match self.resolve_now(action, file, flags) {
                Err(Refusal::Io { errno: Errno::AGAIN, .. }) if start.elapsed() < LEASE_PATIENCE => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                result => return result,
            }
        }
    }

    fn resolve_now(&self, action: &'static str, file: &Path, flags: OFlags) -> Result<Option<OwnedFd>> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let names: Option<Vec<_>> = file
            .components()
            .map(|part| match part {
                Component::Normal(name) => Some(name),
                _ => None,
            })
            .collect();
        let Some((last, parents)) = names.as_deref().and_then(<[_]>::split_last) else {
            return Err(self.refuse(action, file, Errno::INVAL));
        };
        let opened = 'open: {
            if !WITHOUT_OPENAT2.load(Ordering::Relaxed) {
                let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
                match rustix::fs::openat2(&self.handle, file, flags, Mode::empty(), inside) {
                    // EPERM: what old sandboxes answer to calls that they do not know.
                    Err(Errno::NOSYS | Errno::PERM) => WITHOUT_OPENAT2.store(true, Ordering::Relaxed),
                    result => break 'open result,
                }
            }
            let mut at: Option<OwnedFd> = None;
            let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            for name in parents {
                let from = at.as_ref().map_or(self.handle.as_fd(), |fd| fd.as_fd());
                match rustix::fs::openat(from, *name, step, Mode::empty()) {
                    Ok(next) => at = Some(next),
                    Err(errno) => break 'open Err(errno),
                }
            }
            let from = at.as_ref().map_or(self.handle.as_fd(), |fd| fd.as_fd());
            rustix::fs::openat(from, *last, flags, Mode::empty())
        };
        match opened {
            Ok(handle) => Ok(Some(handle)),
            Err(Errno::NOENT) => Ok(None),
            // A socket: not a regular file either.
            Err(Errno::NXIO) => Err(self.refuse("cannot read (not a regular file)", file, Errno::INVAL)),
            Err(errno) => Err(self.refuse(action, file, errno)),
        }
    }
}

pub(super) fn kind(file_type: FileType) -> EntryKind {
    match file_type {
        FileType::Directory => EntryKind::Dir,
        FileType::RegularFile => EntryKind::File,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn both_ways(check: impl Fn()) {
        check();
        WITHOUT_OPENAT2.store(true, Ordering::Relaxed);
        check();
        WITHOUT_OPENAT2.store(false, Ordering::Relaxed);
    }

    fn errno<T: std::fmt::Debug>(result: Result<T>) -> Errno {
        result.expect_err("must be refused").errno()
    }

    #[test]
    fn only_regular_files_beneath_the_root_are_opened() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/b/file"), "x").unwrap();
        symlink(outside.path(), at("a/out")).unwrap();
        symlink("file", at("a/b/link")).unwrap();
        rustix::fs::mknodat(CWD, at("a/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let store = StoreDir::open(root.path()).unwrap().unwrap();
        both_ways(|| {
            assert!(store.file(Path::new("a/b/file")).unwrap().is_some());
            assert!(store.file(Path::new("a/b/none")).unwrap().is_none());
            assert!(store.file(Path::new("a/none/file")).unwrap().is_none());
            assert!(matches!(errno(store.file(Path::new("a/out/secret"))), Errno::LOOP | Errno::NOTDIR));
            assert_eq!(errno(store.file(Path::new("a/b/link"))), Errno::LOOP);
            assert_eq!(errno(store.file(Path::new("a/fifo"))), Errno::INVAL);
            assert_eq!(errno(store.file(Path::new("a/b"))), Errno::INVAL);
            assert_eq!(errno(store.file(Path::new("../x"))), Errno::INVAL);
            assert_eq!(errno(store.file(&outside.path().join("secret"))), Errno::INVAL);
            assert_eq!(store.stat(Path::new("a/b/link")).unwrap().unwrap().kind, EntryKind::Symlink);
            assert!(store.stat(Path::new("a/none")).unwrap().is_none());
        });
    }

    #[test]
    fn a_root_that_is_not_there_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(StoreDir::open(&root.path().join("none")).unwrap().is_none());
    }
}
