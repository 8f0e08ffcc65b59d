//! A fork of files that stand beside those of other sessions and count through an entry in a shared index.
//!
//! The entry is the last thing made: a crash before it leaves files that no client looks at, and the next
//! start removes them; from the entry on the fork is complete and stays.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::Tree;
use super::entry;
use super::execute::{is_rebuilt, now};
use super::journal::{Kind, NewFile, Owner, Record, StoreLock, VERSION, Way};
use super::lease::Hands;
use super::resolve::Ground;
use super::row;
use super::scan::Scan;
use super::state::{JOURNAL, Locked};
use super::verify::{self, Expected, Proof};
use crate::agents::Agent;
use crate::session::{Content, FileHash, History, Plan, Refusal, Result, Session, SessionKey, Step};

pub(super) struct Fork<'a> {
    pub agent: &'a dyn Agent,
    pub store: &'a Tree,
    pub locked: &'a Locked,
    pub session: &'a Session,
    pub seen: &'a History,
    pub plan: &'a Plan,
    /// Whether the row may have been written: only then it is taken back.
    pub row_touched: std::cell::Cell<bool>,
    pub proof: Proof,
}

impl Fork<'_> {
    /// Makes the fork while `hands` hold the store's locks; the new session's id.
    pub fn run(&self, hands: &Hands, ground: &mut Ground) -> Result<String> {
        let files: Vec<(&Path, &Content)> = self.plan.steps.iter().filter_map(new_file).collect();
        if files.is_empty() {
            return Err(Refusal::Internal { what: "a fork that makes no file".into() });
        }
        for (file, _) in &files {
            if self.store.stat(file)?.is_some() {
                let path = self.store.path().join(file);
                return Err(Refusal::io("making", &path, rustix::io::Errno::EXIST.into()));
            }
        }
        let record = Record {
            version: VERSION,
            kind: Kind::Fork,
            number: 0,
            at: now(),
            owner: Owner::this_process(),
            turns_before: 0,
            turns_after: self.plan.promise.turns,
            grew: false,
            changes: Vec::new(),
            new_dir: None,
            new_files: files.iter().map(|(file, _)| NewFile { file: file.to_path_buf() }).collect(),
            entry: entry::resolve(self.agent, self.store, self.plan)?,
            row: row::of(self.plan),
            spread: false,
            locks: StoreLock::of(&self.plan.locks),
            leaves: Vec::new(),
        };
        self.locked.write_journal(&record)?;
        let made = self.make(hands, ground, &files, &record).and_then(|()| self.commit());
        match made {
            Ok(()) => Ok(self.plan.promise.id.clone()),
            Err(refusal) => Err(self.withdraw(&record, refusal)),
        }
    }

    fn make(
        &self,
        hands: &Hands,
        ground: &mut Ground,
        files: &[(&Path, &Content)],
        record: &Record,
    ) -> Result<()> {
        let mut written: Vec<(&Path, u64, FileHash)> = Vec::new();
        for (file, content) in files {
            let temporary = beside(file);
            self.store.ensure_parents(file)?;
            let new = self.store.create(&temporary)?;
            let (len, hash) = ground.write_content(self.store, hands, self.plan, content, &new)?;
            new.sync()?;
            written.push((file, len, hash));
        }
        // Before any file is where a client looks, and after the long part: others wait for this lock.
        let row =
            record.row.as_ref().map(|change| row::Held::take(self.store, change, Way::Undo)).transpose()?;
        for (file, ..) in &written {
            self.store.rename(&beside(file), file, false)?;
        }
        for (file, len, hash) in &written {
            self.store.sync_parent(file)?;
            let scan = self.store.read(file)?.map(|open| Scan::of(&open, &[])).transpose()?;
            if scan.map(|scan| (scan.len, scan.hash)) != Some((*len, *hash)) {
                return Err(Refusal::NotAsPromised { what: file.display().to_string() });
            }
        }
        // Before any client can find it.
        let promise = &self.plan.promise;
        let new = Session {
            key: SessionKey { path: Arc::from(promise.session.as_path()), ..self.session.key.clone() },
            id: promise.id.clone(),
            files: written.iter().map(|(file, ..)| file.to_path_buf()).collect(),
            ..self.session.clone()
        };
        let kept = self.seen.turns.get(..promise.turns as usize).unwrap_or(&self.seen.turns);
        let rebuilt = is_rebuilt(self.plan);
        let expected = Expected {
            transcript: &promise.transcript,
            turns: kept,
            count: Some(promise.turns),
            same_ends: false,
            rebuilt,
        };
        let history = self.agent.load(&new)?;
        verify::turns(&history, &expected)?;
        self.proof.holds(&history)?;
        if let Some(change) = &record.entry {
            entry::apply(self.agent, self.store, change, Way::Undo)?;
        }
        match row {
            Some(row) => {
                self.row_touched.set(true);
                row.apply()
            }
            None => Ok(()),
        }
    }

    fn commit(&self) -> Result<()> {
        self.locked.tree().unlink(Path::new(JOURNAL))?;
        self.locked.tree().sync_dir(Path::new(""))
    }

    /// Takes a fork that failed out of the store again.
    fn withdraw(&self, record: &Record, why: Refusal) -> Refusal {
        let put_back = || -> Result<()> {
            if self.row_touched.get()
                && let Some(change) = &record.row
            {
                row::roll_back(self.store, change, Way::Undo)?;
            }
            if let Some(change) = &record.entry {
                entry::roll_back(self.agent, self.store, change, Way::Undo)?;
            }
            remove(self.store, record)?;
            self.commit()
        };
        match put_back() {
            Ok(()) => why,
            Err(rolling_back) => {
                Refusal::NotPutBack { why: Box::new(why), rolling_back: Box::new(rolling_back) }
            }
        }
    }
}

/// After a crash: a fork that has its entry is complete, any other one goes.
pub(super) fn settle(locked: &Locked, store: &Tree, record: &Record, who: &str) -> Result<Option<String>> {
    let Some(change) = &record.entry else { return settle_alone(store, record, who) };
    let agent = entry::agent_of(locked)?;
    let _store_locks = entry::locks(store, record)?;
    let listed = entry::is_there(agent, store, change)?;
    if !listed {
        entry::roll_back(agent, store, change, Way::Undo)?;
        remove(store, record)?;
    }
    Ok(Some(match listed {
        true => format!("the fork {} that {who} was making is complete and stays", change.id),
        false => format!("the fork that {who} did not finish was removed"),
    }))
}

/// As [`settle`], where a new file counts as soon as it is there (a row in a database is only a faster way to
/// it, which its agent makes where it is missing).
fn settle_alone(store: &Tree, record: &Record, who: &str) -> Result<Option<String>> {
    if record.new_files.is_empty() {
        return Ok(None);
    }
    let mut complete = true;
    for NewFile { file } in &record.new_files {
        store.unlink(&beside(file))?;
        complete &= store.stat(file)?.is_some();
    }
    if complete {
        return Ok(Some(format!("the fork that {who} was making is complete and stays")));
    }
    remove(store, record)?;
    Ok(Some(format!("the fork that {who} did not finish was removed")))
}

fn remove(store: &Tree, record: &Record) -> Result<()> {
    for NewFile { file } in record.new_files.iter().rev() {
        store.unlink(&beside(file))?;
        store.unlink(file)?;
        store.sync_parent(file)?;
    }
    Ok(())
}

fn new_file(step: &Step) -> Option<(&Path, &Content)> {
    match step {
        Step::CreateFile { file, content } => Some((file, content)),
        _ => None,
    }
}

fn beside(file: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(".turnfs.tmp");
    file.with_file_name(name)
}
