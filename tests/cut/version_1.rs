//! Journals and records as turnfs wrote them before its records were one list of changes: cuts of then are still
//! rolled back, completed, redone and shown. `version_1/` holds files that it wrote; with them is compared what
//! [`downgraded`] makes of the records of today.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use turnfs::cut;
use turnfs::session::AgentKind;

use super::outcome::{Known, Outcome};
#[cfg(feature = "faults")]
use super::store::child;
use super::store::{Sample, Store, samples_of};

const SAMPLES: [(AgentKind, &str); 3] =
    [(AgentKind::KimiCli, "a-plain"), (AgentKind::Codex, "a_plain4"), (AgentKind::OpenMax, "a_plain")];

fn sample(kind: AgentKind, name: &str) -> Sample {
    samples_of(kind).into_iter().find(|sample| sample.name == name).unwrap()
}

fn written_then(kind: AgentKind, cut: &str) -> Value {
    let file = format!("tests/cut/version_1/{}-{cut}.json", kind.name());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The folder of the only session in the state directory, once there is one.
fn folder(store: &Store) -> Option<PathBuf> {
    let mut folders = std::fs::read_dir(store.top().join("state/sessions")).ok()?;
    Some(folders.next()?.unwrap().path())
}

/// The record as it was written then.
fn downgraded(record: &Value) -> Value {
    let mut old = record.as_object().unwrap().clone();
    assert_eq!(old["version"], 2);
    let mut files = Vec::new();
    let mut set = Map::new();
    let new_file = |path: &Value| json!({ "file": path });
    let new_files = |paths: &Value| paths.as_array().unwrap().iter().map(new_file).collect::<Value>();
    for change in record["changes"].as_array().unwrap() {
        let (kind, change) = change.as_object().unwrap().iter().next().unwrap();
        match kind.as_str() {
            "file" => files.push(change.clone()),
            "entry" => drop(set.insert("entry".into(), change.clone())),
            "dir" => drop(set.insert("new_dir".into(), change.clone())),
            "files" => {
                set.insert("new_files".into(), new_files(&change["files"]));
                set.insert("new_dirs".into(), new_files(&change["dirs"]));
            }
            "rows" => {
                let [row] = change["changes"].as_array().unwrap().as_slice() else { panic!("one row") };
                let mut row = row.clone();
                row["db"] = change["db"].clone();
                set.insert("row".into(), row);
            }
            other => panic!("a change of the kind {other}"),
        }
    }
    for (name, none) in [
        ("entry", Value::Null),
        ("new_dir", Value::Null),
        ("row", Value::Null),
        ("new_files", json!([])),
        ("new_dirs", json!([])),
    ] {
        old.insert(name.into(), set.remove(name).unwrap_or(none));
    }
    old.insert("changes".into(), files.into());
    old.insert("version".into(), 1.into());
    old.into()
}

fn downgrade(file: &Path) -> Value {
    let old = downgraded(&serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap());
    std::fs::write(file, serde_json::to_vec_pretty(&old).unwrap()).unwrap();
    old
}

/// The names of all fields, at any depth; of lists, of their first element.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), shape(value))).collect(),
        Value::Array(list) => list.first().map(shape).into_iter().collect(),
        _ => Value::Null,
    }
}

#[test]
fn an_undo_of_version_1_is_shown_and_redone() {
    for (kind, name) in SAMPLES {
        let store = sample(kind, name).copy();
        let known = Known::of(&store);
        let before = Outcome::of(&store, &known);
        store.undo(1).unwrap();
        let file = folder(&store).unwrap().join("undone/1/undo.json");
        let today = std::fs::read(&file).unwrap();
        let spans = || {
            let undone = cut::undone(&store.state(), &store.session().key).unwrap();
            let [undone] = undone.as_slice() else { panic!("{name}: one undo") };
            let spans = undone.turns.iter().map(|turn| cut::undone_span(undone, turn).unwrap());
            spans.collect::<Vec<_>>()
        };
        let expected = spans();
        assert_eq!(expected.len(), 3, "{name}");

        std::fs::write(&file, written_then(kind, "undo").to_string()).unwrap();
        assert_eq!(spans(), expected, "{name}: with a record that was written then");

        std::fs::write(&file, today).unwrap();
        let old = downgrade(&file);
        assert_eq!(shape(&old), shape(&written_then(kind, "undo")), "{name}");
        assert_eq!(spans(), expected, "{name}");
        store.redo().unwrap();
        let after = Outcome::of(&store, &known);
        assert!(after == before, "{name}: {}", before.difference(&after));
    }
}

#[cfg(feature = "faults")]
#[test]
fn a_cut_of_version_1_that_a_kill_interrupted_is_rolled_back_or_completed() {
    for (kind, name) in SAMPLES {
        for (act, fixture) in [("undo 1", "undo"), ("fork 1", "fork")] {
            let sample = sample(kind, name);
            let mut journals = 0;
            let (mut back, mut on) = (0, 0);
            let done = {
                let store = sample.copy();
                let known = Known::of(&store);
                store.act(act).unwrap();
                Outcome::of(&store, &known)
            };
            for k in 1.. {
                let store = sample.copy();
                let known = Known::of(&store);
                let before = Outcome::of(&store, &known);
                let killed = child(&store, act).env("TURNFS_FAULT", format!("abort:{k}")).output().unwrap();
                if killed.status.success() {
                    break;
                }
                let journal = folder(&store).map(|folder| folder.join("journal.json"));
                let Some(journal) = journal.filter(|journal| journal.exists()) else { continue };
                journals += 1;
                let old = downgrade(&journal);
                assert_eq!(shape(&old), shape(&written_then(kind, fixture)), "{name}: {act}");
                let what = format!("{name}: {act}, killed at {k}");
                let told = cut::recover(&store.state()).unwrap();
                assert!(!told.iter().any(|line| line.contains("could not")), "{what}: {told:?}");
                assert!(!journal.exists(), "{what}: the journal is settled");
                let now = Outcome::of(&store, &known);
                back += u32::from(now == before);
                on += u32::from(now == done);
                assert!(now == before || now == done, "{what}: {told:?} {}", before.difference(&now));
            }
            println!("{name}: {act}: {journals} journals, {back} rolled back, {on} completed");
            assert!(journals > 3 && back > 0, "{name}: {act}: {journals} journals, {back} rolled back");
            assert!(act == "undo 1" || on > 0, "{name}: {act}: none was complete");
        }
    }
}
