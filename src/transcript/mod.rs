//! Bytes to records: opening store files safely, stamps, splitting on 0x0A, byte offsets, hashes, damage
//! classes.
//!
//! Shared by the agents' folders and by everybody who reads store bytes. Nothing here knows a format:
//! what a record is, an agent's folder says.

mod blocks;
mod compressed;
mod cursor;
mod damaged;
pub mod metrics;
mod open;
mod passes;
mod racy;
mod scan;
mod stamp;
mod walk;

pub use blocks::{Blocks, Evidence};
pub use compressed::{is_packed, plain, plain_stream};
pub use cursor::Prefix;
pub use damaged::{Format, Inspector, is_deeper, is_json};
pub use open::{Entry, EntryKind, StoreDir, list};
pub use passes::Passes;
#[cfg(any(test, feature = "faults"))]
pub use racy::set_racy_window;
pub use scan::{LONGEST_LINE, Line, Scanned, hash_of, prefixes, scan, scan_bytes};
pub use stamp::{FsTrust, Stamp, clock, file_system_is_tested};
pub use walk::{Last, Link, Owner, Place, Stop, locate, path_of};

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;

use crate::session::{FileHash, Refusal, Result};

/// Reads `range` (bytes) of a store's file; `file` is relative to the store's root. Of a compressed file the
/// range counts plain bytes, and everything before it is unpacked and passed over.
///
/// # Errors
/// [`Refusal::Changed`] when the file is gone or ends before the range does; and what prevents reading.
pub fn read_range(root: &Path, file: &Path, range: Range<u64>) -> Result<Vec<u8>> {
    let changed = || Refusal::Changed { what: file.display().to_string() };
    let opened = StoreDir::open(root)?.map(|store| store.file(file)).transpose()?.flatten();
    let opened = opened.ok_or_else(changed)?;
    let path = root.join(file);
    if is_packed(file) {
        let wanted = range.end.checked_sub(range.start).ok_or_else(changed)?;
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => changed(),
            _ => compressed::refusal("cannot read", &path, error),
        };
        let mut stream = compressed::from_start(&opened).map_err(failed)?;
        std::io::copy(&mut stream.by_ref().take(range.start), &mut std::io::sink()).map_err(failed)?;
        let mut bytes = Vec::new();
        stream.take(wanted).read_to_end(&mut bytes).map_err(failed)?;
        return if bytes.len() as u64 == wanted { Ok(bytes) } else { Err(changed()) };
    }
    read_span(&opened, &path, range)?.ok_or_else(changed)
}

/// Reads `range` (bytes) of an open file; `None` if it ends before the range does. `path` is for messages.
///
/// # Errors
/// EFBIG for more bytes than there is memory for; and what prevents reading.
pub fn read_span(file: &File, path: &Path, range: Range<u64>) -> Result<Option<Vec<u8>>> {
    let metadata = file.metadata().map_err(|error| Refusal::io("cannot look at", path, error))?;
    if range.end < range.start || metadata.len() < range.end {
        return Ok(None);
    }
    let too_long =
        || Refusal::Io { action: "cannot hold a turn of", path: path.to_owned(), errno: Errno::FBIG };
    let len = usize::try_from(range.end - range.start).map_err(|_| too_long())?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| too_long())?;
    bytes.resize(len, 0);
    match file.read_exact_at(&mut bytes, range.start) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(Refusal::io("cannot read", path, error)),
    }
}

/// Reads from byte `at` until the buffer is full or the file ends; returns how many bytes came.
///
/// # Errors
/// What prevents reading; an interrupted call is repeated.
pub fn read_full(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A small file of a store, whole; `None` if it is not there.
///
/// # Errors
/// EFBIG if it is longer than `most` bytes; and what prevents reading.
pub fn read_small(store: &StoreDir, file: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    let Some(opened) = store.file(file)? else { return Ok(None) };
    let refuse = |error| Refusal::io("cannot read", &store.path().join(file), error);
    read_whole(&opened, most).map(Some).map_err(refuse)
}

/// All bytes of an open file.
///
/// # Errors
/// EFBIG if they are more than `most`; and what prevents reading.
pub fn read_whole(file: &File, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The file may grow meanwhile.
    if file.metadata()?.len() > most || file.take(most + 1).read_to_end(&mut bytes)? as u64 > most {
        return Err(Errno::FBIG.into());
    }
    Ok(bytes)
}

/// Length and hash of a store's file as it is now; no length, and the hash of no bytes, if it is not there.
///
/// # Errors
/// What prevents reading.
pub fn hash(root: &Path, file: &Path) -> Result<(Option<u64>, FileHash)> {
    match StoreDir::open(root)? {
        Some(store) => hash_in(&store, file),
        None => Ok((None, FileHash::of(b""))),
    }
}

/// As [`hash`], of a store that is open.
///
/// # Errors
/// What prevents reading.
pub fn hash_in(store: &StoreDir, file: &Path) -> Result<(Option<u64>, FileHash)> {
    match store.file(file)? {
        Some(opened) => {
            let scanned = hash_of(&opened, &store.path().join(file))?;
            Ok((Some(scanned.len), scanned.hash))
        }
        None => Ok((None, FileHash::of(b""))),
    }
}
