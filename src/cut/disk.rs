//! Files below one directory, reached without following a symlink, and every operation that changes them.
//!
//! Nothing else in turnfs writes a store's files or what is kept of sessions (a row of a store's database is
//! written by `row`, through SQLite): `Tree` its names, `open::Open` what is in a file. Each changing operation passes
//! [`fault::pass`] first. Nothing here is durable by itself: who writes also calls [`Open::sync`] and
//! [`Tree::sync_dir`] (`docs/DURABILITY.md` says in which order).

mod open;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::fault;
use crate::session::{Refusal, Result};

pub(super) use open::{CHUNK, Open};

const PRIVATE_FILE: Mode = Mode::from_raw_mode(0o600);
const PRIVATE_DIR: Mode = Mode::from_raw_mode(0o700);

/// A directory held open; all paths are relative to it.
#[derive(Debug)]
pub(super) struct Tree {
    path: PathBuf,
    dir: OwnedFd,
}

impl Tree {
    /// Opens a directory; the path itself may lead over symlinks, nothing below it may.
    pub fn open(path: &Path) -> Result<Tree> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|e| Refusal::io("opening", path, e.into()))?;
        Ok(Tree { path: path.to_owned(), dir })
    }

    /// A directory that is open already.
    pub fn opened(dir: OwnedFd, path: &Path) -> Tree {
        Tree { path: path.to_owned(), dir }
    }

    /// Makes the directory itself accessible to its owner only.
    pub fn close_to_others(&self) -> Result<()> {
        let close = || -> io::Result<()> {
            fault::pass("mode")?;
            Ok(rustix::fs::fchmod(&self.dir, PRIVATE_DIR)?)
        };
        close().map_err(|e| self.error("closing to others", Path::new(""), e))
    }

    /// A directory below this one.
    pub fn sub(&self, relative: &Path) -> Result<Tree> {
        let dir = self.folder(relative).map_err(|e| self.error("opening", relative, e))?;
        Ok(Tree { path: self.path.join(relative), dir })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Facts of the directory itself.
    pub fn facts(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.dir).map_err(|e| self.error("looking at", Path::new(""), e.into()))
    }

    fn error(&self, action: &'static str, relative: &Path, error: io::Error) -> Refusal {
        Refusal::io(action, &self.path.join(relative), error)
    }

    /// Walks down component by component, so that no symlink is ever followed.
    fn folder(&self, relative: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut dir = self.dir.try_clone()?;
        for component in relative.components() {
            match component {
                Component::CurDir => {}
                Component::Normal(name) => dir = rustix::fs::openat(&dir, name, flags, Mode::empty())?,
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(Errno::XDEV.into());
                }
            }
        }
        Ok(dir)
    }

    fn parent<'p>(&self, relative: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
        let name = relative.file_name().ok_or(Errno::INVAL)?;
        Ok((self.folder(relative.parent().unwrap_or(Path::new("")))?, name))
    }

    /// The facts of what stands at `relative`, symlinks not followed; `None` if nothing does.
    pub fn stat(&self, relative: &Path) -> Result<Option<Stat>> {
        let look = || -> io::Result<Stat> {
            let (dir, name) = self.parent(relative)?;
            Ok(rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?)
        };
        match look() {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.error("looking at", relative, e)),
        }
    }

    /// Opens a regular file; `None` if it is not there. Never waits for a FIFO or somebody's lease.
    pub fn read(&self, relative: &Path) -> Result<Option<Open>> {
        self.open_file(relative, OFlags::RDONLY)
    }

    /// As [`Tree::read`], for changing it.
    pub fn write(&self, relative: &Path) -> Result<Option<Open>> {
        self.open_file(relative, OFlags::RDWR)
    }

    fn open_file(&self, relative: &Path, access: OFlags) -> Result<Option<Open>> {
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let open = || -> io::Result<OwnedFd> {
            let (dir, name) = self.parent(relative)?;
            Ok(rustix::fs::openat(&dir, name, flags, Mode::empty())?)
        };
        match open() {
            Ok(fd) => {
                let stat =
                    rustix::fs::fstat(&fd).map_err(|e| self.error("looking at", relative, e.into()))?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    let what = format!("{} is not a regular file", self.path.join(relative).display());
                    return Err(Refusal::CannotCut { what });
                }
                Ok(Some(Open::of(File::from(fd), self.path.join(relative))))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.error("opening", relative, e)),
        }
    }

    /// Makes a new file, 0600 whatever the umask.
    pub fn create(&self, relative: &Path) -> Result<Open> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || -> io::Result<OwnedFd> {
            fault::pass("create")?;
            let (dir, name) = self.parent(relative)?;
            let fd = rustix::fs::openat(&dir, name, flags, PRIVATE_FILE)?;
            rustix::fs::fchmod(&fd, PRIVATE_FILE)?;
            Ok(fd)
        };
        let fd = create().map_err(|e| self.error("making", relative, e))?;
        Ok(Open::of(File::from(fd), self.path.join(relative)))
    }

    /// Makes a new directory, 0700 whatever the umask. One that is there already is an error.
    pub fn mkdir(&self, relative: &Path) -> Result<()> {
        let make = || -> io::Result<()> {
            fault::pass("mkdir")?;
            let (dir, name) = self.parent(relative)?;
            rustix::fs::mkdirat(&dir, name, PRIVATE_DIR)?;
            Ok(rustix::fs::chmodat(&dir, name, PRIVATE_DIR, AtFlags::empty())?)
        };
        make().map_err(|e| self.error("making", relative, e))
    }

    /// Makes the directory unless it is there; true if it was made. 0700 whatever the umask.
    pub fn ensure_dir(&self, relative: &Path) -> Result<bool> {
        if self.stat(relative)?.is_some() {
            return Ok(false);
        }
        match self.mkdir(relative) {
            // Somebody else made it in this moment.
            Err(Refusal::Io { errno: Errno::EXIST, .. }) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Renames within this tree; `replace` says whether something may already stand there.
    pub fn rename(&self, from: &Path, to: &Path, replace: bool) -> Result<()> {
        let rename = || -> io::Result<()> {
            fault::pass("rename")?;
            let (from_dir, from_name) = self.parent(from)?;
            let (to_dir, to_name) = self.parent(to)?;
            if replace {
                return Ok(rustix::fs::renameat(&from_dir, from_name, &to_dir, to_name)?);
            }
            match rustix::fs::renameat_with(&from_dir, from_name, &to_dir, to_name, RenameFlags::NOREPLACE) {
                // NFS and some others have no such flag: look, then rename.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                    match rustix::fs::statat(&to_dir, to_name, AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(_) => Err(Errno::EXIST.into()),
                        Err(Errno::NOENT) => {
                            Ok(rustix::fs::renameat(&from_dir, from_name, &to_dir, to_name)?)
                        }
                        Err(e) => Err(e.into()),
                    }
                }
                other => Ok(other?),
            }
        };
        rename().map_err(|e| self.error("renaming to", to, e))
    }

    /// Removes a file; one that is not there is fine.
    pub fn unlink(&self, relative: &Path) -> Result<()> {
        self.remove(relative, AtFlags::empty())
    }

    /// Removes a file and makes that durable; one that is not there, nor its directory, is fine.
    pub fn unlink_durably(&self, relative: &Path) -> Result<()> {
        self.unlink(relative)?;
        match self.sync_parent(relative) {
            Err(Refusal::Io { errno: Errno::NOENT, .. }) => Ok(()),
            other => other,
        }
    }

    fn remove(&self, relative: &Path, flags: AtFlags) -> Result<()> {
        let remove = || -> io::Result<()> {
            fault::pass("unlink")?;
            let (dir, name) = self.parent(relative)?;
            Ok(rustix::fs::unlinkat(&dir, name, flags)?)
        };
        match remove() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(|e| self.error("removing", relative, e)),
        }
    }

    /// Removes a directory if it is empty; one that is not, or is not there, is left.
    pub fn remove_empty_dir(&self, relative: &Path) -> Result<()> {
        match self.remove(relative, AtFlags::REMOVEDIR) {
            Err(Refusal::Io { errno: Errno::NOTEMPTY | Errno::EXIST, .. }) => Ok(()),
            other => other,
        }
    }

    /// Makes the directories above `relative` that are not there, durable; 0700 whatever the umask.
    pub fn ensure_parents(&self, relative: &Path) -> Result<()> {
        let above: Vec<&Path> =
            relative.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).collect();
        for dir in above.into_iter().rev() {
            if self.ensure_dir(dir)? {
                self.sync_parent(dir)?;
            }
        }
        Ok(())
    }

    /// Removes a directory, unless something is in it; one that is not there is fine.
    pub fn remove_if_empty(&self, relative: &Path) -> Result<()> {
        match self.remove(relative, AtFlags::REMOVEDIR) {
            Err(Refusal::Io { errno: Errno::NOTEMPTY | Errno::EXIST, .. }) => Ok(()),
            removed => removed,
        }
    }

    /// Removes a directory and all in it; one that is not there is fine.
    pub fn remove_dir(&self, relative: &Path) -> Result<()> {
        if self.stat(relative)?.is_none() {
            return Ok(());
        }
        for (name, kind) in self.list(relative)? {
            let child = relative.join(name);
            match kind {
                FileType::Directory => self.remove_dir(&child)?,
                _ => self.unlink(&child)?,
            }
        }
        self.remove(relative, AtFlags::REMOVEDIR)
    }

    /// Names and kinds in a directory, sorted by name.
    pub fn list(&self, relative: &Path) -> Result<Vec<(OsString, FileType)>> {
        use std::os::unix::ffi::OsStringExt as _;
        let list = || -> io::Result<Vec<(OsString, FileType)>> {
            let dir = self.folder(relative)?;
            let mut found = Vec::new();
            for entry in rustix::fs::Dir::read_from(&dir)? {
                let entry = entry?;
                let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
                if name == "." || name == ".." {
                    continue;
                }
                let kind = match entry.file_type() {
                    FileType::Unknown => FileType::from_raw_mode(
                        rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode,
                    ),
                    known => known,
                };
                found.push((name, kind));
            }
            found.sort_by(|(a, _), (b, _)| a.cmp(b));
            Ok(found)
        };
        list().map_err(|e| self.error("listing", relative, e))
    }

    /// Makes the names in a directory durable.
    pub fn sync_dir(&self, relative: &Path) -> Result<()> {
        let sync = || -> io::Result<()> {
            fault::pass("syncdir")?;
            Ok(rustix::fs::fsync(self.folder(relative)?)?)
        };
        sync().map_err(|e| self.error("syncing", relative, e))
    }

    /// Makes the names in the directory that holds `relative` durable.
    pub fn sync_parent(&self, relative: &Path) -> Result<()> {
        self.sync_dir(relative.parent().unwrap_or(Path::new("")))
    }

    /// A small file's bytes; `None` if it is not there.
    pub fn slurp(&self, relative: &Path) -> Result<Option<Vec<u8>>> {
        let Some(open) = self.read(relative)? else { return Ok(None) };
        let mut bytes = vec![0; open.len()? as usize];
        let read = open.read_full(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(Some(bytes))
    }

    /// Puts a small file of turnfs's own in place: beside, fsync, rename, fsync of the directory.
    pub fn put(&self, relative: &Path, bytes: &[u8]) -> Result<()> {
        let beside = relative.with_extension("new");
        // What a crash left of an earlier try.
        if self.stat(&beside)?.is_some() {
            self.unlink(&beside)?;
        }
        let file = self.create(&beside)?;
        let write = || -> Result<()> {
            file.write_all(bytes, 0)?;
            file.sync()?;
            self.rename(&beside, relative, true)
        };
        if let Err(refusal) = write() {
            // On a full disk its space is wanted back at once; the next try removes it otherwise.
            let _ = self.unlink(&beside);
            return Err(refusal);
        }
        self.sync_parent(relative)
    }
}

/// The temporary name beside a file: hidden, and the same at every try, so that a crash leaves at most one.
pub(super) fn temporary(file: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(suffix);
    file.with_file_name(name)
}

/// The time of last change, nanoseconds since 1970.
pub(super) fn mtime(stat: &Stat) -> i128 {
    i128::from(stat.st_mtime) * 1_000_000_000 + stat.st_mtime_nsec as i128
}
