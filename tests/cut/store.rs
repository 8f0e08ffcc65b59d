//! A sample store copied to a temporary directory, with a state directory beside it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use turnfs::agents::{open, store_of};
use turnfs::cut::{self, StateDir};
use turnfs::session::{AgentKind, Errno, History, Refusal, Session};

use super::rows;

pub struct Sample {
    pub kind: AgentKind,
    pub name: String,
    /// Of the session.
    pub id: String,
    /// What is known of the session.
    pub expected: Value,
    /// Whether a Codex sample's database is put into the mode that the client uses.
    pub wal: bool,
    pub folder: PathBuf,
}

/// The samples of Kimi CLI.
pub fn samples() -> Vec<Sample> {
    samples_of(AgentKind::KimiCli)
}

/// The samples of a store: one for each session that a cut could be made of.
pub fn samples_of(kind: AgentKind) -> Vec<Sample> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(kind.name());
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let mut all = Vec::new();
    for folder in folders {
        let expected = std::fs::read_to_string(folder.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_str(&expected).unwrap();
        let several = expected.get("sessions").and_then(Value::as_array).cloned();
        let sample = folder.file_name().unwrap().to_string_lossy().into_owned();
        for expected in several.clone().unwrap_or_else(|| vec![expected]) {
            if expected.get("turns").is_none_or(|turns| turns.as_array().unwrap().is_empty()) {
                continue;
            }
            let id = expected["session"].as_str().unwrap().to_owned();
            let name = if several.is_some() { format!("{sample}/{id}") } else { sample.clone() };
            let wal = all.len() % 2 == 0;
            all.push(Sample { kind, name, id, expected, wal, folder: folder.clone() });
        }
    }
    all
}

impl Sample {
    pub fn copy(&self) -> Store {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().to_owned();
        Store { _dir: Some(dir), ..self.copy_to(&top) }
    }

    /// A copy below `top`, which stays.
    pub fn copy_to(&self, top: &Path) -> Store {
        let root = top.join("store");
        copy(&self.folder.join("store"), &root);
        if self.kind == AgentKind::Codex {
            rows::moved_to(&root, self.wal);
        }
        let path = match self.expected.get("session_path") {
            Some(path) => PathBuf::from(path.as_str().unwrap()),
            None => {
                let found = open(self.kind, &*root).discover().unwrap().sessions.clone();
                let session = found.iter().find(|session| session.id == self.id);
                session.unwrap_or_else(|| panic!("{} is not listed", self.name)).key.path.to_path_buf()
            }
        };
        Store { kind: self.kind, path, top: top.to_owned(), _dir: None }
    }

    pub fn turns(&self) -> u32 {
        self.expected["turns"].as_array().unwrap().len() as u32
    }

    /// What is to be kept when the turns 0..=`last` are (-1: none).
    pub fn keep(&self, last: i64) -> &Value {
        &self.expected["keep"][last.to_string()]
    }
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub struct Store {
    pub kind: AgentKind,
    /// The session, relative to the store's root.
    pub path: PathBuf,
    top: PathBuf,
    _dir: Option<TempDir>,
}

impl Store {
    /// A store that another process made.
    pub fn at(kind: AgentKind, top: &Path, path: &Path) -> Store {
        Store { kind, path: path.to_owned(), top: top.to_owned(), _dir: None }
    }

    pub fn top(&self) -> &Path {
        &self.top
    }

    pub fn root(&self) -> PathBuf {
        self.top.join("store")
    }

    pub fn state(&self) -> StateDir {
        StateDir::at(&self.top.join("state"))
    }

    pub fn session(&self) -> Session {
        self.session_at(&self.path)
    }

    pub fn session_at(&self, path: &Path) -> Session {
        let found = open(self.kind, &*self.root()).discover().unwrap();
        let session = found.sessions.iter().find(|session| &*session.key.path == path);
        Session::clone(session.expect("the session is found"))
    }

    pub fn history(&self) -> History {
        store_of(&self.session()).load(&self.session()).unwrap()
    }

    pub fn undo(&self, n: u32) -> Result<cut::UndoDone, Refusal> {
        cut::undo(&*store_of(&self.session()), &self.state(), &self.session(), &self.history(), n, false)
    }

    pub fn redo(&self) -> Result<(u32, u32), Refusal> {
        cut::redo(&*store_of(&self.session()), &self.state(), &self.session(), None, false)
    }

    pub fn fork(&self, n: u32) -> Result<String, Refusal> {
        cut::fork(&*store_of(&self.session()), &self.state(), &self.session(), &self.history(), n)
    }

    /// Does a cut by its words: `undo 3`, `redo`, `fork 2`, `recover`.
    pub fn act(&self, words: &str) -> Result<String, Refusal> {
        let mut words = words.split(' ');
        let (verb, n) = (words.next().unwrap(), words.next().map_or(0, |n| n.parse().unwrap()));
        match verb {
            "undo" => self.undo(n).map(|_| String::new()),
            "redo" => self.redo().map(|_| String::new()),
            "fork" => self.fork(n),
            // Of what the first undo removed.
            "branch" => {
                cut::fork_undone(&*store_of(&self.session()), &self.state(), &self.session(), 1, Some(n))
                    .map(|(id, _)| id)
            }
            "recover" => cut::recover(&self.state()).map(|told| told.join("\n")),
            other => panic!("no such act: {other}"),
        }
    }

    /// A copy of the store in which links are what they lead to.
    #[cfg(feature = "faults")]
    pub fn copy_behind_links(&self) -> Store {
        fn copy(from: &Path, to: &Path) {
            std::fs::create_dir_all(to).unwrap();
            for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
                let (path, target) = (entry.path(), to.join(entry.file_name()));
                match std::fs::metadata(&path).unwrap().is_dir() {
                    true => copy(&path, &target),
                    false => drop(std::fs::copy(&path, target).unwrap()),
                }
            }
            let mode = std::fs::metadata(from).unwrap().permissions();
            std::fs::set_permissions(to, mode).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().to_owned();
        copy(&self.root(), &top.join("store"));
        for suffix in ["-wal", "-journal"] {
            let beside = self.top.join(format!("moved-state_5.sqlite{suffix}"));
            if beside.exists() {
                std::fs::copy(beside, top.join(format!("store/state_5.sqlite{suffix}"))).unwrap();
            }
        }
        Store { kind: self.kind, path: self.path.clone(), top, _dir: Some(dir) }
    }

    /// The store as it is: every path with mode and bytes.
    pub fn snapshot(&self) -> Snapshot {
        snapshot(&self.root())
    }
}

pub type Snapshot = Vec<(PathBuf, u32, Vec<u8>)>;

pub fn snapshot(root: &Path) -> Snapshot {
    let mut all = Vec::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            let facts = entry.metadata().unwrap();
            let path = entry.path();
            let bytes = if facts.is_dir() { Vec::new() } else { std::fs::read(&path).unwrap() };
            if facts.is_dir() {
                dirs.push(path.clone());
            }
            all.push((path.strip_prefix(root).unwrap().to_owned(), facts.permissions().mode(), bytes));
        }
    }
    all.sort();
    all
}

/// A snapshot with the random id of a fork taken out, so that two forks can be compared.
pub fn without_ids(store: &Store, known: &Snapshot, snapshot: Snapshot) -> Snapshot {
    let parent = store.path.parent().unwrap().to_owned();
    let known: Vec<&PathBuf> = known.iter().map(|(path, ..)| path).collect();
    let rename = |path: PathBuf| match path.strip_prefix(&parent) {
        Ok(rest) if !known.contains(&&path) => {
            let mut parts = rest.components();
            parts.next();
            parent.join("fork").join(parts.as_path())
        }
        _ => path,
    };
    let mut renamed: Snapshot =
        snapshot.into_iter().map(|(path, mode, bytes)| (rename(path), mode, bytes)).collect();
    renamed.sort();
    renamed
}

pub fn errno(name: &str) -> Errno {
    match name {
        "ENODATA" => Errno::NODATA,
        "ENOTUNIQ" => Errno::NOTUNIQ,
        "EUCLEAN" => Errno::UCLEAN,
        "EOPNOTSUPP" => Errno::OPNOTSUPP,
        other => panic!("unknown errno {other}"),
    }
}

/// This test binary once more, doing one cut on the store.
pub fn child(store: &Store, words: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "store::child_acts", "--nocapture", "--test-threads=1"])
        .env("TURNFS_TEST_ACT", words)
        .env("TURNFS_TEST_AGENT", store.kind.name())
        .env("TURNFS_TEST_TOP", store.top())
        .env("TURNFS_TEST_SESSION", &store.path);
    command
}

/// How the child tells an errno: exit code 100 + errno.
pub const ERRNO_BASE: i32 = 100;

/// Not a test, but what [`child`] runs.
#[test]
#[ignore = "the part of a child process"]
fn child_acts() {
    let words = std::env::var("TURNFS_TEST_ACT").unwrap();
    let top = PathBuf::from(std::env::var_os("TURNFS_TEST_TOP").unwrap());
    let path = PathBuf::from(std::env::var_os("TURNFS_TEST_SESSION").unwrap());
    let kind = std::env::var("TURNFS_TEST_AGENT").unwrap().parse().unwrap();
    match Store::at(kind, &top, &path).act(&words) {
        Ok(told) => println!("{told}"),
        Err(refusal) => {
            println!("{refusal}");
            std::process::exit(ERRNO_BASE + refusal.errno().raw_os_error());
        }
    }
}
