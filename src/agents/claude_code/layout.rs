//! Where Claude Code keeps what, and which sessions a store has.
//!
//! `projects/<slug>/<session>.jsonl`. A slug is made of the project's path and cannot be turned back, and several
//! projects may share one: a session belongs to the `cwd` that its first records name, unless it was moved. Facts:
//! `docs/stores/claude-code.md`, "1. Layout".

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use super::head::{self, Head, Notes};
use crate::agents::{Discovery, is_file_name};
use crate::host::mountinfo::Device;
use crate::session::{AgentKind, Begun, Damage, Place, Refusal, Result, Session, SessionKey};
use crate::transcript::{EntryKind, Stamp, StoreDir};

pub(super) const PROJECTS: &str = "projects";
pub(super) const SUBAGENTS: &str = "subagents";
const TOOL_RESULTS: &str = "tool-results";
pub(super) const TRANSCRIPT: &str = ".jsonl";
/// What the transcripts of sub-agents begin with; older versions keep them among those of sessions.
pub(super) const AGENT: &str = "agent-";
/// Longest slug, UTF-16 units; a longer one is cut off and gets a hash.
const LONGEST_SLUG: usize = 200;

/// The folder of a project under `projects/`; `project` is resolved.
pub(super) fn slug(project: &Path) -> String {
    let path = project.to_string_lossy();
    let is_kept = |unit: u16| u8::try_from(unit).is_ok_and(|byte| byte.is_ascii_alphanumeric());
    let slug: String =
        path.encode_utf16().map(|unit| if is_kept(unit) { char::from(unit as u8) } else { '-' }).collect();
    if slug.len() <= LONGEST_SLUG {
        return slug;
    }
    let add = |hash: i32, unit: u16| hash.wrapping_mul(31).wrapping_add(i32::from(unit));
    let mut rest = path.encode_utf16().fold(0, add).unsigned_abs();
    let mut digits = Vec::new();
    while rest > 0 || digits.is_empty() {
        digits.extend(char::from_digit(rest % 36, 36));
        rest /= 36;
    }
    let hash: String = digits.into_iter().rev().collect();
    format!("{}-{hash}", &slug[..LONGEST_SLUG])
}

/// The transcript of a new session `id`: in `project`, or beside the one that it is made from.
pub(super) fn transcript(source: &Session, project: Option<&Path>, id: &str) -> PathBuf {
    let folder = match project {
        Some(project) => Path::new(PROJECTS).join(slug(project)),
        None => source.key.path.parent().unwrap_or(Path::new(PROJECTS)).to_owned(),
    };
    folder.join(format!("{id}{TRANSCRIPT}"))
}

/// A path as it stands in a JSON string, without quotes.
pub(super) fn json_text(path: &Path) -> String {
    let json = serde_json::Value::from(path.to_string_lossy()).to_string();
    json[1..json.len() - 1].to_owned()
}

/// A look at a store, which the next one goes on from.
#[derive(Default)]
pub(super) struct Look {
    pub found: Arc<Discovery>,
    at: Timestamp,
    /// By transcript.
    known: HashMap<Arc<Path>, Known>,
    /// The folders with transcripts of sub-agents among those of sessions.
    with_agents: HashSet<PathBuf>,
}

impl Look {
    /// Whether sub-agents lie beside this transcript.
    pub fn has_agents_beside(&self, transcript: &Path) -> bool {
        transcript.parent().is_some_and(|folder| self.with_agents.contains(folder))
    }
}

#[derive(Clone)]
struct Known {
    stamp: Stamp,
    head: Head,
    notes: Notes,
    /// Of the directory of what tools put out, and what is in it.
    outputs: (Option<Stamp>, Vec<PathBuf>),
    session: Arc<Session>,
}

/// Finds the sessions of the store at `root`.
pub(super) fn look(root: &Arc<Path>, last: Option<&Look>) -> Result<Look> {
    let at = crate::transcript::clock();
    let Some(store) = StoreDir::open(root)? else { return Ok(Look::default()) };
    let mut finder = Finder {
        root,
        last,
        found: Discovery::default(),
        known: HashMap::new(),
        with_agents: HashSet::new(),
        listed: HashSet::new(),
    };
    finder.found.directories.push(PathBuf::new());
    if let Some(projects) = finder.dir(&store, Path::new(PROJECTS)) {
        let mut entries = projects.entries()?;
        entries.retain(|entry| matches!(entry.kind, EntryKind::Dir | EntryKind::Symlink));
        // What is there itself comes before links that lead to it: a session is listed once.
        entries.sort_by_key(|entry| entry.kind == EntryKind::Symlink);
        for entry in entries {
            let path = Path::new(PROJECTS).join(&entry.name);
            if let Some(folder) = finder.dir(&store, &path)
                && folder.stat(Path::new(""))?.is_none_or(|facts| finder.listed.insert(facts.identity()))
            {
                finder.folder(&folder, &path);
            }
        }
    }
    let Finder { found, known, with_agents, .. } = finder;
    let same = last.filter(|last| is_same(&last.found, &found));
    let found = same.map_or_else(|| Arc::new(found), |last| last.found.clone());
    Ok(Look { found, at, known, with_agents })
}

/// Whether two looks found the very same.
fn is_same(one: &Discovery, other: &Discovery) -> bool {
    let mut sessions = one.sessions.iter().zip(&other.sessions);
    one.sessions.len() == other.sessions.len()
        && sessions.all(|(one, other)| Arc::ptr_eq(one, other))
        && (&one.problems, &one.directories, &one.links, &one.unheard)
            == (&other.problems, &other.directories, &other.links, &other.unheard)
}

struct Finder<'a> {
    root: &'a Arc<Path>,
    last: Option<&'a Look>,
    found: Discovery,
    known: HashMap<Arc<Path>, Known>,
    with_agents: HashSet<PathBuf>,
    /// The folders that were taken up, so that none is under two names.
    listed: HashSet<(Device, u64)>,
}

impl Finder<'_> {
    /// A directory of the store that is watched from now on. One that cannot be read hides nothing else.
    fn dir(&mut self, store: &StoreDir, path: &Path) -> Option<StoreDir> {
        match store.dir(path) {
            Ok(Some(dir)) => {
                if store.is_link(path) {
                    self.found.links.push(path.to_owned());
                }
                self.found.directories.push(path.to_owned());
                Some(dir)
            }
            // A file, or nothing any more.
            Ok(None) | Err(Refusal::Io { errno: rustix::io::Errno::NOTDIR, .. }) => None,
            Err(refusal) => {
                self.unread(path, &refusal);
                None
            }
        }
    }

    fn unread(&mut self, path: &Path, why: &Refusal) {
        self.found.problems.push(Damage::unread(path.to_string_lossy(), why));
    }

    /// The sessions in a folder under `projects/`.
    fn folder(&mut self, folder: &StoreDir, path: &Path) {
        let entries = match folder.entries() {
            Ok(entries) => entries,
            Err(refusal) => return self.unread(path, &refusal),
        };
        let is_dir = |name: &str| {
            let at = entries.binary_search_by(|entry| entry.name.as_os_str().cmp(name.as_ref()));
            at.is_ok_and(|at| entries[at].kind != EntryKind::File)
        };
        for entry in &entries {
            let Some(id) = entry.name.to_str().and_then(|name| name.strip_suffix(TRANSCRIPT)) else {
                continue;
            };
            if entry.kind == EntryKind::Dir || !is_file_name(id) {
                continue;
            }
            if id.starts_with(AGENT) {
                self.with_agents.insert(path.to_owned());
                continue;
            }
            let file: Arc<Path> = path.join(&entry.name).into();
            if entry.kind == EntryKind::Symlink {
                self.found.unheard.push(file.to_path_buf());
            }
            let outputs = if is_dir(id) { self.beside(folder, &path.join(id), Path::new(id)) } else { None };
            self.transcript(folder, Path::new(&entry.name), &file, id, outputs);
        }
    }

    /// What lies in a session's own directory: its sub-agents are watched, what its tools put out is listed.
    fn beside(&mut self, folder: &StoreDir, path: &Path, own: &Path) -> Option<(Stamp, PathBuf)> {
        self.found.directories.push(path.to_owned());
        for name in [SUBAGENTS, TOOL_RESULTS] {
            if let Ok(Some(stamp)) = folder.stat(&own.join(name))
                && stamp.kind == EntryKind::Dir
            {
                self.found.directories.push(path.join(name));
                if name == TOOL_RESULTS {
                    return Some((stamp, own.join(name)));
                }
            }
        }
        None
    }

    fn transcript(
        &mut self,
        folder: &StoreDir,
        name: &Path,
        file: &Arc<Path>,
        id: &str,
        outputs: Option<(Stamp, PathBuf)>,
    ) {
        let stamp = match folder.stat(name) {
            Ok(Some(stamp)) => stamp,
            Ok(None) => return,
            Err(refusal) => return self.unread(file, &refusal),
        };
        let last = self.last.and_then(|last| Some((last, last.known.get(file)?)));
        let same_outputs = |known: &Known| known.outputs.0 == outputs.as_ref().map(|(stamp, _)| *stamp);
        if let Some((last, known)) = last
            && known.stamp == stamp
            && stamp.vouches(last.at)
            && same_outputs(known)
        {
            self.found.sessions.push(known.session.clone());
            self.known.insert(file.clone(), known.clone());
            return;
        }
        // Of a file that only grew the beginning is what it was, if all was found there.
        let known = last.map(|(_, known)| known);
        let has_grown = |known: &&Known| known.head.is_whole() && stamp.may_have_grown_from(&known.stamp);
        let before = known.filter(has_grown);
        let (head, notes) = match before {
            _ if stamp.kind != EntryKind::File => (Head::default(), Notes::default()),
            Some(known) => {
                let tail = head::tail(folder, name, stamp.len).unwrap_or_default();
                (known.head.clone(), tail.or(known.notes.clone()))
            }
            None => head::read(folder, name, stamp.len).unwrap_or_default(),
        };
        let listed = match (&outputs, known) {
            (_, Some(known)) if same_outputs(known) => known.outputs.1.clone(),
            (Some((_, dir)), _) => self.outputs(folder, dir, file),
            (None, _) => Vec::new(),
        };
        let cwd = cwd(folder, name, stamp.len, &head, &notes);
        let session = Arc::new(self.session(file, id, cwd.as_deref(), &stamp, (&head, &notes), &listed));
        // What is as it was is the very same.
        let session =
            known.map(|known| &known.session).filter(|old| **old == session).cloned().unwrap_or(session);
        self.found.sessions.push(session.clone());
        let outputs = (outputs.map(|(stamp, _)| stamp), listed);
        self.known.insert(file.clone(), Known { stamp, head, notes, outputs, session });
    }

    fn outputs(&self, folder: &StoreDir, dir: &Path, transcript: &Path) -> Vec<PathBuf> {
        let Ok(Some(opened)) = folder.dir(dir) else { return Vec::new() };
        let beside = transcript.parent().unwrap_or(Path::new("")).join(dir);
        let entries = opened.entries().unwrap_or_default().into_iter();
        entries.filter(|entry| entry.kind == EntryKind::File).map(|entry| beside.join(entry.name)).collect()
    }

    fn session(
        &self,
        file: &Arc<Path>,
        id: &str,
        cwd: Option<&str>,
        stamp: &Stamp,
        (head, notes): (&Head, &Notes),
        outputs: &[PathBuf],
    ) -> Session {
        let place = match cwd {
            Some(cwd) => Place::recorded(cwd),
            None => Place::Unplaced { reason: "no record of it names a directory".into() },
        };
        Session {
            sidecars: outputs.to_vec(),
            ..session(self.root, file.clone(), id, place, stamp, head, notes)
        }
    }
}

/// The project of a transcript in this folder, as recorded. The client finds a session only in the folder of the project
/// that it is started in, so a session that was begun elsewhere, and of whose last records one agrees with the folder, is there now:
/// it was moved by hand, together with its project.
fn cwd(folder: &StoreDir, name: &Path, len: u64, head: &Head, notes: &Notes) -> Option<String> {
    let is_here = |cwd: &str| folder.path().file_name() == Some(slug(Path::new(cwd)).as_ref());
    if let Some(relocated) = &notes.relocated {
        return Some(relocated.clone());
    }
    let begun = head.cwd.clone()?;
    if is_here(&begun) {
        return Some(begun);
    }
    let last = head::last_cwd(folder, name, len, is_here).ok().flatten();
    Some(last.unwrap_or(begun))
}

/// A session as its head tells it.
pub(super) fn session(
    root: &Arc<Path>,
    file: Arc<Path>,
    id: &str,
    place: Place,
    stamp: &Stamp,
    head: &Head,
    notes: &Notes,
) -> Session {
    let created = head.created.or_else(|| stamp.born()).unwrap_or_else(|| stamp.modified());
    Session {
        files: vec![file.to_path_buf()],
        key: SessionKey { agent: AgentKind::ClaudeCode, root: root.clone(), path: file },
        id: id.to_owned(),
        place,
        name: notes.custom.clone(),
        title: notes.title().map(str::to_owned),
        first_prompt: head.first_prompt.clone(),
        created,
        // The client continues the session whose file is the newest, whatever its records say.
        updated: stamp.modified(),
        model: None,
        history_mode: None,
        forked_from: None,
        begun: Begun { cwd: head.cwd.clone(), branch: head.branch.clone(), commit: None },
        migrated_from: None,
        archived: None,
        sidecars: Vec::new(),
        subagent: None,
    }
}

/// A slash command as a person types it, out of the marks that the client records it with.
pub(super) fn typed(prompt: &str) -> String {
    let between = |mark: &str| {
        let (_, rest) = prompt.split_once(&format!("<{mark}>"))?;
        Some(rest.split_once(&format!("</{mark}>"))?.0.trim())
    };
    let Some(name) = between("command-name").filter(|_| prompt.starts_with("<command-")) else {
        return between("bash-input").map_or_else(|| prompt.to_owned(), |line| format!("!{line}"));
    };
    let mut typed = name.to_owned();
    if let Some(arguments) = between("command-args").filter(|arguments| !arguments.is_empty()) {
        // Writing into a String cannot fail.
        let _ = write!(typed, " {arguments}");
    }
    typed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slug_is_what_the_client_makes_of_a_path() {
        for (path, expected) in [
            ("/a.b_c d", "-a-b-c-d"),
            ("/home/dev/work/twice", "-home-dev-work-twice"),
            ("/w/\u{1f600}x", "-w---x"),
        ] {
            assert_eq!(slug(Path::new(path)), expected, "{path}");
        }
        let long = slug(Path::new(&format!("/{}", "a".repeat(300))));
        assert!(long.starts_with("-aaa") && long.len() > 201 && long.as_bytes()[200] == b'-', "{long}");
    }

    #[test]
    fn a_command_is_shown_as_it_was_typed() {
        let recorded = "<command-message>greet</command-message>\n<command-name>/greet</command-name>\n<command-args>Bob</command-args>";
        assert_eq!(typed(recorded), "/greet Bob");
        assert_eq!(typed("<bash-input>ls</bash-input>"), "!ls");
        assert_eq!(typed("plain <command-name>x</command-name>"), "plain <command-name>x</command-name>");
    }
}
