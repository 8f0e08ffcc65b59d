//! Rows of a SQLite database that belongs to a store.
//!
//! They are written in one transaction, durable when it is over, and only while each is what the cut was
//! planned with; SQLite's own locks are waited for at most [`PATIENCE`]. What a row becomes is data
//! (`session::Rows`), so rolling back is writing the other side.

use std::path::Path;

use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, params_from_iter};
use rustix::fs::Stat;
use rustix::io::Errno;

use super::disk::Tree;
use super::fault;
use super::journal::Direction;
use super::lease::PATIENCE;
use super::several_names;
use crate::session::{Damage, DamageClass, Refusal, Result, Row, RowChange, Rows, SqlValue};

fn from(change: &RowChange, direction: Direction) -> Option<&Row> {
    match direction {
        Direction::Undo => change.before.as_ref(),
        Direction::Redo => change.after.as_ref(),
    }
}

/// The right to write the rows: SQLite's lock for writing, taken before anything else of a cut is done, so
/// that a database that another program has refuses the cut while nothing has happened. Dropping it lets go.
pub(super) struct Held<'a> {
    db: Connection,
    store: &'a Tree,
    rows: &'a Rows,
    direction: Direction,
}

impl<'a> Held<'a> {
    /// Takes the lock and looks at the rows.
    ///
    /// # Errors
    /// [`Refusal::Changed`] if a row is no longer what it was; [`Refusal::StoreLocked`] if another program
    /// has the database for too long.
    pub fn take(store: &'a Tree, rows: &'a Rows, direction: Direction) -> Result<Held<'a>> {
        let changed =
            || Refusal::Changed { what: format!("the row of the session in {}", rows.db.display()) };
        let db = open(store, &rows.db)?.ok_or_else(changed)?;
        let held = Held { db, store, rows, direction };
        held.db.execute_batch("BEGIN IMMEDIATE").map_err(|error| held.refused(error))?;
        match held.are(direction)? {
            true => Ok(held),
            false => Err(changed()),
        }
    }

    /// As [`Held::take`], once the journal is written: a database with several hard links gets files of its own first.
    ///
    /// # Errors
    /// As [`Held::take`].
    pub fn take_its_own(store: &'a Tree, rows: &'a Rows, direction: Direction) -> Result<Held<'a>> {
        if several_names::is_shared(store, &rows.db)? {
            several_names::make_database_its_own(store, &rows.db)?;
        }
        Held::take(store, rows, direction)
    }

    /// Makes the change, durable when this returns.
    ///
    /// # Errors
    /// What prevents that; nothing was done then.
    pub fn apply(self) -> Result<()> {
        self.fault("row")?;
        for change in &self.rows.changes {
            let (old, new) = (from(change, self.direction), from(change, self.direction.back()));
            write(&self.db, change, old, new).map_err(|error| self.refused(error))?;
        }
        // Triggers of the store may have had their own idea.
        if !self.are(self.direction.back())? {
            return Err(Refusal::NotAsPromised { what: format!("the row in {}", self.rows.db.display()) });
        }
        self.fault("commit")?;
        self.db.execute_batch("COMMIT").map_err(|error| self.refused(error))
    }

    /// Whether every row is what a change in this direction starts from.
    fn are(&self, direction: Direction) -> Result<bool> {
        for change in &self.rows.changes {
            let now = read(&self.db, change).map_err(|error| self.refused(error))?;
            if now.as_ref() != from(change, direction) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn fault(&self, step: &'static str) -> Result<()> {
        let path = self.store.path().join(&self.rows.db);
        fault::inject(step).map_err(|error| Refusal::io("cannot write", &path, error))
    }

    fn refused(&self, error: rusqlite::Error) -> Refusal {
        refused(self.store, self.rows, &self.db, &error)
    }
}

/// The rows as they are now, in the order of their changes; `None` if the database is not there.
fn now(store: &Tree, rows: &Rows) -> Result<Option<Vec<Option<Row>>>> {
    let Some(db) = open(store, &rows.db)? else { return Ok(None) };
    let read = |change| read(&db, change).map_err(|error| refused(store, rows, &db, &error));
    rows.changes.iter().map(read).collect::<Result<_>>().map(Some)
}

/// Whether these rows are what a change in this direction starts from.
fn are_as_before(now: &[Option<Row>], rows: &Rows, direction: Direction) -> bool {
    now.iter().zip(&rows.changes).all(|(now, change)| now.as_ref() == from(change, direction))
}

/// Rolls the change back if it was made. A sentence if there was something to tell.
///
/// # Errors
/// What prevents that.
pub(super) fn roll_back(store: &Tree, rows: &Rows, direction: Direction) -> Result<Option<String>> {
    several_names::tidy_database(store, &rows.db)?;
    let Some(now) = now(store, rows)? else { return Ok(None) };
    if are_as_before(&now, rows, direction) {
        return Ok(None);
    }
    if are_as_before(&now, rows, direction.back()) {
        Held::take_its_own(store, rows, direction.back())?.apply()?;
        return Ok(None);
    }
    let db = rows.db.display();
    Ok(Some(format!("the session's row in {db} was changed by its agent meanwhile and was left as it is")))
}

/// Makes the rows if there are none. A database that cannot take them (its agent has changed its form, or damaged
/// it) is left: the agent makes rows that are missing.
///
/// # Errors
/// What prevents that for now.
pub(super) fn complete(store: &Tree, rows: &Rows) -> Result<()> {
    let make = || -> Result<()> {
        several_names::tidy_database(store, &rows.db)?;
        match now(store, rows)? {
            Some(now) if now.iter().all(Option::is_none) => {
                Held::take_its_own(store, rows, Direction::Undo)?.apply()
            }
            Some(_) | None => Ok(()),
        }
    };
    match make() {
        Err(
            Refusal::Changed { .. }
            | Refusal::CannotCut { .. }
            | Refusal::Damaged { .. }
            | Refusal::NotAsPromised { .. },
        ) => Ok(()),
        other => other,
    }
}

/// Whether the agent has gone on from a row as the change made it: it is neither side, and something of what
/// the change made is still in it.
///
/// # Errors
/// What prevents looking.
pub(super) fn are_worked_on(store: &Tree, rows: &Rows, direction: Direction) -> Result<bool> {
    let now = now(store, rows)?.unwrap_or_default();
    let is_worked_on = |(now, change): (&Option<Row>, &RowChange)| {
        let sides = (now, from(change, direction), from(change, direction.back()));
        let (Some(now), Some(old), Some(new)) = sides else { return false };
        let made =
            |(name, value): &(String, SqlValue)| old.get(name) != Some(value) && now.get(name) == Some(value);
        now != new && new.0.iter().any(made)
    };
    Ok(now.iter().zip(&rows.changes).any(is_worked_on))
}

fn open(store: &Tree, file: &Path) -> Result<Option<Connection>> {
    // Also refuses what is not a regular file.
    let Some(opened) = store.read(file)? else { return Ok(None) };
    let identity = |facts: Stat| (facts.st_dev, facts.st_ino);
    let is = identity(opened.facts()?);
    // Closed before SQLite opens it: closing a descriptor lets go of all POSIX locks of the process on the file.
    drop(opened);
    // Without links, as SQLite itself resolves it: its other files are beside that.
    let path = store.real_path(file)?;
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let db = Connection::open_with_flags(&path, flags).map_err(|error| sql(&path, None, &error))?;
    // SQLite opens by path: nobody may have put another database there meanwhile.
    if store.stat(file)?.map(identity) != Some(is) {
        return Err(Refusal::Changed { what: file.display().to_string() });
    }
    // FULL also where a WAL would do with less: what this returns from is durable.
    let set = db.busy_timeout(PATIENCE).and_then(|()| db.pragma_update(None, "synchronous", "FULL"));
    set.map_err(|error| sql(&path, Some(&db), &error))?;
    Ok(Some(db))
}

fn read(db: &Connection, change: &RowChange) -> rusqlite::Result<Option<Row>> {
    let statement = format!("SELECT * FROM {} WHERE {} = ?1", quoted(&change.table), quoted(&change.key.0));
    let mut statement = db.prepare(&statement)?;
    let mut rows = statement.query([&change.key.1])?;
    rows.next()?.map(Row::try_from).transpose()
}

/// Writes what differs, and nothing else.
fn write(db: &Connection, change: &RowChange, old: Option<&Row>, new: Option<&Row>) -> rusqlite::Result<()> {
    let table = quoted(&change.table);
    let key = quoted(&change.key.0);
    let differing: Vec<&(String, SqlValue)> = match new {
        None => {
            db.execute(&format!("DELETE FROM {table} WHERE {key} = ?1"), [&change.key.1])?;
            return Ok(());
        }
        Some(new) => {
            new.0.iter().filter(|(name, value)| old.and_then(|old| old.get(name)) != Some(value)).collect()
        }
    };
    if differing.is_empty() {
        return Ok(());
    }
    let names = differing.iter().map(|(name, _)| quoted(name));
    let values = differing.iter().map(|(_, value)| Bound::Stored(value));
    if old.is_none() {
        let places = vec!["?"; differing.len()].join(", ");
        let names = names.collect::<Vec<_>>().join(", ");
        db.execute(&format!("INSERT INTO {table} ({names}) VALUES ({places})"), params_from_iter(values))?;
    } else {
        let set = names.map(|name| format!("{name} = ?")).collect::<Vec<_>>().join(", ");
        let values = values.chain([Bound::Key(&change.key.1)]);
        db.execute(&format!("UPDATE {table} SET {set} WHERE {key} = ?"), params_from_iter(values))?;
    }
    Ok(())
}

/// A value for a place in a statement.
enum Bound<'v> {
    Stored(&'v SqlValue),
    Key(&'v str),
}

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Bound::Key(text) => ValueRef::Text(text.as_bytes()),
            Bound::Stored(SqlValue::Null) => ValueRef::Null,
            Bound::Stored(SqlValue::Integer(value)) => ValueRef::Integer(*value),
            Bound::Stored(SqlValue::Real(bits)) => ValueRef::Real(f64::from_bits(*bits)),
            Bound::Stored(SqlValue::Text(text)) => ValueRef::Text(text.as_bytes()),
            Bound::Stored(SqlValue::OddText(bytes)) => ValueRef::Text(bytes),
            Bound::Stored(SqlValue::Blob(bytes)) => ValueRef::Blob(bytes),
        }))
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn refused(store: &Tree, rows: &Rows, db: &Connection, error: &rusqlite::Error) -> Refusal {
    sql(&store.path().join(&rows.db), Some(db), error)
}

/// What SQLite says, as a refusal.
fn sql(path: &Path, db: Option<&Connection>, error: &rusqlite::Error) -> Refusal {
    let io = |errno| Refusal::Io { action: "cannot write to", path: path.to_owned(), errno };
    let what = path.display().to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Refusal::StoreLocked { what },
        Some(ErrorCode::ReadOnly) => io(Errno::ROFS),
        Some(ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => io(Errno::ACCESS),
        Some(ErrorCode::DiskFull) => io(Errno::NOSPC),
        // A full disk, too, where it is SQLite's shared memory that finds no room.
        Some(ErrorCode::SystemIoFailure) => io(db.and_then(system_errno).unwrap_or(Errno::IO)),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            Refusal::Damaged { damage: Damage::of_whole(what, DamageClass::Sidecar, error.to_string()) }
        }
        // A newer client migrated it, or another program made it.
        _ => Refusal::cannot_cut(
            format!(
                "the table of sessions in {what} has a form that this version of turnfs does not write ({error})"
            ),
            "undo or fork in the agent itself",
        ),
    }
}

/// The errno of the system call that failed last.
fn system_errno(db: &Connection) -> Option<Errno> {
    let errno = crate::host::sys::sqlite_system_errno(db);
    (errno > 0).then(|| Errno::from_raw_os_error(errno))
}
