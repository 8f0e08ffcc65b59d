//! The thread index (`state_5.sqlite`), read without a trace.
//!
//! Opening a database in WAL mode, even read-only, makes `-wal` and `-shm` files, takes locks and can run a
//! checkpoint. So the store's database is never opened where a WAL or a rollback journal is beside it: the
//! files are copied to a private temporary directory and read there. Without them the file is read as
//! immutable, in place. Either way the stamps before and after must agree, else it is read again; no lock
//! is waited for, so another program's lock costs nothing.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use super::layout::STATE_DB;
use crate::session::{AgentKind, Damage, DamageClass, FileHash, Refusal, Result, Row as WholeRow, SqlValue};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{self, Stamp, StoreDir};

/// Largest database that is copied for reading, with its WAL, bytes. Above it files alone are used.
const LARGEST: u64 = 512 << 20;
const ATTEMPTS: u32 = 3;

/// A row of `threads`, as far as the list of sessions needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Absolute.
    pub rollout_path: String,
    /// The project.
    pub cwd: Option<String>,
    pub title: Option<String>,
    pub name: Option<String>,
    pub model: Option<String>,
}

/// The index at one moment.
#[derive(Debug, Default)]
pub struct Index {
    pub rows: HashMap<String, Row>,
    /// Why it was not used.
    pub problem: Option<Damage>,
}

/// The facts of the database's files: equal facts, equal content.
pub type Stamps = [Option<Stamp>; 3];

/// The database with its `-wal` and its `-journal`.
fn files() -> [PathBuf; 3] {
    ["", "-wal", "-journal"].map(|suffix| PathBuf::from(format!("{STATE_DB}{suffix}")))
}

/// Facts of the database's files now.
///
/// # Errors
/// What prevents looking.
pub fn stamps(store: &StoreDir) -> Result<Stamps> {
    let [db, wal, journal] = files();
    Ok([store.stat(&db)?, store.stat(&wal)?, store.stat(&journal)?])
}

/// Hash of the bytes of the database's files now.
///
/// # Errors
/// What prevents reading them.
pub fn hash(store: &StoreDir) -> Result<FileHash> {
    let mut all = Vec::new();
    for file in files() {
        let (len, hash) = transcript::hash_in(store, &file)?;
        count_bytes(AgentKind::Codex, ReadKind::Index, len.unwrap_or(0));
        all.extend_from_slice(&len.unwrap_or(u64::MAX).to_le_bytes());
        all.extend_from_slice(&hash.0.to_le_bytes());
    }
    Ok(FileHash::of(&all))
}

/// Reads the index. What prevents that is a problem to show, never an error: files alone are enough.
pub fn read(store: &StoreDir) -> Index {
    for _ in 0..ATTEMPTS {
        let Ok(before) = stamps(store) else { break };
        let Some(db) = before[0] else { return Index::default() };
        let len = before.iter().flatten().map(|stamp| stamp.len).sum::<u64>();
        if len > LARGEST {
            return unusable(format!("is larger than {} MB", LARGEST >> 20));
        }
        if db.len == 0 {
            return unusable("is empty".into());
        }
        count_bytes(AgentKind::Codex, ReadKind::Index, len);
        let result = rows(store, &before);
        if stamps(store).is_ok_and(|after| after == before) {
            return match result {
                Ok(rows) => Index { rows, problem: None },
                Err(error) => unusable(format!("cannot be read: {error}")),
            };
        }
    }
    unusable("was written to all the time while it was read".into())
}

/// The whole row of a thread, as a cut needs it. `None`: there is no database, or no such row.
///
/// # Errors
/// [`Refusal::Damaged`] where the database is there and cannot be used.
pub fn whole_row(store: &StoreDir, thread: &str) -> Result<Option<WholeRow>> {
    for _ in 0..ATTEMPTS {
        let before = stamps(store)?;
        if before[0].is_none() {
            return Ok(None);
        }
        let result = with(store, &before, |db| one_row(db, thread));
        if stamps(store)? == before {
            return result.map_err(|error| Refusal::Damaged {
                damage: Damage {
                    file: STATE_DB.into(),
                    line: 1,
                    byte: 0,
                    class: DamageClass::Sidecar,
                    message: format!("the thread index cannot be read ({error}), and this cut needs it"),
                },
            });
        }
    }
    Err(Refusal::StoreLocked { what: STATE_DB.into() })
}

fn one_row(db: &Connection, thread: &str) -> Result<Option<WholeRow>, Unreadable> {
    let mut statement = db.prepare("SELECT * FROM threads WHERE id = ?1")?;
    let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
    if !names.iter().any(|name| name == "rollout_path") {
        return Err(Unreadable::Schema);
    }
    let mut found = statement.query([thread])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let mut columns = Vec::with_capacity(names.len());
    for (at, name) in names.into_iter().enumerate() {
        let value = match row.get_ref(at)? {
            ValueRef::Null => SqlValue::Null,
            ValueRef::Integer(value) => SqlValue::Integer(value),
            ValueRef::Real(value) => SqlValue::Real(value.to_bits()),
            ValueRef::Text(text) => SqlValue::Text(String::from_utf8_lossy(text).into_owned()),
            ValueRef::Blob(bytes) => SqlValue::Blob(bytes.to_vec()),
        };
        columns.push((name, value));
    }
    Ok(Some(WholeRow(columns)))
}

fn unusable(what: String) -> Index {
    let message = format!(
        "the thread index {what}; the sessions are listed from their files alone (Codex makes the index anew if it is moved aside)"
    );
    let problem = Damage { file: STATE_DB.into(), line: 1, byte: 0, class: DamageClass::Sidecar, message };
    Index { rows: HashMap::new(), problem: Some(problem) }
}

/// Why the rows could not be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("{0}")]
    Sql(#[from] rusqlite::Error),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Store(#[from] Refusal),
    #[error("it has no table of threads with `id` and `rollout_path`")]
    Schema,
}

fn rows(store: &StoreDir, stamps: &Stamps) -> Result<HashMap<String, Row>, Unreadable> {
    with(store, stamps, query)
}

/// Asks a database that nobody else has open: the store's own file where it is complete in itself, else a
/// private copy.
fn with<T>(
    store: &StoreDir,
    stamps: &Stamps,
    ask: impl FnOnce(&Connection) -> Result<T, Unreadable>,
) -> Result<T, Unreadable> {
    let beside = stamps[1..].iter().flatten().any(|stamp| stamp.len > 0);
    if !beside {
        let path = store.path().join(STATE_DB);
        return ask(&open(&path, "mode=ro&immutable=1")?);
    }
    let private = tempfile::Builder::new().prefix("turnfs-").tempdir()?;
    for (file, stat) in files().iter().zip(stamps) {
        if stat.is_some()
            && let Some(mut from) = store.file(file)?
        {
            std::io::copy(&mut from, &mut std::fs::File::create_new(private.path().join(file))?)?;
        }
    }
    ask(&open(&private.path().join(STATE_DB), "mode=rw")?)
}

/// Opens a database file with these URI parameters.
fn open(path: &Path, parameters: &str) -> Result<Connection, rusqlite::Error> {
    use std::os::unix::ffi::OsStrExt;
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                uri.push(char::from(*byte))
            }
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri.push('?');
    uri.push_str(parameters);
    let flags = match parameters.starts_with("mode=ro") {
        true => OpenFlags::SQLITE_OPEN_READ_ONLY,
        false => OpenFlags::SQLITE_OPEN_READ_WRITE,
    };
    Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

/// All rows. A column that an older or newer client does not have is taken as empty; columns that are not
/// known are not looked at.
fn query(db: &Connection) -> Result<HashMap<String, Row>, Unreadable> {
    let mut columns = Vec::new();
    let mut info = db.prepare("SELECT name FROM pragma_table_info('threads')")?;
    let mut found = info.query([])?;
    while let Some(row) = found.next()? {
        columns.push(row.get::<_, String>(0)?);
    }
    let has = |name: &str| columns.iter().any(|column| column == name);
    if !has("id") || !has("rollout_path") {
        return Err(Unreadable::Schema);
    }
    let column = |name: &'static str| if has(name) { name } else { "NULL" };
    let sql = format!(
        "SELECT id, rollout_path, {}, {}, {}, {} FROM threads",
        column("title"),
        column("name"),
        column("model"),
        column("cwd")
    );
    let mut statement = db.prepare(&sql)?;
    let mut found = statement.query([])?;
    let mut rows = HashMap::new();
    while let Some(row) = found.next()? {
        let text = |at: usize| match row.get_ref(at) {
            Ok(ValueRef::Text(text)) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        };
        if let (Some(id), Some(rollout_path)) = (text(0), text(1)) {
            let filled = |at: usize| text(at).filter(|text| !text.is_empty());
            let (title, name, model, cwd) = (filled(2), filled(3), filled(4), filled(5));
            rows.insert(id, Row { rollout_path, cwd, title, name, model });
        }
    }
    Ok(rows)
}
