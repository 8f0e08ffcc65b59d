//! Files and directories that only turnfs writes, opened so that nobody can make it write somewhere else: a link
//! that was planted at their place is not followed, and what belongs to another user is not used.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

/// What a file of our own is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    Reading,
    /// Created (0600) if it is missing; written at the start.
    Writing,
    /// Created (0600) if it is missing; written at the end.
    Appending,
}

/// Makes sure that `path` is a directory of ours that nobody else can write to; made (0700) if it is missing. The
/// directory above it must be there.
///
/// # Errors
/// EACCES if it is a link, is not a directory, or belongs to somebody else.
pub fn directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = path.symlink_metadata()?;
    if !found.is_dir() {
        return Err(refused("it is not a directory"));
    }
    check(found.uid(), found.mode())
}

/// Opens a file of ours.
///
/// # Errors
/// EACCES if it is a link, is not a regular file, has other names, or belongs to somebody else.
pub fn file(path: &Path, purpose: For) -> io::Result<File> {
    let flags = match purpose {
        For::Reading => OFlags::RDONLY,
        For::Writing => OFlags::WRONLY | OFlags::CREATE,
        For::Appending => OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND,
    };
    // A FIFO must not make us wait.
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(CWD, path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::LOOP) => return Err(refused("it is a symbolic link")),
        Err(errno) => return Err(errno.into()),
    };
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(refused("it is not a regular file"));
    }
    if found.nlink() > 1 {
        return Err(refused("it has another name somewhere else"));
    }
    check(found.uid(), found.mode())?;
    Ok(file)
}

fn check(owner: u32, mode: u32) -> io::Result<()> {
    if owner != rustix::process::geteuid().as_raw() {
        return Err(refused("it belongs to another user"));
    }
    if mode & 0o022 != 0 {
        return Err(refused("other users can write to it"));
    }
    Ok(())
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

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
        rustix::fs::mknodat(CWD, at("fifo"), rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        for name in ["link", "dangling", "twice", "open", "fifo", "dir"] {
            for purpose in [For::Writing, For::Appending] {
                assert!(file(&at(name), purpose).is_err(), "{name} {purpose:?}");
            }
        }
        assert_eq!(std::fs::read_to_string(at("victim")).unwrap(), "precious");
        assert!(!at("nowhere").exists());
        symlink(at("dir"), at("link to dir")).unwrap();
        assert!(directory(&at("link to dir")).is_err());
        assert!(directory(&at("victim")).is_err());
    }

    #[test]
    fn what_is_ours_is_made_for_us_alone_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for _ in 0..2 {
            directory(&at("d")).unwrap();
            file(&at("f"), For::Appending).unwrap().write_all(b"x").unwrap();
        }
        let mode = |name: &str| at(name).metadata().unwrap().mode() & 0o7777;
        assert_eq!((mode("d") & 0o077, mode("f")), (0, 0o600));
        assert_eq!(std::fs::read(at("f")).unwrap(), b"xx");
        assert!(file(&at("missing"), For::Reading).is_err() && !at("missing").exists());
    }
}
