//! Where a path in a tree leads. In a store links are followed (`transcript::locate`); each is resolved once and its
//! end held for as long as the tree is, so that a cut works in one place even if the link is changed meanwhile.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Tree;
use crate::cut::journal::LinkSeen;
use crate::session::{Refusal, Result};
use crate::transcript::{self, Last, Owner, Stop};

/// What temporary files are called beside the file `<name>`: `.<name><suffix>`.
const SUFFIXES: [&str; 3] = [".turnfs-new", ".turnfs-old", ".turnfs.tmp"];

/// The links of a store that were followed.
#[derive(Debug)]
pub(super) struct Links {
    pub owner: Owner,
    held: Mutex<Vec<Held>>,
}

#[derive(Clone, Debug)]
struct Held {
    seen: LinkSeen,
    end: End,
}

#[derive(Clone, Debug)]
enum End {
    Dir(Arc<OwnedFd>),
    File(Arc<OwnedFd>, OsString),
}

impl Links {
    pub fn of(owner: Owner) -> Links {
        Links { owner, held: Mutex::default() }
    }

    /// The link that is `path`, if that is to be followed, or the one nearest above it.
    fn above(&self, path: &Path, last: Last) -> Option<Held> {
        let held = self.held.lock();
        let counts = |link: &&Held| {
            path.starts_with(&link.seen.path) && (last == Last::Followed || *link.seen.path != *path)
        };
        let above = held.iter().filter(counts);
        above.max_by_key(|link| link.seen.path.components().count()).cloned()
    }
}

impl Tree {
    /// The directory that holds `relative`, and its name there.
    pub(super) fn place(&self, relative: &Path, last: Last) -> Result<(Arc<OwnedFd>, OsString), Stop> {
        let links = &self.links;
        if links.owner == Owner::Nobody {
            let place = transcript::locate(self.dir.as_fd(), Owner::Nobody, relative, Last::AsItIs)?;
            return Ok((Arc::new(place.dir), place.name));
        }
        if let Some((file, suffix)) = file_of_temporary(relative)
            && let Some(End::File(dir, name)) = self.file_link(&file)?
        {
            let mut temporary = OsString::from(".");
            temporary.push(name);
            temporary.push(suffix);
            return Ok((dir, temporary));
        }
        loop {
            let (start, above) = match links.above(relative, last) {
                Some(Held { end: End::File(dir, name), seen }) if *seen.path == *relative => {
                    return Ok((dir, name));
                }
                Some(Held { end: End::Dir(dir), seen }) => (Some(dir), seen.path),
                _ => (None, PathBuf::new().into()),
            };
            let rest = relative.strip_prefix(&above).unwrap_or(relative);
            let start = start.as_deref().unwrap_or(&self.dir);
            if rest.as_os_str().is_empty() {
                let dir = start.try_clone().map_err(errno)?;
                return Ok((Arc::new(dir), ".".into()));
            }
            let place = transcript::locate(start.as_fd(), links.owner, rest, last)?;
            let Some(first) = place.links.first() else {
                return Ok((Arc::new(place.dir), place.name));
            };
            let is_last = first.path == rest;
            let (seen, end) = match is_last {
                true => (first.clone(), end_of(place.dir, place.name)?),
                false => {
                    let to = transcript::locate(start.as_fd(), links.owner, &first.path, Last::Followed)?;
                    let seen = to.links.first().cloned().unwrap_or_else(|| first.clone());
                    (seen, end_of(to.dir, to.name)?)
                }
            };
            let path = above.join(&seen.path).into();
            let inode = match &end {
                End::Dir(_) => seen.inode,
                // Clients and cuts replace files: the directory that holds it tells the place.
                End::File(dir, _) => rustix::fs::fstat(dir)?.st_ino,
            };
            let seen = LinkSeen { path, text: seen.text.into(), inode };
            links.held.lock().push(Held { seen, end });
        }
    }

    /// Where a link to a file leads; `None` if `file` is none.
    fn file_link(&self, file: &Path) -> Result<Option<End>, Stop> {
        match self.place(file, Last::Followed) {
            // Whether it is there or not does not matter here.
            Err(Stop::Failed(Errno::NOENT)) => return Ok(None),
            place => drop(place?),
        }
        let held = self.links.above(file, Last::Followed).filter(|held| *held.seen.path == *file);
        Ok(held.map(|held| held.end).filter(|end| matches!(end, End::File(..))))
    }

    /// The links that were followed so far.
    pub fn links(&self) -> Vec<LinkSeen> {
        self.links.held.lock().iter().map(|link| link.seen.clone()).collect()
    }

    /// Makes sure that links lead where they led when they were noted.
    ///
    /// # Errors
    /// [`Refusal::NotFollowed`] for one that does not.
    pub fn must_lead_there(&self, noted: &[LinkSeen]) -> Result<()> {
        for link in noted {
            self.place(&link.path, Last::Followed)
                .map_err(|stop| self.stopped("cannot look at", &link.path, stop))?;
            if !self.links().contains(link) {
                let path = self.path().join(&link.path);
                return Err(Refusal::NotFollowed {
                    path,
                    why: "it leads elsewhere than when the cut was made",
                });
            }
        }
        Ok(())
    }

    pub(super) fn stopped(&self, action: &'static str, relative: &Path, stop: Stop) -> Refusal {
        match stop {
            Stop::Failed(errno) => self.error(action, relative, errno.into()),
            Stop::Link { path, why } => {
                // What is walked from the end of a link is told relative to it.
                let whole = relative.ancestors().find(|above| above.ends_with(&path)).unwrap_or(&path);
                Refusal::NotFollowed { path: self.path().join(whole), why }
            }
        }
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn end_of(dir: OwnedFd, name: OsString) -> Result<End, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(&dir, &name, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&opened)?;
    Ok(match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => End::Dir(Arc::new(opened)),
        _ => End::File(Arc::new(dir), name),
    })
}

/// The file that a temporary name stands beside, and its suffix.
fn file_of_temporary(relative: &Path) -> Option<(PathBuf, &'static str)> {
    let name = relative.file_name()?.to_str()?.strip_prefix('.')?;
    let suffix = SUFFIXES.into_iter().find(|suffix| name.ends_with(suffix))?;
    let name = name.strip_suffix(suffix).filter(|name| !name.is_empty())?;
    Some((relative.with_file_name(name), suffix))
}
