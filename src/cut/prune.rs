//! The only thing that deletes backups of undos that could still be read or redone.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

use super::disk::Tree;
use super::journal::SessionIdentity;
use super::recover::recover_session;
use super::state::{BAD_JOURNAL, Folder, JOURNAL, Locked, StateDir, undone_dir};
use super::undone;
use crate::agents;
use crate::session::{AgentKind, Result};
use crate::transcript::EntryKind;

/// A backup that was pruned, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pruned {
    pub agent: Option<AgentKind>,
    /// The session's id.
    pub session: String,
    /// The undo's number.
    pub number: u32,
    pub at: Timestamp,
    /// Turns that can no longer be read then.
    pub turns: u32,
    /// Bytes that the backup takes.
    pub bytes: u64,
    /// The agent deleted the session itself.
    pub session_gone: bool,
}

/// Deletes backups that are older than `older_than`, and those of sessions that their agent deleted
/// whatever their age. With `dry_run` only tells which. Sessions with a cut under way, or with a journal
/// that could not be used, are left alone.
///
/// # Errors
/// What prevents reading or changing turnfs's own state.
pub fn prune(state: &StateDir, older_than: Duration, dry_run: bool) -> Result<Vec<Pruned>> {
    let now = crate::session::now();
    let mut pruned = Vec::new();
    for folder in Folder::all(state)? {
        let Some(identity) = folder.identity()? else { continue };
        let Some(locked) = folder.lock(Duration::ZERO)? else { continue };
        let gone = is_gone(&locked.folder, &identity)?;
        if !dry_run && let Ok(store) = Tree::store(&identity.root) {
            recover_session(&locked, &store)?;
        }
        if has_journal(&locked)? {
            continue;
        }
        for number in undone::counting_numbers(&locked.folder)? {
            let record = undone::record(&locked.folder, number)?;
            let at = Timestamp::from_nanosecond(record.at).unwrap_or(Timestamp::UNIX_EPOCH);
            let age = now.as_nanosecond() - at.as_nanosecond();
            if !gone && age < older_than.as_nanos() as i128 {
                continue;
            }
            pruned.push(Pruned {
                agent: identity.agent.parse().ok(),
                session: identity.id.clone(),
                number,
                at,
                turns: record.turns_before.saturating_sub(record.turns_after),
                bytes: bytes_below(locked.tree(), &undone_dir(number))?,
                session_gone: gone,
            });
            if !dry_run {
                undone::discard(&locked, number)?;
                locked.tree().sync_dir(Path::new("undone"))?;
            }
        }
    }
    Ok(pruned)
}

/// Whether the agent deleted the session: its store is there, and neither the session's files nor the agent's
/// list have it. One that only moved (archived, compressed) is not gone, nor is anything on a disk that is not
/// mounted now.
fn is_gone(folder: &Folder, identity: &SessionIdentity) -> Result<bool> {
    let Ok(store) = Tree::store(&identity.root) else { return Ok(false) };
    if !folder.is_of(&identity.agent, &store)? {
        return Ok(false);
    }
    // Also where a link leads nowhere now: the disk behind it may come back.
    if !matches!(store.stat(&identity.path), Ok(None)) {
        return Ok(false);
    }
    for number in undone::counting_numbers(folder)? {
        if store.must_lead_there(&undone::record(folder, number)?.links).is_err() {
            return Ok(false);
        }
    }
    let Ok(kind) = identity.agent.parse::<AgentKind>() else { return Ok(false) };
    let found = agents::open(kind, &*identity.root).discover();
    Ok(found.is_ok_and(|found| found.sessions.iter().all(|session| session.id != identity.id)))
}

fn has_journal(locked: &Locked) -> Result<bool> {
    let names = locked.tree().list(Path::new(""))?;
    let is_journal = |name: &OsStr| name == JOURNAL || name.to_string_lossy().starts_with(BAD_JOURNAL);
    Ok(names.iter().any(|entry| is_journal(&entry.name)))
}

fn bytes_below(tree: &Tree, dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in tree.list(dir)? {
        let path = dir.join(entry.name);
        bytes += match entry.kind {
            EntryKind::Dir => bytes_below(tree, &path)?,
            _ => tree.stat(&path)?.map_or(0, |facts| facts.st_size as u64),
        };
    }
    Ok(bytes)
}
