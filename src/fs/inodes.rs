//! Inode numbers: made from what a node is, so that they are the same in every mount, and kept in memory
//! only for as long as the kernel knows them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

use parking_lot::RwLock;

use super::handles::KernelCache;
use super::node::Node;
use super::tree::Attrs;

/// The number of the mount's root, fixed by the protocol.
pub const ROOT: u64 = 1;
/// How many numbers from the wanted one on are tried when two identities collide.
const PROBES: u64 = 16;

/// The nodes that the kernel knows.
pub(super) struct Inodes {
    known: RwLock<HashMap<u64, Known>>,
    identity: fn(&Node) -> u64,
}

struct Known {
    node: Node,
    /// How often the kernel was told of it and has not yet said that it forgot.
    lookups: u64,
    told: KernelView,
    /// The names by which the kernel found it.
    names: Vec<OsString>,
    /// Of a directory: names that the kernel was told are not there.
    absent: Vec<OsString>,
}

/// What the kernel was told of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelView {
    /// In the last answer.
    pub attrs: Option<Attrs>,
    /// What it keeps of its content.
    pub cached: KernelCache,
}

/// How many absent names of one directory are remembered; more are not cached by the kernel.
const MOST_ABSENT: usize = 64;

impl Known {
    fn new(node: Node, lookups: u64) -> Known {
        Known { node, lookups, told: KernelView::default(), names: Vec::new(), absent: Vec::new() }
    }
}

impl Inodes {
    pub fn new() -> Inodes {
        Inodes::with_identity(Node::identity)
    }

    fn with_identity(identity: fn(&Node) -> u64) -> Inodes {
        let root = Known::new(Node::Root, 1);
        Inodes { known: RwLock::new(HashMap::from([(ROOT, root)])), identity }
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
    pub fn told<T>(&self, ino: u64, change: impl FnOnce(&mut KernelView) -> T) -> Option<T> {
        self.known.write().get_mut(&ino).map(|known| change(&mut known.told))
    }

    /// How many nodes are known.
    pub fn len(&self) -> usize {
        self.known.read().len()
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
        let inodes = Inodes::new();
        let ino = inodes.remember(&host("/a"), ROOT, OsStr::new("n"));
        assert_eq!(inodes.remember(&host("/a"), ROOT, OsStr::new("n")), ino);
        inodes.forget(ino, 1);
        assert_eq!(inodes.node(ino), Some(host("/a")));
        inodes.forget(ino, 1);
        assert_eq!(inodes.node(ino), None);
        assert_eq!(inodes.len(), 1);
        assert_eq!(
            inodes.remember(&host("/a"), ROOT, OsStr::new("n")),
            ino,
            "the number is the same the next time"
        );
    }

    #[test]
    fn the_root_is_never_forgotten() {
        let inodes = Inodes::new();
        inodes.forget(ROOT, 100);
        assert_eq!(inodes.node(ROOT), Some(Node::Root));
        assert_eq!(inodes.remember(&Node::Root, ROOT, OsStr::new("n")), ROOT);
    }

    #[test]
    fn nodes_with_one_identity_get_different_numbers() {
        for identity in [|_: &Node| 7, |_: &Node| 0, |_: &Node| u64::MAX] {
            let inodes = Inodes::with_identity(identity);
            let (a, b) = (
                inodes.remember(&host("/a"), ROOT, OsStr::new("n")),
                inodes.remember(&host("/b"), ROOT, OsStr::new("n")),
            );
            assert_ne!(a, b);
            assert!(a > ROOT && b > ROOT);
            inodes.forget(a, 1);
            assert_eq!(inodes.number(&host("/b")), b, "a number does not change while it is known");
            assert_eq!(inodes.node(b), Some(host("/b")));
        }
    }
}
