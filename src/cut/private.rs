//! What turnfs keeps of its own is used only where nobody else can have put it: directories and files of this
//! user that no other user can write, never through a symlink, never a file with a second name.
//!
//! `disk` asks that of everything in a private [`Tree`]; [`PrivateDir`] is one for `daemon` (log, locks and notes of
//! mount points).

use std::fs::File;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::disk::Tree;
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
        _ => Refusal::io("cannot open", path, errno.into()),
    }
}

fn not_a_directory(path: &Path) -> String {
    let shown = path.display();
    format!("put a directory in its place, or set XDG_STATE_HOME so that {shown} is not needed")
}

fn not_private(path: &Path, why: &'static str, cure: String) -> Refusal {
    Refusal::NotPrivate { path: path.to_owned(), why, cure }
}

/// A directory of turnfs's own that is no session's, closed to other users. Names are single components.
#[derive(Debug)]
pub struct PrivateDir(Tree);

impl PrivateDir {
    /// An open private tree.
    pub(super) fn of(tree: Tree) -> Result<PrivateDir> {
        tree.close_to_others()?;
        Ok(PrivateDir(tree))
    }

    /// The directory `name` in it; `None` if nothing is there.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`], or what prevents opening it.
    pub fn below(&self, name: &str) -> Result<Option<PrivateDir>> {
        match self.0.stat(Path::new(name))? {
            Some(_) => PrivateDir::of(self.0.sub(Path::new(name))?).map(Some),
            None => Ok(None),
        }
    }

    /// As [`PrivateDir::below`], making it (0700) if nothing is there.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`], or what prevents making it.
    pub fn below_or_made(&self, name: &str) -> Result<PrivateDir> {
        self.0.ensure_dir(Path::new(name))?;
        PrivateDir::of(self.0.sub(Path::new(name))?)
    }

    /// Opens the file `name`; `None` if nothing is there. Never waits for a FIFO.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`], or what prevents opening it.
    pub fn read(&self, name: &str) -> Result<Option<File>> {
        Ok(self.0.read(Path::new(name))?.map(|open| open.file))
    }

    /// Opens the file `name` for writing to its end, made (0600) if nothing is there; nothing in it is changed.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`], or what prevents opening it.
    pub fn append(&self, name: &str) -> Result<File> {
        let file = self.0.open_or_create(Path::new(name))?.file;
        // Whatever the mode was.
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)
            .and_then(|()| rustix::fs::fcntl_setfl(&file, OFlags::APPEND))
            .map_err(|e| Refusal::io("cannot set the mode of", &self.path().join(name), e.into()))?;
        Ok(file)
    }

    /// The whole of the small file `name`; `None` if nothing is there.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`], or what prevents reading it.
    pub fn content(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.0.read_to_vec(Path::new(name))
    }

    /// Puts a small file in place, over what may be there, durable when this returns.
    ///
    /// # Errors
    /// What prevents it; what was there stays then.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.0.put(Path::new(name), bytes)
    }

    /// Renames a file in it, over what may be there.
    ///
    /// # Errors
    /// What prevents it.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.0.rename(Path::new(from), Path::new(to), true)
    }

    /// Removes a file from it; one that is not there is fine.
    ///
    /// # Errors
    /// What prevents it.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.0.unlink(Path::new(name))
    }

    /// The inode number of what has the name `name`, symlinks not followed; `None` if nothing has.
    pub fn inode(&self, name: &str) -> Option<u64> {
        Some(self.0.stat(Path::new(name)).ok()??.st_ino)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::io::Write as _;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use rustix::fs::CWD;

    use super::super::StateDir;
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
        let own = StateDir::at(dir.path()).private().unwrap().unwrap();
        for name in ["link", "dangling", "twice", "open", "fifo", "dir"] {
            let refused = own.append(name).unwrap_err();
            assert!(matches!(refused, Refusal::NotPrivate { .. }), "{name}: {refused:?}");
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
            let own = StateDir::at(&dir.path().join("deep/own")).private_or_made().unwrap();
            let below = own.below_or_made("d").unwrap();
            below.append("f").unwrap().write_all(b"x").unwrap();
            assert_eq!(below.path().metadata().unwrap().mode() & 0o7777, 0o700);
            assert_eq!(below.path().join("f").metadata().unwrap().mode() & 0o7777, 0o600);
        }
        let own = StateDir::at(&dir.path().join("deep/own/d")).private().unwrap().unwrap();
        assert_eq!(own.content("f").unwrap().unwrap(), b"xx");
        assert!(own.read("missing").unwrap().is_none() && own.inode("missing").is_none());
        own.put("f", b"y").unwrap();
        assert_eq!(own.content("f").unwrap().unwrap(), b"y");
    }
}
