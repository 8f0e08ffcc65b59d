//! What a cut is going to do, written down before it does it; and what an undo did, for redo.
//!
//! One record serves both: it is `journal.json` while the cut is under way, and the rename of that file to
//! `undone/<n>/undo.json` (undo) or `undone/<n>/redone.json` (redo) is the one moment at which the cut
//! counts.

mod version_1;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::session::{Entry, FileHash, Lock, PathText, Rows, StorePath};

/// The version of the files in the state directory.
pub(super) const VERSION: u32 = 1;
/// The version of a [`Record`]. Those of version 1 are read, too ([`version_1`]).
pub(super) const RECORD_VERSION: u32 = 2;

/// Which cut it is. An adoption and a rescue are forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Undo,
    Redo,
    Fork,
}

/// A cut as it stands in `journal.json`, `undo.json` and `redone.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// [`RECORD_VERSION`]; one of another version is left alone.
    pub version: u32,
    pub kind: Kind,
    /// The undo's number; 0 for a fork.
    pub number: u32,
    /// Nanoseconds since 1970.
    pub at: i128,
    /// For people: who was at work. Whether it still is, the session's lock says.
    pub owner: Owner,
    /// Turns of the session before the cut.
    pub turns_before: u32,
    /// Turns after it; of a fork, the new session's.
    pub turns_after: u32,
    /// A forced undo also removed what was written after the session was read, so its turns are not
    /// known for certain; its bytes are.
    pub grew: bool,
    /// All that is done to the store, in the order in which an undo or a fork does it. A redo does it backwards
    /// ([`Record::in_order`]).
    pub changes: Vec<Change>,
    /// The session's turns lie in several files.
    pub spread: bool,
    /// The store's own locks, in their order; a roll-back needs them, too.
    pub locks: Vec<StoreLock>,
    /// Every file that the session's history is made of, as the cut leaves it.
    pub leaves: Vec<Seen>,
    /// The links of the store that were followed. A roll-back or redo refuses one that leads elsewhere by then.
    pub links: Vec<LinkSeen>,
}

/// One reversible change to a store, with both of its sides.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Change {
    /// The session's entry in its store's shared index.
    Entry(EntryChange),
    /// A file of the session; its contents on both sides are in the backup.
    File(FileChange),
    Rows(Rows),
    /// A fork's directory, complete or not at all.
    Dir(NewDir),
    /// A fork's files among those of other sessions.
    Files(NewFiles),
}

/// Changes in the order in which they are made, each with the number that names a file's contents in the backup.
pub(super) type Numbered<'a> = Vec<(usize, &'a Change)>;

impl Record {
    /// A record of any version that turnfs has written; `None` if it is of a later one, or damaged.
    pub fn parse(json: &[u8]) -> Option<Record> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        match serde_json::from_slice::<Versioned>(json).ok()?.version {
            1 => serde_json::from_slice::<version_1::Record>(json).ok().map(Record::from),
            RECORD_VERSION => serde_json::from_slice(json).ok(),
            _ => None,
        }
    }

    /// The changes to files, each with its number, which names its contents in the backup.
    pub fn files(&self) -> impl DoubleEndedIterator<Item = (usize, &FileChange)> {
        let files = self.changes.iter().filter_map(|change| match change {
            Change::File(file) => Some(file),
            Change::Entry(_) | Change::Rows(_) | Change::Dir(_) | Change::Files(_) => None,
        });
        files.collect::<Vec<_>>().into_iter().enumerate()
    }

    /// The change to a file, with its number.
    pub fn file(&self, file: &Path) -> Option<(usize, &FileChange)> {
        self.files().find(|(_, change)| *change.file == *file)
    }

    /// The files that are changed in place, in the record's order.
    pub fn in_place(&self) -> impl Iterator<Item = &Path> {
        self.files().filter(|(_, change)| change.how == How::InPlace).map(|(_, change)| &*change.file)
    }

    /// Leases on them.
    pub fn leases(&self) -> Vec<Lock> {
        self.in_place().map(|file| Lock::Lease { file: file.to_owned() }).collect()
    }

    /// The change to the session's entry in a shared index.
    pub fn entry(&self) -> Option<&EntryChange> {
        self.changes.iter().find_map(|change| match change {
            Change::Entry(entry) => Some(entry),
            _ => None,
        })
    }

    /// The rows that are changed.
    pub fn rows(&self) -> Option<&Rows> {
        self.changes.iter().find_map(|change| match change {
            Change::Rows(rows) => Some(rows),
            _ => None,
        })
    }

    /// The changes with the numbers of those to files, in the order in which they are made in this direction. An entry
    /// comes first in either: a crash behind it only moves what the entry says of the files. A row comes after the files
    /// that it will point to, and before those that go.
    pub fn in_order(&self, direction: Direction) -> Numbered<'_> {
        let mut files = 0;
        let number = |change| {
            let number = files;
            files += usize::from(matches!(change, &Change::File(_)));
            (number, change)
        };
        let mut order: Vec<_> = self.changes.iter().map(number).collect();
        if direction == Direction::Redo {
            order.reverse();
            order.sort_by_key(|(_, change)| !matches!(change, Change::Entry(_)));
        }
        order
    }
}

/// A link of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LinkSeen {
    pub path: StorePath,
    /// What it says.
    pub text: PathText,
    /// The inode of the directory that it leads to in the end, or of the one that holds the file that it leads to.
    /// (Device numbers may change with each start of the system.)
    pub inode: u64,
}

/// The files that a fork makes among those of other sessions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NewFiles {
    /// The directories above them that were not there, outermost first.
    pub dirs: Vec<StorePath>,
    /// In the order in which they are made.
    pub files: Vec<StorePath>,
}

/// A lock file of the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoreLock {
    pub file: StorePath,
    /// Held by whoever has the session open; else a short lock that is waited for.
    pub claim: bool,
    /// Held while `file` is taken and left.
    #[serde(default)]
    pub gate: Option<StorePath>,
}

/// What happens to one entry of a shared index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EntryChange {
    pub index: StorePath,
    pub id: String,
    /// `None`: there was none.
    pub before: Option<Entry>,
    pub after: Option<Entry>,
}

impl StoreLock {
    /// Those of a plan's locks that are lock files.
    pub fn of(locks: &[Lock]) -> Vec<StoreLock> {
        let lock = |lock: &Lock| match lock {
            Lock::Flock { file, .. } => Some(StoreLock { file: file.into(), claim: false, gate: None }),
            Lock::Claim { file } => Some(StoreLock { file: file.into(), claim: true, gate: None }),
            Lock::Gated { gate, file } => {
                Some(StoreLock { file: file.into(), claim: true, gate: Some(gate.into()) })
            }
            Lock::Lease { .. } => None,
        };
        locks.iter().filter_map(lock).collect()
    }

    pub fn lock(&self) -> Lock {
        let file = self.file.to_path_buf();
        if let Some(gate) = &self.gate {
            return Lock::Gated { gate: gate.to_path_buf(), file };
        }
        match self.claim {
            true => Lock::Claim { file },
            false => Lock::Flock { file, create: true },
        }
    }
}

/// The process that makes the cut.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Owner {
    pub pid: u32,
    /// Start time of the process in clock ticks since boot, from /proc/PID/stat: another process may get the
    /// number later.
    pub start: u64,
}

/// A directory that a fork makes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NewDir {
    /// Its place.
    pub dir: StorePath,
    /// Where it is built, out of every client's sight.
    pub staging: StorePath,
}

/// A file as it was seen, or is left.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Seen {
    pub file: StorePath,
    /// Bytes; `None`: not there.
    pub len: Option<u64>,
    /// Of all its bytes (xxh3, 128 bits); of no bytes where it is not there.
    pub hash: FileHash,
}

/// What happens to one file: the first `keep` bytes stay, the rest goes from `<i>.before` to `<i>.after`
/// (both in the undo's `files/`, `i` being the change's place in [`Record::files`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct FileChange {
    pub file: StorePath,
    pub how: How,
    /// Bytes.
    pub keep: u64,
    /// `None`: the file was not there.
    pub before: Option<Image>,
    /// `None`: the file is gone afterwards.
    pub after: Option<Image>,
}

/// In which way a file gets its new content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum How {
    /// On the same inode.
    InPlace,
    /// By a new file that is renamed into place, or by unlinking. `keep` is 0.
    Rename,
}

/// A whole file on one side of a change; the bytes behind [`FileChange::keep`] are in the backup.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Image {
    /// Bytes.
    pub len: u64,
    /// Of all of the file, kept part included.
    pub hash: FileHash,
    /// Permission bits (0o7777).
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Nanoseconds since 1970.
    pub mtime: i128,
}

/// In which direction a record's changes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Undo,
    Redo,
}

impl Direction {
    pub fn back(self) -> Direction {
        match self {
            Direction::Undo => Direction::Redo,
            Direction::Redo => Direction::Undo,
        }
    }

    pub fn start(self, change: &FileChange) -> Option<Image> {
        match self {
            Direction::Undo => change.before,
            Direction::Redo => change.after,
        }
    }

    pub fn goal(self, change: &FileChange) -> Option<Image> {
        self.back().start(change)
    }

    /// The stored tail of the state that is left.
    pub fn start_tail(self, index: usize) -> PathBuf {
        let which = match self {
            Direction::Undo => "before",
            Direction::Redo => "after",
        };
        Path::new("files").join(format!("{index}.{which}"))
    }

    /// The stored tail of the state that is reached.
    pub fn goal_tail(self, index: usize) -> PathBuf {
        self.back().start_tail(index)
    }
}

impl Owner {
    pub fn this_process() -> Owner {
        let pid = std::process::id();
        Owner { pid, start: start_time(pid).unwrap_or(0) }
    }
}

/// For whoever reads of its unfinished cut: a process that still runs has a bug, or hangs.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = start_time(self.pid) == Some(self.start);
        write!(f, "process {}{}", self.pid, if runs { ", which still runs," } else { "" })
    }
}

/// When a process started, clock ticks since boot.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold blanks and brackets; the fields after it do not. Start time is field 22.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The session that a folder of the state directory belongs to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SessionIdentity {
    pub version: u32,
    pub agent: String,
    pub id: String,
    pub root: PathText,
    pub path: StorePath,
}
