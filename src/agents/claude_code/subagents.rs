//! The sub-agents of a session: transcripts of their own in its directory, each with a small file that says what it
//! is. Older versions keep them among the sessions' transcripts, and only their records name the session.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;

use super::head::{self, Head, Notes};
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
pub(super) struct Subagents {
    known: Mutex<HashMap<PathBuf, Known>>,
    counts: Mutex<HashMap<PathBuf, Count>>,
}

/// How many sub-agents lie in a directory.
#[derive(Clone, Copy)]
struct Count {
    at: Timestamp,
    stamp: Stamp,
    number: usize,
}

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
        let Some(store) = StoreDir::open(&parent.key.root)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (path, all) in folders(parent, among) {
            found.extend(self.below(parent, &store, &path, all)?);
        }
        Ok(found)
    }

    /// How many [`Subagents::of`] finds. The kernel asks for it with each name in the directory that they are shown in, so
    /// it costs a look at one directory.
    pub fn count(&self, parent: &Session, among: bool) -> Result<usize> {
        let Some(store) = StoreDir::open(&parent.key.root)? else { return Ok(0) };
        let mut count = 0;
        for (path, all) in folders(parent, among) {
            let own = if all { self.count_below(&store, &path)? } else { None };
            count += match own {
                Some(number) => number,
                None => self.below(parent, &store, &path, all)?.len(),
            };
        }
        Ok(count)
    }

    /// Those in a directory, all of which are the session's; `None` if the names in it do not tell.
    fn count_below(&self, store: &StoreDir, path: &Path) -> Result<Option<usize>> {
        let Some(dir) = store.dir(path)? else { return Ok(Some(0)) };
        let at = crate::transcript::clock();
        let Some(stamp) = dir.stat(Path::new(""))? else { return Ok(None) };
        let known = self.counts.lock().get(dir.path()).copied();
        if let Some(known) = known.filter(|known| known.stamp == stamp && stamp.vouches(known.at)) {
            return Ok(Some(known.number));
        }
        let entries = dir.entries()?;
        let own =
            entries.iter().filter(|entry| name(Path::new(&entry.name)).is_some_and(|it| !it.is_empty()));
        let Some(number) = own.map(|entry| (entry.kind == EntryKind::File).then_some(1)).sum() else {
            return Ok(None);
        };
        let mut all = self.counts.lock();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(dir.path().to_owned(), Count { at, stamp, number });
        Ok(Some(number))
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
        let parent = self.look(&dir, name, stamp).head.session?;
        is_file_name(&parent).then(|| folder.join(format!("{parent}{TRANSCRIPT}")))
    }

    /// Those in a directory: all of them, or those whose records name the session.
    fn below(&self, parent: &Session, store: &StoreDir, path: &Path, all: bool) -> Result<Vec<Session>> {
        let Some(dir) = store.dir(path)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for entry in dir.entries()? {
            if let Some(name) = name(Path::new(&entry.name)) {
                found.extend(self.one(parent, &dir, path, name, all)?);
            }
        }
        Ok(found)
    }

    /// The sub-agent of a session with this name.
    pub fn named(&self, parent: &Session, name: &str, among: bool) -> Result<Option<Session>> {
        let Some(store) = StoreDir::open(&parent.key.root)? else { return Ok(None) };
        for (path, all) in folders(parent, among) {
            if let Some(dir) = store.dir(&path)?
                && let Some(found) = self.one(parent, &dir, &path, name, all)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The sub-agent with this name in a directory; see [`Subagents::below`].
    fn one(
        &self,
        parent: &Session,
        dir: &StoreDir,
        path: &Path,
        name: &str,
        all: bool,
    ) -> Result<Option<Session>> {
        let file = format!("{AGENT}{name}{TRANSCRIPT}");
        if name.is_empty() || !is_file_name(&file) {
            return Ok(None);
        }
        let stamp = dir.stat(Path::new(&file))?;
        let Some(stamp) = stamp.filter(|stamp| stamp.kind == EntryKind::File) else { return Ok(None) };
        let known = self.look(dir, &file, stamp);
        if !all && known.head.session.as_deref() != Some(&parent.id) {
            return Ok(None);
        }
        let (file, notes, place) = (Arc::from(path.join(&file)), Notes::default(), parent.place.clone());
        let session = layout::session(&parent.key.root, file, name, place, &stamp, &known.head, &notes);
        Ok(Some(Session { title: known.title, subagent: Some(name.to_owned()), ..session }))
    }

    fn look(&self, dir: &StoreDir, name: &str, stamp: Stamp) -> Known {
        let path = dir.path().join(name);
        let before = self.known.lock().get(&path).cloned();
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
        let mut all = self.known.lock();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(path, known.clone());
        known
    }
}

/// The name of a sub-agent with this transcript.
pub(super) fn name(file: &Path) -> Option<&str> {
    file.file_name()?.to_str()?.strip_prefix(AGENT)?.strip_suffix(TRANSCRIPT)
}

/// Where sub-agents of a session lie, and whether all that lie there are this session's.
fn folders(parent: &Session, among: bool) -> Vec<(PathBuf, bool)> {
    if parent.subagent.is_some() {
        return Vec::new();
    }
    let beside = parent.key.path.parent().unwrap_or(Path::new(""));
    let own = parent.key.path.with_extension("").join(SUBAGENTS);
    std::iter::once((own, true)).chain(among.then(|| (beside.to_owned(), false))).collect()
}

fn title(dir: &StoreDir, name: &str) -> Option<String> {
    let meta = format!("{}.meta.json", name.strip_suffix(TRANSCRIPT)?);
    let bytes = read_small(dir, Path::new(&meta), LONGEST).ok()??;
    let meta: Meta<'_> = serde_json::from_slice(&bytes).ok()?;
    let words: Vec<_> = [meta.agent_type, meta.description].into_iter().filter_map(text).collect();
    (!words.is_empty()).then(|| words.join(": "))
}
