//! What a cut came to, in a form in which two runs of the same cut are equal: files and rows, with the ids
//! and times that each run makes anew taken out, and the turns that the agent reads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use turnfs::agents::open;
use turnfs::session::AgentKind;

use super::rows::{self, Row};
use super::store::{Snapshot, Store};

/// A session as its agent reads it: where it is, and the turns' prompts with the state of each.
type Read = (PathBuf, String, Vec<(Option<String>, String)>);

#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    files: BTreeMap<PathBuf, (u32, Vec<u8>)>,
    rows: Vec<Row>,
    sessions: Vec<Read>,
}

/// What the untouched sample holds; whatever else there is was made by a cut.
pub struct Known {
    names: BTreeSet<String>,
    lines: BTreeSet<Vec<u8>>,
    values: BTreeSet<String>,
}

impl Known {
    pub fn of(untouched: &Store) -> Known {
        let snapshot = untouched.snapshot();
        let root = untouched.root().display().to_string();
        let values = rows::all(&untouched.root()).into_iter().flat_map(|(_, columns)| columns);
        Known {
            names: snapshot.iter().flat_map(|(path, ..)| ids(&path.to_string_lossy())).collect(),
            lines: snapshot.iter().flat_map(|(_, _, bytes)| lines(bytes)).map(<[u8]>::to_vec).collect(),
            values: values.map(|(_, value)| value.replace(&root, "ROOT")).collect(),
        }
    }
}

impl Outcome {
    pub fn of(store: &Store, known: &Known) -> Outcome {
        let root = store.root().display().to_string();
        let snapshot = store.snapshot();
        let new: BTreeSet<String> = snapshot
            .iter()
            .flat_map(|(path, ..)| ids(&path.to_string_lossy()))
            .filter(|id| !known.names.contains(id))
            .collect();
        let renamed = |text: &str| {
            let text = new.iter().fold(text.to_owned(), |text, id| text.replace(id, "NEW"));
            text.replace(&root, "ROOT")
        };
        Outcome {
            files: files(store.kind, &snapshot, known, &renamed),
            rows: rows_of(store, known, &renamed),
            sessions: sessions(store, &renamed),
        }
    }

    /// Where two differ, for a failing test.
    pub fn difference(&self, other: &Outcome) -> String {
        let mut told = Vec::new();
        for path in self.files.keys().chain(other.files.keys()).collect::<BTreeSet<_>>() {
            if self.files.get(path) != other.files.get(path) {
                let len = |files: &Outcome| files.files.get(path).map(|(mode, bytes)| (*mode, bytes.len()));
                told.push(format!("{}: {:?}, {:?}", path.display(), len(self), len(other)));
            }
        }
        told.extend(self.rows.iter().filter(|row| !other.rows.contains(row)).map(|row| format!("- {row:?}")));
        told.extend(other.rows.iter().filter(|row| !self.rows.contains(row)).map(|row| format!("+ {row:?}")));
        if self.sessions != other.sessions {
            told.push(format!("{:?}\n{:?}", self.sessions, other.sessions));
        }
        told.join("\n")
    }
}

fn files(
    kind: AgentKind,
    snapshot: &Snapshot,
    known: &Known,
    renamed: &dyn Fn(&str) -> String,
) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let counts = |path: &Path| {
        let name = path.to_string_lossy();
        // Databases count by their rows; the agents' lock files come and go.
        !name.contains(".sqlite") && !name.ends_with(".lock") && !name.starts_with("thread-writer-locks")
    };
    let mut files = BTreeMap::new();
    for (path, mode, bytes) in snapshot.iter().filter(|(path, ..)| counts(path)) {
        let bytes = match kind {
            AgentKind::KimiCli => bytes.clone(),
            _ => lines(bytes).flat_map(|line| comparable(line, known, renamed)).collect(),
        };
        let name = renamed(&path.to_string_lossy());
        // A Codex file that a cut made is named by its moment.
        let name = match name.split_once("rollout-") {
            Some((_, rest)) if rest.ends_with("NEW.jsonl") => "sessions/rollout-NEW.jsonl".to_owned(),
            _ => name,
        };
        files.insert(PathBuf::from(name), (*mode, bytes));
    }
    // The directories of the day.
    files.retain(|path, (mode, _)| {
        kind != AgentKind::Codex || *mode & 0o170_000 != 0o040_000 || path.as_os_str().is_empty()
    });
    files
}

/// A line without the times and ids that a cut made.
fn comparable(line: &[u8], known: &Known, renamed: &dyn Fn(&str) -> String) -> Vec<u8> {
    if known.lines.contains(line) {
        return line.to_vec();
    }
    let Ok(text) = std::str::from_utf8(line) else { return line.to_vec() };
    let text = renamed(text);
    // OpenMax's index, a line for each field.
    if text.contains("_at\":") {
        return b"  TIME\n".to_vec();
    }
    let Ok(mut value) = serde_json::from_str::<serde_json::Value>(&text) else { return text.into_bytes() };
    for at in ["/timestamp", "/payload/timestamp", "/time", "/createdAt", "/updatedAt"] {
        if let Some(time) = value.pointer_mut(at) {
            *time = "TIME".into();
        }
    }
    // Kimi Code notes where its agents lie; of a store behind links that is another path than the one looked at.
    for agent in value.get_mut("agents").and_then(|agents| agents.as_object_mut()).into_iter().flatten() {
        if let Some(home) = agent.1.get_mut("homedir")
            && let Some((_, place)) = home.as_str().and_then(|home| home.rsplit_once("/store/"))
        {
            *home = place.into();
        }
    }
    format!("{value}\n").into_bytes()
}

fn rows_of(store: &Store, known: &Known, renamed: &dyn Fn(&str) -> String) -> Vec<Row> {
    let root = store.root().display().to_string();
    let value = |name: String, value: String| {
        let value = value.replace(&root, "ROOT");
        if known.values.contains(&value) {
            return (name, value);
        }
        let is_time = name.ends_with("_at") || name.ends_with("_at_ms");
        let value = match (is_time, name == "rollout_path") {
            (true, _) => "TIME".to_owned(),
            (_, true) => "PATH".to_owned() + if value.contains("/sessions/") { " in sessions" } else { "" },
            _ => renamed(&value),
        };
        (name, value)
    };
    let rows = rows::all(&store.root());
    let mut rows: Vec<Row> = rows
        .into_iter()
        .map(|(table, columns)| (table, columns.into_iter().map(|(name, text)| value(name, text)).collect()))
        .collect();
    rows.sort();
    rows
}

fn sessions(store: &Store, renamed: &dyn Fn(&str) -> String) -> Vec<Read> {
    let agent = open(store.kind, &*store.root());
    let found = agent.discover().unwrap();
    let mut sessions: Vec<Read> = found
        .sessions
        .iter()
        .map(|session| {
            let history = agent.load(session).unwrap();
            let turns = history.turns.iter().map(|turn| (turn.prompt.clone(), turn.status.name().to_owned()));
            let path = renamed(&session.key.path.to_string_lossy());
            let path =
                if path.contains("rollout-") && path.contains("NEW") { "NEW".to_owned() } else { path };
            (PathBuf::from(path), history.state.name().to_owned(), turns.collect())
        })
        .collect();
    sessions.sort();
    sessions
}

/// The ids (UUIDs) in a name.
fn ids(name: &str) -> Vec<String> {
    let is_id = |text: &str| {
        text.char_indices().all(|(at, c)| match at {
            8 | 13 | 18 | 23 => c == '-',
            _ => c.is_ascii_hexdigit(),
        })
    };
    let mut ids = Vec::new();
    let mut at = 0;
    while let Some(text) = name.get(at..at + 36) {
        if is_id(text) {
            ids.push(text.to_owned());
            at += 36;
        } else {
            at += 1;
        }
    }
    ids
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n')
}
