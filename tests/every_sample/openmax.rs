//! OpenMax: files beside each other named by the session's id, and one index of all sessions.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::TestStore;
use crate::{Check, Contents, Cut, Judge, ensure, id, sha256};

pub const JUDGE: Judge = Judge { agent: "openmax", contents, transcripts, forked, undone };

fn contents(store: &TestStore) -> Contents {
    let mut all = store.snapshot();
    all.retain(|path, _| path.extension().is_none_or(|extension| extension != "lock"));
    all
}

fn file(id: &str, kind: &str) -> PathBuf {
    PathBuf::from(format!("sessions/{id}.{kind}"))
}

fn transcripts(store: &TestStore, session: &Value) -> Vec<PathBuf> {
    let kinds = ["messages.json", "archive.jsonl"].map(|kind| file(id(session), kind));
    kinds.into_iter().filter(|file| store.root.join(file).exists()).collect()
}

fn entries(contents: &Contents) -> Vec<Value> {
    let index = contents.get(Path::new("sessions/index.json"));
    index.map(|(_, bytes)| serde_json::from_slice(bytes).unwrap()).unwrap_or_default()
}

/// Other sessions' files and entries must be what they were.
fn others_unchanged(now: &Contents, before: &Contents, own: &str) -> Check {
    let others = |all: &Contents| -> Vec<(PathBuf, Vec<u8>)> {
        let of_others = |path: &Path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.contains('.') && !name.starts_with(own) && name != "index.json"
        };
        let files = all.iter().filter(|(path, _)| of_others(path));
        files.map(|(path, (_, bytes))| (path.clone(), bytes.clone())).collect()
    };
    ensure(others(now) == others(before), || "another session's file changed".into())?;
    let old: Vec<Value> = entries(before).into_iter().filter(|entry| entry["id"] != own).collect();
    let new: Vec<Value> = entries(now).into_iter().filter(|entry| entry["id"] != own).collect();
    ensure(old == new, || "another session's entry changed".into())
}

fn forked(store: &TestStore, cut: &Cut<'_>, new: &str) -> Check {
    let now = contents(store);
    let session = id(cut.session);
    let own = &now.get(&file(new, "messages.json")).ok_or("the fork has no transcript")?.1;
    let fork = &cut.expected["fork"];
    if fork["prefer"] == "as_is" {
        let live = String::from_utf8(cut.before[&file(session, "messages.json")].1.clone()).unwrap();
        let lines = fork["as_is"]["live_lines"].as_u64().unwrap() as usize;
        let wanted = live.split_inclusive('\n').take(lines).collect::<String>().replace(session, new);
        ensure(*own == wanted.into_bytes(), || "other lines than expected".into())?;
        for kind in ["archive.jsonl", "compaction.jsonl"] {
            let bytes = |id: &str| now.get(&file(id, kind)).map(|(_, bytes)| bytes);
            ensure(bytes(new) == bytes(session), || format!("its {kind} is not the source's"))?;
        }
    } else {
        ensure(fork["full"]["sha256"] == sha256(own), || "other lines than expected".into())?;
    }
    others_unchanged(&now, cut.before, new)?;
    let entries = entries(&now);
    ensure(entries.last().is_some_and(|last| last["id"] == new), || "its entry is not the last one".into())
}

fn undone(store: &TestStore, cut: &Cut<'_>) -> Check {
    let now = contents(store);
    let session = id(cut.session);
    for (name, wanted) in cut.expected["files"].as_object().unwrap() {
        let path = Path::new("sessions").join(name);
        let bytes = &now.get(&path).ok_or_else(|| format!("{name} is gone"))?.1;
        ensure(wanted["sha256"] == sha256(bytes), || format!("{name} has other bytes than expected"))?;
        for gone in wanted["move_out"].as_array().into_iter().flatten() {
            let gone = Path::new("sessions").join(gone.as_str().unwrap());
            ensure(!now.contains_key(&gone), || format!("{} stayed", gone.display()))?;
        }
        let entries = entries(&now);
        let entry = entries.iter().find(|entry| entry["id"] == session).ok_or("its entry is gone")?;
        let points = entry.get("resume_points").cloned().unwrap_or_else(|| Value::Array(Vec::new()));
        ensure(points == wanted["resume_points"], || format!("its entry is {entry}"))?;
    }
    others_unchanged(&now, cut.before, session)
}
