//! Who holds a lock, told without trying it: even a shared try for an instant makes a client that starts in
//! that moment fail. /proc/locks shows the locks of every process in this pid namespace.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::mountinfo::Device;
use super::processes;

/// All exclusive flocks at one moment, by the inode number of the file.
pub struct Table(HashMap<u64, Vec<(Option<u32>, Device)>>);

impl Table {
    /// Without /proc there are none.
    pub fn read() -> Table {
        let text = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        let mut table: HashMap<u64, Vec<_>> = HashMap::new();
        for (inode, pid, device) in holders(&text) {
            table.entry(inode).or_default().push((pid, device));
        }
        Table(table)
    }

    /// The process that holds the file with this device and inode by flock and exclusively. `path`: the file's
    /// resolved one, asked only if such a file is locked. `Some(None)` is a holder without a number: one in
    /// another pid namespace.
    pub fn holder(&self, device: Device, inode: u64, path: impl FnOnce() -> PathBuf) -> Option<Option<u32>> {
        let held = self.0.get(&inode)?;
        let file = path();
        held.iter().find_map(|(pid, of)| {
            // On stacked file systems the kernel names another device than stat does: then the holder's own
            // descriptors tell.
            let is_it = *of == device || processes::process((*pid)?)?.has_open(&file);
            is_it.then(|| pid.map(|pid| holder_now(pid, &file)))
        })
    }
}

/// A lock stays with its descriptor, also when the process that took it has handed that on and ended.
fn holder_now(pid: u32, file: &Path) -> u32 {
    if processes::process(pid).is_some_and(|process| process.has_open(file)) {
        return pid;
    }
    processes::others().find(|process| process.has_open(file)).map_or(pid, |process| process.pid)
}

/// The inodes that exclusive flocks are held on, who holds them, and the devices. Lines have the form
/// `1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`; one with `->` only waits.
fn holders(table: &str) -> impl Iterator<Item = (u64, Option<u32>, Device)> {
    table.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        if (words.next()?, words.next()?, words.next()?) != ("FLOCK", "ADVISORY", "WRITE") {
            return None;
        }
        let pid = words.next()?.parse().ok().filter(|pid| *pid > 0);
        let mut place = words.next()?.split(':');
        let device = Device { major: hex(place.next()?)?, minor: hex(place.next()?)? };
        Some((place.next()?.parse().ok()?, pid, device))
    })
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_holds_an_exclusive_flock_on_that_inode_counts() {
        let device = |major, minor| Device { major, minor };
        let table = [
            ("1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF", Some((Some(1234), device(8, 1)))),
            // In another pid namespace, on another device.
            ("1: FLOCK  ADVISORY  WRITE 0 fe:11:5678 0 EOF", Some((None, device(0xfe, 0x11)))),
            ("1: FLOCK  ADVISORY  READ  1234 08:01:5678 0 EOF", None),
            ("1: POSIX  ADVISORY  WRITE 1234 08:01:5678 0 EOF", None),
            ("1: -> FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF", None),
            ("", None),
        ];
        for (line, expected) in table {
            let expected = expected.map(|(pid, device)| (5678, pid, device));
            assert_eq!(holders(line).next(), expected, "{line}");
        }
        let all: Vec<&str> = table.iter().map(|(line, _)| *line).collect();
        assert_eq!(holders(&all.join("\n")).count(), 2);
    }

    #[test]
    #[allow(clippy::unwrap_used)]
    fn the_holder_of_a_lock_is_named_and_a_reader_of_the_file_is_not() {
        use std::os::unix::fs::MetadataExt as _;
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().canonicalize().unwrap();
        let facts = path.metadata().unwrap();
        let device = Device { major: rustix::fs::major(facts.dev()), minor: rustix::fs::minor(facts.dev()) };
        let holder = |device, inode| Table::read().holder(device, inode, || path.clone());
        assert_eq!(holder(device, facts.ino()), None);
        rustix::fs::flock(file.as_file(), rustix::fs::FlockOperation::LockShared).unwrap();
        assert_eq!(holder(device, facts.ino()), None);
        rustix::fs::flock(file.as_file(), rustix::fs::FlockOperation::LockExclusive).unwrap();
        let elsewhere = Device { major: 0, minor: 9999 };
        for device in [device, elsewhere] {
            assert_eq!(holder(device, facts.ino()), Some(Some(std::process::id())));
        }
    }
}
