//! Where Codex keeps what: names of rollout files, the folders they lie in, the lock files.
//!
//! `sessions/YYYY/MM/DD/rollout-<local time>-<thread>[_<rollout>].jsonl`, `archived_sessions/` (flat), both
//! perhaps compressed (`.jsonl.zst`). Only names are looked at here; a path is never derived from a time.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use crate::host::mountinfo::Device;
use crate::session::{Damage, Result};
use crate::transcript::{EntryKind, Stamp, StoreDir};

pub const SESSIONS: &str = "sessions";
pub const ARCHIVED: &str = "archived_sessions";
pub const STATE_DB: &str = "state_5.sqlite";
pub const NAMES: &str = "session_index.jsonl";
pub const LOCKS: &str = "thread-writer-locks";

/// Length of `YYYY-MM-DDThh-mm-ss`.
const STAMP: usize = 19;
const UUID: usize = 36;

/// A rollout file by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Relative to the store's root.
    pub file: Arc<Path>,
    /// The local time in the name; sorts by age.
    pub stamp: String,
    /// The thread that the file belongs to.
    pub thread: String,
    /// The file's own id: the last one in the name. Equal to the thread's for its first file.
    pub id: String,
    pub archived: bool,
}

impl Rollout {
    /// `None` if the name is not one that the client's scan takes.
    pub fn named(file: &Path) -> Option<Rollout> {
        let name = file.file_name()?.to_str()?;
        let name = name.strip_suffix(".zst").unwrap_or(name);
        let name = name.strip_prefix("rollout-")?.strip_suffix(".jsonl")?;
        let (stamp, ids) = name.split_at_checked(STAMP)?;
        let ids = ids.strip_prefix('-')?;
        stamp.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'T')).then_some(())?;
        let (thread, id) = match ids.split_at_checked(UUID)? {
            (thread, "") => (thread, thread),
            (thread, rest) => (thread, rest.strip_prefix('_')?),
        };
        for id in [thread, id] {
            uuid::Uuid::try_parse(id).ok().filter(|_| id.len() == UUID)?;
        }
        Some(Rollout {
            file: file.into(),
            stamp: stamp.to_owned(),
            thread: thread.to_owned(),
            id: id.to_owned(),
            archived: file.starts_with(ARCHIVED),
        })
    }

    /// Sorts a thread's files by age.
    pub fn age(&self) -> (String, String) {
        (self.stamp.clone(), self.id.clone())
    }

    pub fn compressed(&self) -> bool {
        self.file.extension().is_some_and(|extension| extension == "zst")
    }
}

/// The rollout files of a store at one moment, and what proves that they are still all.
#[derive(Default)]
pub struct Folders {
    /// By rollout id. Where a plain and a compressed file of one name exist, the plain one counts, as for the client.
    pub rollouts: BTreeMap<String, Rollout>,
    /// Every folder that was listed, or that was not there; with its facts before.
    seen: Vec<(PathBuf, Option<Stamp>)>,
    /// Folders that could not be listed.
    pub problems: Vec<Damage>,
    /// Links to folders, and to files.
    pub links: Vec<PathBuf>,
    pub linked_files: Vec<PathBuf>,
    /// The folders, so that none is listed under two names.
    known: HashSet<(Device, u64)>,
    at: Timestamp,
}

impl Folders {
    /// A folder that cannot be listed is one of the problems, and hides nothing else.
    pub fn list(store: &StoreDir) -> Folders {
        let mut folders = Folders { at: crate::transcript::clock(), ..Folders::default() };
        for (dir, depth) in [(ARCHIVED, 0), (SESSIONS, 3)] {
            let dir = Path::new(dir);
            if store.is_link(dir) {
                folders.links.push(dir.to_owned());
            }
            folders.collect(store, dir, depth);
        }
        folders
    }

    /// Whether no file came or went since: one stat for each folder. A folder that changed shortly before it
    /// was listed proves nothing.
    pub fn still_hold(&self, store: &StoreDir) -> bool {
        let same = |folder: &Path, before: &Option<Stamp>| {
            before.is_none_or(|stat| stat.vouches(self.at))
                && store.stat_to_compare(folder).is_ok_and(|now| now == *before)
        };
        self.problems.is_empty() && self.seen.iter().all(|(folder, before)| same(folder, before))
    }

    /// The folders that were listed, relative to the store's root.
    pub fn listed(&self) -> impl Iterator<Item = &Path> {
        self.seen.iter().filter(|(_, there)| there.is_some()).map(|(folder, _)| folder.as_path())
    }

    /// Adds the rollout files in `dir` and in the folders up to `depth` levels below it.
    fn collect(&mut self, store: &StoreDir, dir: &Path, depth: u32) {
        let listed = || -> Result<_> {
            let facts = store.stat(dir)?;
            let entries = store.dir(dir)?.map(|opened| Ok((opened.entries()?, opened))).transpose()?;
            Ok((facts, entries))
        };
        let (facts, entries) = match listed() {
            Ok(listed) => listed,
            Err(why) => return self.problems.push(Damage::unread(dir.to_string_lossy(), &why)),
        };
        if facts.is_some_and(|facts| !self.known.insert(facts.identity())) {
            return;
        }
        self.seen.push((dir.to_owned(), facts));
        let Some((mut entries, opened)) = entries else { return };
        // What is there itself comes before links that lead to it.
        entries.sort_by_key(|entry| entry.kind == EntryKind::Symlink);
        for entry in entries {
            let path = dir.join(&entry.name);
            let is_link = entry.kind == EntryKind::Symlink;
            let led_to = match is_link {
                true => opened.led_to(Path::new(&entry.name)).map(|stamp| stamp.kind),
                false => Ok(entry.kind),
            };
            match (led_to, Rollout::named(&path)) {
                (Ok(EntryKind::Dir), _) if depth > 0 => {
                    if is_link {
                        self.links.push(path.clone());
                    }
                    self.collect(store, &path, depth - 1);
                }
                (Ok(EntryKind::Dir), _) => {}
                // What cannot be opened, too: it is listed as what it is.
                (_, Some(rollout)) => {
                    if is_link {
                        self.linked_files.push(path);
                    }
                    self.add(rollout, is_link);
                }
                (Err(why), None) if depth > 0 => {
                    self.problems.push(Damage::unread(path.to_string_lossy(), &why));
                }
                (_, None) => {}
            }
        }
    }

    fn add(&mut self, rollout: Rollout, is_link: bool) {
        let other = self.rollouts.get(&rollout.id);
        let yields = |other: &Rollout| is_link || (!other.compressed() && rollout.compressed());
        if !other.is_some_and(yields) {
            self.rollouts.insert(rollout.id.clone(), rollout);
        }
    }
}

/// The lock that every client holds while it has the thread loaded.
pub fn thread_lock(thread: &str) -> PathBuf {
    Path::new(LOCKS).join(format!("{thread}.lock"))
}

/// Held by clients for the moment in which they take or leave a thread's lock.
pub fn coordination_lock() -> PathBuf {
    Path::new(LOCKS).join(".coordination.lock")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_is_known_by_its_name() {
        const A: &str = "01a22cb1-efc7-7c10-ad92-f63da4a19e90";
        const B: &str = "01a22cb1-f293-7052-a6e9-1b7fdec74800";
        let named = |name: &str| Rollout::named(Path::new(name));
        let first = named(&format!("sessions/2026/11/30/rollout-2026-11-30T13-43-08-{A}.jsonl")).unwrap();
        assert_eq!((first.thread.as_str(), first.id.as_str(), first.archived), (A, A, false));
        let later =
            named(&format!("archived_sessions/rollout-2026-11-30T13-43-08-{A}_{B}.jsonl.zst")).unwrap();
        assert_eq!((later.thread.as_str(), later.id.as_str(), later.archived), (A, B, true));
        assert!(later.compressed() && !first.compressed());
        for odd in [
            "rollout-2026-11-30T13-43-08-x.jsonl".to_owned(),
            format!("rollout-2026-11-30T13-43-08-{A}.jsonl.tmp"),
            format!("rollout-2026-11-30T13-43-08-{A}-{B}.jsonl"),
            format!(".rollout-2026-11-30T13-43-08-{A}.jsonl"),
            format!("rollout-é026-11-30T13-43-0-{A}.jsonl"),
        ] {
            assert_eq!(named(&odd), None, "{odd}");
        }
    }
}
