//! Claude Code: a file a session. The samples say what the model must be sent, not which bytes are kept: what is
//! compared here is that a cut keeps whole lines of the source, in their order, and nothing else.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::TestStore;
use crate::{Check, Contents, Cut, Judge, ensure, id};

pub const JUDGE: Judge =
    Judge { agent: "claude-code", contents: TestStore::snapshot, transcripts, forked, undone };

/// The transcript of a session, below the store's root.
fn place(contents: &Contents, id: &str) -> Option<PathBuf> {
    let name = format!("{id}.jsonl");
    contents.keys().find(|path| path.starts_with("projects") && path.ends_with(&name)).cloned()
}

fn transcripts(store: &TestStore, session: &Value) -> Vec<PathBuf> {
    place(&store.snapshot(), id(session)).into_iter().collect()
}

fn undone(store: &TestStore, cut: &Cut<'_>) -> Check {
    let session = id(cut.session);
    let file = place(cut.before, session).ok_or("no transcript")?;
    kept_lines(store, &file, session, &cut.before[&file].1, session)?;
    others_unchanged(store, cut.before, Some(&file))
}

fn forked(store: &TestStore, cut: &Cut<'_>, new: &str) -> Check {
    let session = id(cut.session);
    let source = place(cut.before, session).ok_or("no transcript")?;
    let file = place(&store.snapshot(), new).ok_or("the fork has no transcript")?;
    ensure(file.parent() == source.parent(), || "the fork lies in another folder".into())?;
    kept_lines(store, &file, new, &cut.before[&source].1, session)?;
    others_unchanged(store, cut.before, None)
}

/// Every line must be one of the source's, in the same order, but for the session's id.
fn kept_lines(store: &TestStore, file: &Path, id: &str, source: &[u8], old: &str) -> Check {
    let bytes = fs::read(store.root.join(file)).unwrap();
    ensure(bytes.ends_with(b"\n"), || "its last line has no newline".into())?;
    let mode = fs::metadata(store.root.join(file)).unwrap().mode() & 0o7777;
    ensure(mode == 0o600, || format!("its mode is {mode:o}"))?;
    let text = String::from_utf8(bytes).map_err(|_| "it is no text")?;
    let source = String::from_utf8_lossy(source);
    let mut left = source.lines();
    for line in text.lines() {
        let names_old = line.contains(&format!("\"sessionId\":\"{old}\""));
        ensure(id == old || !names_old, || format!("names {old}: {line:.200}"))?;
        let wanted = anybodys(line);
        ensure(left.any(|line| anybodys(line) == wanted), || {
            format!("no line of the source, or not in its order: {line:.200}")
        })?;
    }
    Ok(())
}

/// A line without the session's id, which a fork gives to all its records.
fn anybodys(line: &str) -> String {
    let mark = "\"sessionId\":\"";
    let Some((before, rest)) = line.split_once(mark) else { return line.to_owned() };
    let (_, after) = rest.split_once('"').unwrap();
    format!("{before}{mark}\"{after}")
}

fn others_unchanged(store: &TestStore, before: &Contents, but: Option<&Path>) -> Check {
    let after = store.snapshot();
    let mut others = before.iter().filter(|(file, _)| Some(file.as_path()) != but);
    ensure(others.all(|(file, content)| after.get(file) == Some(content)), || "another file changed".into())
}
