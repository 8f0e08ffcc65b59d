//! Compressed transcripts (`.zst`), read as if they were plain.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use rustix::io::Errno;

use super::StoreDir;
use crate::session::{Refusal, Result};

/// Longest plain text that a compressed file is unpacked to, bytes; a file that says it holds more is
/// refused and cannot fill the disk.
const LARGEST: u64 = 8 << 30;

/// Whether a file's name says that it is compressed.
pub fn is_packed(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "zst")
}

/// Opens a store's file for reading its plain content: the file itself, or, where it is compressed, an
/// unpacked copy without a name outside the store. `None` if it is not there.
///
/// # Errors
/// As [`StoreDir::file`]; EILSEQ for what is no compressed file.
pub fn plain(store: &StoreDir, file: &Path) -> Result<Option<File>> {
    store.file(file)?.map(|opened| unpacked(store, file, opened)).transpose()
}

/// The plain content of an open file of a store: as [`plain`].
pub(super) fn unpacked(store: &StoreDir, file: &Path, opened: File) -> Result<File> {
    if !is_packed(file) {
        return Ok(opened);
    }
    let path = store.path().join(file);
    unpack(opened).map_err(|error| match error.kind() {
        std::io::ErrorKind::FileTooLarge => {
            Refusal::Io { action: "cannot unpack", path: path.clone(), errno: Errno::FBIG }
        }
        _ if error.raw_os_error().is_some() => Refusal::io("cannot unpack", &path, error),
        _ => Refusal::Io { action: "cannot unpack", path: path.clone(), errno: Errno::ILSEQ },
    })
}

/// Reads the plain content of `file` from its start: the file itself or its unpacked stream.
///
/// # Errors
/// As [`plain`], while reading.
pub fn plain_stream(file: File, name: &Path) -> std::io::Result<Box<dyn Read>> {
    if is_packed(name) { Ok(Box::new(zstd::Decoder::new(file)?)) } else { Ok(Box::new(file)) }
}

fn unpack(packed: File) -> std::io::Result<File> {
    let mut plain = tempfile::tempfile()?;
    let copied = std::io::copy(&mut zstd::Decoder::new(packed)?.take(LARGEST + 1), &mut plain)?;
    if copied > LARGEST {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    plain.rewind()?;
    Ok(plain)
}
