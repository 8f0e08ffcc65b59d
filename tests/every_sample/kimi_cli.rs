//! Kimi CLI: a directory a session; a cut leaves the named files and no other history.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::TestStore;
use crate::{Check, Cut, Judge, ensure, sha256};

pub const JUDGE: Judge =
    Judge { agent: "kimi-cli", contents: TestStore::snapshot, transcripts, forked, undone };

fn place(session: &Value) -> PathBuf {
    PathBuf::from(session["session_path"].as_str().expect("expected.json names no session_path"))
}

fn transcripts(store: &TestStore, session: &Value) -> Vec<PathBuf> {
    let place = place(session);
    let files = ["wire.jsonl", "context.jsonl"].map(|name| place.join(name));
    let found = files.into_iter().find(|file| store.root.join(file).exists());
    vec![found.unwrap_or(place)]
}

fn undone(store: &TestStore, cut: &Cut<'_>) -> Check {
    let place = place(cut.session);
    same_files(store, &place, &place, cut.expected, false)
}

fn forked(store: &TestStore, cut: &Cut<'_>, new: &str) -> Check {
    let place = place(cut.session);
    same_files(store, &place.with_file_name(new), &place, cut.expected, true)?;
    let after = store.snapshot();
    ensure(cut.before.iter().all(|(file, content)| after.get(file) == Some(content)), || {
        "changed its source".into()
    })
}

/// Whether the history files of the session at `session` are exactly those of `expected["files"]`.
fn same_files(store: &TestStore, session: &Path, source: &Path, expected: &Value, fork: bool) -> Check {
    let files = expected["files"].as_object().unwrap();
    let dir = store.root.join(session);
    let mut wanted = Vec::new();
    for (name, content) in files {
        // The flat form names its one file by its place in the store; a fork of it has the directory form.
        let flat = name.contains('/');
        let path = match (flat, fork) {
            (true, true) => dir.join("context.jsonl"),
            (true, false) => store.root.join(source),
            (false, _) => dir.join(name),
        };
        wanted.push(path.file_name().unwrap().to_owned());
        let bytes = fs::read(&path).map_err(|error| format!("{name}: {error}"))?;
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        ensure(content["lines"] == lines, || format!("{name} has {lines} lines, expected {content}"))?;
        ensure(content["sha256"] == sha256(&bytes), || format!("{name} has other bytes than expected"))?;
        let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
        ensure(mode == 0o600, || format!("{name} has mode {mode:o}"))?;
    }
    if dir.is_dir() {
        for entry in fs::read_dir(&dir).unwrap() {
            let name = entry.unwrap().file_name();
            // A sub-agent's context (clients before 1.25) stays, as its directory does today.
            let name_text = name.to_string_lossy();
            let history = name_text.ends_with(".jsonl") && !name_text.starts_with("context_sub_");
            ensure(!history || wanted.contains(&name), || format!("{} is left over", name.display()))?;
        }
    }
    Ok(())
}
