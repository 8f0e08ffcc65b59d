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
use super::lease::{HeldLocks, Hold, PATIENCE};
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

impl HeldLocks {
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
        if !open.has_several_links()? {
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

/// A SQLite database's files: the directory that really holds them, and their names there, the database last. The
/// shared memory, which SQLite makes anew, is not among them.
fn database(store: &Tree, db: &Path) -> Result<(Tree, Vec<PathBuf>)> {
    let real = store.real_path(db)?;
    let dir = Tree::open(real.parent().unwrap_or(Path::new("/")))?;
    let name = real.file_name().unwrap_or_default();
    let beside = |suffix: &str| {
        let mut name = name.to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    Ok((dir, ["-wal", "-journal", ""].into_iter().map(beside).collect()))
}

/// Whether a file of a database has several hard links: SQLite would write into all of them.
///
/// # Errors
/// What prevents looking.
pub(super) fn is_shared(store: &Tree, db: &Path) -> Result<bool> {
    if store.stat(db)?.is_none() {
        return Ok(false);
    }
    let (dir, files) = database(store, db)?;
    for file in files {
        if dir.stat(&file)?.is_some_and(|facts| facts.st_nlink > 1) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Gives a database with several hard links files of its own, with the same bytes. Only while nobody has it open: whoever has
/// would go on in the old files.
///
/// # Errors
/// [`Refusal::StoreLocked`] if another program has it open, or that cannot be told; the names lead to the old files then.
pub(super) fn make_database_its_own(store: &Tree, db: &Path) -> Result<()> {
    let (dir, files) = database(store, db)?;
    let in_use = || {
        let what = dir.path().join(files.last().map_or(db, |file| file));
        Refusal::StoreLocked { what: format!("{}, which has several hard links,", what.display()) }
    };
    let Some(last) = files.last() else { return Ok(()) };
    let open = match dir.write(last) {
        Err(Refusal::Io { errno: rustix::io::Errno::AGAIN, .. }) => return Err(in_use()),
        open => open?.ok_or_else(in_use)?,
    };
    let mut hands = HeldLocks::default();
    let hold = Hold::leased_if_possible(open);
    if !hold.leased {
        return Err(in_use());
    }
    hands.hold(last, hold);
    // The database last: its lease keeps everybody out until then, and that of its copy after that.
    let mut make = || -> Result<()> {
        for file in &files {
            hands.make_its_own(&dir, file)?;
        }
        hands.discard_old(&dir)?;
        let mut memory = last.clone().into_os_string();
        memory.push("-shm");
        let memory = PathBuf::from(memory);
        if dir.stat(&memory)?.is_some_and(|facts| facts.st_nlink > 1) {
            dir.unlink(&memory)?;
        }
        Ok(())
    };
    let Err(why) = make() else { return Ok(()) };
    // Whoever waits for an old file must find it under its name.
    for file in &files {
        if dir.stat(&old_name(file))?.is_some() {
            dir.rename(&old_name(file), file, true)?;
            dir.sync_parent(file)?;
        }
        dir.unlink(&old_name(file))?;
        dir.unlink(&new_name(file))?;
    }
    Err(match why {
        Refusal::Changed { .. } => in_use(),
        other => other,
    })
}

/// Removes what a crash left of [`make_database_its_own`]: under every name are the same bytes.
///
/// # Errors
/// What prevents that.
pub(super) fn tidy_database(store: &Tree, db: &Path) -> Result<()> {
    if store.stat(db)?.is_none() {
        return Ok(());
    }
    let (dir, files) = database(store, db)?;
    for file in files {
        for name in [new_name(&file), old_name(&file)] {
            if dir.stat(&name)?.is_some() {
                dir.unlink(&name)?;
            }
        }
    }
    Ok(())
}
