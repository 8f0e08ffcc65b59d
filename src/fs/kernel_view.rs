//! What the kernel has been told: which nodes it knows by which numbers and names, which names it knows to be
//! absent, the attributes of the last answer, and what its page cache holds and who reads that.
//!
//! Inode numbers are made from what a node is, so that they are the same in every mount, and are kept in memory
//! only for as long as the kernel knows them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::RwLock;
use xxhash_rust::xxh3::Xxh3;

use super::node::{Kind, Node, Part};

/// The number of the mount's root, fixed by the protocol.
pub const ROOT: u64 = 1;
/// How many numbers from the wanted one on are tried when two identities collide.
const PROBES: u64 = 16;

/// What the kernel has been told. Shared by all threads.
pub(super) struct KernelView {
    known: RwLock<HashMap<u64, Known>>,
    identity: fn(&Node) -> u64,
}

struct Known {
    node: Node,
    /// How often the kernel was told of it and has not yet said that it forgot.
    lookups: u64,
    told: Told,
    /// The names by which the kernel found it.
    names: Vec<OsString>,
    /// Of a directory: names that the kernel was told are not there.
    absent: Vec<OsString>,
}

/// What the kernel was told of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// In the last answer.
    pub attrs: Option<Attrs>,
    /// What it keeps of its content.
    pub cached: KernelCache,
}

/// How many absent names of one directory are remembered; more are not cached by the kernel.
const MOST_ABSENT: usize = 64;

impl Known {
    fn new(node: Node, lookups: u64) -> Known {
        Known { node, lookups, told: Told::default(), names: Vec::new(), absent: Vec::new() }
    }
}

impl KernelView {
    pub fn new() -> KernelView {
        KernelView::with_identity(Node::identity)
    }

    fn with_identity(identity: fn(&Node) -> u64) -> KernelView {
        let root = Known::new(Node::Root, 1);
        KernelView { known: RwLock::new(HashMap::from([(ROOT, root)])), identity }
    }

    /// The node with this number, if the kernel knows it.
    pub fn node(&self, ino: u64) -> Option<Node> {
        self.known.read().get(&ino).map(|known| known.node.clone())
    }

    /// The number that the node has or would get.
    pub fn number(&self, node: &Node) -> u64 {
        self.find(&self.known.read(), node)
    }

    /// The node's number, for an answer by which the kernel gets to know it by this name in `parent`.
    pub fn remember(&self, node: &Node, parent: u64, name: &OsStr) -> u64 {
        let mut known = self.known.write();
        if let Some(directory) = known.get_mut(&parent) {
            directory.absent.retain(|absent| absent != name);
        }
        let ino = self.find(&known, node);
        let entry = known.entry(ino).or_insert_with(|| Known::new(node.clone(), 0));
        entry.lookups += 1;
        if !entry.names.iter().any(|known| known == name) {
            entry.names.push(name.to_owned());
        }
        ino
    }

    /// The names by which the kernel knows a node.
    pub fn names(&self, ino: u64) -> Vec<OsString> {
        self.known.read().get(&ino).map(|known| known.names.clone()).unwrap_or_default()
    }

    /// Notes that the kernel will be told that a directory has no such name; false if it must not be.
    pub fn remember_absent(&self, parent: u64, name: &OsStr) -> bool {
        let mut known = self.known.write();
        let Some(directory) = known.get_mut(&parent) else { return false };
        if directory.absent.iter().any(|known| known == name) {
            return true;
        }
        let room = directory.absent.len() < MOST_ABSENT;
        if room {
            directory.absent.push(name.to_owned());
        }
        room
    }

    /// The names in a directory that the kernel was told are not there.
    pub fn absent(&self, ino: u64) -> Vec<OsString> {
        self.known.read().get(&ino).map(|known| known.absent.clone()).unwrap_or_default()
    }

    /// The numbers of the known nodes that a change concerns.
    pub fn concerned(&self, concerns: impl Fn(&Node) -> bool) -> Vec<u64> {
        let known = self.known.read();
        known.iter().filter(|(_, known)| concerns(&known.node)).map(|(ino, _)| *ino).collect()
    }

    /// The kernel forgot `lookups` answers.
    pub fn forget(&self, ino: u64, lookups: u64) {
        let mut known = self.known.write();
        let Some(entry) = known.get_mut(&ino) else { return };
        entry.lookups = entry.lookups.saturating_sub(lookups);
        if entry.lookups == 0 && ino != ROOT {
            known.remove(&ino);
        }
    }

    /// Changes what is noted of the kernel's knowledge; nothing is noted for what it does not know.
    pub fn told<T>(&self, ino: u64, change: impl FnOnce(&mut Told) -> T) -> Option<T> {
        self.known.write().get_mut(&ino).map(|known| change(&mut known.told))
    }

    /// How many nodes are known.
    pub fn len(&self) -> usize {
        self.known.read().len()
    }

    /// How a handle on a text of this version and length (bytes) may use the kernel's pages.
    pub fn admit_text(&self, ino: u64, version: u128, len: u64) -> Cache {
        let decide = |told: &mut Told| match told.attrs {
            Some(attrs) if attrs.size == len => told.cached.admit(version, len),
            _ => Cache::Direct,
        };
        self.told(ino, decide).unwrap_or(Cache::Direct)
    }

    /// How a handle on these entries of a directory, the first of which is the directory itself, may use those that
    /// the kernel keeps.
    pub fn admit_entries(&self, ino: u64, entries: &[(OsString, Node)]) -> Cache {
        // Of a session's own files a name always means the same one.
        let names_tell =
            matches!(entries.first(), Some((_, Node::Session(_, part))) if !matches!(part, Part::Agents));
        let mut version = Xxh3::new();
        for (name, node) in entries {
            version.update(name.as_encoded_bytes());
            // No name has this byte.
            version.update(b"\0");
            if !names_tell {
                version.update(&self.number(node).to_ne_bytes());
            }
        }
        self.told(ino, |told| told.cached.admit(version.digest128(), 0)).unwrap_or(Cache::Direct)
    }

    fn find(&self, known: &HashMap<u64, Known>, node: &Node) -> u64 {
        if *node == Node::Root {
            return ROOT;
        }
        let wanted = (self.identity)(node);
        // 0 means "no inode" to the kernel, and 1 is the root.
        let numbers = (0..PROBES).map(|probe| wanted.wrapping_add(probe)).filter(|number| *number > ROOT);
        let taken = |number: &u64| known.get(number);
        let own = numbers.clone().find(|number| taken(number).is_some_and(|entry| entry.node == *node));
        own.or_else(|| numbers.clone().find(|number| taken(number).is_none())).unwrap_or(wanted | 2)
    }
}

/// What depends on who has a session open: that is asked at most once a second.
pub(super) const A_SECOND: Duration = Duration::from_secs(1);

/// How long the kernel may remember an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl {
    /// That the name leads there.
    pub entry: Duration,
    pub attributes: Duration,
}

impl Ttl {
    pub(super) const NOT: Ttl = Ttl { entry: Duration::ZERO, attributes: Duration::ZERO };

    pub(super) fn both(lasts: Duration) -> Ttl {
        Ttl { entry: lasts, attributes: lasts }
    }
}

/// What `stat` tells of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub ino: u64,
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    /// Bytes.
    pub size: u64,
    pub mtime: Timestamp,
    /// Hard links. Of a directory: two and one for each directory in it, or 1 where counting them would
    /// mean reading a transcript (the convention for "not counted").
    pub links: u32,
    /// How long all this may be remembered.
    pub ttl: Ttl,
}

impl Attr {
    /// The attributes of what is not there.
    pub const NOTHING: Attr = Attr {
        ino: 0,
        kind: Kind::File,
        mode: 0,
        size: 0,
        mtime: Timestamp::UNIX_EPOCH,
        links: 0,
        ttl: Ttl::NOT,
    };
}

/// The part of [`Attr`] that does not follow from the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attrs {
    pub size: u64,
    pub mtime: Timestamp,
    pub links: u32,
    /// Of a file: which text it is, where that is known without the text.
    pub version: Option<u128>,
    /// The answer must not be remembered for longer.
    pub lasts: Option<Duration>,
}

impl Attrs {
    pub fn file(size: u64, mtime: Timestamp) -> Attrs {
        Attrs { size, mtime, links: 1, version: None, lasts: None }
    }

    /// A directory with so many directories in it.
    pub fn directory(within: usize, mtime: Timestamp) -> Attrs {
        Attrs { links: 2 + within as u32, ..Attrs::file(0, mtime) }
    }

    /// A directory of which it would cost too much to know.
    pub fn uncounted(mtime: Timestamp) -> Attrs {
        Attrs::file(0, mtime)
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
    /// The kernel has certainly dropped the other version for one of the handles.
    pub fn landed(&mut self) {
        self.landing = self.landing.saturating_sub(1);
    }

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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::path::Path;

    use super::*;

    fn host(path: &str) -> Node {
        Node::Host(Path::new(path).into())
    }

    #[test]
    fn a_node_is_known_until_all_lookups_are_forgotten() {
        let kernel = KernelView::new();
        let ino = kernel.remember(&host("/a"), ROOT, OsStr::new("n"));
        assert_eq!(kernel.remember(&host("/a"), ROOT, OsStr::new("n")), ino);
        kernel.forget(ino, 1);
        assert_eq!(kernel.node(ino), Some(host("/a")));
        kernel.forget(ino, 1);
        assert_eq!(kernel.node(ino), None);
        assert_eq!(kernel.len(), 1);
        assert_eq!(
            kernel.remember(&host("/a"), ROOT, OsStr::new("n")),
            ino,
            "the number is the same the next time"
        );
    }

    #[test]
    fn the_root_is_never_forgotten() {
        let kernel = KernelView::new();
        kernel.forget(ROOT, 100);
        assert_eq!(kernel.node(ROOT), Some(Node::Root));
        assert_eq!(kernel.remember(&Node::Root, ROOT, OsStr::new("n")), ROOT);
    }

    #[test]
    fn nodes_with_one_identity_get_different_numbers() {
        for identity in [|_: &Node| 7, |_: &Node| 0, |_: &Node| u64::MAX] {
            let kernel = KernelView::with_identity(identity);
            let (a, b) = (
                kernel.remember(&host("/a"), ROOT, OsStr::new("n")),
                kernel.remember(&host("/b"), ROOT, OsStr::new("n")),
            );
            assert_ne!(a, b);
            assert!(a > ROOT && b > ROOT);
            kernel.forget(a, 1);
            assert_eq!(kernel.number(&host("/b")), b, "a number does not change while it is known");
            assert_eq!(kernel.node(b), Some(host("/b")));
        }
    }
}
