//! Codex stores that are not as the client left them, through the commands and a real mount: each gets a
//! clear answer in bounded time, and nothing is written.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::racy::settle;
use support::{Mount, TestStore};

/// What takes longer hangs: nothing here gets better by waiting. Generous to a busy machine.
const BOUND: Duration = Duration::from_secs(60);

/// The rollouts of a store, oldest name first.
fn rollouts(store: &TestStore) -> Vec<PathBuf> {
    let all = store.snapshot().into_keys();
    all.filter(|path| path.extension().is_some_and(|it| it == "jsonl"))
        .map(|path| store.root.join(path))
        .collect()
}

/// Changes the bytes of the store's first rollout.
fn change(store: &TestStore, edit: impl FnOnce(Vec<u8>) -> Vec<u8>) {
    let file = &rollouts(store)[0];
    fs::write(file, edit(fs::read(file).unwrap())).unwrap();
}

fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(text.contains(from), "{from} is not in the sample");
    text.replacen(from, to, 1).into_bytes()
}

/// The errno of one command written to a control file.
fn write(control: &Path, command: &str) -> Result<(), i32> {
    use std::io::Write;
    let errno = |error: std::io::Error| error.raw_os_error().unwrap();
    let mut file = fs::File::options().write(true).open(control).map_err(errno)?;
    file.write_all(command.as_bytes()).map_err(errno)
}

/// What a damaged store must answer.
struct Case {
    name: &'static str,
    sample: &'static str,
    break_it: fn(&TestStore),
    state: &'static str,
    /// Of each cut, and of reading `turns/` unless the session is just empty.
    errno: i32,
    /// In the sentence of `show`, of `undo` and in `status`.
    says: &'static [&'static str],
}

const CASES: [Case; 12] = [
    Case {
        name: "unknown history mode",
        sample: "a_plain4",
        break_it: |store| {
            change(store, |bytes| {
                replaced(&bytes, r#""history_mode":"paginated""#, r#""history_mode":"sharded""#)
            });
        },
        state: "unsupported",
        errno: libc::EOPNOTSUPP,
        says: &["history mode", "sharded"],
    },
    Case {
        name: "history mode of another type",
        sample: "a_plain4_legacy",
        break_it: |store| {
            change(store, |bytes| {
                replaced(&bytes, r#""history_mode":"legacy""#, r#""history_mode":["legacy"]"#)
            });
        },
        state: "unsupported",
        errno: libc::EOPNOTSUPP,
        says: &["history mode"],
    },
    Case {
        name: "unknown first line",
        sample: "a_plain4",
        break_it: |store| change(store, |bytes| replaced(&bytes, r#""session_meta""#, r#""session_header""#)),
        state: "damaged",
        errno: libc::EUCLEAN,
        says: &["session_meta"],
    },
    Case {
        name: "first line that is no JSON",
        sample: "a_plain4_legacy",
        break_it: |store| change(store, |bytes| [b"what is this\n", &*bytes].concat()),
        state: "damaged",
        errno: libc::EUCLEAN,
        says: &["session_meta"],
    },
    Case {
        name: "the id of another thread",
        sample: "a_plain4",
        break_it: |store| {
            let file = &rollouts(store)[0];
            let other = "01a22cb1-0000-7000-8000-00000000ffff";
            let name = file.file_name().unwrap().to_str().unwrap();
            let own = &name[name.len() - ".jsonl".len() - 36..name.len() - ".jsonl".len()];
            change(store, |bytes| {
                replaced(&bytes, &format!(r#""id":"{own}""#), &format!(r#""id":"{other}""#))
            });
        },
        state: "damaged",
        errno: libc::EUCLEAN,
        says: &["01a22cb1-0000-7000-8000-00000000ffff"],
    },
    Case {
        name: "byte order mark",
        sample: "a_plain4",
        break_it: |store| change(store, |bytes| [b"\xef\xbb\xbf", &*bytes].concat()),
        state: "damaged",
        errno: libc::EUCLEAN,
        says: &["byte order mark"],
    },
    Case {
        name: "empty file",
        sample: "a_plain4",
        break_it: |store| change(store, |_| Vec::new()),
        state: "empty",
        errno: libc::ERANGE,
        says: &["no turns"],
    },
    Case {
        name: "invalid UTF-8 in a prompt",
        sample: "a_plain4_legacy",
        break_it: |store| {
            change(store, |bytes| {
                let at = memchr::memmem::find(&bytes, b"two BRAVO").unwrap();
                let mut bytes = bytes;
                bytes[at] = 0xff;
                bytes
            });
        },
        state: "damaged",
        errno: libc::EUCLEAN,
        says: &["UTF-8"],
    },
    Case {
        name: "missing ancestor",
        sample: "e_client_revert",
        break_it: |store| fs::remove_file(&rollouts(store)[0]).unwrap(),
        state: "damaged",
        errno: libc::EUCLEAN,
        says: &["is not there", "put back the file"],
    },
    Case {
        name: "shortened ancestor",
        sample: "e_client_revert",
        break_it: |store| {
            let file = fs::File::options().write(true).open(&rollouts(store)[0]).unwrap();
            file.set_len(9000).unwrap();
        },
        state: "damaged",
        errno: libc::EUCLEAN,
        says: &["shorter"],
    },
    Case {
        name: "missing ancestor of a client's fork",
        sample: "f_client_fork",
        break_it: |store| fs::remove_file(&rollouts(store)[1]).unwrap(),
        state: "damaged",
        errno: libc::EUCLEAN,
        says: &["is not there", "put back the file"],
    },
    Case {
        name: "missing ancestor of a fork of a fork",
        sample: "f_client_fork",
        break_it: |store| {
            fs::remove_file(&rollouts(store)[0]).unwrap();
            let index = store.thread_index().unwrap();
            index.execute("DELETE FROM threads", []).unwrap();
        },
        state: "damaged",
        errno: libc::EUCLEAN,
        says: &["is not there", "put back the file"],
    },
];

/// The last session that is listed with this state.
#[track_caller]
fn listed<'l>(all: &'l Value, state: &str) -> &'l Value {
    let found = all.as_array().unwrap().iter().rev().find(|session| session["state"] == state);
    found.unwrap_or_else(|| panic!("nothing is {state} in {all}"))
}

#[test]
fn every_broken_store_gets_a_clear_answer_and_is_not_written_to() {
    for case in &CASES {
        let name = case.name;
        let store = TestStore::of("codex", case.sample);
        (case.break_it)(&store);
        let before = store.snapshot();
        let start = Instant::now();

        let all = store.run(&["ls", "--all", "--json"]).json();
        let session = listed(&all, case.state);
        assert_eq!(session["project"], "/home/dev/work/app1", "{name}: {session}");
        let id = session["id"].as_str().unwrap();
        let mount = store.mount::<&str>(&[]);
        let dir = mount.path.join(session["path"].as_str().unwrap());
        let status = fs::read_to_string(dir.join("status")).unwrap();
        assert!(status.starts_with(&format!("state: {}\n", case.state)), "{name}: {status}");

        let mut sentences = Vec::new();
        if case.state == "empty" {
            assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), 0, "{name}");
        } else {
            sentences.push(("status", status));
            sentences.push(("show", store.run(&["show", id]).refused()));
            let errno = fs::read_dir(dir.join("turns")).unwrap_err().raw_os_error();
            assert_eq!(errno, Some(case.errno), "{name}");
            let shown = store.run(&["show", id, "--json"]).json();
            assert_eq!(shown["state"], case.state, "{name}: {shown}");
            assert_eq!(shown["turns"].as_array().map_or(0, Vec::len), 0, "{name}: {shown}");
        }
        sentences.push(("undo", store.run(&["undo", id, "0"]).refused()));
        sentences.push(("fork", store.run(&["fork", id, "0"]).refused()));
        for (of, sentence) in sentences {
            for word in case.says {
                assert!(sentence.contains(word), "{name}: {of} does not say {word:?}: {sentence}");
            }
        }
        for (control, command) in [("undo", "0"), ("undo", "last"), ("undo", "force 0"), ("fork", "0")] {
            let seen = write(&dir.join(control), command);
            assert_eq!(seen, Err(case.errno), "{name}: {command} > {control}");
        }
        fs::read_dir(dir.join("raw")).unwrap().for_each(|file| drop(fs::read(file.unwrap().path()).unwrap()));
        assert!(start.elapsed() < BOUND, "{name}: {:?}", start.elapsed());
        assert!(store.snapshot() == before, "{name}: the store was written to");
    }
}

/// The only session of the store, on a mount.
fn mounted(store: &TestStore) -> (Mount, PathBuf, String) {
    let mount = store.mount::<&str>(&[]);
    let dir = mount.session(store, None);
    let id = store.run(&["ls", "--all", "--json"]).json()[0]["id"].as_str().unwrap().to_owned();
    (mount, dir, id)
}

#[test]
fn a_database_that_another_process_holds_costs_no_reader_anything_and_refuses_cuts_in_time() {
    let store = TestStore::of("codex", "a_plain4");
    let before = store.snapshot();
    let index = store.thread_index().unwrap();
    index.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let held = Instant::now();
    let (_mount, dir, id) = mounted(&store);
    assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), 4);
    assert!(fs::read_to_string(dir.join("turns/002")).unwrap().contains("three CHARLIE"));
    assert!(store.run(&["show", &id, "1"]).ok().contains("two BRAVO"));
    assert!(held.elapsed() < BOUND, "reading took {:?}", held.elapsed());
    for (control, n) in [("undo", "2"), ("fork", "2")] {
        let start = Instant::now();
        assert_eq!(write(&dir.join(control), n), Err(libc::EAGAIN), "{control}");
        assert!(start.elapsed() < BOUND, "{control}: {:?}", start.elapsed());
        let status = fs::read_to_string(dir.join("status")).unwrap();
        assert!(status.lines().last().unwrap().contains("state_5.sqlite"), "{status}");
        let sentence = store.run(&[control, &id, n]).refused();
        assert!(sentence.contains("state_5.sqlite"), "{sentence}");
    }
    // Once it is free, everything works without a remount.
    assert!(store.snapshot() == before, "the refused cuts wrote");
    index.execute_batch("ROLLBACK").unwrap();
    write(&dir.join("undo"), "2").unwrap();
    assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), 2);
    write(&dir.join("redo"), "last").unwrap();
    assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), 4);
}

#[test]
fn a_database_with_its_log_is_read_without_a_trace() {
    let store = TestStore::of("codex", "a_plain4");
    let index = store.thread_index().unwrap();
    index.execute_batch("PRAGMA journal_mode = WAL; UPDATE threads SET title = 'in the log'").unwrap();
    let before = store.snapshot();
    assert!(before.contains_key(Path::new("state_5.sqlite-wal")));
    let (_mount, dir, id) = mounted(&store);
    let meta = fs::read_to_string(dir.join("meta.json")).unwrap();
    assert!(meta.contains("in the log"), "{meta}");
    assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), 4);
    store.run(&["show", &id]).ok();
    assert!(store.snapshot() == before, "reading left a trace");
    // The client goes on, and the mount follows.
    index.execute_batch("UPDATE threads SET title = 'once more'").unwrap();
    assert!(fs::read_to_string(dir.join("meta.json")).unwrap().contains("once more"));
    write(&dir.join("undo"), "3").unwrap();
    let path: String = index.query_row("SELECT rollout_path FROM threads", [], |row| row.get(0)).unwrap();
    assert!(path.contains(&format!("{id}_")), "the row still names {path}");
    write(&dir.join("redo"), "last").unwrap();
    assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), 4);
}

#[test]
fn a_database_of_another_schema_or_none_hides_no_session() {
    // What is done to the database, and what a cut then answers.
    let cases: [(&str, Option<&str>, Result<(), i32>); 5] = [
        ("newer", Some("ALTER TABLE threads ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'"), Ok(())),
        (
            "older",
            Some("ALTER TABLE threads DROP COLUMN name; ALTER TABLE threads DROP COLUMN model"),
            Ok(()),
        ),
        ("other", Some("ALTER TABLE threads RENAME COLUMN rollout_path TO place"), Err(libc::EUCLEAN)),
        ("no table", Some("ALTER TABLE threads RENAME TO sessions"), Err(libc::EUCLEAN)),
        ("missing", None, Ok(())),
    ];
    for (name, sql, answer) in cases {
        let store = TestStore::of("codex", "a_plain4");
        match sql {
            Some(sql) => store.thread_index().unwrap().execute_batch(sql).unwrap(),
            None => fs::remove_file(store.root.join("state_5.sqlite")).unwrap(),
        }
        let before = store.snapshot();
        let (mount, dir, id) = mounted(&store);
        assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), 4, "{name}");
        assert_eq!(store.run(&["show", &id, "--json"]).json()["state"], "ok", "{name}");
        assert!(store.snapshot() == before, "{name}: reading wrote");
        assert_eq!(write(&dir.join("undo"), "2"), answer, "{name}");
        if answer.is_ok() {
            write(&dir.join("redo"), "last").unwrap();
            assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), 4, "{name}");
        } else {
            assert!(store.snapshot() == before, "{name}: the refused undo wrote");
            let summary = fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
            assert!(summary.contains("state_5.sqlite"), "{name}: {summary}");
        }
    }
}

#[test]
fn an_archived_thread_says_so_and_its_undo_is_refused_before_it_is_tried() {
    let store = TestStore::of("codex", "g_archived_named");
    let before = store.snapshot();
    let (_mount, dir, id) = mounted(&store);
    let status = fs::read_to_string(dir.join("status")).unwrap();
    assert!(status.contains("codex unarchive"), "{status}");
    for arguments in [&["undo", &*id, "1"][..], &["undo", &*id, "1", "--dry-run"]] {
        let sentence = store.run(arguments).refused();
        assert!(sentence.contains("archived"), "{arguments:?}: {sentence}");
    }
    assert_eq!(write(&dir.join("undo"), "1"), Err(libc::EOPNOTSUPP));
    assert!(store.snapshot() == before);
    write(&dir.join("fork"), "1").unwrap();
}

/// Bytes that the daemon has read from Codex's files.
fn bytes_read(mount: &Mount) -> u64 {
    let metrics = fs::read_to_string(mount.path.join(".turnfs/metrics")).unwrap();
    let own =
        metrics.lines().filter(|line| line.starts_with("turnfs_store_bytes_read_total{agent=\"codex\""));
    own.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn a_list_of_two_thousand_rollouts_reads_each_head_once_and_the_next_list_nothing() {
    // With a row for each thread, as the client keeps them, and without the index.
    for rows in [true, false] {
        let store = TestStore::of("codex", "a_plain4");
        let bytes = multiply(&store, rows);
        settle();
        let mount = store.mount_with_short_window::<&str>(&[]);
        let list = || {
            let listed = store.sh(&format!("ls {}", mount.path.join("w/app3").display())).ok();
            assert_eq!(listed.lines().filter(|line| *line != "latest").count(), 200, "{listed}");
        };
        list();
        let first = bytes_read(&mount);
        assert!(first > 0 && first <= bytes, "{first} bytes of {bytes} were read");
        for _ in 0..3 {
            list();
        }
        store.sh(&format!("ls -l {}", mount.path.join("w/app4").display())).ok();
        assert_eq!(bytes_read(&mount), first, "a later list read again");
    }
}

/// Makes 2,000 threads of ten projects in 200 folders out of the store's only one; the bytes of all of them
/// and of the index.
fn multiply(store: &TestStore, rows: bool) -> u64 {
    let original = &rollouts(store)[0];
    let name = original.file_name().unwrap().to_str().unwrap();
    let own = &name[name.len() - ".jsonl".len() - 36..name.len() - ".jsonl".len()];
    let text = fs::read_to_string(original).unwrap();
    fs::remove_file(original).unwrap();
    let mut index = store.thread_index().unwrap();
    let all = index.transaction().unwrap();
    all.execute_batch("CREATE TEMP TABLE one AS SELECT * FROM threads; DELETE FROM threads").unwrap();
    let mut bytes = 0;
    for n in 0..2000 {
        let thread = format!("01a22cb1-8565-71c1-997b-{n:012}");
        let (day, project) = (n % 200, format!("/w/app{}", n % 10));
        let folder = store.root.join(format!("sessions/2026/{:02}/{:02}", day / 28 + 1, day % 28 + 1));
        fs::create_dir_all(&folder).unwrap();
        let text = text.replace(own, &thread).replace("/home/dev/work/app1", &project);
        bytes += text.len() as u64;
        let file = folder.join(format!("rollout-2026-01-01T10-00-00-{thread}.jsonl"));
        fs::write(&file, text).unwrap();
        let one = [&thread, file.to_str().unwrap(), &project];
        all.execute("UPDATE one SET id = ?1, rollout_path = ?2, cwd = ?3", one).unwrap();
        all.execute("INSERT INTO threads SELECT * FROM one", []).unwrap();
    }
    all.commit().unwrap();
    drop(index);
    let path = store.root.join("state_5.sqlite");
    if rows {
        bytes + fs::metadata(path).unwrap().len()
    } else {
        fs::remove_file(path).map(|()| bytes).unwrap()
    }
}
