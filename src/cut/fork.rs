//! New sessions: plan, journal, make, read again, commit. What stands beside other sessions' files is made in
//! `beside`; here is the order, and the fork that is a directory of its own.
//!
//! A project's entry in a shared index comes before the directory, for a client must never find a session of
//! a project that its index does not list; a session's entry comes last.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::adopted;
use super::beside;
use super::disk::Tree;
use super::entry;
use super::execute::{is_rebuilt, now, take_hands, was_read_as};
use super::journal::{EntryChange, Kind, NewDir, Owner, Record, StoreLock, VERSION, Way};
use super::lease::Hands;
use super::recover::settle;
use super::resolve::{Ground, Growth};
use super::scan::Scan;
use super::state::{JOURNAL, Locked, StateDir};
use super::verify::{self, Expected};
use crate::agents::Agent;
use crate::session::{Content, FileHash, History, Plan, Refusal, Result, Session, SessionKey, Step};

/// A source of new sessions, locked.
struct Source<'a> {
    agent: &'a dyn Agent,
    store: Tree,
    locked: Locked,
    session: &'a Session,
    seen: &'a History,
}

pub(super) fn fork(
    agent: &dyn Agent,
    state: &StateDir,
    session: &Session,
    seen: &History,
    n: u32,
) -> Result<String> {
    let source = Source::take(agent, state, session, seen)?;
    source.make(&agent.plan_fork(session, seen, n)?, n)
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
    let source = Source::take(agent, state, session, seen)?;
    if let Some(id) = adopted::copies(&source.locked.folder, project)?.into_iter().find(|id| is_there(id)) {
        return Ok((id, true));
    }
    let n = seen.last_finished()?;
    let plan = agent.plan_adopt(session, seen, n, project)?;
    // Before it is there: a copy that is not noted would be made twice.
    adopted::note(&source.locked, project, &plan.promise.id)?;
    Ok((source.make(&plan, n)?, false))
}

impl<'a> Source<'a> {
    fn take(
        agent: &'a dyn Agent,
        state: &StateDir,
        session: &'a Session,
        seen: &'a History,
    ) -> Result<Source<'a>> {
        let store = Tree::open(&session.key.root)?;
        let locked = Locked::take(state, &session.key, &session.id, &store)?;
        settle(&locked, &store)?;
        Ok(Source { agent, store, locked, session, seen })
    }

    /// Carries out the plan of a new session with the turns up to `n`; its id.
    fn make(&self, plan: &Plan, n: u32) -> Result<String> {
        let Source { agent, store, locked, session, seen } = self;
        let hands = take_hands(*agent, store, &plan.locks, true, &n.to_string())?;
        let mut ground = Ground::check(store, &hands, plan, Growth::Accepted)?;
        let new_dir = plan.steps.iter().find_map(|step| match step {
            Step::CreateDir { dir, staging, files } => Some((dir, staging, files)),
            _ => None,
        });
        let Some((dir, staging, files)) = new_dir else {
            let row_touched = false.into();
            let fork = beside::Fork { agent: *agent, store, locked, session, seen, plan, row_touched };
            return fork.run(&hands, &mut ground);
        };
        if store.stat(dir)?.is_some() {
            return Err(Refusal::io("making", &store.path().join(dir), rustix::io::Errno::EXIST.into()));
        }
        let record = Record {
            version: VERSION,
            kind: Kind::Fork,
            number: 0,
            at: now(),
            owner: Owner::this_process(),
            turns_before: 0,
            turns_after: plan.promise.turns,
            grew: false,
            changes: Vec::new(),
            new_dir: Some(NewDir { dir: dir.clone(), staging: staging.clone() }),
            new_files: Vec::new(),
            entry: entry::resolve(*agent, store, plan)?,
            row: None,
            spread: false,
            locks: StoreLock::of(&plan.locks),
            leaves: Vec::new(),
        };
        locked.write_journal(&record)?;
        let new = NewSession { source: self, plan, dir, staging, entry: record.entry.as_ref() };
        match new.build(files, &hands, &mut ground).and_then(|()| commit(locked)) {
            Ok(()) => Ok(plan.promise.id.clone()),
            Err(refusal) => Err(new.withdraw(refusal)),
        }
    }
}

/// A directory that becomes a session.
struct NewSession<'a> {
    source: &'a Source<'a>,
    plan: &'a Plan,
    dir: &'a Path,
    staging: &'a Path,
    entry: Option<&'a EntryChange>,
}

impl NewSession<'_> {
    fn build(&self, files: &[(PathBuf, Content)], hands: &Hands, ground: &mut Ground) -> Result<()> {
        let Source { agent, store, session, seen, .. } = self.source;
        let (plan, dir, staging) = (self.plan, self.dir, self.staging);
        let mut made = vec![staging.to_owned()];
        store.mkdir(staging)?;
        let mut written: Vec<(PathBuf, u64, FileHash)> = Vec::new();
        for (name, content) in files {
            for above in name.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
                let above = staging.join(above);
                if !made.contains(&above) {
                    store.mkdir(&above)?;
                    made.push(above);
                }
            }
            let file = store.create(&staging.join(name))?;
            let (len, hash) = ground.write_content(store, hands, plan, content, &file)?;
            file.sync()?;
            written.push((dir.join(name), len, hash));
        }
        for made in made.iter().rev() {
            store.sync_dir(made)?;
        }
        if let Some(change) = self.entry {
            entry::apply(*agent, store, change, Way::Undo)?;
        }
        store.ensure_parents(dir)?;
        store.rename(staging, dir, false)?;
        store.sync_parent(dir)?;
        store.sync_parent(staging)?;
        let new = Session {
            key: SessionKey { path: Arc::from(plan.promise.session.as_path()), ..session.key.clone() },
            id: plan.promise.id.clone(),
            files: written.iter().map(|(file, ..)| file.clone()).collect(),
            ..(*session).clone()
        };
        let history = agent.load(&new)?;
        for (file, len, hash) in &written {
            if was_read_as(&history, file, *len, *hash) {
                continue;
            }
            let scan = store.read(file)?.map(|open| Scan::of(&open, &[])).transpose()?;
            if scan.map(|scan| (scan.len, scan.hash)) != Some((*len, *hash)) {
                return Err(Refusal::NotAsPromised { what: file.display().to_string() });
            }
        }
        let kept = seen.turns.get(..plan.promise.turns as usize).unwrap_or(&seen.turns);
        let rebuilt = is_rebuilt(plan);
        let expected = Expected {
            transcript: &plan.promise.transcript,
            turns: kept,
            count: Some(plan.promise.turns),
            same_ends: false,
            rebuilt,
        };
        verify::turns(&history, &expected)
    }

    /// Takes a fork that failed out of the store again.
    fn withdraw(&self, why: Refusal) -> Refusal {
        let Source { agent, store, locked, .. } = self.source;
        let put_back = || -> Result<()> {
            if store.stat(self.dir)?.is_some() {
                // Out of every client's sight in one moment.
                store.rename(self.dir, self.staging, false)?;
                store.sync_parent(self.dir)?;
            }
            store.remove_dir(self.staging)?;
            store.sync_parent(self.staging)?;
            if let Some(change) = self.entry {
                entry::roll_back(*agent, store, change, Way::Undo)?;
            }
            commit(locked)
        };
        match put_back() {
            Ok(()) => why,
            Err(rolling_back) => {
                Refusal::NotPutBack { why: Box::new(why), rolling_back: Box::new(rolling_back) }
            }
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
        entry::roll_back(agent, store, change, Way::Undo)?;
    }
    Ok(format!("the fork that {who} did not finish was removed"))
}

/// The journal's end is the moment from which a new session counts.
fn commit(locked: &Locked) -> Result<()> {
    locked.tree().unlink(Path::new(JOURNAL))?;
    locked.tree().sync_dir(Path::new(""))
}
