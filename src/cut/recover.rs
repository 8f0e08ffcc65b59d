//! After a crash: rolling back what did not count yet.
//!
//! A journal that is there while nobody holds the session's lock belongs to a process that died (or that
//! could not roll back): a cut counts only when its journal is renamed away, and a process lets go of the
//! lock only after that. So the rule is one: roll back. Two exceptions: a fork that is complete stays (its
//! directory is at its place, or its files and what makes them count: [`complete_fork`]), and so does an undo
//! from which the agent has gone on since ([`is_worked_on`]).

use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::apply::ApplyContext;
use super::disk::Tree;
use super::entry;
use super::journal::{Change, Direction, Kind, Record};
use super::lease::HeldLocks;
use super::row;
use super::several_names;
use super::state::{BAD_JOURNAL, BRANCH, Folder, JOURNAL, Locked, StateDir, undone_dir};
use super::transaction::{leases_for, remove_journal, roll_back};
use super::undone;
use crate::agents::AgentStore;
use crate::session::{Refusal, Result, now};

/// Finishes or rolls back what a crash left half done; one sentence for each. Called by each
/// mount, at its start and every two seconds, and by the commands that show or change sessions.
/// A session that another process is working on is left to it.
///
/// # Errors
/// What prevents reading turnfs's own state.
pub fn recover(state: &StateDir) -> Result<Vec<String>> {
    let mut sentences = Vec::new();
    for folder in Folder::all(state)? {
        let names = folder.tree.list(Path::new(""))?;
        // Also one that could not be read and was put aside, and one that was not finished.
        let has_journal = names.iter().any(|entry| entry.name.to_string_lossy().starts_with("journal"));
        let has_copy = names.iter().any(|entry| entry.name == BRANCH);
        if !has_journal && !has_copy && folder.numbers()? == undone::counting_numbers(&folder)? {
            continue;
        }
        let identity = folder.identity()?;
        let name = folder.tree.path().display().to_string();
        let Some(locked) = folder.lock(Duration::ZERO)? else { continue };
        let told = match &identity {
            Some(identity) => {
                let store = Tree::store(&identity.root);
                store.and_then(|store| recover_session(&locked, &store))
            }
            None => Ok(vec![format!("{name}: nothing says which session this is; it is left as it is")]),
        };
        let who = identity.map_or(name, |identity| format!("{} session {}", identity.agent, identity.id));
        match told {
            Ok(told) => sentences.extend(told.into_iter().map(|sentence| format!("{who}: {sentence}"))),
            Err(refusal) => sentences.push(format!("{who}: could not be put back in order yet: {refusal}")),
        }
        sentences
            .extend(bad_journals(locked.tree())?.into_iter().map(|sentence| format!("{who}: {sentence}")));
    }
    Ok(sentences)
}

/// What a crash left that is not in order (yet), one sentence each. Only looks; a session that another
/// process is working on is left out.
///
/// # Errors
/// What prevents reading turnfs's own state.
pub fn leftovers(state: &StateDir) -> Result<Vec<Leftover>> {
    let Some(tree) = state.look()? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for folder in Folder::all_in(&tree)? {
        let who = match folder.identity()? {
            Some(identity) => format!("{} session {}", identity.agent, identity.id),
            None => folder.tree.path().display().to_string(),
        };
        if folder.tree.stat(Path::new(JOURNAL))?.is_some() && !folder.is_in_work()? {
            let journal = folder.tree.read_to_vec(Path::new(JOURNAL))?.unwrap_or_default();
            found.push(match Record::parse(&journal) {
                Some(record) => {
                    Leftover::Unfinished { what: format!("{who}: a cut by {} was interrupted", record.owner) }
                }
                None => Leftover::Unusable {
                    what: format!("{who}: {} cannot be read", folder.tree.path().join(JOURNAL).display()),
                },
            });
        }
        let bad = bad_journals(&folder.tree)?.into_iter();
        found.extend(bad.map(|sentence| Leftover::Unusable { what: format!("{who}: {sentence}") }));
    }
    Ok(found)
}

/// Something that a crash left in turnfs's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// The next recovery puts it in order.
    Unfinished { what: String },
    /// Only a person can tell what it means.
    Unusable { what: String },
}

/// Puts one session in order: its journal, and what an interrupted cut left in its folder.
pub(super) fn recover_session(locked: &Locked, store: &Tree) -> Result<Vec<String>> {
    let mut sentences = Vec::new();
    let tree = locked.tree();
    if let Some(bytes) = tree.read_to_vec(Path::new(JOURNAL))? {
        match Record::parse(&bytes) {
            Some(record) => sentences.extend(settle_record(locked, store, &record)?),
            None => set_aside(locked)?,
        }
    }
    tidy(locked)?;
    for sentence in &sentences {
        log::warn!("{sentence}");
    }
    Ok(sentences)
}

fn settle_record(locked: &Locked, store: &Tree, record: &Record) -> Result<Vec<String>> {
    let who = record.owner.to_string();
    let number = record.number;
    store.must_lead_there(&record.links)?;
    let (direction, what) = match record.kind {
        Kind::Fork => return settle_fork(locked, store, record, &who).map(|told| vec![told]),
        Kind::Undo => (Direction::Undo, format!("undo {number} that {who} did not finish")),
        Kind::Redo => (Direction::Redo, format!("redo of {number} that {who} did not finish")),
    };
    let dir = undone_dir(record.number);
    if locked.tree().stat(&dir)?.is_none() {
        // The backup is durable before the journal is written: this journal is not one of ours.
        set_aside(locked)?;
        return Ok(Vec::new());
    }
    let backup = locked.tree().sub(&dir)?;
    let agent = &*entry::opened_store(locked)?;
    let _store_locks = entry::locks(store, record)?;
    let hands = leases_for(store, record);
    let context = ApplyContext { agent, store, hands: &hands, backup: Some(&backup) };
    if direction == Direction::Undo && is_worked_on(store, record)? {
        undone::count(locked, record.number, direction)?;
        return Ok(vec![format!("the {what} is complete, and its agent has gone on from it: it stays")]);
    }
    match roll_back(&context, locked, record, direction, true) {
        Ok(notes) => {
            let mut sentences = vec![format!("the {what} was rolled back; the session is as before it")];
            sentences.extend(notes);
            Ok(sentences)
        }
        // The agent deleted the session meanwhile: there is nothing to roll back, and its backup stays.
        Err(Refusal::NotFound { .. } | Refusal::Io { errno: Errno::NOENT, .. }) => {
            set_aside(locked)?;
            Ok(vec![format!(
                "the {what} cannot be rolled back, its files are gone; what it had saved is in {}",
                backup.path().display()
            )])
        }
        Err(refusal) => Err(refusal),
    }
}

/// Whether the agent has gone on from what an undo left, so that rolling it back would take that away:
/// a row that the undo changes last was changed again, or a file that it made has grown.
fn is_worked_on(store: &Tree, record: &Record) -> Result<bool> {
    let Some(rows) = record.rows() else { return Ok(false) };
    if row::are_worked_on(store, rows, Direction::Undo)? {
        return Ok(true);
    }
    let made = record.files().filter(|(_, change)| change.before.is_none());
    for (file, image) in made.filter_map(|(_, change)| Some((&change.file, change.after?))) {
        if store.stat(file)?.is_some_and(|now| now.st_size as u64 > image.len) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A fork that is complete stays, any other one goes.
fn settle_fork(locked: &Locked, store: &Tree, record: &Record, who: &str) -> Result<String> {
    let agent = &*entry::opened_store(locked)?;
    let hands = match record.entry() {
        Some(_) => entry::locks(store, record)?,
        None => HeldLocks::default(),
    };
    let Some(name) = complete_fork(agent, store, record)? else {
        if let Some(rows) = record.rows() {
            several_names::tidy_database(store, &rows.db)?;
        }
        let context = ApplyContext { agent, store, hands: &hands, backup: None };
        // Its rows come last, when it is complete.
        roll_back(&context, locked, record, Direction::Undo, false)?;
        return Ok(format!("the fork that {who} did not finish was removed"));
    };
    if let Some(rows) = record.rows() {
        row::complete(store, rows)?;
    }
    remove_journal(locked)?;
    let name = if name.is_empty() { name } else { format!(" {name}") };
    Ok(format!("the fork{name} that {who} was making is complete and stays"))
}

/// What a fork is called that is complete: its directory is at its place; or the index has its entry; or, where no
/// entry makes it count, all its files are there, which its agent finds without their row and may have begun to work in.
fn complete_fork(agent: &dyn AgentStore, store: &Tree, record: &Record) -> Result<Option<String>> {
    let entry = record.entry();
    for change in &record.changes {
        match change {
            Change::Dir(new) => {
                let name = new.dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
                return Ok(store.stat(&new.dir)?.map(|_| name));
            }
            Change::Files(new) if entry.is_none() => {
                for file in &new.files {
                    if store.stat(file)?.is_none() {
                        return Ok(None);
                    }
                }
                return Ok(Some(String::new()));
            }
            Change::Files(_) | Change::Entry(_) | Change::File(_) | Change::Rows(_) => {}
        }
    }
    match entry {
        Some(entry) if entry::is_there(agent, store, entry)? => Ok(Some(entry.id.clone())),
        _ => Ok(None),
    }
}

/// Keeps a journal that cannot be used under another name; every recovery reports it.
fn set_aside(locked: &Locked) -> Result<()> {
    let name = format!("{BAD_JOURNAL}{}", now().as_nanosecond());
    locked.tree().rename(Path::new(JOURNAL), Path::new(&name), false)?;
    locked.tree().sync_dir(Path::new(""))
}

fn bad_journals(tree: &Tree) -> Result<Vec<String>> {
    let names = tree.list(Path::new(""))?.into_iter().map(|entry| entry.name.to_string_lossy().into_owned());
    let bad = names.filter(|name| name.starts_with(BAD_JOURNAL));
    Ok(bad
        .map(|name| {
            format!(
                "{} could not be used and is kept; compare the session with it",
                tree.path().join(name).display()
            )
        })
        .collect())
}

/// Removes what never counted or counts no longer. While an unusable journal is kept, backups that do not
/// count may be all that is left of something: they stay.
fn tidy(locked: &Locked) -> Result<()> {
    locked.tree().remove_dir(Path::new(BRANCH))?;
    if !bad_journals(locked.tree())?.is_empty() {
        return Ok(());
    }
    let counting = undone::counting_numbers(&locked.folder)?;
    for number in locked.folder.numbers()? {
        if counting.contains(&number) {
            continue;
        }
        let dir = undone_dir(number);
        if locked.tree().stat(&undone::done(number, Direction::Redo))?.is_some() {
            undone::discard(locked, number)?;
        } else if !holds_findings(locked, number)? {
            locked.tree().remove_dir(&dir)?;
        }
    }
    Ok(())
}

/// Whether a roll-back kept content there that it could not explain.
fn holds_findings(locked: &Locked, number: u32) -> Result<bool> {
    let files = undone_dir(number).join("files");
    if locked.tree().stat(&files)?.is_none() {
        return Ok(false);
    }
    let names = locked.tree().list(&files)?;
    Ok(names.iter().any(|entry| entry.name.to_string_lossy().contains(".found-")))
}
