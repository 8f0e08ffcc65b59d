//! Parts of a store that are links (moved to another disk, kept in a dotfiles directory), and parts that this user
//! may not read.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod followed;
mod not_followed;
mod unreadable;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use support::TestStore;

/// The only session as `ls` tells it.
#[track_caller]
fn only(store: &TestStore) -> serde_json::Value {
    let sessions = store.run(&["ls", "--all", "--json"]).json();
    assert_eq!(sessions.as_array().unwrap().len(), 1, "{sessions}");
    sessions[0].clone()
}

/// The first path below `dir` that ends so.
fn find(dir: &Path, end: &str) -> PathBuf {
    let mut found = Vec::new();
    walk(dir, dir, &mut |path, _| found.push(path.to_owned()));
    let it = found.iter().find(|path| path.to_string_lossy().ends_with(end));
    dir.join(it.unwrap_or_else(|| panic!("nothing in {} ends with {end:?}: {found:?}", dir.display())))
}

/// Everything below a store as its client sees it: links followed.
fn as_seen(store: &TestStore) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut seen = BTreeMap::new();
    walk(&store.root, &store.root, &mut |path, bytes| {
        // The database is compared by what is listed and shown; lock files come and go.
        let name = path.to_string_lossy();
        if !name.contains(".sqlite") && !name.ends_with(".lock") {
            seen.insert(path.to_owned(), bytes);
        }
    });
    seen
}

fn walk(root: &Path, dir: &Path, each: &mut dyn FnMut(&Path, Vec<u8>)) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let facts = std::fs::metadata(&path).unwrap();
        match facts.is_dir() {
            true => {
                each(path.strip_prefix(root).unwrap(), Vec::new());
                walk(root, &path, each);
            }
            false => each(path.strip_prefix(root).unwrap(), std::fs::read(&path).unwrap()),
        }
    }
}
