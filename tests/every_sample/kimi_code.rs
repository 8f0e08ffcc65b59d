//! Kimi Code: one wire that only grows. An undo is three records behind it; a fork is a wire of the records that stay.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::TestStore;
use crate::{Check, Contents, Cut, Judge, ensure, sha256};

pub const JUDGE: Judge = Judge { agent: "kimi-code", contents, transcripts, forked, undone };

fn contents(store: &TestStore) -> Contents {
    store.snapshot()
}

fn wire(session: &Value) -> PathBuf {
    Path::new(session["session_path"].as_str().unwrap()).join(session["wire"].as_str().unwrap())
}

/// A wire with branches counts as several files: the turns are pieces of it, and some of it is in no turn.
fn transcripts(_: &TestStore, session: &Value) -> Vec<PathBuf> {
    vec![wire(session); 1 + session["branch_edges"].as_u64().unwrap() as usize]
}

fn records(bytes: &[u8]) -> Vec<Value> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// Everything but these must be what it was.
fn others_unchanged(now: &Contents, before: &Contents, own: &Path) -> Check {
    let others = |all: &Contents| -> Contents {
        all.iter()
            .filter(|(path, _)| !path.starts_with(own))
            .map(|(path, it)| (path.clone(), it.clone()))
            .collect()
    };
    ensure(others(now) == others(before), || "something else in the store changed".into())
}

fn forked(store: &TestStore, cut: &Cut<'_>, new: &str) -> Check {
    let now = contents(store);
    let source = Path::new(cut.session["session_path"].as_str().unwrap());
    let own = source.with_file_name(new);
    let wire = &now.get(&own.join("agents/main/wire.jsonl")).ok_or("the fork has no wire")?.1;
    let fork = &cut.expected["fork"];
    let end = wire[..wire.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    ensure(fork["sha256"] == sha256(&wire[..end]), || "its wire has other records than expected".into())?;
    ensure(records(&wire[end..])[0]["type"] == fork["then_append"], || {
        "its last record is another one".into()
    })?;
    let read = |dir: &Path| -> Value { serde_json::from_slice(&now[&dir.join("state.json")].1).unwrap() };
    let (state, before) = (read(&own), read(source));
    let same = ["cwd", "version", "custom"].iter().all(|key| state[key] == before[key]);
    let home = store.root.join(&own).join("agents/main");
    let right = state["id"] == new
        && state["forkedFrom"] == cut.session["session"]
        && state["archived"] == false
        && state["agents"]["main"]["homedir"].as_str() == home.to_str()
        && state["title"].as_str().is_some_and(|title| title.starts_with("Fork: "));
    ensure(same && right, || format!("its state is {state}"))?;
    for agent in state["agents"].as_object().unwrap().keys() {
        let wire = own.join("agents").join(agent).join("wire.jsonl");
        ensure(now.contains_key(&wire), || format!("it has no {}", wire.display()))?;
    }
    others_unchanged(&now, cut.before, &own)
}

fn undone(store: &TestStore, cut: &Cut<'_>) -> Check {
    let now = contents(store);
    let path = wire(cut.session);
    let wire = &now.get(&path).ok_or("the wire is gone")?.1;
    let wanted = &cut.expected["files"][cut.session["wire"].as_str().unwrap()];
    let before = wanted["unchanged_prefix_bytes"].as_u64().unwrap() as usize;
    ensure(wanted["sha256"] == sha256(&wire[..before]), || "what was there changed".into())?;
    let added = records(&wire[before..]);
    let types: Vec<&str> = added.iter().map(|record| record["type"].as_str().unwrap()).collect();
    ensure(types == ["agent.switched", "context.undo", "context.undone"], || format!("it adds {types:?}"))?;
    let undo = &cut.expected["undo"];
    let same = ["branch", "base", "turns", "legacyUndoLine"].iter().all(|key| added[0][key] == undo[key])
        && added[1]["count"] == undo["turns"]
        && added[2]["turns"] == undo["turns"]
        && added[2]["fromTurnId"] == undo["fromTurnId"];
    ensure(same, || format!("it adds {added:?}, expected {undo}"))?;
    others_unchanged(&now, cut.before, &path)
}
