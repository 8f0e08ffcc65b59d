//! One pass over a file, front to back: lines, byte offsets, length, hash.
//!
//! Memory is one chunk plus the longest line; a run of NUL bytes, as power losses leave them by the
//! gigabyte, is counted and not kept.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::Advice;
use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

use super::Stamp;
use super::blocks::{BLOCK, BlockHasher, Blocks};
use super::metrics::{ReadKind, count_bytes};
use crate::session::{AgentKind, FileHash, Refusal, Result};

/// Bytes read at once: fits a core's second-level cache, so that hashing, splitting and parsing find the
/// bytes there.
const CHUNK: usize = 256 * 1024;

/// A physical line.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// From 1.
    pub number: u64,
    /// Byte offset of its first byte.
    pub start: u64,
    /// Byte offset behind its newline, or of the end of the file.
    pub end: u64,
    /// NUL bytes at its start that are not in `bytes`.
    pub nuls: u64,
    /// The line without its newline.
    pub bytes: &'a [u8],
    /// Whether it ends with a newline.
    pub terminated: bool,
}

impl Line<'_> {
    /// Nothing but blanks, as every known client skips it.
    pub fn is_blank(&self) -> bool {
        self.nuls == 0 && self.bytes.iter().all(u8::is_ascii_whitespace)
    }
}

/// What a pass over a file found out about the file itself.
#[derive(Clone, Copy, Debug)]
pub struct Scanned {
    /// Length of the bytes that were seen; the file's length when the pass began.
    pub len: u64,
    pub hash: FileHash,
    /// Before the pass began.
    pub stamp: Stamp,
    /// Bytes that were split into lines, and bytes that were only hashed.
    pub parsed: u64,
    pub checked: u64,
}

impl Scanned {
    /// Counts what was read of the transcript of an agent.
    pub fn count(&self, agent: AgentKind) {
        count_bytes(agent, ReadKind::Transcript, self.parsed);
        count_bytes(agent, ReadKind::Check, self.checked);
    }
}

/// Gives every line of `file` to `each`, in order. `start` makes the value that collects what is found; it
/// is called again if the file changed while it was read and has to be read once more.
///
/// A file that still changes then, and not only grows, is refused with EAGAIN. Growth behind the length at
/// the start is an append by its client and is left for the next look.
///
/// # Errors
/// What prevents reading.
pub fn scan<T>(
    file: &File,
    path: &Path,
    start: impl Fn() -> T,
    mut each: impl FnMut(&mut T, Line<'_>),
) -> Result<(T, Scanned)> {
    steady(file, path, |stamp| {
        let mut found = start();
        let stop = Cursor::new(file).lines(1, stamp.len, &mut |line| each(&mut found, line))?;
        Ok((found, stop.whole))
    })
    .map(|(found, scanned)| (found, Scanned { parsed: scanned.len, ..scanned }))
}

/// Length and hash of `file`, read as by [`scan`].
///
/// # Errors
/// What prevents reading.
pub fn hash_of(file: &File, path: &Path) -> Result<Scanned> {
    let (_, scanned) = steady(file, path, |stamp| Ok(((), Cursor::new(file).skip(stamp.len)?)))?;
    Ok(Scanned { checked: scanned.len, ..scanned })
}

/// Gives every line of `bytes` to `each`, numbered from `first_line`, with offsets from `first_byte`.
pub fn scan_bytes(bytes: &[u8], first_line: u64, first_byte: u64, mut each: impl FnMut(Line<'_>)) {
    let mut number = first_line;
    let mut at = 0;
    for newline in memchr::memchr_iter(b'\n', bytes) {
        let (start, end) = (first_byte + at as u64, first_byte + newline as u64 + 1);
        each(Line { number, start, end, nuls: 0, bytes: &bytes[at..newline], terminated: true });
        number += 1;
        at = newline + 1;
    }
    if at < bytes.len() {
        let (start, end) = (first_byte + at as u64, first_byte + bytes.len() as u64);
        each(Line { number, start, end, nuls: 0, bytes: &bytes[at..], terminated: false });
    }
}

/// Repeats `once` if the file changed under it. Its argument is the file's stamp, and so the length to read.
pub(super) fn steady<T>(
    file: &File,
    path: &Path,
    mut once: impl FnMut(&Stamp) -> std::io::Result<(T, FileHash)>,
) -> Result<(T, Scanned)> {
    let cannot = |error| Refusal::io("cannot read", path, error);
    let mut again = true;
    loop {
        let before = Stamp::of(file).map_err(cannot)?;
        let result = once(&before);
        let after = Stamp::of(file).map_err(cannot)?;
        let steady = before == after;
        let grew = after.len > before.len;
        match result {
            Ok((found, hash)) if steady || (grew && !again) => {
                return Ok((found, Scanned { len: before.len, hash, stamp: before, parsed: 0, checked: 0 }));
            }
            Err(error) if steady => return Err(cannot(error)),
            _ if again => again = false,
            _ => {
                return Err(Refusal::Io {
                    action: "cannot read (it changed while it was read)",
                    path: path.to_owned(),
                    errno: Errno::AGAIN,
                });
            }
        }
    }
}

/// Where a pass ended.
pub(super) struct Stop {
    pub place: Place,
    /// Hash of all that was read.
    pub whole: FileHash,
    /// Of all that was read.
    pub blocks: Blocks,
}

/// Behind the last complete line of a pass.
#[derive(Clone)]
pub(super) struct Place {
    /// Byte offset.
    pub at: u64,
    /// The number of the line that begins there.
    pub line: u64,
    /// Of everything before.
    hash: Xxh3,
    /// Of the bytes before `at` that are in the same block.
    partial: u64,
}

impl Place {
    /// The beginning of a file.
    pub fn start() -> Place {
        Place { at: 0, line: 1, hash: Xxh3::new(), partial: BlockHasher::default().partial() }
    }
}

/// A place in a file, with the hash of what is before it.
pub(super) struct Cursor<'f> {
    file: &'f File,
    hash: Xxh3,
    blocks: BlockHasher,
    at: u64,
}

impl Cursor<'_> {
    /// At the file's start.
    pub fn new(file: &File) -> Cursor<'_> {
        // A hint only; where it is not known, nothing is lost.
        let _ = rustix::fs::fadvise(file, 0, None, Advice::Sequential);
        Cursor { file, hash: Xxh3::new(), blocks: BlockHasher::default(), at: 0 }
    }

    /// At a place where an earlier pass stopped, if the bytes before it are the ones that pass read: all of
    /// them are read again. With it comes how many that are.
    pub fn behind<'f>(file: &'f File, place: &Place) -> std::io::Result<(Option<Cursor<'f>>, u64)> {
        let mut cursor = Cursor::new(file);
        let same = cursor.skip(place.at)? == FileHash(place.hash.digest128());
        Ok((same.then_some(cursor), place.at))
    }

    /// As [`Cursor::behind`], but only the bytes of the last block are read again, the others are believed to
    /// be those of `blocks`, which that pass read.
    pub fn believing<'f>(
        file: &'f File,
        place: &Place,
        blocks: &Blocks,
    ) -> std::io::Result<(Option<Cursor<'f>>, u64)> {
        let start = place.at - place.at % BLOCK;
        let Some(before) = blocks.whole_before(place.at) else { return Ok((None, 0)) };
        let mut cursor = Cursor { blocks: BlockHasher::behind(before), at: start, ..Cursor::new(file) };
        cursor.skip(place.at)?;
        let same = cursor.blocks.partial() == place.partial;
        cursor.hash = place.hash.clone();
        Ok((same.then_some(cursor), place.at - start))
    }

    /// Goes to byte `to`; the hash of everything before it.
    pub fn skip(&mut self, to: u64) -> std::io::Result<FileHash> {
        let mut chunk = vec![0; CHUNK];
        while self.at < to {
            let want = CHUNK.min(usize::try_from(to - self.at).unwrap_or(CHUNK));
            let got = read(self.file, &mut chunk[..want], self.at)?;
            self.hash.update(&chunk[..got]);
            self.blocks.update(&chunk[..got]);
            self.at += got as u64;
        }
        Ok(FileHash(self.hash.digest128()))
    }

    /// Gives the lines from here up to byte `len` to `each`. Here begins the line with this number.
    pub fn lines(
        mut self,
        mut number: u64,
        len: u64,
        each: &mut dyn FnMut(Line<'_>),
    ) -> std::io::Result<Stop> {
        let mut buffer = vec![0; CHUNK];
        // Of everything before `line_start`, and of what of it is in the same block.
        let (mut complete, mut partial) = (self.hash.clone(), self.blocks.partial());
        // `buffer[..held]` is the beginning of the line that starts at `line_start` + `nuls`.
        let mut held = 0;
        let (mut line_start, mut nuls) = (self.at, 0u64);
        while self.at < len {
            if buffer.len() - held < CHUNK {
                buffer.resize((buffer.len() * 2).max(held + CHUNK), 0);
            }
            let want = CHUNK.min(usize::try_from(len - self.at).unwrap_or(CHUNK));
            let got = read(self.file, &mut buffer[held..held + want], self.at)?;
            let filled = held + got;
            let lines_end = memchr::memrchr(b'\n', &buffer[held..filled]).map(|at| held + at + 1);
            if let Some(end) = lines_end {
                self.hash.update(&buffer[held..end]);
                self.blocks.update(&buffer[held..end]);
                (complete, partial) = (self.hash.clone(), self.blocks.partial());
            }
            self.hash.update(&buffer[lines_end.unwrap_or(held)..filled]);
            self.blocks.update(&buffer[lines_end.unwrap_or(held)..filled]);
            self.at += got as u64;
            let mut from = 0;
            for newline in memchr::memchr_iter(b'\n', &buffer[held..filled]) {
                let newline = held + newline;
                let bytes = &buffer[from..newline];
                let end = line_start + nuls + bytes.len() as u64 + 1;
                each(Line { number, start: line_start, end, nuls, bytes, terminated: true });
                (line_start, nuls, from) = (end, 0, newline + 1);
                number += 1;
            }
            let rest = &buffer[from..filled];
            if rest.first() == Some(&0) && rest.iter().all(|byte| *byte == 0) {
                nuls += rest.len() as u64;
                held = 0;
            } else {
                if from > 0 {
                    buffer.copy_within(from..filled, 0);
                }
                held = filled - from;
            }
        }
        if held > 0 || nuls > 0 {
            let bytes = &buffer[..held];
            each(Line { number, start: line_start, end: len, nuls, bytes, terminated: false });
        }
        let place = Place { at: line_start, line: number, hash: complete, partial };
        Ok(Stop { place, whole: FileHash(self.hash.digest128()), blocks: self.blocks.finish() })
    }
}

/// At least one byte of `file` at `at`.
fn read(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    loop {
        match file.read_at(buffer, at) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    type Owned = (u64, u64, u64, u64, Vec<u8>, bool);

    fn owned(line: Line<'_>) -> Owned {
        (line.number, line.start, line.end, line.nuls, line.bytes.to_vec(), line.terminated)
    }

    fn lines(content: &[u8]) -> (Vec<Owned>, Scanned) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, content).unwrap();
        let file = File::open(&path).unwrap();
        scan(&file, &path, Vec::new, |all, line| all.push(owned(line))).unwrap()
    }

    #[test]
    fn lines_of_any_length_are_found_with_their_offsets() {
        let long = vec![b'x'; 3 * CHUNK + 17];
        let mut content = b"one\n\n\r\n\xe2\x80\xa8two\n".to_vec();
        content.extend_from_slice(&long);
        content.extend_from_slice(b"\nlast without newline");
        for filler in [0, 1, CHUNK - 20, CHUNK - 5, CHUNK] {
            let mut content = content.clone();
            content.splice(0..0, std::iter::repeat_n(b'a', filler).chain([b'\n']));
            let (found, scanned) = lines(&content);
            let mut expected = Vec::new();
            scan_bytes(&content, 1, 0, |line| expected.push(owned(line)));
            assert_eq!(found.len(), 7);
            assert!(found == expected, "differs with {filler} bytes in front");
            assert_eq!(scanned.len, content.len() as u64);
            assert_eq!(scanned.hash, FileHash::of(&content));
            for (_, start, end, _, bytes, terminated) in found {
                let text = &content[start as usize..end as usize];
                assert_eq!(text.strip_suffix(b"\n").unwrap_or(text), bytes);
                assert_eq!(text.ends_with(b"\n"), terminated);
            }
        }
    }

    #[test]
    fn a_huge_hole_is_counted_and_not_held() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"{}\n").unwrap();
        file.set_len(64 << 20).unwrap();
        let file = File::open(&path).unwrap();
        let (found, _) = scan(&file, &path, Vec::new, |all, line| all.push(owned(line))).unwrap();
        assert_eq!(found.len(), 2);
        let (_, start, end, nuls, bytes, terminated) = &found[1];
        assert_eq!((*start, *end, *nuls, bytes.len(), *terminated), (3, 64 << 20, (64 << 20) - 3, 0, false));
    }

    #[test]
    fn a_file_that_changes_under_the_pass_is_read_once_more_and_then_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "a\nb\n").unwrap();
        let file = File::open(&path).unwrap();
        let passes = std::cell::Cell::new(0);
        let count = || passes.set(passes.get() + 1);
        let change = |_: &mut (), line: Line<'_>| {
            if line.number == 2 {
                std::fs::write(&path, "c\nd\n").unwrap();
            }
        };
        let refused = scan(&file, &path, count, change).unwrap_err();
        assert_eq!((refused.errno(), passes.get()), (Errno::AGAIN, 2));
    }

    #[test]
    fn an_append_during_the_pass_is_left_for_the_next_look() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "a\n").unwrap();
        let file = File::open(&path).unwrap();
        let append = |lines: &mut u32, _: Line<'_>| {
            *lines += 1;
            File::options().append(true).open(&path).unwrap().write_all(b"more\n").unwrap();
        };
        let (lines, scanned) = scan(&file, &path, || 0, append).unwrap();
        assert_eq!((lines, scanned.len), (2, 7));
        assert_eq!(scanned.hash, FileHash::of(b"a\nmore\n"));
    }
}
