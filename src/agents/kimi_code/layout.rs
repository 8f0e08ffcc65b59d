//! Where the sessions lie: `sessions/<workspace>/<session>/`, each with a state.json and its wire.
//!
//! Finding them reads each session's state.json and both ends of its wire, and reads again only what a stat says may have
//! changed. The names of workspaces are never decoded. Facts: `docs/stores/kimi-code.md`, "1. Layout".

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use jiff::Timestamp;

use super::ends::{self, Head};
use super::messages::Whose;
use super::state::{self, STATE, State};
use super::wire::WIRE;
use crate::agents::Discovery;
use crate::host::mountinfo::Device;
use crate::session::{AgentKind, Begun, Damage, DamageClass, Place, Refusal, Result, Session, SessionKey};
use crate::transcript::{Entry, EntryKind, Stamp, StoreDir};

pub(super) const SESSIONS: &str = "sessions";
/// Where the wires of a session lie.
pub(super) const AGENTS: &str = "agents";
/// The agent that the user talks to.
pub(super) const MAIN: &str = "main";

/// A look at a store, which the next one goes on from.
#[derive(Default)]
pub(super) struct Look {
    pub found: Arc<Discovery>,
    /// When that look began.
    at: Timestamp,
    /// By the session's path; the number is its place in [`Discovery::sessions`].
    sessions: HashMap<Arc<Path>, (usize, Known)>,
}

/// What a session's facts were read from.
#[derive(Clone)]
struct Known {
    files: Stats,
    head: Head,
    state: Result<State, Damage>,
    /// Directories and links that the session depends on.
    places: Places,
}

/// What of a session is watched, relative to the root.
#[derive(Clone, Debug, Default)]
struct Places {
    directories: Vec<PathBuf>,
    links: Vec<PathBuf>,
    /// Whether a file of it is a link.
    unheard: bool,
}

#[derive(Clone, PartialEq)]
pub(super) struct Stats {
    /// The session's directory, or the agent's.
    pub own: Stamp,
    pub wire: Option<Stamp>,
    pub state: Option<Stamp>,
}

impl Stats {
    fn vouch(&self, read_at: Timestamp) -> bool {
        [Some(self.own), self.wire, self.state].iter().flatten().all(|stat| stat.vouches(read_at))
    }
}

/// A session's wire, relative to its directory.
pub(super) fn main_wire() -> PathBuf {
    [AGENTS, MAIN, WIRE].iter().collect()
}

impl Look {
    /// When a session was last worked on, if its wire is certainly the one of this look.
    pub fn updated(&self, session: &Session, wire: Stamp) -> Option<Timestamp> {
        let (number, known) = self.sessions.get(&session.key.path)?;
        let same = known.files.wire == Some(wire) && wire.vouches(self.at);
        same.then(|| self.found.sessions.get(*number).map(|session| session.updated))?
    }
}

/// Finds the sessions of the store at `root`.
pub(super) fn look(root: &Arc<Path>, last: Option<&Look>) -> Result<Look> {
    let at = crate::transcript::clock();
    let Some(store) = StoreDir::open(root)? else { return Ok(Look::default()) };
    let mut look = Finder {
        root: root.clone(),
        last,
        found: Discovery::default(),
        known: HashMap::new(),
        listed: HashSet::new(),
        links: Vec::new(),
    };
    look.found.directories.push(PathBuf::new());
    match store.dir(Path::new(SESSIONS)) {
        Ok(Some(sessions)) => {
            if store.is_link(Path::new(SESSIONS)) {
                look.found.links.push(SESSIONS.into());
            }
            look.found.directories.push(SESSIONS.into());
            look.all(&sessions);
        }
        Ok(None) => {}
        Err(refusal) => look.unread(Path::new(SESSIONS), &refusal),
    }
    let Finder { found, known, .. } = look;
    Ok(Look { found: Arc::new(found), at, sessions: known })
}

/// One look at a store.
struct Finder<'a> {
    root: Arc<Path>,
    last: Option<&'a Look>,
    found: Discovery,
    known: HashMap<Arc<Path>, (usize, Known)>,
    /// The directories that were taken up as workspaces and sessions.
    listed: HashSet<(Device, u64)>,
    /// Links to sessions, for the end: what they lead to may be listed itself.
    links: Vec<(Rc<StoreDir>, String, PathBuf)>,
}

impl Finder<'_> {
    /// What cannot be read is told, and hides nothing else.
    fn unread(&mut self, path: &Path, why: &Refusal) {
        self.found.problems.push(Damage::unread(path.to_string_lossy(), why));
    }

    fn all(&mut self, sessions: &StoreDir) {
        let workspaces = match sessions.entries() {
            Ok(workspaces) => workspaces,
            Err(refusal) => return self.unread(Path::new(SESSIONS), &refusal),
        };
        // What is there itself comes before links that lead to it: a session is listed once.
        let (links, own): (Vec<_>, Vec<_>) =
            workspaces.iter().partition(|entry| entry.kind == EntryKind::Symlink);
        for workspace in own.into_iter().chain(links) {
            self.workspace(sessions, workspace);
        }
        for (workspace, name, path) in std::mem::take(&mut self.links) {
            self.found.links.push(path.clone());
            self.entry(&workspace, &name, &path);
        }
    }

    fn workspace(&mut self, sessions: &StoreDir, entry: &Entry) {
        let path = Path::new(SESSIONS).join(&entry.name);
        let Some(name) = self.directory(sessions, &path, entry) else { return };
        let listed = match sessions.dir(Path::new(name)) {
            Ok(Some(dir)) => dir.stat(Path::new("")).and_then(|facts| Ok((facts, dir.entries()?, dir))),
            Ok(None) => return,
            Err(refusal) => Err(refusal),
        };
        let (facts, entries, dir) = match listed {
            Ok(listed) => listed,
            Err(refusal) => return self.unread(&path, &refusal),
        };
        if facts.is_some_and(|facts| !self.listed.insert(facts.identity())) {
            return;
        }
        if entry.kind == EntryKind::Symlink {
            self.found.links.push(path.clone());
        }
        self.found.directories.push(path.clone());
        let dir = Rc::new(dir);
        for entry in &entries {
            let path = path.join(&entry.name);
            let Some(name) = self.directory(&dir, &path, entry) else { continue };
            match entry.kind {
                EntryKind::Symlink => self.links.push((dir.clone(), name.to_owned(), path)),
                _ => self.entry(&dir, name, &path),
            }
        }
    }

    /// The name, if it can be one of a workspace or session: a directory that is really in the store.
    fn directory<'e>(&mut self, dir: &StoreDir, path: &Path, entry: &'e Entry) -> Option<&'e str> {
        // The client's own marks, and forks that a crash left half made.
        if entry.name.as_encoded_bytes().starts_with(b".") {
            return None;
        }
        let kind = match entry.kind {
            EntryKind::Symlink => match dir.led_to(Path::new(&entry.name)) {
                Ok(stamp) => stamp.kind,
                Err(refusal) => {
                    self.unread(path, &refusal);
                    return None;
                }
            },
            kind => kind,
        };
        if kind != EntryKind::Dir {
            return None;
        }
        let name = entry.name.to_str();
        if name.is_none() {
            let message = "the name is not valid UTF-8, so it is left out";
            let file = path.to_string_lossy().into_owned();
            self.found.problems.push(Damage::of_whole(file, DamageClass::Sidecar, message));
        }
        name
    }

    /// Takes up what may be a session.
    fn entry(&mut self, workspace: &StoreDir, name: &str, path: &Path) {
        if let Err(refusal) = self.session(workspace, name, path) {
            self.unread(path, &refusal);
            // A session that cannot be read is still one.
            if refusal.is_unreadable() {
                self.unreadable(workspace, name, path);
            }
        }
    }

    fn unreadable(&mut self, workspace: &StoreDir, name: &str, path: &Path) {
        let Ok(Some(own)) = workspace.stat(Path::new(name)) else { return };
        if self.listed.insert(own.identity()) {
            self.found.directories.push(path.to_owned());
            let stats = Stats { own, wire: None, state: None };
            let broken =
                Damage::of_whole(path.to_string_lossy(), DamageClass::Unreadable, "it cannot be read");
            let session =
                session(&self.root, path.into(), name, &stats, &Head::default(), &Err(broken), None);
            self.found.sessions.push(Arc::new(session));
        }
    }

    fn session(&mut self, workspace: &StoreDir, name: &str, path: &Path) -> Result<()> {
        let base = Path::new(name);
        let Some(own) = workspace.stat(base)? else { return Ok(()) };
        let stats = Stats {
            own,
            wire: workspace.stat_to_compare(&base.join(main_wire()))?,
            state: workspace.stat_to_compare(&base.join(STATE))?,
        };
        if (stats.wire.is_none() && stats.state.is_none()) || self.listed.contains(&own.identity()) {
            return Ok(());
        }
        let before = self.last.and_then(|last| {
            let (key, (number, known)) = last.sessions.get_key_value(path)?;
            Some((last, key, *number, known))
        });
        let number = self.found.sessions.len();
        if let Some((last, key, number_before, known)) = before
            && known.files == stats
            && stats.vouch(last.at)
            && let Some(session) = last.found.sessions.get(number_before)
        {
            self.take_up(path, session.clone(), key.clone(), number, known.clone());
            return Ok(());
        }
        let Some(dir) = workspace.dir(base)? else { return Ok(()) };
        let wire = main_wire();
        let is_regular = stats.wire.is_some_and(|stat| stat.kind == EntryKind::File);
        let read = |what: Result<_>| {
            what.map_err(|refusal| Damage::unread(path.join(&wire).to_string_lossy(), &refusal))
        };
        let mut head = Head::default();
        let mut last_time = None;
        if is_regular {
            let known = before.map(|(.., known)| &known.head);
            match read(
                ends::head(&dir, &wire, Whose::Session, known)
                    .and_then(|head| Ok((head, ends::last_time(&dir, &wire)?))),
            ) {
                Ok((found, last)) => (head, last_time) = (found, last),
                Err(damage) => self.found.problems.push(damage),
            }
        }
        let state = match before {
            Some((last, .., known))
                if known.files.state == stats.state
                    && stats.state.is_some_and(|stat| stat.vouches(last.at)) =>
            {
                known.state.clone()
            }
            _ => state::read(&dir, &path.join(STATE), name),
        };
        let key: Arc<Path> = before.map_or_else(|| Arc::from(path), |(_, key, ..)| key.clone());
        let session = session(&self.root, key.clone(), name, &stats, &head, &state, last_time);
        let known = Known { places: places(&dir, path, stats.wire.is_some()), files: stats, head, state };
        self.take_up(path, Arc::new(session), key, number, known);
        Ok(())
    }

    fn take_up(&mut self, path: &Path, session: Arc<Session>, key: Arc<Path>, number: usize, known: Known) {
        self.listed.insert(known.files.own.identity());
        self.found.directories.push(path.to_owned());
        self.found.directories.extend(known.places.directories.iter().cloned());
        self.found.links.extend(known.places.links.iter().cloned());
        if known.places.unheard {
            self.found.unheard.push(path.to_owned());
        }
        self.found.problems.extend(known.state.as_ref().err().cloned());
        self.found.sessions.push(session);
        self.known.insert(key, (number, known));
    }
}

/// What of a session that has a wire is watched besides its directory. A sub-agent that begins is told by a record of the
/// wire, so the directory above is not.
fn places(dir: &StoreDir, path: &Path, has_wire: bool) -> Places {
    let mut places = Places::default();
    let is_linked = |file: &Path| !matches!(dir.behind_links(file), Ok(None));
    let main = Path::new(AGENTS).join(MAIN);
    if has_wire {
        places.directories.push(path.join(&main));
        places.unheard = is_linked(&main_wire());
    }
    if places.unheard {
        let links = [PathBuf::from(AGENTS), main].into_iter().filter(|below| dir.is_link(below));
        places.links = links.map(|below| path.join(below)).collect();
    }
    places.unheard |= is_linked(Path::new(STATE));
    places
}

/// A session as its state, its stats and the ends of its wire tell it.
fn session(
    root: &Arc<Path>,
    path: Arc<Path>,
    name: &str,
    stats: &Stats,
    head: &Head,
    state: &Result<State, Damage>,
    last_time: Option<Timestamp>,
) -> Session {
    let place = match state {
        Ok(state) => Place::recorded(&state.project),
        Err(damage) => {
            Place::Unplaced { reason: format!("its project stands in {}: {}", damage.file, damage.message) }
        }
    };
    let state = state.as_ref().ok();
    let made = || stats.own.born().unwrap_or_else(|| stats.own.modified());
    let created = state.and_then(|state| state.created).or(head.created).unwrap_or_else(made);
    let (name_given, title) = match state.and_then(|state| state.title.clone()) {
        Some((title, true)) => (Some(title), None),
        Some((title, false)) => (None, Some(title)),
        None => (None, None),
    };
    Session {
        id: name.to_owned(),
        place,
        name: name_given,
        title,
        first_prompt: head.first_prompt.clone(),
        created,
        updated: last_time.unwrap_or_else(|| stats.wire.unwrap_or(stats.own).modified()),
        model: None,
        archived: Some(state.is_some_and(|state| state.archived)),
        history_mode: head.protocol.clone(),
        begun: state.map_or_else(Begun::default, |state| Begun::at(&state.project)),
        forked_from: state.and_then(|state| state.forked_from.clone()),
        migrated_from: state.and_then(|state| state.migrated_from.clone()),
        files: vec![path.join(main_wire())],
        sidecars: stats.state.iter().map(|_| path.join(STATE)).collect(),
        subagent: None,
        key: SessionKey { agent: AgentKind::KimiCode, root: root.clone(), path },
    }
}
