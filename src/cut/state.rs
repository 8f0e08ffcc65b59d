//! turnfs's own state: where it is, who may look at it, and the lock of each session.
//!
//! ```text
//! <state>/sessions/<agent>-<store device>-<store inode>-<hash of the session's path>/
//!     session.json      which session this is
//!     lock              flock: one process at a time works on the session
//!     journal.json      a cut under way; renamed when it counts (see `journal`)
//!     journal.bad-<t>   one that could not be read or not be rolled back, kept and reported
//!     last-number       the highest number that an undo ever got
//!     branch/           the session as it was before an undo, while a fork is made of it (see `branch`)
//!     adopted.json      the copies made of the session for other projects (see `adopted`)
//!     undone/<n>/       undo.json, turns.json, files/<i>.before, files/<i>.after
//!                       redone.json: redone, and about to be removed
//!                       files/<i>.found-<k>, files/<i>.grown-<k>: what a roll-back found and had not made
//! ```
//! Beside `sessions/`, `daemon` keeps its log and the locks of mount points (`mounts/`).
//! Directories are 0700, files 0600, whatever the umask.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::disk::Tree;
use super::journal::{Record, SessionIdentity, VERSION};
use super::lease::{Flock, PATIENCE};
use super::private::PrivateDir;
use crate::host::Environment;
use crate::session::{Refusal, Result, SessionKey};

/// turnfs's own state directory: journals, backups, locks. 0700; files 0600.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

pub(super) const JOURNAL: &str = "journal.json";
pub(super) const BAD_JOURNAL: &str = "journal.bad-";
/// Where a former state of the session is put together.
pub(super) const BRANCH: &str = "branch";
const LOCK: &str = "lock";
const WHOSE: &str = "session.json";
const LAST_NUMBER: &str = "last-number";

impl StateDir {
    /// `$XDG_STATE_HOME/turnfs`, or `~/.local/state/turnfs`; made when first written to.
    ///
    /// # Errors
    /// When neither is set.
    pub fn of(env: &Environment) -> Result<StateDir> {
        // The XDG rules: a relative path counts as unset.
        let state = env.path("XDG_STATE_HOME").filter(|path| path.is_absolute());
        match state.or_else(|| Some(env.home.as_ref()?.join(".local/state"))) {
            Some(state) => Ok(StateDir::at(&state.join("turnfs"))),
            None => Err(Refusal::NotFound { what: "a place for turnfs's state (HOME is not set)".into() }),
        }
    }

    /// A state directory at this path.
    pub fn at(path: &Path) -> StateDir {
        StateDir { path: path.to_owned() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it; `None` if it was never made.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`] when somebody else may have put things there.
    pub(super) fn open(&self) -> Result<Option<Tree>> {
        let tree = self.look()?;
        tree.as_ref().map(Tree::close_to_others).transpose()?;
        Ok(tree)
    }

    /// As [`StateDir::open`]; changes nothing.
    pub(super) fn look(&self) -> Result<Option<Tree>> {
        Tree::private(&self.path)
    }

    /// The directory itself, for what is no session's; `None` if it was never made.
    ///
    /// # Errors
    /// [`Refusal::NotPrivate`] when somebody else may have put things there.
    pub fn private(&self) -> Result<Option<PrivateDir>> {
        self.look()?.map(PrivateDir::of).transpose()
    }

    /// As [`StateDir::private`], making it first if need be.
    ///
    /// # Errors
    /// As [`StateDir::private`], and what prevents making it.
    pub fn private_or_made(&self) -> Result<PrivateDir> {
        PrivateDir::of(self.open_or_make()?)
    }

    /// Opens it, making it first if need be.
    pub(super) fn open_or_make(&self) -> Result<Tree> {
        if let Some(tree) = self.open()? {
            return Ok(tree);
        }
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .map_err(|e| Refusal::io("cannot make", parent, e))?;
        let above = Tree::open(parent)?;
        let name = Path::new(self.path.file_name().unwrap_or_default());
        above.ensure_dir(name)?;
        above.sync_dir(Path::new(""))?;
        self.open()?.ok_or_else(|| Refusal::NotFound { what: self.path.display().to_string() })
    }
}

/// The name of a session's folder below `sessions/`.
fn folder_name(key: &SessionKey, store: &Tree) -> Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let facts = store.facts()?;
    let hash = xxhash_rust::xxh3::xxh3_128(key.path.as_os_str().as_bytes());
    Ok(PathBuf::from("sessions")
        .join(format!("{}-{:x}-{:x}-{hash:032x}", key.agent, facts.st_dev, facts.st_ino)))
}

/// A session's folder in the state directory.
#[derive(Debug)]
pub(super) struct Folder {
    pub tree: Tree,
}

/// A session's folder with its lock held: one process, one thread at a time.
#[derive(Debug)]
pub(super) struct Locked {
    pub folder: Folder,
    _lock: Flock,
}

impl Folder {
    /// The session's folder; `None` if nothing was ever done to the session.
    pub fn find(state: &StateDir, key: &SessionKey) -> Result<Option<Folder>> {
        let Some(tree) = state.open()? else { return Ok(None) };
        let store = match Tree::open(&key.root) {
            Ok(store) => store,
            Err(Refusal::Io { errno: Errno::NOENT, .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
        let name = folder_name(key, &store)?;
        match tree.stat(&name)? {
            Some(_) => Ok(Some(Folder { tree: tree.sub(&name)? })),
            None => Folder::of_another_device(state, key),
        }
    }

    /// The folder of a session whose store has got other numbers since (a disk found under another device
    /// number, a store put back from a backup): known by the path that it notes.
    fn of_another_device(state: &StateDir, key: &SessionKey) -> Result<Option<Folder>> {
        for folder in Folder::all(state)? {
            let identity = folder.identity()?;
            if identity.is_some_and(|identity| {
                identity.agent == key.agent.name()
                    && *identity.root == *key.root
                    && *identity.path == *key.path
            }) {
                return Ok(Some(folder));
            }
        }
        Ok(None)
    }

    /// All folders there are.
    pub fn all(state: &StateDir) -> Result<Vec<Folder>> {
        match state.open()? {
            Some(tree) => Folder::all_in(&tree),
            None => Ok(Vec::new()),
        }
    }

    /// All folders below a state directory.
    pub fn all_in(tree: &Tree) -> Result<Vec<Folder>> {
        let sessions = Path::new("sessions");
        if tree.stat(sessions)?.is_none() {
            return Ok(Vec::new());
        }
        let sessions = tree.sub(sessions)?;
        let names = sessions.list(Path::new(""))?;
        names.iter().map(|entry| Ok(Folder { tree: sessions.sub(Path::new(&entry.name))? })).collect()
    }

    /// Whether the folder was made for a session of exactly this store, and not for one that stood at the same
    /// path on another file system.
    pub fn is_of(&self, agent: &str, store: &Tree) -> Result<bool> {
        let facts = store.facts()?;
        let name = self.tree.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(name.starts_with(&format!("{agent}-{:x}-{:x}-", facts.st_dev, facts.st_ino)))
    }

    /// Which session this is; `None` if that was never written or cannot be read.
    pub fn identity(&self) -> Result<Option<SessionIdentity>> {
        let bytes = self.tree.read_to_vec(Path::new(WHOSE))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Whether a process works on the session now. Changes nothing.
    pub fn is_in_work(&self) -> Result<bool> {
        let Some(lock) = self.tree.read(Path::new(LOCK))? else { return Ok(false) };
        Ok(!Flock::is_free(&lock)?)
    }

    /// Takes the lock if it is free within `patience`.
    pub fn lock(self, patience: std::time::Duration) -> Result<Option<Locked>> {
        let lock = self.tree.open_or_create(Path::new(LOCK))?;
        Ok(Flock::within(lock, patience)?.map(|lock| Locked { folder: self, _lock: lock }))
    }
}

impl Locked {
    /// Takes the lock of a session, making its folder if need be.
    pub fn take(state: &StateDir, key: &SessionKey, id: &str, store: &Tree) -> Result<Locked> {
        let top = state.open_or_make()?;
        let name = match Folder::find(state, key)? {
            Some(known) => Path::new("sessions").join(known.tree.path().file_name().unwrap_or_default()),
            None => folder_name(key, store)?,
        };
        top.ensure_parents(&name.join(LOCK))?;
        let folder = Folder { tree: top.sub(&name)? };
        let Some(locked) = folder.lock(PATIENCE)? else {
            return Err(Refusal::StoreLocked { what: format!("session {id}") });
        };
        // Prune removes folders; one that went away between open and lock is no lock at all.
        if top.stat(&name)?.map(|now| now.st_ino) != Some(locked.tree().facts()?.st_ino) {
            return Err(Refusal::StoreLocked { what: format!("session {id}") });
        }
        if locked.folder.identity()?.is_none() {
            let identity = SessionIdentity {
                version: VERSION,
                agent: key.agent.name().to_owned(),
                id: id.to_owned(),
                root: (&*key.root).into(),
                path: (&*key.path).into(),
            };
            locked.tree().put(Path::new(WHOSE), &json(&identity)?)?;
        }
        Ok(locked)
    }

    pub fn tree(&self) -> &Tree {
        &self.folder.tree
    }

    /// A number that no undo of this session ever had; durable before it is used.
    pub fn next_number(&self) -> Result<u32> {
        let path = Path::new(LAST_NUMBER);
        let text = self.tree().read_to_vec(path)?.unwrap_or_default();
        let noted = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse::<u32>().ok());
        let next = noted.unwrap_or(0).max(self.folder.highest_number()?) + 1;
        self.tree().put(path, format!("{next}\n").as_bytes())?;
        Ok(next)
    }

    /// Writes the journal, durable. No journal is left when this fails, as far as that can be had.
    pub fn write_journal(&self, record: &Record) -> Result<()> {
        let path = Path::new(JOURNAL);
        let written = self.tree().put(path, &json(record)?);
        if written.is_err() {
            // Nothing was changed yet, so one that stays is rolled back to what already is.
            let _ = self.tree().unlink(path);
        }
        written
    }
}

impl Folder {
    /// The numbers of all directories below `undone/`, rising; also those that do not count (yet, or any more).
    pub fn numbers(&self) -> Result<Vec<u32>> {
        let undone = Path::new("undone");
        if self.tree.stat(undone)?.is_none() {
            return Ok(Vec::new());
        }
        let names = self.tree.list(undone)?;
        let mut numbers: Vec<u32> =
            names.iter().filter_map(|entry| entry.name.to_str()?.parse::<u32>().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn highest_number(&self) -> Result<u32> {
        Ok(self.numbers()?.last().copied().unwrap_or(0))
    }
}

/// The directory of undo `number`, relative to the session's folder.
pub(super) fn undone_dir(number: u32) -> PathBuf {
    Path::new("undone").join(number.to_string())
}

pub(super) fn json(value: &impl serde::Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(|e| Refusal::Internal { what: format!("writing JSON: {e}") })
}
