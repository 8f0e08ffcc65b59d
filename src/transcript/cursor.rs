//! A place in a file: what is before it as a hash, and the lines behind it.
//!
//! Memory is one chunk plus the longest line, of which no more than [`LONGEST_LINE`] bytes are held; a run of
//! NUL bytes, as power losses leave them by the gigabyte, is counted and not kept.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread;

use rustix::fs::Advice;
use xxhash_rust::xxh3::Xxh3;

use super::blocks::{BLOCK, BlockHasher, Blocks};
use super::compressed;
use super::scan::{LONGEST_LINE, Line};
use crate::session::FileHash;

/// Bytes read at once: fits a core's second-level cache, so that hashing, splitting and parsing find the
/// bytes there.
pub(super) const CHUNK: usize = 256 * 1024;

/// Files with so many bytes to read, at least, are read in larger pieces, whose lines several threads parse.
const LARGE: u64 = 4 << 20;
const CHUNKS_AT_ONCE: usize = 4;
const MOST_THREADS: usize = 4;

/// The bytes of a file before some place.
#[derive(Clone, Default)]
pub struct Prefix {
    /// How many.
    pub len: u64,
    hash: Xxh3,
    last: Option<u8>,
}

impl Prefix {
    /// These bytes follow.
    pub fn add(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        self.hash.update(bytes);
        self.last = bytes.last().copied().or(self.last);
    }

    pub fn hash(&self) -> FileHash {
        FileHash(self.hash.digest128())
    }

    /// The hash with `more` behind these bytes.
    pub fn hash_with(&self, more: &[u8]) -> FileHash {
        let mut whole = self.clone();
        whole.add(more);
        whole.hash()
    }

    /// Length and hash, with a newline behind the bytes if they are an unfinished line; and whether that was so.
    pub fn finished(&self) -> (u64, FileHash, bool) {
        let mut whole = self.clone();
        let newline = self.last.is_some_and(|last| last != b'\n');
        if newline {
            whole.add(b"\n");
        }
        (whole.len, whole.hash(), newline)
    }
}

/// Where a pass ended.
pub(super) struct Stop {
    pub place: Place,
    /// Length and hash of all that was read.
    pub len: u64,
    pub whole: FileHash,
    /// The same as hashes of blocks.
    pub blocks: Blocks,
}

/// Behind the last complete line of a pass.
#[derive(Clone)]
pub(super) struct Place {
    /// Everything before.
    pub before: Prefix,
    /// The number of the line that begins there.
    pub line: u64,
    /// Hash of the bytes before that are in the same block.
    partial: u64,
}

impl Place {
    /// The beginning of a file.
    pub fn start() -> Place {
        Place { before: Prefix::default(), line: 1, partial: BlockHasher::default().partial() }
    }

    /// Byte offset.
    pub fn at(&self) -> u64 {
        self.before.len
    }
}

/// Where the bytes of a pass come from, in order.
pub(super) enum Source<'f> {
    /// The file's first `len` bytes.
    Plain { file: &'f File, len: u64 },
    /// What a compressed file holds, to its end.
    Packed(Box<dyn Read + 'f>),
}

impl Source<'_> {
    /// The plain content of a file of which `len` bytes are to be read; `path` says whether it is compressed.
    pub fn of<'f>(file: &'f File, path: &Path, len: u64) -> std::io::Result<Source<'f>> {
        Ok(match compressed::is_packed(path) {
            true => Source::Packed(compressed::from_start(file)?),
            false => Source::Plain { file, len },
        })
    }

    /// Reads the bytes at `at`, where the last ones ended; 0 at the end.
    fn read(&mut self, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
        loop {
            let got = match self {
                Source::Plain { len, .. } if at >= *len => return Ok(0),
                Source::Plain { file, len } => {
                    let want = buffer.len().min(usize::try_from(*len - at).unwrap_or(usize::MAX));
                    match file.read_at(&mut buffer[..want], at) {
                        Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                        result => result,
                    }
                }
                Source::Packed(stream) => stream.read(buffer),
            };
            match got {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

/// A place in a file, with what is before it.
pub(super) struct Cursor<'f> {
    source: Source<'f>,
    before: Prefix,
    blocks: BlockHasher,
}

impl<'f> Cursor<'f> {
    /// At the file's start.
    pub fn new(source: Source<'f>) -> Cursor<'f> {
        if let Source::Plain { file, .. } = source {
            // A hint only; where it is not known, nothing is lost.
            let _ = rustix::fs::fadvise(file, 0, None, Advice::Sequential);
        }
        Cursor { source, before: Prefix::default(), blocks: BlockHasher::default() }
    }

    /// At a place where an earlier pass stopped, if the bytes before it are the ones that pass read: all of
    /// them are read again. With it comes how many that are.
    pub fn behind(source: Source<'f>, place: &Place) -> std::io::Result<(Option<Cursor<'f>>, u64)> {
        let mut cursor = Cursor::new(source);
        let same = cursor.to(place.at())?.hash() == place.before.hash();
        Ok((same.then_some(cursor), place.at()))
    }

    /// As [`Cursor::behind`], but only the bytes of the last block are read again, the others are believed to
    /// be those of `blocks`, which that pass read. Not of a compressed file.
    pub fn believing(
        source: Source<'f>,
        place: &Place,
        blocks: &Blocks,
    ) -> std::io::Result<(Option<Cursor<'f>>, u64)> {
        let start = place.at() - place.at() % BLOCK;
        let Some(blocks) = blocks.whole_before(place.at()) else { return Ok((None, 0)) };
        let mut cursor = Cursor { blocks: BlockHasher::behind(blocks), ..Cursor::new(source) };
        cursor.before.len = start;
        cursor.to(place.at())?;
        let same = cursor.blocks.partial() == place.partial;
        cursor.before = place.before.clone();
        Ok((same.then_some(cursor), place.at() - start))
    }

    /// Goes to byte `to`, or to the end where that comes first; everything before.
    pub fn to(&mut self, to: u64) -> std::io::Result<&Prefix> {
        let mut chunk = vec![0; CHUNK];
        while self.before.len < to {
            let want = CHUNK.min(usize::try_from(to - self.before.len).unwrap_or(CHUNK));
            let got = self.source.read(&mut chunk[..want], self.before.len)?;
            if got == 0 {
                break;
            }
            self.pass(&chunk[..got]);
        }
        Ok(&self.before)
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.before.add(bytes);
        self.blocks.update(bytes);
    }

    /// Gives the lines from here to the end to `each`. Here begins the line with this number.
    pub fn lines(self, number: u64, each: &mut dyn FnMut(Line<'_>)) -> std::io::Result<Stop> {
        self.mapped(number, CHUNK, &|lines| vec![(); lines.len()], &mut |line, ()| each(line))
    }

    /// As [`Cursor::lines`], with what `map` makes of each line, on several threads where that is worth it.
    pub fn lines_with<M: Send>(
        self,
        number: u64,
        map: &(impl Fn(&Line<'_>) -> M + Sync),
        each: &mut dyn FnMut(Line<'_>, M),
    ) -> std::io::Result<Stop> {
        let threads = std::thread::available_parallelism().map_or(1, |all| all.get().min(MOST_THREADS));
        let chunk = if threads > 1 && self.left() >= LARGE { CHUNK * CHUNKS_AT_ONCE } else { CHUNK };
        self.mapped(number, chunk, &|lines| on_threads(threads, lines, map), each)
    }

    /// How many bytes there are at least from here to the end.
    fn left(&self) -> u64 {
        match self.source {
            Source::Plain { len, .. } => len.saturating_sub(self.before.len),
            Source::Packed(_) => 0,
        }
    }

    /// `map` makes something of each line of a chunk of so many bytes.
    fn mapped<M>(
        mut self,
        mut number: u64,
        chunk: usize,
        map: &dyn Fn(&[Line<'_>]) -> Vec<M>,
        each: &mut dyn FnMut(Line<'_>, M),
    ) -> std::io::Result<Stop> {
        let mut buffer = vec![0; chunk];
        // Of everything before `line_start`, and of what of it is in the same block.
        let (mut complete, mut partial) = (self.before.clone(), self.blocks.partial());
        // `buffer[..held]` is the beginning of the line that starts at `line_start` + `nuls`; of a line that is
        // too long nothing is held, and `dropped` counts what is not.
        let mut held = 0;
        let (mut line_start, mut nuls, mut dropped) = (self.before.len, 0u64, 0u64);
        loop {
            if buffer.len() - held < chunk {
                buffer.resize((buffer.len() * 2).min(LONGEST_LINE + chunk).max(held + chunk), 0);
            }
            let got = self.source.read(&mut buffer[held..held + chunk], self.before.len)?;
            if got == 0 {
                break;
            }
            let filled = held + got;
            let lines_end = memchr::memrchr(b'\n', &buffer[held..filled]).map(|at| held + at + 1);
            if let Some(end) = lines_end {
                self.pass(&buffer[held..end]);
                (complete, partial) = (self.before.clone(), self.blocks.partial());
            }
            self.pass(&buffer[lines_end.unwrap_or(held)..filled]);
            let mut from = 0;
            let mut lines = Vec::new();
            for newline in memchr::memchr_iter(b'\n', &buffer[held..filled]) {
                let newline = held + newline;
                let bytes = &buffer[from..newline];
                let end = line_start + nuls + dropped + bytes.len() as u64 + 1;
                let too_long = dropped > 0 || bytes.len() > LONGEST_LINE;
                let bytes = if too_long { &[] } else { bytes };
                lines.push(Line { number, start: line_start, end, nuls, bytes, too_long, terminated: true });
                (line_start, nuls, dropped, from) = (end, 0, 0, newline + 1);
                number += 1;
            }
            let made = map(&lines);
            lines.into_iter().zip(made).for_each(|(line, made)| each(line, made));
            let rest = &buffer[from..filled];
            if dropped > 0 || rest.len() > LONGEST_LINE {
                dropped += rest.len() as u64;
                held = 0;
                buffer.truncate(chunk);
                buffer.shrink_to_fit();
            } else if rest.first() == Some(&0) && rest.iter().all(|byte| *byte == 0) {
                nuls += rest.len() as u64;
                held = 0;
            } else {
                if from > 0 {
                    buffer.copy_within(from..filled, 0);
                }
                held = filled - from;
            }
        }
        if held > 0 || nuls > 0 || dropped > 0 {
            let (bytes, end, too_long) = (&buffer[..held], self.before.len, dropped > 0);
            let line = Line { number, start: line_start, end, nuls, bytes, too_long, terminated: false };
            map(&[line]).into_iter().for_each(|made| each(line, made));
        }
        let place = Place { before: complete, line: number, partial };
        Ok(Stop { place, len: self.before.len, whole: self.before.hash(), blocks: self.blocks.finish() })
    }
}

/// What `map` makes of these lines, in their order: each thread takes about as many bytes.
fn on_threads<M: Send>(threads: usize, lines: &[Line<'_>], map: &(impl Fn(&Line<'_>) -> M + Sync)) -> Vec<M> {
    let bytes: usize = lines.iter().map(|line| line.bytes.len()).sum();
    if threads < 2 || bytes < CHUNK {
        return lines.iter().map(map).collect();
    }
    let mut before = 0;
    let half = lines.iter().position(|line| {
        before += line.bytes.len();
        before > bytes / 2
    });
    let (first, second) = lines.split_at(half.unwrap_or(lines.len()));
    thread::scope(|scope| {
        let other = thread::Builder::new().name("parse".into());
        let other = other.spawn_scoped(scope, || on_threads(threads / 2, second, map));
        let mut made = on_threads(threads - threads / 2, first, map);
        match other {
            Ok(other) => made.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic))),
            // No thread is to be had.
            Err(_) => made.extend(second.iter().map(map)),
        }
        made
    })
}
