//! What tells that a session consists of the files that were read, and that these did not change.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Stamps;
use crate::session::{Refusal, Result, SessionKey};
use crate::transcript::{self, EntryKind, FsTrust, Stamp};

/// The names in a session's directory, where it is one: a new file there is a change.
pub(super) struct Names {
    /// Sorted; `None` where the session is a single file, or is not there.
    names: Option<Vec<OsString>>,
    /// Of the directory, and the time before it was listed.
    stamp: Option<Stamp>,
    listed_at: Timestamp,
}

impl Names {
    pub fn read(key: &SessionKey, ground: &FsTrust) -> Result<Names> {
        let listed_at = transcript::clock();
        let stamp = Names::stamp(key, ground)?;
        Ok(Names { names: names(key)?, stamp, listed_at })
    }

    fn stamp(key: &SessionKey, ground: &FsTrust) -> Result<Option<Stamp>> {
        Ok(stamp(key, ground, &key.path)?.filter(|stamp| stamp.kind == EntryKind::Dir))
    }

    /// What they name, relative to the store's root.
    pub fn files(&self, key: &SessionKey) -> impl Iterator<Item = PathBuf> {
        self.names.iter().flatten().map(|name| key.path.join(name))
    }

    /// Whether they are the same now. The directory itself is read only while its stamp proves nothing: whoever
    /// watches it would hear of each reading.
    pub fn are_true(&mut self, key: &SessionKey, ground: &FsTrust) -> Result<bool> {
        let stamp = Names::stamp(key, ground)?;
        if stamp == self.stamp && stamp.is_none_or(|stamp| stamp.vouches(self.listed_at)) {
            return Ok(true);
        }
        let now = Names::read(key, ground)?;
        let same = now.names == self.names;
        if same {
            *self = now;
        }
        Ok(same)
    }
}

/// The stamps of files of a session.
pub(super) fn stamps(key: &SessionKey, ground: &FsTrust, files: &[PathBuf]) -> Result<Stamps> {
    files.iter().map(|file| Ok((file.clone(), stamp(key, ground, file)?))).collect()
}

/// Whether the files still have these stamps.
pub(super) fn are_true(stamps: &Stamps, key: &SessionKey, ground: &FsTrust) -> Result<bool> {
    for (file, before) in stamps {
        if stamp(key, ground, file)? != *before {
            return Ok(false);
        }
    }
    Ok(true)
}

fn stamp(key: &SessionKey, ground: &FsTrust, file: &Path) -> Result<Option<Stamp>> {
    let path = key.root.join(file);
    ground.stamp(&path).map_err(|errno| Refusal::Io { action: "cannot look at", path, errno })
}

fn names(key: &SessionKey) -> Result<Option<Vec<OsString>>> {
    let path = key.absolute();
    let listed = rustix::fs::open(&path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .and_then(transcript::list);
    match listed {
        Ok(entries) => Ok(Some(entries.into_iter().map(|entry| entry.name).collect())),
        Err(Errno::NOTDIR | Errno::NOENT) => Ok(None),
        Err(errno) => Err(Refusal::Io { action: "cannot list", path, errno }),
    }
}
