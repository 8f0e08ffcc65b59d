//! An edit in the same tick as the one before leaves every time and the length as they were: within the step
//! of the coarsest clock what Codex's store says is read again, whatever its stamps say.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod codex_store;

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use codex_store::Store;
use turnfs::agents::store_of;
use turnfs::session::Session;

/// A file mapped into memory, with its pages dirty already: a store into them changes the bytes and no time,
/// as a second write in one tick does.
struct Mapped {
    path: PathBuf,
    bytes: &'static mut [u8],
}

impl Mapped {
    fn new(path: &Path) -> Mapped {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let len = usize::try_from(file.metadata().unwrap().len()).unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a whole file that only this test shortens (it does not).
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: the mapping is as long as that, and stays until it is unmapped in `drop`.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) };
        let mut mapped = Mapped { path: path.to_owned(), bytes };
        mapped.touch();
        mapped
    }

    /// Makes every page dirty.
    fn touch(&mut self) {
        for byte in self.bytes.iter_mut().step_by(4096) {
            // SAFETY: a valid place; volatile, because writing back what was read is no change to a compiler.
            unsafe { std::ptr::write_volatile(byte, std::ptr::read_volatile(byte)) };
        }
    }

    /// Replaces every `from` by `to`, which is as long; how many there were.
    fn replace(&mut self, from: &[u8], to: &[u8]) -> usize {
        assert_eq!(from.len(), to.len());
        let places: Vec<usize> =
            (0..self.bytes.len()).filter(|at| self.bytes[*at..].starts_with(from)).collect();
        for at in &places {
            self.bytes[*at..][..to.len()].copy_from_slice(to);
        }
        places.len()
    }

    fn times(&self) -> (i64, i64, i64, i64, u64) {
        let found = fs::metadata(&self.path).unwrap();
        (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec(), found.len())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; nobody uses it after this.
        unsafe { libc::munmap(self.bytes.as_mut_ptr().cast(), self.bytes.len()) };
    }
}

/// Where an edit is to be seen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Title,
    FirstPrompt,
}

/// How long after a change stamps prove nothing, less what the look itself may take.
const RACY: Duration = Duration::from_millis(45);
const ROUNDS: usize = 20;

/// Edits `file` again and again, each time without any trace in its times and within the step of the clock in
/// which it was changed before, and looks after each edit.
fn no_edit_is_missed(store: &Store, file: &Path, words: [&str; 2], shown: Shown) {
    let mut mapped = Mapped::new(file);
    let mut rounds = 0;
    // A round in which the machine did something else for too long proves nothing.
    for round in 0..20 * ROUNDS {
        if rounds == ROUNDS {
            return;
        }
        let (from, to) = (words[round % 2], words[(round + 1) % 2]);
        File::options().write(true).open(file).unwrap().set_modified(SystemTime::now()).unwrap();
        let changed = Instant::now();
        let before: std::sync::Arc<Session> = store.only();
        let times = mapped.times();
        assert!(mapped.replace(from.as_bytes(), to.as_bytes()) > 0, "round {round}");
        // The title stands in an index, which also tells which file is the current one.
        let is_current = shown == Shown::Title && store_of(&before).is_current(&before).unwrap();
        let session = store.only();
        assert_eq!(mapped.times(), times, "the edit was to leave no trace");
        if changed.elapsed() < RACY {
            rounds += 1;
            assert!(!is_current, "round {round}: still current");
            let seen = match shown {
                Shown::Title => &session.title,
                Shown::FirstPrompt => &session.first_prompt,
            };
            assert_eq!(seen.as_deref(), Some(to), "round {round}");
        }
    }
    panic!("only {rounds} rounds were fast enough");
}

#[test]
fn an_edit_of_the_thread_index_in_the_same_tick_is_not_missed() {
    let store = Store::of("a_plain4");
    store.db().execute("UPDATE threads SET title = 'one two three four'", []).unwrap();
    let words = ["one two three four", "ONE TWO THREE FOUR"];
    no_edit_is_missed(&store, &store.root.join("state_5.sqlite"), words, Shown::Title);
}

#[test]
fn an_edit_of_the_names_in_the_same_tick_is_not_missed() {
    let store = Store::of("a_plain4");
    let file = store.root.join("session_index.jsonl");
    let id = store.only().id.clone();
    fs::write(&file, format!("{{\"id\":\"{id}\",\"thread_name\":\"five six seven\"}}\n")).unwrap();
    no_edit_is_missed(&store, &file, ["five six seven", "FIVE SIX SEVEN"], Shown::Title);
}

#[test]
fn an_edit_of_a_first_prompt_in_the_same_tick_is_not_missed() {
    let store = Store::of("a_plain4");
    let session = store.only();
    let prompt = session.first_prompt.clone().unwrap();
    let file = store.root.join(&session.files[0]);
    let other = prompt.to_uppercase();
    no_edit_is_missed(&store, &file, [&prompt, &other], Shown::FirstPrompt);
}
