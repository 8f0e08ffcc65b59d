//! Open files and directories: what each of them shows until it is closed.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::control::ControlHandle;
use super::kernel_view::{Cache, KernelView};
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

    /// Replaces the text by a longer one that begins with it.
    pub fn grow(&self, text: Arc<Vec<u8>>, version: u128) {
        *self.known.lock() = (version, text.len() as u64);
        *self.text.lock() = Some(text);
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
    pub fn get(&self, number: u64, kernel: &KernelView) -> Option<Arc<Handle>> {
        let handle = self.open.read().get(&number).cloned()?;
        handle.has_landed(kernel);
        Some(handle)
    }

    /// Closes a handle.
    pub fn remove(&self, number: u64, kernel: &KernelView) {
        let Some(handle) = self.open.write().remove(&number) else { return };
        handle.has_landed(kernel);
        if handle.cache != Cache::Direct {
            kernel.told(handle.ino, |told| told.cached.handles = told.cached.handles.saturating_sub(1));
        }
    }
}

impl Handle {
    fn has_landed(&self, kernel: &KernelView) {
        if self.landing.load(Ordering::Relaxed) && self.landing.swap(false, Ordering::Relaxed) {
            kernel.told(self.ino, |told| told.cached.landed());
        }
    }

    /// The text of a handle grew.
    pub fn grew(&self, kernel: &KernelView, version: u128, len: u64) {
        if self.cache != Cache::Direct {
            kernel.told(self.ino, |told| (told.cached.version, told.cached.len) = (Some(version), len));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel_view::Attrs;
    use super::*;

    fn inode(kernel: &KernelView, size: u64) -> u64 {
        let node = Node::Host(std::path::Path::new("/a").into());
        let ino = kernel.remember(&node, super::super::kernel_view::ROOT, std::ffi::OsStr::new("a"));
        kernel.told(ino, |told| told.attrs = Some(Attrs::file(size, jiff::Timestamp::UNIX_EPOCH)));
        ino
    }

    fn open(kernel: &KernelView, handles: &Handles, ino: u64, version: u128) -> (Cache, u64) {
        let cache = kernel.admit_text(ino, version, 3);
        let node = Node::Host(std::path::Path::new("/a").into());
        let text = TextHandle::new(node, version, 3, None, false);
        (cache, handles.add(ino, Shows::Text(text), cache))
    }

    #[test]
    fn handles_of_two_versions_never_share_what_the_kernel_keeps() {
        let (kernel, handles) = (KernelView::new(), Handles::default());
        let ino = inode(&kernel, 3);
        let (old, new) = (1, 2);
        let (first, handle) = open(&kernel, &handles, ino, old);
        assert_eq!(first, Cache::Fresh);
        handles.get(handle, &kernel);
        let (second, another) = open(&kernel, &handles, ino, old);
        assert_eq!(second, Cache::Keep);
        assert_eq!(open(&kernel, &handles, ino, new).0, Cache::Direct);
        handles.remove(handle, &kernel);
        assert_eq!(open(&kernel, &handles, ino, new).0, Cache::Direct, "one reader of the old text is left");
        handles.remove(another, &kernel);
        assert_eq!(open(&kernel, &handles, ino, new).0, Cache::Fresh);
    }

    #[test]
    fn nothing_is_kept_before_the_kernel_has_certainly_dropped_the_other_version() {
        let (kernel, handles) = (KernelView::new(), Handles::default());
        let ino = inode(&kernel, 3);
        let (_, old) = open(&kernel, &handles, ino, 1);
        handles.remove(old, &kernel);
        let (first, new) = open(&kernel, &handles, ino, 2);
        let (second, same) = open(&kernel, &handles, ino, 2);
        assert_eq!((first, second), (Cache::Fresh, Cache::Fresh), "the first answer may be on its way");
        handles.get(new, &kernel);
        handles.remove(same, &kernel);
        assert_eq!(open(&kernel, &handles, ino, 2).0, Cache::Keep);
    }

    #[test]
    fn a_text_of_another_size_than_the_kernel_knows_is_read_directly() {
        let kernel = KernelView::new();
        let ino = inode(&kernel, 3);
        assert_eq!(kernel.admit_text(ino, 1, 6), Cache::Direct);
        assert_eq!(kernel.admit_text(ino, 1, 3), Cache::Fresh);
    }
}
