//! Who has a thread loaded, told without disturbing anybody.
//!
//! A client holds a flock on the thread's lock file for as long as it has the thread loaded; the background
//! daemon that a TUI leaves behind does so for about a minute more. Trying that lock, even shared and for an
//! instant, makes a client that starts in this moment fail; `/proc/locks` tells the same.

use std::path::Path;

use super::layout::thread_lock;
use crate::session::{AgentKind, Writer};
use crate::transcript::StoreDir;

/// The process that has the thread loaded.
pub fn writer(root: &Path, thread: &str) -> Option<Writer> {
    let store = StoreDir::open(root).ok()??;
    let file = thread_lock(thread);
    let (own, inode) = store.stat(&file).ok()??.identity();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let path = root.canonicalize().unwrap_or_else(|_| root.to_owned()).join(&file);
    let pid = holders(&locks, inode).find_map(|(pid, device)| {
        // On stacked file systems the kernel names another device than stat does: then the holder's own
        // descriptors tell.
        (device == own || has_open(pid?, &path)).then_some(pid)
    })?;
    let evidence = "has this thread loaded; an idle daemon lets go about a minute after its last client";
    Some(Writer { agent: AgentKind::Codex, pid, evidence: evidence.into() })
}

/// The processes (where they can be told) and devices of the flocks on inode `inode`.
fn holders(locks: &str, inode: u64) -> impl Iterator<Item = (Option<u32>, (u32, u32))> {
    locks.lines().filter_map(move |line| {
        let mut words = line.split_whitespace().skip(1).peekable();
        // A waiting lock has an arrow here, and holds nothing.
        if words.next()? != "FLOCK" {
            return None;
        }
        let pid = words.nth(2)?;
        let mut place = words.next()?.split(':');
        let device = (hex(place.next()?)?, hex(place.next()?)?);
        let same = place.next()?.parse::<u64>().ok()? == inode;
        same.then(|| (pid.parse().ok().filter(|pid| *pid > 0), device))
    })
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

fn has_open(pid: u32, path: &Path) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target == path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_flock_that_is_held_on_that_inode_counts() {
        let locks = "1: FLOCK  ADVISORY  WRITE 20868 fe:00:5480738 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 7 fe:00:5480738 0 EOF\n\
                     2: POSIX  ADVISORY  READ 20868 fe:00:5480738 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 0 08:11:5480738 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 9 fe:00:5480739 0 EOF\n";
        let found: Vec<_> = holders(locks, 5_480_738).collect();
        assert_eq!(found, [(Some(20868), (0xfe, 0)), (None, (8, 0x11))]);
    }
}
