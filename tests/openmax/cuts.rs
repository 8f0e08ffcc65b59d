//! Every cut of every sample leaves the bytes that are expected, and what the real client sent after the
//! same cut is what our result holds.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use turnfs::agents::store_of;
use turnfs::cut::{self, StateDir};
use turnfs::session::Errno;

use crate::store::{Store, all_samples, samples};

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the model is sent of a transcript: role and the first characters of each text.
fn messages(transcript: &[u8], characters: usize) -> Vec<(String, String)> {
    let mut sent = Vec::new();
    let lines = transcript.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    for line in lines {
        let message: Value = serde_json::from_slice(line).unwrap();
        let role = message["role"].as_str().unwrap();
        let content: String = message["content"].as_str().unwrap_or("").chars().take(characters).collect();
        if role != "system" && (!content.is_empty() || role != "assistant") {
            sent.push((role.to_owned(), content));
        }
        for call in message["tool_calls"].as_array().unwrap_or(&Vec::new()) {
            sent.push(("call".to_owned(), call["id"].as_str().unwrap().to_owned()));
        }
    }
    sent
}

fn pairs(expected: &Value) -> Vec<(String, String)> {
    serde_json::from_value(expected.clone()).unwrap()
}

fn errno(name: &str) -> Errno {
    match name {
        "EUCLEAN" => Errno::UCLEAN,
        "EROFS" => Errno::ROFS,
        other => panic!("an unknown errno {other}"),
    }
}

/// The bytes that the store has under a name, which is not its lock files.
fn files(store: &Store) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = store.snapshot();
    files.retain(|path, _| path.extension().is_none_or(|extension| extension != "lock"));
    files
}

#[test]
fn every_undo_leaves_the_expected_bytes_and_redo_brings_every_byte_back() {
    let mut undos = 0;
    for (sample, _, sessions) in all_samples() {
        for expected in &sessions {
            let id = expected["session"].as_str().unwrap();
            let Some(keep) = expected["keep"].as_object() else { continue };
            for (kept, expected_cut) in keep {
                let n = (kept.parse::<i64>().unwrap() + 1) as u32;
                if n as usize == expected["turns"].as_array().unwrap().len() {
                    continue; // nothing would be undone
                }
                let at = format!("{sample} {id} undo {n}");
                let store = Store::of(&sample);
                let state = StateDir::at(&store.state);
                let before = files(&store);
                let session = store.session(id);
                let history = store_of(&session).load(&session).unwrap();
                let done = cut::undo(&*store_of(&session), &state, &session, &history, n, false);
                if let Some(refused) = expected["cuts_refused"].as_str() {
                    assert_eq!(done.unwrap_err().errno(), errno(refused), "{at}");
                    assert_eq!(files(&store), before, "{at}: a refused cut changed the store");
                    continue;
                }
                done.unwrap_or_else(|refusal| panic!("{at}: {refusal}"));
                undos += 1;
                for (name, file) in expected_cut["files"].as_object().unwrap() {
                    let bytes = fs::read(store.file(name)).unwrap();
                    assert_eq!(bytes.len() as u64, file["bytes"].as_u64().unwrap(), "{at}");
                    assert_eq!(sha256(&bytes), file["sha256"].as_str().unwrap(), "{at}");
                    assert_eq!(messages(&bytes, 80), pairs(&expected_cut["messages"]), "{at}");
                    for gone in file["move_out"].as_array().unwrap_or(&Vec::new()) {
                        assert!(!store.file(gone.as_str().unwrap()).exists(), "{at}: {gone} stayed");
                    }
                    let points =
                        |entry: &Value| entry.get("resume_points").cloned().unwrap_or(Value::Array(vec![]));
                    let entries = store.entries();
                    assert_eq!(entries.last().unwrap()["id"], id, "{at}: the entry is not the last one");
                    assert_eq!(points(entries.last().unwrap()), file["resume_points"], "{at}");
                }
                others_unchanged(&before, &store, id, &at);
                let after = store.load(id);
                assert_eq!(after.turns.len(), n as usize, "{at}");
                let undone = cut::undone(&state, &session.key).unwrap();
                for turn in &undone[0].turns {
                    let removed = cut::undone_span(&undone[0], turn).unwrap();
                    let prompt = store_of(&session).prompt(&session, turn, &removed).unwrap();
                    assert_eq!(Some(prompt), turn.prompt, "{at}: undone turn {}", turn.n);
                }
                let session = store.session(id);
                cut::redo(&*store_of(&session), &state, &session, None, false)
                    .unwrap_or_else(|refusal| panic!("{at}: redo: {refusal}"));
                assert_eq!(files(&store), before, "{at}: redo did not bring every byte back");
            }
        }
    }
    assert!(undos > 60, "only {undos} undos were made");
}

/// Entries of other sessions and all other files, byte for byte.
fn others_unchanged(before: &BTreeMap<PathBuf, Vec<u8>>, store: &Store, id: &str, at: &str) {
    let text = fs::read_to_string(store.index()).unwrap();
    let old = String::from_utf8(before[&store.index()].clone()).unwrap();
    for entry in old.split("  {\n").skip(1).filter(|entry| !entry.contains(id)) {
        let body = entry.rsplit_once("\n  }").unwrap().0;
        assert!(text.contains(body), "{at}: another entry changed");
    }
    for (path, bytes) in before {
        let own = path.file_name().unwrap().to_str().unwrap().starts_with(id) || *path == store.index();
        assert!(own || fs::read(path).unwrap() == *bytes, "{at}: {} changed", path.display());
    }
}

#[test]
fn every_fork_holds_the_expected_bytes_and_leaves_its_source_alone() {
    let mut forks = 0;
    for (sample, _, sessions) in all_samples() {
        for expected in &sessions {
            let id = expected["session"].as_str().unwrap();
            let Some(keep) = expected["keep"].as_object() else { continue };
            for (kept, expected_cut) in keep {
                let Ok(n) = kept.parse::<u32>() else { continue };
                let at = format!("{sample} {id} fork {n}");
                let store = Store::of(&sample);
                let state = StateDir::at(&store.state);
                let before = files(&store);
                let session = store.session(id);
                let history = store_of(&session).load(&session).unwrap();
                let made = cut::fork(&*store_of(&session), &state, &session, &history, n);
                if let Some(refused) = expected["cuts_refused"].as_str() {
                    assert_eq!(made.unwrap_err().errno(), errno(refused), "{at}");
                    assert_eq!(files(&store), before, "{at}: a refused cut changed the store");
                    continue;
                }
                let new = made.unwrap_or_else(|refusal| panic!("{at}: {refusal}"));
                forks += 1;
                let bytes = fs::read(store.transcript(&new)).unwrap();
                let fork = &expected_cut["fork"];
                if fork["prefer"] == "as_is" {
                    let live = fs::read_to_string(store.transcript(id)).unwrap();
                    let lines = fork["as_is"]["live_lines"].as_u64().unwrap() as usize;
                    let prefix: String = live.split_inclusive('\n').take(lines).collect();
                    assert_eq!(String::from_utf8(bytes.clone()).unwrap(), prefix.replace(id, &new), "{at}");
                    for sidecar in ["archive.jsonl", "compaction.jsonl"] {
                        let read = |id: &str| fs::read(store.file(&format!("{id}.{sidecar}"))).unwrap();
                        assert_eq!(read(&new), read(id), "{at}");
                    }
                } else {
                    assert_eq!(sha256(&bytes), fork["full"]["sha256"].as_str().unwrap(), "{at}");
                    let expected = fork.get("messages_full").unwrap_or(&expected_cut["messages"]);
                    assert_eq!(messages(&bytes, 80), pairs(expected), "{at}");
                    assert!(!store.file(&format!("{new}.archive.jsonl")).exists(), "{at}");
                }
                others_unchanged(&before, &store, &new, &at);
                check_entry(&store, id, &new, &at);
                let read = store.load(&new);
                assert_eq!(read.turns.len(), n as usize + 1, "{at}");
                for (new, old) in read.turns.iter().zip(&history.turns) {
                    assert_eq!((&new.prompt, new.status), (&old.prompt, old.status), "{at}");
                }
            }
        }
    }
    assert!(forks > 60, "only {forks} forks were made");
}

fn check_entry(store: &Store, source: &str, new: &str, at: &str) {
    let entries = store.entries();
    let (entry, others) = entries.split_last().unwrap();
    assert_eq!(entry["id"], new, "{at}");
    let source = others.iter().find(|entry| entry["id"] == source).unwrap();
    assert_eq!(entry["project"], source["project"], "{at}");
    assert_eq!(entry["title"], format!("Fork: {}", source["title"].as_str().unwrap()), "{at}");
    assert_eq!(entry.get("resume_points"), None, "{at}");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let updated = entry["updated_at"].as_u64().unwrap();
    assert!(updated <= now, "{at}: in the future");
    for other in others.iter().filter(|other| other["project"] == entry["project"]) {
        let other = other["updated_at"].as_u64().unwrap();
        assert!(updated > other || other > now, "{at}: not the newest");
    }
}

#[test]
fn what_the_client_sent_after_a_cut_is_what_our_result_holds() {
    let mut compared = 0;
    for (sample, _, sessions) in all_samples() {
        let Ok(text) = fs::read(samples().join(&sample).join("requests.json")) else { continue };
        let requests: Value = serde_json::from_slice(&text).unwrap();
        let id = sessions[0]["session"].as_str().unwrap();
        for request in requests["requests"].as_array().unwrap() {
            let command = request["command"].as_str().unwrap();
            let at = format!("{sample} {command}");
            let (verb, n) = command.split_once(' ').unwrap();
            let n: u32 = n.parse().unwrap();
            let store = Store::of(&sample);
            let state = StateDir::at(&store.state);
            let id = request["session"].as_str().unwrap_or(id);
            let session = store.session(id);
            let history = store_of(&session).load(&session).unwrap();
            let result = match verb {
                "fork" => cut::fork(&*store_of(&session), &state, &session, &history, n).unwrap(),
                // Behind the last turn there is nothing to remove: the client was given the session as it is.
                "undo" if n as usize == history.turns.len() => {
                    let refused =
                        cut::undo(&*store_of(&session), &state, &session, &history, n, false).unwrap_err();
                    assert_eq!(refused.errno(), Errno::RANGE, "{at}");
                    id.to_owned()
                }
                "undo" => cut::undo(&*store_of(&session), &state, &session, &history, n, false)
                    .map(|_| id.to_owned())
                    .unwrap(),
                other => panic!("an unknown command {other}"),
            };
            let ours = messages(&fs::read(store.transcript(&result)).unwrap(), 120);
            let mut sent = pairs(&request["sent"]);
            if request["client_pruned_first"] == true {
                continue; // it compacted what it found before it sent anything
            }
            assert_eq!(sent.pop().unwrap().1, request["prompt"].as_str().unwrap(), "{at}");
            if request["client_added_note"] == true {
                let note = sent.pop().unwrap();
                assert!(note.1.starts_with('['), "{at}: {note:?}");
            }
            let same_path = |(role, text): (String, String)| (role, text.replace(&result, id));
            let ours: Vec<_> = ours.into_iter().map(same_path).collect();
            assert_eq!(ours, sent, "{at}");
            compared += 1;
        }
    }
    assert!(compared >= 29, "only {compared} requests were compared");
}

#[test]
fn nothing_that_a_cut_makes_is_readable_by_others() {
    use std::os::unix::fs::PermissionsExt as _;
    let store = Store::of("a_plain");
    let state = StateDir::at(&store.state);
    let id = store.entries()[0]["id"].as_str().unwrap().to_owned();
    let session = store.session(&id);
    let new = cut::fork(&*store_of(&session), &state, &session, &store.load(&id), 1).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&store.transcript(&new)), 0o600);
    let index = mode(&store.index());
    cut::undo(&*store_of(&session), &state, &session, &store.load(&id), 1, false).unwrap();
    assert_eq!(mode(&store.index()), index, "the index's mode changed");
}
