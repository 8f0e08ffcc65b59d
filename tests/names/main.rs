//! What a session may be called, in which order sessions stand, and what time is theirs: as a user's shell sees
//! it, through real mounts and the commands.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod arguments;
mod below;
mod times;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use support::{TestStore, samples_of};

/// The threads of the samples `a_plain4` (older) and `c_compaction`, both of `/home/dev/work/app1`.
pub const OLDER: &str = "01a22cb1-8565-71c1-997b-5aa67cc3b0a3";
pub const NEWER: &str = "01a22cb1-8c0a-7710-a15b-7403f751bc93";
pub const APP: &str = "home/dev/work/app1";

/// A Codex store with both threads, and their files: the older one's first.
pub fn two_threads() -> (TestStore, PathBuf, PathBuf) {
    let store = TestStore::of("codex", "a_plain4");
    support::copy_tree(
        &samples_of("codex").join("c_compaction/store/sessions"),
        &store.root.join("sessions"),
    );
    let (older, newer) = (rollout(&store, OLDER), rollout(&store, NEWER));
    (store, older, newer)
}

/// The rollout file of a thread.
pub fn rollout(store: &TestStore, id: &str) -> PathBuf {
    fn find(dir: &Path, end: &str) -> Option<PathBuf> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).find_map(|path| match path.is_dir() {
            true => find(&path, end),
            false => path.to_str().unwrap().ends_with(end).then_some(path),
        })
    }
    find(&store.root.join("sessions"), &format!("{id}.jsonl")).unwrap()
}

pub fn ids(sessions: &serde_json::Value) -> Vec<&str> {
    sessions.as_array().unwrap().iter().map(|session| session["id"].as_str().unwrap()).collect()
}

pub fn touch(file: &Path, seconds: u64) {
    let opened = fs::File::options().append(true).open(file).unwrap();
    opened.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
}

pub fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
