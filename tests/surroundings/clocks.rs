//! Clocks that are wrong: nothing panics, what cannot be done is refused with a sentence.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::support::{Mount, Ran, TestStore, run, skipped::skipped};

/// The library that gives a process another clock.
fn faketime() -> Option<PathBuf> {
    let machine = std::env::consts::ARCH;
    let dirs = [
        format!("/usr/lib/{machine}-linux-gnu/faketime"),
        "/usr/lib64/faketime".into(),
        "/usr/lib/faketime".into(),
    ];
    // The daemon has threads.
    let found = dirs.iter().map(|dir| Path::new(dir).join("libfaketimeMT.so.1")).find(|path| path.exists());
    if found.is_none() {
        skipped("libfaketime is not installed");
    }
    found
}

fn at_time(mut command: Command, library: &Path, time: &str) -> Command {
    command
        .env("LD_PRELOAD", library)
        .env("FAKETIME", time)
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("DONT_FAKE_MONOTONIC", "1");
    command
}

const TIMES: [&str; 6] = [
    "1969-12-31 10:00:00",
    "1901-12-13 20:45:52",
    "1970-01-01 00:00:00",
    "2038-01-19 03:14:08",
    "9999-12-31 23:59:59",
    // Years that no calendar here has.
    "+20000y",
];

#[track_caller]
fn sound(what: &str, ran: &Ran) {
    let said = format!("{}{}", ran.stdout, ran.stderr);
    let ends = ran.code == 0 || ran.code == 1;
    assert!(ends && !said.contains("panicked") && !said.contains("internal error"), "{what}: {ran:?}");
    assert!(ran.code == 0 || ran.stderr.starts_with("turnfs: "), "{what}: {ran:?}");
}

const SAMPLES: [(&str, &str); 5] = [
    ("codex", "a_plain4"),
    ("codex", "a_plain4_legacy"),
    ("kimi-cli", "c-compact"),
    ("kimi-code", "a-plain"),
    ("openmax", "a_plain"),
];

fn first(store: &TestStore, key: &str) -> String {
    store.run(&["ls", "--all", "--json"]).json()[0][key].as_str().unwrap().to_owned()
}

fn id(store: &TestStore) -> String {
    first(store, "id")
}

#[test]
fn no_command_panics_whatever_the_clock_says() {
    let Some(library) = faketime() else { return };
    for (agent, sample) in SAMPLES {
        for time in TIMES {
            let store = TestStore::of(agent, sample);
            let id = id(&store);
            let commands: [&[&str]; 12] = [
                &["ls", "--all"],
                &["ls", "--all", "--json"],
                &["show", &id],
                &["show", &id, "0"],
                &["check", "--all"],
                &["fork", &id, "0"],
                &["undo", &id, "1", "--dry-run"],
                &["undo", &id, "1"],
                &["redo", &id],
                &["adopt", "/home/dev/work/app1", ".", "--force"],
                &["prune", "--older-than", "0s"],
                &["doctor"],
            ];
            for args in commands {
                let ran = run(at_time(store.command(args), &library, time));
                sound(&format!("{agent} {sample} at {time}: {args:?}"), &ran);
            }
        }
    }
}

#[test]
fn a_codex_fork_before_1970_is_refused_with_a_sentence_by_the_command_and_by_the_mount() {
    let Some(library) = faketime() else { return };
    for sample in ["a_plain4", "a_plain4_legacy"] {
        let store = TestStore::of("codex", sample);
        let (id, before) = (id(&store), store.snapshot());
        let said = run(at_time(store.command(&["fork", &id, "1"]), &library, TIMES[0])).refused();
        assert!(said.contains("clock says 1969-12-31") && said.contains("set the clock"), "{said}");
        let at = store.home.join("m");
        let mut command = at_time(store.command(&["mount", "-f"]), &library, TIMES[0]);
        command.arg(&at).stderr(Stdio::piped());
        let mount = Mount::start(command, &at);
        let session = mount.session(&store, Some(&id));
        let refused = fs::write(session.join("fork"), "1\n").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
        let status = fs::read_to_string(session.join("status")).unwrap();
        assert!(status.lines().last().unwrap().contains("clock says 1969-12-31"), "{status}");
        mount.stop();
        assert_eq!(store.snapshot(), before);
    }
}

/// Whatever makes or changes a session writes times and ids that no client can write then.
#[test]
fn before_1970_every_cut_is_refused_with_a_sentence_and_changes_nothing() {
    let Some(library) = faketime() else { return };
    for (agent, sample) in SAMPLES {
        let store = TestStore::of(agent, sample);
        let id = id(&store);
        store.run(&["undo", &id, "1"]).ok();
        let before = store.snapshot();
        let commands: [&[&str]; 5] = [
            &["fork", &id, "0"],
            &["fork", &id, "--undone", "1"],
            &["undo", &id, "0"],
            &["redo", &id],
            &["adopt", &first(&store, "project"), ".", "--force"],
        ];
        for args in commands {
            let refused = run(at_time(store.command(args), &library, TIMES[0])).refused();
            let says = "clock says 1969-12-31";
            assert!(refused.contains(says) && refused.contains("before 1970"), "{agent} {args:?}: {refused}");
        }
        assert_eq!(store.snapshot(), before, "{agent}");
    }
}

#[test]
fn far_ahead_everything_works() {
    let Some(library) = faketime() else { return };
    for (agent, sample) in SAMPLES {
        let store = TestStore::of(agent, sample);
        let id = id(&store);
        for args in [["fork", &id, "0"], ["undo", &id, "1"]] {
            run(at_time(store.command(&args), &library, "2200-01-01 10:00:00")).ok();
        }
    }
}

#[test]
fn a_mount_shows_and_cuts_whatever_the_clock_says() {
    let Some(library) = faketime() else { return };
    for (agent, sample) in SAMPLES {
        for time in [TIMES[0], TIMES[4], TIMES[5]] {
            let store = TestStore::of(agent, sample);
            let at = store.home.join("m");
            let mut command = at_time(store.command(&["mount", "-f"]), &library, time);
            command.arg(&at).stderr(Stdio::piped());
            let mount = Mount::start(command, &at);
            let session = mount.session(&store, None);
            let read =
                store.sh(&format!("cd {}; cat turns/* status meta.json undo redo fork", session.display()));
            read.ok();
            let _ = fs::write(session.join("fork"), "0\n");
            let _ = fs::write(session.join("undo"), "1\n");
            let _ = fs::write(session.join("redo"), "last\n");
            fs::read_to_string(at.join(".turnfs/status")).unwrap();
            fs::read_to_string(at.join(".turnfs/metrics")).unwrap();
            let (status, log) = mount.stop();
            assert_eq!(status.code(), Some(0), "{agent} {sample} at {time}: {log}");
            assert!(
                !log.contains("internal error") && !log.contains("panicked"),
                "{agent} {sample} at {time}: {log}"
            );
        }
    }
}

/// File times that no calendar has, as a broken clock or a restore leaves them.
#[test]
fn files_with_absurd_times_are_shown_and_cut() {
    for (agent, sample) in SAMPLES {
        for seconds in ["99999999999999", "-99999999999999", "-1", "253402300800"] {
            let store = TestStore::of(agent, sample);
            let id = id(&store);
            let touched = format!("find {} -exec touch -d @{seconds} {{}} +", store.root.display());
            if store.sh(&touched).code != 0 {
                skipped("this file system takes no such times");
                continue;
            }
            for args in [
                &["ls", "--all"][..],
                &["show", &id],
                &["check", "--all"],
                &["fork", &id, "0"],
                &["undo", &id, "1"],
            ] {
                let ran = store.run(args);
                sound(&format!("{agent} {sample} touched at {seconds}: {args:?}"), &ran);
                assert_eq!(ran.code, 0, "{agent} {sample} touched at {seconds}: {args:?}: {ran:?}");
            }
            let mount = store.mount(&[] as &[&str]);
            store.sh(&format!("find {} -ls > /dev/null", mount.path.display())).ok();
            mount.stop();
        }
    }
}
