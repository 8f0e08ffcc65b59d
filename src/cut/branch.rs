//! A session as it was right before an undo, put together again beside, so that what the undo removed can be forked
//! although its agent has gone on since.
//!
//! Every undo noted which files it left, how much of each it kept, and what stood behind that. So the state before
//! undo `n` is found by going back from the files as they are now, over every later undo that counts. Each file must
//! have the hash that was noted; where one has not, a backup in between was pruned, or the agent rewrote the file.
//! The copy lies in the session's folder of the state directory and goes when the fork is made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::disk::{Open, Tree};
use super::fork::Fork;
use super::journal::{Direction, Image, Record};
use super::scan::Scan;
use super::state::{BRANCH, Locked, StateDir, undone_dir};
use super::undone;
use super::verify::Proof;
use crate::agents::{self, AgentStore};
use crate::session::{
    Content, FileHash, ForkPlan, History, NewFiles, Refusal, Result, Session, SqlValue, Turn, TurnDetail,
    TurnStatus, time_of_writing,
};

/// Makes a session of the turns before undo `number` up to turn `n`, one of those that it removed; `None`: the last
/// finished one. The new session's id, and `n`.
///
/// # Errors
/// [`Refusal::NoSuchUndo`], [`Refusal::NotInBranch`]; [`Refusal::Lost`] where the state before the undo cannot be put
/// together any more; and as every fork. Nothing is left behind.
pub fn fork(
    agent: &dyn AgentStore,
    state: &StateDir,
    session: &Session,
    number: u32,
    n: Option<u32>,
) -> Result<(String, u32)> {
    time_of_writing()?;
    let none = || Refusal::NoSuchUndo { asked: number };
    if super::state::Folder::find(state, &session.key)?.is_none() {
        return Err(none());
    }
    let (store, locked) = super::fork::lock(state, session)?;
    if !undone::counting_numbers(&locked.folder)?.contains(&number) {
        return Err(none());
    }
    let removed = undone::turns(&locked.folder, number)?;
    let n = chosen(&removed, number, n)?;
    let made = || -> Result<String> {
        let copy = Copy { agent, store: &store, locked: &locked, number };
        let (source, session_then, history) = copy.make(session, &removed)?;
        let mut plan = agent.plan_fork(&session_then, &history, n, None)?;
        name_the_store(&mut plan, source.path(), store.path());
        Fork {
            agent,
            store: &store,
            source: &source,
            locked: &locked,
            session,
            seen: &history,
            plan: &plan,
            proof: Proof::Turns,
        }
        .make(n)
    };
    let made = made();
    if let Err(refusal) = locked.tree().remove_dir(Path::new(BRANCH)) {
        // The next cut or start removes it.
        log::warn!("a copy of the session before undo {number} stays for now: {refusal}");
    }
    Ok((made?, n))
}

/// Makes a session of the turns that lead to an abandoned branch (from 1) and of its own up to turn `n`; `None`: its
/// last one. The new session's id, and `n`.
///
/// # Errors
/// [`Refusal::NotFound`], [`Refusal::NotAbandoned`]; and as every fork. Nothing is left behind.
pub fn fork_abandoned(
    agent: &dyn AgentStore,
    state: &StateDir,
    session: &Session,
    seen: &History,
    number: u32,
    n: Option<u32>,
) -> Result<(String, u32)> {
    let history = seen.abandoned(number)?;
    let (first, last) = (seen.abandoned_turns(number)?.shared, history.turns.len() as u32 - 1);
    let n = n.unwrap_or(last);
    if !(first..=last).contains(&n) {
        return Err(Refusal::NotAbandoned { asked: n, number, first, last });
    }
    Ok((super::fork(agent, state, session, &history, n)?, n))
}

/// The turn up to which the branch is kept.
fn chosen(removed: &[Turn], number: u32, n: Option<u32>) -> Result<u32> {
    let (Some(first), Some(last)) = (removed.first(), removed.last()) else {
        return Err(Refusal::NoSuchUndo { asked: number });
    };
    let (first, last) = (first.n, last.n);
    let finished = removed.iter().rev().find(|turn| turn.status != TurnStatus::Running);
    match n {
        Some(n) if (first..=last).contains(&n) => Ok(n),
        Some(asked) => Err(Refusal::NotInBranch { asked, undo: number, first, last }),
        None => {
            finished.map(|turn| turn.n).ok_or(Refusal::NotInBranch { asked: last, undo: number, first, last })
        }
    }
}

/// A stretch of a file's former content.
#[derive(Clone)]
struct Piece {
    from: Source,
    start: u64,
    len: u64,
}

#[derive(Clone, PartialEq)]
enum Source {
    Store(PathBuf),
    /// The tail that this undo removed, by the change's place in its record.
    Backup(u32, usize),
}

/// The former content of a file.
type Version = Vec<Piece>;

/// A copy that is to be made.
struct Copy<'a> {
    agent: &'a dyn AgentStore,
    store: &'a Tree,
    locked: &'a Locked,
    number: u32,
}

impl Copy<'_> {
    /// Makes the copy and reads it: where it is, and the session and its history in it.
    fn make(&self, session: &Session, removed: &[Turn]) -> Result<(Tree, Session, History)> {
        let tree = self.locked.tree();
        tree.remove_dir(Path::new(BRANCH))?;
        tree.mkdir(Path::new(BRANCH))?;
        let copy = tree.sub(Path::new(BRANCH))?;
        let record = undone::record(&self.locked.folder, self.number)?;
        let files = self.files()?;
        for (file, version) in &files {
            self.write(&copy, file, version, noted(&record, file))?;
        }
        let names: Vec<PathBuf> = files.into_keys().collect();
        for companion in self.agent.companions(session, &names)? {
            copy.ensure_parents(&companion.file)?;
            let from = Open::of(companion.content, self.store.path().join(&companion.file));
            copy.create(&companion.file)?.copy_from(&from, 0, from.len()?, 0)?;
        }
        let store = agents::open(self.agent.kind(), copy.path());
        let found = store.discover()?;
        let then = found
            .sessions
            .iter()
            .find(|found| found.id == session.id)
            .ok_or_else(|| self.lost("its files"))?;
        let mut history = store.load(then)?;
        history.readable()?;
        let same = |old: &Turn| history.turns.get(old.n as usize).is_some_and(|new| new.prompt == old.prompt);
        if !removed.iter().all(same) || (!record.grew && history.turns.len() as u32 != record.turns_before) {
            return Err(self.lost("its turns"));
        }
        // Nobody is at these turns any more, whoever has the session open.
        for turn in &mut history.turns {
            if matches!(turn.detail, Some(TurnDetail::Open | TurnDetail::EndedInTool | TurnDetail::NoReply)) {
                turn.detail = None;
            }
        }
        Ok((copy, (**then).clone(), history))
    }

    /// What each file of the session was before the undo.
    fn files(&self) -> Result<BTreeMap<PathBuf, Version>> {
        let mut later: Vec<u32> = undone::counting_numbers(&self.locked.folder)?;
        later.retain(|number| *number >= self.number);
        let mut known: BTreeMap<PathBuf, Version> = BTreeMap::new();
        for number in later.into_iter().rev() {
            let record = undone::record(&self.locked.folder, number)?;
            let mut before = BTreeMap::new();
            for left in &record.leaves {
                let after = match known.get(&*left.file) {
                    Some(version) => Some(version.clone()),
                    None => self.now(&left.file)?,
                };
                let version = match (record.file(&left.file), left.len) {
                    // The undo made it.
                    (Some((_, change)), _) if change.before.is_none() => continue,
                    (Some((index, change)), _) => {
                        let Some(Image { len, .. }) = change.before else { continue };
                        let mut version = match change.keep {
                            0 => Version::new(),
                            keep => self.prefix(after, keep, &left.file)?,
                        };
                        let from = Source::Backup(number, index);
                        version.push(Piece { from, start: 0, len: len - change.keep });
                        version
                    }
                    (None, Some(len)) => self.prefix(after, len, &left.file)?,
                    (None, None) => continue,
                };
                before.insert(left.file.to_path_buf(), version);
            }
            known = before;
        }
        Ok(known)
    }

    /// A file as it is in the store.
    fn now(&self, file: &Path) -> Result<Option<Version>> {
        let facts = self.store.stat(file)?;
        let whole = |len| vec![Piece { from: Source::Store(file.to_owned()), start: 0, len }];
        Ok(facts.map(|facts| whole(facts.st_size as u64)))
    }

    /// The first `len` bytes of a version.
    fn prefix(&self, version: Option<Version>, len: u64, file: &Path) -> Result<Version> {
        let mut left = len;
        let mut kept = Version::new();
        for piece in version.into_iter().flatten() {
            let take = piece.len.min(left);
            if take > 0 {
                kept.push(Piece { len: take, ..piece });
            }
            left -= take;
        }
        if left > 0 {
            return Err(self.lost(&file.display().to_string()));
        }
        Ok(kept)
    }

    fn write(
        &self,
        copy: &Tree,
        file: &Path,
        version: &Version,
        noted: Option<(u64, FileHash)>,
    ) -> Result<()> {
        copy.ensure_parents(file)?;
        let new = copy.create(file)?;
        let mut at = 0;
        for piece in version {
            let from = match &piece.from {
                Source::Store(file) => self.store.read(file)?,
                Source::Backup(number, index) => {
                    let tail = undone_dir(*number).join(Direction::Undo.start_tail(*index));
                    self.locked.tree().read(&tail)?
                }
            };
            let from = from.ok_or_else(|| self.lost(&file.display().to_string()))?;
            new.copy_from(&from, piece.start, piece.len, at)?;
            at += piece.len;
        }
        let scan = Scan::of(&new, &[])?;
        if noted != Some((scan.len, scan.hash)) {
            return Err(self.lost(&file.display().to_string()));
        }
        Ok(())
    }

    fn lost(&self, what: &str) -> Refusal {
        Refusal::Lost {
            what: format!(
                "{what} as it was before undo {} (the backup of a later undo was pruned, or the agent has rewritten the session)",
                self.number
            ),
            hint: Some(format!("read the turns under undone/{}/turns instead", self.number)),
        }
    }
}

/// Length and hash of a file before the undo.
fn noted(record: &Record, file: &Path) -> Option<(u64, FileHash)> {
    match record.file(file) {
        Some((_, change)) => change.before.map(|image| (image.len, image.hash)),
        None => {
            let left = record.leaves.iter().find(|left| *left.file == *file)?;
            left.len.map(|len| (len, left.hash))
        }
    }
}

/// What is made must name its place in the store, not the one in the copy: rows, and a session's own notes.
fn name_the_store(plan: &mut ForkPlan, copy: &Path, store: &Path) {
    match &mut plan.made {
        NewFiles::Beside { rows: Some(rows), .. } => {
            let after = rows.changes.iter_mut().filter_map(|change| change.after.as_mut());
            for (_, value) in after.flat_map(|row| &mut row.0) {
                if let SqlValue::Text(text) = value
                    && let Ok(within) = Path::new(text.as_str()).strip_prefix(copy)
                {
                    *text = store.join(within).to_string_lossy().into_owned();
                }
            }
        }
        NewFiles::Dir { files, .. } | NewFiles::Beside { files, rows: None } => {
            // As JSON spells them, without the quotes. Nothing else has the copy's path in it.
            let spelled = |path: &Path| {
                let json = serde_json::Value::from(path.to_string_lossy()).to_string();
                json.trim_matches('"').to_owned()
            };
            let (old, new) = (spelled(copy), spelled(store));
            for (_, content) in files {
                if let Content::Bytes(bytes) = content
                    && let Ok(text) = std::str::from_utf8(bytes)
                    && text.contains(&old)
                {
                    *bytes = text.replace(&old, &new).into_bytes();
                }
            }
        }
    }
}
