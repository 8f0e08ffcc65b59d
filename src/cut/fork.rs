//! One fork from beginning to end: lock, look, plan, verify, journal, make, read again, commit.
//!
//! What a fork makes is a directory of its own (here), or files that stand beside those of other sessions
//! (`fork_files`). Either way nothing of it counts before all of it is durable, and the source is only read.
//!
//! A project's entry in a shared index comes before the directory, for a client must never find a session of
//! a project that its index does not list; a session's entry comes last.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::adopted;
use super::disk::Tree;
use super::entry;
use super::execute::{is_rebuilt, now, take_hands};
use super::fork_files;
use super::journal::{Direction, EntryChange, Kind, NewDir, Owner, Record, StoreLock, VERSION};
use super::lease::HeldLocks;
use super::recover::recover_session;
use super::resolve::{self, Growth, LockedSources};
use super::scan;
use super::state::{JOURNAL, Locked, StateDir};
use super::verify::{self, Expected, Proof};
use crate::agents::Agent;
use crate::session::{Content, FileHash, ForkPlan, History, NewFiles, Refusal, Result, Session, SessionKey};

pub(super) fn fork(
    agent: &dyn Agent,
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

/// The copy of the whole session in `project`, and whether it was there before: made by an earlier call, and
/// `is_there` says that it still is.
pub(super) fn adopt(
    agent: &dyn Agent,
    state: &StateDir,
    session: &Session,
    seen: &History,
    project: &Path,
    is_there: &dyn Fn(&str) -> bool,
) -> Result<(String, bool)> {
    let (store, locked) = lock(state, session)?;
    if let Some(id) = adopted::copies(&locked.folder, project)?.into_iter().find(|id| is_there(id)) {
        return Ok((id, true));
    }
    let n = seen.last_finished()?;
    let plan = agent.plan_fork(session, seen, n, Some(project))?;
    // Before it is there: a copy that is not noted would be made twice.
    adopted::note(&locked, project, &plan.promise.id)?;
    let proof = Proof::Turns;
    let (store, locked) = (&store, &locked);
    let id = Fork { agent, store, source: store, locked, session, seen, plan: &plan, proof }.make(n)?;
    Ok((id, false))
}

pub(super) fn lock(state: &StateDir, session: &Session) -> Result<(Tree, Locked)> {
    let store = Tree::store(&session.key.root)?;
    let locked = Locked::take(state, &session.key, &session.id, &store)?;
    recover_session(&locked, &store)?;
    Ok((store, locked))
}

/// A fork whose plan is made.
pub(super) struct Fork<'a> {
    pub agent: &'a dyn Agent,
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
pub(super) struct Written {
    pub file: PathBuf,
    pub len: u64,
    pub hash: FileHash,
}

impl Fork<'_> {
    /// Carries out the plan, which keeps the turns up to `n`; the new session's id.
    pub fn make(&self, n: u32) -> Result<String> {
        let hands = take_hands(self.agent, self.store, &self.plan.locks, true, &n.to_string())?;
        let marks = resolve::marks(self.plan.made.contents());
        let mut ground =
            LockedSources::check(self.source, &hands, &self.plan.based_on, marks, Growth::Accepted)?;
        match &self.plan.made {
            NewFiles::Dir { dir, staging, files } => {
                let new = NewDir { dir: dir.clone(), staging: staging.clone() };
                self.in_dir(&hands, &mut ground, &new, files)
            }
            NewFiles::Beside { files, row } => {
                fork_files::make(self, &hands, &mut ground, files, row.as_ref())
            }
        }
    }

    /// The journal of a fork that makes nothing yet.
    pub fn record(&self) -> Record {
        Record {
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
            new_files: Vec::new(),
            new_dirs: Vec::new(),
            entry: None,
            row: None,
            spread: false,
            locks: StoreLock::of(&self.plan.locks),
            leaves: Vec::new(),
            links: self.store.links(),
        }
    }

    /// Makes sure that nothing stands at `place`, relative to the store's root.
    ///
    /// # Errors
    /// EEXIST when something stands where the fork is to be.
    pub fn must_be_free(&self, place: &Path) -> Result<()> {
        match self.store.stat(place)? {
            None => Ok(()),
            Some(_) => {
                let path = self.store.path().join(place);
                Err(Refusal::io("making", &path, rustix::io::Errno::EXIST.into()))
            }
        }
    }

    /// Reads the new session as any session is read: it must hold what was written, and show the turns kept.
    ///
    /// # Errors
    /// [`Refusal::NotAsPromised`], or what prevents reading it.
    pub fn read_again(&self, written: &[Written]) -> Result<()> {
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

    /// Removes the journal: the fork counts.
    pub fn commit(&self) -> Result<()> {
        self.locked.tree().unlink(Path::new(JOURNAL))?;
        self.locked.tree().sync_dir(Path::new(""))
    }

    /// The errno of the first error, once the store is as before; else that it is not.
    pub fn abort(&self, put_back: Result<()>, why: Refusal) -> Refusal {
        match put_back.and_then(|()| self.commit()) {
            Ok(()) => why,
            Err(rolling_back) => {
                Refusal::NotPutBack { why: Box::new(why), rolling_back: Box::new(rolling_back) }
            }
        }
    }

    fn in_dir(
        &self,
        hands: &HeldLocks,
        ground: &mut LockedSources,
        new: &NewDir,
        files: &[(PathBuf, Content)],
    ) -> Result<String> {
        self.must_be_free(&new.dir)?;
        let entry = entry::resolve(self.agent, self.store, self.plan)?;
        let record = Record { new_dir: Some(new.clone()), entry, ..self.record() };
        self.locked.write_journal(&record)?;
        let entry = record.entry.as_ref();
        let made = self.build(hands, ground, new, files, entry).and_then(|written| self.read_again(&written));
        match made.and_then(|()| self.commit()) {
            Ok(()) => Ok(self.plan.promise.id.clone()),
            Err(refusal) => Err(self.abort(self.remove(new, entry), refusal)),
        }
    }

    /// Builds the directory where no client looks, and renames it to its place.
    fn build(
        &self,
        hands: &HeldLocks,
        ground: &mut LockedSources,
        NewDir { dir, staging }: &NewDir,
        files: &[(PathBuf, Content)],
        entry: Option<&EntryChange>,
    ) -> Result<Vec<Written>> {
        let store = self.store;
        let mut made = vec![staging.clone()];
        store.mkdir(staging)?;
        let mut written = Vec::new();
        for (name, content) in files {
            for above in name.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
                let above = staging.join(above);
                if !made.contains(&above) {
                    store.mkdir(&above)?;
                    made.push(above);
                }
            }
            let file = store.create(&staging.join(name))?;
            let (len, hash) = ground.write_content(self.source, hands, content, &file)?;
            file.sync()?;
            written.push(Written { file: dir.join(name), len, hash });
        }
        for made in made.iter().rev() {
            store.sync_dir(made)?;
        }
        if let Some(change) = entry {
            entry::apply(self.agent, store, change, Direction::Undo)?;
        }
        store.ensure_parents(dir)?;
        store.rename(staging, dir, false)?;
        store.sync_parent(dir)?;
        store.sync_parent(staging)?;
        Ok(written)
    }

    fn remove(&self, NewDir { dir, staging }: &NewDir, entry: Option<&EntryChange>) -> Result<()> {
        if self.store.stat(dir)?.is_some() {
            // Out of every client's sight in one moment.
            self.store.rename(dir, staging, false)?;
            self.store.sync_parent(dir)?;
        }
        self.store.remove_dir(staging)?;
        self.store.sync_parent(staging)?;
        match entry {
            Some(change) => entry::roll_back(self.agent, self.store, change, Direction::Undo).map(drop),
            None => Ok(()),
        }
    }
}

/// After a crash: a directory that is at its place is a complete session, and stays.
pub(super) fn settle_dir(
    agent: Option<&dyn Agent>,
    store: &Tree,
    record: &Record,
    new: &NewDir,
    who: &str,
) -> Result<String> {
    if store.stat(&new.staging)?.is_some() {
        store.remove_dir(&new.staging)?;
        store.sync_parent(&new.staging)?;
    }
    if store.stat(&new.dir)?.is_some() {
        let name = new.dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Ok(format!("the fork {name} that {who} was making is complete and stays"));
    }
    if let (Some(agent), Some(change)) = (agent, &record.entry) {
        entry::roll_back(agent, store, change, Direction::Undo)?;
    }
    Ok(format!("the fork that {who} did not finish was removed"))
}
