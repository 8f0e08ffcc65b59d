//! Open files and directories: what each of them shows until it is closed.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use xxhash_rust::xxh3::Xxh3;

use super::control::ControlHandle;
use super::inodes::{Inodes, KernelView};
use super::node::{Node, Part, SessionRef};
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
    pub cache: Cache,
    /// Until something is asked through it: the kernel may not know yet that it is open.
    landing: AtomicBool,
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
    /// Whether the text may grow while it is open (the last turn).
    pub grows: bool,
}

impl TextHandle {
    /// `len`: bytes.
    pub fn new(node: Node, version: u128, len: u64, text: Option<Arc<Vec<u8>>>, grows: bool) -> TextHandle {
        TextHandle { node, text: Mutex::new(text), known: Mutex::new((version, len)), grows }
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

/// How what the kernel keeps (pages of a file, entries of a directory) is used through one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Not at all: the size that the kernel knows need not be right.
    Direct,
    /// From now on; what is there is of another version.
    Fresh,
    /// What is there is this very version.
    Keep,
}

/// What the kernel keeps of a node, and who uses it: only handles of one version, so that no reader ever sees
/// a mixture of two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelCache {
    /// Open handles that use it.
    pub handles: u32,
    /// Those of them that made the kernel drop another version, and of which it is not known yet that it did.
    landing: u32,
    /// The version that those handles read, or the last of them read.
    pub version: Option<u128>,
    /// Of a file: its length, bytes.
    pub len: u64,
}

impl KernelCache {
    /// Decides how a handle on this version may use what is kept, and notes it.
    fn admit(&mut self, version: u128, len: u64) -> Cache {
        let same = self.version == Some(version);
        if self.handles > 0 && !same {
            return Cache::Direct;
        }
        self.handles += 1;
        (self.version, self.len) = (Some(version), len);
        if same && self.landing == 0 {
            return Cache::Keep;
        }
        self.landing += 1;
        Cache::Fresh
    }
}

impl Handles {
    pub fn add(&self, ino: u64, shows: Shows, cache: Cache) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let landing = AtomicBool::new(cache == Cache::Fresh);
        self.open.write().insert(number, Arc::new(Handle { ino, shows, cache, landing }));
        number
    }

    /// The handle, for something that the kernel asks through it.
    pub fn get(&self, number: u64, inodes: &Inodes) -> Option<Arc<Handle>> {
        let handle = self.open.read().get(&number).cloned()?;
        handle.has_landed(inodes);
        Some(handle)
    }

    /// Closes a handle.
    pub fn remove(&self, number: u64, inodes: &Inodes) {
        let Some(handle) = self.open.write().remove(&number) else { return };
        handle.has_landed(inodes);
        if handle.cache != Cache::Direct {
            inodes.told(handle.ino, |told| told.cached.handles = told.cached.handles.saturating_sub(1));
        }
    }
}

impl Handle {
    fn has_landed(&self, inodes: &Inodes) {
        if self.landing.load(Ordering::Relaxed) && self.landing.swap(false, Ordering::Relaxed) {
            inodes.told(self.ino, |told| told.cached.landing = told.cached.landing.saturating_sub(1));
        }
    }

    /// The text of a handle grew.
    pub fn grew(&self, inodes: &Inodes, version: u128, len: u64) {
        if self.cache != Cache::Direct {
            inodes.told(self.ino, |told| (told.cached.version, told.cached.len) = (Some(version), len));
        }
    }
}

/// How a handle on a text of this version and length (bytes) may use the kernel's pages.
pub(super) fn admit_text(inodes: &Inodes, ino: u64, version: u128, len: u64) -> Cache {
    let decide = |told: &mut KernelView| match told.attrs {
        Some(attrs) if attrs.size == len => told.cached.admit(version, len),
        _ => Cache::Direct,
    };
    inodes.told(ino, decide).unwrap_or(Cache::Direct)
}

/// How a handle on these entries of a directory, the first of which is the directory itself, may use those that
/// the kernel keeps.
pub(super) fn admit_entries(inodes: &Inodes, ino: u64, entries: &[(OsString, Node)]) -> Cache {
    // Of a session's own files a name always means the same one.
    let names_tell =
        matches!(entries.first(), Some((_, Node::Session(_, part))) if !matches!(part, Part::Agents));
    let mut version = Xxh3::new();
    for (name, node) in entries {
        version.update(name.as_encoded_bytes());
        // No name has this byte.
        version.update(b"\0");
        if !names_tell {
            version.update(&inodes.number(node).to_ne_bytes());
        }
    }
    inodes.told(ino, |told| told.cached.admit(version.digest128(), 0)).unwrap_or(Cache::Direct)
}

#[cfg(test)]
mod tests {
    use super::super::tree::Attrs;
    use super::*;

    fn inode(inodes: &Inodes, size: u64) -> u64 {
        let node = Node::Host(std::path::Path::new("/a").into());
        let ino = inodes.remember(&node, super::super::inodes::ROOT, std::ffi::OsStr::new("a"));
        inodes.told(ino, |told| told.attrs = Some(Attrs::file(size, jiff::Timestamp::UNIX_EPOCH)));
        ino
    }

    fn open(inodes: &Inodes, handles: &Handles, ino: u64, version: u128) -> (Cache, u64) {
        let cache = admit_text(inodes, ino, version, 3);
        let node = Node::Host(std::path::Path::new("/a").into());
        let text = TextHandle::new(node, version, 3, None, false);
        (cache, handles.add(ino, Shows::Text(text), cache))
    }

    #[test]
    fn handles_of_two_versions_never_share_what_the_kernel_keeps() {
        let (inodes, handles) = (Inodes::new(), Handles::default());
        let ino = inode(&inodes, 3);
        let (old, new) = (1, 2);
        let (first, handle) = open(&inodes, &handles, ino, old);
        assert_eq!(first, Cache::Fresh);
        handles.get(handle, &inodes);
        let (second, another) = open(&inodes, &handles, ino, old);
        assert_eq!(second, Cache::Keep);
        assert_eq!(open(&inodes, &handles, ino, new).0, Cache::Direct);
        handles.remove(handle, &inodes);
        assert_eq!(open(&inodes, &handles, ino, new).0, Cache::Direct, "one reader of the old text is left");
        handles.remove(another, &inodes);
        assert_eq!(open(&inodes, &handles, ino, new).0, Cache::Fresh);
    }

    #[test]
    fn nothing_is_kept_before_the_kernel_has_certainly_dropped_the_other_version() {
        let (inodes, handles) = (Inodes::new(), Handles::default());
        let ino = inode(&inodes, 3);
        let (_, old) = open(&inodes, &handles, ino, 1);
        handles.remove(old, &inodes);
        let (first, new) = open(&inodes, &handles, ino, 2);
        let (second, same) = open(&inodes, &handles, ino, 2);
        assert_eq!((first, second), (Cache::Fresh, Cache::Fresh), "the first answer may be on its way");
        handles.get(new, &inodes);
        handles.remove(same, &inodes);
        assert_eq!(open(&inodes, &handles, ino, 2).0, Cache::Keep);
    }

    #[test]
    fn a_text_of_another_size_than_the_kernel_knows_is_read_directly() {
        let inodes = Inodes::new();
        let ino = inode(&inodes, 3);
        assert_eq!(admit_text(&inodes, ino, 1, 6), Cache::Direct);
        assert_eq!(admit_text(&inodes, ino, 1, 3), Cache::Fresh);
    }
}
