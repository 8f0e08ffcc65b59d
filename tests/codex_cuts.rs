//! Fork, undo and redo of Codex threads: every sample, every turn.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod codex_store;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use codex_store::{Store, behind_first, expected, names, sha256};
use serde_json::Value;
use turnfs::agents::store_of;
use turnfs::cut;
use turnfs::session::{Errno, Refusal, State};

fn meta(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes.split(|byte| *byte == b'\n').next().unwrap()).unwrap()
}

#[test]
fn a_fork_of_every_sample_at_every_turn_is_one_file_with_exactly_the_kept_lines() {
    for sample in names() {
        let store = Store::of(&sample);
        for want in expected(&sample) {
            let id = want["session"].as_str().unwrap();
            let session = store.session(id);
            let history = store.load(&session);
            for n in 0..history.turns.len() as u32 {
                let what = format!("{sample} {id} fork {n}");
                let (files, rows) = (store.files(), store.rows());
                let new = cut::fork(&*store_of(&session), &store.state, &session, &history, n)
                    .unwrap_or_else(|e| panic!("{what}: {e}"));
                let mut after = store.files();
                let path = PathBuf::from(store.path_of(&new));
                let bytes = after.remove(path.strip_prefix(&store.root).unwrap()).unwrap();
                assert_eq!(after, files, "{what}: another file changed");
                let mut rows_after = store.rows();
                rows_after.remove(&new).unwrap();
                assert_eq!(rows_after, rows, "{what}: another row changed");

                let keep = &want["keep"][n.to_string()];
                assert_eq!(
                    Some(sha256(behind_first(&bytes)).as_str()),
                    keep["copy_body"]["sha256"].as_str(),
                    "{what}"
                );
                let head = meta(&bytes);
                assert_eq!(head["payload"]["id"], new.as_str(), "{what}");
                assert_eq!(head["payload"]["forked_from_id"], id, "{what}");
                assert_eq!(head["payload"].get("history_base"), None, "{what}");
                assert_eq!(
                    head.get("ordinal").cloned(),
                    (want["history_mode"] == "paginated").then(|| 0.into()),
                    "{what}"
                );

                let forked = store.session(&new);
                assert_eq!(forked.place, session.place, "{what}");
                assert_eq!(forked.first_prompt, session.first_prompt, "{what}");
                let forked_history = store.load(&forked);
                assert_eq!(forked_history.state, State::Ok, "{what}: {:?}", forked_history.damages);
                let prompts = |turns: &[turnfs::session::Turn]| -> Vec<_> {
                    turns.iter().map(|turn| (turn.prompt.clone(), turn.status)).collect()
                };
                assert_eq!(prompts(&forked_history.turns), prompts(&history.turns[..=n as usize]), "{what}");
                let mode =
                    std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
                assert_eq!(mode & 0o777, 0o600, "{what}");
                fs::remove_file(&path).unwrap();
                store.db().execute("DELETE FROM threads WHERE id = ?1", [&new]).unwrap();
            }
        }
    }
}

#[test]
fn an_undo_of_every_sample_at_every_turn_leaves_what_is_kept_and_redo_gives_all_back() {
    for sample in names() {
        let store = Store::of(&sample);
        for want in expected(&sample) {
            let id = want["session"].as_str().unwrap();
            let session = store.session(id);
            let history = store.load(&session);
            for n in 0..history.turns.len() as u32 {
                let what = format!("{sample} {id} undo {n}");
                let (files, rows) = (store.files(), store.rows());
                let undo = cut::undo(&*store_of(&session), &store.state, &session, &history, n, false);
                if want["archived"] == true {
                    let refusal = undo.unwrap_err();
                    assert_eq!(refusal.errno(), Errno::OPNOTSUPP, "{what}: {refusal}");
                    assert_eq!((store.files(), store.rows()), (files, rows), "{what}");
                    continue;
                }
                undo.unwrap_or_else(|e| panic!("{what}: {e}"));
                let keep = &want["keep"][(i64::from(n) - 1).to_string()];
                match want["history_mode"].as_str().unwrap() {
                    "legacy" => {
                        let (file, kept) = keep["files"].as_object().unwrap().iter().next().unwrap();
                        let bytes = fs::read(store.root.join(file)).unwrap();
                        assert_eq!(Some(sha256(&bytes).as_str()), kept["sha256"].as_str(), "{what}");
                        assert_eq!(store.rows(), rows, "{what}");
                    }
                    _ => check_revert(&store, id, &files, keep, n, &what),
                }
                let cut_session = store.session(id);
                assert_eq!(cut_session.key, session.key, "{what}: the session has another place");
                let left = store.load(&cut_session);
                assert_eq!(left.turns.len() as u32, n, "{what}");
                assert_eq!(left.state, if n == 0 { State::Empty } else { State::Ok }, "{what}");

                let (number, back) =
                    cut::redo(&*store_of(&cut_session), &store.state, &cut_session, None, false)
                        .unwrap_or_else(|e| panic!("{what}: redo: {e}"));
                assert_eq!(back as usize, history.turns.len() - n as usize, "{what}: redo of {number}");
                assert_eq!(store.files(), files, "{what}: redo gave other files");
                assert_eq!(store.rows(), rows, "{what}: redo gave other rows");
            }
        }
    }
}

/// The client's own way: one new file that points back, the index naming it, nothing destroyed.
fn check_revert(
    store: &Store,
    id: &str,
    files: &std::collections::BTreeMap<PathBuf, Vec<u8>>,
    keep: &Value,
    n: u32,
    what: &str,
) {
    let mut after = store.files();
    let path = PathBuf::from(store.path_of(id));
    let bytes = after.remove(path.strip_prefix(&store.root).unwrap()).unwrap();
    assert_eq!(&after, files, "{what}: another file changed");
    assert!(behind_first(&bytes).is_empty(), "{what}");
    let head = meta(&bytes);
    assert_eq!(head["payload"]["id"], id, "{what}");
    if n == 0 {
        assert_eq!(
            (head["ordinal"].as_u64(), head["payload"].get("history_base")),
            (Some(0), None),
            "{what}"
        );
        return;
    }
    let (cut, base) = (&keep["cut"], &head["payload"]["history_base"]);
    assert_eq!(head["ordinal"], cut["ordinal"], "{what}");
    assert_eq!(base["thread_id"], cut["rollout_id"], "{what}");
    assert_eq!(base["end_ordinal_exclusive"], cut["ordinal"], "{what}");
    assert_eq!(base["end_byte_offset"], cut["byte_offset"], "{what}");
}

#[test]
fn undos_stack_and_are_redone_in_turn() {
    for sample in ["a_plain4", "a_plain4_legacy", "e_client_revert"] {
        let store = Store::of(sample);
        let id = store.only().id.clone();
        let (files, rows) = (store.files(), store.rows());
        let turns = store.load(&store.only()).turns.len() as u32;
        for n in (0..turns).rev() {
            let session = store.session(&id);
            cut::undo(&*store_of(&session), &store.state, &session, &store.load(&session), n, false).unwrap();
        }
        assert_eq!(store.load(&store.session(&id)).turns.len(), 0, "{sample}");
        for _ in 0..turns {
            cut::redo(&*store_of(&store.session(&id)), &store.state, &store.session(&id), None, false)
                .unwrap();
        }
        assert_eq!((store.files(), store.rows()), (files, rows), "{sample}");
    }
}

#[test]
fn an_undo_finds_its_way_without_the_thread_index() {
    let store = Store::of("a_plain4");
    fs::remove_file(store.root.join("state_5.sqlite")).unwrap();
    let files = store.files();
    let session = store.only();
    cut::undo(&*store_of(&session), &store.state, &session, &store.load(&session), 2, false).unwrap();
    assert_eq!(store.load(&store.only()).turns.len(), 2);
    assert!(!store.root.join("state_5.sqlite").exists());
    cut::redo(&*store_of(&store.only()), &store.state, &store.only(), None, false).unwrap();
    assert_eq!(store.files(), files);
}

#[test]
fn a_row_that_changed_since_the_undo_is_not_overwritten_by_redo() {
    let store = Store::of("a_plain4");
    let session = store.only();
    cut::undo(&*store_of(&session), &store.state, &session, &store.load(&session), 2, false).unwrap();
    store.db().execute("UPDATE threads SET title = 'other'", []).unwrap();
    let (files, rows) = (store.files(), store.rows());
    let refusal = cut::redo(&*store_of(&store.only()), &store.state, &store.only(), None, false).unwrap_err();
    assert_eq!(refusal.errno(), Errno::STALE, "{refusal}");
    assert_eq!((store.files(), store.rows()), (files, rows));
}

#[test]
fn a_revert_by_the_client_since_the_look_refuses_an_undo() {
    let store = Store::of("e_client_revert");
    let session = store.only();
    let history = store.load(&session);
    let first = store.root.join(&session.key.path);
    store.db().execute("UPDATE threads SET rollout_path = ?1", [first.to_str().unwrap()]).unwrap();
    let (files, rows) = (store.files(), store.rows());
    let refusal = cut::undo(&*store_of(&session), &store.state, &session, &history, 1, false).unwrap_err();
    assert_eq!(refusal.errno(), Errno::STALE, "{refusal}");
    assert_eq!((store.files(), store.rows()), (files, rows));
}

#[test]
fn a_file_that_another_thread_continues_is_never_made_shorter() {
    const FORK: &str = "01a22cb1-b422-7990-971d-5f69f5f27aaa";
    let store = Store::of("a_plain4_legacy");
    let session = store.only();
    let history = store.load(&session);
    let point = history.cuts[3].as_ref().unwrap().at.clone().unwrap();
    let line = serde_json::json!({"timestamp": "2026-11-30T13:42:48.693Z", "ordinal": 40, "type": "session_meta", "payload": {
        "id": FORK, "cwd": "/home/dev/work/app1", "history_mode": "paginated",
        "history_base": {"thread_id": session.id, "end_ordinal_exclusive": 40, "end_byte_offset": point.byte}}});
    store.rollout(FORK, format!("{line}\n").as_bytes());
    let files = store.files();
    let refusal = cut::undo(&*store_of(&session), &store.state, &session, &history, 2, false).unwrap_err();
    assert_eq!(refusal.errno(), Errno::BUSY, "{refusal}");
    assert!(refusal.to_string().contains(FORK), "{refusal}");
    assert_eq!(store.files(), files);
    // Behind what the other one uses, nothing is in the way.
    cut::undo(&*store_of(&session), &store.state, &session, &history, 3, false).unwrap();
}

/// Holds a thread's lock as a client does.
fn client(store: &Store, id: &str) -> fs::File {
    let locks = store.root.join("thread-writer-locks");
    fs::create_dir_all(&locks).unwrap();
    let lock = fs::File::create(locks.join(format!("{id}.lock"))).unwrap();
    lock.try_lock().unwrap();
    lock
}

#[test]
fn a_loaded_thread_is_not_undone_and_its_client_is_named() {
    for sample in ["a_plain4", "a_plain4_legacy"] {
        let store = Store::of(sample);
        let session = store.only();
        let history = store.load(&session);
        let client = client(&store, &session.id);
        let (files, rows) = (store.files(), store.rows());
        let refusal =
            cut::undo(&*store_of(&session), &store.state, &session, &history, 1, false).unwrap_err();
        assert_eq!(refusal.errno(), Errno::BUSY, "{sample}: {refusal}");
        assert!(refusal.to_string().contains(&format!("pid {}", std::process::id())), "{sample}: {refusal}");
        assert!(refusal.to_string().contains("about a minute"), "{sample}: {refusal}");
        assert_eq!((store.files(), store.rows()), (files, rows), "{sample}");
        // Fork does not mind.
        cut::fork(&*store_of(&session), &store.state, &session, &history, 1).unwrap();
        drop(client);
        cut::undo(&*store_of(&session), &store.state, &session, &history, 1, false).unwrap();
        let locks = store.root.join("thread-writer-locks").join(format!("{}.lock", session.id));
        assert!(!locks.exists(), "{sample}: the lock file stays");
    }
}

#[test]
fn a_running_turn_is_no_place_for_a_fork() {
    let store = Store::of("o_sigkill_midturn");
    let session = store.only();
    let history = store.load(&session);
    let client = client(&store, &session.id);
    let refusal = cut::fork(&*store_of(&session), &store.state, &session, &history, 1).unwrap_err();
    assert!(matches!(refusal, Refusal::StillRunning { asked: 1, last_finished: Some(0) }), "{refusal}");
    cut::fork(&*store_of(&session), &store.state, &session, &history, 0).unwrap();
    drop(client);
    cut::fork(&*store_of(&session), &store.state, &session, &history, 1).unwrap();
}

#[test]
fn a_database_that_another_program_holds_refuses_in_time_and_leaves_nothing() {
    let store = Store::of("a_plain4");
    let session = store.only();
    let history = store.load(&session);
    let (files, rows) = (store.files(), store.rows());
    let db = store.db();
    db.execute_batch("BEGIN EXCLUSIVE").unwrap();
    // Held until this test lets go of it: that there is an answer says that the wait is bounded.
    for result in [
        cut::undo(&*store_of(&session), &store.state, &session, &history, 2, false).map(|_| ()),
        cut::fork(&*store_of(&session), &store.state, &session, &history, 2).map(|_| ()),
    ] {
        let refusal = result.unwrap_err();
        assert_eq!(refusal.errno(), Errno::AGAIN, "{refusal}");
    }
    drop(db);
    assert_eq!((store.files(), store.rows()), (files, rows));
}

#[test]
fn a_last_record_without_a_newline_gets_one_in_a_fork_and_a_torn_tail_is_left_out() {
    for tail in ["", "{\"timestamp\":\"2026-11-30T13:42:4"] {
        let store = Store::of("a_plain4_legacy");
        let session = store.only();
        let file = store.root.join(&session.files[0]);
        let mut bytes = fs::read(&file).unwrap();
        let whole = bytes.clone();
        if tail.is_empty() {
            bytes.pop();
        } else {
            bytes.extend_from_slice(tail.as_bytes());
        }
        fs::write(&file, &bytes).unwrap();
        let session = store.only();
        let history = store.load(&session);
        assert_eq!((history.state, history.turns.len()), (State::Torn, 4), "{:?}", history.damages);
        let new = cut::fork(&*store_of(&session), &store.state, &session, &history, 3).unwrap();
        let forked = fs::read(store.path_of(&new)).unwrap();
        assert_eq!(behind_first(&forked), behind_first(&whole));
    }
}

#[test]
fn a_compressed_archived_thread_is_read_and_forked() {
    let store = Store::of("g_archived_named");
    let plain = store.only();
    let file = store.root.join(&plain.files[0]);
    let bytes = fs::read(&file).unwrap();
    fs::write(format!("{}.zst", file.display()), zstd::encode_all(&bytes[..], 3).unwrap()).unwrap();
    fs::remove_file(&file).unwrap();
    let session = store.only();
    assert_eq!(session.title.as_deref(), Some("My Name"));
    assert_eq!(session.first_prompt, plain.first_prompt);
    let history = store.load(&session);
    assert_eq!((history.state, history.turns.len()), (State::Ok, 2));
    assert!(store.text(&session, &history, 1).contains("two BRAVO"));
    let new = cut::fork(&*store_of(&session), &store.state, &session, &history, 1).unwrap();
    let forked = store.path_of(&new);
    assert!(Path::new(&forked).starts_with(store.root.join("sessions")), "{forked}");
    assert_eq!(behind_first(&fs::read(forked).unwrap()), behind_first(&bytes));
    assert_eq!(
        cut::undo(&*store_of(&session), &store.state, &session, &history, 1, false).unwrap_err().errno(),
        Errno::OPNOTSUPP
    );
}

#[test]
fn backups_of_a_thread_that_is_only_archived_are_kept_and_those_of_a_deleted_one_go() {
    let store = Store::of("a_plain4");
    let session = store.only();
    cut::undo(&*store_of(&session), &store.state, &session, &store.load(&session), 2, false).unwrap();
    let archived = store.root.join("archived_sessions");
    fs::create_dir_all(&archived).unwrap();
    let rollouts = |dir: &Path| -> Vec<PathBuf> {
        let files = codex_store::content(dir).into_keys().map(|path| dir.join(path));
        files.filter(|path| path.to_string_lossy().ends_with(".jsonl")).collect()
    };
    for file in rollouts(&store.root.join("sessions")) {
        fs::rename(&file, archived.join(file.file_name().unwrap())).unwrap();
    }
    let file = rollouts(&archived).into_iter().max().unwrap();
    store
        .db()
        .execute("UPDATE threads SET archived = 1, rollout_path = ?1", [file.to_str().unwrap()])
        .unwrap();
    assert_eq!(store.only().id, session.id);
    let year = Duration::from_secs(365 * 86_400);
    assert_eq!(cut::prune(&store.state, year, false).unwrap(), Vec::new());
    // Nor is what is only out of sight: nothing, or another directory, stands where the store was.
    let aside = store.dir.path().join("aside");
    fs::rename(&store.root, &aside).unwrap();
    assert_eq!(cut::prune(&store.state, year, false).unwrap(), Vec::new());
    fs::create_dir(&store.root).unwrap();
    assert_eq!(cut::prune(&store.state, year, false).unwrap(), Vec::new());
    fs::remove_dir(&store.root).unwrap();
    fs::rename(&aside, &store.root).unwrap();

    for file in rollouts(&archived) {
        fs::remove_file(file).unwrap();
    }
    store.db().execute("DELETE FROM threads", []).unwrap();
    let pruned = cut::prune(&store.state, year, false).unwrap();
    assert!(pruned.len() == 1 && pruned[0].session_gone, "{pruned:?}");
}
