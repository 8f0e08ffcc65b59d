//! Where the sessions lie: kimi.json names the work directories, `sessions/<md5 of the path>/` holds theirs.
//!
//! Finding them reads kimi.json, each session's state.json and the head of each wire, and reads again only
//! what a stat says may have changed. Folder names are never decoded: a directory belongs to a project only
//! if kimi.json lists a path with that hash. Facts: `docs/stores/kimi-cli.md`, "1. Layout".

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use jiff::Timestamp;

use super::head::{self, Head};
use super::json::{Control, JsonStr, objects, parse_lenient};
use super::work_dirs::{INDEX, Projects};
use crate::agents::Discovery;
use crate::host::mountinfo::Device;
use crate::session::{AgentKind, Begun, Damage, DamageClass, Place, Refusal, Result, Session, SessionKey};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{Entry, EntryKind, Stamp, StoreDir, read_small};

pub(super) const SESSIONS: &str = "sessions";
pub(super) const WIRE: &str = "wire.jsonl";
pub(super) const CONTEXT: &str = "context.jsonl";
pub(super) const STATE: &str = "state.json";
pub(super) const SUBAGENTS: &str = "subagents";

/// Longest state.json that is read, bytes. Real ones have kilobytes.
pub(super) const LONGEST_STATE: u64 = 4 << 20;

/// A look at a store, which the next one goes on from.
#[derive(Default)]
pub(super) struct Look {
    pub found: Arc<Discovery>,
    /// `None`: there were no sessions.
    seen: Option<Seen>,
}

struct Seen {
    /// When that look began.
    at: Timestamp,
    index: Option<Stamp>,
    projects: Arc<Projects>,
    /// By the session's path; the number is its place in [`Discovery::sessions`].
    sessions: HashMap<Arc<Path>, (usize, Known)>,
}

/// What a session's facts were read from.
#[derive(Clone)]
struct Known {
    files: Stats,
    head: Head,
    /// The title, or why there is none.
    title: Result<Option<String>, Damage>,
    /// Whether a file of it is a link.
    has_links: bool,
}

#[derive(Clone, PartialEq)]
pub(super) struct Stats {
    /// The session's directory, or its file in the flat form.
    pub own: Stamp,
    pub wire: Option<Stamp>,
    context: Option<Stamp>,
    state: Option<Stamp>,
}

impl Stats {
    pub fn of(group: &StoreDir, id: &Path) -> Result<Option<Stats>> {
        let Some(own) = group.stat(id)? else { return Ok(None) };
        if own.kind == EntryKind::File {
            return Ok(Some(Stats { own, wire: None, context: Some(own), state: None }));
        }
        if own.kind != EntryKind::Dir {
            return Ok(None);
        }
        let file = |name: &str| group.stat_to_compare(&id.join(name));
        let state = file(STATE)?.filter(|stat| stat.kind == EntryKind::File);
        Ok(Some(Stats { own, wire: file(WIRE)?, context: file(CONTEXT)?, state }))
    }

    /// Whether the transcript that tells the head can be opened. Links and FIFOs are not; such a session is
    /// listed all the same, and its state says why nothing of it is shown.
    pub fn is_regular(&self) -> bool {
        self.wire.or(self.context).is_some_and(|stat| stat.kind == EntryKind::File)
    }

    pub fn vouch(&self, read_at: Timestamp) -> bool {
        [Some(self.own), self.wire, self.context, self.state]
            .iter()
            .flatten()
            .all(|stat| stat.vouches(read_at))
    }

    pub fn has_history(&self) -> bool {
        self.wire.is_some() || self.context.is_some()
    }

    /// The time by which the client sorts its sessions: that of context.jsonl, whatever the records say.
    pub fn updated(&self) -> Timestamp {
        self.context.or(self.wire).unwrap_or(self.own).modified()
    }
}

/// Finds the sessions of the store at `root`.
pub(super) fn look(root: &Arc<Path>, last: Option<&Look>) -> Result<Look> {
    let at = crate::transcript::clock();
    let Some(store) = StoreDir::open(root)? else { return Ok(Look::default()) };
    let before = last.and_then(|last| last.seen.as_ref());
    let mut look = Finder {
        root: root.clone(),
        before,
        previous: last.map_or(&[], |last| &last.found.sessions),
        found: Discovery::default(),
        known: HashMap::new(),
        listed: HashSet::new(),
        links: Vec::new(),
    };
    look.found.directories.push(PathBuf::new());
    let sessions = match store.dir(Path::new(SESSIONS)) {
        Ok(Some(sessions)) => sessions,
        Ok(None) => return Ok(look.without_sessions()),
        Err(refusal) => {
            look.unread(Path::new(SESSIONS), &refusal);
            return Ok(look.without_sessions());
        }
    };
    if store.is_link(Path::new(SESSIONS)) {
        look.found.links.push(SESSIONS.into());
    }
    if store.is_link(Path::new(INDEX)) {
        look.found.unheard.push(INDEX.into());
    }
    let index = store.stat(Path::new(INDEX))?;
    let projects = match before {
        Some(before) if before.index == index && index.is_some_and(|stat| stat.vouches(before.at)) => {
            before.projects.clone()
        }
        _ => Arc::new(Projects::read(&store)),
    };
    look.found.problems.extend(projects.listed.as_ref().err().cloned());
    look.found.directories.push(SESSIONS.into());
    let groups = match sessions.entries() {
        Ok(groups) => groups,
        Err(refusal) => {
            look.unread(Path::new(SESSIONS), &refusal);
            return Ok(look.without_sessions());
        }
    };
    // What is there itself comes before links that lead to it: a session is listed once.
    let (links, own): (Vec<_>, Vec<_>) = groups.iter().partition(|group| group.kind == EntryKind::Symlink);
    for group in own.into_iter().chain(links) {
        look.group(&sessions, group, &projects);
    }
    for (group, entry, path, place) in std::mem::take(&mut look.links) {
        look.entry(&group, &entry, true, &path, &place);
    }
    let Finder { mut found, known, .. } = look;
    found.indexes = vec![INDEX.into()];
    Ok(Look { found: Arc::new(found), seen: Some(Seen { at, index, projects, sessions: known }) })
}

/// One look at a store.
struct Finder<'a> {
    root: Arc<Path>,
    before: Option<&'a Seen>,
    previous: &'a [Arc<Session>],
    found: Discovery,
    known: HashMap<Arc<Path>, (usize, Known)>,
    /// The directories and files that were taken up as groups and sessions.
    listed: HashSet<(Device, u64)>,
    /// Links in groups, for the end: what they lead to may be listed itself. The entry has the kind of that.
    links: Vec<(Rc<StoreDir>, Entry, PathBuf, Place)>,
}

impl Finder<'_> {
    fn without_sessions(self) -> Look {
        Look { found: Arc::new(self.found), seen: None }
    }

    /// What cannot be read is told, and hides nothing else.
    fn unread(&mut self, path: &Path, why: &Refusal) {
        self.found.problems.push(Damage::unread(path.to_string_lossy(), why));
    }

    fn problem(&mut self, file: PathBuf, message: String) {
        let file = file.to_string_lossy().into_owned();
        let class = DamageClass::Sidecar;
        self.found.problems.push(Damage::of_whole(file, class, message));
    }

    /// All sessions of one work directory. What cannot be read is a problem; the others are still found.
    fn group(&mut self, sessions: &StoreDir, entry: &Entry, projects: &Projects) {
        let path = Path::new(SESSIONS).join(&entry.name);
        if entry.name.as_encoded_bytes().starts_with(b".") {
            return;
        }
        let Some((name, kind)) = self.usable(sessions, &path, entry) else { return };
        if kind == EntryKind::File {
            return;
        }
        let listed = match sessions.dir(Path::new(name)) {
            Ok(Some(group)) => {
                group.stat(Path::new("")).and_then(|facts| Ok((facts, group.entries()?, group)))
            }
            Ok(None) => return,
            Err(refusal) => Err(refusal),
        };
        let (facts, entries, group) = match listed {
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
        let place = projects.place(name);
        let group = Rc::new(group);
        let mut dirs: HashSet<String> = HashSet::new();
        for wanted in [EntryKind::Dir, EntryKind::Symlink, EntryKind::Other, EntryKind::File] {
            for entry in entries.iter().filter(|entry| entry.kind == wanted) {
                // A session may be named so; a fork that a crash left half made may not.
                if entry.name.as_encoded_bytes().starts_with(b".turnfs-") {
                    continue;
                }
                let has_suffix = entry.name.as_encoded_bytes().ends_with(b".jsonl");
                if matches!(entry.kind, EntryKind::File | EntryKind::Other) && !has_suffix {
                    continue;
                }
                let path = path.join(&entry.name);
                let Some((name, kind)) = self.usable(&group, &path, entry) else { continue };
                if kind == EntryKind::File && !has_suffix {
                    continue;
                }
                // The client renames <id>.jsonl into <id>/; a copy left beside it is not read any more.
                if kind == EntryKind::File && dirs.contains(name.trim_end_matches(".jsonl")) {
                    continue;
                }
                if entry.kind == EntryKind::Symlink {
                    dirs.insert(name.to_owned());
                    let entry = Entry { name: entry.name.clone(), kind };
                    self.links.push((group.clone(), entry, path, place.clone()));
                } else if self.entry(&group, entry, false, &path, &place) && kind == EntryKind::Dir {
                    dirs.insert(name.to_owned());
                }
            }
        }
    }

    /// Takes up what may be a session; whether it is one. A link has the kind of what it leads to.
    fn entry(&mut self, group: &StoreDir, entry: &Entry, is_link: bool, path: &Path, place: &Place) -> bool {
        let Some(name) = entry.name.to_str() else { return false };
        let is_flat = entry.kind == EntryKind::File;
        let id = if is_flat { name.trim_end_matches(".jsonl") } else { name };
        match (is_flat, is_link) {
            (true, true) => self.found.unheard.push(path.to_owned()),
            (true, false) => {}
            (false, _) => {
                if is_link {
                    self.found.links.push(path.to_owned());
                }
                self.found.directories.push(path.to_owned());
            }
        }
        if id.is_empty() {
            return false;
        }
        match self.session(group, name, id, path, place) {
            Ok(is_session) => is_session,
            Err(refusal) => {
                self.unread(path, &refusal);
                // A session that cannot be read is still one.
                refusal.is_unreadable() && !is_flat && self.unreadable(group, name, path, place)
            }
        }
    }

    /// Takes up a session of which nothing can be read.
    fn unreadable(&mut self, group: &StoreDir, name: &str, path: &Path, place: &Place) -> bool {
        let Ok(Some(own)) = group.stat(Path::new(name)) else { return false };
        if !self.listed.insert(own.identity()) {
            return false;
        }
        let stats = Stats { own, wire: None, context: None, state: None };
        let mut session = session(&self.root, path.into(), place, name, &stats, &Head::default());
        session.files = vec![path.join(WIRE)];
        self.found.sessions.push(Arc::new(session));
        true
    }

    /// The name, if it can be one of a session and is really in the store, and the kind of what it leads to.
    fn usable<'e>(&mut self, dir: &StoreDir, path: &Path, entry: &'e Entry) -> Option<(&'e str, EntryKind)> {
        let Some(name) = entry.name.to_str() else {
            self.problem(path.to_owned(), "the name is not valid UTF-8, so it is left out".into());
            return None;
        };
        let kind = match entry.kind {
            EntryKind::Symlink => match dir.led_to(Path::new(name)) {
                Ok(stamp) => stamp.kind,
                Err(refusal) => {
                    self.unread(path, &refusal);
                    return None;
                }
            },
            kind => kind,
        };
        match kind {
            EntryKind::Dir | EntryKind::File => Some((name, kind)),
            EntryKind::Symlink | EntryKind::Other => {
                self.problem(path.to_owned(), "it is not a regular file, so it is left out".into());
                None
            }
        }
    }

    /// Takes up a session, if the directory is one.
    fn session(
        &mut self,
        group: &StoreDir,
        name: &str,
        id: &str,
        path: &Path,
        place: &Place,
    ) -> Result<bool> {
        let Some(stats) = Stats::of(group, Path::new(name))? else { return Ok(false) };
        if !stats.has_history() || !self.listed.insert(stats.own.identity()) {
            return Ok(false);
        }
        let before = self.before.and_then(|before| {
            let (key, (number, known)) = before.sessions.get_key_value(path)?;
            Some((before.at, key, *number, known))
        });
        let key: Arc<Path> = before.map_or_else(|| Arc::from(path), |(_, key, ..)| key.clone());
        let number = self.found.sessions.len();
        if let Some((at, _, number_before, known)) = before
            && known.files == stats
            && stats.vouch(at)
            && let Some(session) = self.previous.get(number_before)
        {
            let session = match session.place == *place {
                true => session.clone(),
                false => Arc::new(Session { place: place.clone(), ..(**session).clone() }),
            };
            self.found.problems.extend(known.title.as_ref().err().cloned());
            self.found.sessions.push(session);
            if known.has_links {
                self.found.unheard.push(path.to_owned());
            }
            self.known.insert(key, (number, known.clone()));
            return Ok(true);
        }
        let dir = if stats.own.kind == EntryKind::Dir { group.dir(Path::new(name))? } else { None };
        let head = match &dir {
            _ if !stats.is_regular() => Ok(Head::default()),
            Some(dir) if stats.wire.is_some() => {
                head::read(dir, Path::new(WIRE), before.map(|(.., known)| &known.head))
            }
            Some(dir) => head::of_context(dir, Path::new(CONTEXT)),
            None => head::of_context(group, Path::new(name)),
        };
        // A session that cannot be read is still one.
        let head = head.unwrap_or_else(|refusal| {
            self.unread(path, &refusal);
            Head::default()
        });
        let title = match (&dir, &stats.state, before) {
            (_, state, Some((at, .., known)))
                if *state == known.files.state && state.is_none_or(|state| state.vouches(at)) =>
            {
                known.title.clone()
            }
            (Some(dir), Some(_), _) => title(dir, path),
            _ => Ok(None),
        };
        self.found.problems.extend(title.as_ref().err().cloned());
        let names = dir.as_ref().map(StoreDir::entries_behind_links).transpose()?;
        let (names, has_links) = names.unwrap_or_default();
        if has_links {
            self.found.unheard.push(path.to_owned());
        }
        let mut session = session(&self.root, key.clone(), place, id, &stats, &head);
        session.title = title.as_ref().ok().cloned().flatten();
        (session.files, session.sidecars) = files(&key, &names);
        self.found.sessions.push(Arc::new(session));
        self.known.insert(key, (number, Known { files: stats, head, title, has_links }));
        Ok(true)
    }
}

/// A session as its head and its stats tell it, without title and files.
pub(super) fn session(
    root: &Arc<Path>,
    path: Arc<Path>,
    place: &Place,
    id: &str,
    stats: &Stats,
    head: &Head,
) -> Session {
    Session {
        key: SessionKey { agent: AgentKind::KimiCli, root: root.clone(), path },
        id: id.to_owned(),
        place: place.clone(),
        name: None,
        title: None,
        first_prompt: head.first_prompt.clone(),
        created: head.created.or(stats.own.born()).unwrap_or_else(|| stats.own.modified()),
        updated: stats.updated(),
        model: None,
        archived: None,
        history_mode: head.protocol.clone(),
        forked_from: None,
        begun: Begun::default(),
        migrated_from: None,
        files: Vec::new(),
        sidecars: Vec::new(),
        subagent: None,
    }
}

/// The history's files and the others of a session's directory, relative to the root: the wire, then the
/// context files oldest first. Without names: the flat form, one file.
pub(super) fn files(session: &Path, names: &[Entry]) -> (Vec<PathBuf>, Vec<PathBuf>) {
    if names.is_empty() {
        return (vec![session.to_owned()], Vec::new());
    }
    let (mut history, mut others) = (Vec::new(), Vec::new());
    for entry in names {
        let Some(name) = entry.name.to_str() else { continue };
        match order(name) {
            // Whatever stands there: a link that takes a transcript's place is a change of the session.
            Some(order) => history.push((order, session.join(name))),
            None if name.starts_with('.') || entry.kind != EntryKind::File => {}
            None => others.push(session.join(name)),
        }
    }
    history.sort();
    (history.into_iter().map(|(_, path)| path).collect(), others)
}

/// As [`Stats::updated`], out of the times of a session's files.
pub(super) fn active(files: &[PathBuf], modified: &[Timestamp]) -> Option<Timestamp> {
    let of = |name: &str| {
        let at = files.iter().position(|file| file.file_name().is_some_and(|own| own == name))?;
        modified.get(at).copied()
    };
    // A flat session has one file, under its id.
    of(CONTEXT).or_else(|| of(WIRE)).or_else(|| modified.first().copied())
}

/// The place of a history file among the others; `None` for any other file.
pub(super) fn order(name: &str) -> Option<(u8, u64)> {
    match name {
        WIRE => Some((0, 0)),
        CONTEXT => Some((2, 0)),
        _ => {
            let number = name.strip_prefix("context_")?.strip_suffix(".jsonl")?;
            let written_so = number.parse::<u64>().ok().filter(|n| n.to_string() == number && *n > 0)?;
            Some((1, written_so))
        }
    }
}

/// N of `context_sub_N.jsonl`, a sub-agent's context as clients before 1.25 wrote it.
pub(super) fn subagent_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("context_sub_")?.strip_suffix(".jsonl")?;
    number.parse::<u64>().ok().filter(|n| n.to_string() == number)
}

objects! {
    struct State<'a> {
        custom_title: Option<JsonStr<'a>> = "custom_title",
    }
}

/// The title that the user or the client gave, out of state.json.
fn title(dir: &StoreDir, path: &Path) -> Result<Option<String>, Damage> {
    let file = Path::new(STATE);
    let bytes = match read_small(dir, file, LONGEST_STATE) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(refusal) => return Err(Damage::unread(path.join(STATE).to_string_lossy(), &refusal)),
    };
    let broken = |what: &str| {
        Damage::of_whole(path.join(STATE).to_string_lossy(), DamageClass::Sidecar, broken_state(what))
    };
    count_bytes(AgentKind::KimiCli, ReadKind::Sidecar, bytes.len() as u64);
    let text = simdutf8::basic::from_utf8(&bytes).map_err(|_| broken("not valid UTF-8"))?;
    let title = |bytes: &[u8]| {
        let state: State<'_> = serde_json::from_slice(bytes)?;
        Ok::<_, serde_json::Error>(state.custom_title.flatten().map(|title| title.text().into_owned()))
    };
    let title = parse_lenient(text.as_bytes(), Control::Refused, title);
    let title = title.map_err(|error| broken(&error.to_string()))?;
    Ok(title.filter(|title| !title.trim().is_empty()))
}

/// What a broken state.json means.
pub(super) fn broken_state(what: &str) -> String {
    format!(
        "{what}; kimi-cli takes its defaults instead; the title is the first prompt, forks are refused until the file is repaired or moved aside"
    )
}
