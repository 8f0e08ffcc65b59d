//! The list of all sessions, and how it is kept true to the disk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;

use super::facts::Forks;
use super::{Catalog, Stamps, names};
use crate::agents::{AgentStore, Discovery};
use crate::session::{AgentKind, Damage, Place, Refusal, Session, SessionKey};
use crate::transcript::FsTrust;

/// A session with its place in the tree.
#[derive(Clone, Debug)]
pub struct Listed {
    pub session: Arc<Session>,
    /// Directory name, unique in its project (or in `.turnfs/unplaced/`).
    pub name: String,
}

impl Listed {
    /// Where a mount of all projects has the session of this project (`None`: unplaced), relative to its root.
    pub fn path_in_mount(&self, project: Option<&Path>) -> PathBuf {
        match project {
            Some(project) => project.strip_prefix("/").unwrap_or(project).join(&self.name),
            None => Path::new(".turnfs/unplaced").join(&self.name),
        }
    }
}

/// All sessions at one moment.
#[derive(Debug, Default)]
pub struct Listing {
    /// By project path as recorded; each project's sessions newest activity first.
    pub projects: BTreeMap<PathBuf, Vec<Listed>>,
    /// Sessions without a place in the tree, newest activity first.
    pub unplaced: Vec<Listed>,
    /// Damaged shared indexes and the like.
    pub problems: Vec<(AgentKind, Damage)>,
    /// Made when it is first asked for.
    pub(super) forks: OnceLock<Forks>,
}

impl Listing {
    /// The sessions of a project (`None`: the unplaced ones), newest activity first.
    pub fn of(&self, project: Option<&Path>) -> &[Listed] {
        match project {
            Some(project) => self.projects.get(project).map_or(&[], Vec::as_slice),
            None => &self.unplaced,
        }
    }

    /// The session whose directory has this name in a project (`None`: in `unplaced/`).
    pub fn named(&self, project: Option<&Path>, name: &str) -> Option<&Listed> {
        self.of(project).iter().find(|listed| listed.name == name)
    }

    /// The session that a name means in a project (`None`: in `unplaced/`), a name that some mount of this user shows
    /// or showed: one that differs in its date or its words only counts if it is the only such one.
    pub fn meant(&self, project: Option<&Path>, name: &str) -> Option<&Listed> {
        let alike = |listed: &'_ &Listed| names::likeness(name, listed);
        let nearest = self.of(project).iter().filter_map(|listed| alike(&listed)).min()?;
        let mut fitting = self.of(project).iter().filter(|listed| alike(listed) == Some(nearest));
        fitting.next().filter(|_| fitting.next().is_none())
    }

    /// The sessions whose name would be the path of a project or of a directory above one, and that have another
    /// one therefore: the session's project, the session, and that path.
    pub fn stepped_aside(&self) -> Vec<(&Path, &Listed, PathBuf)> {
        let aside = self.placed().filter_map(|(project, listed)| {
            let taken = project.join(names::plain_name(listed)?);
            self.leads_to_project(&taken).then_some((project, listed, taken))
        });
        aside.collect()
    }

    fn placed(&self) -> impl Iterator<Item = (&Path, &Listed)> {
        self.projects
            .iter()
            .flat_map(|(project, sessions)| sessions.iter().map(move |listed| (project.as_path(), listed)))
    }

    /// Every session with its project, newest activity first.
    pub fn all(&self) -> Vec<(Option<&Path>, &Listed)> {
        let placed = self.placed().map(|(project, listed)| (Some(project), listed));
        let mut all: Vec<_> = placed.chain(self.unplaced.iter().map(|listed| (None, listed))).collect();
        all.sort_by(|(_, a), (_, b)| a.session.newest_first(&b.session));
        all
    }

    /// Whether `path` is a recorded project or a directory above one.
    pub fn leads_to_project(&self, path: &Path) -> bool {
        leads_to_any(path, &self.projects)
    }
}

/// One look at all stores.
pub(super) struct Snapshot {
    /// What each store's agent found; handed back to it at the next look.
    found: Vec<Arc<Discovery>>,
    /// Each store's shared index files.
    indexes: Vec<Indexes>,
    /// Before the look began.
    at: Timestamp,
    pub by_key: HashMap<SessionKey, Arc<Session>>,
    /// The names of sessions that had a prompt to be named by, at this look or an earlier one.
    names: Arc<HashMap<SessionKey, GivenName>>,
    pub listing: Arc<Listing>,
    /// How much of each store had been heard when this was certainly true of it.
    heard: Vec<AtomicU64>,
}

/// Not a number of events.
const NEVER: u64 = u64::MAX;

impl Snapshot {
    pub fn nothing(stores: &[Arc<dyn AgentStore>]) -> Snapshot {
        Snapshot {
            found: stores.iter().map(|_| Arc::default()).collect(),
            indexes: Vec::new(),
            at: Timestamp::UNIX_EPOCH,
            by_key: HashMap::new(),
            names: Arc::default(),
            listing: Arc::default(),
            heard: stores.iter().map(|_| AtomicU64::new(NEVER)).collect(),
        }
    }

    /// Whether the store was not there.
    pub fn is_absent(&self, store: usize) -> bool {
        self.found.get(store).is_none_or(|found| found.directories.is_empty())
    }

    /// What was found in a store, and how much had been heard of it before.
    pub fn found(&self, store: usize) -> (Arc<Discovery>, u64) {
        (self.found.get(store).cloned().unwrap_or_default(), self.heard_of(store))
    }

    fn heard_of(&self, store: usize) -> u64 {
        self.heard.get(store).map_or(NEVER, |heard| heard.load(Ordering::SeqCst))
    }

    /// Notes that nothing differed when this much had been heard of each store.
    fn is_true_until(&self, heard: &[u64]) {
        for (known, heard) in self.heard.iter().zip(heard) {
            known.store(*heard, Ordering::SeqCst);
        }
    }

    /// Makes the next look a real one.
    pub fn distrust(&self) {
        for heard in &self.heard {
            heard.store(NEVER, Ordering::SeqCst);
        }
    }

    /// The same list with these sessions in it, in their places.
    fn with(&self, sessions: Vec<Arc<Session>>, heard: &[u64]) -> Snapshot {
        let mut by_key = self.by_key.clone();
        let mut projects = self.listing.projects.clone();
        let mut unplaced = self.listing.unplaced.clone();
        for session in sessions {
            let shelf = match &session.place {
                Place::Project(path) => projects.get_mut(path),
                Place::Unplaced { .. } => Some(&mut unplaced),
            };
            let listed = shelf.into_iter().flatten().find(|listed| listed.session.key == session.key);
            if let Some(listed) = listed {
                listed.session = session.clone();
            }
            by_key.insert(session.key.clone(), session);
        }
        for shelf in projects.values_mut().chain([&mut unplaced]) {
            shelf.sort_by(|a, b| a.session.newest_first(&b.session));
        }
        let problems = self.listing.problems.clone();
        Snapshot {
            found: self.found.clone(),
            indexes: self.indexes.clone(),
            at: self.at,
            by_key,
            names: self.names.clone(),
            listing: Arc::new(Listing { projects, unplaced, problems, forks: OnceLock::new() }),
            heard: heard.iter().map(|heard| AtomicU64::new(*heard)).collect(),
        }
    }

    /// Whether the shared index files are proven to be the ones that this look saw.
    pub fn indexes_are_the_same(&self) -> bool {
        self.indexes.iter().all(|indexes| indexes.are_the_same(self.at))
    }

    /// `at`: before the look began, as is `heard`.
    fn of(
        found: Vec<Arc<Discovery>>,
        stores: &[Arc<dyn AgentStore>],
        at: Timestamp,
        previous: &Snapshot,
        heard: &[u64],
    ) -> Snapshot {
        // Stamped after the look: one that vouches at all did not change since before it.
        let indexes = found.iter().zip(stores).map(|(found, store)| Indexes::of(store, &found.indexes));
        let indexes = indexes.collect();
        let mut by_key = HashMap::new();
        let mut projects: BTreeMap<PathBuf, Vec<Arc<Session>>> = BTreeMap::new();
        let mut unplaced = Vec::new();
        for session in found.iter().flat_map(|discovery| &discovery.sessions) {
            let session = with_a_place(session);
            by_key.insert(session.key.clone(), session.clone());
            match &session.place {
                Place::Project(path) => projects.entry(path.clone()).or_default().push(session),
                Place::Unplaced { .. } => unplaced.push(session),
            }
        }
        let named = |project: Option<&Path>, mut sessions: Vec<Arc<Session>>| {
            sessions.sort_by(|a, b| a.newest_first(b));
            let known = |session: &Session| {
                let given = previous.names.get(&session.key);
                let given = given.filter(|given| given.is_settled || !is_settled(session));
                given.map(|given| given.name.clone())
            };
            // A path has one thing at it: where a project lies at a session's place, the session has another name.
            let is_taken =
                |name: &str| project.is_some_and(|project| leads_to_any(&project.join(name), &projects));
            names::named(sessions, known, is_taken)
        };
        let problems = found.iter().zip(stores).flat_map(|(discovery, store)| {
            discovery.problems.iter().map(|problem| (store.kind(), problem.clone()))
        });
        let listing = Listing {
            projects: projects
                .iter()
                .map(|(project, sessions)| (project.clone(), named(Some(project), sessions.clone())))
                .collect(),
            unplaced: named(None, unplaced),
            problems: problems.collect(),
            forks: OnceLock::new(),
        };
        let given = listing.all().into_iter().filter_map(|(_, listed)| {
            let key = &listed.session.key;
            let before = previous.names.get(key);
            let is_settled = is_settled(&listed.session) || before.is_some_and(|given| given.is_settled);
            let lasting = listed.session.first_prompt.is_some() || before.is_some();
            lasting.then(|| (key.clone(), GivenName { name: listed.name.clone(), is_settled }))
        });
        let names = Arc::new(given.collect());
        let heard = heard.iter().map(|heard| AtomicU64::new(*heard)).collect();
        Snapshot { by_key, names, listing: Arc::new(listing), found, at, indexes, heard }
    }
}

/// Whether `path` is one of these projects or a directory above one.
fn leads_to_any<T>(path: &Path, projects: &BTreeMap<PathBuf, T>) -> bool {
    // Paths sort by components, so what lies below `path` follows it directly.
    projects.range(path.to_path_buf()..).next().is_some_and(|(project, _)| project.starts_with(path))
}

/// The name that a session's directory was given.
struct GivenName {
    name: String,
    /// It was made of all that the agent says of the session.
    is_settled: bool,
}

/// Whether all is known that a name is made of. A session that is just being made may be seen before the agent's
/// index knows it: then it has neither a project nor a title.
fn is_settled(session: &Session) -> bool {
    session.project().is_some() || session.title.is_some()
}

/// The shared index files of a store at one moment.
#[derive(Clone)]
struct Indexes {
    root: Arc<Path>,
    ground: FsTrust,
    stamps: Stamps,
}

impl Indexes {
    fn of(store: &Arc<dyn AgentStore>, files: &[PathBuf]) -> Indexes {
        let ground = FsTrust::at(store.root());
        let stamp = |file: &PathBuf| (file.clone(), ground.stamp(&store.root().join(file)).ok().flatten());
        Indexes { root: store.root().clone(), ground, stamps: files.iter().map(stamp).collect() }
    }

    /// Whether they are proven to be the same now, if they were read after `read_at`.
    fn are_the_same(&self, read_at: Timestamp) -> bool {
        self.stamps.iter().all(|(file, before)| {
            let proven = before.is_none_or(|stamp| stamp.vouches(read_at));
            proven && self.ground.stamp(&self.root.join(file)).is_ok_and(|now| now == *before)
        })
    }
}

fn unreadable(store: &Arc<dyn AgentStore>, why: &Refusal) -> Damage {
    let file = store.root().to_string_lossy().into_owned();
    Damage::unread(file, why)
}

/// The session; one of a project whose place in the tree is taken goes to the unplaced ones.
fn with_a_place(session: &Arc<Session>) -> Arc<Session> {
    match &session.place {
        Place::Project(path) if path.starts_with("/.turnfs") => {
            let reason = format!("its project {} would stand where turnfs has its own files", path.display());
            Arc::new(Session { place: Place::Unplaced { reason }, ..(**session).clone() })
        }
        _ => session.clone(),
    }
}

impl Catalog {
    /// Looks at every store now, except at those of which everything is heard and nothing was.
    pub(super) fn look(&self) -> Arc<Snapshot> {
        self.watch.follow_moved_stores();
        let any_covered = (0..self.stores().len()).any(|store| self.watch.covers(store));
        let caught_up = any_covered && self.watch.catch_up();
        let quiet = |seen: &Snapshot, store: usize, heard: &[u64]| {
            caught_up && self.watch.covers(store) && heard.get(store) == Some(&seen.heard_of(store))
        };
        {
            let seen = self.seen.read();
            let heard = self.watch.heard();
            if (0..self.stores().len()).all(|store| quiet(&seen, store, &heard)) && !self.stores().is_empty()
            {
                return seen.clone();
            }
        }
        let _one_at_a_time = self.looking.lock();
        let previous = self.seen.read().clone();
        let heard = self.watch.heard();
        let at = crate::transcript::clock();
        let mut found = Vec::with_capacity(self.stores().len());
        for (number, (store, before)) in self.stores().iter().zip(&previous.found).enumerate() {
            if quiet(&previous, number, &heard) {
                found.push(before.clone());
                continue;
            }
            let now = store.discover().unwrap_or_else(|refusal| {
                // The other stores have nothing to do with it.
                Arc::new(Discovery { problems: vec![unreadable(store, &refusal)], ..Default::default() })
            });
            let nothing = |found: &Discovery| found.directories.is_empty() && found.sessions.is_empty();
            let same = nothing(&now) && nothing(before) && now.problems == before.problems;
            found.push(if same { before.clone() } else { now });
        }
        if !found.is_empty()
            && found.iter().zip(&previous.found).all(|(now, before)| Arc::ptr_eq(now, before))
        {
            previous.is_true_until(&heard);
            return previous;
        }
        let seen = Arc::new(Snapshot::of(found, &self.stores(), at, &previous, &heard));
        self.see(&seen);
        seen
    }

    /// Looks at these sessions only: their files changed, and nothing else. `heard`: how much had been heard
    /// when that was told. `None`: that is not enough.
    pub(super) fn look_at(&self, sessions: &HashSet<SessionKey>, heard: &[u64]) -> Option<Arc<Snapshot>> {
        let _one_at_a_time = self.looking.lock();
        let previous = self.seen.read().clone();
        let mut fresh = Vec::new();
        for key in sessions {
            let known = previous.by_key.get(key)?;
            let now = self.still_there(known)?;
            if !Arc::ptr_eq(&now, known) {
                fresh.push(now);
            }
        }
        // Of an index that is watched it would have been told.
        if !(self.everything_is_heard(&previous) || previous.indexes_are_the_same()) {
            return None;
        }
        let later = |store: usize, heard: &u64| match previous.heard_of(store) {
            NEVER => NEVER,
            before => before.max(*heard),
        };
        let heard: Vec<u64> = heard.iter().enumerate().map(|(store, heard)| later(store, heard)).collect();
        if fresh.is_empty() {
            previous.is_true_until(&heard);
            return Some(previous);
        }
        let seen = Arc::new(previous.with(fresh, &heard));
        self.see(&seen);
        Some(seen)
    }

    /// Whether the last look still tells where sessions belong; cheap.
    pub(super) fn last_look_holds(&self) -> bool {
        self.indexes_hold(&self.seen.read().clone())
    }

    /// Whether the shared index files are still those of this look: nothing was heard of any store, or their
    /// stamps prove it. Those of a file that was written a moment ago prove nothing yet, and to read it again
    /// at each answer would cost much where it is large.
    pub(super) fn indexes_hold(&self, seen: &Snapshot) -> bool {
        let heard = self.watch.heard();
        let nothing_heard = heard
            .iter()
            .enumerate()
            .all(|(store, heard)| seen.is_absent(store) || *heard == seen.heard_of(store));
        (nothing_heard && self.everything_is_heard(seen)) || seen.indexes_are_the_same()
    }

    /// Whether every change of a store that is there will be heard.
    pub(super) fn everything_is_heard(&self, seen: &Snapshot) -> bool {
        (0..self.stores().len()).all(|store| self.watch.covers(store) || seen.is_absent(store))
    }

    /// Whether `path` is a project that has sessions now, or leads to one. Much cheaper than a listing where
    /// it is known already.
    pub fn leads_to_project(&self, path: &Path) -> bool {
        let known = self.last_listing();
        let first = known.projects.range(path.to_path_buf()..).next();
        if let Some((project, sessions)) = first
            && project.starts_with(path)
            && self.last_look_holds()
            && sessions.iter().any(|listed| self.still_there(&listed.session).is_some())
        {
            return true;
        }
        self.listing().leads_to_project(path)
    }

    /// The session, if its files are still the ones of the last look, with its last activity as it is
    /// now. `None`: look again.
    pub(super) fn still_there(&self, session: &Arc<Session>) -> Option<Arc<Session>> {
        session.first_prompt.as_ref()?; // without one, the name may change with the first prompt
        let store = self.store_of(&session.key).ok()?;
        let updated = store.updated(session).ok()??;
        if !store.is_current(session).ok()? {
            return None;
        }
        Some(match updated == session.updated {
            true => session.clone(),
            false => Arc::new(Session { updated, ..(**session).clone() }),
        })
    }
}
