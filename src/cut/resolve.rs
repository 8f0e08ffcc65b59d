//! From an agent's steps to changes: what each touched file is now and must be afterwards, and the copies
//! of both that the undo directory keeps.

use std::path::{Path, PathBuf};

use super::disk::{Open, Tree, mtime};
use super::journal::{Direction, FileChange, How, Image, Seen};
use super::lease::HeldLocks;
use super::scan::{Scan, scan_file};
use crate::session::{Changes, Content, FileHash, FileView, Part, Refusal, Result, Step};
use crate::transcript::{self, Prefix};

/// The files that a plan was made from, as they are under the locks.
pub(super) struct LockedSources {
    scans: Vec<(PathBuf, Option<Scan>)>,
    marks: Vec<Mark>,
    /// Anything was written behind what the plan saw.
    pub grew: bool,
}

/// A file and a length, in bytes, at which its hash is needed: wherever a plan cuts it.
pub(super) type Mark = (PathBuf, u64);

/// A change and where its new tail comes from.
pub(super) struct Resolved {
    pub change: FileChange,
    tail: Tail,
}

enum Tail {
    Nothing,
    Bytes(Vec<u8>),
    Prefix { file: PathBuf, bytes: u64, newline: bool },
    Parts { parts: Vec<Part>, newline: bool },
}

/// Whether a file that only grew behind what was seen counts as unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    Refused,
    Accepted,
}

impl LockedSources {
    /// Reads every file that the plan was made from and compares it with what the plan saw.
    pub fn check(
        store: &Tree,
        hands: &HeldLocks,
        based_on: &[FileView],
        marks: Vec<Mark>,
        growth: Growth,
    ) -> Result<LockedSources> {
        let mut scans = Vec::new();
        let mut grew = false;
        for view in based_on {
            let mut wanted = marks_in(&marks, &view.file);
            wanted.extend(view.len);
            let scan = scan_file(store, hands, &view.file, &wanted)?;
            if !is_as_seen(view, scan.as_ref(), growth) {
                return Err(Refusal::Changed { what: view.file.display().to_string() });
            }
            grew |= scan.as_ref().map(|scan| scan.len) > view.len;
            scans.push((view.file.clone(), scan));
        }
        Ok(LockedSources { scans, marks, grew })
    }

    /// The scan of a file; one that the plan did not name is read now.
    fn scan(&mut self, store: &Tree, hands: &HeldLocks, file: &Path) -> Result<Option<&Scan>> {
        let at = match self.scans.iter().position(|(known, _)| known == file) {
            Some(at) => at,
            None => {
                let scan = scan_file(store, hands, file, &marks_in(&self.marks, file))?;
                self.scans.push((file.to_owned(), scan));
                self.scans.len() - 1
            }
        };
        Ok(self.scans[at].1.as_ref())
    }

    /// Every file of the ground as the changes leave it.
    pub fn left_by(&self, changes: &[FileChange]) -> Vec<Seen> {
        let untouched = self.scans.iter().filter(|(file, _)| changes.iter().all(|c| *c.file != **file));
        let untouched = untouched.map(|(file, scan)| Seen {
            file: file.into(),
            len: scan.as_ref().map(|scan| scan.len),
            hash: scan.as_ref().map_or(FileHash::of(b""), |scan| scan.hash),
        });
        let touched = changes.iter().map(|change| Seen {
            file: change.file.clone(),
            len: change.after.map(|image| image.len),
            hash: change.after.map_or(FileHash::of(b""), |image| image.hash),
        });
        untouched.chain(touched).collect()
    }

    /// What the steps change, growing files first: what a full disk refuses is refused before
    /// anything was made shorter.
    pub fn resolve(&mut self, store: &Tree, hands: &HeldLocks, changes: &Changes) -> Result<Vec<Resolved>> {
        let mut resolved = Vec::new();
        for step in &changes.steps {
            resolved.extend(self.resolve_step(store, hands, step)?);
        }
        resolved.sort_by_key(|resolved: &Resolved| {
            let (before, after) = (resolved.change.before, resolved.change.after);
            match (before, after) {
                (_, Some(after)) if after.len > before.map_or(0, |image| image.len) => 0,
                (_, Some(_)) => 1,
                (_, None) => 2,
            }
        });
        Ok(resolved)
    }

    fn resolve_step(&mut self, store: &Tree, hands: &HeldLocks, step: &Step) -> Result<Option<Resolved>> {
        let (file, content) = match step {
            Step::KeepPrefix { file, bytes } => {
                let (before, _) = self.image(store, hands, file)?;
                let Some(before) = before else { return Err(gone(file)) };
                let scan = self.scan(store, hands, file)?;
                let Some((len, hash, newline)) = scan.and_then(|scan| scan.finished_prefix(*bytes)) else {
                    return Err(Refusal::Changed { what: file.display().to_string() });
                };
                if len == before.len && hash == before.hash {
                    return Ok(None);
                }
                let tail = if newline { Tail::Bytes(b"\n".to_vec()) } else { Tail::Nothing };
                let after = Some(Image { len, hash, ..before });
                let how = How::InPlace;
                let change = FileChange { file: file.into(), how, keep: *bytes, before: Some(before), after };
                return Ok(Some(Resolved { change, tail }));
            }
            Step::Append { file, at, bytes } => {
                let (before, _) = self.image(store, hands, file)?;
                let Some(before) = before else { return Err(gone(file)) };
                let scan = self.scan(store, hands, file)?;
                let Some(hash) = scan.and_then(|scan| scan.prefix_and(*at, bytes)) else {
                    return Err(Refusal::Changed { what: file.display().to_string() });
                };
                let after = Some(Image { len: at + bytes.len() as u64, hash, ..before });
                let how = How::InPlace;
                let change = FileChange { file: file.into(), how, keep: *at, before: Some(before), after };
                return Ok(Some(Resolved { change, tail: Tail::Bytes(bytes.clone()) }));
            }
            Step::MoveAside { file } => {
                let (before, _) = self.image(store, hands, file)?;
                let Some(before) = before else { return Ok(None) };
                let change = FileChange {
                    file: file.into(),
                    how: How::Rename,
                    keep: 0,
                    before: Some(before),
                    after: None,
                };
                return Ok(Some(Resolved { change, tail: Tail::Nothing }));
            }
            Step::Overwrite { file, content } | Step::Replace { file, content } => (file, content),
        };
        let (before, fresh) = self.image(store, hands, file)?;
        let (len, hash, tail) = self.content(store, hands, content)?;
        let after = Some(Image { len, hash, ..before.unwrap_or(fresh) });
        // A file that is not there has no inode to keep.
        let in_place = matches!(step, Step::Overwrite { .. }) && before.is_some();
        let how = if in_place { How::InPlace } else { How::Rename };
        Ok(Some(Resolved { change: FileChange { file: file.into(), how, keep: 0, before, after }, tail }))
    }

    /// The file as it is, and what a new one in its place would be like.
    fn image(&mut self, store: &Tree, hands: &HeldLocks, file: &Path) -> Result<(Option<Image>, Image)> {
        let facts = match hands.file(file) {
            Some(open) => Some(open.facts()?),
            None => store.stat(file)?,
        };
        let scan = self.scan(store, hands, file)?;
        let owner = store.facts()?;
        let fresh = Image {
            len: 0,
            hash: FileHash::of(b""),
            mode: 0o600,
            uid: owner.st_uid,
            gid: owner.st_gid,
            mtime: 0,
        };
        let image = scan.zip(facts).map(|(scan, facts)| Image {
            len: scan.len,
            hash: scan.hash,
            mode: facts.st_mode & 0o7777,
            uid: facts.st_uid,
            gid: facts.st_gid,
            mtime: mtime(&facts),
        });
        Ok((image, fresh))
    }

    /// Length and hash of new content.
    fn content(
        &mut self,
        store: &Tree,
        hands: &HeldLocks,
        content: &Content,
    ) -> Result<(u64, FileHash, Tail)> {
        match content {
            Content::Bytes(bytes) => {
                let hash = FileHash::of(bytes);
                Ok((bytes.len() as u64, hash, Tail::Bytes(bytes.clone())))
            }
            Content::Prefix { file, bytes } => {
                let scan = self.scan(store, hands, file)?.ok_or_else(|| gone(file))?;
                let (len, hash, newline) = scan.finished_prefix(*bytes).ok_or_else(|| gone(file))?;
                Ok((len, hash, Tail::Prefix { file: file.clone(), bytes: *bytes, newline }))
            }
            Content::Parts(parts) => {
                let mut passed = Prefix::default();
                each_part(store, hands, parts, |bytes| {
                    passed.add(bytes);
                    Ok(())
                })?;
                let (len, hash, newline) = passed.finished();
                Ok((len, hash, Tail::Parts { parts: parts.clone(), newline }))
            }
            Content::Whole { file } => {
                let scan = self.scan(store, hands, file)?.ok_or_else(|| gone(file))?;
                Ok((
                    scan.len,
                    scan.hash,
                    Tail::Prefix { file: file.clone(), bytes: scan.len, newline: false },
                ))
            }
        }
    }

    /// Writes new content into a file made for it; its length and hash.
    pub fn write_content(
        &mut self,
        store: &Tree,
        hands: &HeldLocks,
        content: &Content,
        into: &Open,
    ) -> Result<(u64, FileHash)> {
        let (len, hash, tail) = self.content(store, hands, content)?;
        write_tail(store, hands, &tail, into)?;
        Ok((len, hash))
    }
}

impl Resolved {
    /// Puts both states' tails into the undo directory `dir` of `backup`, durable.
    pub fn back_up(&self, index: usize, store: &Tree, hands: &HeldLocks, backup: &Tree) -> Result<()> {
        let before = backup.create(&Direction::Undo.start_tail(index))?;
        if let Some(image) = self.change.before {
            let FileChange { file, keep, .. } = &self.change;
            let copy = |source: &Open| before.copy_from(source, *keep, image.len - keep, 0);
            hands.read(store, file, copy)?.ok_or_else(|| gone(file))?;
        }
        before.sync()?;
        let after = backup.create(&Direction::Undo.goal_tail(index))?;
        write_tail(store, hands, &self.tail, &after)?;
        after.sync()
    }
}

fn write_tail(store: &Tree, hands: &HeldLocks, tail: &Tail, into: &Open) -> Result<()> {
    match tail {
        Tail::Nothing => Ok(()),
        Tail::Bytes(bytes) => into.write_all(bytes, 0),
        Tail::Prefix { file, bytes, newline } => {
            let copy = |source: &Open| into.copy_from(source, 0, *bytes, 0);
            hands.read(store, file, copy)?.ok_or_else(|| gone(file))?;
            if *newline { into.write_all(b"\n", *bytes) } else { Ok(()) }
        }
        Tail::Parts { parts, newline } => {
            let mut at = 0;
            each_part(store, hands, parts, |bytes| {
                into.write_all(bytes, at)?;
                at += bytes.len() as u64;
                Ok(())
            })?;
            if *newline { into.write_all(b"\n", at) } else { Ok(()) }
        }
    }
}

/// A file for reading its plain content; a compressed one is unpacked.
fn plain(store: &Tree, file: &Path) -> Result<Open> {
    let opened = store.read(file)?.ok_or_else(|| gone(file))?;
    let path = store.path().join(file);
    Ok(Open::of(transcript::plain(opened.file, &path)?, path))
}

/// Gives the bytes of all parts to `each`, in order, in pieces of bounded size. There may be many small parts: they are
/// read and handed on together.
fn each_part(
    store: &Tree,
    hands: &HeldLocks,
    parts: &[Part],
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut out = Vec::with_capacity(super::disk::CHUNK);
    let mut put = |bytes: &[u8]| {
        if out.len() + bytes.len() > super::disk::CHUNK {
            each(&out)?;
            out.clear();
        }
        out.extend_from_slice(bytes);
        Ok(())
    };
    let mut window = Window { file: None, start: 0, bytes: vec![0; super::disk::CHUNK], len: 0 };
    let mut last: Option<(PathBuf, Open)> = None;
    for part in parts {
        let piece = match part {
            Part::Bytes(bytes) => {
                bytes.chunks(super::disk::CHUNK).try_for_each(&mut put)?;
                continue;
            }
            Part::Piece(piece) => piece,
        };
        let source = match hands.file(&piece.file) {
            Some(open) => open,
            None => {
                if last.as_ref().is_none_or(|(file, _)| *file != *piece.file) {
                    last = Some((piece.file.to_path_buf(), plain(store, &piece.file)?));
                }
                let Some((_, open)) = &last else { return Err(gone(&piece.file)) };
                open
            }
        };
        let mut at = piece.span.start;
        while at < piece.span.end {
            let bytes = window.at(source, &piece.file, at..piece.span.end)?;
            put(bytes)?;
            at += bytes.len() as u64;
        }
    }
    each(&out)
}

/// The bytes of a file that were read last.
struct Window<'p> {
    file: Option<&'p Path>,
    start: u64,
    bytes: Vec<u8>,
    len: usize,
}

impl<'p> Window<'p> {
    /// How much is read at least, bytes: more than a small part, as the next one is near, as a rule.
    const AHEAD: u64 = 64 * 1024;

    /// Bytes at the beginning of `span` in `source`, which is `file`; at least one.
    fn at(&mut self, source: &Open, file: &'p Path, span: std::ops::Range<u64>) -> Result<&[u8]> {
        let is_there = |at: u64| at >= self.start && at < self.start + self.len as u64;
        if self.file != Some(file) || !is_there(span.start) {
            let want = (span.end - span.start).max(Self::AHEAD).min(self.bytes.len() as u64) as usize;
            self.len = source.read_full(&mut self.bytes[..want], span.start)?;
            (self.file, self.start) = (Some(file), span.start);
        }
        let from = (span.start - self.start) as usize;
        let to = self.len.min((span.end - self.start) as usize);
        if from >= to { Err(gone(file)) } else { Ok(&self.bytes[from..to]) }
    }
}

/// The marks of new content that is the beginning of another file.
pub(super) fn marks<'c>(contents: impl IntoIterator<Item = &'c Content>) -> Vec<Mark> {
    let prefix = |content: &Content| match content {
        Content::Prefix { file, bytes } => Some((file.clone(), *bytes)),
        Content::Whole { .. } | Content::Bytes(_) | Content::Parts(_) => None,
    };
    contents.into_iter().filter_map(prefix).collect()
}

/// The marks of an undo.
pub(super) fn marks_of(changes: &Changes) -> Vec<Mark> {
    let kept = changes.steps.iter().filter_map(|step| match step {
        Step::KeepPrefix { file, bytes } => Some((file.clone(), *bytes)),
        Step::Append { file, at, .. } => Some((file.clone(), *at)),
        Step::Overwrite { .. } | Step::Replace { .. } | Step::MoveAside { .. } => None,
    });
    marks(changes.contents()).into_iter().chain(kept).collect()
}

fn marks_in(marks: &[Mark], file: &Path) -> Vec<u64> {
    marks.iter().filter(|(of, _)| of == file).map(|(_, bytes)| *bytes).collect()
}

fn is_as_seen(view: &FileView, scan: Option<&Scan>, growth: Growth) -> bool {
    match (view.len, scan) {
        (None, None) => true,
        (None, Some(_)) | (Some(_), None) => false,
        (Some(len), Some(scan)) => {
            let grown_ok = growth == Growth::Accepted || scan.len == len;
            grown_ok && scan.prefix(len) == Some(view.hash)
        }
    }
}

fn gone(file: &Path) -> Refusal {
    Refusal::Changed { what: file.display().to_string() }
}
