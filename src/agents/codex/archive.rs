//! Archived threads. Whether a thread is archived is said by its row, and by its file's folder where it has none;
//! after an archiving that went half wrong the two differ, and the client's own commands fail.

use std::path::{Component, Path, PathBuf};

use super::database::Row;
use super::layout::{ARCHIVED, SESSIONS};
use crate::session::{Refusal, Session};

/// Whether a thread is archived; `file` is its current one, relative to the store.
pub fn is_archived(row: Option<&Row>, file: &Path) -> bool {
    row.and_then(|row| row.archived).unwrap_or_else(|| file.starts_with(ARCHIVED))
}

/// Why nothing is undone in this thread, with what makes it an ordinary one again: each of the ways was tried with
/// Codex 0.171.0.
///
/// # Errors
/// That refusal.
pub fn refuse(session: &Session, row: Option<&Row>, file: &Path) -> Result<(), Refusal> {
    let archived = is_archived(row, file);
    if !archived && !file.starts_with(ARCHIVED) {
        return Ok(());
    }
    let named = row.and_then(|row| below_root(Path::new(&row.rollout_path)));
    let named = named.unwrap_or_else(|| file.to_owned());
    let mut steps = Vec::new();
    // The client looks only where the row says.
    if named.starts_with(ARCHIVED) != file.starts_with(ARCHIVED) {
        let root = &session.key.root;
        steps.push(format!("move {} to {}", root.join(file).display(), root.join(&named).display()));
    }
    let id = &session.id;
    match (named.starts_with(ARCHIVED), archived) {
        (true, _) => steps.push(format!("run `codex unarchive {id}`")),
        // It moves files out of the archive only: the file must be in there first.
        (false, true) => steps.push(format!("run `codex archive {id}`, then `codex unarchive {id}`")),
        (false, false) => {}
    }
    let why = match archived {
        true => "this thread is archived, and Codex does not resume archived threads",
        false => "this thread's file is among the archived ones, although the thread is not archived",
    };
    Err(Refusal::cannot_cut(why, format!("{} first, or use `fork`", steps.join(", then "))))
}

/// The part of a path that is in a store, which may have had another place when its row was written.
fn below_root(path: &Path) -> Option<PathBuf> {
    let parts: Vec<Component<'_>> = path.components().collect();
    let is_folder = |part: &Component<'_>| {
        let Component::Normal(name) = part else { return false };
        *name == SESSIONS || *name == ARCHIVED
    };
    let folder = parts.iter().rposition(is_folder)?;
    Some(parts[folder..].iter().collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_rows_path_is_found_below_any_root() {
        for (path, below) in [
            ("/home/a/.codex/sessions/2026/01/02/r.jsonl", Some("sessions/2026/01/02/r.jsonl")),
            ("/home/sessions/.codex/archived_sessions/r.jsonl", Some("archived_sessions/r.jsonl")),
            ("/elsewhere/r.jsonl", None),
            ("", None),
        ] {
            assert_eq!(below_root(Path::new(path)).as_deref(), below.map(Path::new), "{path}");
        }
    }
}
