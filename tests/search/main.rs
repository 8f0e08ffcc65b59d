//! Words are found in the turns of every store, by the command and in a mount, whatever the turns hold.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod command;
mod every_word;
mod overviews;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;

use support::TestStore;

/// Replaces a text in every transcript of a store, written as JSON writes it: with all escapes that there are, or with none but those that
/// must be.
pub fn say(store: &TestStore, instead_of: &str, text: &str, escaped: bool) {
    let quoted = serde_json::to_string(text).unwrap();
    let mut inner = quoted[1..quoted.len() - 1].to_owned();
    if escaped {
        let mut units = [0; 2];
        let escape = |c: char, units: &mut [u16; 2]| match c.is_ascii() {
            true => c.to_string(),
            false => c.encode_utf16(units).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
        };
        inner = inner.chars().map(|c| escape(c, &mut units)).collect();
    }
    let mut replaced = 0;
    for_each_transcript(&store.root, &mut |file| {
        let before = fs::read_to_string(file).unwrap();
        replaced += before.matches(instead_of).count();
        fs::write(file, before.replace(instead_of, &inner)).unwrap();
    });
    assert!(replaced > 0, "no transcript has {instead_of:?}");
}

fn for_each_transcript(dir: &Path, with: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            for_each_transcript(&path, with);
        } else if path.extension().is_some_and(|extension| extension == "jsonl") {
            with(&path);
        }
    }
}
