//! A fork of files that stand beside those of other sessions and count through an entry in a shared index.
//!
//! The entry is the last thing made: a crash before it leaves files that no client looks at, and the next
//! start removes them; from the entry on the fork is complete and stays. A file that is found without an entry
//! counts when it has its name.

use std::path::{Path, PathBuf};

use super::disk::Tree;
use super::entry::{self, temporary_name};
use super::fork::{Fork, Written};
use super::journal::{Direction, NewFile, Record};
use super::lease::HeldLocks;
use super::resolve::LockedSources;
use super::row;
use super::several_names;
use super::state::Locked;
use crate::session::{Content, Refusal, Result, RowChange};

/// Makes the fork while `hands` hold the store's locks; the new session's id.
pub(super) fn make(
    fork: &Fork<'_>,
    hands: &HeldLocks,
    ground: &mut LockedSources,
    files: &[(PathBuf, Content)],
    row: Option<&RowChange>,
) -> Result<String> {
    if files.is_empty() {
        return Err(Refusal::Internal { what: "a fork that makes no file".into() });
    }
    for (file, _) in files {
        fork.must_be_free(file)?;
    }
    let record = Record {
        new_files: files.iter().map(|(file, _)| NewFile { file: file.clone() }).collect(),
        new_dirs: missing_above(fork.store, files)?,
        entry: entry::resolve(fork.agent, fork.store, fork.plan)?,
        row: row.cloned(),
        ..fork.record()
    };
    fork.locked.write_journal(&record)?;
    // Only a row that may have been written is taken back: that waits for the database again.
    let mut row_touched = false;
    let made = build(fork, hands, ground, files, &record, &mut row_touched);
    match made.and_then(|()| fork.commit()) {
        Ok(()) => Ok(fork.plan.promise.id.clone()),
        Err(refusal) => Err(fork.abort(take_out(fork, &record, row_touched), refusal)),
    }
}

/// The directories above these files that are not there, outermost first.
fn missing_above(store: &Tree, files: &[(PathBuf, Content)]) -> Result<Vec<NewFile>> {
    let mut missing: Vec<PathBuf> = Vec::new();
    for (file, _) in files {
        let above: Vec<&Path> = file.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).collect();
        for dir in above.into_iter().rev() {
            if !missing.iter().any(|known| known == dir) && store.stat(dir)?.is_none() {
                missing.push(dir.to_owned());
            }
        }
    }
    Ok(missing.into_iter().map(|file| NewFile { file }).collect())
}

fn build(
    fork: &Fork<'_>,
    hands: &HeldLocks,
    ground: &mut LockedSources,
    files: &[(PathBuf, Content)],
    record: &Record,
    row_touched: &mut bool,
) -> Result<()> {
    let store = fork.store;
    let mut written = Vec::new();
    for (file, content) in files {
        let temporary = temporary_name(file);
        store.ensure_parents(file)?;
        let new = store.create(&temporary)?;
        let (len, hash) = ground.write_content(fork.source, hands, content, &new)?;
        new.sync()?;
        written.push(Written { file: file.clone(), len, hash });
    }
    // Before any file is where a client looks, and after the long part: others wait for this lock.
    let row = record
        .row
        .as_ref()
        .map(|change| row::Held::take_its_own(store, change, Direction::Undo))
        .transpose()?;
    for (file, _) in files {
        store.rename(&temporary_name(file), file, false)?;
    }
    for (file, _) in files {
        store.sync_parent(file)?;
    }
    // Before any client can find it.
    fork.read_again(&written)?;
    if let Some(change) = &record.entry {
        entry::apply(fork.agent, store, change, Direction::Undo)?;
    }
    match row {
        Some(row) => {
            *row_touched = true;
            row.apply()
        }
        None => Ok(()),
    }
}

/// Takes a fork that failed out of the store again.
fn take_out(fork: &Fork<'_>, record: &Record, row_touched: bool) -> Result<()> {
    if row_touched && let Some(change) = &record.row {
        row::roll_back(fork.store, change, Direction::Undo)?;
    }
    if let Some(change) = &record.entry {
        entry::roll_back(fork.agent, fork.store, change, Direction::Undo)?;
    }
    remove(fork.store, record)
}

/// After a crash: a fork that has its entry is complete, any other one goes.
pub(super) fn settle(locked: &Locked, store: &Tree, record: &Record, who: &str) -> Result<Option<String>> {
    let Some(change) = &record.entry else { return settle_alone(store, record, who) };
    let agent = entry::agent_of(locked)?;
    let _store_locks = entry::locks(store, record)?;
    let listed = entry::is_there(agent, store, change)?;
    if !listed {
        entry::roll_back(agent, store, change, Direction::Undo)?;
        remove(store, record)?;
    }
    Ok(Some(match listed {
        true => format!("the fork {} that {who} was making is complete and stays", change.id),
        false => format!("the fork that {who} did not finish was removed"),
    }))
}

/// As [`settle`], where a new file counts as soon as it is there: an agent finds it without its row in the
/// database, and may have begun to work in it. A row that is missing is made.
fn settle_alone(store: &Tree, record: &Record, who: &str) -> Result<Option<String>> {
    if record.new_files.is_empty() {
        return Ok(None);
    }
    let mut complete = true;
    for NewFile { file } in &record.new_files {
        store.unlink(&temporary_name(file))?;
        complete &= store.stat(file)?.is_some();
    }
    if complete {
        if let Some(change) = &record.row {
            row::complete(store, change)?;
        }
        return Ok(Some(format!("the fork that {who} was making is complete and stays")));
    }
    if let Some(change) = &record.row {
        several_names::tidy_database(store, &change.db)?;
    }
    remove(store, record)?;
    Ok(Some(format!("the fork that {who} did not finish was removed")))
}

fn remove(store: &Tree, record: &Record) -> Result<()> {
    for NewFile { file } in record.new_files.iter().rev() {
        store.unlink(&temporary_name(file))?;
        store.unlink_durably(file)?;
    }
    for NewFile { file: dir } in record.new_dirs.iter().rev() {
        store.remove_if_empty(dir)?;
    }
    Ok(())
}
