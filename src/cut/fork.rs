//! One fork from beginning to end: lock, look, plan, verify, journal, make, read again, commit.
//!
//! What a fork makes is a directory of its own, or files that stand beside those of other sessions. Either way nothing
//! of it counts before all of it is durable, and the source is only read.
//!
//! A project's entry in a shared index comes before the directory, for a client must never find a session of
//! a project that its index does not list. Of files among others the session's entry or row comes last: a crash before
//! it leaves files that no client looks at.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Adopted;
use super::adopted;
use super::disk::Tree;
use super::entry;
use super::journal::{self, Change, Direction, Kind, NewDir, Owner, RECORD_VERSION, Record, StoreLock};
use super::lease::HeldLocks;
use super::recover::recover_session;
use super::resolve::{self, Growth, LockedSources};
use super::scan;
use super::state::{Locked, StateDir};
use super::transaction::{Cut, Prepared};
use super::verify::{self, Expected, Proof, is_rebuilt};
use super::writers::take_hands;
use crate::agents::AgentStore;
use crate::session::{
    Content, FileHash, ForkPlan, History, NewFiles, Refusal, Result, Session, SessionKey, StorePath, now,
    time_of_writing,
};

pub(super) fn fork(
    agent: &dyn AgentStore,
    state: &StateDir,
    session: &Session,
    seen: &History,
    n: u32,
    proof: Proof,
) -> Result<String> {
    let (store, locked) = lock(state, session)?;
    let plan = agent.plan_fork(session, seen, n, None)?;
    let (store, locked) = (&store, &locked);
    Fork { agent, store, source: store, locked, session, seen, plan: &plan, proof }.make(n)
}

/// Makes a copy of the whole of `session` that belongs to `project` (absolute and resolved), unless an earlier
/// call made one that `is_there` still knows by its id.
///
/// # Errors
/// As [`super::fork`]; nothing is left behind in the store (turnfs's own note of the copy stays, which then names none).
pub fn adopt(
    agent: &dyn AgentStore,
    state: &StateDir,
    session: &Session,
    seen: &History,
    project: &Path,
    is_there: &dyn Fn(&str) -> bool,
) -> Result<Adopted> {
    time_of_writing()?;
    let (store, locked) = lock(state, session)?;
    if let Some(id) = adopted::copies(&locked.folder, project)?.into_iter().find(|id| is_there(id)) {
        return Ok(Adopted::Before { id });
    }
    let n = seen.last_finished()?;
    let plan = agent.plan_fork(session, seen, n, Some(project))?;
    // Before it is there: a copy that is not noted would be made twice.
    adopted::note(&locked, project, &plan.promise.id)?;
    let proof = Proof::Turns;
    let (store, locked) = (&store, &locked);
    let id = Fork { agent, store, source: store, locked, session, seen, plan: &plan, proof }.make(n)?;
    Ok(Adopted::Now { id })
}

pub(super) fn lock(state: &StateDir, session: &Session) -> Result<(Tree, Locked)> {
    let store = Tree::store(&session.key.root)?;
    let locked = Locked::take(state, &session.key, &session.id, &store)?;
    recover_session(&locked, &store)?;
    Ok((store, locked))
}

/// A fork whose plan is made.
pub(super) struct Fork<'a> {
    pub agent: &'a dyn AgentStore,
    pub store: &'a Tree,
    /// Where the files are that the plan copies from: the store, or a copy of the session as it was.
    pub source: &'a Tree,
    pub locked: &'a Locked,
    pub session: &'a Session,
    pub seen: &'a History,
    pub plan: &'a ForkPlan,
    pub proof: Proof,
}

/// A file of the fork as it was written: its place in the store, length and hash.
struct Written {
    file: PathBuf,
    len: u64,
    hash: FileHash,
}

impl Fork<'_> {
    /// Carries out the plan, which keeps the turns up to `n`; the new session's id.
    pub fn make(&self, n: u32) -> Result<String> {
        let hands = take_hands(self.agent, self.store, &self.plan.locks, true, &n.to_string())?;
        let marks = resolve::marks(self.plan.made.contents());
        let mut ground =
            LockedSources::check(self.source, &hands, &self.plan.based_on, marks, Growth::Accepted)?;
        let record = self.record()?;
        self.locked.write_journal(&record)?;
        let (agent, store, locked, direction) = (self.agent, self.store, self.locked, Direction::Undo);
        let cut = Cut { agent, store, locked, backup: None, record: &record, direction };
        let written = match self.build(&hands, &mut ground) {
            Ok(written) => written,
            Err(refusal) => return Err(cut.roll_back(&hands, false, refusal)),
        };
        // From here others may wait for the locks.
        Prepared::new(cut, hands, None)?.apply()?.verify(|_| self.read_again(&written))?.commit()?;
        Ok(self.plan.promise.id.clone())
    }

    /// What is going to be done.
    fn record(&self) -> Result<Record> {
        let entry =
            || -> Result<_> { Ok(entry::resolve(self.agent, self.store, self.plan)?.map(Change::Entry)) };
        let mut changes = Vec::new();
        match &self.plan.made {
            NewFiles::Dir { dir, staging, .. } => {
                self.must_be_free(dir)?;
                changes.extend(entry()?);
                changes.push(Change::Dir(NewDir { dir: dir.into(), staging: staging.into() }));
            }
            NewFiles::Beside { files, rows } => {
                if files.is_empty() {
                    return Err(Refusal::Internal { what: "a fork that makes no file".into() });
                }
                for (file, _) in files {
                    self.must_be_free(file)?;
                }
                changes.push(Change::Files(journal::NewFiles {
                    dirs: self.missing_above(files)?,
                    files: files.iter().map(|(file, _)| file.into()).collect(),
                }));
                changes.extend(entry()?);
                changes.extend(rows.clone().map(Change::Rows));
            }
        }
        Ok(Record {
            version: RECORD_VERSION,
            kind: Kind::Fork,
            number: 0,
            at: now().as_nanosecond(),
            owner: Owner::this_process(),
            turns_before: 0,
            turns_after: self.plan.promise.turns,
            grew: false,
            changes,
            spread: false,
            locks: StoreLock::of(&self.plan.locks),
            leaves: Vec::new(),
            links: self.store.links(),
        })
    }

    /// Makes sure that nothing stands at `place`, relative to the store's root.
    ///
    /// # Errors
    /// EEXIST when something stands where the fork is to be.
    fn must_be_free(&self, place: &Path) -> Result<()> {
        match self.store.stat(place)? {
            None => Ok(()),
            Some(_) => {
                let path = self.store.path().join(place);
                Err(Refusal::io("cannot make", &path, rustix::io::Errno::EXIST.into()))
            }
        }
    }

    /// Reads the new session as any session is read: it must hold what was written, and show the turns kept.
    ///
    /// # Errors
    /// [`Refusal::NotAsPromised`], or what prevents reading it.
    fn read_again(&self, written: &[Written]) -> Result<()> {
        let promise = &self.plan.promise;
        let new = Session {
            key: SessionKey { path: Arc::from(promise.session.as_path()), ..self.session.key.clone() },
            id: promise.id.clone(),
            files: written.iter().map(|written| written.file.clone()).collect(),
            ..self.session.clone()
        };
        let history = self.agent.load(&new)?;
        for Written { file, len, hash } in written {
            // What the pass that read the session found need not be read once more.
            let read = history.has(file, *len, *hash);
            if !read && !scan::holds(self.store, &HeldLocks::default(), file, Some((*len, *hash)))? {
                return Err(Refusal::NotAsPromised { what: file.display().to_string() });
            }
        }
        let kept = self.seen.turns.get(..promise.turns as usize).unwrap_or(&self.seen.turns);
        let expected = Expected {
            transcript: &promise.transcript,
            turns: kept,
            count: Some(promise.turns),
            same_ends: false,
            rebuilt: is_rebuilt(self.plan.made.content_of(&promise.transcript)),
        };
        verify::turns(&history, &expected)?;
        self.proof.holds(&history)
    }

    /// The directories above these files that are not there, outermost first.
    fn missing_above(&self, files: &[(PathBuf, Content)]) -> Result<Vec<StorePath>> {
        let mut missing: Vec<StorePath> = Vec::new();
        for (file, _) in files {
            let above: Vec<&Path> =
                file.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).collect();
            for dir in above.into_iter().rev() {
                if !missing.iter().any(|known| **known == *dir) && self.store.stat(dir)?.is_none() {
                    missing.push(dir.into());
                }
            }
        }
        Ok(missing)
    }

    /// Writes the new files where no client looks, durable but for their names among others.
    fn build(&self, hands: &HeldLocks, ground: &mut LockedSources) -> Result<Vec<Written>> {
        let mut write = |content: &Content, place: &Path, file: PathBuf| -> Result<Written> {
            let new = self.store.create(place)?;
            let (len, hash) = ground.write_content(self.source, hands, content, &new)?;
            new.sync()?;
            Ok(Written { file, len, hash })
        };
        let mut written = Vec::new();
        match &self.plan.made {
            NewFiles::Dir { dir, staging, files } => {
                self.store.mkdir(staging)?;
                let mut dirs = vec![staging.clone()];
                for (name, content) in files {
                    let place = staging.join(name);
                    self.make_above(&place, &mut dirs)?;
                    written.push(write(content, &place, dir.join(name))?);
                }
                for dir in dirs.iter().rev() {
                    self.store.sync_dir(dir)?;
                }
            }
            NewFiles::Beside { files, .. } => {
                for (file, content) in files {
                    self.store.ensure_parents(file)?;
                    written.push(write(content, &entry::temporary_name(file), file.clone())?);
                }
            }
        }
        Ok(written)
    }

    /// Makes the directories of a new file, of which `made` are there.
    fn make_above(&self, file: &Path, made: &mut Vec<PathBuf>) -> Result<()> {
        let above: Vec<&Path> =
            file.ancestors().skip(1).take_while(|dir| !made.contains(&dir.to_path_buf())).collect();
        for dir in above.into_iter().rev() {
            self.store.mkdir(dir)?;
            made.push(dir.to_owned());
        }
        Ok(())
    }
}
