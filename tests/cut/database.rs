//! Cuts of Codex threads while another program is at work in the thread index, or was killed in it; and the
//! system calls of SQLite failing, or the process killed at each of them.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use turnfs::session::{AgentKind, Errno};

use super::outcome::{Known, Outcome};
use super::skipped::skipped;
use super::store::{ERRNO_BASE, Sample, Store, child, samples_of};

const INDEX: &str = "state_5.sqlite";

/// The thread with four turns, in the client's journal mode or the older one.
fn plain(wal: bool) -> Sample {
    let sample = samples_of(AgentKind::Codex).into_iter().find(|sample| sample.name == "a_plain4").unwrap();
    Sample { wal, ..sample }
}

/// Not a test, but what [`other`] runs.
#[test]
#[ignore = "the part of a child process"]
fn the_other_program() {
    let path = PathBuf::from(std::env::var_os("TURNFS_TEST_DATABASE").unwrap());
    let db = Connection::open(&path).unwrap();
    let rename = "UPDATE threads SET title = 'renamed by the other program'";
    match std::env::var("TURNFS_TEST_OTHER").unwrap().as_str() {
        "holds it" => {
            db.execute_batch("BEGIN IMMEDIATE").unwrap();
            println!("at work");
            std::thread::sleep(Duration::from_secs(600));
        }
        "changes the row" => {
            db.execute_batch("BEGIN IMMEDIATE").unwrap();
            println!("at work");
            std::thread::sleep(Duration::from_millis(700));
            db.execute_batch(rename).unwrap();
            db.execute_batch("COMMIT").unwrap();
        }
        "dies with a WAL" => {
            db.execute_batch(rename).unwrap();
            std::process::abort();
        }
        "dies in a transaction" => {
            // So small a cache that pages are written before the end, some over the old ones.
            db.execute_batch("PRAGMA cache_size = 1; BEGIN IMMEDIATE").unwrap();
            db.execute("UPDATE threads SET title = hex(randomblob(200000))", []).unwrap();
            db.execute("UPDATE threads SET preview = hex(randomblob(200000))", []).unwrap();
            std::process::abort();
        }
        other => panic!("{other}"),
    }
}

fn other(store: &Store, what: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "database::the_other_program", "--nocapture", "--test-threads=1"])
        .env("TURNFS_TEST_DATABASE", store.root().join(INDEX))
        .env("TURNFS_TEST_OTHER", what)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until it is at work.
fn at_work(store: &Store, what: &str) -> Child {
    let mut child = other(store, what);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line.ends_with("at work")), "{what}");
    child
}

fn beside(store: &Store, suffix: &str) -> bool {
    std::fs::metadata(store.root().join(format!("{INDEX}{suffix}"))).is_ok_and(|facts| facts.len() > 0)
}

fn in_both_modes(check: impl Fn(&Sample) + Sync) {
    std::thread::scope(|scope| {
        for wal in [true, false] {
            let check = &check;
            scope.spawn(move || check(&plain(wal)));
        }
    });
}

#[test]
fn an_index_that_another_process_holds_refuses_after_two_seconds_and_nothing_was_written() {
    in_both_modes(|sample| {
        for (prepare, acts) in [(None, &["undo 2", "fork 2"][..]), (Some("undo 2"), &["redo"])] {
            let store = sample.copy();
            let known = Known::of(&store);
            if let Some(prepare) = prepare {
                store.act(prepare).unwrap();
            }
            let before = Outcome::of(&store, &known);
            let mut holder = at_work(&store, "holds it");
            for act in acts {
                let start = Instant::now();
                let refusal = store.act(act).unwrap_err();
                assert_eq!(refusal.errno(), Errno::AGAIN, "{act}: {refusal}");
                let took = start.elapsed();
                // And not at once; it is held for as long as it takes.
                assert!(took > Duration::from_millis(1500), "{took:?}");
                let now = Outcome::of(&store, &known);
                assert!(now == before, "{act}: {}", before.difference(&now));
            }
            holder.kill().unwrap();
            holder.wait().unwrap();
            for act in acts.iter().rev() {
                store.act(act).unwrap();
            }
        }
    });
}

#[test]
fn a_row_that_changes_between_the_plan_and_the_cut_refuses_it_and_keeps_the_change() {
    in_both_modes(|sample| {
        for (prepare, act) in [(None, "undo 2"), (Some("undo 2"), "redo")] {
            let store = sample.copy();
            if let Some(prepare) = prepare {
                store.act(prepare).unwrap();
            }
            let files = store.snapshot();
            let mut other = at_work(&store, "changes the row");
            let refusal = store.act(act).unwrap_err();
            assert_eq!(refusal.errno(), Errno::STALE, "{act}: {refusal}");
            other.wait().unwrap();
            let unchanged = |files: &super::store::Snapshot| -> Vec<_> {
                let of_thread = |path: &Path| path.to_string_lossy().ends_with(".jsonl");
                files.iter().filter(|(path, ..)| of_thread(path)).cloned().collect()
            };
            assert!(unchanged(&store.snapshot()) == unchanged(&files), "{act}: a file changed");
            let db = Connection::open(store.root().join(INDEX)).unwrap();
            let title: String = db.query_row("SELECT title FROM threads", [], |row| row.get(0)).unwrap();
            assert_eq!(title, "renamed by the other program", "{act}");
        }
    });
}

#[test]
fn what_a_killed_client_left_beside_the_index_counts_for_a_cut_as_it_does_for_the_client() {
    for (what, suffix) in [
        ("dies with a WAL", "-wal"),
        ("dies in a transaction", "-wal"),
        ("dies in a transaction", "-journal"),
    ] {
        for (prepare, act) in [(None, "undo 2"), (None, "fork 2"), (Some("undo 2"), "redo")] {
            let told = format!("{what}, {suffix}, {act}");
            let sample = plain(suffix == "-wal");
            let kill = |store: &Store| {
                let status = other(store, what).wait().unwrap();
                assert_eq!(status.code(), None, "{told}: not killed");
            };
            // Twice the same; one is put in order by opening it, as the client does.
            let [(known, wanted), (_, found)] = [true, false].map(|in_order| {
                let store = sample.copy();
                let known = Known::of(&store);
                if let Some(prepare) = prepare {
                    store.act(prepare).unwrap();
                }
                kill(&store);
                assert!(beside(&store, suffix), "{told}: nothing is left");
                if in_order {
                    Known::of(&store);
                }
                let result = store.act(act).map(|_| ()).map_err(|refusal| refusal.errno());
                // What a redo would bring back is a row that the client has changed since.
                let moved_on = what == "dies with a WAL" && act == "redo";
                assert_eq!(result, if moved_on { Err(Errno::STALE) } else { Ok(()) }, "{told}");
                let outcome = Outcome::of(&store, &known);
                (known, outcome)
            });
            drop(known);
            assert!(found == wanted, "{told}: {}", wanted.difference(&found));
        }
    }
}

/// What SQLite does to the index's files.
const CALLS: [&str; 6] = ["pwrite64", "fdatasync", "fsync", "ftruncate", "unlink", "fallocate"];

/// The cut under strace, looking at the index's files only. `inject`: what happens at which call.
fn traced(store: &Store, act: &str, inject: Option<&str>) -> Option<(std::process::Output, String)> {
    let log = store.top().join("strace");
    let inner = child(store, act);
    let mut command = Command::new("strace");
    command.args(["-f", "-o"]).arg(&log).arg("-e").arg(format!("trace={}", CALLS.join(",")));
    for suffix in ["", "-wal", "-journal", "-shm"] {
        command.arg("-P").arg(store.root().join(format!("{INDEX}{suffix}")));
    }
    if let Some(inject) = inject {
        command.arg("-e").arg(format!("inject={inject}"));
    }
    command.arg(inner.get_program()).args(inner.get_args());
    for (key, value) in inner.get_envs() {
        command.env(key, value.unwrap());
    }
    let output = command.stderr(Stdio::null()).output().ok()?;
    Some((output, std::fs::read_to_string(&log).unwrap_or_default()))
}

#[test]
fn sqlite_killed_or_failing_at_any_system_call_leaves_the_thread_before_or_after() {
    let (mut killed, mut failed) = (0, 0);
    for (wal, prepare, act) in [
        (true, None, "undo 2"),
        (true, Some("undo 2"), "redo"),
        (true, None, "fork 2"),
        (false, None, "undo 2"),
    ] {
        let prepared = || {
            let store = plain(wal).copy();
            let known = Known::of(&store);
            if let Some(prepare) = prepare {
                store.act(prepare).unwrap();
            }
            (store, known)
        };
        let (store, known) = prepared();
        let before = Outcome::of(&store, &known);
        let Some((output, log)) = traced(&store, act, None) else {
            skipped("strace is not installed");
            return;
        };
        if !output.status.success() || !log.contains("pwrite64") {
            skipped("strace cannot trace here");
            return;
        }
        let after = Outcome::of(&store, &known);
        for call in CALLS {
            let count = log.lines().filter(|line| line.contains(&format!(" {call}("))).count();
            // All of them with `TURNFS_TEST_ALL`; else every fourth, from another one on for each kind of cut.
            let step = if std::env::var_os("TURNFS_TEST_ALL").is_some() { 1 } else { 4 };
            let first = if step == 1 { 1 } else { 1 + act.len() % step };
            for (k, error) in (first..=count)
                .step_by(step)
                .flat_map(|k| [(k, None), (k, Some(if k % 2 == 0 { "EIO" } else { "ENOSPC" }))])
            {
                let what = format!("wal {wal}, {act}, {call} {k} of {count}, {}", error.unwrap_or("killed"));
                let (store, known) = prepared();
                let inject = match error {
                    None => format!("{call}:signal=KILL:when={k}"),
                    Some(error) => format!("{call}:error={error}:when={k}"),
                };
                let Some((output, log)) = traced(&store, act, Some(&inject)) else { panic!("{what}") };
                let told = String::from_utf8_lossy(&output.stdout).into_owned();
                match error {
                    None => {
                        killed += 1;
                        assert!(log.contains("killed by SIGKILL"), "{what}: not killed");
                        let told = store.act("recover").unwrap();
                        assert!(!told.contains("could not"), "{what}: {told}");
                        let now = Outcome::of(&store, &known);
                        let difference = format!("{}\n{}", before.difference(&now), after.difference(&now));
                        assert!(
                            now == before || now == after,
                            "{what}: neither before nor after: {told}\n{difference}"
                        );
                    }
                    Some(error) => {
                        failed += 1;
                        let now = Outcome::of(&store, &known);
                        let errno = if error == "EIO" { libc::EIO } else { libc::ENOSPC };
                        match output.status.code() {
                            Some(0) => assert!(now == after, "{what}: {}", after.difference(&now)),
                            code => {
                                assert!(now == before, "{what}: {told}\n{}", before.difference(&now));
                                assert_eq!(code, Some(ERRNO_BASE + errno), "{what}: {told}");
                            }
                        }
                    }
                }
                assert_eq!(store.act("recover").unwrap(), "", "{what}: a second recovery");
            }
        }
    }
    println!("killed at {killed} and failed at {failed} system calls of SQLite, 0 lost");
    assert!(killed > 10);
}

#[test]
fn an_undo_that_was_killed_before_its_commit_stays_once_the_client_has_gone_on_from_it() {
    in_both_modes(|sample| {
        for client_writes_the_row in [true, false] {
            let store = sample.copy();
            let before = store.snapshot();
            store.act("undo 2").unwrap();
            // As a kill just before the commit leaves it.
            let mut folders = std::fs::read_dir(store.top().join("state/sessions")).unwrap();
            let folder = folders.next().unwrap().unwrap().path();
            std::fs::rename(folder.join("undone/1/undo.json"), folder.join("journal.json")).unwrap();
            let known: Vec<&PathBuf> = before.iter().map(|(path, ..)| path).collect();
            let (new, ..) = store
                .snapshot()
                .into_iter()
                .find(|(path, ..)| path.to_string_lossy().ends_with(".jsonl") && !known.contains(&path))
                .unwrap();
            let new = store.root().join(new);
            if client_writes_the_row {
                let db = Connection::open(store.root().join(INDEX)).unwrap();
                db.execute("UPDATE threads SET updated_at = updated_at + 9, tokens_used = 77", []).unwrap();
            }
            let mut bytes = std::fs::read(&new).unwrap();
            let time = r#""timestamp":"2026-11-30T14:00:00.000Z""#;
            bytes.extend(format!("{{{time},\"ordinal\":23,\"type\":\"other\",\"payload\":{{}}}}\n").bytes());
            std::fs::write(&new, &bytes).unwrap();

            let told = store.act("recover").unwrap();
            assert!(told.contains("has gone on from it"), "{told}");
            assert!(std::fs::read(&new).unwrap() == bytes, "the client's records");
            let db = Connection::open(store.root().join(INDEX)).unwrap();
            let path: String =
                db.query_row("SELECT rollout_path FROM threads", [], |row| row.get(0)).unwrap();
            assert_eq!(Path::new(&path), new);
            let undone = turnfs::cut::undone(&store.state(), &store.session().key).unwrap();
            assert_eq!(undone.iter().map(|undone| undone.turns.len()).collect::<Vec<_>>(), [2]);
            assert_eq!(store.act("recover").unwrap(), "");
        }
    });
}
