//! Codex: a fork is one file and one row; an undo shortens a legacy file, or adds a file of one line that the
//! row then names. Of the thread index the rows count, not the bytes of the database.

use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;
use serde_json::Value;

use crate::support::TestStore;
use crate::{Check, Contents, Cut, Judge, ensure, id, sha256};

pub const JUDGE: Judge = Judge { agent: "codex", contents, transcripts, forked, undone };

fn contents(store: &TestStore) -> Contents {
    let mut all = store.snapshot();
    all.retain(|path, _| !store.root.join(path).is_dir() && !path.to_string_lossy().starts_with("state_5"));
    // Old clients kept none.
    let Some(index) = store.thread_index() else { return all };
    let mut rows = index.prepare("SELECT * FROM threads").unwrap();
    let columns: Vec<String> = rows.column_names().map(str::to_owned).collect();
    let mut rows = rows.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let id: String = row.get("id").unwrap();
        for (at, column) in columns.iter().enumerate() {
            let value = match row.get_ref(at).unwrap() {
                ValueRef::Text(text) => text.to_vec(),
                other => format!("{other:?}").into_bytes(),
            };
            all.insert(cell(&id, column), (0, value));
        }
    }
    all
}

/// The name of a value of the thread index in the contents.
fn cell(id: &str, column: &str) -> PathBuf {
    PathBuf::from(format!("row {id}/{column}"))
}

fn transcripts(_: &TestStore, session: &Value) -> Vec<PathBuf> {
    vec![session["rollout"].as_str().unwrap().into()]
}

/// The file that the thread index names, with its mode and bytes.
fn current<'c>(
    store: &TestStore,
    now: &'c Contents,
    id: &str,
) -> Result<(PathBuf, &'c (u32, Vec<u8>)), String> {
    let named = now.get(&cell(id, "rollout_path")).ok_or("the thread has no row")?;
    let path = String::from_utf8(named.1.clone()).unwrap();
    let file = Path::new(&path).strip_prefix(&store.root).map_err(|_| format!("the row names {path}"))?;
    let content = now.get(file).ok_or_else(|| format!("{path} is not there"))?;
    ensure(content.0 & 0o7777 == 0o600, || format!("{path} has mode {:o}", content.0))?;
    Ok((file.to_owned(), content))
}

/// A rollout's first record, and the bytes behind it.
fn apart(bytes: &[u8]) -> (Value, &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    (serde_json::from_slice(&bytes[..end]).unwrap(), &bytes[end..])
}

fn forked(store: &TestStore, cut: &Cut<'_>, new: &str) -> Check {
    let mut now = contents(store);
    let (file, content) = current(store, &now, new)?;
    let (head, body) = apart(&content.1);
    ensure(cut.expected["copy_body"]["sha256"] == sha256(body), || "other lines than expected".into())?;
    ensure(head["payload"]["forked_from_id"] == id(cut.session), || format!("begins with {head}"))?;
    ensure(head["payload"].get("history_base").is_none(), || "needs another file".into())?;
    now.remove(&file);
    now.retain(|path, _| !path.starts_with(format!("row {new}")));
    ensure(now == *cut.before, || "something else changed, too".into())
}

fn undone(store: &TestStore, cut: &Cut<'_>) -> Check {
    let mut now = contents(store);
    let session = id(cut.session);
    let (file, content) = current(store, &now, session)?;
    if cut.session["history_mode"] == "legacy" {
        let files = cut.expected["files"].as_object().unwrap();
        for (name, wanted) in files {
            let bytes = &now.get(Path::new(name)).ok_or_else(|| format!("{name} is gone"))?.1;
            ensure(wanted["sha256"] == sha256(bytes), || format!("{name} has other bytes than expected"))?;
        }
        now.insert(file.clone(), cut.before[&file].clone());
        return ensure(now == *cut.before, || "something else changed, too".into());
    }
    let (head, body) = apart(&content.1);
    let (at, base) = (&cut.expected["cut"], &head["payload"]["history_base"]);
    ensure(body.is_empty() && head["payload"]["id"] == session, || format!("begins with {head}"))?;
    let same = match cut.turns {
        0 => base.is_null() && head["ordinal"] == 0,
        _ => {
            head["ordinal"] == at["ordinal"]
                && base["thread_id"] == at["rollout_id"]
                && base["end_ordinal_exclusive"] == at["ordinal"]
                && base["end_byte_offset"] == at["byte_offset"]
        }
    };
    ensure(same, || format!("goes on from {base}, expected {at}"))?;
    now.remove(&file);
    for column in ["rollout_path", "updated_at", "updated_at_ms"] {
        now.insert(cell(session, column), cut.before[&cell(session, column)].clone());
    }
    ensure(now == *cut.before, || "something else changed, too".into())
}
