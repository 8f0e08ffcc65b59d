//! The sub-agents of a session: transcripts of their own in its directory, each with a small file that says what it
//! is. Older versions keep them among the sessions' transcripts, and only their records name the session.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;

use super::head::{self, Head, Titles};
use super::layout::{self, AGENT, SUBAGENTS, TRANSCRIPT};
use super::records::{Raw, text};
use crate::agents::is_file_name;
use crate::session::{Result, Session};
use crate::transcript::{EntryKind, Stamp, StoreDir, read_small};

/// How many sub-agents are remembered.
const MOST: usize = 8192;
/// Longest file about a sub-agent that is read, bytes.
const LONGEST: u64 = 1 << 20;

#[derive(Clone)]
struct Known {
    at: Timestamp,
    stamp: Stamp,
    head: Head,
    title: Option<String>,
}

/// What was read of sub-agents, by transcript: everybody who asks for one asks for all, again and again.
#[derive(Default)]
pub(super) struct Subagents(Mutex<HashMap<PathBuf, Known>>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(borrow)]
    agent_type: Raw<'a>,
    #[serde(borrow)]
    description: Raw<'a>,
}

impl Subagents {
    /// The sub-agent sessions of a session. `among`: some may lie among the sessions' transcripts.
    pub fn of(&self, parent: &Session, among: bool) -> Result<Vec<Session>> {
        if parent.subagent.is_some() {
            return Ok(Vec::new());
        }
        let Some(store) = StoreDir::open(&parent.key.root)? else { return Ok(Vec::new()) };
        let own = parent.key.path.with_extension("").join(SUBAGENTS);
        let mut found = self.below(parent, &store, &own, true)?;
        if among {
            let beside = parent.key.path.parent().unwrap_or(Path::new(""));
            found.extend(self.below(parent, &store, beside, false)?);
        }
        Ok(found)
    }

    /// The transcript of the session that has this sub-agent; `None` if nothing tells.
    pub fn parent_of(&self, root: &Path, subagent: &Path) -> Option<PathBuf> {
        let folder = subagent.parent()?;
        if folder.file_name() == Some(SUBAGENTS.as_ref()) {
            return Some(folder.parent()?.with_extension(&TRANSCRIPT[1..]));
        }
        let store = StoreDir::open(root).ok()??;
        let (dir, name) = (store.dir(folder).ok()??, subagent.file_name()?.to_str()?);
        let stamp = dir.stat(Path::new(name)).ok()??;
        let parent = self.known(&dir, name, stamp).head.session?;
        is_file_name(&parent).then(|| folder.join(format!("{parent}{TRANSCRIPT}")))
    }

    /// Those in a directory: all of them, or those whose records name the session.
    fn below(&self, parent: &Session, store: &StoreDir, path: &Path, all: bool) -> Result<Vec<Session>> {
        let Some(dir) = store.dir(path)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for entry in dir.entries()? {
            let Some(name) = entry.name.to_str().filter(|name| name.starts_with(AGENT)) else { continue };
            let Some(id) = name[AGENT.len()..].strip_suffix(TRANSCRIPT).filter(|id| !id.is_empty()) else {
                continue;
            };
            let Some(stamp) = dir.stat(Path::new(name))?.filter(|stamp| stamp.kind == EntryKind::File) else {
                continue;
            };
            let known = self.known(&dir, name, stamp);
            if !all && known.head.session.as_deref() != Some(&parent.id) {
                continue;
            }
            let file: Arc<Path> = path.join(name).into();
            let titles = Titles::default();
            let place = parent.place.clone();
            let session = layout::session(&parent.key.root, file, id, place, &stamp, &known.head, &titles);
            found.push(Session { title: known.title, subagent: Some(id.to_owned()), ..session });
        }
        Ok(found)
    }

    fn known(&self, dir: &StoreDir, name: &str, stamp: Stamp) -> Known {
        let path = dir.path().join(name);
        let before = self.0.lock().get(&path).cloned();
        if let Some(known) = before.as_ref().filter(|known| known.stamp == stamp && stamp.vouches(known.at)) {
            return known.clone();
        }
        let at = crate::transcript::clock();
        let grown = before.filter(|known| {
            known.head.is_whole() && known.title.is_some() && stamp.may_have_grown_from(&known.stamp)
        });
        let known = match grown {
            Some(known) => Known { at, stamp, ..known },
            None => {
                let head = head::of_subagent(dir, Path::new(name), stamp.len).unwrap_or_default();
                Known { at, stamp, head, title: title(dir, name) }
            }
        };
        let mut all = self.0.lock();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(path, known.clone());
        known
    }
}

fn title(dir: &StoreDir, name: &str) -> Option<String> {
    let meta = format!("{}.meta.json", name.strip_suffix(TRANSCRIPT)?);
    let bytes = read_small(dir, Path::new(&meta), LONGEST).ok()??;
    let meta: Meta<'_> = serde_json::from_slice(&bytes).ok()?;
    let words: Vec<_> = [meta.agent_type, meta.description].into_iter().filter_map(text).collect();
    (!words.is_empty()).then(|| words.join(": "))
}
