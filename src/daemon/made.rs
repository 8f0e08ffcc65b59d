//! That turnfs made a mount point itself, remembered in the state directory while the directory is there: a
//! daemon that is killed cannot remove it, so the next one at that place, or `turnfs umount`, does.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::claim::stem;
use crate::cut::PrivateDir;

/// The notes of all mount points.
#[derive(Clone, Debug)]
pub struct Notes {
    mounts: Arc<PrivateDir>,
}

/// What tells the directory that was made from one that somebody made there later.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// For a person who looks into the file.
    path: String,
    device: u64,
    inode: u64,
    /// Birth time, nanoseconds since 1970; null where the file system has none.
    born: Option<i128>,
}

impl Note {
    /// Of the directory at `path`; `None` if there is none.
    fn of(path: &Path) -> Option<Note> {
        let facts = std::fs::symlink_metadata(path).ok().filter(std::fs::Metadata::is_dir)?;
        let born = facts.created().ok().and_then(|at| jiff::Timestamp::try_from(at).ok());
        Some(Note {
            path: path.to_string_lossy().into_owned(),
            device: facts.dev(),
            inode: facts.ino(),
            born: born.map(jiff::Timestamp::as_nanosecond),
        })
    }
}

impl Notes {
    pub fn in_dir(mounts: Arc<PrivateDir>) -> Notes {
        Notes { mounts }
    }

    /// Notes that the directory at `path` was just made. Nothing may be mounted there.
    pub fn put(&self, path: &Path) {
        let Some(note) = Note::of(path) else { return };
        let put = serde_json::to_vec(&note).map(|text| self.mounts.put(&name(path), &text));
        if let Ok(Err(refusal)) = put {
            log::warn!("{} stays if this daemon is killed: {refusal}", path.display());
        }
    }

    /// Whether the directory at `path` is the one that was noted. Nothing may be mounted there.
    pub fn has(&self, path: &Path) -> bool {
        let noted = self.mounts.content(&name(path)).ok().flatten();
        let noted = noted.and_then(|text| serde_json::from_slice::<Note>(&text).ok());
        noted.is_some() && noted == Note::of(path)
    }

    pub fn remove(&self, path: &Path) {
        if let Err(refusal) = self.mounts.remove(&name(path)) {
            log::warn!("{refusal}");
        }
    }

    /// Removes the directory at `path` if it was noted and is empty, and the note; whether it did.
    pub fn remove_directory(&self, path: &Path) -> bool {
        let removed = self.has(path) && std::fs::remove_dir(path).is_ok();
        self.remove(path);
        removed
    }
}

fn name(path: &Path) -> String {
    format!("{}.made", stem(path))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;
    use crate::cut::StateDir;

    #[test]
    fn only_the_very_directory_that_was_noted_is_removed_and_only_if_it_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(&dir.path().join("state"));
        let notes = Notes::in_dir(super::super::claim::of_mounts(&state).unwrap());
        let path = dir.path().join("mnt");
        std::fs::create_dir(&path).unwrap();
        assert!(!notes.has(&path), "never noted");
        assert!(!notes.remove_directory(&path) && path.exists());
        notes.put(&path);
        assert!(notes.has(&path));
        std::fs::write(path.join("file"), "x").unwrap();
        assert!(!notes.remove_directory(&path) && path.exists(), "not empty");
        std::fs::remove_file(path.join("file")).unwrap();
        assert!(!notes.remove_directory(&path), "the note is gone: somebody used the directory");
        notes.put(&path);
        // Another one under the same name; the first one stays, so that its inode is not used again.
        std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(!notes.remove_directory(&path) && path.exists());
        notes.put(&path);
        assert!(notes.remove_directory(&path) && !path.exists());
    }
}
