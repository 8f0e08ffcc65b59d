//! One undo or redo from beginning to end: lock, look, plan, verify, back up, journal, apply, read again,
//! commit.
//!
//! The order of what becomes durable when is in `docs/DURABILITY.md`; the commit is one rename
//! (see `journal`). Forks are made in `fork`.

use std::path::Path;

use super::UndoDone;
use super::disk::Tree;
use super::entry;
use super::journal::{Change, Direction, Kind, Owner, RECORD_VERSION, Record, StoreLock};
use super::recover::recover_session;
use super::resolve::{self, Growth, LockedSources};
use super::row;
use super::scan;
use super::several_names;
use super::state::{JOURNAL, Locked, StateDir, json, undone_dir};
use super::transaction::{Cut, Prepared};
use super::undone::{self, Turns};
use super::verify::{self, Expected, is_rebuilt};
use super::writers::{look_for_writer, take_hands};
use crate::agents::AgentStore;
use crate::session::{History, Lock, Refusal, Result, Rows, Session, Turn, now, time_of_writing};

/// Removes turn `n` and everything after it from `session`, which is in the store `agent`. `seen` is the view that
/// the caller decided on: if the content differs from it now, the cut is refused. Blocks until it is durable.
/// With `force` a live agent does not refuse it, nor does what was only appended behind what was seen.
///
/// # Errors
/// The store is as before whenever an error is returned, except [`Refusal::NotPutBack`]: then its journal stays, and the
/// next recovery tries again.
pub fn undo(
    agent: &dyn AgentStore,
    state: &StateDir,
    session: &Session,
    seen: &History,
    n: u32,
    force: bool,
) -> Result<UndoDone> {
    time_of_writing()?;
    let store = Tree::store(&session.key.root)?;
    let locked = Locked::take(state, &session.key, &session.id, &store)?;
    recover_session(&locked, &store)?;
    // Before the writer: a number that does not exist is told so, whoever works there.
    let plan = agent.plan_undo(session, seen, n)?;
    let asked = n.to_string();
    if !force {
        look_for_writer(agent, &store, &locked, session, seen, &asked)?;
    }
    let turns = if force { turns_now(agent, &store, session, seen) } else { seen.turns.clone() };
    let hands = take_hands(agent, &store, &plan.locks, force, &asked)?;
    let growth = if force { Growth::Accepted } else { Growth::Refused };
    let mut ground =
        LockedSources::check(&store, &hands, &plan.based_on, resolve::marks_of(&plan.made), growth)?;
    let resolved = ground.resolve(&store, &hands, &plan.made)?;
    let entry = entry::resolve(agent, &store, &plan)?;

    let held = early(&store, plan.made.rows.as_ref(), Direction::Undo)?;

    let number = locked.next_number()?;
    let before = turns.len() as u32;
    let files = || resolved.iter().map(|resolved| resolved.change.clone());
    let leaves = ground.left_by(&files().collect::<Vec<_>>());
    let entry = entry.into_iter().map(Change::Entry);
    let rows = plan.made.rows.iter().cloned().map(Change::Rows);
    let record = Record {
        version: RECORD_VERSION,
        kind: Kind::Undo,
        number,
        at: now().as_nanosecond(),
        owner: Owner::this_process(),
        turns_before: before,
        turns_after: plan.promise.turns,
        grew: ground.grew,
        changes: entry.chain(files().map(Change::File)).chain(rows).collect(),
        spread: plan.promise.transcript.as_os_str().is_empty(),
        locks: StoreLock::of(&plan.locks),
        leaves,
        links: store.links(),
    };
    let back_up = || -> Result<Tree> {
        let dir = undone::make_dir(&locked, number)?;
        for (index, resolved) in resolved.iter().enumerate() {
            resolved.back_up(index, &store, &hands, &dir)?;
        }
        let removed = json(&Turns::of(turns.get(plan.promise.turns as usize..).unwrap_or(&[])))?;
        let file = dir.create(Path::new("turns.json"))?;
        file.write_all(&removed, 0)?;
        file.sync()?;
        undone::sync_dir(&locked, number)?;
        locked.write_journal(&record)?;
        Ok(dir)
    };
    let backup = match back_up() {
        Ok(backup) => backup,
        Err(refusal) => return Err(nothing_done(&locked, number, refusal)),
    };

    let backup = Some(&backup);
    let cut =
        Cut { agent, store: &store, locked: &locked, backup, record: &record, direction: Direction::Undo };
    let kept = seen.turns.get(..plan.promise.turns as usize).unwrap_or(&seen.turns);
    let expected = Expected {
        transcript: &plan.promise.transcript,
        turns: kept,
        count: Some(plan.promise.turns),
        same_ends: false,
        rebuilt: is_rebuilt(plan.made.contents()),
    };
    Prepared::new(cut, hands, held)?.apply()?.verify(|cut| read_again(cut, session, &expected))?.commit()?;
    Ok(UndoDone { number, keeps: plan.promise.turns, drops: before - plan.promise.turns.min(before) })
}

/// Brings back what an undo removed, byte for byte: the latest, or the one with this number.
/// Returns its number and how many turns came back.
///
/// # Errors
/// [`Refusal::NothingToRedo`];
/// [`Refusal::MovedOn`] when anything changed since. The store is as before, except with [`Refusal::NotPutBack`].
pub fn redo(
    agent: &dyn AgentStore,
    state: &StateDir,
    session: &Session,
    number: Option<u32>,
    force: bool,
) -> Result<(u32, u32)> {
    time_of_writing()?;
    let nothing = || Refusal::NothingToRedo { asked: number };
    let store = Tree::store(&session.key.root)?;
    if super::state::Folder::find(state, &session.key)?.is_none() {
        return Err(nothing());
    }
    let locked = Locked::take(state, &session.key, &session.id, &store)?;
    recover_session(&locked, &store)?;
    let numbers = undone::counting_numbers(&locked.folder)?;
    let number = match number {
        Some(number) => numbers.contains(&number).then_some(number),
        None => numbers.last().copied(),
    };
    let number = number.ok_or_else(nothing)?;
    let undo = undone::record(&locked.folder, number)?;
    store.must_lead_there(&undo.links)?;
    let backup = locked.tree().sub(&undone_dir(number))?;
    let turns = undone::turns(&locked.folder, number)?;

    let seen = agent.load(session)?;
    seen.readable()?;
    if !force {
        look_for_writer(agent, &store, &locked, session, &seen, &number.to_string())?;
    }
    // The files that exist and are changed in place are leased, in the record's order.
    let mut locks: Vec<Lock> = undo.locks.iter().map(StoreLock::lock).collect();
    locks.extend(undo.leases());
    let hands = take_hands(agent, &store, &locks, force, &number.to_string())?;
    if let Some(entry) = undo.entry()
        && !entry::is_applied(agent, &store, entry, Direction::Undo)?
    {
        return Err(Refusal::MovedOn { what: entry.index.display().to_string(), number });
    }
    let rows = early(&store, undo.rows(), Direction::Redo).map_err(|refusal| match refusal {
        Refusal::Changed { what } => Refusal::MovedOn { what, number },
        other => other,
    })?;
    for left in &undo.leaves {
        if !scan::holds(&store, &hands, &left.file, left.len.map(|len| (len, left.hash)))? {
            return Err(Refusal::MovedOn { what: left.file.display().to_string(), number });
        }
    }
    let record =
        Record { kind: Kind::Redo, at: now().as_nanosecond(), owner: Owner::this_process(), ..undo.clone() };
    locked.write_journal(&record)?;

    let backup = Some(&backup);
    let cut =
        Cut { agent, store: &store, locked: &locked, backup, record: &record, direction: Direction::Redo };
    let expected = Expected {
        // An undo removes at least one turn.
        transcript: turns.first().filter(|_| !undo.spread).map_or(Path::new(""), |turn| &turn.file),
        turns: &turns,
        count: (!undo.grew).then_some(undo.turns_before),
        same_ends: !undo.grew,
        rebuilt: false,
    };
    Prepared::new(cut, hands, rows)?.apply()?.verify(|cut| read_again(cut, session, &expected))?.commit()?;
    // From here the redo counts; what cannot be removed now is removed by the next cut or start.
    if let Err(refusal) = undone::discard(&locked, number) {
        log::warn!("the backup of redone undo {number} stays for now: {refusal}");
    }
    Ok((number, undo.turns_before - undo.turns_after.min(undo.turns_before)))
}

/// The rows, held before anything is done. A database with several hard links must get files of its own first, which
/// needs a journal: `None` then.
fn early<'a>(store: &'a Tree, rows: Option<&'a Rows>, direction: Direction) -> Result<Option<row::Held<'a>>> {
    match rows {
        Some(rows) if !several_names::is_shared(store, &rows.db)? => {
            row::Held::take(store, rows, direction).map(Some)
        }
        _ => Ok(None),
    }
}

/// The turns that a forced undo removes or keeps: with those that were written since the session was
/// seen, if it reads well now.
fn turns_now(agent: &dyn AgentStore, store: &Tree, session: &Session, seen: &History) -> Vec<Turn> {
    let grew = seen.files.iter().any(|view| {
        let now = store.stat(&view.file).ok().flatten().map(|facts| facts.st_size as u64);
        now > view.len
    });
    let fresh = if grew { agent.load(session).ok().filter(|fresh| fresh.readable().is_ok()) } else { None };
    let starts = |turns: &[Turn]| turns.iter().map(|turn| turn.span.start).collect::<Vec<_>>();
    match fresh {
        Some(fresh) if starts(&fresh.turns).starts_with(&starts(&seen.turns)) => fresh.turns,
        _ => seen.turns.clone(),
    }
}

/// Nothing was changed yet: the prepared undo directory goes again.
fn nothing_done(locked: &Locked, number: u32, why: Refusal) -> Refusal {
    let tidy = || -> Result<()> {
        locked.tree().unlink(Path::new(JOURNAL))?;
        locked.tree().unlink(&Path::new(JOURNAL).with_extension("new"))?;
        locked.tree().remove_dir(&undone_dir(number))
    };
    if let Err(refusal) = tidy() {
        // The next cut or start removes it: it holds no undo.json.
        log::warn!("an unfinished backup stays for now: {refusal}");
    }
    why
}

/// Reads the session as any session is read, and compares it with what the cut promised.
fn read_again(cut: &Cut<'_>, session: &Session, expected: &Expected<'_>) -> Result<()> {
    let session = after_cut(session, cut.record, cut.direction);
    let history = cut.agent.found_again(&session).and_then(|session| cut.agent.load(&session));
    let is_read = |file: &Path, len, hash| history.as_ref().is_ok_and(|history| history.has(file, len, hash));
    // A client that appended behind the cut meanwhile makes the turns its own business; that the
    // kept bytes are the promised ones was verified, and is verified again here.
    match cut.check_files(is_read)? {
        true => Ok(()),
        false => verify::turns(&history?, expected),
    }
}

/// The session as it must be read after the cut: without the files that went, with those that came.
fn after_cut(session: &Session, record: &Record, direction: Direction) -> Session {
    let mut session = session.clone();
    for (_, change) in record.files() {
        if direction.goal(change).is_none() {
            session.files.retain(|file| **file != *change.file);
        } else if session.files.iter().all(|file| **file != *change.file) {
            session.files.push(change.file.to_path_buf());
        }
    }
    session
}
