//! Passes over files that go on where the last one stopped, so that an append costs parsing what was
//! appended.
//!
//! A pass is kept as it was behind the last complete line, with the hash of everything before it. The old
//! bytes are hashed again before they are believed: only if they are the same is the rest alone parsed, so
//! what is found is always what a pass over the whole file finds.

use std::any::Any;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::scan::{Cursor, steady};
use super::{Line, Scanned, Stamp, StoreDir, packed};
use crate::session::{FileHash, Refusal, Result};

/// The passes over one session's files.
#[derive(Default)]
pub struct Passes {
    files: HashMap<PathBuf, Kept>,
}

struct Kept {
    /// A [`Stopped`] of the type that the file's pass collects.
    stopped: Box<dyn Any + Send>,
    /// What the last pass saw.
    scanned: Scanned,
    /// Of the store's file, which is another one than was parsed where that is packed; before it was read.
    stamp: Stamp,
    read_at: Timestamp,
    /// How many bytes at the start were the same in every pass since [`Passes::settle`].
    same: u64,
    /// Since [`Passes::begin`].
    used: bool,
}

/// A pass behind a complete line.
struct Stopped<T, B> {
    found: T,
    /// What decides, besides the bytes, what is found.
    basis: B,
    at: u64,
    line: u64,
    /// Of everything before `at`.
    hash: FileHash,
}

impl Passes {
    /// Gives the lines of a store's file to `each`, in order, as [`super::scan`] does: all of them, or only
    /// those behind the lines that an earlier pass was given, if they are unchanged and so is `basis`
    /// (everything else that `start` and `each` make use of). Of a packed file the plain lines. `None` if
    /// the file is not there.
    ///
    /// # Errors
    /// What prevents reading.
    pub fn scan<T, B>(
        &mut self,
        store: &StoreDir,
        file: &Path,
        basis: B,
        start: impl Fn() -> T,
        each: impl FnMut(&mut T, Line<'_>),
    ) -> Result<Option<(T, Scanned)>>
    where
        T: Clone + Send + 'static,
        B: Clone + PartialEq + Send + 'static,
    {
        let before = self.files.remove(file);
        let Some(opened) = store.file(file)? else { return Ok(None) };
        let path = store.path().join(file);
        let read_at = crate::session::now();
        let stamp = Stamp::of(&opened).map_err(|error| Refusal::io("cannot look at", &path, error))?;
        let known = before.as_ref().map(|kept| (kept.scanned, kept.same));
        let mut stopped = None;
        if let Some(kept) = before
            && let Ok(found) = kept.stopped.downcast::<Stopped<T, B>>()
            && found.basis == basis
        {
            let proven = kept.stamp == stamp && stamp.vouches(kept.read_at);
            if proven && found.at == kept.scanned.len {
                let result = (found.found.clone(), Scanned { parsed: 0, checked: 0, ..kept.scanned });
                self.files.insert(file.to_owned(), Kept { stopped: found, used: true, ..kept });
                return Ok(Some(result));
            }
            stopped = Some(*found);
        }
        let from = stopped.as_ref().map_or(0, |stopped| stopped.at);
        let plain = packed::unpacked(store, file, opened)?;
        let Went { found, stopped, scanned, resumed } = go_on(&plain, &path, stopped, basis, start, each)?;
        let same = match known {
            Some((before, same)) if (before.len, before.hash) == (scanned.len, scanned.hash) => same,
            Some((_, same)) if resumed => same.min(from),
            _ => 0,
        };
        let stamp = if packed::is_packed(file) { stamp } else { scanned.stamp };
        let stopped = Box::new(stopped);
        self.files.insert(file.to_owned(), Kept { stopped, scanned, stamp, read_at, same, used: true });
        Ok(Some((found, scanned)))
    }

    /// To be called before the files of a session are read.
    pub fn begin(&mut self) {
        self.files.values_mut().for_each(|kept| kept.used = false);
    }

    /// The stamp of a file that was read since [`Passes::begin`], from before that.
    pub fn stamp(&self, file: &Path) -> Option<Stamp> {
        self.files.get(file).filter(|kept| kept.used).map(|kept| kept.stamp)
    }

    /// How many bytes (of the plain content) at the start of a file are proven to be what they were in the
    /// last pass before [`Passes::settle`].
    pub fn same(&self, file: &Path) -> u64 {
        self.files.get(file).map_or(0, |kept| kept.same)
    }

    /// What was read since [`Passes::begin`] is what later passes are compared with; other files are
    /// forgotten.
    pub fn settle(&mut self) {
        self.files.retain(|_, kept| kept.used);
        for kept in self.files.values_mut() {
            kept.same = u64::MAX;
        }
    }
}

/// A pass that came to the end of a file.
struct Went<T, B> {
    found: T,
    stopped: Stopped<T, B>,
    scanned: Scanned,
    /// It went on from where an earlier one stopped.
    resumed: bool,
}

/// A pass from where `before` stopped, if the bytes before that are the same; else from the file's start.
fn go_on<T: Clone, B: Clone>(
    file: &File,
    path: &Path,
    before: Option<Stopped<T, B>>,
    basis: B,
    start: impl Fn() -> T,
    mut each: impl FnMut(&mut T, Line<'_>),
) -> Result<Went<T, B>> {
    let mut resumed = before.is_some();
    let mut last = before;
    let (mut parsed, mut checked) = (0, 0);
    let (found, scanned) = steady(file, path, |len| {
        let mut cursor = Cursor::new(file);
        let mut stopped = None;
        // Of a file that changes under the pass, the last try went on to here.
        if let Some(before) = last.take().filter(|before| before.at <= len) {
            checked += before.at;
            let hash = cursor.skip(before.at)?;
            stopped = Some(before).filter(|before| before.hash == hash);
        }
        let mut stopped = stopped.unwrap_or_else(|| {
            resumed = false;
            cursor = Cursor::new(file);
            Stopped { found: start(), basis: basis.clone(), at: 0, line: 1, hash: FileHash::of(b"") }
        });
        let mut tail = None;
        let mut line = |line: Line<'_>| {
            if line.terminated {
                each(&mut stopped.found, line);
            } else {
                // The next append goes on with this very line.
                each(tail.insert(stopped.found.clone()), line);
            }
        };
        parsed += len - stopped.at;
        let stop = cursor.lines(stopped.line, len, &mut line)?;
        (stopped.at, stopped.line, stopped.hash) = (stop.at, stop.line, stop.hash);
        let found = tail.unwrap_or_else(|| stopped.found.clone());
        last = Some(stopped);
        Ok((found, stop.whole))
    })?;
    let stopped = last.ok_or_else(|| Refusal::Internal { what: "a pass that did not stop".into() })?;
    Ok(Went { found, stopped, scanned: Scanned { parsed, checked, ..scanned }, resumed })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Duration;

    /// A store with one file, read again and again.
    struct Case {
        dir: tempfile::TempDir,
        passes: Passes,
    }

    impl Case {
        fn new(content: &[u8]) -> Case {
            let case = Case { dir: tempfile::tempdir().unwrap(), passes: Passes::default() };
            std::fs::write(case.file(), content).unwrap();
            case
        }

        fn file(&self) -> PathBuf {
            self.dir.path().join("f")
        }

        fn append(&self, bytes: &[u8]) {
            File::options().append(true).open(self.file()).unwrap().write_all(bytes).unwrap();
        }

        /// The lines, and how many bytes were parsed and only hashed.
        fn read(&mut self, basis: u8) -> (Vec<String>, u64, u64) {
            let store = StoreDir::open(self.dir.path()).unwrap().unwrap();
            let each = |lines: &mut Vec<String>, line: Line<'_>| {
                let end = if line.terminated { "" } else { "..." };
                lines.push(format!("{} {}{end}", line.number, String::from_utf8_lossy(line.bytes)));
            };
            let read = self.passes.scan(&store, Path::new("f"), basis, Vec::new, each).unwrap();
            let (lines, scanned) = read.unwrap();
            assert_eq!(scanned.hash, FileHash::of(&std::fs::read(self.file()).unwrap()));
            (lines, scanned.parsed, scanned.checked)
        }

        fn same(&self) -> u64 {
            self.passes.same(Path::new("f"))
        }
    }

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn an_append_is_parsed_alone_and_a_half_line_is_parsed_again() {
        let mut case = Case::new(b"one\ntwo\nthr");
        assert_eq!(case.read(0), (lines(&["1 one", "2 two", "3 thr..."]), 11, 0));
        case.append(b"ee\nfour\n");
        assert_eq!(case.read(0), (lines(&["1 one", "2 two", "3 three", "4 four"]), 11, 8));
        case.append(b"five");
        assert_eq!(case.read(0), (lines(&["1 one", "2 two", "3 three", "4 four", "5 five..."]), 4, 19));
    }

    #[test]
    fn a_changed_beginning_another_basis_and_a_shorter_file_are_parsed_whole() {
        let mut case = Case::new(b"one\ntwo\n");
        case.read(0);
        assert_eq!(case.read(1), (lines(&["1 one", "2 two"]), 8, 0));
        std::fs::write(case.file(), b"ONE\ntwo\nthree\n").unwrap();
        assert_eq!(case.read(1), (lines(&["1 ONE", "2 two", "3 three"]), 14, 8));
        std::fs::write(case.file(), b"ONE\n").unwrap();
        assert_eq!(case.read(1), (lines(&["1 ONE"]), 4, 0));
    }

    #[test]
    fn what_is_proven_the_same_is_what_every_pass_since_saw() {
        let mut case = Case::new(b"one\ntw");
        case.read(0);
        assert_eq!(case.same(), 0, "nothing was seen before");
        case.passes.settle();
        case.read(0);
        assert_eq!(case.same(), u64::MAX);
        case.append(b"o\n");
        case.read(0);
        assert_eq!(case.same(), 4);
        case.append(b"three\n");
        case.read(0);
        assert_eq!(case.same(), 4, "what came in between was not there then");
        std::fs::write(case.file(), b"ONE\ntwo\nthree\n").unwrap();
        case.read(0);
        std::fs::write(case.file(), b"one\ntwo\nthree\n").unwrap();
        case.read(0);
        assert_eq!(case.same(), 0);
    }

    #[test]
    fn a_settled_file_is_not_even_hashed() {
        let mut case = Case::new(b"one\n");
        case.read(0);
        assert_eq!(case.read(0), (lines(&["1 one"]), 0, 4), "too young to be believed");
        std::thread::sleep(Duration::from_millis(2200));
        case.read(0);
        assert_eq!(case.read(0), (lines(&["1 one"]), 0, 0));
        std::fs::write(case.file(), b"two\n").unwrap();
        assert_eq!(case.read(0).0, lines(&["1 two"]));
    }

    #[test]
    fn a_file_that_grows_under_the_pass_is_not_parsed_twice() {
        let case = Case::new(b"one\n");
        let store = StoreDir::open(case.dir.path()).unwrap().unwrap();
        let mut passes = Passes::default();
        let each = |lines: &mut u32, _: Line<'_>| {
            *lines += 1;
            case.append(b"more\n");
        };
        let read = passes.scan(&store, Path::new("f"), (), || 0, each).unwrap();
        let (lines, scanned) = read.unwrap();
        assert_eq!((lines, scanned.len, scanned.parsed, scanned.checked), (2, 9, 9, 4));
    }
}
