//! What differs between agents: one folder per store, each with layout, records, turns and how to cut.
//!
//! An agent's folder knows nothing of FUSE, inodes, journals or other agents; `docs/ARCHITECTURE.md`, "A new
//! agent", says how to add one. Names that mean the same in every folder: `layout` (where things lie),
//! `records` (a line), `items` (what a turn shows), `cuts` (forks and undos as steps), `writer` (who has a
//! session open). What several of them need: `json`, `json_array` (edits an index that is one), `data_url`,
//! `remembered` (what was read of files), `arguments` (of tool calls; each folder's `tools` says what they mean;
//! `kimi_tools`: of both clients). `resume` is the command that continues a session.

mod arguments;
pub mod claude_code;
pub mod codex;
mod data_url;
mod json;
mod json_array;
pub mod kimi_cli;
pub mod kimi_code;
mod kimi_tools;
pub mod openmax;
mod remembered;
mod resume;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::host::Environment;
use crate::host::processes::Running;
use crate::render;
use crate::session::for_each_agent;
use crate::session::{
    AgentKind, Damage, Entry, EntryEdit, ForkPlan, History, ItemSink, Refusal, Result, Session, SessionKey,
    Tokens, Turn, UndoPlan, Writer,
};
use crate::transcript::metrics::count_stats;
use crate::transcript::{FsTrust, Passes, StoreDir};

pub use resume::resume;

/// An agent whose stores turnfs can open.
pub struct Agent {
    /// The environment variables, besides HOME, that `place` goes by.
    pub variables: &'static [&'static str],
    /// Where this agent keeps its store; `None` if that cannot be told (no HOME).
    pub place: fn(&Environment) -> Option<PathBuf>,
    open: fn(Arc<Path>) -> Arc<dyn AgentStore>,
}

macro_rules! registry {
    ($($kind:ident $name:literal $folder:ident,)*) => {
        /// The registry: the code for an agent.
        pub fn agent(kind: AgentKind) -> &'static Agent {
            match kind { $(AgentKind::$kind => &$folder::AGENT),* }
        }
    };
}
for_each_agent!(registry);

/// Opens the store of an agent at `root` (absolute). Nothing is read yet, and the store need not be there.
pub fn open(kind: AgentKind, root: impl Into<Arc<Path>>) -> Arc<dyn AgentStore> {
    (agent(kind).open)(root.into())
}

/// Opens the store that a session is in, with nothing remembered of it.
pub fn store_of(session: &Session) -> Arc<dyn AgentStore> {
    open(session.key.agent, session.key.root.clone())
}

/// A store, with all that is remembered of it from one look to the next.
pub trait AgentStore: Send + Sync {
    /// Which agent's it is.
    fn kind(&self) -> AgentKind;

    /// Where it is; absolute.
    fn root(&self) -> &Arc<Path>;

    /// Whether this session is in it.
    fn holds(&self, key: &SessionKey) -> bool {
        *self.root() == key.root && self.kind() == key.agent
    }

    /// Finds the sessions of the store and their metadata, without reading whole transcripts: at most the head of
    /// each, and only of those of which that is not remembered truly. A store that is not there has no sessions.
    /// The very same answer again says that nothing changed.
    ///
    /// # Errors
    /// Only when nothing can be listed at all (the root cannot be read). What is wrong with a single
    /// session or a shared index is in [`Discovery::problems`].
    fn discover(&self) -> Result<Arc<Discovery>>;

    /// Whether the session still consists of the files that it names, where something else than these files
    /// decides that (an index that points to the current one). Costs stats only while nothing changed.
    ///
    /// # Errors
    /// What prevents looking.
    fn is_current(&self, _session: &Session) -> Result<bool> {
        Ok(true)
    }

    /// When the session was last worked on, as it is now: what [`Session::updated`] says. That is the time of its
    /// last record where the store tells it, else that of its files. `None`: a file of it is gone. Costs stats
    /// only while nothing changed, and a small read where records were appended.
    ///
    /// # Errors
    /// What prevents looking.
    fn updated(&self, session: &Session) -> Result<Option<Timestamp>> {
        Ok(modified(&session.key.root, &session.files).and_then(|times| times.into_iter().max()))
    }

    /// The session as it is found now, after a cut may have changed which files it consists of.
    ///
    /// # Errors
    /// What prevents looking.
    fn found_again(&self, session: &Session) -> Result<Session> {
        Ok(session.clone())
    }

    /// The one pass over a session's files: turns, offsets, sizes, damage, cut points.
    ///
    /// # Errors
    /// Only what prevents reading (I/O). Damage and unknown formats are states of the result.
    fn load(&self, session: &Session) -> Result<History> {
        self.load_again(session, &mut Passes::default())
    }

    /// As [`AgentStore::load`], and as true; but of files that only grew since the load that `passes` is from,
    /// only what was appended is parsed.
    ///
    /// # Errors
    /// As [`AgentStore::load`].
    fn load_again(&self, session: &Session, passes: &mut Passes) -> Result<History>;

    /// The files in which the session's turns stand, relative to the root: also of other sessions, where it goes on from
    /// one of them.
    ///
    /// # Errors
    /// What prevents looking.
    fn transcripts(&self, session: &Session) -> Result<Vec<PathBuf>> {
        Ok(session.files.clone())
    }

    /// The items of a turn, in order, as they stand in the record bytes `span` of the turn's file.
    ///
    /// # Errors
    /// When the bytes are not the turn's records (the file changed).
    fn items(&self, session: &Session, turn: &Turn, span: &[u8], sink: &mut ItemSink<'_>) -> Result<()>;

    /// The user's exact text of a turn, out of the record bytes of its span; empty if it has none.
    ///
    /// # Errors
    /// As [`AgentStore::items`].
    fn prompt(&self, session: &Session, turn: &Turn, span: &[u8]) -> Result<String>;

    /// What the model will be sent on resume, in order.
    ///
    /// # Errors
    /// What prevents reading.
    fn context(&self, session: &Session, history: &History, sink: &mut ItemSink<'_>) -> Result<()>;

    /// The sub-agent sessions of a session.
    ///
    /// # Errors
    /// What prevents listing them.
    fn subagents(&self, session: &Session) -> Result<Vec<Session>>;

    /// How many [`AgentStore::subagents`] finds.
    ///
    /// # Errors
    /// As [`AgentStore::subagents`].
    fn subagent_count(&self, session: &Session) -> Result<usize> {
        Ok(self.subagents(session)?.len())
    }

    /// The sub-agent of a session with this name, if there is one.
    ///
    /// # Errors
    /// As [`AgentStore::subagents`].
    fn subagent(&self, session: &Session, name: &str) -> Result<Option<Session>> {
        let all = self.subagents(session)?;
        Ok(all.into_iter().find(|agent| agent.subagent.as_deref() == Some(name)))
    }

    /// The sub-agent of a session at this place relative to the root, if there is one.
    ///
    /// # Errors
    /// As [`AgentStore::subagents`].
    fn subagent_at(&self, session: &Session, path: &Path) -> Result<Option<Session>> {
        Ok(self.subagents(session)?.into_iter().find(|agent| *agent.key.path == *path))
    }

    /// Where the session may be that the sub-agent at `subagent` belongs to, relative to the root, the likeliest place
    /// first.
    fn parents_of(&self, subagent: &Path) -> Vec<PathBuf> {
        subagent.ancestors().skip(1).map(Path::to_owned).collect()
    }

    /// The sub-agent sessions of these sessions, each with its parent's place among them. What cannot
    /// be listed is left out.
    fn subagents_of(&self, sessions: &[Arc<Session>]) -> Vec<(usize, Session)> {
        let all = sessions.iter().enumerate();
        all.flat_map(|(at, session)| {
            self.subagents(session).unwrap_or_default().into_iter().map(move |agent| (at, agent))
        })
        .collect()
    }

    /// The new session that keeps the turns up to and including `n`; with `project` (an absolute and resolved path)
    /// it belongs to that, and the agent finds it when it is started there.
    ///
    /// # Errors
    /// Why that fork is refused.
    fn plan_fork(
        &self,
        session: &Session,
        history: &History,
        n: u32,
        project: Option<&Path>,
    ) -> Result<ForkPlan>;

    /// Whether a fork that leaves out this turn alone ([`History::without`], given to [`AgentStore::plan_fork`]) is a
    /// session that the client goes on with, as far as more than the turn's items decides that.
    ///
    /// # Errors
    /// [`Refusal::CannotCut`], which says what depends on the turn.
    fn can_leave_out(&self, _session: &Session, _history: &History, _turn: &Turn) -> Result<()> {
        let what = format!("turnfs cannot leave out a turn of a session of {}", self.kind());
        Err(Refusal::cannot_cut(what, "fork up to the turn before it"))
    }

    /// What a copy of the session that consists of `history_files` needs besides, so that the copy can be discovered,
    /// loaded and forked.
    ///
    /// # Errors
    /// What prevents reading it.
    fn companions(&self, _session: &Session, _history_files: &[PathBuf]) -> Result<Vec<Companion>> {
        Ok(Vec::new())
    }

    /// For each turn, whether `undo` is refused there for another reason than the turn's boundary. Never more
    /// work than to list the store.
    ///
    /// # Errors
    /// What refuses every undo of this session.
    fn undo_refusals(&self, session: &Session, history: &History) -> Result<Vec<Result<()>>>;

    /// The session without turn `n` and everything after it; refused where [`AgentStore::undo_refusals`] says so.
    ///
    /// # Errors
    /// Why that cut is refused.
    fn plan_undo(&self, session: &Session, history: &History, n: u32) -> Result<UndoPlan>;

    /// The file that lists the store's sessions or says where they belong, relative to the root.
    fn index_file(&self) -> Option<&'static str> {
        None
    }

    /// How the entries of the store's shared index are read and written, where a cut changes one.
    fn shared_index(&self) -> Option<&dyn SharedIndex> {
        None
    }

    /// The commands that continue the session, each as its words, for somebody who is in its project's directory; `None`
    /// where the agent has no way. Asked of sound sessions that have a project. Costs nothing that grows with a
    /// transcript.
    fn resume(&self, session: &Session, history: &History) -> Option<Vec<Vec<String>>>;

    /// What the session took in all: its turns, where the store tells that turn by turn.
    fn tokens(&self, _session: &Session, history: &History) -> Option<Tokens> {
        history.tokens()
    }

    /// Who has the session open, as `running` tells it: whoever asks for many sessions looks at the host once. Never
    /// disturbs a client; bounded in time.
    fn writer(&self, session: &Session, history: &History, running: &Running) -> Option<Writer>;
}

/// The last look at a store, which the next one goes on from.
struct LastLook<L>(Mutex<Option<Arc<L>>>);

impl<L> Default for LastLook<L> {
    fn default() -> Self {
        LastLook(Mutex::default())
    }
}

impl<L> LastLook<L> {
    /// `None` before the first one.
    fn get(&self) -> Option<Arc<L>> {
        self.0.lock().clone()
    }

    /// Looks again. Nothing is locked meanwhile.
    fn again(&self, look: impl FnOnce(Option<&L>) -> Result<L>) -> Result<Arc<L>> {
        let last = self.get();
        let look = Arc::new(look(last.as_deref())?);
        *self.0.lock() = Some(look.clone());
        Ok(look)
    }
}

/// One command, of these words.
fn command<const WORDS: usize>(words: [&str; WORDS]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// Whether an id, which comes out of a file, can be the beginning of a file's name.
fn is_file_name(id: &str) -> bool {
    !id.is_empty() && !id.starts_with('.') && !id.contains(['/', '\0']) && id.len() <= 200
}

/// The times at which these files of a session were last changed, in their order; `None` if one of them is gone.
fn modified<'a>(root: &Path, files: impl IntoIterator<Item = &'a PathBuf>) -> Option<Vec<Timestamp>> {
    let modified = |file: &PathBuf| {
        count_stats(1);
        // A file that is gone, or that cannot be looked at, is for the full look to tell.
        let path = root.join(file);
        let facts = std::fs::symlink_metadata(&path).ok()?;
        match facts.is_symlink() {
            true => Some(FsTrust::at(root).stamp(&path).ok()??.modified()),
            false => Timestamp::try_from(facts.modified().ok()?).ok(),
        }
    };
    files.into_iter().map(modified).collect()
}

/// Who holds the lock file `lock` (relative to the root) of a session of `agent`, without trying it. The writer's pid
/// is `None` in another pid namespace.
fn lock_holder(
    agent: AgentKind,
    root: &Path,
    lock: &Path,
    running: &Running,
    evidence: &str,
) -> Option<Writer> {
    let store = StoreDir::open(root).ok()??;
    let (device, inode) = store.stat(lock).ok()??.identity();
    let pid = running.lock_holder(device, inode, || store.real_path(lock))?;
    Some(Writer { agent, pid, evidence: evidence.to_owned() })
}

/// A history; where a file of it is a link, a FIFO or the like, or unpacks to too much, one that says so.
///
/// # Errors
/// Every other reason for which it cannot be read.
fn unless_irregular(loaded: Result<History>) -> Result<History> {
    match loaded {
        Err(Refusal::Io { path, errno, .. }) if Refusal::is_no_regular_file(errno) => {
            let what = format!("a transcript that is not a regular file ({})", path.display());
            Ok(History::unsupported(what, Vec::new()))
        }
        Err(Refusal::NotFollowed { path, why }) => {
            let what = format!("a transcript that is a link ({}: {why})", path.display());
            Ok(History::unsupported(what, Vec::new()))
        }
        Err(Refusal::UnpacksTooLarge { path, ratio, largest }) => {
            let limits = format!("{ratio} times its size, or to more than {} GiB", largest >> 30);
            let what =
                format!("a compressed transcript that unpacks to more than {limits} ({})", path.display());
            Ok(History::unsupported(what, Vec::new()))
        }
        other => other,
    }
}

/// A file of a store, open, that goes with a copy of a session.
#[derive(Debug)]
pub struct Companion {
    /// Its place, relative to the store's root.
    pub file: PathBuf,
    pub content: File,
}

impl Companion {
    /// Those of these files that are there.
    fn of(store: &StoreDir, files: impl IntoIterator<Item = PathBuf>) -> Result<Vec<Companion>> {
        let mut found = Vec::new();
        for file in files {
            if let Some(content) = store.file(&file)? {
                found.push(Companion { file, content });
            }
        }
        Ok(found)
    }
}

/// A store's index that all its sessions (or projects) share, as bytes. Every method refuses a damaged index.
pub trait SharedIndex {
    /// The entry of a session; `None` if it has none.
    ///
    /// # Errors
    /// [`crate::session::Refusal::Damaged`], also where the session has two.
    fn find(&self, index: &[u8], id: &str) -> Result<Option<Entry>>;

    /// What the edit makes of the session's entry, now.
    ///
    /// # Errors
    /// As [`SharedIndex::find`]; and when the entry that it is made from is not there.
    fn edited(&self, index: &[u8], edit: &EntryEdit) -> Result<Entry>;

    /// The index with this entry for the session, at the entry's place; with none the session is taken out.
    ///
    /// # Errors
    /// As [`SharedIndex::find`].
    fn put(&self, index: &[u8], id: &str, entry: Option<&Entry>) -> Result<Vec<u8>>;

    /// Whether both say the same, however they are written and wherever they stand.
    fn same(&self, one: &Entry, other: &Entry) -> bool;
}

/// What a look at a store found.
#[derive(Debug, Default, Clone)]
pub struct Discovery {
    /// Shared with whoever lists them: a store may have very many.
    pub sessions: Vec<Arc<Session>>,
    /// Damage of shared files (an index), and what could not be listed: it hides nothing else.
    pub problems: Vec<Damage>,
    /// The shared files that say which sessions there are and where they belong, relative to the root: a
    /// change of one of them makes all of this doubtful.
    pub indexes: Vec<PathBuf>,
    /// Every directory whose entries, or whose files, this look depends on, relative to the root (the root
    /// is the empty path). Listed before their entries were, so that who watches them and looks once more
    /// has missed nothing. Empty: the store is not there.
    pub directories: Vec<PathBuf>,
    /// The links that were followed to directories, relative to the root: whatever they lead to is watched, and looked
    /// at anew when they lead elsewhere.
    pub links: Vec<PathBuf>,
    /// What is behind links to files, relative to the root, which nobody hears of: it is looked at now and then.
    pub unheard: Vec<PathBuf>,
}

/// A turn's text: its heading, then its items. `span`: the turn's record bytes.
///
/// # Errors
/// As [`AgentStore::items`].
pub fn turn_text(store: &dyn AgentStore, session: &Session, turn: &Turn, span: &[u8]) -> Result<String> {
    // A hint only: of a removed turn the length comes from a file.
    let mut text = String::with_capacity(usize::try_from(turn.text_len).unwrap_or(0).min(span.len()));
    render::heading(turn, &mut text);
    store.items(session, turn, span, &mut |_, item| render::item(&item, &mut text))?;
    Ok(text)
}
