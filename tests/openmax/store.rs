//! An OpenMax store of a test's own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use turnfs::agents::{AgentStore, Discovery, open, store_of};
use turnfs::render;
use turnfs::session::{AgentKind, History, Session, Turn};
use turnfs::transcript;

pub struct Store {
    _dir: tempfile::TempDir,
    /// What would be `~/.openmax`.
    pub root: PathBuf,
    pub state: PathBuf,
}

pub fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/openmax")
}

/// Every sample with its expectations: (name, expected.json, one object per session).
pub fn all_samples() -> Vec<(String, Value, Vec<Value>)> {
    let mut names: Vec<String> = fs::read_dir(samples())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() > 30, "samples are missing");
    names
        .into_iter()
        .map(|name| {
            let text = fs::read(samples().join(&name).join("expected.json")).unwrap();
            let expected: Value = serde_json::from_slice(&text).unwrap();
            let sessions = match expected.get("sessions") {
                Some(sessions) => sessions.as_array().unwrap().clone(),
                None => vec![expected.clone()],
            };
            (name, expected, sessions)
        })
        .collect()
}

impl Store {
    pub fn of(sample: &str) -> Store {
        let store = Store::empty();
        let from = samples().join(sample).join("store/sessions");
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, store.file(path.file_name().unwrap().to_str().unwrap())).unwrap();
        }
        store
    }

    pub fn empty() -> Store {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (root, state) = (base.join("home/.openmax"), base.join("state"));
        fs::create_dir_all(root.join("sessions")).unwrap();
        fs::create_dir_all(&state).unwrap();
        Store { _dir: dir, root, state }
    }

    /// A file in `sessions/`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.root.join("sessions").join(name)
    }

    pub fn transcript(&self, id: &str) -> PathBuf {
        self.file(&format!("{id}.messages.json"))
    }

    pub fn index(&self) -> PathBuf {
        self.file("index.json")
    }

    pub fn entries(&self) -> Vec<Value> {
        serde_json::from_slice(&fs::read(self.index()).unwrap()).unwrap()
    }

    pub fn discover(&self) -> Discovery {
        Arc::unwrap_or_clone(self.open().discover().unwrap())
    }

    /// The store, opened, with nothing remembered of it.
    pub fn open(&self) -> Arc<dyn AgentStore> {
        open(AgentKind::OpenMax, &*self.root)
    }

    pub fn session(&self, id: &str) -> Arc<Session> {
        let found = self.discover().sessions.into_iter().find(|session| session.id == id);
        found.unwrap_or_else(|| panic!("no session {id}"))
    }

    pub fn load(&self, id: &str) -> History {
        store_of(&self.session(id)).load(&self.session(id)).unwrap()
    }

    /// Every file with its bytes.
    pub fn snapshot(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let files = fs::read_dir(self.root.join("sessions")).unwrap().map(|entry| entry.unwrap().path());
        files.map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
    }

    /// The bytes of a turn.
    pub fn bytes(&self, turn: &Turn) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (file, span) in turn.ranges() {
            bytes.extend(transcript::read_range(&self.root, file, span).unwrap());
        }
        bytes
    }

    /// A turn's text, as the mount shows it.
    pub fn text(&self, session: &Session, turn: &Turn) -> String {
        let mut text = String::new();
        render::heading(turn, &mut text);
        let bytes = self.bytes(turn);
        store_of(session)
            .items(session, turn, &bytes, &mut |_, item| render::item(&item, &mut text))
            .unwrap();
        text
    }
}
