//! One undo or redo from beginning to end: lock, look, plan, verify, back up, journal, apply, read again,
//! commit.
//!
//! The order of what becomes durable when is in `docs/DURABILITY.md`; the commit is one rename
//! (see `journal`). Forks are made in `fork`.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::UndoDone;
use super::apply::ApplyContext;
use super::disk::Tree;
use super::entry;
use super::journal::{Direction, How, Kind, Owner, Record, StoreLock, VERSION};
use super::lease::{HeldByWriter, HeldLocks, OnWriter};
use super::recover::recover_session;
use super::resolve::{self, Growth, LockedSources};
use super::row;
use super::scan;
use super::several_names;
use super::state::{JOURNAL, Locked, StateDir, json, undone_dir};
use super::undone::{self, Turns};
use super::verify::{self, Expected};
use crate::agents::Agent;
use crate::host::processes;
use crate::session::{Content, History, Lock, Refusal, Result, RowChange, Session, Turn, Writer};

/// Time between two looks at a file that somebody may be writing.
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

pub(super) fn undo(
    agent: &dyn Agent,
    state: &StateDir,
    session: &Session,
    seen: &History,
    n: u32,
    force: bool,
) -> Result<UndoDone> {
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

    let row = plan.made.row.clone();
    let held = early(&store, row.as_ref(), Direction::Undo)?;

    let number = locked.next_number()?;
    let before = turns.len() as u32;
    let changes: Vec<_> = resolved.iter().map(|resolved| resolved.change.clone()).collect();
    let record = Record {
        version: VERSION,
        kind: Kind::Undo,
        number,
        at: now(),
        owner: Owner::this_process(),
        turns_before: before,
        turns_after: plan.promise.turns,
        grew: ground.grew,
        leaves: ground.left_by(&changes),
        changes,
        new_dir: None,
        new_files: Vec::new(),
        new_dirs: Vec::new(),
        entry,
        row: row.clone(),
        spread: plan.promise.transcript.as_os_str().is_empty(),
        locks: StoreLock::of(&plan.locks),
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

    let cut = Cut {
        agent,
        store: &store,
        locked: &locked,
        backup: &backup,
        record: &record,
        direction: Direction::Undo,
    };
    let held = match held.map_or_else(|| late(&store, row.as_ref(), Direction::Undo), |held| Ok(Some(held))) {
        Ok(held) => held,
        Err(refusal) => return Err(cut.roll_back(&hands, refusal)),
    };
    let _store_locks = cut.run(hands, held, || {
        let kept = seen.turns.get(..plan.promise.turns as usize).unwrap_or(&seen.turns);
        let rebuilt = is_rebuilt(plan.made.contents());
        let expected = Expected {
            transcript: &plan.promise.transcript,
            turns: kept,
            count: Some(plan.promise.turns),
            same_ends: false,
            rebuilt,
        };
        cut.read_again(&after_cut(session, &record, Direction::Undo), &expected)
    })?;
    cut.commit()?;
    Ok(UndoDone { number, keeps: plan.promise.turns, drops: before - plan.promise.turns.min(before) })
}

pub(super) fn redo(
    agent: &dyn Agent,
    state: &StateDir,
    session: &Session,
    number: Option<u32>,
    force: bool,
) -> Result<(u32, u32)> {
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
    let in_place = undo.changes.iter().filter(|change| change.how == How::InPlace);
    let mut locks: Vec<Lock> = undo.locks.iter().map(StoreLock::lock).collect();
    locks.extend(in_place.map(|change| Lock::Lease { file: change.file.clone() }));
    let hands = take_hands(agent, &store, &locks, force, &number.to_string())?;
    if let Some(entry) = &undo.entry
        && !entry::is_applied(agent, &store, entry, Direction::Undo)?
    {
        return Err(Refusal::MovedOn { what: entry.index.display().to_string(), number });
    }
    let held = early(&store, undo.row.as_ref(), Direction::Redo).map_err(|refusal| match refusal {
        Refusal::Changed { what } => Refusal::MovedOn { what, number },
        other => other,
    })?;
    for left in &undo.leaves {
        if !scan::holds(&store, &hands, &left.file, left.len.map(|len| (len, left.hash)))? {
            return Err(Refusal::MovedOn { what: left.file.display().to_string(), number });
        }
    }
    let record = Record { kind: Kind::Redo, at: now(), owner: Owner::this_process(), ..undo.clone() };
    locked.write_journal(&record)?;

    let cut = Cut {
        agent,
        store: &store,
        locked: &locked,
        backup: &backup,
        record: &record,
        direction: Direction::Redo,
    };
    let held =
        match held.map_or_else(|| late(&store, undo.row.as_ref(), Direction::Redo), |held| Ok(Some(held))) {
            Ok(held) => held,
            Err(refusal) => return Err(cut.roll_back(&hands, refusal)),
        };
    let _store_locks = cut.run(hands, held, || {
        // An undo removes at least one turn.
        let transcript = turns.first().filter(|_| !undo.spread).map_or(Path::new(""), |turn| &turn.file);
        let expected = Expected {
            transcript,
            turns: &turns,
            count: (!undo.grew).then_some(undo.turns_before),
            same_ends: !undo.grew,
            rebuilt: false,
        };
        cut.read_again(&after_cut(session, &record, Direction::Redo), &expected)
    })?;
    cut.commit()?;
    // From here the redo counts; what cannot be removed now is removed by the next cut or start.
    if let Err(refusal) = undone::discard(&locked, number) {
        log::warn!("the backup of redone undo {number} stays for now: {refusal}");
    }
    Ok((number, undo.turns_before - undo.turns_after.min(undo.turns_before)))
}

/// The row, held before anything is done. A database with several hard links must get files of its own first, which
/// needs a journal: `None` then, and [`late`] holds it.
fn early<'a>(
    store: &'a Tree,
    row: Option<&'a RowChange>,
    direction: Direction,
) -> Result<Option<row::Held<'a>>> {
    match row {
        Some(change) if !several_names::is_shared(store, &change.db)? => {
            row::Held::take(store, change, direction).map(Some)
        }
        _ => Ok(None),
    }
}

/// The row, held once the journal is written.
fn late<'a>(
    store: &'a Tree,
    row: Option<&'a RowChange>,
    direction: Direction,
) -> Result<Option<row::Held<'a>>> {
    row.map(|change| row::Held::take_its_own(store, change, direction)).transpose()
}

/// The turns that a forced undo removes or keeps: with those that were written since the session was
/// seen, if it reads well now.
fn turns_now(agent: &dyn Agent, store: &Tree, session: &Session, seen: &History) -> Vec<Turn> {
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

/// A cut whose journal is written.
struct Cut<'a> {
    agent: &'a dyn Agent,
    store: &'a Tree,
    locked: &'a Locked,
    backup: &'a Tree,
    record: &'a Record,
    direction: Direction,
}

impl Cut<'_> {
    /// Applies the changes under `hands`, lets go of these, and asks `verify`; rolls back on any error.
    /// The hands that come back still hold the store's own lock files.
    fn run(
        &self,
        mut hands: HeldLocks,
        mut row: Option<row::Held<'_>>,
        verify: impl FnOnce() -> Result<()>,
    ) -> Result<HeldLocks> {
        let mut apply = |hands: &mut HeldLocks| -> Result<()> {
            let in_place = self.record.changes.iter().filter(|change| change.how == How::InPlace);
            for change in in_place {
                hands.make_its_own(self.store, &change.file)?;
            }
            // Before the files: a crash in between only moves what the entry says of them.
            if let Some(entry) = &self.record.entry {
                entry::apply(self.agent, self.store, entry, self.direction)?;
            }
            // A row points to files: it comes after those that it shall point to, and before those that go.
            if self.direction == Direction::Redo
                && let Some(row) = row.take()
            {
                row.apply()?;
            }
            let site = ApplyContext { store: self.store, hands: &*hands, backup: self.backup };
            for (index, change) in self.in_order() {
                site.apply(index, change, self.direction)?;
            }
            if let Some(row) = row.take() {
                row.apply()?;
            }
            for change in &self.record.changes {
                if !site.is_applied(change, self.direction)? {
                    return Err(Refusal::NotAsPromised { what: change.file.display().to_string() });
                }
            }
            Ok(())
        };
        if let Err(refusal) = apply(&mut hands) {
            drop(row);
            hands.let_go_of_old();
            return Err(self.roll_back(&hands, refusal));
        }
        // Reading the session as any session is read opens its files, which would wait for our leases.
        hands.let_go_of_files();
        if let Err(refusal) = verify().and_then(|()| hands.discard_old(self.store)) {
            hands.let_go_of_old();
            let mut best = self.best_hands();
            best.await_too(&hands);
            return Err(self.roll_back(&best, refusal));
        }
        Ok(hands)
    }

    /// Makes the cut count; rolls back if that fails.
    fn commit(&self) -> Result<()> {
        let (tree, journal) = (self.locked.tree(), Path::new(JOURNAL));
        undone::count(self.locked, self.record.number, self.direction).map_err(|refusal| {
            let back = || -> Result<()> {
                if tree.stat(journal)?.is_none() {
                    tree.rename(&undone::done(self.record.number, self.direction), journal, false)?;
                    tree.sync_dir(Path::new(""))?;
                }
                Ok(())
            };
            match back() {
                Ok(()) => self.roll_back(&self.best_hands(), refusal),
                Err(rolling_back) => {
                    Refusal::NotPutBack { why: Box::new(refusal), rolling_back: Box::new(rolling_back) }
                }
            }
        })
    }

    /// Growing changes first in the direction of the cut.
    fn in_order(&self) -> impl Iterator<Item = (usize, &super::journal::Change)> {
        let mut order: Vec<_> = self.record.changes.iter().enumerate().collect();
        if self.direction == Direction::Redo {
            order.reverse();
        }
        order.into_iter()
    }

    fn best_hands(&self) -> HeldLocks {
        leases_for(self.store, self.record)
    }

    fn roll_back(&self, hands: &HeldLocks, why: Refusal) -> Refusal {
        let site = ApplyContext { store: self.store, hands, backup: self.backup };
        match roll_back_session(self.agent, &site, self.locked, self.record, self.direction) {
            Ok(_) => why,
            Err(rolling_back) => {
                Refusal::NotPutBack { why: Box::new(why), rolling_back: Box::new(rolling_back) }
            }
        }
    }

    fn read_again(&self, session: &Session, expected: &Expected<'_>) -> Result<()> {
        let history = self.agent.found_again(session).and_then(|session| self.agent.load(&session));
        // A client that appended behind the cut meanwhile makes the turns its own business; that the
        // kept bytes are the promised ones was verified, and is verified again here.
        let mut grown = false;
        let no_hands = HeldLocks::default();
        let site = ApplyContext { store: self.store, hands: &no_hands, backup: self.backup };
        for change in &self.record.changes {
            if let (Some(image), Ok(history)) = (self.direction.goal(change), &history)
                // What the pass that read the session found need not be read once more.
                && history.has(&change.file, image.len, image.hash)
            {
                continue;
            }
            if !site.is_applied(change, self.direction)? {
                return Err(Refusal::NotAsPromised { what: change.file.display().to_string() });
            }
            if let (Some(image), Some(facts)) = (self.direction.goal(change), self.store.stat(&change.file)?)
            {
                grown |= facts.st_size as u64 > image.len;
            }
        }
        if grown {
            return Ok(());
        }
        verify::turns(&history?, expected)
    }
}

/// Leases on what a record changes in place, as far as they can be had.
pub(super) fn leases_for(store: &Tree, record: &Record) -> HeldLocks {
    let in_place = record.changes.iter().filter(|change| change.how == How::InPlace);
    let locks: Vec<Lock> = in_place.map(|change| Lock::Lease { file: change.file.clone() }).collect();
    match HeldLocks::take(store, &locks, OnWriter::GoOn) {
        Ok(Ok(hands)) => hands,
        Ok(Err(_)) | Err(_) => HeldLocks::default(),
    }
}

/// Rolls back a record's changes, then removes the journal (and an undo's backup). The sentences are
/// what there was to tell.
pub(super) fn roll_back_session(
    agent: &dyn Agent,
    site: &ApplyContext<'_>,
    locked: &Locked,
    record: &Record,
    direction: Direction,
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    if let Some(change) = &record.row {
        notes.extend(row::roll_back(site.store, change, direction)?);
    }
    for (index, change) in record.changes.iter().enumerate().rev() {
        notes.extend(site.roll_back(index, change, direction)?);
    }
    if let Some(entry) = &record.entry {
        notes.extend(entry::roll_back(agent, site.store, entry, direction)?);
    }
    locked.tree().unlink(Path::new(JOURNAL))?;
    locked.tree().sync_dir(Path::new(""))?;
    // Content that was kept aside lives in the backup, which then stays.
    if record.kind == Kind::Undo && notes.is_empty() {
        locked.tree().remove_dir(&undone_dir(record.number))?;
    }
    Ok(notes)
}

pub(super) fn take_hands(
    agent: &dyn Agent,
    store: &Tree,
    locks: &[Lock],
    force: bool,
    asked: &str,
) -> Result<HeldLocks> {
    let on_writer = if force { OnWriter::GoOn } else { OnWriter::Refuse };
    HeldLocks::take(store, locks, on_writer)?.map_err(|held| {
        let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (file, evidence) = match &held {
            HeldByWriter::Open(file) => (file, format!("has {} open for writing", name(file))),
            HeldByWriter::OpenAndLinked(file) => {
                (file, format!("has {} open for writing, which has several hard links", name(file)))
            }
            HeldByWriter::Lock { file, .. } => (file, format!("holds {}", name(file))),
        };
        let pid = processes::writer_of(&store.path().join(file));
        match held {
            HeldByWriter::Lock { forcible: false, .. } | HeldByWriter::OpenAndLinked(_) => {
                Refusal::Locked { writer: Writer { agent: agent.kind(), pid, evidence } }
            }
            _ => live(agent, pid, evidence, asked),
        }
    })
}

fn live(agent: &dyn Agent, pid: Option<u32>, evidence: String, asked: &str) -> Refusal {
    Refusal::Live { writer: Writer { agent: agent.kind(), pid, evidence }, asked: asked.to_owned() }
}

/// Refuses if the agent seems to be at work in the session, or a file grows between two looks.
fn look_for_writer(
    agent: &dyn Agent,
    store: &Tree,
    locked: &Locked,
    session: &Session,
    seen: &History,
    asked: &str,
) -> Result<()> {
    if let Some(writer) = agent.writer(session, seen, &processes::Running::default()) {
        // Without a process the evidence is that the files are young; an undo makes them so.
        let is_process = writer.pid.is_some();
        if is_process || !is_as_an_undo_left_it(locked, seen)? {
            return Err(Refusal::Live { writer, asked: asked.to_owned() });
        }
    }
    let lengths = || -> Result<Vec<Option<u64>>> {
        let files = seen.files.iter();
        files.map(|view| Ok(store.stat(&view.file)?.map(|facts| facts.st_size as u64))).collect()
    };
    let first = lengths()?;
    // A session that has grown since it was seen may be growing still: it is watched for longer, so that
    // a writer is told from a change that is over.
    let grown = seen.files.iter().zip(&first).any(|(view, len)| *len > view.len);
    for _ in 0..if grown { 4 } else { 1 } {
        std::thread::sleep(BETWEEN_LOOKS);
        if lengths()? != first {
            let files = seen.files.iter().map(|view| store.path().join(&view.file));
            let pid = files.into_iter().find_map(|file| processes::writer_of(&file));
            return Err(live(agent, pid, "is writing to it right now".into(), asked));
        }
    }
    Ok(())
}

/// Whether nobody wrote to the session since its latest undo.
fn is_as_an_undo_left_it(locked: &Locked, seen: &History) -> Result<bool> {
    let Some(number) = undone::counting_numbers(&locked.folder)?.last().copied() else { return Ok(false) };
    let left = undone::record(&locked.folder, number)?.leaves;
    let there = |len: &Option<u64>| len.is_some();
    let count = seen.files.iter().filter(|view| there(&view.len)).count();
    let same = seen.files.iter().filter(|view| there(&view.len)).all(|view| {
        left.iter().any(|left| left.file == view.file && left.len == view.len && left.hash == view.hash)
    });
    Ok(same && left.iter().filter(|left| there(&left.len)).count() == count)
}

/// The session as it must be read after the cut: without the files that went, with those that came.
fn after_cut(session: &Session, record: &Record, direction: Direction) -> Session {
    let mut session = session.clone();
    for change in &record.changes {
        if direction.goal(change).is_none() {
            session.files.retain(|file| *file != change.file);
        } else if !session.files.contains(&change.file) {
            session.files.push(change.file.clone());
        }
    }
    session
}

/// Whether the cut puts content together anew, so that turns stand elsewhere afterwards.
pub(super) fn is_rebuilt<'c>(contents: impl IntoIterator<Item = &'c Content>) -> bool {
    contents.into_iter().any(|content| matches!(content, Content::Parts(_)))
}

pub(super) fn now() -> i128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128)
}
