//! Copies of the Codex samples, as stores of a test's own.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};
use turnfs::agents::{Discovery, open, store_of};
use turnfs::session::{AgentKind, History, Session};

pub fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/codex")
}

/// The names of the samples that tell what each cut must leave, sorted.
pub fn names() -> Vec<String> {
    all_names().into_iter().filter(|name| tells_cuts(name)).collect()
}

/// The names of the samples of older versions, of which only the turns are known, sorted.
pub fn older_names() -> Vec<String> {
    all_names().into_iter().filter(|name| !tells_cuts(name)).collect()
}

fn tells_cuts(name: &str) -> bool {
    expected(name)[0]["keep"].as_object().is_some_and(|keep| !keep.is_empty())
}

fn all_names() -> Vec<String> {
    let entries = fs::read_dir(samples()).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("expected.json").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() > 10, "{names:?}");
    names
}

/// What is expected of each session of a sample.
pub fn expected(sample: &str) -> Vec<Value> {
    let text = fs::read(samples().join(sample).join("expected.json")).unwrap();
    let value: Value = serde_json::from_slice(&text).unwrap();
    match value.get("sessions") {
        Some(sessions) => sessions.as_array().unwrap().clone(),
        None => vec![value],
    }
}

/// A copy of a sample's store with a state directory beside it.
pub struct Store {
    pub dir: tempfile::TempDir,
    pub root: PathBuf,
    pub state: turnfs::cut::StateDir,
}

impl Store {
    pub fn empty() -> Store {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("codex");
        fs::create_dir(&root).unwrap();
        let state = turnfs::cut::StateDir::at(&dir.path().join("state"));
        Store { dir, root, state }
    }

    /// The index names the files at their new place.
    pub fn of(sample: &str) -> Store {
        let store = Store::empty();
        copy_tree(&samples().join(sample).join("store"), &store.root);
        if !store.root.join("state_5.sqlite").exists() {
            return store;
        }
        let db = store.db();
        let mut paths = db.prepare("SELECT id, rollout_path FROM threads").unwrap();
        let rows: Vec<(String, String)> = paths
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
            .map(|row| row.unwrap())
            .collect();
        for (id, path) in rows {
            let at = path.find("/sessions/").or(path.find("/archived_sessions/")).unwrap();
            let path = format!("{}{}", store.root.display(), &path[at..]);
            db.execute("UPDATE threads SET rollout_path = ?1 WHERE id = ?2", [&path, &id]).unwrap();
        }
        drop(paths);
        store
    }

    pub fn db(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.root.join("state_5.sqlite")).unwrap()
    }

    /// Every row of `threads`, as text.
    pub fn rows(&self) -> BTreeMap<String, String> {
        let db = self.db();
        let mut statement = db.prepare("SELECT * FROM threads").unwrap();
        let columns = statement.column_count();
        let row = |row: &rusqlite::Row<'_>| {
            let values: Vec<String> =
                (0..columns).map(|at| format!("{:?}", row.get_ref(at).unwrap())).collect();
            Ok((row.get("id")?, values.join(", ")))
        };
        statement.query_map([], row).unwrap().map(|row| row.unwrap()).collect()
    }

    pub fn path_of(&self, id: &str) -> String {
        self.db().query_row("SELECT rollout_path FROM threads WHERE id = ?1", [id], |row| row.get(0)).unwrap()
    }

    /// Every file with its bytes, without the index itself (its rows count, see [`Store::rows`]).
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = content(&self.root);
        files.retain(|path, _| !path.to_string_lossy().contains("state_5.sqlite"));
        files
    }

    pub fn found(&self) -> Discovery {
        Arc::unwrap_or_clone(open(AgentKind::Codex, &*self.root).discover().unwrap())
    }

    #[track_caller]
    pub fn session(&self, id: &str) -> Arc<Session> {
        let found = self.found().sessions;
        found.into_iter().find(|session| session.id == id).unwrap_or_else(|| panic!("{id} is not listed"))
    }

    /// The only session.
    #[track_caller]
    pub fn only(&self) -> Arc<Session> {
        let mut found = self.found().sessions;
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    pub fn load(&self, session: &Session) -> History {
        store_of(session).load(session).unwrap()
    }

    /// The whole text of a turn.
    pub fn text(&self, session: &Session, history: &History, n: usize) -> String {
        let turn = &history.turns[n];
        let span = turnfs::transcript::read_range(&session.key.root, &turn.file, turn.span.clone()).unwrap();
        let mut text = String::new();
        turnfs::render::heading(turn, &mut text);
        store_of(session)
            .items(session, turn, &span, &mut |_, item| turnfs::render::item(&item, &mut text))
            .unwrap();
        assert_eq!(text.len() as u64, turn.text_len, "turn {n}:\n{text}");
        text
    }

    /// Writes a rollout of these lines under the usual name.
    pub fn rollout(&self, thread: &str, content: &[u8]) -> PathBuf {
        let file = format!("sessions/2026/11/30/rollout-2026-11-30T10-00-00-{thread}.jsonl");
        let path = self.root.join(&file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        file.into()
    }
}

pub fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub fn content(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                found.insert(path.strip_prefix(dir).unwrap().to_owned(), bytes);
            }
        }
    }
    found
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes behind the first line.
pub fn behind_first(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1..]
}
