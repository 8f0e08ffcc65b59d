//! A cut from the moment that its journal is written: [`Prepared`], then [`Applied`], then [`Verified`], then it counts.
//! Whatever fails on this way rolls everything back; a process that dies leaves the journal to `recover`, which rolls
//! back by the same function.
//!
//! Undo, redo, fork, rescue and adoption all go this way: their changes are one list, made from its front
//! ([`Record::in_order`]) and rolled back from its end.

use std::path::Path;

use super::apply::ApplyContext;
use super::disk::Tree;
use super::journal::{Change, Direction, Kind, Numbered, Record};
use super::lease::{HeldLocks, OnWriter};
use super::row;
use super::state::{JOURNAL, Locked, undone_dir};
use super::undone;
use crate::agents::AgentStore;
use crate::session::{FileHash, Refusal, Result};

/// A cut whose journal is written.
#[derive(Clone, Copy)]
pub(super) struct Cut<'a> {
    pub agent: &'a dyn AgentStore,
    pub store: &'a Tree,
    pub locked: &'a Locked,
    /// The undo's directory; a fork has none.
    pub backup: Option<&'a Tree>,
    pub record: &'a Record,
    pub direction: Direction,
}

/// Nothing of the cut is done yet.
#[must_use]
pub(super) struct Prepared<'a> {
    cut: Cut<'a>,
    hands: HeldLocks,
    rows: Option<row::Held<'a>>,
}

/// What the session consists of is as the cut leaves it.
#[must_use]
pub(super) struct Applied<'a>(Prepared<'a>);

/// The session was read again and is as promised.
#[must_use]
pub(super) struct Verified<'a>(Prepared<'a>);

impl<'a> Prepared<'a> {
    /// With the rows of the record held now, if they are not.
    ///
    /// # Errors
    /// What prevents holding them; all is rolled back then, or it is [`Refusal::NotPutBack`].
    pub fn new(cut: Cut<'a>, hands: HeldLocks, rows: Option<row::Held<'a>>) -> Result<Prepared<'a>> {
        let rows = match (rows, cut.record.rows()) {
            (None, Some(rows)) => row::Held::take_its_own(cut.store, rows, cut.direction).map(Some),
            (rows, _) => Ok(rows),
        };
        match rows {
            Ok(rows) => Ok(Prepared { cut, hands, rows }),
            Err(refusal) => Err(cut.roll_back(&hands, false, refusal)),
        }
    }

    /// Makes the changes, up to those by which a fork is found. The files are let go of then: reading the session
    /// opens them, which would wait for our own leases. The store's lock files stay held.
    ///
    /// # Errors
    /// The first error; all is rolled back then, or it is [`Refusal::NotPutBack`].
    pub fn apply(mut self) -> Result<Applied<'a>> {
        let mut apply = || -> Result<()> {
            for file in self.cut.record.in_place() {
                self.hands.make_its_own(self.cut.store, file)?;
            }
            let (first, _) = self.cut.parts();
            self.cut.make(&self.hands, &first, &mut self.rows)?;
            let context = self.cut.context(&self.hands);
            for (_, change) in self.cut.record.files() {
                context.require_applied(change, self.cut.direction)?;
            }
            Ok(())
        };
        if let Err(refusal) = apply() {
            self.rows = None;
            self.hands.let_go_of_old();
            return Err(self.cut.roll_back(&self.hands, false, refusal));
        }
        self.hands.let_go_of_files();
        Ok(Applied(self))
    }
}

impl<'a> Applied<'a> {
    /// Asks `verify` whether the session is as promised.
    ///
    /// # Errors
    /// What it says; all is rolled back then, or it is [`Refusal::NotPutBack`].
    pub fn verify(self, verify: impl FnOnce(&Cut<'a>) -> Result<()>) -> Result<Verified<'a>> {
        let Applied(mut prepared) = self;
        let cut = prepared.cut;
        let Err(refusal) = verify(&cut).and_then(|()| prepared.hands.discard_old(cut.store)) else {
            return Ok(Verified(prepared));
        };
        prepared.hands.let_go_of_old();
        let mut best = leases_for(cut.store, cut.record);
        best.await_too(&prepared.hands);
        Err(cut.roll_back(&best, false, refusal))
    }
}

impl Verified<'_> {
    /// Makes the cut count: a fork by the changes by which it is found, an undo or redo by the rename of its journal.
    ///
    /// # Errors
    /// What prevents that; all is rolled back then, or it is [`Refusal::NotPutBack`].
    pub fn commit(self) -> Result<()> {
        let Verified(Prepared { cut, hands, mut rows }) = self;
        let (_, last) = cut.parts();
        let made = cut.make(&hands, &last, &mut rows);
        drop(rows);
        match made.and_then(|()| cut.count()) {
            Ok(()) => Ok(()),
            Err(refusal @ Refusal::NotPutBack { .. }) => Err(refusal),
            Err(refusal) => Err(cut.roll_back(&leases_for(cut.store, cut.record), true, refusal)),
        }
    }
}

impl<'a> Cut<'a> {
    fn context<'c>(&'c self, hands: &'c HeldLocks) -> ApplyContext<'c> {
        ApplyContext { agent: self.agent, store: self.store, hands, backup: self.backup }
    }

    /// The changes in their order: those that are verified, and those after which a fork is found.
    fn parts(&self) -> (Numbered<'a>, Numbered<'a>) {
        let mut first = self.record.in_order(self.direction);
        let new = first.iter().position(|(_, change)| matches!(change, Change::Dir(_) | Change::Files(_)));
        let last = new.map_or(Vec::new(), |new| first.split_off(new + 1));
        (first, last)
    }

    fn make(
        &self,
        hands: &HeldLocks,
        changes: &[(usize, &'a Change)],
        rows: &mut Option<row::Held<'a>>,
    ) -> Result<()> {
        let context = self.context(hands);
        for (number, change) in changes {
            match (change, rows.take()) {
                (Change::Rows(_), Some(held)) => held.apply()?,
                (_, held) => {
                    *rows = held;
                    context.apply(*number, change, self.direction)?;
                }
            }
        }
        Ok(())
    }

    fn count(&self) -> Result<()> {
        let tree = self.locked.tree();
        if self.record.kind == Kind::Fork {
            return remove_journal(self.locked);
        }
        undone::count(self.locked, self.record.number, self.direction).map_err(|refusal| {
            let journal = Path::new(JOURNAL);
            let back = || -> Result<()> {
                if tree.stat(journal)?.is_none() {
                    tree.rename(&undone::done(self.record.number, self.direction), journal, false)?;
                    tree.sync_dir(Path::new(""))?;
                }
                Ok(())
            };
            match back() {
                Ok(()) => refusal,
                Err(rolling_back) => not_put_back(refusal, rolling_back),
            }
        })
    }

    /// Rolls everything back, for this reason. `published`: the changes by which a fork is found may have been made.
    pub fn roll_back(&self, hands: &HeldLocks, published: bool, why: Refusal) -> Refusal {
        // Rows that a fork has not touched are not asked about: that would wait for the database again.
        let rows = published || self.record.kind != Kind::Fork;
        match roll_back(&self.context(hands), self.locked, self.record, self.direction, rows) {
            Ok(_) => why,
            Err(rolling_back) => not_put_back(why, rolling_back),
        }
    }

    /// Refuses if a file is not as the cut leaves it. Whether a client has appended to one behind that meanwhile.
    /// `is_read`: a file that is known to have this length and hash need not be read once more.
    ///
    /// # Errors
    /// [`Refusal::NotAsPromised`], or what prevents looking.
    pub fn check_files(&self, is_read: impl Fn(&Path, u64, FileHash) -> bool) -> Result<bool> {
        let mut grown = false;
        let no_hands = HeldLocks::default();
        let context = self.context(&no_hands);
        for (_, change) in self.record.files() {
            let goal = self.direction.goal(change);
            if goal.is_some_and(|image| is_read(&change.file, image.len, image.hash)) {
                continue;
            }
            context.require_applied(change, self.direction)?;
            if let (Some(image), Some(facts)) = (goal, self.store.stat(&change.file)?) {
                grown |= facts.st_size as u64 > image.len;
            }
        }
        Ok(grown)
    }
}

fn not_put_back(why: Refusal, rolling_back: Refusal) -> Refusal {
    Refusal::NotPutBack { why: Box::new(why), rolling_back: Box::new(rolling_back) }
}

/// Leases on what a record changes in place, best effort.
pub(super) fn leases_for(store: &Tree, record: &Record) -> HeldLocks {
    match HeldLocks::take(store, &record.leases(), OnWriter::GoOn) {
        Ok(Ok(hands)) => hands,
        Ok(Err(_)) | Err(_) => HeldLocks::default(),
    }
}

/// Rolls back a record's changes, then removes the journal (and an undo's backup). The sentences are
/// what there was to tell. Without `rows` those are left as they are.
///
/// # Errors
/// What prevents that; the journal stays then.
pub(super) fn roll_back(
    context: &ApplyContext<'_>,
    locked: &Locked,
    record: &Record,
    direction: Direction,
    rows: bool,
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for (number, change) in record.in_order(Direction::Undo).into_iter().rev() {
        if rows || !matches!(change, Change::Rows(_)) {
            notes.extend(context.roll_back(number, change, direction)?);
        }
    }
    remove_journal(locked)?;
    // Content that was kept aside lies in the backup, which then stays.
    if record.kind == Kind::Undo && notes.is_empty() {
        locked.tree().remove_dir(&undone_dir(record.number))?;
    }
    Ok(notes)
}

/// Removes the journal, durable when this returns.
pub(super) fn remove_journal(locked: &Locked) -> Result<()> {
    locked.tree().unlink(Path::new(JOURNAL))?;
    locked.tree().sync_dir(Path::new(""))
}
