//! The sub-agents of a session: sessions below its own directory, with meta.json instead of state.json. Clients
//! before 1.25 wrote them as contexts alone, `context_sub_N.jsonl` beside the session's own; what a sub-agent did is in
//! the session's wire.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::head::{self, Head};
use super::json::{JsonStr, objects};
use super::layout::{self, CONTEXT, LONGEST_STATE, SUBAGENTS, Stats, WIRE, files};
use crate::session::{AgentKind, Refusal, Result, Session};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{EntryKind, StoreDir, read_small};

/// How many sub-agents are remembered.
const MOST: usize = 4096;

/// What was read of a sub-agent, and when.
struct Known {
    at: Timestamp,
    stats: Stats,
    session: Session,
}

/// The sub-agents of a store, by absolute path: everybody who asks for a parent's sub-agents asks for all of them,
/// again and again.
#[derive(Default)]
pub(super) struct Subagents(Mutex<HashMap<PathBuf, Known>>);

objects! {
    struct Meta<'a> {
        subagent_type: Option<JsonStr<'a>> = "subagent_type",
        description: Option<JsonStr<'a>> = "description",
    }
}

impl Subagents {
    /// The sub-agent sessions below a session's directory.
    pub fn of(&self, parent: &Session) -> Result<Vec<Session>> {
        let Some(store) = StoreDir::open(&parent.key.root)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (path, kind) in
            [(&*parent.key.path, EntryKind::File), (&*parent.key.path.join(SUBAGENTS), EntryKind::Dir)]
        {
            let dir = match store.dir(path) {
                Ok(Some(dir)) => dir,
                // A flat session is a file and has none.
                Ok(None) | Err(Refusal::Io { errno: rustix::io::Errno::NOTDIR, .. }) => continue,
                Err(refusal) => return Err(refusal),
            };
            self.below(parent, path, &dir, kind, &mut found)?;
        }
        Ok(found)
    }

    /// The sub-agents in one directory: those that are directories, or those that are files.
    fn below(
        &self,
        parent: &Session,
        path: &Path,
        dir: &StoreDir,
        kind: EntryKind,
        found: &mut Vec<Session>,
    ) -> Result<()> {
        let mut names: Vec<(u64, String)> = Vec::new();
        for entry in dir.entries_behind_links()?.0.into_iter().filter(|entry| entry.kind == kind) {
            let Some(name) = entry.name.to_str().filter(|name| !name.starts_with('.')) else { continue };
            match kind {
                EntryKind::File => {
                    names.extend(layout::subagent_number(name).map(|number| (number, name.to_owned())))
                }
                _ => names.push((0, name.to_owned())),
            }
        }
        names.sort();
        for (_, name) in &names {
            let Some(stats) = Stats::of(dir, Path::new(name))?.filter(Stats::has_history) else { continue };
            let absolute = dir.path().join(name);
            if let Some(known) = self.0.lock().get(&absolute)
                && known.stats == stats
                && stats.vouch(known.at)
            {
                found.push(Session { place: parent.place.clone(), ..known.session.clone() });
                continue;
            }
            let at = crate::transcript::clock();
            let key_path: Arc<Path> = Arc::from(path.join(name));
            let Some(session) = read(parent, dir, name, &key_path, &stats)? else { continue };
            let mut known = self.0.lock();
            if known.len() >= MOST {
                known.clear();
            }
            known.insert(absolute, Known { at, stats, session: session.clone() });
            found.push(session);
        }
        Ok(())
    }
}

/// `None`: it went away meanwhile.
fn read(
    parent: &Session,
    dir: &StoreDir,
    name: &str,
    path: &Arc<Path>,
    stats: &Stats,
) -> Result<Option<Session>> {
    let own = if stats.own.kind == EntryKind::Dir { dir.dir(Path::new(name))? } else { None };
    let (head, title, (files, sidecars)) = match &own {
        Some(own) => {
            let head = match stats.wire {
                _ if !stats.is_regular() => Head::default(),
                Some(_) => head::read(own, Path::new(WIRE), None)?,
                None => head::of_context(own, Path::new(CONTEXT))?,
            };
            (head, title(own), files(path, &own.entries_behind_links()?.0))
        }
        None if stats.own.kind == EntryKind::File => {
            (head::of_context(dir, Path::new(name))?, None, files(path, &[]))
        }
        None => return Ok(None),
    };
    let id = name.trim_end_matches(".jsonl");
    let session = layout::session(&parent.key.root, path.clone(), &parent.place, id, stats, &head);
    Ok(Some(Session { title, files, sidecars, subagent: Some(id.to_owned()), ..session }))
}

fn title(dir: &StoreDir) -> Option<String> {
    let bytes = read_small(dir, Path::new("meta.json"), LONGEST_STATE).ok()??;
    count_bytes(AgentKind::KimiCli, ReadKind::Sidecar, bytes.len() as u64);
    let meta: Meta<'_> = serde_json::from_str(simdutf8::basic::from_utf8(&bytes).ok()?).ok()?;
    let words: Vec<_> =
        [meta.subagent_type, meta.description].into_iter().flatten().flatten().map(JsonStr::text).collect();
    (!words.is_empty()).then(|| words.join(": "))
}
