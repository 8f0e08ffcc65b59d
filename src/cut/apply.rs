//! Making a record's changes, and taking them back whatever state a crash left them in.
//!
//! Taking back never drops bytes that somebody else wrote meanwhile: what a client appended behind a cut
//! that is rolled back stays behind the restored content, and content that nobody here can explain is
//! first copied into the undo's directory.

use std::path::{Path, PathBuf};

use super::disk::{CHUNK, Open, Tree};
use super::entry;
use super::journal::{Change, Direction, FileChange, How, Image, NewDir, NewFiles};
use super::lease::HeldLocks;
use super::row;
use super::scan::Scan;
use super::several_names::{self, new_name as temporary_name};
use crate::agents::AgentStore;
use crate::session::{Refusal, Result};

/// Where changes are made: the store, with the hands that hold its files, and the undo's directory.
pub(super) struct ApplyContext<'a> {
    pub agent: &'a dyn AgentStore,
    pub store: &'a Tree,
    pub hands: &'a HeldLocks,
    /// `None` for a fork, which changes no file that is there.
    pub backup: Option<&'a Tree>,
}

impl ApplyContext<'_> {
    /// Makes one change, durable when this returns.
    ///
    /// # Errors
    /// [`Refusal::Changed`] if what is changed is no longer as it was; nothing was done to it then.
    pub fn apply(&self, number: usize, change: &Change, direction: Direction) -> Result<()> {
        match change {
            Change::Entry(entry) => entry::apply(self.agent, self.store, entry, direction),
            Change::File(file) => self.apply_file(number, file, direction),
            Change::Rows(rows) => row::Held::take_its_own(self.store, rows, direction)?.apply(),
            Change::Dir(new) => self.place_dir(new),
            Change::Files(new) => self.place_files(new),
        }
    }

    /// Brings what a change touches back to the state before it, from whatever state it is in. A sentence if
    /// there was something to tell.
    ///
    /// # Errors
    /// What prevents that.
    pub fn roll_back(&self, number: usize, change: &Change, direction: Direction) -> Result<Option<String>> {
        match change {
            Change::Entry(entry) => entry::roll_back(self.agent, self.store, entry, direction),
            Change::File(file) => self.roll_back_file(number, file, direction),
            Change::Rows(rows) => row::roll_back(self.store, rows, direction),
            Change::Dir(new) => self.remove_dir(new).map(|()| None),
            Change::Files(new) => self.remove_files(new).map(|()| None),
        }
    }

    /// The directory was built where no client looks.
    fn place_dir(&self, NewDir { dir, staging }: &NewDir) -> Result<()> {
        self.store.ensure_parents(dir)?;
        self.store.rename(staging, dir, false)?;
        self.store.sync_parent(dir)?;
        self.store.sync_parent(staging)
    }

    fn remove_dir(&self, NewDir { dir, staging }: &NewDir) -> Result<()> {
        if self.store.stat(dir)?.is_some() {
            // Out of every client's sight in one moment.
            self.store.rename(dir, staging, false)?;
            self.store.sync_parent(dir)?;
        }
        if self.store.stat(staging)?.is_none() {
            return Ok(());
        }
        self.store.remove_dir(staging)?;
        self.store.sync_parent(staging)
    }

    /// The files were built under names that no client looks at.
    fn place_files(&self, new: &NewFiles) -> Result<()> {
        for file in &new.files {
            self.store.rename(&entry::temporary_name(file), file, false)?;
        }
        for file in &new.files {
            self.store.sync_parent(file)?;
        }
        Ok(())
    }

    fn remove_files(&self, new: &NewFiles) -> Result<()> {
        for file in new.files.iter().rev() {
            self.store.unlink(&entry::temporary_name(file))?;
            self.store.unlink_durably(file)?;
        }
        for dir in new.dirs.iter().rev() {
            self.store.remove_if_empty(dir)?;
        }
        Ok(())
    }

    fn apply_file(&self, index: usize, change: &FileChange, direction: Direction) -> Result<()> {
        match change.how {
            How::InPlace => self.with_open(&change.file, |open| {
                let (Some(from), Some(to)) = (direction.start(change), direction.goal(change)) else {
                    return Err(broken(change));
                };
                // A file that has got a second name meanwhile is not cut in place either.
                if open.len()? != from.len || open.has_several_links()? {
                    return Err(Refusal::Changed { what: change.file.display().to_string() });
                }
                let tail = self.tail(&direction.goal_tail(index))?;
                if change.keep == from.len && tail.len()? <= CHUNK as u64 {
                    // Nothing is written over. In one piece, so that a client never meets a part of it.
                    let mut bytes = vec![0; tail.len()? as usize];
                    if tail.read_full(&mut bytes, 0)? != bytes.len() {
                        return Err(broken(change));
                    }
                    open.write_all(&bytes, from.len)?;
                    return open.sync();
                }
                if to.len > from.len {
                    open.extend(from.len, to.len)?;
                }
                open.copy_from(&tail, 0, tail.len()?, change.keep)?;
                if to.len < from.len {
                    open.truncate(to.len)?;
                }
                open.sync()
            }),
            How::Rename => match direction.goal(change) {
                Some(image) => self.put(change, &image, &direction.goal_tail(index), None),
                None => self.store.unlink_durably(&change.file),
            },
        }
    }

    /// Refuses if the file is not exactly what the change promises; more behind it is somebody else's append.
    ///
    /// # Errors
    /// [`Refusal::NotAsPromised`], or what prevents looking.
    pub fn require_applied(&self, change: &FileChange, direction: Direction) -> Result<()> {
        match self.is_applied(change, direction)? {
            true => Ok(()),
            false => Err(Refusal::NotAsPromised { what: change.file.display().to_string() }),
        }
    }

    fn is_applied(&self, change: &FileChange, direction: Direction) -> Result<bool> {
        let scan = |open: &Open, image: Image| {
            Ok(Scan::of(open, &[image.len])?.prefix(image.len) == Some(image.hash))
        };
        match (direction.goal(change), self.held(&change.file)?) {
            (None, _) => Ok(self.store.stat(&change.file)?.is_none()),
            (Some(image), Some(open)) => scan(open, image),
            (Some(image), None) => match self.store.read(&change.file)? {
                Some(open) => scan(&open, image),
                None => Ok(false),
            },
        }
    }

    fn roll_back_file(
        &self,
        index: usize,
        change: &FileChange,
        direction: Direction,
    ) -> Result<Option<String>> {
        let note = match change.how {
            How::InPlace => self.roll_back_in_place(index, change, direction)?,
            How::Rename => self.roll_back_rename(index, change, direction)?,
        };
        if let Some(image) = direction.start(change)
            && !self.is_applied(change, direction.back())?
        {
            let what = format!("{} ({} bytes)", change.file.display(), image.len);
            return Err(Refusal::Internal { what: format!("rolling back did not give {what}") });
        }
        Ok(note)
    }

    fn roll_back_in_place(
        &self,
        index: usize,
        change: &FileChange,
        direction: Direction,
    ) -> Result<Option<String>> {
        let (Some(from), Some(to)) = (direction.start(change), direction.goal(change)) else {
            return Err(broken(change));
        };
        if self.hands.file(&change.file).is_none() && self.store.stat(&change.file)?.is_none() {
            return Err(Refusal::NotFound { what: change.file.display().to_string() });
        }
        self.with_open(&change.file, |open| {
            let (old, new) =
                (self.tail(&direction.start_tail(index))?, self.tail(&direction.goal_tail(index))?);
            let state = look(open, change.keep, from, to, &old, &new)?;
            let (growth_at, note) = match state {
                Found::Before => return self.take_in_old(change, &from, open).map(|()| None),
                Found::Ours { growth_at } => (growth_at, None),
                Found::Unknown => {
                    let note = self.save_aside(index, change, open)?;
                    (open.len()?, Some(note))
                }
            };
            if open.has_several_links()? {
                self.restore_in_a_new_file(change, &from, open, growth_at, &old)?;
                return Ok(note);
            }
            // What a client appended behind the cut goes behind the restored content. It is copied to
            // the undo's directory first: the places may overlap.
            let grown = open.len()?.saturating_sub(growth_at);
            let growth = match grown {
                0 => None,
                _ => {
                    let name = self.unused("grown", index)?;
                    let copy = self.backup()?.create(&name)?;
                    copy.copy_from(open, growth_at, grown, 0)?;
                    copy.sync()?;
                    self.backup()?.sync_parent(&name)?;
                    Some(copy)
                }
            };
            let now = open.len()?;
            if now < from.len + grown {
                open.extend(now, from.len + grown)?;
            }
            open.copy_from(&old, 0, old.len()?, change.keep)?;
            if let Some(growth) = growth {
                open.copy_from(&growth, 0, grown, from.len)?;
            }
            if open.len()? > from.len + grown {
                open.truncate(from.len + grown)?;
            }
            open.sync()?;
            if grown == 0 {
                // So that an undo that never was does not look like activity.
                open.set_mtime(from.mtime)?;
            }
            self.take_in_old(change, &from, open)?;
            Ok(note)
        })
    }

    fn take_in_old(&self, change: &FileChange, from: &Image, now: &Open) -> Result<()> {
        let is_awaited = self.hands.is_awaited(&change.file);
        several_names::take_in_old(self.store, &change.file, from, now, is_awaited)
    }

    /// As [`ApplyContext::roll_back_in_place`], of a file that has got more names since it was cut: they keep what they have.
    /// Its content: what was kept, the `old` tail, and what stands in `open` from `growth_at` on.
    fn restore_in_a_new_file(
        &self,
        change: &FileChange,
        from: &Image,
        open: &Open,
        growth_at: u64,
        old: &Open,
    ) -> Result<()> {
        let fill = |copy: &Open| {
            copy.copy_from(open, 0, change.keep, 0)?;
            copy.copy_from(old, 0, old.len()?, change.keep)?;
            let grown = open.len()?.saturating_sub(growth_at);
            copy.copy_from(open, growth_at, grown, from.len)?;
            copy.make_like(open)?;
            if grown == 0 { copy.set_mtime(from.mtime) } else { Ok(()) }
        };
        let copy = self.store.replace(&change.file, &temporary_name(&change.file), fill, || Ok(()))?;
        self.take_in_old(change, from, &copy)
    }

    /// The file as the hands hold it, if that still is what its name leads to.
    fn held(&self, file: &Path) -> Result<Option<&Open>> {
        let Some(open) = self.hands.file(file) else { return Ok(None) };
        let there = self.store.stat(file)?.map(|facts| (facts.st_dev, facts.st_ino));
        let facts = open.facts()?;
        Ok((there == Some((facts.st_dev, facts.st_ino))).then_some(open))
    }

    fn roll_back_rename(
        &self,
        index: usize,
        change: &FileChange,
        direction: Direction,
    ) -> Result<Option<String>> {
        self.store.unlink(&temporary_name(&change.file))?;
        let from = direction.start(change);
        let mut note = None;
        if let Some(open) = self.store.read(&change.file)? {
            let scan = Scan::of(&open, &[])?;
            let is = |image: Option<Image>| image.is_some_and(|i| (i.len, i.hash) == (scan.len, scan.hash));
            if is(from) {
                return Ok(None);
            }
            if !is(direction.goal(change)) {
                note = Some(self.save_aside(index, change, &open)?);
            }
        }
        match from {
            Some(image) => {
                self.put(change, &image, &direction.start_tail(index), Some(image.mtime))?;
            }
            None => self.store.unlink_durably(&change.file)?,
        }
        Ok(note)
    }

    /// Keeps content that nobody here can explain; a sentence that says where.
    fn save_aside(&self, index: usize, change: &FileChange, open: &Open) -> Result<String> {
        let name = self.unused("found", index)?;
        let copy = self.backup()?.create(&name)?;
        copy.copy_from(open, 0, open.len()?, 0)?;
        copy.sync()?;
        self.backup()?.sync_parent(&name)?;
        let (file, aside) = (change.file.display(), self.backup()?.path().join(name));
        Ok(format!("{file} held something unexpected, which is kept in {}", aside.display()))
    }

    /// A name in the undo's directory that no earlier try has used.
    fn unused(&self, what: &str, index: usize) -> Result<PathBuf> {
        for n in 0..u32::MAX {
            let name = Path::new("files").join(format!("{index}.{what}-{n}"));
            if self.backup()?.stat(&name)?.is_none() {
                return Ok(name);
            }
        }
        Err(Refusal::Internal { what: "no name left in the undo's directory".into() })
    }

    fn backup(&self) -> Result<&Tree> {
        self.backup
            .ok_or_else(|| Refusal::Internal { what: "a file is to be changed without a backup".into() })
    }

    fn tail(&self, name: &Path) -> Result<Open> {
        let backup = self.backup()?;
        backup
            .read(name)?
            .ok_or_else(|| Refusal::NotFound { what: backup.path().join(name).display().to_string() })
    }

    fn with_open<T>(&self, file: &Path, act: impl FnOnce(&Open) -> Result<T>) -> Result<T> {
        match self.held(file)? {
            Some(open) => act(open),
            None => {
                let open = self.store.write(file)?;
                act(&open.ok_or_else(|| Refusal::Changed { what: file.display().to_string() })?)
            }
        }
    }

    /// A new file in the place of the changed one.
    fn put(&self, change: &FileChange, image: &Image, tail: &Path, mtime: Option<i128>) -> Result<()> {
        self.store.ensure_parents(&change.file)?;
        let source = self.tail(tail)?;
        let fill = |new: &Open| {
            new.copy_from(&source, 0, source.len()?, 0)?;
            new.set_owner_and_mode(image.uid, image.gid, image.mode)?;
            mtime.map_or(Ok(()), |mtime| new.set_mtime(mtime))
        };
        self.store.replace(&change.file, &temporary_name(&change.file), fill, || Ok(())).map(drop)
    }
}

fn broken(change: &FileChange) -> Refusal {
    Refusal::Internal { what: format!("the journal's change of {} makes no sense", change.file.display()) }
}

/// In which state a file changed in place was found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// As before the change; more may have been appended.
    Before,
    /// As after it or half way; what begins at `growth_at` is not ours.
    Ours {
        growth_at: u64,
    },
    Unknown,
}

fn look(open: &Open, keep: u64, from: Image, to: Image, old: &Open, new: &Open) -> Result<Found> {
    let scan = Scan::of(open, &[from.len, to.len])?;
    let starts_as = |image: Image| scan.prefix(image.len) == Some(image.hash);
    let reaches = from.len.max(to.len);
    if from.len >= to.len && starts_as(from) {
        return Ok(Found::Before);
    }
    // Half way: extended with zeros, written up to some byte, not yet truncated. No client writes zeros.
    let half_way = is_mixture(open, keep, scan.len.min(reaches), old, new)?;
    if starts_as(to) {
        let not_yet_truncated = to.len < from.len && scan.len >= from.len && half_way;
        return Ok(Found::Ours { growth_at: if not_yet_truncated { from.len } else { to.len } });
    }
    if starts_as(from) && !(scan.len > from.len && half_way) {
        return Ok(Found::Before);
    }
    if half_way && scan.len >= from.len {
        return Ok(Found::Ours { growth_at: reaches.min(scan.len) });
    }
    Ok(Found::Unknown)
}

/// Whether every byte from `keep` to `end` is the old one, the new one, or a zero where there was none.
fn is_mixture(open: &Open, keep: u64, end: u64, old: &Open, new: &Open) -> Result<bool> {
    let mut buffers = [vec![0; CHUNK], vec![0; CHUNK], vec![0; CHUNK]];
    let mut at = keep;
    while at < end {
        let want = CHUNK.min((end - at) as usize);
        let [now, before, after] = &mut buffers;
        let got = open.read_full(&mut now[..want], at)?;
        let old_len = old.read_full(&mut before[..want], at - keep)?;
        let new_len = new.read_full(&mut after[..want], at - keep)?;
        for (i, byte) in now[..got].iter().enumerate() {
            let is_old = i < old_len && *byte == before[i];
            let is_new = i < new_len && *byte == after[i];
            let is_hole = i >= old_len.min(new_len) && *byte == 0;
            if !(is_old || is_new || is_hole) {
                return Ok(false);
            }
        }
        if got < want {
            break;
        }
        at += got as u64;
    }
    Ok(true)
}
