//! What was read of a store's files, each with the stamp of the file that it was read from.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::session::Result;
use crate::transcript::{self, Stamp};

/// By the files' names.
pub struct Remembered<T> {
    known: HashMap<Arc<Path>, Known<T>>,
    /// Files read so far; what a test counts.
    pub reads: u64,
}

struct Known<T> {
    stamp: Stamp,
    /// Read too soon after a change to be believed at the next look.
    young: bool,
    value: T,
}

impl<T> Default for Remembered<T> {
    fn default() -> Remembered<T> {
        Remembered { known: HashMap::new(), reads: 0 }
    }
}

impl<T: Clone> Remembered<T> {
    /// What is known of the file with this stamp, else what `read` tells.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn get_or(&mut self, file: &Arc<Path>, stamp: &Stamp, read: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(known) = self.known.get(file).filter(|known| known.stamp == *stamp && !known.young) {
            return Ok(known.value.clone());
        }
        let young = !stamp.vouches(transcript::clock());
        let value = read()?;
        self.reads += 1;
        self.known.insert(file.clone(), Known { stamp: *stamp, young, value: value.clone() });
        Ok(value)
    }

    /// Notes what somebody has just read of the file with this stamp.
    pub fn know(&mut self, file: &Arc<Path>, stamp: &Stamp, value: T) {
        let young = !stamp.vouches(transcript::clock());
        self.known.insert(file.clone(), Known { stamp: *stamp, young, value });
    }

    /// What was last read of the file, whatever became of it since.
    pub fn last(&self, file: &Path) -> Option<T> {
        self.known.get(file).map(|known| known.value.clone())
    }

    /// Forgets files that are gone.
    pub fn keep_only(&mut self, there: impl Fn(&Path) -> bool) {
        self.known.retain(|file, _| there(file));
    }
}
