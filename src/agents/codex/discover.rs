//! The list of a store's threads, out of file names, heads of files, the thread index and the names file.
//!
//! What was read is remembered with the facts of the file that it came from: a look at an unchanged store
//! costs one readdir for each folder and one stat for each file, and reads nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use super::archive::is_archived;
use super::database::{Database, Index, Row, Stamps};
use super::heads::{self, Head, NoMeta};
use super::layout::{Folders, NAMES, Rollout, STATE_DB};
use super::records::{self, HistoryBase};
use super::tails;
use super::titles;
use crate::agents::Discovery;
use crate::agents::remembered::Remembered;
use crate::session::{
    AgentKind, Begun, Damage, FileHash, Place, Refusal, Result, Session, SessionKey, short_id,
};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{self, Line, Stamp, StoreDir, scan};

/// Longest `session_index.jsonl` that is read, bytes: a line a rename.
const LONGEST_NAMES: u64 = 256 << 20;

/// What is remembered of one store.
#[derive(Default)]
pub struct Memory {
    pub heads: Remembered<Arc<Head>>,
    /// The times of files' last records.
    tails: Remembered<Option<Timestamp>>,
    folders: Option<Folders>,
    index: Option<KnownIndex>,
    names: Remembered<Arc<HashMap<String, String>>>,
}

/// The thread index with what proves that it is still that.
struct KnownIndex {
    stamps: Stamps,
    /// Before its files were read.
    read_at: Timestamp,
    /// Of its files' bytes; `None` where the stamps vouch, and where they changed while they were read.
    hash: Option<FileHash>,
    index: Arc<Index>,
}

/// A store's threads.
pub struct Threads {
    /// Those that a user started, and sub-agents whose parents are gone.
    pub top: Discovery,
    /// Sub-agents, by the id of the top-level thread that they belong to.
    pub subagents: HashMap<String, Vec<Session>>,
}

/// A rollout file with what is known of it.
struct Known {
    rollout: Rollout,
    stamp: Stamp,
    head: Arc<Head>,
    /// When its client last wrote to it, where the file or the thread index tells.
    active: Option<Timestamp>,
}

impl Memory {
    /// The thread index as it is now.
    ///
    /// # Errors
    /// What prevents looking at its files.
    pub fn index(&mut self, store: &StoreDir) -> Result<Arc<Index>> {
        let (read_at, database) = (transcript::clock(), Database::of(store)?);
        let stamps = database.stamps()?;
        let vouch = |since| stamps.iter().flatten().all(|stamp| stamp.vouches(since));
        if let Some(known) = self.index.as_mut().filter(|known| known.stamps == stamps) {
            let proven = vouch(known.read_at);
            // Two changes in one tick leave equal stamps: then only the bytes tell.
            if proven || known.hash.is_some_and(|hash| database.hash().is_ok_and(|now| now == hash)) {
                known.read_at = if proven { known.read_at } else { read_at };
                return Ok(known.index.clone());
            }
        }
        // Old stamps will vouch by themselves.
        let before = if vouch(read_at) { None } else { database.hash().ok() };
        let index = Arc::new(database.read());
        let hash = before.filter(|before| database.hash().is_ok_and(|after| after == *before));
        self.index = Some(KnownIndex { stamps, read_at, hash, index: index.clone() });
        Ok(index)
    }

    /// The thread index as it is now; one without rows, which says why, where it cannot be looked at: the threads
    /// are listed all the same.
    fn index_or_none(&mut self, store: &StoreDir) -> Arc<Index> {
        self.index(store).unwrap_or_else(|why| Arc::new(Index::unread(&why)))
    }

    fn names(&mut self, store: &StoreDir) -> Result<Arc<HashMap<String, String>>> {
        let file = Path::new(NAMES);
        let Some(stamp) = store.stat(file)? else { return Ok(Arc::default()) };
        self.names.get_or(&file.into(), &stamp, || {
            // Of a file that no client wrote, nothing is worth waiting for.
            let opened = if stamp.len <= LONGEST_NAMES { store.file(file)? } else { None };
            let Some(opened) = opened else { return Ok(Arc::default()) };
            let each = |names: &mut HashMap<String, String>, line: Line<'_>| {
                names.extend(records::name_of(line.bytes));
            };
            let (names, scanned) = scan(&opened, &store.path().join(file), HashMap::new, each)?;
            count_bytes(AgentKind::Codex, ReadKind::Index, scanned.len);
            Ok(Arc::new(names))
        })
    }

    /// The head of a file with this stamp.
    fn head(&mut self, store: &StoreDir, rollout: &Rollout, stamp: &Stamp) -> Result<Arc<Head>> {
        self.heads.get_or(&rollout.file, stamp, || Ok(Arc::new(heads::read(store, &rollout.file)?)))
    }

    /// Every rollout file with its head, by rollout id.
    fn known(&mut self, store: &StoreDir) -> HashMap<String, Known> {
        let mut known: HashMap<String, Known> = HashMap::new();
        // Not from memory: on some file systems a folder's facts prove nothing.
        let rollouts = self.folders.insert(Folders::list(store)).rollouts.clone();
        let index = self.index_or_none(store);
        for (id, rollout) in rollouts {
            // A file that went away between the listing and now is not listed.
            let Ok(Some(stamp)) = store.stat(&rollout.file) else { continue };
            let head = match self.head(store, &rollout, &stamp) {
                Ok(head) => head,
                Err(Refusal::NotFound { .. }) => continue,
                Err(_) => Arc::new(Head::without(NoMeta::Unread)),
            };
            if let Some(last) = head.ending {
                self.tails.know(&rollout.file, &stamp, last);
            }
            let active = self.active(store, &index, &rollout, &stamp, &head);
            known.insert(id, Known { rollout, stamp, head, active });
        }
        let files: HashSet<&Path> = known.values().map(|known| &*known.rollout.file).collect();
        self.heads.keep_only(|file| files.contains(file));
        self.tails.keep_only(|file| files.contains(file));
        known
    }

    /// When a file's client last wrote to it: its last record's time, or its first line's where it is a fork of
    /// older records. A compressed file is not unpacked where the thread index tells.
    fn active(
        &mut self,
        store: &StoreDir,
        index: &Index,
        rollout: &Rollout,
        stamp: &Stamp,
        head: &Head,
    ) -> Option<Timestamp> {
        let began = head.meta.as_ref().ok().and_then(|meta| meta.created());
        let row = || index.rows.get(&rollout.thread).and_then(|row| row.updated);
        let told = if rollout.compressed() { row() } else { None };
        let last = told.or_else(|| {
            let last = || Ok(tails::last(store, &rollout.file, stamp));
            self.tails.get_or(&rollout.file, stamp, last).ok().flatten()
        });
        began.max(last).or_else(row)
    }

    /// The session's last activity as it is now; `None` if a file of it is gone.
    ///
    /// # Errors
    /// What prevents looking.
    pub fn updated(&mut self, store: &StoreDir, session: &Session) -> Result<Option<Timestamp>> {
        let index = self.index_or_none(store);
        let (mut active, mut modified) = (None, None);
        for file in &session.files {
            let (Some(rollout), Some(stamp)) = (Rollout::named(file), store.stat(file)?) else {
                return Ok(None);
            };
            // When the file began is a fact that never changes: its head need not be read again for that.
            let head = self.heads.last(file).map_or_else(|| self.head(store, &rollout, &stamp), Ok);
            let head = head.unwrap_or_else(|_| Arc::new(Head::without(NoMeta::Unread)));
            active = active.max(self.active(store, &index, &rollout, &stamp, &head));
            modified = modified.max(Some(stamp.modified()));
        }
        Ok(active.or(modified))
    }

    /// Whether a thread still has the current file, the name, the title and the place in the archive that an earlier
    /// look saw. For file systems on which facts of folders prove something.
    ///
    /// # Errors
    /// What prevents looking.
    pub fn is_current(&mut self, store: &StoreDir, session: &Session) -> Result<bool> {
        let Some(file) = session.files.first() else { return Ok(false) };
        let (index, names) = (self.index_or_none(store), self.names(store).unwrap_or_default());
        let row = index.rows.get(&session.id);
        let called = (name(&session.id, row, &names), title(&session.id, row, &names));
        if called != (session.name.clone(), session.title.clone())
            || Some(is_archived(row, file)) != session.archived
        {
            return Ok(false);
        }
        if row.is_some_and(|row| is_same(Path::new(&row.rollout_path), file)) {
            return Ok(true);
        }
        let known = self.folders.take().filter(|folders| folders.still_hold(store));
        let folders = self.folders.insert(known.unwrap_or_else(|| Folders::list(store)));
        let mut own: Vec<_> =
            folders.rollouts.values().filter(|rollout| rollout.thread == session.id).collect();
        own.sort_by_key(|rollout| rollout.age());
        Ok(current(&index, &session.id, &own).is_some_and(|rollout| *rollout.file == **file))
    }

    /// Every thread whose history continues another one's file, and where it does.
    pub fn continuing(&mut self, store: &StoreDir) -> Vec<(String, HistoryBase)> {
        let known = self.known(store);
        let base = |known: &Known| Some((known.rollout.thread.clone(), base(known)?.clone()));
        known.values().filter_map(base).collect()
    }

    /// Every thread of the store at `root`.
    ///
    /// # Errors
    /// What prevents listing the store.
    pub fn threads(&mut self, root: &Path) -> Result<Threads> {
        let mut found = Threads { top: Discovery::default(), subagents: HashMap::new() };
        let Some(store) = StoreDir::open(root)? else { return Ok(found) };
        let known = self.known(&store);
        let index = self.index_or_none(&store);
        let top = &mut found.top;
        let names = self.names(&store).unwrap_or_else(|why| {
            top.problems.push(Damage::unread(NAMES, &why));
            Arc::default()
        });
        top.problems.extend(index.problem.clone());
        top.directories.push(PathBuf::new());
        if let Some(folders) = &self.folders {
            top.directories.extend(folders.listed().map(Path::to_owned));
            top.problems.extend(folders.problems.iter().cloned());
            top.links.clone_from(&folders.links);
            top.unheard.clone_from(&folders.linked_files);
        }
        let shared = [STATE_DB, NAMES].into_iter().map(Path::new);
        found.top.unheard.extend(shared.filter(|file| store.is_link(file)).map(Path::to_owned));
        let mut threads: BTreeMap<&str, Vec<&Known>> = BTreeMap::new();
        for one in known.values() {
            threads.entry(&one.rollout.thread).or_default().push(one);
        }
        let root: Arc<Path> = root.into();
        let mut subagents = Vec::new();
        for (id, mut files) in threads {
            files.sort_by_key(|known| known.rollout.age());
            let Some((session, parent)) = session(&root, id, &files, &known, &index, &names) else {
                continue;
            };
            match parent {
                Some(parent) => subagents.push((session, parent)),
                None => found.top.sessions.push(Arc::new(session)),
            }
        }
        place_subagents(&mut found, subagents);
        Ok(found)
    }
}

/// Puts each sub-agent under the top-level thread that it descends from.
fn place_subagents(found: &mut Threads, subagents: Vec<(Session, String)>) {
    let parents: HashMap<String, String> =
        subagents.iter().map(|(session, parent)| (session.id.clone(), parent.clone())).collect();
    let top: HashMap<String, Arc<Path>> =
        found.top.sessions.iter().map(|session| (session.id.clone(), session.key.path.clone())).collect();
    for (mut session, parent) in subagents {
        let ancestors = std::iter::successors(Some(&parent), |id| parents.get(*id));
        // A circle of parents leads to none that is listed.
        let ancestor = ancestors.take(parents.len() + 1).find(|id| top.contains_key(*id));
        match ancestor.and_then(|id| Some((id, top.get(id)?))) {
            Some((ancestor, path)) => {
                // Below its parent, so that a sub-agent's place tells whose it is.
                let own = session.key.path.file_name().map(PathBuf::from).unwrap_or_default();
                session.key.path = path.join(own).into();
                found.subagents.entry(ancestor.clone()).or_default().push(session);
            }
            None => {
                session.subagent = None;
                found.top.sessions.push(Arc::new(session));
            }
        }
    }
}

/// Which file of a thread is the current one: what the index says, else the newest.
pub fn current<'r>(index: &Index, thread: &str, files: &[&'r Rollout]) -> Option<&'r Rollout> {
    let row = index.rows.get(thread).map(|row| Path::new(&row.rollout_path));
    let said = row.and_then(|path| files.iter().find(|rollout| is_same(path, &rollout.file)));
    said.or(files.last()).copied()
}

/// Whether a row's path means this file. The store may have another path now than when the row was written.
pub fn is_same(path: &Path, file: &Path) -> bool {
    plain_name(path).is_some_and(|name| plain_name(file) == Some(name))
}

/// A file's name without the suffix of compression: a thread may be packed after its row was written.
fn plain_name(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    Some(name.strip_suffix(".zst").unwrap_or(name))
}

/// A thread with these files, oldest first, and the thread that started it as a sub-agent.
fn session(
    root: &Arc<Path>,
    id: &str,
    files: &[&Known],
    all: &HashMap<String, Known>,
    index: &Index,
    names: &HashMap<String, String>,
) -> Option<(Session, Option<String>)> {
    let rollouts: Vec<&Rollout> = files.iter().map(|known| &known.rollout).collect();
    let current = current(index, id, &rollouts)?;
    let current = all.get(&current.id)?;
    // The thread's first file never changes its name while the thread is not archived; later files come
    // and go with reverts.
    let first = files.iter().find(|known| known.rollout.id == id).or(files.first())?;
    let lineage = lineage(current, all);
    let own = |known: &&&Known| known.rollout.thread == id;
    let mine: Vec<&&Known> = lineage.iter().filter(own).collect();
    let mut others: Vec<PathBuf> =
        lineage.iter().filter(|known| !own(known)).map(|known| known.rollout.file.to_path_buf()).collect();
    let unused = files.iter().filter(|known| !mine.iter().any(|used| used.rollout == known.rollout));
    others.extend(unused.map(|known| known.rollout.file.to_path_buf()));
    let row = index.rows.get(id);
    let meta = current.head.meta.as_ref();
    let modified = || mine.iter().map(|known| known.stamp.modified()).max();
    let active = mine.iter().filter_map(|known| known.active).max();
    let updated = active.or_else(modified).unwrap_or_else(|| current.stamp.modified());
    let parent = meta.ok().and_then(|meta| meta.spawned_by()).map(str::to_owned);
    let session = Session {
        key: SessionKey { agent: AgentKind::Codex, root: root.clone(), path: first.rollout.file.clone() },
        id: id.to_owned(),
        place: place(&current.head, row),
        name: name(id, row, names),
        title: title(id, row, names),
        first_prompt: first_prompt(first, all),
        created: created(first),
        updated,
        model: row.and_then(|row| row.model.clone()).or_else(|| current.head.model.clone()),
        history_mode: meta.ok().map(|meta| meta.mode().name().to_owned()),
        archived: Some(is_archived(row, &current.rollout.file)),
        forked_from: meta.ok().and_then(|meta| meta.forked_from_id.clone()),
        begun: begun(&current.head, row),
        migrated_from: None,
        files: mine.iter().map(|known| known.rollout.file.to_path_buf()).collect(),
        sidecars: others,
        subagent: parent.as_ref().map(|_| subagent_name(&current.head, id)),
    };
    Some((session, parent))
}

/// The name that a user gave a thread, as far as the store's indexes know it; its file may tell one, too.
fn name(id: &str, row: Option<&Row>, names: &HashMap<String, String>) -> Option<String> {
    row.and_then(|row| row.name.clone()).or_else(|| names.get(id).cloned())
}

/// Its name, else the title that the client made.
fn title(id: &str, row: Option<&Row>, names: &HashMap<String, String>) -> Option<String> {
    let made = || row?.title.as_deref().map(|title| titles::request(title).to_owned());
    name(id, row, names).or_else(made)
}

/// The files that a history is made of, newest first, as far as they are there.
fn lineage<'k>(current: &'k Known, all: &'k HashMap<String, Known>) -> Vec<&'k Known> {
    let mut found = vec![current];
    while let Some(base) = base(found[found.len() - 1]).and_then(|base| all.get(&base.thread_id)) {
        if found.iter().any(|known| known.rollout == base.rollout) {
            break;
        }
        found.push(base);
    }
    found
}

fn base(known: &Known) -> Option<&HistoryBase> {
    known.head.meta.as_ref().ok()?.history_base.as_ref()
}

/// The first prompt of the thread's first file; of the file that it continues where it is a fork.
fn first_prompt(first: &Known, all: &HashMap<String, Known>) -> Option<String> {
    let lineage = lineage(first, all);
    lineage.iter().rev().find_map(|known| known.head.first_prompt.clone())
}

fn created(first: &Known) -> Timestamp {
    let told = first.head.meta.as_ref().ok().and_then(|meta| meta.created());
    told.or_else(|| {
        let id = uuid::Uuid::try_parse(&first.rollout.id).ok()?;
        let (seconds, nanoseconds) = id.get_timestamp()?.to_unix();
        Timestamp::new(i64::try_from(seconds).ok()?, i32::try_from(nanoseconds).ok()?).ok()
    })
    .unwrap_or_else(|| first.stamp.born().unwrap_or(first.stamp.modified()))
}

/// The project that the first line names. Where that line is damaged, what the thread index says is all that
/// is left, and keeps the session where its user looks for it.
fn place(head: &Head, row: Option<&Row>) -> Place {
    let indexed = row.and_then(|row| row.cwd.as_deref()).filter(|path| Path::new(path).is_absolute());
    let recorded = match &head.meta {
        Ok(meta) => meta.cwd.as_deref(),
        Err(_) => indexed,
    };
    let reason = match &head.meta {
        _ if recorded.is_some() => "",
        Ok(_) => "the session records no project",
        Err(NoMeta::Unread) => "the file cannot be read, so it names no project",
        Err(NoMeta::Empty) => "the file is empty, so it names no project",
        Err(NoMeta::Pointer(_)) => "its content was never fetched, so it names no project",
        Err(NoMeta::Damaged(_)) => "the first line, which names the project, is damaged",
    };
    recorded.map_or_else(|| Place::Unplaced { reason: reason.to_owned() }, Place::recorded)
}

/// Of a damaged first line, what the thread index says.
fn begun(head: &Head, row: Option<&Row>) -> Begun {
    let Ok(meta) = &head.meta else {
        return Begun { cwd: row.and_then(|row| row.cwd.clone()), ..Begun::default() };
    };
    let git = |key: &str| meta.git.as_ref()?.get(key)?.as_str().map(str::to_owned);
    Begun { cwd: meta.cwd.clone(), branch: git("branch"), commit: git("commit_hash") }
}

/// A name for `agents/`: the agent's nickname where it has one, and the end of its id.
fn subagent_name(head: &Head, id: &str) -> String {
    let nickname = head.meta.as_ref().ok().and_then(|meta| meta.agent_nickname.as_deref()).unwrap_or("agent");
    let safe: String = nickname
        .chars()
        .map(|c| if c.is_alphanumeric() { c } else { '-' })
        .take(40)
        .flat_map(char::to_lowercase)
        .collect();
    format!("{safe}-{}", short_id(id))
}
