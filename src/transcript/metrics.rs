//! Counters of what was really read: the proof that nothing is read twice. Shown in `.turnfs/metrics`.
//!
//! They live at the bottom of the house so that every folder above can count where it reads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::session::AgentKind;

/// What kind of a store's file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadKind {
    /// A file that all sessions share.
    Index,
    /// A file with a session's history.
    Transcript,
    /// A session's other files: titles, settings.
    Sidecar,
    /// A file with a session's history, only to see that it is still the same: hashed, not parsed.
    Check,
    /// A file with a session's history, only to see whether it has certain words.
    Search,
}

impl ReadKind {
    /// In the order of [`ReadKind`], for the metrics.
    pub const ALL: [ReadKind; 5] =
        [ReadKind::Index, ReadKind::Transcript, ReadKind::Sidecar, ReadKind::Check, ReadKind::Search];

    /// The value of the label `kind`.
    pub fn name(self) -> &'static str {
        match self {
            ReadKind::Index => "index",
            ReadKind::Transcript => "transcript",
            ReadKind::Sidecar => "sidecar",
            ReadKind::Check => "check",
            ReadKind::Search => "search",
        }
    }
}

const AGENTS: usize = AgentKind::ALL.len();
const KINDS: usize = ReadKind::ALL.len();

static BYTES: [[AtomicU64; KINDS]; AGENTS] = [const { [const { AtomicU64::new(0) }; KINDS] }; AGENTS];
static PARSES: AtomicU64 = AtomicU64::new(0);
static STATS: AtomicU64 = AtomicU64::new(0);
static EVENTS: AtomicU64 = AtomicU64::new(0);

/// Counts bytes read from a store.
pub fn count_bytes(agent: AgentKind, kind: ReadKind, bytes: u64) {
    BYTES[agent as usize][kind as usize].fetch_add(bytes, Ordering::Relaxed);
}

/// Counts one pass over a transcript.
pub fn count_parse() {
    PARSES.fetch_add(1, Ordering::Relaxed);
}

/// Counts looks at a store's files that read nothing of them.
pub fn count_stats(stats: u64) {
    STATS.fetch_add(stats, Ordering::Relaxed);
}

/// Counts one event of inotify, also those that mean nothing.
pub fn count_event() {
    EVENTS.fetch_add(1, Ordering::Relaxed);
}

/// Bytes read since the process started.
pub fn bytes(agent: AgentKind, kind: ReadKind) -> u64 {
    BYTES[agent as usize][kind as usize].load(Ordering::Relaxed)
}

/// Passes over a transcript since the process started.
pub fn parses() -> u64 {
    PARSES.load(Ordering::Relaxed)
}

/// Looks that read nothing, since the process started.
pub fn stats() -> u64 {
    STATS.load(Ordering::Relaxed)
}

/// Events of inotify since the process started.
pub fn events() -> u64 {
    EVENTS.load(Ordering::Relaxed)
}
