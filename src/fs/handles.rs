//! Open files and directories: what each of them shows until it is closed.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use xxhash_rust::xxh3::xxh3_128;

use super::control::ControlHandle;
use super::inodes::{Inodes, Told};
use super::node::{Node, SessionRef};
use crate::transcript::Stat;

/// All open files and directories, by handle number.
#[derive(Default)]
pub(super) struct Handles {
    open: RwLock<HashMap<u64, Arc<Handle>>>,
    last: AtomicU64,
}

pub(super) struct Handle {
    pub ino: u64,
    pub shows: Shows,
}

pub(super) enum Shows {
    /// A directory as it was when it was opened; the entry at `i` has the cookie `i + 1`.
    Directory(Vec<(OsString, Node)>),
    Text(TextHandle),
    /// A store's file, opened again for each read.
    Raw {
        session: Arc<SessionRef>,
        name: OsString,
        stat: Stat,
    },
    Control(ControlHandle),
}

/// A text made when it was opened.
pub(super) struct TextHandle {
    pub text: Mutex<Arc<Vec<u8>>>,
    pub cache: Cache,
    /// The node, if its text may grow while it is open (the last turn).
    pub grows: Option<Node>,
}

/// How the kernel's page cache is used for one open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Not at all: the size that the kernel knows need not be right.
    Direct,
    /// From now on; what is in it is of another version.
    Fresh,
    /// What is in it is this very text.
    Keep,
}

impl Handles {
    pub fn add(&self, ino: u64, shows: Shows) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.write().insert(number, Arc::new(Handle { ino, shows }));
        number
    }

    pub fn get(&self, number: u64) -> Option<Arc<Handle>> {
        self.open.read().get(&number).cloned()
    }

    pub fn remove(&self, number: u64) -> Option<Arc<Handle>> {
        self.open.write().remove(&number)
    }
}

/// Decides how a text may use the page cache, and notes it: only handles of one text share it, so that no
/// reader ever sees pages of two versions.
pub(super) fn admit(inodes: &Inodes, ino: u64, text: &[u8]) -> Cache {
    let hash = xxh3_128(text);
    let decide = |told: &mut Told| {
        let same = told.text == Some(hash);
        if told.size != Some(text.len() as u64) || (told.cached > 0 && !same) {
            return Cache::Direct;
        }
        told.cached += 1;
        told.text = Some(hash);
        if same { Cache::Keep } else { Cache::Fresh }
    };
    inodes.told(ino, decide).unwrap_or(Cache::Direct)
}

/// A handle that used the page cache is closed.
pub(super) fn dismiss(inodes: &Inodes, ino: u64, cache: Cache) {
    if cache != Cache::Direct {
        inodes.told(ino, |told| told.cached = told.cached.saturating_sub(1));
    }
}

/// The text of a handle that uses the page cache grew.
pub(super) fn grew(inodes: &Inodes, ino: u64, cache: Cache, text: &[u8]) {
    if cache != Cache::Direct {
        inodes.told(ino, |told| told.text = Some(xxh3_128(text)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(inodes: &Inodes, size: u64) -> u64 {
        let ino = inodes.remember(&Node::Host(std::path::Path::new("/a").into()));
        inodes.told(ino, |told| told.size = Some(size));
        ino
    }

    #[test]
    fn handles_of_two_versions_never_share_the_page_cache() {
        let inodes = Inodes::new();
        let ino = inode(&inodes, 3);
        assert_eq!(admit(&inodes, ino, b"old"), Cache::Fresh);
        assert_eq!(admit(&inodes, ino, b"old"), Cache::Keep);
        assert_eq!(admit(&inodes, ino, b"new"), Cache::Direct);
        dismiss(&inodes, ino, Cache::Fresh);
        assert_eq!(admit(&inodes, ino, b"new"), Cache::Direct, "one reader of the old text is left");
        dismiss(&inodes, ino, Cache::Keep);
        assert_eq!(admit(&inodes, ino, b"new"), Cache::Fresh);
    }

    #[test]
    fn a_text_of_another_size_than_the_kernel_knows_is_read_directly() {
        let inodes = Inodes::new();
        let ino = inode(&inodes, 3);
        assert_eq!(admit(&inodes, ino, b"longer"), Cache::Direct);
        assert_eq!(admit(&inodes, ino, b"old"), Cache::Fresh);
    }
}
