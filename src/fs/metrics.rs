//! `.turnfs/metrics`: what this mount did, as Prometheus text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Fs;
use super::invalidation::Invalidation;
use crate::session::{AgentKind, State};
use crate::transcript::metrics::{self, ReadKind};

macro_rules! operations {
    ($($name:ident $label:literal),* $(,)?) => {
        /// A request of the kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op { $($name),* }

        impl Op {
            /// In the order of the metrics.
            const ALL: &[Op] = &[$(Op::$name),*];

            /// The value of the label `op`.
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => $label),* }
            }
        }
    };
}

operations! {
    Lookup "lookup", Forget "forget", Getattr "getattr", Setattr "setattr", Readlink "readlink", Open "open",
    Read "read", Write "write", Flush "flush", Release "release", Fsync "fsync", Opendir "opendir",
    Readdir "readdir", Readdirplus "readdirplus", Releasedir "releasedir", Access "access", Statfs "statfs",
    Xattr "xattr", Change "change",
}

static REQUESTS: [AtomicU64; Op::ALL.len()] = [const { AtomicU64::new(0) }; Op::ALL.len()];

/// By [`Invalidation::KINDS`].
static INVALIDATIONS: [AtomicU64; Invalidation::KINDS.len()] =
    [const { AtomicU64::new(0) }; Invalidation::KINDS.len()];

/// Counts an invalidation that the kernel was sent.
pub fn count_invalidation(sent: &Invalidation) {
    INVALIDATIONS[sent.kind()].fetch_add(1, Ordering::Relaxed);
}

/// Counts a request.
pub fn count(op: Op) {
    REQUESTS[op as usize].fetch_add(1, Ordering::Relaxed);
}

pub(super) fn text(fs: &Fs) -> String {
    let mut out = String::new();
    family(
        &mut out,
        "turnfs_store_bytes_read_total",
        "counter",
        "Bytes read from the stores' files; check: transcripts, only hashed; search: only searched.",
    );
    for agent in AgentKind::ALL {
        for kind in ReadKind::ALL {
            let labels = format!("agent=\"{agent}\",kind=\"{}\"", kind.name());
            sample(&mut out, "turnfs_store_bytes_read_total", &labels, metrics::bytes(agent, kind));
        }
    }
    single(&mut out, "turnfs_parses_total", "counter", "Passes over a transcript.", metrics::parses());
    single(&mut out, "turnfs_stat_total", "counter", "Looks at files that read nothing.", metrics::stats());
    single(&mut out, "turnfs_inotify_events_total", "counter", "Events heard.", metrics::events());
    let watched = fs.catalog.watched_directories() as u64;
    single(&mut out, "turnfs_watched_directories", "gauge", "Directories watched.", watched);
    family(&mut out, "turnfs_fuse_requests_total", "counter", "Requests of the kernel.");
    for op in Op::ALL {
        let requests = REQUESTS[*op as usize].load(Ordering::Relaxed);
        sample(&mut out, "turnfs_fuse_requests_total", &format!("op=\"{}\"", op.name()), requests);
    }
    family(&mut out, "turnfs_invalidations_total", "counter", "Invalidations sent to the kernel.");
    for (kind, sent) in Invalidation::KINDS.iter().zip(&INVALIDATIONS) {
        let sent = sent.load(Ordering::Relaxed);
        sample(&mut out, "turnfs_invalidations_total", &format!("kind=\"{kind}\""), sent);
    }
    family(&mut out, "turnfs_sessions", "gauge", "Sessions by state; unread: not looked at since the mount.");
    for ((agent, state), sessions) in sessions(fs) {
        sample(&mut out, "turnfs_sessions", &format!("agent=\"{agent}\",state=\"{state}\""), sessions);
    }
    let known = fs.kernel.len() as u64;
    single(&mut out, "turnfs_inodes", "gauge", "Inodes that the kernel knows.", known);
    let kept = fs.texts.cost();
    single(&mut out, "turnfs_kept_text_bytes", "gauge", "Texts kept in memory.", kept);
    if let Some(bytes) = resident() {
        single(&mut out, "turnfs_resident_bytes", "gauge", "Resident memory of the daemon.", bytes);
    }
    out
}

fn sessions(fs: &Fs) -> BTreeMap<(AgentKind, &'static str), u64> {
    let mut counts = BTreeMap::new();
    for (_, listed) in fs.catalog.last_listing().all() {
        let key = &listed.session.key;
        let state = fs.memory.state(key).map_or("unread", State::name);
        *counts.entry((key.agent, state)).or_default() += 1;
    }
    counts
}

/// Resident memory, bytes.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing into a String cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(out: &mut String, name: &str, labels: &str, value: u64) {
    let _ = writeln!(out, "{name}{{{labels}}} {value}");
}

fn single(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    family(out, name, kind, help);
    let _ = writeln!(out, "{name} {value}");
}
