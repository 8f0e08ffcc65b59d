//! A sample store copied to a temporary directory, with a state directory beside it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use turnfs::agents::{Discovery, agent};
use turnfs::cut::{self, StateDir};
use turnfs::session::{AgentKind, Errno, History, Refusal, Session};

pub struct Sample {
    pub name: String,
    pub expected: Value,
    folder: PathBuf,
}

pub fn samples() -> Vec<Sample> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/kimi-cli");
    let mut all: Vec<Sample> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let folder = entry.unwrap().path();
            let expected = std::fs::read_to_string(folder.join("expected.json")).unwrap();
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            Sample { name, expected: serde_json::from_str(&expected).unwrap(), folder }
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

impl Sample {
    pub fn copy(&self) -> Store {
        let dir = tempfile::tempdir().unwrap();
        copy(&self.folder.join("store"), &dir.path().join("store"));
        Store { path: self.session_path(), top: dir.path().to_owned(), _dir: Some(dir) }
    }

    /// A copy below `top`, which stays.
    pub fn copy_to(&self, top: &Path) -> Store {
        copy(&self.folder.join("store"), &top.join("store"));
        Store { path: self.session_path(), top: top.to_owned(), _dir: None }
    }

    fn session_path(&self) -> PathBuf {
        PathBuf::from(self.expected["session_path"].as_str().unwrap())
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
    /// The session, relative to the store's root.
    pub path: PathBuf,
    top: PathBuf,
    _dir: Option<TempDir>,
}

impl Store {
    /// A store that another process made.
    pub fn at(top: &Path, path: &Path) -> Store {
        Store { path: path.to_owned(), top: top.to_owned(), _dir: None }
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
        let found = agent(AgentKind::KimiCli).discover(&self.root(), &Discovery::default()).unwrap();
        found.sessions.into_iter().find(|session| &*session.key.path == path).expect("the session is found")
    }

    pub fn history(&self) -> History {
        agent(AgentKind::KimiCli).load(&self.session()).unwrap()
    }

    pub fn undo(&self, n: u32) -> Result<cut::UndoDone, Refusal> {
        cut::undo(&self.state(), &self.session(), &self.history(), n, false)
    }

    pub fn redo(&self) -> Result<(u32, u32), Refusal> {
        cut::redo(&self.state(), &self.session(), None, false)
    }

    pub fn fork(&self, n: u32) -> Result<String, Refusal> {
        cut::fork(&self.state(), &self.session(), &self.history(), n)
    }

    /// Does a cut by its words: `undo 3`, `redo`, `fork 2`, `recover`.
    pub fn act(&self, words: &str) -> Result<String, Refusal> {
        let mut words = words.split(' ');
        let (verb, n) = (words.next().unwrap(), words.next().map_or(0, |n| n.parse().unwrap()));
        match verb {
            "undo" => self.undo(n).map(|_| String::new()),
            "redo" => self.redo().map(|_| String::new()),
            "fork" => self.fork(n),
            "recover" => cut::recover(&self.state()).map(|told| told.join("\n")),
            other => panic!("no such act: {other}"),
        }
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
        .args(["--exact", "store::child_acts", "--nocapture", "--test-threads=1"])
        .env("TURNFS_TEST_ACT", words)
        .env("TURNFS_TEST_TOP", store.top())
        .env("TURNFS_TEST_SESSION", &store.path);
    command
}

/// How the child tells an errno: exit code 100 + errno.
pub const ERRNO_BASE: i32 = 100;

#[test]
fn child_acts() {
    let Ok(words) = std::env::var("TURNFS_TEST_ACT") else { return };
    let top = PathBuf::from(std::env::var_os("TURNFS_TEST_TOP").unwrap());
    let path = PathBuf::from(std::env::var_os("TURNFS_TEST_SESSION").unwrap());
    match Store::at(&top, &path).act(&words) {
        Ok(told) => println!("{told}"),
        Err(refusal) => {
            println!("{refusal}");
            std::process::exit(ERRNO_BASE + refusal.errno().raw_os_error());
        }
    }
}
