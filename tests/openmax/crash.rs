//! A kill at every durable operation of a cut: afterwards the session is as before or as after it, and no
//! other session's entry is lost. Feature `faults`; the program that is killed is this test binary.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use turnfs::agents::{open, store_of};
use turnfs::cut::{self, StateDir};
use turnfs::session::AgentKind;

use crate::store::Store;

/// Not a test, but what [`run`] runs: one cut, as the environment says it.
#[test]
#[ignore = "the part of a child process"]
fn one_cut() {
    let root = std::env::var_os("OPENMAX_ROOT").unwrap();
    let state = StateDir::at(Path::new(&std::env::var_os("OPENMAX_STATE").unwrap()));
    let act = std::env::var("OPENMAX_ACT").unwrap();
    let words: Vec<&str> = act.split(' ').collect();
    let found = open(AgentKind::OpenMax, Path::new(&root)).discover().unwrap();
    let session = found.sessions.iter().find(|session| session.id == words[1]).unwrap();
    let history = store_of(session).load(session).unwrap();
    match words[0] {
        "undo" => drop(
            cut::undo(&*store_of(session), &state, session, &history, words[2].parse().unwrap(), false)
                .unwrap(),
        ),
        "redo" => drop(cut::redo(&*store_of(session), &state, session, None, false).unwrap()),
        "fork" => drop(
            cut::fork(&*store_of(session), &state, session, &history, words[2].parse().unwrap()).unwrap(),
        ),
        other => panic!("{other}"),
    }
}

fn run(store: &Store, act: &str, fault: &str) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "crash::one_cut"])
        .env("OPENMAX_ROOT", &store.root)
        .env("OPENMAX_STATE", &store.state)
        .env("OPENMAX_ACT", act)
        .env("TURNFS_FAULT", fault)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().unwrap().success()
}

/// The store without what differs from run to run: times, and the ids of forks.
fn told(store: &Store, known: &[String]) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let new: Vec<String> = store
        .entries()
        .iter()
        .map(|entry| entry["id"].as_str().unwrap().to_owned())
        .filter(|id| !known.contains(id))
        .collect();
    for (path, bytes) in store.snapshot() {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(!name.contains("turnfs"), "{name} is left");
        let mut text = String::from_utf8(bytes).unwrap();
        let mut name = name;
        for id in &new {
            text = text.replace(id, "NEW");
            name = name.replace(id, "NEW");
        }
        if name == "index.json" {
            let own = text.lines().filter(|line| !line.contains("_at\":"));
            text = own.collect::<Vec<_>>().join("\n");
        }
        files.insert(PathBuf::from(name), text.into_bytes());
    }
    files
}

/// Behaviour 44 of `docs/stores/openmax.md`.
#[test]
fn a_kill_at_any_step_leaves_the_session_before_or_after_the_cut() {
    let plain = "561d5266-2612-4a70-b3b5-4277aff74b94";
    let pruned = "d2e4e057-91a4-45b8-ba0f-e987fe44efaa";
    for (sample, prepare, act) in [
        ("a_plain", None, format!("undo {plain} 2")),
        ("a_plain", Some(format!("undo {plain} 2")), format!("redo {plain}")),
        ("a_plain", None, format!("fork {plain} 2")),
        ("c_compact", None, format!("undo {pruned} 4")),
        ("c_compact", Some(format!("undo {pruned} 4")), format!("redo {pruned}")),
        ("c_compact", None, format!("fork {pruned} 4")),
        ("c_compact", None, format!("fork {pruned} 10")),
    ] {
        let prepared = || {
            let store = Store::of(sample);
            if let Some(prepare) = &prepare {
                assert!(run(&store, prepare, ""), "{sample} {prepare}");
            }
            store
        };
        let store = prepared();
        let known: Vec<String> =
            store.entries().iter().map(|e| e["id"].as_str().unwrap().to_owned()).collect();
        let before = told(&store, &known);
        let count = store.state.join("count");
        assert!(run(&store, &act, &format!("count:{}", count.display())), "{sample} {act}");
        let after = told(&store, &known);
        let operations = fs::read_to_string(&count).unwrap().lines().count();
        assert!(operations > 8, "{sample} {act}: {operations} operations");
        for k in 1..=operations {
            let at = format!("{sample} {act}, killed at {k} of {operations}");
            let store = prepared();
            assert!(!run(&store, &act, &format!("abort:{k}")), "{at}: was not killed");
            let sentences = cut::recover(&StateDir::at(&store.state)).unwrap();
            assert!(!sentences.iter().any(|sentence| sentence.contains("could not")), "{at}: {sentences:?}");
            let now = told(&store, &known);
            assert!(now == before || now == after, "{at}: neither before nor after; {sentences:?}");
            assert!(store.discover().problems.is_empty(), "{at}");
            assert!(cut::recover(&StateDir::at(&store.state)).unwrap().is_empty(), "{at}: a second recovery");
        }
    }
}
