//! One session's (or project's) entry in an index that all sessions of a store share.
//!
//! The index is other sessions' too: between a cut and its redo or roll-back they have changed it. So an
//! entry is put back alone, into the index as it is then, and only where it still is what the cut made it.
//! Everything here happens while the caller holds the index's lock.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{Open, Tree, temporary};
use super::journal::{Direction, EntryChange, Record, StoreLock};
use super::lease::{HeldByWriter, HeldLocks, OnWriter};
use super::state::Locked;
use crate::agents::{self, AgentStore, SharedIndex};
use crate::session::{Entry, IndexEdit, Lock, Plan, Refusal, Result};

impl Direction {
    fn entry_left(self, change: &EntryChange) -> Option<&Entry> {
        match self {
            Direction::Undo => change.before.as_ref(),
            Direction::Redo => change.after.as_ref(),
        }
    }

    fn entry_reached(self, change: &EntryChange) -> Option<&Entry> {
        self.back().entry_left(change)
    }
}

/// What a plan makes of its session's entry, out of the index as it is now.
pub(super) fn resolve<Made>(
    agent: &dyn AgentStore,
    store: &Tree,
    plan: &Plan<Made>,
) -> Result<Option<EntryChange>> {
    let Some(IndexEdit { index, edit }) = &plan.entry else { return Ok(None) };
    let bytes = store.must_read(index)?;
    let form = form(agent)?;
    let id = edit.id().into_owned();
    let before = form.find(&bytes, &id)?;
    let after = form.edited(&bytes, edit)?;
    Ok(Some(EntryChange { index: index.into(), id, before, after: Some(after) }))
}

/// Whether the entry is what the change makes of it.
pub(super) fn is_applied(
    agent: &dyn AgentStore,
    store: &Tree,
    change: &EntryChange,
    direction: Direction,
) -> Result<bool> {
    let form = form(agent)?;
    let now = form.find(&store.must_read(&change.index)?, &change.id)?;
    Ok(same(form, now.as_ref(), direction.entry_reached(change)))
}

/// Whether the session has an entry.
pub(super) fn is_there(agent: &dyn AgentStore, store: &Tree, change: &EntryChange) -> Result<bool> {
    Ok(form(agent)?.find(&store.must_read(&change.index)?, &change.id)?.is_some())
}

/// Makes the change, durable when this returns.
///
/// # Errors
/// [`Refusal::Changed`] if the entry is no longer what it was; nothing was done then.
pub(super) fn apply(
    agent: &dyn AgentStore,
    store: &Tree,
    change: &EntryChange,
    direction: Direction,
) -> Result<()> {
    let form = form(agent)?;
    let bytes = store.must_read(&change.index)?;
    let now = form.find(&bytes, &change.id)?;
    if !same(form, now.as_ref(), direction.entry_left(change)) {
        return Err(Refusal::Changed { what: change.index.display().to_string() });
    }
    if same(form, now.as_ref(), direction.entry_reached(change)) {
        return Ok(());
    }
    write(store, &change.index, &bytes, &form.put(&bytes, &change.id, direction.entry_reached(change))?)
}

/// Takes the change back if it was made. A sentence if there was something to tell.
pub(super) fn roll_back(
    agent: &dyn AgentStore,
    store: &Tree,
    change: &EntryChange,
    direction: Direction,
) -> Result<Option<String>> {
    store.unlink(&temporary_name(&change.index))?;
    let form = form(agent)?;
    let bytes = store.must_read(&change.index)?;
    let now = form.find(&bytes, &change.id)?;
    if same(form, now.as_ref(), direction.entry_left(change)) {
        return Ok(None);
    }
    if !same(form, now.as_ref(), direction.entry_reached(change)) {
        return Ok(Some(format!(
            "the session's entry in {} was changed by its agent meanwhile and was left as it is",
            change.index.display()
        )));
    }
    write(store, &change.index, &bytes, &form.put(&bytes, &change.id, direction.entry_left(change))?)?;
    Ok(None)
}

/// The store's own locks of a record, for taking it back.
///
/// # Errors
/// [`Refusal::StoreLocked`] while somebody has one of them.
pub(super) fn locks(store: &Tree, record: &Record) -> Result<HeldLocks> {
    let locks: Vec<Lock> = record.locks.iter().map(StoreLock::lock).collect();
    HeldLocks::take(store, &locks, OnWriter::GoOn)?.map_err(|held| match held {
        HeldByWriter::Open(file) | HeldByWriter::OpenAndLinked(file) | HeldByWriter::Lock { file, .. } => {
            Refusal::StoreLocked { what: file.display().to_string() }
        }
    })
}

/// The store, opened, that a session of the state directory is in.
pub(super) fn opened_store(locked: &Locked) -> Result<Arc<dyn AgentStore>> {
    let identity = locked.folder.identity()?;
    let of_known_kind = identity.and_then(|identity| Some((identity.agent.parse().ok()?, identity.root)));
    let unknown = || Refusal::Unsupported { what: "the agent of an interrupted cut".into() };
    let (kind, root) = of_known_kind.ok_or_else(unknown)?;
    Ok(agents::open(kind, &*root))
}

fn form(agent: &dyn AgentStore) -> Result<&dyn SharedIndex> {
    agent.shared_index().ok_or_else(|| Refusal::Internal {
        what: format!("an entry is to be changed, and {} has no shared index", agent.kind()),
    })
}

fn same(form: &dyn SharedIndex, one: Option<&Entry>, other: Option<&Entry>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => form.same(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// A new index in the place of the old one, with its owner and mode. Not every store has a lock
/// for its index, so it is looked at once more right before: nobody's change in between is lost.
fn write(store: &Tree, index: &Path, before: &[u8], bytes: &[u8]) -> Result<()> {
    let facts = store.stat(index)?.ok_or_else(|| Refusal::NotFound { what: index.display().to_string() })?;
    let fill = |new: &Open| {
        new.write_all(bytes, 0)?;
        new.set_owner_and_mode(facts.st_uid, facts.st_gid, facts.st_mode & 0o7777)
    };
    let last_look = || match store.must_read(index)? == before {
        true => Ok(()),
        false => Err(Refusal::Changed { what: index.display().to_string() }),
    };
    store.replace(index, &temporary_name(index), fill, last_look).map(drop)
}

/// Clients ignore `*.tmp`.
pub(super) fn temporary_name(file: &Path) -> PathBuf {
    temporary(file, ".turnfs.tmp")
}
