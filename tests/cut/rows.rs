//! The databases of a Codex store: put where a copy lies, and read row by row.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

/// Databases that turnfs must leave alone except for the rows of its cuts.
const DATABASES: [&str; 2] = ["state_5.sqlite", "thread_history_1.sqlite"];

/// A row: its table, and its columns with their values.
pub type Row = (String, Vec<(String, String)>);

/// Makes the index name the files of this copy. `wal`: in the client's own journal mode.
pub fn moved_to(root: &Path, wal: bool) {
    if !root.join(DATABASES[0]).exists() {
        // Old clients kept none.
        return;
    }
    let db = Connection::open(root.join(DATABASES[0])).unwrap();
    db.pragma_update(None, "synchronous", "OFF").unwrap();
    let mut paths = db.prepare("SELECT id, rollout_path FROM threads").unwrap();
    let rows: Vec<(String, String)> =
        paths.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(|row| row.unwrap()).collect();
    drop(paths);
    for (id, path) in rows {
        let at = path.find("/sessions/").or(path.find("/archived_sessions/")).unwrap();
        let path = format!("{}{}", root.display(), &path[at..]);
        db.execute("UPDATE threads SET rollout_path = ?1 WHERE id = ?2", [&path, &id]).unwrap();
    }
    if wal {
        db.pragma_update(None, "journal_mode", "WAL").unwrap();
    }
}

/// Every row of every table, as a client finds them.
pub fn all(root: &Path) -> Vec<Row> {
    let mut all = Vec::new();
    for name in DATABASES {
        let path = root.join(name);
        if !path.exists() {
            continue;
        }
        let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
        let mut tables =
            db.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").unwrap();
        let tables: Vec<String> =
            tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        for table in tables {
            // Virtual tables need extensions; what they store lies in tables of its own.
            let Ok(mut statement) = db.prepare(&format!("SELECT * FROM \"{table}\"")) else { continue };
            let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
            let mut rows = statement.query([]).unwrap();
            while let Some(row) = rows.next().unwrap() {
                let value = |(at, name): (usize, &String)| (name.clone(), text(row.get_ref(at).unwrap()));
                all.push((format!("{name}:{table}"), columns.iter().enumerate().map(value).collect()));
            }
        }
    }
    all.sort();
    all
}

fn text(value: rusqlite::types::ValueRef<'_>) -> String {
    use rusqlite::types::ValueRef;
    match value {
        ValueRef::Text(bytes) => format!("text {}", String::from_utf8_lossy(bytes)),
        other => format!("{other:?}"),
    }
}
