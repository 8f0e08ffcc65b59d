//! Reading a file once, whole, for its hash: at its end, and at given lengths on the way.

use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use super::disk::{CHUNK, Open, Tree};
use super::lease::HeldLocks;
use crate::session::{FileHash, Result};

/// What one pass over a file found.
#[derive(Debug)]
pub(super) struct Scan {
    /// Bytes read.
    pub len: u64,
    /// Of all of them.
    pub hash: FileHash,
    marks: Vec<Mark>,
}

struct Mark {
    at: u64,
    /// Of the bytes before it.
    hasher: Xxh3,
    /// The last byte before it.
    last: Option<u8>,
}

impl std::fmt::Debug for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mark").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Scan {
    /// Reads `file` to its end. Marks beyond the end are not reached.
    pub fn of(file: &Open, marks: &[u64]) -> Result<Scan> {
        let mut wanted: Vec<u64> = marks.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let mut wanted = wanted.into_iter().peekable();
        let mut found = Vec::new();
        let mut hasher = Xxh3::new();
        let (mut at, mut last) = (0, None);
        let mut buffer = vec![0; CHUNK];
        loop {
            let got = file.read_full(&mut buffer, at)?;
            let mut bytes = &buffer[..got];
            while let Some(mark) = wanted.next_if(|mark| *mark <= at + bytes.len() as u64) {
                let (before, rest) = bytes.split_at((mark - at) as usize);
                hasher.update(before);
                last = before.last().copied().or(last);
                at = mark;
                bytes = rest;
                found.push(Mark { at, hasher: hasher.clone(), last });
            }
            hasher.update(bytes);
            last = bytes.last().copied().or(last);
            at += bytes.len() as u64;
            if got < buffer.len() {
                break;
            }
        }
        Ok(Scan { len: at, hash: FileHash(hasher.digest128()), marks: found })
    }

    /// The hash of the first `len` bytes, if `len` was a mark and the file is that long.
    pub fn prefix(&self, len: u64) -> Option<FileHash> {
        self.prefix_and(len, b"")
    }

    /// The hash of the first `len` bytes with `more` behind them, if `len` was a mark and the file is that long.
    pub fn prefix_and(&self, len: u64, more: &[u8]) -> Option<FileHash> {
        let mut hasher = self.mark(len)?.hasher.clone();
        hasher.update(more);
        Some(FileHash(hasher.digest128()))
    }

    fn mark(&self, at: u64) -> Option<&Mark> {
        self.marks.iter().find(|mark| mark.at == at)
    }

    /// Length and hash of the first `len` bytes, with a newline behind them if they are an unfinished
    /// line; and whether that was so.
    pub fn finished_prefix(&self, len: u64) -> Option<(u64, FileHash, bool)> {
        let newline: &[u8] = match self.mark(len)?.last {
            None | Some(b'\n') => b"",
            Some(_) => b"\n",
        };
        let hash = self.prefix_and(len, newline)?;
        Some((len + newline.len() as u64, hash, !newline.is_empty()))
    }
}

/// Scans a file of the store: through `hands` if they hold it (a leased file cannot be opened twice).
/// `None` if it is not there.
pub(super) fn scan_file(store: &Tree, hands: &HeldLocks, file: &Path, marks: &[u64]) -> Result<Option<Scan>> {
    if let Some(open) = hands.file(file) {
        return Scan::of(open, marks).map(Some);
    }
    store.read(file)?.map(|open| Scan::of(&open, marks)).transpose()
}

/// Whether a file of the store has exactly this length and hash; `None`: whether it is not there.
pub(super) fn holds(
    store: &Tree,
    hands: &HeldLocks,
    file: &Path,
    content: Option<(u64, FileHash)>,
) -> Result<bool> {
    let scan = scan_file(store, hands, file, &[])?;
    Ok(scan.map(|scan| (scan.len, scan.hash)) == content)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use xxhash_rust::xxh3::xxh3_128;

    #[test]
    fn every_prefix_hash_is_that_of_the_prefix_alone() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..CHUNK as u32 * 2 + 77).map(|i| (i * 31 % 251) as u8).collect();
        std::fs::write(dir.path().join("f"), &bytes).unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let marks = [0, 1, CHUNK as u64 - 1, CHUNK as u64, CHUNK as u64 + 1, bytes.len() as u64, 1 << 40];
        let scan = Scan::of(&tree.read(Path::new("f")).unwrap().unwrap(), &marks).unwrap();
        assert_eq!((scan.len, scan.hash), (bytes.len() as u64, FileHash(xxh3_128(&bytes))));
        for mark in &marks[..6] {
            assert_eq!(scan.prefix(*mark), Some(FileHash(xxh3_128(&bytes[..*mark as usize]))), "{mark}");
        }
        assert_eq!(scan.prefix(1 << 40), None);
    }

    #[test]
    fn a_complete_record_without_newline_gets_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), b"{}\n{}").unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let scan = Scan::of(&tree.read(Path::new("f")).unwrap().unwrap(), &[3, 5]).unwrap();
        assert_eq!(scan.finished_prefix(3), Some((3, FileHash(xxh3_128(b"{}\n")), false)));
        assert_eq!(scan.finished_prefix(5), Some((6, FileHash(xxh3_128(b"{}\n{}\n")), true)));
    }
}
