//! Hashes of a file's blocks: with them any part of a file is proven again by reading that part alone.
//!
//! A file that only seems to have grown may have been changed in its old part too; no stamp tells. To hash the
//! whole old part at each look costs as much as the file is large, for as long as an agent writes to it. So
//! the old part is believed until a turn in it is shown, and then that turn's blocks are compared.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use jiff::Timestamp;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::stamp::clock;
use super::{Stamp, StoreDir};
use crate::session::{Refusal, Result};

/// Bytes that have one hash.
pub const BLOCK: u64 = 64 * 1024;

/// Hashes blocks while a file's bytes go by, from its start.
#[derive(Clone, Default)]
pub(super) struct BlockHasher {
    done: Vec<u64>,
    current: Xxh3,
    /// Bytes in `current`.
    filled: u64,
}

impl BlockHasher {
    /// Goes on behind whole blocks with these hashes.
    pub fn behind(done: Vec<u64>) -> BlockHasher {
        BlockHasher { done, ..BlockHasher::default() }
    }

    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = (BLOCK - self.filled) as usize;
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            if now.len() as u64 == BLOCK {
                self.done.push(xxh3_64(now));
            } else {
                self.current.update(now);
                self.filled += now.len() as u64;
                if self.filled == BLOCK {
                    self.done.push(self.current.digest());
                    (self.current, self.filled) = (Xxh3::new(), 0);
                }
            }
            bytes = rest;
        }
    }

    /// Hash of the bytes behind the last whole block.
    pub fn partial(&self) -> u64 {
        self.current.digest()
    }

    pub fn finish(mut self) -> Blocks {
        let len = self.done.len() as u64 * BLOCK + self.filled;
        if self.filled > 0 {
            self.done.push(self.current.digest());
        }
        Blocks { hashes: self.done, len }
    }
}

/// The bytes of a file as hashes: one for each 64 KiB, the last for what is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    hashes: Vec<u64>,
    /// Bytes.
    len: u64,
}

impl Blocks {
    /// The hashes of the whole blocks before byte `at`.
    pub(super) fn whole_before(&self, at: u64) -> Option<Vec<u64>> {
        self.hashes.get(..(at / BLOCK) as usize).map(<[u64]>::to_vec)
    }

    /// Which blocks hold these bytes.
    fn of(&self, span: &Range<u64>) -> Range<u64> {
        if span.is_empty() { 0..0 } else { span.start / BLOCK..span.end.div_ceil(BLOCK) }
    }

    /// Where a block lies.
    fn place(&self, block: u64) -> Range<u64> {
        block * BLOCK..((block + 1) * BLOCK).min(self.len)
    }
}

/// The bytes of a file as they were read, and which of them are certainly on disk while the file's stamp is the
/// one they were read under.
pub struct Evidence {
    /// Relative to the store's root.
    pub file: PathBuf,
    stamp: Stamp,
    blocks: Blocks,
    /// One bit a block.
    proven: Box<[AtomicU64]>,
    /// How many blocks are not proven.
    missing: AtomicU64,
    /// Other bytes were found: what was read is not what is on disk.
    refuted: AtomicBool,
}

impl std::fmt::Debug for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evidence").field("file", &self.file).field("missing", &self.missing).finish()
    }
}

impl Evidence {
    /// `read_at`: from [`clock`], before the bytes behind the first `believed` ones were read; those were read
    /// under an older stamp.
    pub fn new(file: PathBuf, stamp: Stamp, blocks: Blocks, read_at: Timestamp, believed: u64) -> Evidence {
        let count = blocks.hashes.len();
        let proven = (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let missing = AtomicU64::new(count as u64);
        let evidence = Evidence { file, stamp, blocks, proven, missing, refuted: AtomicBool::new(false) };
        if stamp.vouches(read_at) {
            // The block in which the new bytes begin was read as a whole.
            evidence.prove(believed / BLOCK..count as u64);
        }
        evidence
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.blocks.len
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.len == 0
    }

    /// Whether these bytes certainly are on disk as they were read, if the file's stamp is the same.
    pub fn proves(&self, span: &Range<u64>) -> bool {
        self.missing.load(Ordering::Acquire) == 0 || self.blocks.of(span).all(|block| self.has(block))
    }

    /// As [`Evidence::proves`], of all bytes.
    pub fn proves_all(&self) -> bool {
        self.missing.load(Ordering::Acquire) == 0
    }

    /// Whether other bytes were found than those that were read.
    pub fn is_refuted(&self) -> bool {
        self.refuted.load(Ordering::Acquire)
    }

    /// Nothing is proven any more.
    pub fn doubt(&self) {
        for word in &self.proven {
            let before = word.swap(0, Ordering::AcqRel);
            self.missing.fetch_add(before.count_ones().into(), Ordering::AcqRel);
        }
    }

    /// All bytes have just been compared by other means; `read_at` as in [`Evidence::new`].
    pub fn compared(&self, read_at: Timestamp) {
        if self.stamp.vouches(read_at) {
            self.prove(0..self.blocks.hashes.len() as u64);
        }
    }

    /// The bytes `span`, compared with what was read before. With them comes how many bytes that took.
    ///
    /// # Errors
    /// [`Refusal::Changed`] if they are others now; and what prevents reading.
    pub fn read(&self, store: &StoreDir, span: Range<u64>) -> Result<(Vec<u8>, u64)> {
        let blocks = self.blocks.of(&span);
        if blocks.is_empty() {
            return Ok((Vec::new(), 0));
        }
        let place = self.blocks.place(blocks.start).start..self.blocks.place(blocks.end - 1).end;
        let mut bytes = self.compare(store, place.clone())?;
        let read = bytes.len() as u64;
        bytes.truncate((span.end - place.start) as usize);
        bytes.drain(..(span.start - place.start) as usize);
        Ok((bytes, read))
    }

    /// Compares everything that is not proven yet, a piece at a time; how many bytes that took.
    ///
    /// # Errors
    /// As [`Evidence::read`].
    pub fn read_the_rest(&self, store: &StoreDir) -> Result<u64> {
        /// Blocks that are read at once.
        const PIECE: u64 = 16;
        let mut read = 0;
        let mut block = 0;
        while block < self.blocks.hashes.len() as u64 {
            let piece = block..(block + PIECE).min(self.blocks.hashes.len() as u64);
            if !piece.clone().all(|block| self.has(block)) {
                let place = self.blocks.place(piece.start).start..self.blocks.place(piece.end - 1).end;
                read += self.compare(store, place)?.len() as u64;
            }
            block = piece.end;
        }
        Ok(read)
    }

    /// Reads whole blocks.
    fn compare(&self, store: &StoreDir, place: Range<u64>) -> Result<Vec<u8>> {
        let changed = || {
            self.refuted.store(true, Ordering::Release);
            Refusal::Changed { what: self.file.display().to_string() }
        };
        let read_at = clock();
        if place.end > self.blocks.len {
            return Err(changed());
        }
        let file = store.file(&self.file)?.ok_or_else(changed)?;
        let path = store.path().join(&self.file);
        let stamp = Stamp::of(&file).map_err(|error| Refusal::io("cannot look at", &path, error))?;
        let bytes = super::read_span(&file, &path, place.clone())?.ok_or_else(changed)?;
        let first = place.start / BLOCK;
        let hashes = bytes.chunks(BLOCK as usize).map(xxh3_64);
        let known = self.blocks.hashes.iter().skip(first as usize).copied();
        if !hashes.eq(known.take(bytes.chunks(BLOCK as usize).len())) {
            return Err(changed());
        }
        if stamp == self.stamp && stamp.vouches(read_at) {
            self.prove(first..place.end.div_ceil(BLOCK));
        }
        Ok(bytes)
    }

    fn has(&self, block: u64) -> bool {
        let word = self.proven.get((block / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) & (1 << (block % 64)) != 0)
    }

    fn prove(&self, blocks: Range<u64>) {
        for block in blocks {
            let Some(word) = self.proven.get((block / 64) as usize) else { return };
            let bit = 1 << (block % 64);
            if word.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
                self.missing.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}
