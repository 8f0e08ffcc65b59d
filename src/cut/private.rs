//! What turnfs keeps of its own is used only where nobody else can have put it: directories and files of this
//! user that no other user can write, never through a symlink, never a file with a second name.
//!
//! [`PrivateDir`] is for `daemon` (log, locks and notes of mount points); the journals and backups go through
//! `disk`, which asks the same two questions.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::session::{Refusal, Result};

/// Refuses a directory that another user may have put things into.
pub(super) fn check_dir(facts: &Stat, path: &Path) -> Result<()> {
    let shown = path.display();
    if FileType::from_raw_mode(facts.st_mode) != FileType::Directory {
        return Err(not_private(path, "is not a directory", not_a_directory(path)));
    }
    check_owner(facts, path)?;
    if facts.st_mode & 0o022 != 0 {
        let cure = format!("see what is in it, then run `chmod go-w {shown}`");
        return Err(not_private(path, "can be written by other users", cure));
    }
    Ok(())
}

/// Refuses a file that another user may have written; to be written, also one that is another file, too. (Reading
/// such a one is fine: backups are often made of hard links.)
pub(super) fn check_file(facts: &Stat, path: &Path, to_write: bool) -> Result<()> {
    let remove = || format!("move it away (`mv {0} {0}.old`) and repeat", path.display());
    if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
        return Err(not_private(path, "is not a regular file", remove()));
    }
    check_owner(facts, path)?;
    if facts.st_mode & 0o022 != 0 {
        let cure = format!("see what is in it, then run `chmod go-w {}`", path.display());
        return Err(not_private(path, "can be written by other users", cure));
    }
    if to_write && facts.st_nlink > 1 {
        return Err(not_private(path, "has a second name (hard link)", remove()));
    }
    Ok(())
}

fn check_owner(facts: &Stat, path: &Path) -> Result<()> {
    if facts.st_uid == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let cure = "move it away, or set XDG_STATE_HOME to a directory of your own";
    Err(not_private(path, "belongs to another user", cure.into()))
}

/// Why something could not be opened that is there under another type than the one wanted.
pub(super) fn opening(path: &Path, errno: Errno, directory: bool) -> Refusal {
    let is_link = path.symlink_metadata().is_ok_and(|facts| facts.is_symlink());
    match (errno, directory) {
        (Errno::LOOP | Errno::NOTDIR, true) if is_link => {
            not_private(path, "is a symbolic link", not_a_directory(path))
        }
        (Errno::NOTDIR, true) => not_private(path, "is not a directory", not_a_directory(path)),
        (Errno::LOOP, false) => {
            let cure = format!("remove it (`rm {}`) and repeat", path.display());
            not_private(path, "is a symbolic link", cure)
        }
        // A FIFO without a reader, a socket.
        (Errno::NXIO | Errno::ISDIR, false) => {
            let cure = format!("move it away (`mv {0} {0}.old`) and repeat", path.display());
            not_private(path, "is not a regular file", cure)
        }
        _ => Refusal::io("opening", path, errno.into()),
    }
}

fn not_a_directory(path: &Path) -> String {
    let shown = path.display();
    format!("put a directory in its place, or set XDG_STATE_HOME so that {shown} is not needed")
}

fn not_private(path: &Path, why: &'static str, cure: String) -> Refusal {
    Refusal::NotPrivate { path: path.to_owned(), why, cure }
}

/// A directory of turnfs's own that passed `check_dir`. Names are single components.
#[derive(Debug)]
pub struct PrivateDir {
    dir: OwnedFd,
    path: PathBuf,
}

impl PrivateDir {
    /// The directory at `path`; `None` if nothing is there.
    pub(super) fn open(path: &Path) -> Result<Option<PrivateDir>> {
        match rustix::fs::open(path, DIRECTORY, Mode::empty()) {
            Ok(dir) => PrivateDir::checked(dir, path).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(opening(path, errno, true)),
        }
    }

    fn checked(dir: OwnedFd, path: &Path) -> Result<PrivateDir> {
        let facts = rustix::fs::fstat(&dir).map_err(|e| Refusal::io("looking at", path, e.into()))?;
        check_dir(&facts, path)?;
        if facts.st_mode & 0o077 != 0 {
            // Only its owner wrote here; others need not look either.
            rustix::fs::fchmod(&dir, Mode::RWXU).map_err(|e| Refusal::io("closing", path, e.into()))?;
        }
        Ok(PrivateDir { dir, path: path.to_owned() })
    }

    /// As [`PrivateDir::open`], making it (0700) if nothing is there. What is above it is made, too.
    pub(super) fn open_or_make(path: &Path) -> Result<PrivateDir> {
        if let Some(dir) = PrivateDir::open(path)? {
            return Ok(dir);
        }
        let made = |error| Refusal::io("making", path, error);
        std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700)
            .create(path)
            .map_err(made)?;
        PrivateDir::open(path)?.ok_or_else(|| made(Errno::NOENT.into()))
    }

    /// The directory `name` in it; `None` if nothing is there.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`], or what prevents opening it.
    pub fn below(&self, name: &str) -> Result<Option<PrivateDir>> {
        let path = self.path.join(name);
        match rustix::fs::openat(&self.dir, name, DIRECTORY, Mode::empty()) {
            Ok(dir) => PrivateDir::checked(dir, &path).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(opening(&path, errno, true)),
        }
    }

    /// As [`PrivateDir::below`], making it (0700) if nothing is there.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`], or what prevents making it.
    pub fn below_or_made(&self, name: &str) -> Result<PrivateDir> {
        if let Some(dir) = self.below(name)? {
            return Ok(dir);
        }
        let path = self.path.join(name);
        match rustix::fs::mkdirat(&self.dir, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Refusal::io("making", &path, errno.into())),
        }
        self.below(name)?.ok_or_else(|| Refusal::io("making", &path, Errno::NOENT.into()))
    }

    /// Opens the file `name`; `None` if nothing is there. Never waits for a FIFO.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`], or what prevents opening it.
    pub fn read(&self, name: &str) -> Result<Option<File>> {
        match self.open_file(name, OFlags::RDONLY) {
            Err(Refusal::Io { errno: Errno::NOENT, .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Opens the file `name` for writing, made (0600) if nothing is there; nothing in it is changed. With
    /// `append` all writes go to its end.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`], or what prevents opening it.
    pub fn write(&self, name: &str, append: bool) -> Result<File> {
        let append = if append { OFlags::APPEND } else { OFlags::empty() };
        let file = self.open_file(name, OFlags::WRONLY | OFlags::CREATE | append)?;
        // Whatever the umask, and whatever it was.
        rustix::fs::fchmod(&file, PRIVATE_FILE)
            .map_err(|e| Refusal::io("closing to others", &self.path.join(name), e.into()))?;
        Ok(file)
    }

    fn open_file(&self, name: &str, access: OFlags) -> Result<File> {
        let path = self.path.join(name);
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = rustix::fs::openat(&self.dir, name, flags, PRIVATE_FILE)
            .map_err(|errno| opening(&path, errno, false))?;
        let facts = rustix::fs::fstat(&fd).map_err(|e| Refusal::io("looking at", &path, e.into()))?;
        check_file(&facts, &path, access.contains(OFlags::WRONLY))?;
        Ok(File::from(fd))
    }

    /// The whole of the small file `name`; `None` if nothing is there.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`], or what prevents reading it.
    pub fn content(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.read(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let limit = LARGEST_NOTE;
        file.take(limit)
            .read_to_end(&mut bytes)
            .map_err(|e| Refusal::io("reading", &self.path.join(name), e))?;
        Ok(Some(bytes))
    }

    /// Puts a small file in place, over what may be there.
    ///
    /// # Errors
    /// What prevents it; what was there stays then.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let temporary = format!("{name}.new");
        self.remove(&temporary)?;
        let mut file = self.open_file(&temporary, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        file.write_all(bytes).map_err(|e| Refusal::io("writing", &self.path.join(name), e))?;
        self.rename(&temporary, name)
    }

    /// Renames a file in it, over what may be there.
    ///
    /// # Errors
    /// What prevents it.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::renameat(&self.dir, from, &self.dir, to)
            .map_err(|e| Refusal::io("renaming to", &self.path.join(to), e.into()))
    }

    /// Removes a file from it; one that is not there is fine.
    ///
    /// # Errors
    /// What prevents it.
    pub fn remove(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Refusal::io("removing", &self.path.join(name), errno.into())),
        }
    }

    /// The inode number of what has the name `name`, symlinks not followed; `None` if nothing has.
    pub fn inode(&self, name: impl AsRef<OsStr>) -> Option<u64> {
        let facts = rustix::fs::statat(&self.dir, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW);
        facts.ok().map(|facts| facts.st_ino)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const PRIVATE_FILE: Mode = Mode::from_raw_mode(0o600);
/// Longest file that [`PrivateDir::content`] reads, bytes.
const LARGEST_NOTE: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn nothing_is_written_through_a_link_or_into_what_others_can_write() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("victim"), "precious").unwrap();
        symlink(at("victim"), at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        std::fs::write(at("named"), "").unwrap();
        std::fs::hard_link(at("named"), at("twice")).unwrap();
        std::fs::write(at("open"), "").unwrap();
        std::fs::set_permissions(at("open"), std::fs::Permissions::from_mode(0o622)).unwrap();
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        symlink(at("dir"), at("link to dir")).unwrap();
        let own = PrivateDir::open(dir.path()).unwrap().unwrap();
        for name in ["link", "dangling", "twice", "open", "fifo", "dir"] {
            for append in [false, true] {
                let refused = own.write(name, append).unwrap_err();
                assert!(matches!(refused, Refusal::NotPrivate { .. }), "{name}: {refused:?}");
            }
        }
        for name in ["link to dir", "victim"] {
            assert!(matches!(own.below_or_made(name), Err(Refusal::NotPrivate { .. })), "{name}");
        }
        assert_eq!(std::fs::read_to_string(at("victim")).unwrap(), "precious");
        assert!(!at("nowhere").exists());
    }

    #[test]
    fn what_is_ours_is_made_for_us_alone_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let own = PrivateDir::open_or_make(&dir.path().join("deep/own")).unwrap();
            let below = own.below_or_made("d").unwrap();
            below.write("f", true).unwrap().write_all(b"x").unwrap();
            assert_eq!(below.path().metadata().unwrap().mode() & 0o7777, 0o700);
            assert_eq!(below.path().join("f").metadata().unwrap().mode() & 0o7777, 0o600);
        }
        let own = PrivateDir::open(&dir.path().join("deep/own/d")).unwrap().unwrap();
        assert_eq!(own.content("f").unwrap().unwrap(), b"xx");
        assert!(own.read("missing").unwrap().is_none() && own.inode("missing").is_none());
        own.put("f", b"y").unwrap();
        assert_eq!(own.content("f").unwrap().unwrap(), b"y");
    }
}
