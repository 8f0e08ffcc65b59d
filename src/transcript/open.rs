//! Opening what lies in a store, and nothing else.
//!
//! Every path is resolved from a handle on the store's root. Links are followed as `walk` says: a link planted in a
//! store cannot make turnfs read or change foreign files.
//! Only regular files are opened, and never in a way that waits: a FIFO in a store must not hang a mount.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use super::stamp::{FsTrust, Stamp};
use super::walk::{self, Last, Owner, Place, Stop};
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
    ground: FsTrust,
    /// Whose links are followed.
    owner: Owner,
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
                let ground = FsTrust::of(&handle);
                let owner = Owner::of(&handle);
                let dir = StoreDir { handle, path: root.to_owned(), ground, owner };
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
    /// [`Refusal::NotFollowed`] for a link that is not followed, EINVAL for what is not a regular file, and what
    /// the system reports.
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

    /// What `file` is: of a link that is followed what it leads to, of any other one the link itself.
    /// `None` if nothing is there.
    ///
    /// # Errors
    /// [`Refusal::NotFollowed`] for a link on the way that is not followed, and what the system reports.
    pub fn stat(&self, file: &Path) -> Result<Option<Stamp>> {
        let found = self.stat_as_it_is(file)?;
        Ok(self.followed(file, found))
    }

    /// `found` at `file` or, if that is a link that is followed, what it leads to.
    fn followed(&self, file: &Path, found: Option<Stamp>) -> Option<Stamp> {
        match found {
            Some(stamp) if stamp.kind == EntryKind::Symlink => self.led_to(file).ok().or(found),
            _ => found,
        }
    }

    /// Whether the last component of `file` is a link.
    pub fn is_link(&self, file: &Path) -> bool {
        matches!(self.stat_as_it_is(file), Ok(Some(stamp)) if stamp.kind == EntryKind::Symlink)
    }

    /// The names in this directory, as [`StoreDir::entries`]; of links that are followed with the kind of what they
    /// lead to. And whether any name is one of a link.
    ///
    /// # Errors
    /// As [`StoreDir::entries`].
    pub fn entries_behind_links(&self) -> Result<(Vec<Entry>, bool)> {
        let mut entries = self.entries()?;
        let any_link = entries.iter().any(|entry| entry.kind == EntryKind::Symlink);
        for entry in &mut entries {
            if entry.kind == EntryKind::Symlink
                && let Ok(stamp) = self.led_to(Path::new(&entry.name))
            {
                entry.kind = stamp.kind;
            }
        }
        Ok((entries, any_link))
    }

    /// What a link leads to.
    ///
    /// # Errors
    /// [`Refusal::NotFollowed`], and what the system reports.
    pub fn led_to(&self, file: &Path) -> Result<Stamp> {
        let place = self.locate("cannot look at", file)?;
        Stamp::at(&place.dir, Path::new(&place.name), &self.ground)
            .map_err(|errno| self.refuse("cannot look at", file, errno))
    }

    /// The directory that holds what `file` leads to, and its name there. `None` if it is no link, nor below one.
    ///
    /// # Errors
    /// [`Refusal::NotFollowed`], and what the system reports.
    pub fn behind_links(&self, file: &Path) -> Result<Option<(StoreDir, PathBuf)>> {
        let place = match self.locate("cannot look at", file) {
            Err(Refusal::Io { errno: Errno::NOENT | Errno::NOTDIR, .. }) => return Ok(None),
            place => place?,
        };
        if place.links.is_empty() {
            return Ok(None);
        }
        let path = super::walk::path_of(place.dir.as_fd());
        let path = path.unwrap_or_else(|| self.path.join(file.parent().unwrap_or(Path::new(""))));
        let dir = StoreDir { ground: FsTrust::of(&place.dir), handle: place.dir, path, owner: self.owner };
        Ok(Some((dir, place.name.into())))
    }

    /// The path of `file` without any link; the path as it is spelled where that cannot be told.
    pub fn real_path(&self, file: &Path) -> PathBuf {
        let real = self.locate("cannot look at", file).ok().and_then(|place| place.path());
        real.unwrap_or_else(|| self.path.join(file))
    }

    fn locate(&self, action: &'static str, file: &Path) -> Result<Place> {
        walk::locate(self.handle.as_fd(), self.owner, file, Last::Followed)
            .map_err(|stop| self.stopped(action, file, stop))
    }

    fn stopped(&self, action: &'static str, file: &Path, stop: Stop) -> Refusal {
        match stop {
            Stop::Failed(errno) => self.refuse(action, file, errno),
            Stop::Link { path, why } => Refusal::NotFollowed { path: self.path.join(path), why },
        }
    }

    fn stat_as_it_is(&self, file: &Path) -> Result<Option<Stamp>> {
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
        self.stat_at(parent, Path::new(name), file)
    }

    /// The stamp of what is called `name` in `dir`; `None` if nothing is there. `file` is for messages.
    fn stat_at(&self, dir: impl AsFd, name: &Path, file: &Path) -> Result<Option<Stamp>> {
        match Stamp::at(dir, name, &self.ground) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(self.refuse("cannot look at", file, errno)),
        }
    }

    /// As [`StoreDir::stat`], in one system call where there is no link. Only for paths whose directories the caller
    /// has just seen to be directories: a link that takes their place meanwhile would be followed wherever it
    /// leads, so the answer is good for comparing and for nothing else.
    ///
    /// # Errors
    /// What the system reports.
    pub fn stat_to_compare(&self, file: &Path) -> Result<Option<Stamp>> {
        super::metrics::count_stats(1);
        let found = self.stat_at(&self.handle, file, file)?;
        Ok(self.followed(file, found))
    }

    /// Opens a directory of the store as a root of its own, so that many files in it cost no long paths.
    /// `None` if it is not there.
    ///
    /// # Errors
    /// [`Refusal::NotFollowed`] for a link that is not followed, and what the system reports.
    pub fn dir(&self, dir: &Path) -> Result<Option<StoreDir>> {
        let Some(handle) = self.resolve("cannot open", dir, DIRECTORY)? else { return Ok(None) };
        // A link may have led to another file system.
        let ground = self.ground.below(&handle);
        let dir = StoreDir { handle, path: self.path.join(dir), ground, owner: self.owner };
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
        list(&self.handle).map_err(refuse)
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
        let mut names = file.components();
        if names.clone().next().is_none() || !names.all(|part| matches!(part, Component::Normal(_))) {
            return Err(self.refuse(action, file, Errno::INVAL));
        }
        let mut opened = Err(Errno::NOSYS);
        if !WITHOUT_OPENAT2.load(Ordering::Relaxed) {
            let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            opened = rustix::fs::openat2(&self.handle, file, flags, Mode::empty(), inside);
            // EPERM: what old sandboxes answer to calls that they do not know.
            if let Err(Errno::NOSYS | Errno::PERM) = opened {
                WITHOUT_OPENAT2.store(true, Ordering::Relaxed);
            }
        }
        let opened = match opened {
            // There is a link on the way, or openat2 does not exist here.
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NOSYS | Errno::PERM) => {
                match walk::locate(self.handle.as_fd(), self.owner, file, Last::Followed) {
                    Ok(place) => rustix::fs::openat(&place.dir, &place.name, flags, Mode::empty()),
                    Err(Stop::Failed(errno)) => Err(errno),
                    Err(stop) => return Err(self.stopped(action, file, stop)),
                }
            }
            opened => opened,
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

/// The names in a directory, sorted, without `.` and `..`.
///
/// # Errors
/// What prevents listing it.
pub fn list(dir: impl AsFd) -> Result<Vec<Entry>, Errno> {
    let mut entries = Vec::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for entry in Dir::new(rustix::fs::openat(&dir, ".", flags, Mode::empty())?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let mut found = kind(entry.file_type());
        if entry.file_type() == FileType::Unknown {
            // Some file systems do not say in the listing.
            let at = AtFlags::SYMLINK_NOFOLLOW;
            found = match rustix::fs::statx(&dir, entry.file_name(), at, StatxFlags::TYPE) {
                Ok(stat) => kind(FileType::from_raw_mode(stat.stx_mode.into())),
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            };
        }
        entries.push(Entry { name: OsString::from_vec(name.to_vec()), kind: found });
    }
    entries.sort();
    Ok(entries)
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
    fn only_regular_files_are_opened_by_paths_beneath_the_root() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/b/file"), "x").unwrap();
        symlink(outside.path(), at("a/out")).unwrap();
        symlink("file", at("a/b/link")).unwrap();
        symlink("/dev/null", at("a/null")).unwrap();
        rustix::fs::mknodat(CWD, at("a/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let store = StoreDir::open(root.path()).unwrap().unwrap();
        both_ways(|| {
            assert!(store.file(Path::new("a/b/file")).unwrap().is_some());
            assert!(store.file(Path::new("a/b/none")).unwrap().is_none());
            assert!(store.file(Path::new("a/none/file")).unwrap().is_none());
            assert_eq!(errno(store.file(Path::new("a/null"))), Errno::LOOP);
            assert!(store.file(Path::new("a/out/secret")).unwrap().is_some());
            assert!(store.file(Path::new("a/b/link")).unwrap().is_some());
            assert_eq!(errno(store.file(Path::new("a/fifo"))), Errno::INVAL);
            assert_eq!(errno(store.file(Path::new("a/b"))), Errno::INVAL);
            assert_eq!(errno(store.file(Path::new("../x"))), Errno::INVAL);
            assert_eq!(errno(store.file(&outside.path().join("secret"))), Errno::INVAL);
            assert_eq!(store.stat(Path::new("a/b/link")).unwrap().unwrap().kind, EntryKind::File);
            assert_eq!(store.stat(Path::new("a/null")).unwrap().unwrap().kind, EntryKind::Symlink);
            assert!(store.stat(Path::new("a/none")).unwrap().is_none());
        });
    }

    #[test]
    fn a_root_that_is_not_there_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(StoreDir::open(&root.path().join("none")).unwrap().is_none());
    }
}
