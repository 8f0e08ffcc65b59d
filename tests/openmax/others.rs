//! Other programs at work in the same store: the client's locks held for long, the index written all the
//! time. The other program is this test binary, started again.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use turnfs::agents::store_of;
use turnfs::cut::{self, StateDir};
use turnfs::session::Errno;

use crate::store::Store;

const PLAIN: &str = "561d5266-2612-4a70-b3b5-4277aff74b94";

/// Another process; ends with its value.
struct Other(Child);

impl Other {
    /// Starts `what` in the store and waits until it is at work.
    fn start(what: &str, store: &Store) -> Other {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "others::the_other_program", "--nocapture"])
            .env("OPENMAX_OTHER", what)
            .env("OPENMAX_SESSIONS", store.root.join("sessions"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut other = Other(child);
        let lines = BufReader::new(other.0.stdout.take().unwrap()).lines();
        assert!(
            lines.map(Result::unwrap).any(|line| line.ends_with("at work")),
            "the other program did not start"
        );
        other
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test, but what [`Other`] runs.
#[test]
#[ignore = "the part of a child process"]
fn the_other_program() {
    let what = std::env::var_os("OPENMAX_OTHER").unwrap();
    let sessions = PathBuf::from(std::env::var_os("OPENMAX_SESSIONS").unwrap());
    let what = what.into_string().unwrap();
    let open = |name: &str| {
        fs::File::options().create(true).truncate(false).write(true).open(sessions.join(name)).unwrap()
    };
    let mut out = std::io::stdout();
    match what.split_once(' ') {
        Some(("hold", lock)) => {
            let file = open(lock);
            flock(&file, FlockOperation::LockExclusive).unwrap();
            writeln!(out, "at work").unwrap();
            std::thread::sleep(Duration::from_secs(600));
        }
        _ => {
            writeln!(out, "at work").unwrap();
            for round in 1.. {
                rewrite(&sessions, &open("index.lock"), round);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn is_fork(entry: &Value) -> bool {
    entry["title"].as_str().unwrap().starts_with("Fork: ")
}

/// A client's index write: everything is read and written anew under the lock, by temp and rename.
fn rewrite(sessions: &Path, lock: &fs::File, round: u64) {
    flock(lock, FlockOperation::LockExclusive).unwrap();
    let index = sessions.join("index.json");
    let mut entries: Vec<Value> = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    let other = entries.iter_mut().find(|entry| entry["id"] == "other").unwrap();
    other["updated_at"] = round.into();
    // A fork in the second of the latest session would wait for the next one.
    for entry in entries.iter_mut().filter(|entry| is_fork(entry)) {
        entry["updated_at"] = 1.into();
    }
    let put = |name: &str, bytes: Vec<u8>| {
        let temporary = sessions.join(format!("{name}.0123456789abcdef0123456789abcdef.tmp"));
        fs::write(&temporary, bytes).unwrap();
        fs::rename(temporary, sessions.join(name)).unwrap();
    };
    put("index.json", serde_json::to_vec_pretty(&entries).unwrap());
    put("round", round.to_string().into());
    flock(lock, FlockOperation::Unlock).unwrap();
}

fn with_another_entry(sample: &str) -> Store {
    let store = Store::of(sample);
    let mut entries = store.entries();
    let other = serde_json::json!({"id": "other", "project": "/else", "title": "t", "created_at": 1, "updated_at": 1});
    entries.insert(0, other);
    fs::write(store.index(), serde_json::to_vec_pretty(&entries).unwrap()).unwrap();
    store
}

/// Behaviour 5 of `docs/stores/openmax.md`.
#[test]
fn a_held_index_lock_is_waited_for_two_seconds_and_then_eagain() {
    let store = Store::of("a_plain");
    let state = StateDir::at(&store.state);
    let (session, history) = (store.session(PLAIN), store.load(PLAIN));
    let before = store.snapshot();
    let _other = Other::start("hold index.lock", &store);
    let start = Instant::now();
    assert_eq!(
        cut::undo(&*store_of(&session), &state, &session, &history, 1, false).unwrap_err().errno(),
        Errno::AGAIN
    );
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(2), "{waited:?}");
    assert_eq!(
        cut::fork(&*store_of(&session), &state, &session, &history, 1).unwrap_err().errno(),
        Errno::AGAIN
    );
    assert_eq!(store.snapshot(), before);
    // Reading needs no lock.
    assert_eq!(store.load(PLAIN).turns.len(), 4);
    drop(_other);
    cut::undo(&*store_of(&session), &state, &session, &history, 1, false).unwrap();
}

/// Behaviour 41 of `docs/stores/openmax.md`.
#[test]
fn a_claimed_session_is_not_undone_even_with_force_and_can_be_forked() {
    let store = Store::of("a_plain");
    let state = StateDir::at(&store.state);
    let (session, history) = (store.session(PLAIN), store.load(PLAIN));
    assert_eq!(store_of(&session).writer(&session, &history, &Default::default()), None);
    let other = Other::start(&format!("hold {PLAIN}.lock"), &store);
    let before = store.snapshot();
    let writer = store_of(&session).writer(&session, &history, &Default::default());
    // A file system whose device number is another one in /proc/locks tells nothing; the cut knows anyway.
    if let Some(writer) = &writer {
        assert_eq!(writer.pid, Some(other.0.id()), "{writer}");
    }
    for force in [false, true] {
        let refused = cut::undo(&*store_of(&session), &state, &session, &history, 1, force).unwrap_err();
        assert_eq!(refused.errno(), Errno::BUSY, "{refused}");
        assert_eq!(store.snapshot(), before);
    }
    let fork = cut::fork(&*store_of(&session), &state, &session, &history, 1).unwrap();
    assert_eq!(store.load(&fork).turns.len(), 2);
    drop(other);
    assert_eq!(store_of(&session).writer(&session, &history, &Default::default()), None);
    cut::undo(&*store_of(&session), &state, &session, &history, 1, false).unwrap();
}

#[test]
fn two_hundred_forks_while_the_index_is_written_every_5_ms_lose_nobodys_entry() {
    let store = with_another_entry("a_plain");
    let state = StateDir::at(&store.state);
    let (session, history) = (store.session(PLAIN), store.load(PLAIN));
    let other = Other::start("rewrite", &store);
    let mut made = Vec::new();
    let mut undone = 0;
    while made.len() < 200 {
        let n = made.len() as u32 % 4;
        while store.entries().iter().any(|entry| is_fork(entry) && entry["updated_at"] != 1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        match cut::fork(&*store_of(&session), &state, &session, &history, n) {
            Ok(id) => made.push((id, n)),
            Err(refusal) => assert_eq!(refusal.errno(), Errno::AGAIN, "{refusal}"),
        }
        if made.len() % 50 == 10 && undone * 50 < made.len() {
            match cut::undo(&*store_of(&session), &state, &session, &history, 2, false) {
                Ok(_) => {
                    undone += 1;
                    cut::redo(&*store_of(&session), &state, &session, None, false).unwrap();
                }
                Err(refusal) => assert_eq!(refusal.errno(), Errno::AGAIN, "{refusal}"),
            }
        }
    }
    drop(other);
    let entries = store.entries();
    assert_eq!(entries.len(), 202);
    let round: u64 = fs::read_to_string(store.file("round")).unwrap().parse().unwrap();
    let theirs = entries.iter().find(|entry| entry["id"] == "other").unwrap()["updated_at"].as_u64().unwrap();
    // It may have been stopped between its two writes.
    assert!(theirs == round || theirs == round + 1, "{theirs} {round}: their write was lost");
    assert!(undone > 0);
    let found = store.discover();
    assert!(found.problems.is_empty());
    assert!(
        made.iter().all(|(id, _)| entries.iter().any(|entry| entry["id"] == id.as_str())),
        "a fork was lost"
    );
    assert_eq!(entries.last().unwrap()["id"], made.last().unwrap().0.as_str());
    for (id, n) in made.iter().step_by(40) {
        assert_eq!(store.load(id).turns.len() as u32, n + 1);
    }
}
