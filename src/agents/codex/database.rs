//! The thread index (`state_5.sqlite`), read without a trace.
//!
//! Opening a database in WAL mode, even read-only, makes `-wal` and `-shm` files, takes locks and can run a
//! checkpoint. So the store's database is never opened where a WAL or a rollback journal is beside it: the
//! files are copied to a private temporary directory and read there. Without them the file is read as
//! immutable, in place. Either way the stamps before and after must agree, else it is read again; no lock
//! is waited for, so another program's lock costs nothing. Where the database is a link, its other files are beside
//! what it leads to, as SQLite has it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use super::layout::STATE_DB;
use crate::agents::Companion;
use crate::session::{AgentKind, Damage, DamageClass, FileHash, Refusal, Result, Row as WholeRow};
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
    /// When the client last went on with the thread.
    pub updated: Option<Timestamp>,
    /// `None` where the index has no such column.
    pub archived: Option<bool>,
}

/// The index at one moment.
#[derive(Debug, Default)]
pub struct Index {
    pub rows: HashMap<String, Row>,
    /// Why it was not used.
    pub problem: Option<Damage>,
}

impl Index {
    /// One that cannot be read: the files alone are enough for a list.
    pub fn unread(why: &Refusal) -> Index {
        Index { rows: HashMap::new(), problem: Some(Damage::unread(STATE_DB, why)) }
    }
}

/// The facts of the database's files: equal facts, equal content.
pub type Stamps = [Option<Stamp>; 3];

/// The database's files: the directory that really holds them, and their names there.
struct Place<'a> {
    store: &'a StoreDir,
    /// Where the database is a link.
    behind: Option<StoreDir>,
    /// The database, its `-wal` and its `-journal`.
    files: [PathBuf; 3],
}

impl Place<'_> {
    fn of(store: &StoreDir) -> Result<Place<'_>> {
        let link = Path::new(STATE_DB);
        let behind = if store.is_link(link) { store.behind_links(link)? } else { None };
        let (behind, db) = behind.map_or((None, STATE_DB.into()), |(dir, name)| (Some(dir), name));
        let files = ["", "-wal", "-journal"].map(|suffix| {
            let mut name = db.clone().into_os_string();
            name.push(suffix);
            PathBuf::from(name)
        });
        Ok(Place { store, behind, files })
    }

    fn dir(&self) -> &StoreDir {
        self.behind.as_ref().unwrap_or(self.store)
    }

    fn stamps(&self) -> Result<Stamps> {
        let [db, wal, journal] = &self.files;
        let dir = self.dir();
        Ok([dir.stat(db)?, dir.stat(wal)?, dir.stat(journal)?])
    }
}

/// Facts of the database's files now.
///
/// # Errors
/// What prevents looking.
pub fn stamps(store: &StoreDir) -> Result<Stamps> {
    Place::of(store)?.stamps()
}

/// Hash of the bytes of the database's files now.
///
/// # Errors
/// What prevents reading them.
pub fn hash(store: &StoreDir) -> Result<FileHash> {
    let mut all = Vec::new();
    let place = Place::of(store)?;
    for file in &place.files {
        let (len, hash) = transcript::hash_in(place.dir(), file)?;
        count_bytes(AgentKind::Codex, ReadKind::Index, len.unwrap_or(0));
        all.extend_from_slice(&len.unwrap_or(u64::MAX).to_le_bytes());
        all.extend_from_slice(&hash.0.to_le_bytes());
    }
    Ok(FileHash::of(&all))
}

/// Reads the index. What prevents that is a problem to show, never an error: files alone are enough.
pub fn read(store: &StoreDir) -> Index {
    for _ in 0..ATTEMPTS {
        let before = match stamps(store) {
            Ok(before) => before,
            Err(refusal) => return Index::unread(&refusal),
        };
        let Some(db) = before[0] else { return Index::default() };
        let len = before.iter().flatten().map(|stamp| stamp.len).sum::<u64>();
        if len > LARGEST {
            return unusable(format!("is larger than {} MB", LARGEST >> 20));
        }
        if db.len == 0 {
            return unusable("is empty".into());
        }
        if let Err(refusal) = Place::of(store).and_then(|place| place.dir().file(&place.files[0]))
            && refusal.is_unreadable()
        {
            return Index::unread(&refusal);
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
                damage: Damage::of_whole(
                    STATE_DB,
                    DamageClass::Sidecar,
                    format!("the thread index cannot be read ({error}), and this cut needs it"),
                ),
            });
        }
    }
    Err(Refusal::StoreLocked { what: STATE_DB.into() })
}

/// The database's files, under their names in the store's root wherever they really are.
///
/// # Errors
/// What prevents reading them.
pub fn companions(store: &StoreDir) -> Result<Vec<Companion>> {
    let place = Place::of(store)?;
    let mut found = Vec::new();
    for (file, suffix) in place.files.iter().zip(["", "-wal", "-journal"]) {
        if let Some(content) = place.dir().file(file)? {
            found.push(Companion { file: format!("{STATE_DB}{suffix}").into(), content });
        }
    }
    Ok(found)
}

fn one_row(db: &Connection, thread: &str) -> Result<Option<WholeRow>, Unreadable> {
    let mut statement = db.prepare("SELECT * FROM threads WHERE id = ?1")?;
    if statement.column_index("rollout_path").is_err() {
        return Err(Unreadable::Schema);
    }
    let mut found = statement.query([thread])?;
    Ok(found.next()?.map(WholeRow::try_from).transpose()?)
}

fn unusable(what: String) -> Index {
    let message = format!(
        "the thread index {what}; the sessions are listed from their files alone (Codex makes the index anew if it is moved aside)"
    );
    let problem = Damage::of_whole(STATE_DB, DamageClass::Sidecar, message);
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
    let place = Place::of(store)?;
    let (store, files) = (place.dir(), &place.files);
    if !beside {
        let (path, before) = (store.real_path(&files[0]), store.stat(&files[0])?);
        let db = open(&path, "mode=ro&immutable=1")?;
        let answer = ask(&db)?;
        // SQLite opens by path: it must be what was looked at.
        return match store.stat(&files[0])? == before {
            true => Ok(answer),
            false => Err(Unreadable::Store(Refusal::Changed { what: STATE_DB.into() })),
        };
    }
    let private = tempfile::Builder::new().prefix("turnfs-").tempdir()?;
    for (file, stat) in files.iter().zip(stamps) {
        if stat.is_some()
            && let Some(mut from) = store.file(file)?
        {
            std::io::copy(&mut from, &mut std::fs::File::create_new(private.path().join(file))?)?;
        }
    }
    ask(&open(&private.path().join(&files[0]), "mode=rw")?)
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
    let always =
        OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    Connection::open_with_flags(uri, flags | always)
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
        "SELECT id, rollout_path, {}, {}, {}, {}, {}, {}, {} FROM threads",
        column("title"),
        column("name"),
        column("model"),
        column("cwd"),
        column("updated_at_ms"),
        column("updated_at"),
        column("archived")
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
            let number = |at: usize| row.get::<_, Option<i64>>(at).ok().flatten();
            let updated = number(6).and_then(|ms| Timestamp::from_millisecond(ms).ok());
            let updated = updated.or_else(|| Timestamp::from_second(number(7)?).ok());
            let archived = match row.get_ref(8) {
                Ok(ValueRef::Integer(archived)) => Some(archived != 0),
                _ => None,
            };
            rows.insert(id, Row { rollout_path, cwd, title, name, model, updated, archived });
        }
    }
    Ok(rows)
}
