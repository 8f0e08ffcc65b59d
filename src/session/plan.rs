//! A cut as data: what an agent's folder wants done to its store. Only `cut` does it.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use serde::{Deserialize, Serialize};

use super::{FileView, Piece, Session, StorePath};

/// Everything needed to make one cut, and to know afterwards that it is right. `Made` is what happens to files:
/// an undo changes those of its session, a fork makes a new session's, and neither can be asked for the other's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<Made> {
    /// Paths are relative to the store's root.
    pub made: Made,
    /// What becomes of an entry in an index that the store's sessions share; when it is made: `docs/DURABILITY.md`.
    pub entry: Option<IndexEdit>,
    /// Taken in this order before anything is verified, held until the cut is committed.
    pub locks: Vec<Lock>,
    /// The files as the plan saw them; each is read again under the locks and must be the same.
    pub based_on: Vec<FileView>,
    /// What must be found when the session is read again.
    pub promise: Postcondition,
}

/// How to undo.
pub type UndoPlan = Plan<Changes>;
/// How to fork, rescue or adopt.
pub type ForkPlan = Plan<NewFiles>;

/// What a cut promises; checked by reading the result as any session is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Postcondition {
    /// The session to read afterwards: its path relative to the store's root.
    pub session: PathBuf,
    /// The id of that session (for a fork, the new one).
    pub id: String,
    /// The file that holds the turns that are kept, relative to the store's root. Empty where a session's
    /// turns lie in several files: then each stays in its own.
    pub transcript: PathBuf,
    /// How many turns `transcript` must have. (A session whose transcript has none left may show records
    /// of another file as turns, which were not numbered before.)
    pub turns: u32,
}

impl Postcondition {
    /// Of an undo: the same session with so many turns in `transcript`.
    pub fn of(session: &Session, transcript: PathBuf, turns: u32) -> Postcondition {
        Postcondition { session: session.key.path.to_path_buf(), id: session.id.clone(), transcript, turns }
    }
}

/// What an undo changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Made in this order, but those that make a file longer first and those that take one away last.
    pub steps: Vec<Step>,
    /// Changed only while they are what was seen.
    pub rows: Option<Rows>,
}

/// One reversible change to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Keep the first `bytes` bytes of `file`, in place (same inode). The rest goes to the backup first.
    KeepPrefix { file: PathBuf, bytes: u64 },
    /// Put `bytes` behind the first `at` bytes of `file`, in place (same inode). What stands behind these, such as a torn
    /// tail, goes to the backup first. The costs do not depend on how long the file is, but for the look at it.
    Append { file: PathBuf, at: u64, bytes: Vec<u8> },
    /// Give `file` new content on the same inode, so that a client that waits in `open()` appends to the
    /// new content and not to a file that is gone. The old content goes to the backup first.
    Overwrite { file: PathBuf, content: Content },
    /// Put new content beside `file`, fsync, rename over it; it need not have been there.
    Replace { file: PathBuf, content: Content },
    /// Move out of the agent's sight, into the backup.
    MoveAside { file: PathBuf },
}

/// The files that a fork makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewFiles {
    /// A directory that was not there, with these files, complete or not at all: built as `staging`, a place of
    /// the same file system where no client looks for sessions, fsynced, renamed to `dir`.
    Dir {
        dir: PathBuf,
        staging: PathBuf,
        /// Paths relative to `dir`; directories in between are made.
        files: Vec<(PathBuf, Content)>,
    },
    /// Files that were not there, among those of other sessions: built beside, fsynced, renamed, in this order.
    Beside {
        files: Vec<(PathBuf, Content)>,
        /// The new session's rows in a database of the store.
        rows: Option<Rows>,
    },
}

impl Changes {
    /// The new contents that the steps give to files.
    pub fn contents(&self) -> Vec<&Content> {
        let steps = self.steps.iter();
        let contents = steps.filter_map(|step| match step {
            Step::Overwrite { content, .. } | Step::Replace { content, .. } => Some(content),
            Step::KeepPrefix { .. } | Step::Append { .. } | Step::MoveAside { .. } => None,
        });
        contents.collect()
    }
}

impl NewFiles {
    /// The contents of all new files.
    pub fn contents(&self) -> Vec<&Content> {
        let (NewFiles::Dir { files, .. } | NewFiles::Beside { files, .. }) = self;
        files.iter().map(|(_, content)| content).collect()
    }

    /// What a file of the store, one of these, is made of.
    pub fn content_of(&self, file: &Path) -> Option<&Content> {
        let (files, is_it): (_, &dyn Fn(&Path) -> bool) = match self {
            NewFiles::Dir { dir, files, .. } => (files, &|name| dir.join(name) == file),
            NewFiles::Beside { files, .. } => (files, &|name| name == file),
        };
        files.iter().find(|(name, _)| is_it(name)).map(|(_, content)| content)
    }
}

/// Change one session's (or project's) entry in an index that the store's sessions share. What the entry becomes
/// is worked out under the locks, out of the index as it is then; no other entry changes by a byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEdit {
    pub index: PathBuf,
    pub edit: EntryEdit,
}

/// What happens to rows of a SQLite database, in one transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    pub db: StorePath,
    /// Of any tables; made in this order.
    pub changes: Vec<RowChange>,
}

/// What happens to one row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowChange {
    pub table: String,
    /// Column and value that name the row.
    pub key: (String, String),
    /// All columns; `None`: there was no such row.
    pub before: Option<Row>,
    /// `None`: the row goes.
    pub after: Option<Row>,
}

/// A row: columns and values, in the table's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row(pub Vec<(String, SqlValue)>);

/// A value as SQLite stores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SqlValue {
    Null,
    Integer(i64),
    /// The bits of a double, so that it comes back exactly.
    Real(u64),
    Text(String),
    /// Text that is not valid UTF-8: its bytes.
    OddText(Vec<u8>),
    Blob(Vec<u8>),
}

impl From<ValueRef<'_>> for SqlValue {
    fn from(value: ValueRef<'_>) -> SqlValue {
        match value {
            ValueRef::Null => SqlValue::Null,
            ValueRef::Integer(value) => SqlValue::Integer(value),
            ValueRef::Real(value) => SqlValue::Real(value.to_bits()),
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => SqlValue::Text(text.to_owned()),
                Err(_) => SqlValue::OddText(bytes.to_vec()),
            },
            ValueRef::Blob(bytes) => SqlValue::Blob(bytes.to_vec()),
        }
    }
}

impl TryFrom<&rusqlite::Row<'_>> for Row {
    type Error = rusqlite::Error;

    fn try_from(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
        let names = row.as_ref().column_names().enumerate();
        let columns = names.map(|(at, name)| Ok((name.to_owned(), row.get_ref(at)?.into())));
        Ok(Row(columns.collect::<rusqlite::Result<_>>()?))
    }
}

impl Row {
    /// The value of a column, if the table has it.
    pub fn get(&self, column: &str) -> Option<&SqlValue> {
        self.0.iter().find(|(name, _)| name == column).map(|(_, value)| value)
    }

    /// Sets a column, if the table has it.
    pub fn set(&mut self, column: &str, value: SqlValue) {
        if let Some((_, old)) = self.0.iter_mut().find(|(name, _)| name == column) {
            *old = value;
        }
    }
}

/// What happens to an entry of a shared index; the agent's [`crate::agents::SharedIndex`] knows its form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryEdit {
    /// The session was cut: it has `messages` messages now. `rewritten`: they are not counted as before. `empty`:
    /// no turn is left of it.
    Cut { id: String, messages: u64, rewritten: bool, empty: bool },
    /// The session `id` is a new one, made out of `source`: a fork of it, or its copy for another project where
    /// one is given.
    Copy { source: String, id: String, project: Option<PathBuf> },
    /// The project must be listed. `last`: the session to go on with there, where the index names none yet.
    Project { path: PathBuf, last: Option<String> },
}

impl EntryEdit {
    /// Whose entry it is: a session's id, or a project's path.
    pub fn id(&self) -> Cow<'_, str> {
        match self {
            EntryEdit::Cut { id, .. } | EntryEdit::Copy { id, .. } => id.into(),
            EntryEdit::Project { path, .. } => path.to_string_lossy(),
        }
    }
}

/// An entry of a shared index, as it stands there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub text: String,
    /// Its place among all entries, from 0.
    pub at: usize,
}

/// New content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The first `bytes` bytes of another file of the store, copied, not re-serialised.
    Prefix { file: PathBuf, bytes: u64 },
    /// A whole file of the store.
    Whole { file: PathBuf },
    /// These bytes.
    Bytes(Vec<u8>),
    /// Several parts, one behind the other; a last record without a newline gets one.
    Parts(Vec<Part>),
}

/// A part of new content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Piece(Piece),
    Bytes(Vec<u8>),
}

/// A lock that a cut must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock {
    /// A write lease on a file (fcntl F_SETLEASE): nobody else has it open, and whoever opens it waits.
    Lease { file: PathBuf },
    /// flock(LOCK_EX) on a lock file of the store, waited for at most 2 s.
    Flock { file: PathBuf, create: bool },
    /// flock(LOCK_EX) on a lock file that a client holds as long as it has the session open: never waited
    /// for, never forced. Where the file is not there nobody holds it.
    Claim { file: PathBuf },
    /// flock(LOCK_EX) on `file`, made for it and removed afterwards, taken and left while `gate` is held: the
    /// lock that a client holds as long as it has the session open. Never waited for; `force` goes without it.
    Gated { gate: PathBuf, file: PathBuf },
}
