//! The thread index (`state_5.sqlite`), read without a trace.
//!
//! Opening a database in WAL mode, even read-only, makes `-wal` and `-shm` files, takes locks and can run a
//! checkpoint. So where a WAL or a rollback journal is beside it, the files are copied to a private temporary
//! directory and read there; without them the file is read as immutable, in place. No lock is waited for. Where the
//! database is a link, its other files are beside what it leads to, as SQLite has it.

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

/// The stamps of the database's files: equal stamps, equal content.
pub type Stamps = [Option<Stamp>; 3];

const SUFFIXES: [&str; 3] = ["", "-wal", "-journal"];

/// The database's files: the directory that really holds them, and their names there.
pub struct Database<'a> {
    store: &'a StoreDir,
    /// Where the database is a link.
    behind: Option<StoreDir>,
    /// With [`SUFFIXES`].
    files: [PathBuf; 3],
}

impl Database<'_> {
    /// That of a store.
    ///
    /// # Errors
    /// What prevents following a link.
    pub fn of(store: &StoreDir) -> Result<Database<'_>> {
        let (behind, db) = match store.behind_links(Path::new(STATE_DB))? {
            Some((dir, name)) => (Some(dir), name),
            None => (None, STATE_DB.into()),
        };
        let files = SUFFIXES.map(|suffix| {
            let mut name = db.clone().into_os_string();
            name.push(suffix);
            PathBuf::from(name)
        });
        Ok(Database { store, behind, files })
    }

    fn dir(&self) -> &StoreDir {
        self.behind.as_ref().unwrap_or(self.store)
    }

    /// The stamps of its files now.
    ///
    /// # Errors
    /// What prevents looking.
    pub fn stamps(&self) -> Result<Stamps> {
        let [db, wal, journal] = &self.files;
        let dir = self.dir();
        Ok([dir.stat(db)?, dir.stat(wal)?, dir.stat(journal)?])
    }

    /// Hash of the bytes of its files now.
    ///
    /// # Errors
    /// What prevents reading them.
    pub fn hash(&self) -> Result<FileHash> {
        let mut all = Vec::new();
        for file in &self.files {
            let (len, hash) = transcript::hash_in(self.dir(), file)?;
            count_bytes(AgentKind::Codex, ReadKind::Index, len.unwrap_or(0));
            all.extend_from_slice(&len.unwrap_or(u64::MAX).to_le_bytes());
            all.extend_from_slice(&hash.0.to_le_bytes());
        }
        Ok(FileHash::of(&all))
    }

    /// Reads the index. What prevents that is a problem to show, never an error: files alone are enough.
    pub fn read(&self) -> Index {
        let rows = |stamps: &Stamps| {
            let Some(db) = stamps[0] else { return Ok(HashMap::new()) };
            let len = stamps.iter().flatten().map(|stamp| stamp.len).sum::<u64>();
            if len > LARGEST {
                return Err(unusable(format!("is larger than {} MB", LARGEST >> 20)));
            }
            if db.len == 0 {
                return Err(unusable("is empty".into()));
            }
            if let Err(refusal) = self.dir().file(&self.files[0])
                && refusal.is_unreadable()
            {
                return Err(Damage::unread(STATE_DB, &refusal));
            }
            count_bytes(AgentKind::Codex, ReadKind::Index, len);
            self.ask(stamps, rows).map_err(|error| unusable(format!("cannot be read: {error}")))
        };
        let busy = || Err(unusable("was written to all the time while it was read".into()));
        match self.at_one_moment(rows).map(|read| read.unwrap_or_else(busy)) {
            Ok(Ok(rows)) => Index { rows, problem: None },
            Ok(Err(problem)) => Index { rows: HashMap::new(), problem: Some(problem) },
            Err(why) => Index::unread(&why),
        }
    }

    /// The whole row of a thread, as a cut needs it. `None`: there is no database, or no such row.
    ///
    /// # Errors
    /// [`Refusal::Damaged`] where the database is there and cannot be used.
    pub fn whole_row(&self, thread: &str) -> Result<Option<WholeRow>> {
        let row = |stamps: &Stamps| match stamps[0] {
            Some(_) => self.ask(stamps, |db| one_row(db, thread)),
            None => Ok(None),
        };
        let row = self.at_one_moment(row)?.ok_or_else(|| Refusal::StoreLocked { what: STATE_DB.into() })?;
        row.map_err(|error| {
            let what = format!("the thread index cannot be read ({error}), and this cut needs it");
            Refusal::Damaged { damage: Damage::of_whole(STATE_DB, DamageClass::Sidecar, what) }
        })
    }

    /// Its files, under their names in the store's root wherever they really are.
    ///
    /// # Errors
    /// What prevents reading them.
    pub fn companions(&self) -> Result<Vec<Companion>> {
        let mut found = Vec::new();
        for (file, suffix) in self.files.iter().zip(SUFFIXES) {
            if let Some(content) = self.dir().file(file)? {
                found.push(Companion { file: format!("{STATE_DB}{suffix}").into(), content });
            }
        }
        Ok(found)
    }

    /// What `look` finds while the files have the stamps that it is given, before and after. `None`: they are written
    /// to all the time.
    fn at_one_moment<T>(&self, look: impl Fn(&Stamps) -> T) -> Result<Option<T>> {
        for _ in 0..ATTEMPTS {
            let before = self.stamps()?;
            let found = look(&before);
            if self.stamps().is_ok_and(|after| after == before) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Asks a database that nobody else has open: the store's own file where it is complete in itself, else a
    /// private copy.
    fn ask<T>(
        &self,
        stamps: &Stamps,
        ask: impl FnOnce(&Connection) -> Result<T, Unreadable>,
    ) -> Result<T, Unreadable> {
        let (dir, db) = (self.dir(), &self.files[0]);
        if !stamps[1..].iter().flatten().any(|stamp| stamp.len > 0) {
            let (path, before) = (dir.real_path(db), dir.stat(db)?);
            let answer = ask(&open(&path, "mode=ro&immutable=1", OpenFlags::SQLITE_OPEN_READ_ONLY)?)?;
            // SQLite opens by path: it must be what was looked at.
            return match dir.stat(db)? == before {
                true => Ok(answer),
                false => Err(Unreadable::Store(Refusal::Changed { what: STATE_DB.into() })),
            };
        }
        let private = tempfile::Builder::new().prefix("turnfs-").tempdir()?;
        for (file, stamp) in self.files.iter().zip(stamps) {
            if stamp.is_some()
                && let Some(mut from) = dir.file(file)?
            {
                std::io::copy(&mut from, &mut std::fs::File::create_new(private.path().join(file))?)?;
            }
        }
        ask(&open(&private.path().join(db), "mode=rw", OpenFlags::SQLITE_OPEN_READ_WRITE)?)
    }
}

fn unusable(what: String) -> Damage {
    let message = format!(
        "the thread index {what}; the sessions are listed from their files alone (Codex makes the index anew if it is moved aside)"
    );
    Damage::of_whole(STATE_DB, DamageClass::Sidecar, message)
}

/// Why a database could not be asked.
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

/// Opens a database file with these URI parameters.
fn open(path: &Path, parameters: &str, mode: OpenFlags) -> Result<Connection, rusqlite::Error> {
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    let always =
        OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    Connection::open_with_flags(format!("{uri}?{parameters}"), mode | always)
}

fn one_row(db: &Connection, thread: &str) -> Result<Option<WholeRow>, Unreadable> {
    let mut statement = db.prepare("SELECT * FROM threads WHERE id = ?1")?;
    statement.column_index("rollout_path").map_err(|_| Unreadable::Schema)?;
    let mut found = statement.query([thread])?;
    Ok(found.next()?.map(WholeRow::try_from).transpose()?)
}

/// All rows. A column that an older or newer client does not have is taken as empty; columns that are not
/// known are not looked at.
fn rows(db: &Connection) -> Result<HashMap<String, Row>, Unreadable> {
    const COLUMNS: [&str; 9] =
        ["id", "rollout_path", "title", "name", "model", "cwd", "updated_at_ms", "updated_at", "archived"];
    let mut info = db.prepare("SELECT name FROM pragma_table_info('threads')")?;
    let known = info.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
    let has = |name: &str| known.iter().any(|column| column == name);
    if !has("id") || !has("rollout_path") {
        return Err(Unreadable::Schema);
    }
    let columns = COLUMNS.map(|name| if has(name) { name } else { "NULL" }).join(", ");
    let mut statement = db.prepare(&format!("SELECT {columns} FROM threads"))?;
    let mut found = statement.query([])?;
    let mut rows = HashMap::new();
    while let Some(row) = found.next()? {
        let text = |at: usize| match row.get_ref(at) {
            Ok(ValueRef::Text(text)) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        };
        let filled = |at: usize| text(at).filter(|text| !text.is_empty());
        let number = |at: usize| row.get::<_, Option<i64>>(at).ok().flatten();
        let (Some(id), Some(rollout_path)) = (text(0), text(1)) else { continue };
        let updated = number(6).and_then(|ms| Timestamp::from_millisecond(ms).ok());
        rows.insert(
            id,
            Row {
                rollout_path,
                title: filled(2),
                name: filled(3),
                model: filled(4),
                cwd: filled(5),
                updated: updated.or_else(|| Timestamp::from_second(number(7)?).ok()),
                archived: number(8).map(|archived| archived != 0),
            },
        );
    }
    Ok(rows)
}
