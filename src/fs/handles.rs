//! Open files and directories: what each of them shows until it is closed.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::control::ControlHandle;
use super::inodes::{Inodes, Told};
use super::node::{Node, SessionRef};
use crate::transcript::Stamp;

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
        stat: Stamp,
    },
    Control(ControlHandle),
}

/// An open text: one version of it, to the end.
pub(super) struct TextHandle {
    pub node: Node,
    /// `None` until somebody reads what the kernel does not have.
    pub text: Mutex<Option<Arc<Vec<u8>>>>,
    known: Mutex<(u128, u64)>,
    pub cache: Cache,
    /// Whether the text may grow while it is open (the last turn).
    pub grows: bool,
}

impl TextHandle {
    /// `len`: bytes.
    pub fn new(node: Node, version: u128, len: u64, text: Option<Arc<Vec<u8>>>, grows: bool) -> TextHandle {
        let text = Mutex::new(text);
        TextHandle { node, text, known: Mutex::new((version, len)), cache: Cache::Direct, grows }
    }

    pub fn version(&self) -> u128 {
        self.known.lock().0
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.known.lock().1
    }

    /// The text is this one from now on, of which the old one is the beginning.
    pub fn grow(&self, text: Arc<Vec<u8>>, version: u128) {
        *self.known.lock() = (version, text.len() as u64);
        *self.text.lock() = Some(text);
    }
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

/// Decides how a text of this version and length (bytes) may use the page cache, and notes it: only handles
/// of one version share it, so that no reader ever sees pages of two.
pub(super) fn admit(inodes: &Inodes, ino: u64, version: u128, len: u64) -> Cache {
    let decide = |told: &mut Told| {
        let same = told.text == Some(version);
        if told.facts.map(|facts| facts.size) != Some(len) || (told.cached > 0 && !same) {
            return Cache::Direct;
        }
        told.cached += 1;
        (told.text, told.text_len) = (Some(version), len);
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
pub(super) fn grew(inodes: &Inodes, ino: u64, cache: Cache, version: u128, len: u64) {
    if cache != Cache::Direct {
        inodes.told(ino, |told| (told.text, told.text_len) = (Some(version), len));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::Facts;
    use super::*;

    fn inode(inodes: &Inodes, size: u64) -> u64 {
        let node = Node::Host(std::path::Path::new("/a").into());
        let ino = inodes.remember(&node, super::super::inodes::ROOT, std::ffi::OsStr::new("a"));
        inodes.told(ino, |told| told.facts = Some(Facts::file(size, jiff::Timestamp::UNIX_EPOCH)));
        ino
    }

    #[test]
    fn handles_of_two_versions_never_share_the_page_cache() {
        let inodes = Inodes::new();
        let ino = inode(&inodes, 3);
        let (old, new) = (1, 2);
        assert_eq!(admit(&inodes, ino, old, 3), Cache::Fresh);
        assert_eq!(admit(&inodes, ino, old, 3), Cache::Keep);
        assert_eq!(admit(&inodes, ino, new, 3), Cache::Direct);
        dismiss(&inodes, ino, Cache::Fresh);
        assert_eq!(admit(&inodes, ino, new, 3), Cache::Direct, "one reader of the old text is left");
        dismiss(&inodes, ino, Cache::Keep);
        assert_eq!(admit(&inodes, ino, new, 3), Cache::Fresh);
    }

    #[test]
    fn a_text_of_another_size_than_the_kernel_knows_is_read_directly() {
        let inodes = Inodes::new();
        let ino = inode(&inodes, 3);
        assert_eq!(admit(&inodes, ino, 1, 6), Cache::Direct);
        assert_eq!(admit(&inodes, ino, 1, 3), Cache::Fresh);
    }
}
