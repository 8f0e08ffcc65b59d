//! Files below one directory, and every operation that changes them. `place` says where their paths lead; walking,
//! listing, reading and hashing are `transcript`'s, for reading is the same whatever it is for.
//!
//! Nothing else in turnfs writes a store's files or what is kept of sessions (a row of a store's database is
//! written by `row`, through SQLite): `Tree` its names, `open::Open` what is in a file. Each changing operation passes
//! [`fault::inject`] first. Nothing here is durable that does not say so: who writes also calls [`Open::sync`] and
//! [`Tree::sync_dir`] (`docs/DURABILITY.md` says in which order).

mod open;
mod place;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::{fault, private};
use crate::session::{Refusal, Result};
use crate::transcript::{self, Entry, EntryKind, Last, Owner, Stop};

pub(super) use open::{CHUNK, Open};

const PRIVATE_FILE: Mode = Mode::from_raw_mode(0o600);
const PRIVATE_DIR: Mode = Mode::from_raw_mode(0o700);

/// Longest file that is read whole, bytes: an index that sessions share, a journal, a list of removed turns. Real
/// ones have kilobytes.
const LONGEST_SLURP: u64 = 256 << 20;

/// A directory held open; all paths are relative to it.
#[derive(Debug)]
pub(super) struct Tree {
    path: PathBuf,
    dir: OwnedFd,
    /// The links that are followed: those of a store, and nowhere else any.
    links: place::Links,
    /// turnfs's own: what another user may have put there is refused.
    private: bool,
}

impl Tree {
    /// Opens a directory; the path itself may lead over symlinks, nothing below it may.
    pub fn open(path: &Path) -> Result<Tree> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|e| Refusal::io("cannot open", path, e.into()))?;
        Tree::of(dir, path, Owner::Nobody, false)
    }

    /// Opens a store's root. Links below it are followed as they are for reading.
    pub fn store(path: &Path) -> Result<Tree> {
        let Tree { dir, .. } = Tree::open(path)?;
        let owner = Owner::of(&dir);
        Tree::of(dir, path, owner, false)
    }

    /// A directory of turnfs's own, not reached through a link; `None` if nothing is there.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`] where another user may have put things there.
    pub fn private(path: &Path) -> Result<Option<Tree>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => Tree::of(dir, path, Owner::Nobody, true).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(private::opening(path, errno, true)),
        }
    }

    fn of(dir: OwnedFd, path: &Path, links_of: Owner, private: bool) -> Result<Tree> {
        let tree = Tree { path: path.to_owned(), dir, links: place::Links::of(links_of), private };
        if private {
            private::check_dir(&tree.facts()?, path)?;
        }
        Ok(tree)
    }

    /// Makes the directory itself accessible to its owner only.
    pub fn close_to_others(&self) -> Result<()> {
        if self.facts()?.st_mode & 0o077 == 0 {
            return Ok(());
        }
        let close = || Ok(rustix::fs::fchmod(&self.dir, PRIVATE_DIR)?);
        self.change("mode", "cannot set the mode of", Path::new(""), close)
    }

    /// A directory below this one, or this one once more.
    pub fn sub(&self, relative: &Path) -> Result<Tree> {
        let again = |dir, path: &Path| Tree::of(dir, path, self.links.owner, self.private);
        let mut tree = again(self.folder("cannot open", Path::new(""))?, &self.path)?;
        for name in relative.components() {
            let path = tree.path.join(name);
            let dir = match tree.folder("cannot open", Path::new(&name)) {
                Err(Refusal::Io { errno, .. }) if self.private => {
                    return Err(private::opening(&path, errno, true));
                }
                dir => dir?,
            };
            tree = again(dir, &path)?;
        }
        Ok(tree)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `relative` without any link.
    pub fn real_path(&self, relative: &Path) -> Result<PathBuf> {
        let (dir, name) = self.at("cannot look at", relative)?;
        let dir = transcript::path_of(dir.as_fd());
        let gone = || self.error("cannot look at", relative, Errno::NOENT.into());
        Ok(dir.ok_or_else(gone)?.join(name))
    }

    /// Facts of the directory itself.
    pub fn facts(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.dir).map_err(|e| self.error("cannot look at", Path::new(""), e.into()))
    }

    fn error(&self, action: &'static str, relative: &Path, error: io::Error) -> Refusal {
        Refusal::io(action, &self.path.join(relative), error)
    }

    /// Makes one change, unless a test lets `operation` fail. `action` and `relative` are for messages.
    fn change<T>(
        &self,
        operation: &'static str,
        action: &'static str,
        relative: &Path,
        change: impl FnOnce() -> io::Result<T>,
    ) -> Result<T> {
        fault::inject(operation).and_then(|()| change()).map_err(|e| self.error(action, relative, e))
    }

    /// A directory, opened.
    fn folder(&self, action: &'static str, relative: &Path) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (dir, name) = self.at(action, relative)?;
        rustix::fs::openat(&dir, &name, flags, Mode::empty())
            .map_err(|e| self.error(action, relative, e.into()))
    }

    /// The directory that holds what `relative` leads to, and its name there.
    fn at(&self, action: &'static str, relative: &Path) -> Result<(Arc<OwnedFd>, OsString)> {
        self.place(relative, Last::Followed).map_err(|stop| self.stopped(action, relative, stop))
    }

    /// As [`Tree::at`]; `None` if a directory on the way is not there.
    fn at_if_there(
        &self,
        action: &'static str,
        relative: &Path,
        last: Last,
    ) -> Result<Option<(Arc<OwnedFd>, OsString)>> {
        match self.place(relative, last) {
            Err(Stop::Failed(Errno::NOENT)) => Ok(None),
            place => place.map(Some).map_err(|stop| self.stopped(action, relative, stop)),
        }
    }

    /// The facts of what `relative` leads to; `None` if nothing is there.
    pub fn stat(&self, relative: &Path) -> Result<Option<Stat>> {
        let Some((dir, name)) = self.at_if_there("cannot look at", relative, Last::Followed)? else {
            return Ok(None);
        };
        match rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(self.error("cannot look at", relative, e.into())),
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
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Some((dir, name)) = self.at_if_there("cannot open", relative, Last::Followed)? else {
            return Ok(None);
        };
        match rustix::fs::openat(&dir, &name, flags, Mode::empty()) {
            Ok(fd) => {
                let stat =
                    rustix::fs::fstat(&fd).map_err(|e| self.error("cannot look at", relative, e.into()))?;
                if self.private {
                    private::check_file(&stat, &self.path.join(relative), access == OFlags::RDWR)?;
                }
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    let what = format!("{} is not a regular file", self.path.join(relative).display());
                    return Err(Refusal::CannotCut { what, hint: None });
                }
                Ok(Some(Open::of(File::from(fd), self.path.join(relative))))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) if self.private => Err(private::opening(&self.path.join(relative), errno, false)),
            Err(errno) => Err(self.error("cannot open", relative, errno.into())),
        }
    }

    /// As [`Tree::write`]; makes the file, 0600, if it is not there.
    pub fn open_or_create(&self, relative: &Path) -> Result<Open> {
        loop {
            if let Some(open) = self.write(relative)? {
                return Ok(open);
            }
            match self.create(relative) {
                // Somebody else made it in this moment.
                Err(Refusal::Io { errno: Errno::EXIST, .. }) => {}
                made => return made,
            }
        }
    }

    /// Makes a new file, 0600 whatever the umask.
    pub fn create(&self, relative: &Path) -> Result<Open> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (dir, name) = self.at("cannot make", relative)?;
        let create = || {
            let fd = rustix::fs::openat(&dir, &name, flags, PRIVATE_FILE)?;
            rustix::fs::fchmod(&fd, PRIVATE_FILE)?;
            Ok(fd)
        };
        let fd = self.change("create", "cannot make", relative, create)?;
        Ok(Open::of(File::from(fd), self.path.join(relative)))
    }

    /// Makes a new directory, 0700 whatever the umask. One that is there already is an error.
    pub fn mkdir(&self, relative: &Path) -> Result<()> {
        let (dir, name) = self.at("cannot make", relative)?;
        let make = || {
            rustix::fs::mkdirat(&dir, &name, PRIVATE_DIR)?;
            Ok(rustix::fs::chmodat(&dir, &name, PRIVATE_DIR, AtFlags::empty())?)
        };
        self.change("mkdir", "cannot make", relative, make)
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
        let (from_dir, from_name) = self.at("cannot rename to", from)?;
        let (to_dir, to_name) = self.at("cannot rename to", to)?;
        let rename = || {
            if replace {
                return Ok(rustix::fs::renameat(&from_dir, &from_name, &to_dir, &to_name)?);
            }
            match rustix::fs::renameat_with(&from_dir, &from_name, &to_dir, &to_name, RenameFlags::NOREPLACE)
            {
                // NFS and some others have no such flag: look, then rename.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                    match rustix::fs::statat(&to_dir, &to_name, AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(_) => Err(Errno::EXIST.into()),
                        Err(Errno::NOENT) => {
                            Ok(rustix::fs::renameat(&from_dir, &from_name, &to_dir, &to_name)?)
                        }
                        Err(e) => Err(e.into()),
                    }
                }
                other => Ok(other?),
            }
        };
        self.change("rename", "cannot rename to", to, rename)
    }

    /// Gives a file a second name; what stands there is removed first.
    pub fn link(&self, file: &Path, second: &Path) -> Result<()> {
        self.unlink(second)?;
        let (from_dir, from_name) = self.at("cannot link to", file)?;
        let (to_dir, to_name) = self.at("cannot link to", second)?;
        let link = || Ok(rustix::fs::linkat(&from_dir, &from_name, &to_dir, &to_name, AtFlags::empty())?);
        self.change("link", "cannot link to", second, link)
    }

    /// Removes a file; one that is not there is fine. Of a link to a file the link goes, and what it leads to stays.
    pub fn unlink(&self, relative: &Path) -> Result<()> {
        self.remove(relative, AtFlags::empty())
    }

    /// Removes a file and makes that durable; one that is not there, nor its directory, is fine.
    pub fn unlink_durably(&self, relative: &Path) -> Result<()> {
        self.unlink(relative)?;
        let Some((dir, _)) = self.at_if_there("cannot sync", relative, Last::AsItIs)? else { return Ok(()) };
        match self.sync(&dir, relative) {
            Err(Refusal::Io { errno: Errno::NOENT, .. }) => Ok(()),
            other => other,
        }
    }

    fn remove(&self, relative: &Path, flags: AtFlags) -> Result<()> {
        let remove = || -> io::Result<()> {
            fault::inject("unlink")?;
            let (dir, name) = match self.place(relative, Last::AsItIs) {
                Err(Stop::Failed(errno)) => return Err(errno.into()),
                // Nothing of ours is behind it.
                Err(Stop::Link { .. }) => return Err(Errno::LOOP.into()),
                Ok(place) => place,
            };
            Ok(rustix::fs::unlinkat(&dir, &name, flags)?)
        };
        match remove() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(|e| self.error("cannot remove", relative, e)),
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
        for entry in self.list(relative)? {
            let child = relative.join(entry.name);
            match entry.kind {
                EntryKind::Dir => self.remove_dir(&child)?,
                _ => self.unlink(&child)?,
            }
        }
        self.remove(relative, AtFlags::REMOVEDIR)
    }

    /// The names in a directory, sorted.
    pub fn list(&self, relative: &Path) -> Result<Vec<Entry>> {
        let dir = self.folder("cannot list", relative)?;
        transcript::list(dir).map_err(|errno| self.error("cannot list", relative, errno.into()))
    }

    /// Makes the names in a directory durable.
    pub fn sync_dir(&self, relative: &Path) -> Result<()> {
        let dir = self.folder("cannot sync", relative)?;
        self.sync(&dir, relative)
    }

    /// Makes the name of what `relative` leads to durable in the directory that holds it.
    pub fn sync_parent(&self, relative: &Path) -> Result<()> {
        let (dir, _) = self.at("cannot sync", relative)?;
        self.sync(&dir, relative.parent().unwrap_or(Path::new("")))
    }

    fn sync(&self, dir: &OwnedFd, relative: &Path) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let sync = || Ok(rustix::fs::fsync(rustix::fs::openat(dir, ".", flags, Mode::empty())?)?);
        self.change("syncdir", "cannot sync", relative, sync)
    }

    /// A small file's bytes; `None` if it is not there.
    ///
    /// # Errors
    /// EFBIG if it is longer than [`LONGEST_SLURP`]; and what prevents reading.
    pub fn read_to_vec(&self, relative: &Path) -> Result<Option<Vec<u8>>> {
        let Some(open) = self.read(relative)? else { return Ok(None) };
        let read = transcript::read_whole(&open.file, LONGEST_SLURP).map(Some);
        read.map_err(|e| self.error("cannot read", relative, e))
    }

    /// As [`Tree::read_to_vec`], of a file that must be there.
    pub fn must_read(&self, relative: &Path) -> Result<Vec<u8>> {
        let what = || self.path.join(relative).display().to_string();
        self.read_to_vec(relative)?.ok_or_else(|| Refusal::NotFound { what: what() })
    }

    /// Puts a small file of turnfs's own in place, durable when this returns.
    pub fn put(&self, relative: &Path, bytes: &[u8]) -> Result<()> {
        let temporary = relative.with_extension("new");
        self.replace(relative, &temporary, |new| new.write_all(bytes, 0), || Ok(())).map(drop)
    }

    /// Puts a new file in the place of `file`, durable when this returns: made and filled by `fill` under the name
    /// `temporary` beside, fsynced, renamed, its directory fsynced. `last_look` may still refuse right before the rename.
    pub fn replace(
        &self,
        file: &Path,
        temporary: &Path,
        fill: impl FnOnce(&Open) -> Result<()>,
        last_look: impl FnOnce() -> Result<()>,
    ) -> Result<Open> {
        let new = match self.create(temporary) {
            // What a crash left of an earlier try.
            Err(Refusal::Io { errno: Errno::EXIST, .. }) => {
                self.unlink(temporary)?;
                self.create(temporary)?
            }
            new => new?,
        };
        let rename = || -> Result<()> {
            fill(&new)?;
            new.sync()?;
            last_look()?;
            self.rename(temporary, file, true)
        };
        if let Err(refusal) = rename() {
            // On a full disk its space is wanted back at once; the next try removes it otherwise.
            let _ = self.unlink(temporary);
            return Err(refusal);
        }
        self.sync_parent(file)?;
        Ok(new)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_terabyte_is_not_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join("huge")).unwrap().set_len(1 << 40).unwrap();
        let refused = Tree::open(dir.path()).unwrap().read_to_vec(Path::new("huge")).unwrap_err();
        assert_eq!(refused.errno(), Errno::FBIG);
    }
}
