//! One pass over a file, front to back: lines, byte offsets, length, hash.

use std::fs::File;
use std::path::Path;

use rustix::io::Errno;

use super::cursor::{Cursor, Prefix, Source};
use super::metrics::{ReadKind, count_bytes};
use super::{Stamp, compressed};
use crate::session::{AgentKind, FileHash, Refusal, Result};

/// Longest line that is read as one, bytes without its newline; a longer one is damage and never held whole.
/// Real lines have some megabytes, and tens of megabytes with pictures in them.
pub const LONGEST_LINE: usize = 128 << 20;

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
    /// The line without its newline; nothing of a line that is too long.
    pub bytes: &'a [u8],
    /// It is longer than [`LONGEST_LINE`].
    pub too_long: bool,
    /// Whether it ends with a newline.
    pub terminated: bool,
}

impl Line<'_> {
    /// Nothing but blanks, as every known client skips it.
    pub fn is_blank(&self) -> bool {
        self.nuls == 0 && !self.too_long && self.bytes.iter().all(u8::is_ascii_whitespace)
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

/// Gives every line of `file` to `each`, in order; of a compressed file (`path` says so) its plain lines. `start` makes the value that collects what is found; it
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
        let source = Source::of(file, path, stamp.len)?;
        let stop = Cursor::new(source).lines(1, &mut |line| each(&mut found, line))?;
        Ok((found, stop.len, stop.whole))
    })
    .map(|(found, scanned)| (found, Scanned { parsed: scanned.len, ..scanned }))
}

/// Length and hash of the bytes of `file` as it lies on the disk, read as by [`scan`].
///
/// # Errors
/// What prevents reading.
pub fn hash_of(file: &File, path: &Path) -> Result<Scanned> {
    let (_, scanned) = steady(file, path, |stamp| {
        let mut cursor = Cursor::new(Source::Plain { file, len: stamp.len });
        let whole = cursor.to(stamp.len)?;
        Ok(((), whole.len, whole.hash()))
    })?;
    Ok(Scanned { checked: scanned.len, ..scanned })
}

/// All of `file` as it lies on the disk, and those of its beginnings that are as long as `lengths` say, as far as
/// it goes. Read once; what is appended meanwhile is left out.
///
/// # Errors
/// What prevents reading; [`std::io::ErrorKind::UnexpectedEof`] if the file becomes shorter meanwhile.
pub fn prefixes(file: &File, lengths: &[u64]) -> std::io::Result<(Prefix, Vec<Prefix>)> {
    let len = file.metadata()?.len();
    let mut lengths: Vec<u64> = lengths.iter().copied().filter(|wanted| *wanted <= len).collect();
    lengths.sort_unstable();
    let mut cursor = Cursor::new(Source::Plain { file, len });
    let found =
        lengths.into_iter().map(|wanted| cursor.to(wanted).cloned()).collect::<std::io::Result<_>>()?;
    Ok((cursor.to(len)?.clone(), found))
}

/// Gives every line of `bytes` to `each`, numbered from `first_line`, with offsets from `first_byte`.
pub fn scan_bytes<'b>(bytes: &'b [u8], first_line: u64, first_byte: u64, mut each: impl FnMut(Line<'b>)) {
    let mut number = first_line;
    let mut at = 0;
    for newline in memchr::memchr_iter(b'\n', bytes) {
        let (start, end) = (first_byte + at as u64, first_byte + newline as u64 + 1);
        each(Line {
            number,
            start,
            end,
            nuls: 0,
            bytes: &bytes[at..newline],
            too_long: false,
            terminated: true,
        });
        number += 1;
        at = newline + 1;
    }
    if at < bytes.len() {
        let (start, end) = (first_byte + at as u64, first_byte + bytes.len() as u64);
        each(Line { number, start, end, nuls: 0, bytes: &bytes[at..], too_long: false, terminated: false });
    }
}

/// Repeats `once` if the file changed under it. Its argument is the file's stamp, and so its length; it returns how long the content
/// was that it read, and the hash of that.
pub(super) fn steady<T>(
    file: &File,
    path: &Path,
    mut once: impl FnMut(&Stamp) -> std::io::Result<(T, u64, FileHash)>,
) -> Result<(T, Scanned)> {
    let cannot = |error| compressed::refusal("cannot read", path, error);
    let mut again = true;
    loop {
        let before = Stamp::of(file).map_err(cannot)?;
        let result = once(&before);
        let after = Stamp::of(file).map_err(cannot)?;
        let steady = before == after;
        let grew = after.len > before.len;
        match result {
            Ok((found, len, hash)) if steady || (grew && !again) => {
                return Ok((found, Scanned { len, hash, stamp: before, parsed: 0, checked: 0 }));
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::cursor::CHUNK;
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

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
    fn a_line_that_is_too_long_is_passed_over_and_what_follows_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"{}\nx").unwrap();
        let long = 5 + LONGEST_LINE as u64;
        file.write_all_at(b"\nlast\n\x00y", long).unwrap();
        file.set_len(long + 9 + LONGEST_LINE as u64).unwrap();
        let file = File::open(&path).unwrap();
        let (found, scanned) = scan(&file, &path, Vec::new, |all, line: Line<'_>| {
            all.push((line.number, line.start, line.end, line.bytes.len(), line.too_long, line.terminated));
        })
        .unwrap();
        let end = long + 9 + LONGEST_LINE as u64;
        let expected = [
            (1, 0, 3, 2, false, true),
            (2, 3, long + 1, 0, true, true),
            (3, long + 1, long + 6, 4, false, true),
            (4, long + 6, end, 0, true, false),
        ];
        assert_eq!(found, expected);
        assert_eq!(scanned.len, end);
        assert_eq!(hash_of(&file, &path).unwrap().hash, scanned.hash);
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
