//! A file held open, and every operation that reads or changes what is in it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, Mode, Stat};
use rustix::io::Errno;

use super::fault;
use crate::session::{Refusal, Result};
use crate::transcript::{self, Prefix};

/// Bytes moved by one read or write.
pub(in crate::cut) const CHUNK: usize = 256 * 1024;

/// A regular file held open.
#[derive(Debug)]
pub(in crate::cut) struct Open {
    pub file: File,
    /// For messages.
    path: PathBuf,
}

impl Open {
    /// A file that was just opened; `path` is for messages.
    pub fn of(file: File, path: PathBuf) -> Open {
        Open { file, path }
    }

    /// What prevented `action`.
    pub fn error(&self, action: &'static str, error: io::Error) -> Refusal {
        Refusal::io(action, &self.path, error)
    }

    /// Makes one change, unless a test lets `operation` fail. `action` is for messages.
    fn change(
        &self,
        operation: &'static str,
        action: &'static str,
        change: impl FnOnce() -> io::Result<()>,
    ) -> Result<()> {
        fault::inject(operation).and_then(|()| change()).map_err(|e| self.error(action, e))
    }

    pub fn facts(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.file).map_err(|e| self.error("cannot look at", e.into()))
    }

    /// Length, bytes.
    pub fn len(&self) -> Result<u64> {
        Ok(self.facts()?.st_size as u64)
    }

    /// Whether the file has more names than one.
    pub fn has_several_links(&self) -> Result<bool> {
        Ok(self.facts()?.st_nlink > 1)
    }

    /// Gives the file owner, mode, time and extended attributes (ACLs are among them) of another one.
    pub fn make_like(&self, other: &Open) -> Result<()> {
        let facts = other.facts()?;
        let mut mode = facts.st_mode;
        if !copy_attributes(&other.file, &self.file) {
            // Without its ACL the mode's middle part, which was the ACL's mask, would be the group's.
            mode &= !0o070;
        }
        self.set_owner_and_mode(facts.st_uid, facts.st_gid, mode)?;
        self.set_mtime(super::mtime(&facts))
    }

    /// Reads until `into` is full or the file ends; how many bytes came.
    pub fn read_full(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        transcript::read_full(&self.file, into, offset).map_err(|e| self.error("cannot read", e))
    }

    /// The bytes `range`; `None` if the file ends before they do.
    pub fn read_span(&self, range: Range<u64>) -> Result<Option<Vec<u8>>> {
        transcript::read_span(&self.file, &self.path, range)
    }

    /// As [`transcript::prefixes`]; [`Refusal::Changed`] if the file becomes shorter meanwhile.
    pub fn prefixes(&self, lengths: &[u64]) -> Result<(Prefix, Vec<Prefix>)> {
        transcript::prefixes(&self.file, lengths).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => Refusal::Changed { what: self.path.display().to_string() },
            _ => self.error("cannot read", e),
        })
    }

    pub fn write_all(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let write = || -> io::Result<()> {
            if let Err(error) = fault::inject("write") {
                // A disk that fills up takes some of the bytes first.
                self.file.write_all_at(&bytes[..bytes.len() / 2], offset)?;
                return Err(error);
            }
            self.file.write_all_at(bytes, offset)
        };
        write().map_err(|e| self.error("cannot write", e))
    }

    pub fn truncate(&self, len: u64) -> Result<()> {
        self.change("truncate", "cannot truncate", || Ok(rustix::fs::ftruncate(&self.file, len)?))
    }

    /// Makes the file `to` bytes long with zeros behind `from`, with the space for them reserved where
    /// the file system can do that.
    pub fn extend(&self, from: u64, to: u64) -> Result<()> {
        self.change("reserve", "cannot extend", || {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), from, to - from) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    Ok(rustix::fs::ftruncate(&self.file, to)?)
                }
                other => Ok(other?),
            }
        })
    }

    pub fn sync(&self) -> Result<()> {
        self.change("fsync", "cannot sync", || Ok(rustix::fs::fsync(&self.file)?))
    }

    /// Copies `len` bytes of `source` from `from` to `at` here; shares blocks where the file system can.
    pub fn copy_from(&self, source: &Open, from: u64, len: u64, at: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        fault::inject("copy").map_err(|e| self.error("cannot write", e))?;
        let (mut input, mut output, mut left) = (from, at, len);
        while left > 0 {
            let take = left.min(1 << 30) as usize;
            let (mut i, mut o) = (input, output);
            match rustix::fs::copy_file_range(&source.file, Some(&mut i), &self.file, Some(&mut o), take) {
                Ok(0) => break,
                Ok(n) => {
                    input += n as u64;
                    output += n as u64;
                    left -= n as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::BADF) => break,
                Err(e) => return Err(self.error("cannot write", e.into())),
            }
        }
        let mut buffer = vec![0; CHUNK.min(left as usize)];
        while left > 0 {
            let want = buffer.len().min(left as usize);
            let got = source.read_full(&mut buffer[..want], input)?;
            if got == 0 {
                return Err(Refusal::Changed { what: source.path.display().to_string() });
            }
            self.file.write_all_at(&buffer[..got], output).map_err(|e| self.error("cannot write", e))?;
            input += got as u64;
            output += got as u64;
            left -= got as u64;
        }
        Ok(())
    }

    /// Gives the file an owner and a mode; an owner that it already has costs nothing. A group that this
    /// user may not give away is left out, and with it what the mode would give to the user's own group.
    pub fn set_owner_and_mode(&self, uid: u32, gid: u32, mode: u32) -> Result<()> {
        self.change("mode", "cannot set the mode of", || {
            let now = rustix::fs::fstat(&self.file)?;
            let mut mode = mode & 0o7777;
            if (now.st_uid, now.st_gid) != (uid, gid) {
                match std::os::unix::fs::fchown(&self.file, Some(uid), Some(gid)) {
                    Err(error) if now.st_uid == uid && error.kind() == io::ErrorKind::PermissionDenied => {
                        mode &= !0o070;
                    }
                    changed => changed?,
                }
            }
            Ok(rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))?)
        })
    }

    /// Gives the file a time of last change (nanoseconds since 1970).
    pub fn set_mtime(&self, nanoseconds: i128) -> Result<()> {
        let time = rustix::fs::Timespec {
            tv_sec: nanoseconds.div_euclid(1_000_000_000) as i64,
            tv_nsec: nanoseconds.rem_euclid(1_000_000_000) as _,
        };
        let times = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ },
            last_modification: time,
        };
        self.change("time", "cannot set the time of", || Ok(rustix::fs::futimens(&self.file, &times)?))
    }
}

/// Copies extended attributes, as far as this user and the file system can; false if an ACL was lost.
fn copy_attributes(from: &File, to: &File) -> bool {
    const ACL: &[u8] = b"system.posix_acl_access";
    let mut names = vec![0; 64 * 1024];
    let Ok(len) = rustix::fs::flistxattr(from, &mut names[..]) else { return true };
    let mut whole = true;
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 64 * 1024];
        let copied = rustix::fs::fgetxattr(from, name, &mut value[..])
            .and_then(|len| rustix::fs::fsetxattr(to, name, &value[..len], rustix::fs::XattrFlags::empty()));
        whole &= copied.is_ok() || name != ACL;
    }
    whole
}
