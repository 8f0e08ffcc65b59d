//! Compressed transcripts (`.zst`), read as if they were plain: as streams, so that nothing is unpacked into memory or
//! (but for a fork) to disk, and bounded, so that a small file cannot keep a reader busy for hours.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use rustix::io::Errno;

use crate::session::{Refusal, Result};

/// Longest plain text of a compressed file that is read, bytes.
const LARGEST: u64 = 8 << 30;
/// How many times longer than its compressed file a plain text may be. Rollouts are packed to about a tenth, and
/// the most repetitive real logs to a hundredth.
const LARGEST_RATIO: u64 = 1000;
/// A plain text up to this length may be packed as tightly as it likes, bytes.
const ALWAYS: u64 = 64 << 20;

/// Whether a file's name says that it is compressed.
pub fn is_packed(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "zst")
}

/// A file for reading its plain content anywhere in it: the file itself or, where it is compressed, an unpacked copy
/// without a name outside the store. Only for copying it: everything else reads the stream.
///
/// # Errors
/// EILSEQ for what is no compressed file; and what prevents unpacking.
pub fn plain(file: File, path: &Path) -> Result<File> {
    if !is_packed(path) {
        return Ok(file);
    }
    let unpack = || {
        let mut plain = tempfile::tempfile()?;
        std::io::copy(&mut from_start(&file)?, &mut plain)?;
        Ok(plain)
    };
    unpack().map_err(|error| refusal("cannot unpack", path, error))
}

/// Reads the plain content of `file` from its start: the file itself or its unpacked stream.
///
/// # Errors
/// What prevents reading; while reading, too, what `refusal` turns into a sentence.
pub fn plain_stream(file: File, name: &Path) -> std::io::Result<Box<dyn Read>> {
    match is_packed(name) {
        true => {
            let len = file.metadata()?.len();
            unpacked(file, len)
        }
        false => Ok(Box::new(file)),
    }
}

/// The plain content of a compressed file, from its start.
pub(super) fn from_start(file: &File) -> std::io::Result<Box<dyn Read + '_>> {
    let mut file = file;
    file.seek(SeekFrom::Start(0))?;
    unpacked(file, file.metadata()?.len())
}

/// The plain content of what is compressed to `len` bytes; a read beyond the most that it may have is an error.
fn unpacked<'a>(packed: impl Read + 'a, len: u64) -> std::io::Result<Box<dyn Read + 'a>> {
    let left = len.saturating_mul(LARGEST_RATIO).clamp(ALWAYS, LARGEST);
    Ok(Box::new(Bounded { stream: zstd::Decoder::new(packed)?, left }))
}

/// A stream that ends with an error where it has given too much.
struct Bounded<R> {
    stream: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let got = self.stream.read(buffer)?;
        self.left = self.left.checked_sub(got as u64).ok_or_else(|| Error::from(ErrorKind::FileTooLarge))?;
        Ok(got)
    }
}

/// What prevents reading the content of `path`. What is no compressed file is EILSEQ.
pub(super) fn refusal(action: &'static str, path: &Path, error: Error) -> Refusal {
    if !is_packed(path) {
        return Refusal::io(action, path, error);
    }
    match error.kind() {
        ErrorKind::FileTooLarge if error.raw_os_error().is_none() => {
            Refusal::UnpacksTooLarge { path: path.to_owned(), ratio: LARGEST_RATIO, largest: LARGEST }
        }
        _ if error.raw_os_error().is_some() => Refusal::io(action, path, error),
        _ => Refusal::Io { action: "cannot unpack", path: path.to_owned(), errno: Errno::ILSEQ },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{Passes, StoreDir, read_range};
    use super::*;
    use std::io::Write;

    fn packed(pieces: &[(&[u8], usize)]) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.zst");
        let mut packer = zstd::Encoder::new(File::create(&path).unwrap(), 3).unwrap();
        for (piece, times) in pieces {
            (0..*times).for_each(|_| packer.write_all(piece).unwrap());
        }
        packer.finish().unwrap();
        (dir, path)
    }

    fn lines(dir: &Path) -> Result<(u64, u64)> {
        let store = StoreDir::open(dir).unwrap().unwrap();
        let read = Passes::default().scan(&store, Path::new("f.zst"), (), || 0, |lines, _| *lines += 1);
        let (lines, scanned) = read?.unwrap();
        Ok((lines, scanned.len))
    }

    #[test]
    fn lines_and_ranges_of_a_compressed_file_are_those_of_its_text() {
        let (dir, _) = packed(&[(b"one\n", 1), (b"two\n", 200_000), (b"three", 1)]);
        assert_eq!(lines(dir.path()).unwrap(), (200_002, 800_009));
        let range = |range| read_range(dir.path(), Path::new("f.zst"), range);
        assert_eq!(range(0..8).unwrap(), b"one\ntwo\n");
        assert_eq!(range(800_000..800_009).unwrap(), b"two\nthree");
        assert!(matches!(range(800_000..800_010), Err(Refusal::Changed { .. })));
    }

    #[test]
    fn a_compressed_file_that_grew_is_read_on_and_one_that_changed_anew() {
        let (dir, path) = packed(&[(b"one\n", 3)]);
        let store = StoreDir::open(dir.path()).unwrap().unwrap();
        let mut passes = Passes::default();
        let mut read = || {
            let read = passes.scan(&store, Path::new("f.zst"), (), || 0, |lines, _| *lines += 1);
            let (lines, scanned) = read.unwrap().unwrap();
            (lines, scanned.parsed, scanned.checked)
        };
        let write = |text: &[u8]| std::fs::write(&path, zstd::encode_all(text, 3).unwrap()).unwrap();
        assert_eq!(read(), (3, 12, 0));
        write(b"one\none\none\ntwo\n");
        assert_eq!(read(), (4, 4, 12));
        write(b"two\n");
        assert_eq!(read().0, 1);
    }

    #[test]
    fn no_more_is_unpacked_than_a_transcript_can_hold() {
        let zeros = vec![0; 1 << 20];
        let (dir, path) = packed(&[(&zeros, 80)]);
        let refused = lines(dir.path()).unwrap_err();
        assert_eq!(refused.errno(), Errno::FBIG);
        assert!(refused.to_string().contains("1000 times its size"), "{refused}");
        assert_eq!(plain(File::open(&path).unwrap(), &path).unwrap_err().errno(), Errno::FBIG);
        std::fs::write(&path, b"no zstd").unwrap();
        assert_eq!(lines(dir.path()).unwrap_err().errno(), Errno::ILSEQ);
    }
}
