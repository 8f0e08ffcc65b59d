//! The words that everything shares: session, turn, item, boundary, damage, refusal, plan.
//!
//! Pure data and its invariants. Nothing here opens a file, and nothing here knows a particular
//! agent's format. Every other folder may use it.

mod action;
mod agent;
mod damage;
mod history;
mod item;
mod path;
mod plan;
mod refusal;
mod time;
mod title;
mod tokens;
mod turn;
mod words;

pub use action::{Action, Asked, Lines, Named, Outcome, Replacement, Todo, TodoState};
pub use agent::AgentKind;
pub(crate) use agent::for_each_agent;
pub use damage::{Damage, DamageClass, open_calls};
pub use history::{Branch, CutAt, CutPoint, FileHash, FileView, History, Kept, State};
pub use item::{Item, ItemSink};
pub use path::{PathText, StorePath};
pub use plan::{
    Changes, Content, Entry, EntryEdit, ForkPlan, IndexEdit, Lock, NewFiles, Part, Plan, Postcondition, Row,
    RowChange, Rows, SqlValue, Step, UndoPlan,
};
pub use refusal::{Errno, Refusal, Result};
pub use time::{from_unix_seconds, now, rfc3339, time_of_writing};
pub use title::title;
pub use tokens::{Tokens, sum_of};
pub use turn::{Confidence, Piece, Turn, TurnDetail, TurnStatus};
pub use words::{counted, turns};

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

/// The last 8 characters of an id: what directory names and lists show of it.
pub fn short_id(id: &str) -> &str {
    id.char_indices().nth_back(7).map_or(id, |(at, _)| &id[at..])
}

/// Which session this is: the store it lives in and its place there.
///
/// The place, not the agent's id, is the key: ids of sub-agents can equal their parents', and one id
/// can stand in two folders of a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionKey {
    pub agent: AgentKind,
    /// The store's root directory, absolute (for example `~/.kimi`).
    pub root: Arc<Path>,
    /// The session's directory or file, relative to the root.
    pub path: Arc<Path>,
}

impl Hash for SessionKey {
    /// By the last name, which tells nearly all sessions apart: a path is hashed name by name, and a store may
    /// have very many.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.path.file_name().hash(state);
    }
}

impl SessionKey {
    /// The session's directory or file, absolute.
    pub fn absolute(&self) -> PathBuf {
        self.root.join(&self.path)
    }
}

/// Where in the tree a session belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The absolute project path as the store records it; never resolved, perhaps no longer there.
    Project(PathBuf),
    /// No project can be told, or none that has a place in the tree: shown under `.turnfs/unplaced/`.
    Unplaced {
        /// A sentence for the user.
        reason: String,
    },
}

impl Place {
    /// The project, if it is one.
    pub fn project(&self) -> Option<&Path> {
        match self {
            Place::Project(path) => Some(path),
            Place::Unplaced { .. } => None,
        }
    }

    /// The place of what a store records as a session's project: equal by components, never resolved.
    pub fn recorded(path: &str) -> Place {
        let recorded = Path::new(path);
        if !recorded.is_absolute() {
            let reason = format!(
                "its recorded project {path:?} is a relative path, which names no directory by itself"
            );
            return Place::Unplaced { reason };
        }
        if recorded.components().any(|part| part == Component::ParentDir) || path.contains('\0') {
            let reason = format!(
                "its recorded project {path:?} has no place in a tree, and turnfs resolves no recorded path"
            );
            return Place::Unplaced { reason };
        }
        Place::Project(recorded.components().collect())
    }
}

/// Where a session was begun, as its store records it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    /// The directory, in the store's own spelling, where the session's place does not say all of it.
    pub cwd: Option<String>,
    /// What git had checked out there.
    pub branch: Option<String>,
    pub commit: Option<String>,
}

impl Begun {
    /// In a directory of which nothing else is recorded.
    pub fn at(cwd: impl Into<String>) -> Begun {
        Begun { cwd: Some(cwd.into()), branch: None, commit: None }
    }
}

/// A session as far as it is known without reading its whole transcript.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub key: SessionKey,
    /// The agent's own id.
    pub id: String,
    pub place: Place,
    /// The name that its user gave it, where the store keeps that apart from titles that the agent makes.
    pub name: Option<String>,
    /// The title that the agent shows, where it has one. What lists show is [`title()`].
    pub title: Option<String>,
    /// Text of the first prompt, at most its first [`Turn::PROMPT_CHARS`] characters (some agents keep fewer); the name's slug is made of it.
    pub first_prompt: Option<String>,
    /// When the session began; a fact that never changes.
    pub created: Timestamp,
    /// Last activity: the time of the last record where the store has one. (Kimi CLI goes by its file's time.)
    pub updated: Timestamp,
    pub model: Option<String>,
    /// The store's history mode or format version, where it records one.
    pub history_mode: Option<String>,
    pub forked_from: Option<String>,
    pub begun: Begun,
    /// The session of another agent that this one was made of, as its client names it: both are listed, and hold one history.
    pub migrated_from: Option<String>,
    /// Whether it is put away in an archive; `None` where a store knows no archive.
    pub archived: Option<bool>,
    /// The files that hold this session's history, relative to the store's root, main transcript first.
    pub files: Vec<PathBuf>,
    /// Its other files (titles, settings), relative to the store's root; shown under `raw/` only.
    pub sidecars: Vec<PathBuf>,
    /// For a sub-agent: its name below `agents/`. Such a session has no control files.
    pub subagent: Option<String>,
}

impl Session {
    /// The order of sessions wherever they are listed, and which one is `latest`: by last activity, of equal times
    /// the one that began later first. Never equal for two sessions.
    pub fn newest_first(&self, other: &Session) -> Ordering {
        let times = |session: &Session| (session.updated, session.created);
        times(other)
            .cmp(&times(self))
            .then_with(|| self.key.agent.cmp(&other.key.agent))
            .then_with(|| self.id.cmp(&other.id))
            .then_with(|| self.key.cmp(&other.key))
    }

    /// The project, where the session has one.
    pub fn project(&self) -> Option<&Path> {
        self.place.project()
    }
}

/// Who has a session open now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    pub agent: AgentKind,
    /// Process id, where it can be told.
    pub pid: Option<u32>,
    /// How it was found out, as the end of a sentence ("works in this directory").
    pub evidence: String,
}

impl std::fmt::Display for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "{} (pid {pid}, {})", self.agent, self.evidence),
            None => write!(f, "{} ({})", self.agent, self.evidence),
        }
    }
}
