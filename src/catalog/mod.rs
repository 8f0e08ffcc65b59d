//! Which projects and sessions exist, and what is known of them: listing, names, lookup, freshness.
//!
//! Everything that shows a session asks here. Nothing is handed out from memory before the stamps of
//! the files that it came from were compared with the disk.
//!
//! `listing` is the list of sessions, `days` the same by day, `names` their directory names, `find` what a user may call one by;
//! `views` are histories in memory, `stamps` says when they may be believed; `watch` hears of changes,
//! `changes` says what they mean; `facts` is what is known of a session besides its turns.

mod changes;
mod days;
mod facts;
mod find;
mod listing;
mod names;
mod stamps;
mod views;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::agents::{self, AgentStore};
use crate::host::Environment;
use crate::host::processes::Running;
use crate::session::{AgentKind, History, Refusal, Result, Session, SessionKey, Turn, Writer};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{self, Evidence, StoreDir};

pub use changes::Changed;
pub use days::OfDay;
pub use facts::Facts;
pub use find::Found;
pub use listing::{Listed, Listing};
pub use views::Once;
pub use watch::Watching;

/// Files relative to a store's root, with their stamps; `None` where nothing is there.
type Stamps = Vec<(PathBuf, Option<transcript::Stamp>)>;

/// How long the answer to "who runs" is good for.
const RUNNING_GOOD_FOR: Duration = Duration::from_secs(1);

/// Which stores to use.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// `--store AGENT=DIR`: replaces that agent's default place; repeatable.
    pub places: Vec<(AgentKind, PathBuf)>,
    /// `--agents`: only these; empty means all.
    pub only: Vec<AgentKind>,
}

/// A session and its history as they are on disk now.
pub struct View {
    /// The store that the session is in.
    pub store: Arc<dyn AgentStore>,
    pub session: Arc<Session>,
    pub history: History,
    /// Who has the session open, where the last turn has no end: the turn's status follows from it. Asked at
    /// most once a second. (`status` and `ls` ask the agent themselves: there the answer counts for every
    /// session.)
    writer: Option<Writer>,
    /// No other view has this number.
    pub version: u64,
    /// For each turn a number that only views have in which it is the very same text.
    turn_versions: Vec<u64>,
    /// When one of its files changed last.
    last_change: Option<Timestamp>,
    /// The transcripts as they were read, where a part of them can be proven alone.
    evidence: Arc<Vec<Evidence>>,
    /// Whether the other files had not changed for so long that their stamps prove it.
    settled: AtomicBool,
}

impl View {
    /// A number that stands for the text of turn `n`: another view has it only where that text is the same.
    pub fn turn_version(&self, n: u32) -> Option<u64> {
        self.turn_versions.get(n as usize).copied()
    }

    /// Whether all that was read certainly is what is on disk, if the stamps are the same.
    pub fn is_proven(&self) -> bool {
        self.settled.load(Ordering::Relaxed) && self.evidence.iter().all(Evidence::proves_all)
    }

    /// Whether a file of the session changed a moment ago, so that it may well change again: what is shown of it
    /// is made at once then, while it can be made.
    pub fn changed_lately(&self) -> bool {
        const A_MOMENT: SignedDuration = SignedDuration::from_secs(2);
        let since = |changed: Timestamp| transcript::clock().duration_since(changed);
        self.last_change.is_some_and(|changed| since(changed) < A_MOMENT)
    }

    /// As [`View::is_proven`], of the records of one turn.
    pub fn proves(&self, turn: &Turn) -> bool {
        let proven = |(file, span): (&Path, _)| match self.evidence_of(file) {
            Some(evidence) => evidence.proves(&span),
            None => self.settled.load(Ordering::Relaxed),
        };
        turn.ranges().all(proven)
    }

    fn evidence_of(&self, file: &Path) -> Option<&Evidence> {
        self.evidence.iter().find(|evidence| evidence.file == file)
    }

    /// Whether other bytes were found on disk than the ones that were read.
    fn is_refuted(&self) -> bool {
        self.evidence.iter().any(Evidence::is_refuted)
    }
}

/// The catalog. Shared by all threads; no lock is held over the reading of another session.
pub struct Catalog {
    stores: RwLock<Arc<[Arc<dyn AgentStore>]>>,
    /// The last look at every store. The write lock is held for the exchange only.
    seen: RwLock<Arc<listing::Snapshot>>,
    /// One look at a time: whoever waits takes the result of a look that began after it asked.
    looking: Mutex<()>,
    views: views::Views,
    watch: watch::Watch,
    /// For one command everything is as it was when it began.
    is_for_one_command: bool,
    /// Who runs, as of the last second.
    running: Mutex<Option<(Instant, Arc<Running>)>>,
    /// What looks found out since the last change was told: whoever looked first showed it to somebody.
    untold: Mutex<Changed>,
}

impl Catalog {
    /// The catalog of the stores in this environment. Nothing is read yet.
    pub fn new(env: &Environment, options: &StoreOptions) -> Catalog {
        let wanted = |kind: &AgentKind| options.only.is_empty() || options.only.contains(kind);
        let mut stores: Vec<Arc<dyn AgentStore>> = Vec::new();
        for kind in AgentKind::ALL.into_iter().filter(wanted) {
            let given = options.places.iter().filter(|(of, _)| *of == kind).map(|(_, place)| place.clone());
            let mut places: Vec<PathBuf> = given.collect();
            if places.is_empty() {
                places.extend((agents::agent(kind).place)(env));
            }
            // A relative place means the directory it was said in; the daemon's own one is `/`.
            let absolute = places.into_iter().filter_map(|place| std::path::absolute(place).ok());
            stores.extend(absolute.map(|root| agents::open(kind, root)));
        }
        Catalog {
            seen: RwLock::new(Arc::new(listing::Snapshot::nothing(&stores))),
            untold: Mutex::default(),
            is_for_one_command: false,
            running: Mutex::default(),
            watch: watch::Watch::new(&stores),
            stores: RwLock::new(stores.into()),
            looking: Mutex::new(()),
            views: views::Views::default(),
        }
    }

    /// As [`Catalog::new`], for a command that does one thing and ends: it looks at the host's processes once.
    pub fn for_one_command(env: &Environment, options: &StoreOptions) -> Catalog {
        Catalog { is_for_one_command: true, ..Catalog::new(env, options) }
    }

    pub fn stores(&self) -> Arc<[Arc<dyn AgentStore>]> {
        self.stores.read().clone()
    }

    /// All sessions, as they are on disk now; costs stats only while nothing changed. What cannot be listed is
    /// among its problems.
    pub fn listing(&self) -> Arc<Listing> {
        self.look().listing.clone()
    }

    /// The last listing, however old; empty before the first look.
    pub fn last_listing(&self) -> Arc<Listing> {
        self.seen.read().listing.clone()
    }

    /// Whether a session of the last listing is still there, and where it was; cheap.
    pub fn is_current(&self, session: &Arc<Session>) -> bool {
        self.still_listed(&self.seen.read().clone(), session).is_some()
    }

    /// A session of the last look, with its last activity as it is now; `None` if the disk says otherwise: then the
    /// next look is a real one, whatever was heard.
    fn still_listed(&self, seen: &listing::Snapshot, session: &Arc<Session>) -> Option<Arc<Session>> {
        let session = if self.indexes_hold(seen) { self.still_there(session) } else { None };
        if session.is_none() {
            seen.distrust();
        }
        session
    }

    /// The session, as it is on disk now.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] when it is gone; and as [`Catalog::listing`].
    pub fn session(&self, key: &SessionKey) -> Result<Arc<Session>> {
        let seen = self.seen.read().clone();
        if let Some(session) = seen.by_key.get(key).and_then(|session| self.still_listed(&seen, session)) {
            return Ok(session);
        }
        // A sub-agent is there if its session is, and then costs no look at all the others.
        let parent = self.parent_of(key).and_then(|parent| self.still_listed(&seen, &parent));
        if let Some(found) = self.subagent_at(parent, key)? {
            return Ok(found);
        }
        if let Some(session) = self.look().by_key.get(key) {
            return Ok(session.clone());
        }
        self.subagent_at(self.parent_of(key), key)?.ok_or_else(|| gone(key))
    }

    fn subagent_at(&self, parent: Option<Arc<Session>>, key: &SessionKey) -> Result<Option<Arc<Session>>> {
        let Some(parent) = parent else { return Ok(None) };
        Ok(self.store_of(&parent.key)?.subagent_at(&parent, &key.path)?.map(Arc::new))
    }

    /// The session with its history, verified to be what is on disk now.
    ///
    /// # Errors
    /// What prevents reading; damage is a state of the view's history.
    pub fn view(&self, key: &SessionKey) -> Result<Arc<View>> {
        self.views.view(&self.store_of(key)?, key, || self.session(key), &|| self.running())
    }

    /// As [`Catalog::view`], of a session of a listing that was made a moment ago: which files it consists of is
    /// asked again only if they changed while they were read.
    ///
    /// # Errors
    /// As [`Catalog::view`].
    pub fn view_listed(&self, session: &Arc<Session>) -> Result<Arc<View>> {
        let listed = std::cell::Cell::new(Some(session.clone()));
        let now = || listed.take().map_or_else(|| self.session(&session.key), Ok);
        self.views.view(&self.store_of(&session.key)?, &session.key, now, &|| self.running())
    }

    /// As [`Catalog::view_listed`], for a look at one of very many sessions: what was not known of it before is only kept
    /// if [`Catalog::keep`] is told to.
    ///
    /// # Errors
    /// As [`Catalog::view`].
    pub fn view_once(&self, session: &Arc<Session>) -> Result<Once> {
        let listed = std::cell::Cell::new(Some(session.clone()));
        let now = || listed.take().map_or_else(|| self.session(&session.key), Ok);
        self.views.view_once(&self.store_of(&session.key)?, &session.key, now, &|| self.running())
    }

    /// Keeps what was read of a session, as if [`Catalog::view`] had read it.
    pub fn keep(&self, once: Once) {
        self.views.keep(once);
    }

    /// Who runs on this host, looked at within the last second (by a command: once), and after the catalog was made:
    /// for questions about many sessions.
    pub fn running(&self) -> Arc<Running> {
        let mut running = self.running.lock();
        match &*running {
            Some((since, running)) if self.is_for_one_command || since.elapsed() < RUNNING_GOOD_FOR => {
                running.clone()
            }
            _ => {
                let fresh = Arc::new(Running::default());
                *running = Some((Instant::now(), fresh.clone()));
                fresh
            }
        }
    }

    /// Reads the record bytes of a turn of this view, and compares them with what the view saw where that is
    /// not proven.
    ///
    /// # Errors
    /// [`Refusal::Changed`] when they are others now, or the file is shorter than the view saw.
    pub fn span(&self, view: &View, turn: &Turn) -> Result<Vec<u8>> {
        let SessionKey { agent, root, .. } = &view.session.key;
        let mut bytes = Vec::new();
        for (file, span) in turn.ranges() {
            let piece = match view.evidence_of(file).filter(|evidence| !evidence.proves(&span)) {
                Some(evidence) => {
                    let (piece, read) = evidence.read(&open(&view.session)?, span)?;
                    count_bytes(*agent, ReadKind::Check, read - piece.len() as u64);
                    piece
                }
                None => transcript::read_range(root, file, span)?,
            };
            count_bytes(*agent, ReadKind::Transcript, piece.len() as u64);
            if bytes.is_empty() {
                bytes = piece;
            } else {
                bytes.extend_from_slice(&piece);
            }
        }
        Ok(bytes)
    }

    /// Compares all that this view saw and that is not proven with what is on disk.
    ///
    /// # Errors
    /// [`Refusal::Changed`] when it is something else now.
    pub fn prove(&self, view: &View) -> Result<()> {
        if view.evidence.iter().all(Evidence::proves_all) {
            return Ok(());
        }
        let store = open(&view.session)?;
        for evidence in view.evidence.iter() {
            let read = evidence.read_the_rest(&store)?;
            count_bytes(view.session.key.agent, ReadKind::Check, read);
        }
        Ok(())
    }

    /// The sub-agent sessions of a session.
    ///
    /// # Errors
    /// What prevents listing them.
    pub fn subagents(&self, session: &Session) -> Result<Vec<Arc<Session>>> {
        let found = self.store_of(&session.key)?.subagents(session)?;
        Ok(found.into_iter().map(Arc::new).collect())
    }

    /// How many sub-agents a session has.
    ///
    /// # Errors
    /// What prevents listing them.
    pub fn subagent_count(&self, session: &Session) -> Result<usize> {
        self.store_of(&session.key)?.subagent_count(session)
    }

    /// The sub-agent session of a session with this name, if there is one.
    ///
    /// # Errors
    /// What prevents looking for it.
    pub fn subagent(&self, session: &Session, name: &str) -> Result<Option<Session>> {
        self.store_of(&session.key)?.subagent(session, name)
    }

    /// The store that this session is in.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] when the catalog has no such store.
    pub fn store_of(&self, key: &SessionKey) -> Result<Arc<dyn AgentStore>> {
        let stores = self.stores();
        stores.iter().find(|store| store.holds(key)).cloned().ok_or_else(|| gone(key))
    }

    /// Forgets what is known of a session's history (after an own write).
    pub fn forget(&self, key: &SessionKey) {
        self.views.forget(key);
    }

    /// Forgets all histories and looks at every store anew: after a panic nothing in memory is believed.
    pub fn forget_all(&self) {
        self.views.forget_all();
        let anew =
            self.stores().iter().map(|store| agents::open(store.kind(), store.root().clone())).collect();
        *self.stores.write() = anew;
        self.seen.read().distrust();
    }

    /// The session that the sub-agent `key` belongs to.
    fn parent_of(&self, key: &SessionKey) -> Option<Arc<Session>> {
        let places = self.store_of(key).ok()?.parents_of(&key.path);
        let seen = self.seen.read();
        let parent = |path: PathBuf| SessionKey { path: path.into(), ..key.clone() };
        places.into_iter().find_map(|path| seen.by_key.get(&parent(path)).cloned())
    }
}

fn open(session: &Session) -> Result<StoreDir> {
    StoreDir::open(&session.key.root)?.ok_or_else(|| gone(&session.key))
}

fn gone(key: &SessionKey) -> Refusal {
    Refusal::NotFound { what: format!("the session in {}", key.absolute().display()) }
}
