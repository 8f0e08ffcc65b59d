//! What a user may call a session by.

use std::path::{Path, PathBuf};

use super::{Catalog, Listed};
use crate::session::{Refusal, Result};

/// Shortest prefix or suffix of an id that stands for it, in characters.
const SHORTEST: usize = 8;

impl Catalog {
    /// Resolves a SESSION argument: full id, unique id prefix or suffix (8+ characters), or directory name.
    /// With the session comes its project (`None`: unplaced).
    ///
    /// # Errors
    /// [`Refusal::NotFound`] when none fits or more than one does.
    pub fn find(&self, text: &str) -> Result<(Option<PathBuf>, Listed)> {
        let listing = self.listing()?;
        let all = listing.all();
        let by = |fits: &dyn Fn(&Listed) -> bool| -> Vec<_> {
            all.iter().filter(|(_, listed)| fits(listed)).collect()
        };
        let partial = text.chars().count() >= SHORTEST;
        let tries = [
            by(&|listed| listed.session.id == text),
            by(&|listed| listed.name == text),
            by(&|listed| {
                partial && (listed.session.id.starts_with(text) || listed.session.id.ends_with(text))
            }),
        ];
        let Some(found) = tries.into_iter().find(|found| !found.is_empty()) else {
            return Err(Refusal::NotFound {
                what: format!(
                    "a session {text:?} (give an id, 8 or more characters of its start or end, or a directory name; `turnfs ls --all` lists them)"
                ),
            });
        };
        match found.as_slice() {
            [(project, listed)] => Ok((project.map(Path::to_path_buf), (*listed).clone())),
            several => {
                let ids: Vec<&str> =
                    several.iter().take(5).map(|(_, listed)| listed.session.id.as_str()).collect();
                Err(Refusal::NotFound {
                    what: format!(
                        "a single session {text:?} ({} fit: {}); one",
                        several.len(),
                        ids.join(", ")
                    ),
                })
            }
        }
    }
}
