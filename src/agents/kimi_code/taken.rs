//! What of a session's directory goes along with a fork besides the wire. Facts: `docs/stores/kimi-code.md`, "4. Fork".

use std::path::{Path, PathBuf};

use super::layout::{AGENTS, MAIN};
use super::state::STATE;
use super::wire::WIRE;
use crate::session::{Refusal, Result};
use crate::transcript::{EntryKind, StoreDir};

/// What the client's fork does not take, and what belongs to the wires.
const LEFT: [&str; 5] = [STATE, "logs", "upcoming-goals.json", "notify", AGENTS];
/// What lies beside a wire and goes with it; tasks and cron jobs are run by one session.
const WITH_WIRE: [&str; 1] = ["plan"];
/// Most files that a fork copies besides its wires, and how deep they may lie.
const MOST: usize = 10_000;
const DEEPEST: usize = 8;

/// The wires of a session's sub-agents: name, and place in the session's directory `own` (relative to the root).
pub(super) fn wires_of_subagents(store: &StoreDir, own: &Path) -> Result<Vec<(String, PathBuf)>> {
    let Some(agents) = store.dir(&own.join(AGENTS))? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in agents.entries()?.into_iter().filter(|entry| entry.kind == EntryKind::Dir) {
        let Some(name) = entry.name.to_str().filter(|name| *name != MAIN && !name.starts_with('.')) else {
            continue;
        };
        let file = Path::new(name).join(WIRE);
        if agents.stat(&file)?.is_some_and(|stat| stat.kind == EntryKind::File) {
            found.push((name.to_owned(), Path::new(AGENTS).join(file)));
        }
    }
    Ok(found)
}

/// Everything else in a session's directory `own` that goes with a fork; places in that directory.
///
/// # Errors
/// What prevents listing it; and if there is too much.
pub(super) fn others(store: &StoreDir, own: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let Some(dir) = store.dir(own)? else { return Ok(found) };
    for entry in dir.entries()? {
        if LEFT.iter().all(|left| entry.name != *left) {
            collect(&dir, Path::new(&entry.name), entry.kind, 0, &mut found)?;
        }
    }
    if let Some(agents) = dir.dir(Path::new(AGENTS))? {
        for agent in agents.entries()?.into_iter().filter(|agent| agent.kind == EntryKind::Dir) {
            for name in WITH_WIRE {
                let below = Path::new(AGENTS).join(&agent.name).join(name);
                if let Some(stat) = dir.stat(&below)? {
                    collect(&dir, &below, stat.kind, 0, &mut found)?;
                }
            }
        }
    }
    Ok(found)
}

/// The files at and below `place`; links are left.
fn collect(
    dir: &StoreDir,
    place: &Path,
    kind: EntryKind,
    depth: usize,
    found: &mut Vec<PathBuf>,
) -> Result<()> {
    if found.len() >= MOST || depth > DEEPEST {
        let what = format!("{} holds more files than a fork would copy", dir.path().display());
        return Err(Refusal::CannotCut { what, hint: None });
    }
    match kind {
        EntryKind::File => found.push(place.to_path_buf()),
        EntryKind::Dir => {
            let Some(below) = dir.dir(place)? else { return Ok(()) };
            for entry in below.entries()? {
                collect(dir, &place.join(&entry.name), entry.kind, depth + 1, found)?;
            }
        }
        EntryKind::Symlink | EntryKind::Other => {}
    }
    Ok(())
}
