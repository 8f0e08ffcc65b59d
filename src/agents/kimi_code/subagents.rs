//! The sub-agents of a session: wires beside the main one. Facts: `docs/stores/kimi-code.md`, "1. Layout".

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::ends;
use super::layout::{AGENTS, MAIN};
use super::messages::Whose;
use super::state::{LONGEST, STATE};
use super::values::string;
use super::wire::WIRE;
use crate::session::{AgentKind, Result, Session, SessionKey};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{EntryKind, Stamp, StoreDir, read_small};

/// How many sub-agents are remembered.
const MOST: usize = 4096;

/// The sub-agents of a store, by absolute path, with what their wires and the time were when they were read: everybody who
/// asks for a parent's sub-agents asks for all of them, again and again.
#[derive(Default)]
pub(super) struct Subagents(Mutex<HashMap<PathBuf, (Stamp, Timestamp, Session)>>);

impl Subagents {
    /// The sub-agent sessions below a session's directory.
    pub fn of(&self, parent: &Session) -> Result<Vec<Session>> {
        let path = parent.key.path.join(AGENTS);
        if parent.subagent.is_some() {
            return Ok(Vec::new());
        }
        let Some(store) = StoreDir::open(&parent.key.root)? else { return Ok(Vec::new()) };
        let Some(dir) = store.dir(&path)? else { return Ok(Vec::new()) };
        let mut names: Vec<String> = Vec::new();
        for entry in dir.entries_behind_links()?.0 {
            let name = entry.name.to_str().filter(|name| *name != MAIN && !name.starts_with('.'));
            names.extend(name.filter(|_| entry.kind == EntryKind::Dir).map(str::to_owned));
        }
        names.sort_by_key(|name| (number_in(name), name.clone()));
        let mut found = Vec::new();
        for name in &names {
            let wire = Path::new(name).join(WIRE);
            let Some(stamp) = dir.stat(&wire)? else { continue };
            let absolute = dir.path().join(&wire);
            if let Some((known, at, session)) = self.0.lock().get(&absolute)
                && *known == stamp
                && stamp.vouches(*at)
            {
                found.push(Session { place: parent.place.clone(), ..session.clone() });
                continue;
            }
            let at = crate::transcript::clock();
            let session = read(parent, &store, &dir, name, &path.join(name), stamp)?;
            let mut known = self.0.lock();
            if known.len() >= MOST {
                known.clear();
            }
            known.insert(absolute, (stamp, at, session.clone()));
            found.push(session);
        }
        Ok(found)
    }
}

/// N of `agent-N`: they are numbered in the order in which they began.
fn number_in(name: &str) -> u64 {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(u64::MAX)
}

fn read(
    parent: &Session,
    store: &StoreDir,
    dir: &StoreDir,
    name: &str,
    path: &Path,
    stamp: Stamp,
) -> Result<Session> {
    let wire = Path::new(name).join(WIRE);
    let is_regular = stamp.kind == EntryKind::File;
    let head =
        if is_regular { ends::head(dir, &wire, Whose::Subagent, None)? } else { ends::Head::default() };
    let last = if is_regular { ends::last_time(dir, &wire)? } else { None };
    let key_path: Arc<Path> = Arc::from(path);
    Ok(Session {
        id: name.to_owned(),
        place: parent.place.clone(),
        name: None,
        title: profile(store, &parent.key.path, name),
        first_prompt: head.first_prompt.clone(),
        created: head.created.or(stamp.born()).unwrap_or_else(|| stamp.modified()),
        updated: last.unwrap_or_else(|| stamp.modified()),
        model: None,
        archived: None,
        history_mode: head.protocol,
        forked_from: None,
        begun: parent.begun.clone(),
        migrated_from: None,
        files: vec![path.join(WIRE)],
        sidecars: Vec::new(),
        subagent: Some(name.to_owned()),
        key: SessionKey { agent: AgentKind::KimiCode, root: parent.key.root.clone(), path: key_path },
    })
}

/// What kind of sub-agent it is, as its parent's state.json tells it.
fn profile(store: &StoreDir, parent: &Path, name: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct State<'a> {
        #[serde(borrow)]
        agents: HashMap<String, &'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Agent<'a> {
        #[serde(borrow)]
        labels: Option<Labels<'a>>,
    }
    #[derive(Deserialize)]
    struct Labels<'a> {
        #[serde(borrow, rename = "profileName")]
        profile: Option<&'a RawValue>,
    }
    let bytes = read_small(store, &parent.join(STATE), LONGEST).ok()??;
    count_bytes(AgentKind::KimiCode, ReadKind::Sidecar, bytes.len() as u64);
    let state: State<'_> = serde_json::from_slice(&bytes).ok()?;
    let agent: Agent<'_> = serde_json::from_str(state.agents.get(name)?.get()).ok()?;
    string(agent.labels?.profile?)
}
