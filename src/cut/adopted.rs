//! Which copies of a session were made for other projects: noted in the session's folder of the state
//! directory, so that nobody gets a second one unasked. A note is written before its copy is made; whether
//! the copy is there is for the store to tell.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::journal::VERSION;
use super::state::{Folder, Locked, json};
use crate::session::{PathText, Result};

const ADOPTED: &str = "adopted.json";

#[derive(Default, Serialize, Deserialize)]
struct Notes {
    version: u32,
    copies: Vec<Copy>,
}

#[derive(Serialize, Deserialize)]
struct Copy {
    project: PathText,
    id: String,
}

/// The ids of the copies for this project, latest first; some may have never come to be.
pub(super) fn copies(folder: &Folder, project: &Path) -> Result<Vec<String>> {
    let copies = notes(folder)?.copies.into_iter().rev();
    Ok(copies.filter(|copy| *copy.project == *project).map(|copy| copy.id).collect())
}

/// Notes a copy, durable.
pub(super) fn note(locked: &Locked, project: &Path, id: &str) -> Result<()> {
    let mut notes = notes(&locked.folder)?;
    notes.version = VERSION;
    notes.copies.push(Copy { project: project.into(), id: id.to_owned() });
    locked.tree().put(Path::new(ADOPTED), &json(&notes)?)
}

/// What cannot be read counts as nothing noted: at worst there is a second copy, and nothing is lost.
fn notes(folder: &Folder) -> Result<Notes> {
    let bytes = folder.tree.read_to_vec(Path::new(ADOPTED))?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
}
