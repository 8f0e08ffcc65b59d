//! Files with several hard links: backups (`cp -al`, rsnapshot) share them with the store, so they are never cut
//! in place.
//!
//! Such a file is first given a copy of its own under its name, and the copy is cut. The old inode keeps a second
//! name beside (`.<name>.turnfs-old`) and, where there are leases, stays leased until the cut counts: a client that
//! resolved the name before the rename waits in `open()` and would append to the old inode. That refuses the cut,
//! and what the client appended goes behind the restored content.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::disk::{Open, Tree, temporary};
use super::journal::Image;
use super::lease::{Hands, Hold, PATIENCE};
use super::scan::Scan;
use crate::session::{Refusal, Result};

/// The inode that had the file's name before, while its cut does not count yet.
#[derive(Debug)]
pub(super) struct Old {
    file: PathBuf,
    hold: Hold,
    /// Bytes, when it was copied.
    len: u64,
}

impl Old {
    /// Whether a client has come to it, or is about to.
    fn is_wanted(&self) -> Result<bool> {
        Ok(self.hold.writer_waits() || self.hold.open.len()? != self.len)
    }

    /// The file, if a client waits to write to its old inode.
    pub fn awaited(&self) -> Option<PathBuf> {
        self.hold.writer_waits().then(|| self.file.clone())
    }
}

/// The second name of the old inode.
pub(super) fn old_name(file: &Path) -> PathBuf {
    temporary(file, ".turnfs-old")
}

/// Where the copy is made.
pub(super) fn new_name(file: &Path) -> PathBuf {
    temporary(file, ".turnfs-new")
}

impl Hands {
    /// Makes sure that `file` may be changed in place: one with several links is replaced by a copy of its own,
    /// with the same bytes, owner, mode, attributes and time.
    ///
    /// # Errors
    /// [`Refusal::Changed`] if a client comes to it meanwhile; the name leads to the old inode then.
    pub fn make_its_own(&mut self, store: &Tree, file: &Path) -> Result<()> {
        if self.file(file).is_none() {
            let Some(open) = store.write(file)? else { return Ok(()) };
            self.hold(file, Hold { open, leased: false });
        }
        let Some(open) = self.file(file) else { return Ok(()) };
        if open.links()? < 2 {
            return Ok(());
        }
        let changed = || Refusal::Changed { what: file.display().to_string() };
        store.link(file, &old_name(file))?;
        if store.stat(&old_name(file))?.map(|facts| facts.st_ino) != Some(open.facts()?.st_ino) {
            return Err(changed());
        }
        let len = open.len()?;
        let copy = store.create(&new_name(file))?;
        copy.copy_from(open, 0, len, 0)?;
        copy.make_like(open)?;
        copy.sync()?;
        if self.writer_waits(file) || open.len()? != len {
            return Err(changed());
        }
        store.rename(&new_name(file), file, true)?;
        let copy = Hold::leased_if_possible(copy);
        if let Some(hold) = self.hold(file, copy) {
            self.keep_old(Old { file: file.to_owned(), hold, len });
        }
        store.sync_parent(file)?;
        self.old_ones_are_unwanted()
    }

    /// Makes sure that no client has written, or is about to write, to an inode that has lost its name.
    fn old_ones_are_unwanted(&self) -> Result<()> {
        for old in self.old() {
            if old.is_wanted()? {
                return Err(Refusal::Changed { what: old.file.display().to_string() });
            }
        }
        Ok(())
    }

    /// Gives up the old inodes, whose leases stay until the hands are dropped. From here on a roll-back works in
    /// the copies.
    ///
    /// # Errors
    /// [`Refusal::Changed`] if a client has come to one of them; then all of them are still there.
    pub fn discard_old(&self, store: &Tree) -> Result<()> {
        self.old_ones_are_unwanted()?;
        for old in self.old() {
            store.unlink_durably(&old_name(&old.file))?;
        }
        Ok(())
    }
}

/// Puts what a client appended to the old inode of `file` behind the restored content of `now`, and removes its
/// second name. `is_awaited`: a client was seen waiting for it. `from`: the restored content.
///
/// # Errors
/// [`Refusal::StoreLocked`] while a client still has the old inode open.
pub(super) fn take_in_old(
    store: &Tree,
    file: &Path,
    from: &Image,
    now: &Open,
    is_awaited: bool,
) -> Result<()> {
    store.unlink(&new_name(file))?;
    let name = old_name(file);
    let Some(facts) = store.stat(&name)? else { return Ok(()) };
    // Not opened where it is the file itself, which we may have leased.
    if facts.st_ino != now.facts()?.st_ino
        && let Some(old) = store.write(&name)?
    {
        wait_for_writers(&old, from.len, is_awaited, file)?;
        let len = old.len()?;
        // What the other names of the inode were used for is not the session's.
        if len > from.len && Scan::of(&old, &[from.len])?.prefix(from.len) == Some(from.hash) {
            let end = now.len()?;
            now.copy_from(&old, from.len, len - from.len, end)?;
            now.sync()?;
        }
    }
    store.unlink_durably(&name)
}

/// Waits until nobody has the inode open for writing; one that is awaited must have come first.
fn wait_for_writers(old: &Open, len: u64, is_awaited: bool, file: &Path) -> Result<()> {
    let start = Instant::now();
    loop {
        let has_come = !is_awaited || old.len()? != len;
        if has_come && !old.is_written() {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return match old.is_written() {
                true => Err(Refusal::StoreLocked { what: file.display().to_string() }),
                // Whoever waited went away without a word.
                false => Ok(()),
            };
        }
        std::thread::sleep(Duration::from_micros(150));
    }
}
