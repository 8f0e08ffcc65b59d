//! What a file consists of, by its hash: of all of it, and of given lengths at its beginning.

use std::path::Path;

use super::disk::{Open, Tree};
use super::lease::HeldLocks;
use crate::session::{FileHash, Result};
use crate::transcript::Prefix;

/// What one pass over a file found.
pub(super) struct Scan {
    /// Bytes read.
    pub len: u64,
    /// Of all of them.
    pub hash: FileHash,
    marks: Vec<Prefix>,
}

impl Scan {
    /// Reads `file` to its end. Marks beyond the end are not reached.
    pub fn of(file: &Open, marks: &[u64]) -> Result<Scan> {
        let (whole, marks) = file.prefixes(marks)?;
        Ok(Scan { len: whole.len, hash: whole.hash(), marks })
    }

    fn mark(&self, len: u64) -> Option<&Prefix> {
        self.marks.iter().find(|mark| mark.len == len)
    }

    /// The hash of the first `len` bytes, if `len` was a mark and the file is that long.
    pub fn prefix(&self, len: u64) -> Option<FileHash> {
        self.mark(len).map(Prefix::hash)
    }

    /// The hash of the first `len` bytes with `more` behind them, if `len` was a mark and the file is that long.
    pub fn prefix_and(&self, len: u64, more: &[u8]) -> Option<FileHash> {
        self.mark(len).map(|mark| mark.hash_with(more))
    }

    /// As [`Prefix::finished`], of the first `len` bytes.
    pub fn finished_prefix(&self, len: u64) -> Option<(u64, FileHash, bool)> {
        self.mark(len).map(Prefix::finished)
    }
}

/// Scans a file of the store. `None` if it is not there.
pub(super) fn scan_file(store: &Tree, hands: &HeldLocks, file: &Path, marks: &[u64]) -> Result<Option<Scan>> {
    hands.read(store, file, |open| Scan::of(open, marks))
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
    use super::super::disk::CHUNK;
    use super::*;

    #[test]
    fn every_prefix_hash_is_that_of_the_prefix_alone() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..CHUNK as u32 * 2 + 77).map(|i| (i * 31 % 251) as u8).collect();
        std::fs::write(dir.path().join("f"), &bytes).unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let marks = [0, 1, CHUNK as u64 - 1, CHUNK as u64, CHUNK as u64 + 1, bytes.len() as u64, 1 << 40];
        let scan = Scan::of(&tree.read(Path::new("f")).unwrap().unwrap(), &marks).unwrap();
        assert_eq!((scan.len, scan.hash), (bytes.len() as u64, FileHash::of(&bytes)));
        for mark in &marks[..6] {
            assert_eq!(scan.prefix(*mark), Some(FileHash::of(&bytes[..*mark as usize])), "{mark}");
        }
        assert_eq!(scan.prefix(1 << 40), None);
    }

    #[test]
    fn a_complete_record_without_newline_gets_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), b"{}\n{}").unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let scan = Scan::of(&tree.read(Path::new("f")).unwrap().unwrap(), &[3, 5]).unwrap();
        assert_eq!(scan.finished_prefix(3), Some((3, FileHash::of(b"{}\n"), false)));
        assert_eq!(scan.finished_prefix(5), Some((6, FileHash::of(b"{}\n{}\n"), true)));
    }
}
