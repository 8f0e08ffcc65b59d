//! Where the sessions lie: kimi.json names the work directories, `sessions/<md5 of the path>/` holds theirs.
//!
//! Finding them reads kimi.json, each session's state.json and the head of each wire, and reads again only
//! what a stat says may have changed. Folder names are never decoded: a directory belongs to a project only
//! if kimi.json lists a path with that hash. Facts: `docs/stores/kimi-cli.md`, "1. Layout".

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use md5::{Digest, Md5};
use serde::Deserialize;

use super::head::{self, Head};
use super::json::JsonStr;
use super::lenient::{self, Control};
use crate::agents::{Discovery, Memory};
use crate::session::{AgentKind, Damage, DamageClass, Place, Result, Session, SessionKey};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{Entry, EntryKind, Stamp, StoreDir, read_small};

pub(super) const INDEX: &str = "kimi.json";
pub(super) const SESSIONS: &str = "sessions";
pub(super) const WIRE: &str = "wire.jsonl";
pub(super) const CONTEXT: &str = "context.jsonl";
pub(super) const STATE: &str = "state.json";
pub(super) const SUBAGENTS: &str = "subagents";
/// Where a work directory is on this machine.
pub(super) const LOCAL: &str = "local";

/// Longest index and longest state.json that are read, bytes. Real ones have kilobytes.
pub(super) const LONGEST_INDEX: u64 = 64 << 20;
pub(super) const LONGEST_STATE: u64 = 4 << 20;

/// What is remembered from one look to the next.
struct Remembered {
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
    title: Result<Option<String>, String>,
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

    pub fn updated(&self) -> Timestamp {
        let newest = [self.wire, self.context].into_iter().flatten().map(|stat| stat.modified()).max();
        newest.unwrap_or_else(|| self.own.modified())
    }
}

/// Finds the sessions of the store at `root`.
pub(super) fn discover(root: &Path, previous: &Discovery) -> Result<Discovery> {
    let at = crate::transcript::clock();
    let Some(store) = StoreDir::open(root)? else { return Ok(Discovery::default()) };
    let before = previous.memory.get::<Remembered>();
    let mut look = Look {
        root: Arc::from(root),
        before,
        previous: &previous.sessions,
        found: Discovery::default(),
        known: HashMap::new(),
    };
    look.found.directories.push(PathBuf::new());
    let sessions = match store.dir(Path::new(SESSIONS)) {
        Ok(Some(sessions)) => sessions,
        Ok(None) => return Ok(look.found),
        Err(refusal) => {
            look.problem(SESSIONS.into(), refusal.to_string());
            return Ok(look.found);
        }
    };
    let index = store.stat(Path::new(INDEX))?;
    let projects = match before {
        Some(before) if before.index == index && index.is_some_and(|stat| stat.vouches(before.at)) => {
            before.projects.clone()
        }
        _ => Arc::new(Projects::read(&store)),
    };
    if let Err(what) = &projects.listed {
        look.problem(INDEX.into(), what.clone());
    }
    look.found.directories.push(SESSIONS.into());
    for group in sessions.entries()? {
        look.group(&sessions, &group, &projects);
    }
    let Look { mut found, known, .. } = look;
    found.indexes = vec![INDEX.into()];
    found.memory = Memory::new(Remembered { at, index, projects, sessions: known });
    Ok(found)
}

/// One look at a store.
struct Look<'a> {
    root: Arc<Path>,
    before: Option<&'a Remembered>,
    previous: &'a [Arc<Session>],
    found: Discovery,
    known: HashMap<Arc<Path>, (usize, Known)>,
}

impl Look<'_> {
    fn problem(&mut self, file: PathBuf, message: String) {
        let file = file.to_string_lossy().into_owned();
        let class = DamageClass::Sidecar;
        self.found.problems.push(Damage { file, line: 1, byte: 0, class, message });
    }

    /// All sessions of one work directory. What cannot be read is a problem; the others are still found.
    fn group(&mut self, sessions: &StoreDir, entry: &Entry, projects: &Projects) {
        let path = Path::new(SESSIONS).join(&entry.name);
        if entry.name.as_encoded_bytes().starts_with(b".") || entry.kind == EntryKind::File {
            return;
        }
        let Some(name) = self.usable(&path, entry) else { return };
        self.found.directories.push(path.clone());
        let listed = match sessions.dir(Path::new(name)) {
            Ok(Some(group)) => group.entries().map(|entries| (group, entries)),
            Ok(None) => return,
            Err(refusal) => Err(refusal),
        };
        let (group, entries) = match listed {
            Ok(listed) => listed,
            Err(refusal) => return self.problem(path, refusal.to_string()),
        };
        let place = projects.place(name);
        let mut dirs: Vec<&str> = Vec::new();
        for wanted in [EntryKind::Dir, EntryKind::Symlink, EntryKind::Other, EntryKind::File] {
            for entry in entries.iter().filter(|entry| entry.kind == wanted) {
                // A session may be named so; a fork that a crash left half made may not.
                if entry.name.as_encoded_bytes().starts_with(b".turnfs-") {
                    continue;
                }
                let is_flat = matches!(entry.kind, EntryKind::File | EntryKind::Other);
                if is_flat && !entry.name.as_encoded_bytes().ends_with(b".jsonl") {
                    continue;
                }
                let path = path.join(&entry.name);
                let Some(name) = self.usable(&path, entry) else { continue };
                if !is_flat {
                    self.found.directories.push(path.clone());
                }
                let id = if is_flat { name.trim_end_matches(".jsonl") } else { name };
                // The client renames <id>.jsonl into <id>/; a copy left beside it is not read any more.
                if id.is_empty() || (is_flat && dirs.binary_search(&id).is_ok()) {
                    continue;
                }
                match self.session(&group, name, id, &path, &place) {
                    Ok(true) if !is_flat => dirs.push(id),
                    Ok(_) => {}
                    Err(refusal) => self.problem(path, refusal.to_string()),
                }
            }
        }
    }

    /// The name, if it can be one of a session and is really in the store.
    fn usable<'e>(&mut self, path: &Path, entry: &'e Entry) -> Option<&'e str> {
        let Some(name) = entry.name.to_str() else {
            self.problem(path.to_owned(), "the name is not valid UTF-8, so it is left out".into());
            return None;
        };
        match entry.kind {
            EntryKind::Dir | EntryKind::File => Some(name),
            EntryKind::Symlink => {
                self.problem(
                    path.to_owned(),
                    "a symbolic link is not followed, though kimi-cli does so".into(),
                );
                None
            }
            EntryKind::Other => {
                self.problem(path.to_owned(), "it is no regular file, so it is left out".into());
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
        if !stats.has_history() {
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
            if let Err(what) = &known.title {
                self.problem(path.join(STATE), what.clone());
            }
            self.found.sessions.push(session);
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
            self.problem(path.to_path_buf(), refusal.to_string());
            Head::default()
        });
        let title = match (&dir, &stats.state, before) {
            (_, state, Some((at, .., known)))
                if *state == known.files.state && state.is_none_or(|state| state.vouches(at)) =>
            {
                known.title.clone()
            }
            (Some(dir), Some(_), _) => title(dir),
            _ => Ok(None),
        };
        if let Err(what) = &title {
            self.problem(path.join(STATE), what.clone());
        }
        let names = dir.as_ref().map(StoreDir::entries).transpose()?.unwrap_or_default();
        let mut session = Session {
            key: SessionKey { agent: AgentKind::KimiCli, root: self.root.clone(), path: key.clone() },
            id: id.to_owned(),
            place: place.clone(),
            title: title.clone().unwrap_or(None),
            first_prompt: head.first_prompt.clone(),
            created: head.created.or(stats.own.born()).unwrap_or_else(|| stats.own.modified()),
            updated: stats.updated(),
            model: None,
            history_mode: head.protocol.clone(),
            forked_from: None,
            files: Vec::new(),
            sidecars: Vec::new(),
            subagent: None,
        };
        (session.files, session.sidecars) = files(&key, &names);
        self.found.sessions.push(Arc::new(session));
        self.known.insert(key, (number, Known { files: stats, head, title }));
        Ok(true)
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

#[derive(Deserialize)]
struct State<'a> {
    #[serde(borrow, default)]
    custom_title: Option<JsonStr<'a>>,
}

/// The title that the user or the client gave, out of state.json.
fn title(dir: &StoreDir) -> Result<Option<String>, String> {
    let file = Path::new(STATE);
    let bytes = match read_small(dir, file, LONGEST_STATE) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(refusal) => return Err(refusal.to_string()),
    };
    count_bytes(AgentKind::KimiCli, ReadKind::Sidecar, bytes.len() as u64);
    let text = simdutf8::basic::from_utf8(&bytes).map_err(|_| broken_state("not valid UTF-8"))?;
    let title = |text: &str| {
        let state: State<'_> = serde_json::from_str(text)?;
        Ok::<_, serde_json::Error>(state.custom_title.map(|title| title.text().into_owned()))
    };
    let title = title(text).or_else(|error| {
        let plain = lenient::plain(&bytes, Control::Refused).ok_or(error)?;
        title(&plain)
    });
    let title = title.map_err(|error| broken_state(&error.to_string()))?;
    Ok(title.filter(|title| !title.trim().is_empty()))
}

/// What a broken state.json means.
pub(super) fn broken_state(what: &str) -> String {
    format!(
        "{what}; kimi-cli takes its defaults instead; the title is the first prompt, forks are refused until the file is repaired or moved aside"
    )
}

/// The projects that kimi.json lists, by the name of their directory under sessions/.
struct Projects {
    listed: Result<HashMap<String, Place>, String>,
}

#[derive(Deserialize)]
struct Index {
    work_dirs: Vec<WorkDir>,
}

#[derive(Deserialize)]
struct WorkDir {
    path: String,
    #[serde(default = "local")]
    kaos: String,
}

fn local() -> String {
    LOCAL.to_owned()
}

impl Projects {
    fn read(store: &StoreDir) -> Projects {
        let listed = match read_small(store, Path::new(INDEX), LONGEST_INDEX) {
            Ok(Some(bytes)) => {
                count_bytes(AgentKind::KimiCli, ReadKind::Index, bytes.len() as u64);
                serde_json::from_slice::<Index>(&bytes)
                    .or_else(|error| {
                        let plain = lenient::plain(&bytes, Control::Refused).ok_or(error)?;
                        serde_json::from_str(&plain)
                    })
                    .map_err(|error| format!("{error}; kimi-cli does not start, and no project can be told"))
            }
            Ok(None) => Err("it is not there, so no project can be told".into()),
            Err(refusal) => Err(refusal.to_string()),
        };
        Projects { listed: listed.map(|index| index.work_dirs.into_iter().map(WorkDir::place).collect()) }
    }

    /// Where the sessions in this directory under sessions/ belong.
    fn place(&self, directory: &str) -> Place {
        let reason = match &self.listed {
            Ok(listed) => match listed.get(directory) {
                Some(place) => return place.clone(),
                None => "kimi.json lists no work directory for it".to_owned(),
            },
            Err(what) => format!("kimi.json: {what}"),
        };
        Place::Unplaced { reason }
    }
}

/// The name of a local work directory's folder under sessions/.
pub(super) fn folder(path: &str) -> String {
    Md5::digest(path.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl WorkDir {
    /// The directory's name under sessions/, and the place of its sessions.
    fn place(self) -> (String, Place) {
        let hash = folder(&self.path);
        if self.kaos != LOCAL {
            let reason = format!("its work directory {} is on {}, not on this machine", self.path, self.kaos);
            return (format!("{}_{hash}", self.kaos), Place::Unplaced { reason });
        }
        (hash, Place::recorded(&self.path))
    }
}
