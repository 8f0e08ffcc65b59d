//! Passes over files that go on where the last one stopped, so that an append costs parsing what was
//! appended.
//!
//! A pass is kept as it was behind the last complete line, with the hash of everything before it. The old
//! bytes are hashed again: only if they are the same is the rest alone parsed, so what is found is what a pass
//! over the whole file finds. Of a long file that only seems to have grown, just the last block is hashed again;
//! [`Passes::evidence`] tells which bytes are believed, and proves them when they are shown.

use std::any::Any;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::blocks::{Blocks, Evidence};
use super::cursor::{Cursor, Place, Source, Stop};
use super::scan::steady;
use super::stamp::clock;
use super::{Line, Scanned, Stamp, StoreDir, compressed};
use crate::session::{Refusal, Result};

/// Bytes up to which everything is hashed again at each look at a file that grew: that costs a fraction of a
/// millisecond, and then nothing has to be believed.
const BELIEVED_FROM: u64 = 1 << 20;

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
    /// The same as hashes of blocks, of the plain content.
    blocks: Blocks,
    /// How many bytes at the start the last pass did not read again: they were read when the file was shorter.
    believed: u64,
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
    place: Place,
}

/// What an earlier pass leaves to the next.
struct Before<T, B> {
    stopped: Stopped<T, B>,
    /// Of the plain file as it was then.
    blocks: Blocks,
    stamp: Stamp,
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
        mut each: impl FnMut(&mut T, Line<'_>),
    ) -> Result<Option<(T, Scanned)>>
    where
        T: Clone + Send + 'static,
        B: Clone + PartialEq + Send + 'static,
    {
        let lines = |cursor: Cursor<'_>, number, found: &mut Found<'_, T>| {
            cursor.lines(number, &mut |line| each(found.of(&line), line))
        };
        self.pass(store, file, basis, start, lines)
    }

    /// As [`Passes::scan`], with what `map` makes of each line by itself, on several threads where that is worth it.
    ///
    /// # Errors
    /// As [`Passes::scan`].
    pub fn scan_with<T, B, M: Send>(
        &mut self,
        store: &StoreDir,
        file: &Path,
        basis: B,
        start: impl Fn() -> T,
        (map, mut each): (impl Fn(&Line<'_>) -> M + Sync, impl FnMut(&mut T, Line<'_>, M)),
    ) -> Result<Option<(T, Scanned)>>
    where
        T: Clone + Send + 'static,
        B: Clone + PartialEq + Send + 'static,
    {
        let lines = |cursor: Cursor<'_>, number, found: &mut Found<'_, T>| {
            cursor.lines_with(number, &map, &mut |line, made| each(found.of(&line), line, made))
        };
        self.pass(store, file, basis, start, lines)
    }

    /// `lines` gives the lines from a place on, which has a number, to what is found.
    fn pass<T, B>(
        &mut self,
        store: &StoreDir,
        file: &Path,
        basis: B,
        start: impl Fn() -> T,
        lines: impl FnMut(Cursor<'_>, u64, &mut Found<'_, T>) -> std::io::Result<Stop>,
    ) -> Result<Option<(T, Scanned)>>
    where
        T: Clone + Send + 'static,
        B: Clone + PartialEq + Send + 'static,
    {
        let before = self.files.remove(file);
        let Some(opened) = store.file(file)? else { return Ok(None) };
        let path = store.path().join(file);
        let read_at = clock();
        let stamp = Stamp::of(&opened).map_err(|error| Refusal::io("cannot look at", &path, error))?;
        let known = before.as_ref().map(|kept| (kept.scanned, kept.same));
        let mut resume = None;
        if let Some(kept) = before
            && let Ok(found) = kept.stopped.downcast::<Stopped<T, B>>()
            && found.basis == basis
        {
            let proven = kept.stamp == stamp && stamp.vouches(kept.read_at);
            if proven && found.place.at() == kept.scanned.len {
                let result = (found.found.clone(), Scanned { parsed: 0, checked: 0, ..kept.scanned });
                self.files.insert(file.to_owned(), Kept { stopped: found, used: true, ..kept });
                return Ok(Some(result));
            }
            resume = Some(Before { stopped: *found, blocks: kept.blocks, stamp: kept.stamp });
        }
        let from = resume.as_ref().map_or(0, |before| before.stopped.place.at());
        let went = go_on(&opened, &path, resume, basis, start, lines)?;
        let Outcome { found, stopped, scanned, blocks, resumed, believed } = went;
        let same = match known {
            Some((before, same)) if (before.len, before.hash) == (scanned.len, scanned.hash) => same,
            Some((_, same)) if resumed => same.min(from),
            _ => 0,
        };
        let stamp = scanned.stamp;
        let stopped = Box::new(stopped);
        let kept = Kept { stopped, scanned, blocks, believed, stamp, read_at, same, used: true };
        self.files.insert(file.to_owned(), kept);
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

    /// What was read since [`Passes::begin`], of the files that are not packed and of which stamps can prove
    /// something.
    pub fn evidence(&self) -> Vec<Evidence> {
        let useful = |(file, kept): &(&PathBuf, &Kept)| {
            kept.used && kept.stamp.is_tested() && !compressed::is_packed(file)
        };
        let used = self.files.iter().filter(useful);
        let evidence = used.map(|(file, kept)| {
            Evidence::new(file.clone(), kept.stamp, kept.blocks.clone(), kept.read_at, kept.believed)
        });
        evidence.collect()
    }

    /// How many bytes (of the plain content) at the start of a file are what they were in the last pass before
    /// [`Passes::settle`]: compared, or believed as [`Passes::evidence`] says.
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

/// What a pass finds.
struct Found<'t, T> {
    /// In complete lines.
    complete: &'t mut T,
    /// In these and a last line that has no end.
    tail: Option<T>,
}

impl<T: Clone> Found<'_, T> {
    /// What this line adds to.
    fn of(&mut self, line: &Line<'_>) -> &mut T {
        match line.terminated {
            true => self.complete,
            // The next append goes on with this very line.
            false => self.tail.insert(self.complete.clone()),
        }
    }
}

/// A pass that came to the end of a file.
struct Outcome<T, B> {
    found: T,
    stopped: Stopped<T, B>,
    scanned: Scanned,
    blocks: Blocks,
    /// It went on from where an earlier one stopped.
    resumed: bool,
    /// Bytes at the start that were not read again.
    believed: u64,
}

/// A pass from where `before` stopped, if the bytes before that are the same; else from the file's start.
fn go_on<T: Clone, B: Clone>(
    file: &File,
    path: &Path,
    before: Option<Before<T, B>>,
    basis: B,
    start: impl Fn() -> T,
    mut lines: impl FnMut(Cursor<'_>, u64, &mut Found<'_, T>) -> std::io::Result<Stop>,
) -> Result<Outcome<T, B>> {
    let mut resumed = before.is_some();
    let mut last = before;
    let (mut parsed, mut checked, mut believed) = (0, 0, 0);
    let (found, scanned) = steady(file, path, |stamp| {
        let len = stamp.len;
        let mut cursor = None;
        let mut stopped = None;
        believed = 0;
        // Of a file that changes under the pass, the last try went on to here.
        let packed = compressed::is_packed(path);
        let is_there = |before: &Before<T, B>| packed || before.stopped.place.at() <= len;
        if let Some(before) = last.take().filter(is_there) {
            let place = &before.stopped.place;
            let believe = place.at() > BELIEVED_FROM && stamp.may_have_grown_from(&before.stamp) && !packed;
            let source = Source::of(file, path, len)?;
            let (found, read) = match believe {
                true => Cursor::believing(source, place, &before.blocks)?,
                false => Cursor::behind(source, place)?,
            };
            checked += read;
            if found.is_some() && believe {
                believed = place.at();
            }
            stopped = found.is_some().then_some(before.stopped);
            cursor = found;
        }
        let mut stopped = stopped.unwrap_or_else(|| {
            resumed = false;
            Stopped { found: start(), basis: basis.clone(), place: Place::start() }
        });
        let from = stopped.place.at();
        let cursor = match cursor {
            Some(cursor) => cursor,
            None => Cursor::new(Source::of(file, path, len)?),
        };
        let mut found = Found { complete: &mut stopped.found, tail: None };
        let stop = lines(cursor, stopped.place.line, &mut found)?;
        let tail = found.tail;
        parsed += stop.len - from;
        stopped.place = stop.place;
        let found = tail.unwrap_or_else(|| stopped.found.clone());
        last = Some(Before { stopped, blocks: stop.blocks, stamp: *stamp });
        Ok((found, stop.len, stop.whole))
    })?;
    let last = last.ok_or_else(|| Refusal::Internal { what: "a pass that did not stop".into() })?;
    let Before { stopped, blocks, .. } = last;
    Ok(Outcome { found, stopped, scanned: Scanned { parsed, checked, ..scanned }, blocks, resumed, believed })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::set_racy_window;
    use super::*;
    use crate::session::FileHash;
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
            let read = self.lines(basis);
            let hash = self.passes.files[Path::new("f")].scanned.hash;
            assert_eq!(hash, FileHash::of(&std::fs::read(self.file()).unwrap()));
            read
        }

        /// The same, of a file of which more is believed than is true.
        fn lines(&mut self, basis: u8) -> (Vec<String>, u64, u64) {
            let store = StoreDir::open(self.dir.path()).unwrap().unwrap();
            let each = |lines: &mut Vec<String>, line: Line<'_>| {
                let end = if line.terminated { "" } else { "..." };
                lines.push(format!("{} {}{end}", line.number, String::from_utf8_lossy(line.bytes)));
            };
            let read = self.passes.scan(&store, Path::new("f"), basis, Vec::new, each).unwrap();
            let (lines, scanned) = read.unwrap();
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
        set_racy_window(Duration::from_millis(20));
        std::thread::sleep(Duration::from_millis(40));
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

    /// Long enough to be believed where it seems to have grown.
    fn long() -> String {
        let mut text = String::new();
        for n in 0..40_000 {
            text.push_str(&format!("line {n:06} and forty more characters of it.....\n"));
        }
        text
    }

    /// Waits until the file's stamp vouches.
    fn settle(case: &Case) {
        let store = StoreDir::open(case.dir.path()).unwrap().unwrap();
        while !store.stat(Path::new("f")).unwrap().unwrap().vouches(clock()) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn prove(case: &Case, span: std::ops::Range<u64>) -> Result<(Vec<u8>, u64)> {
        let store = StoreDir::open(case.dir.path()).unwrap().unwrap();
        case.passes.evidence()[0].read(&store, span)
    }

    #[test]
    fn of_a_long_file_that_grew_only_the_last_block_and_the_new_bytes_are_read() {
        let text = long();
        let mut case = Case::new(text.as_bytes());
        settle(&case);
        case.read(0);
        for n in 0..5 {
            case.append(b"one more line\n");
            let (lines, parsed, checked) = case.read(0);
            assert_eq!((lines.len(), parsed), (40_001 + n, 14));
            assert!(checked < super::super::blocks::BLOCK, "{checked}");
            assert_eq!(case.same(), case.same().min(text.len() as u64 + 14 * n as u64));
        }
        let evidence = &case.passes.evidence()[0];
        assert!(!evidence.proves(&(0..100)), "the old bytes are believed");
        assert_eq!(prove(&case, 50..150).unwrap().0, &text.as_bytes()[50..150]);
    }

    #[test]
    fn an_edit_of_old_bytes_of_a_long_file_that_grew_is_found_when_they_are_shown() {
        let text = long();
        let mut case = Case::new(text.as_bytes());
        case.read(0);
        let edited = text.replacen("line 000003", "LINE 000003", 1);
        std::fs::write(case.file(), &edited).unwrap();
        case.append(b"one more line\n");
        let (lines, parsed, _) = case.lines(0);
        assert_eq!((lines.len(), parsed), (40_001, 14), "the edit is not seen by the pass");
        let wrong = prove(&case, 0..1000).unwrap_err();
        assert!(matches!(wrong, Refusal::Changed { .. }), "{wrong:?}");
        assert!(prove(&case, 1_000_000..1_000_100).is_ok(), "other blocks are what they were");
    }

    #[test]
    fn an_edit_in_the_last_block_of_a_long_file_that_grew_is_found_by_the_pass() {
        let text = long();
        let mut case = Case::new(text.as_bytes());
        case.read(0);
        let edited = text.replacen("line 039999", "LINE 039999", 1);
        std::fs::write(case.file(), &edited).unwrap();
        case.append(b"one more line\n");
        let (lines, parsed, _) = case.read(0);
        assert_eq!(parsed, edited.len() as u64 + 14, "all is parsed");
        assert!(lines[39_999].contains("LINE 039999"));
        assert_eq!(case.same(), 0);
    }

    #[test]
    fn what_is_proven_once_is_not_read_again_while_the_stamp_is_the_same() {
        let text = long();
        let mut case = Case::new(text.as_bytes());
        case.read(0);
        case.append(b"one more line\n");
        case.read(0);
        settle(&case);
        let store = StoreDir::open(case.dir.path()).unwrap().unwrap();
        let evidence = case.passes.evidence().remove(0);
        assert!(!evidence.proves(&(0..100)));
        evidence.read(&store, 0..100).unwrap();
        assert!(evidence.proves(&(0..100)));
        assert!(!evidence.proves(&(0..1_000_000)));
        let read = evidence.read_the_rest(&store).unwrap();
        assert!(evidence.proves_all() && read > 1_000_000, "{read}");
        assert_eq!(evidence.read_the_rest(&store).unwrap(), 0);
        evidence.doubt();
        assert!(!evidence.proves(&(0..1)));
    }
}
