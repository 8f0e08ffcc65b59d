//! A client that appends all the time, opening and closing as Kimi does.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::toy::{Fixture, Toy};
use crate::cut::execute;

/// Not a test, but run in a process of its own; it appends `T<n>` to the file at a steady pace until it is killed, and
/// notes each record, once its append has returned, in the log.
#[test]
#[ignore = "the part of a child process"]
fn append_child() {
    let [file, log] = ["TURNFS_TEST_APPEND", "TURNFS_TEST_LOG"].map(|name| std::env::var(name).unwrap());
    let pause = Duration::from_millis(std::env::var("TURNFS_TEST_PAUSE").unwrap().parse().unwrap());
    let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
    for n in 0.. {
        let mut open = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
        open.write_all(format!("T{n:08}\n").as_bytes()).unwrap();
        drop(open);
        log.write_all(format!("{n}\n").as_bytes()).unwrap();
        std::thread::sleep(pause);
    }
}

/// A client that appends each `pause` (milliseconds).
pub fn appender(file: &Path, log: &Path, pause: u64) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "cut::tests::appender::append_child"])
        .env("TURNFS_TEST_APPEND", file)
        .env("TURNFS_TEST_LOG", log)
        .env("TURNFS_TEST_PAUSE", pause.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while logged(log) < 5 {
        assert!(start.elapsed() < Duration::from_secs(20), "the appender does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// How many appends have returned.
pub fn logged(log: &Path) -> u64 {
    std::fs::read_to_string(log).map_or(0, |text| text.lines().count() as u64)
}

#[test]
fn two_hundred_forced_undos_lose_no_record_that_is_written_after_the_cut() {
    let fixture = Fixture::new();
    let log = fixture.dir.path().join("log");
    let wire = fixture.path("wire.jsonl");
    let mut child = appender(&wire, &log, 1);
    let mut after_cuts = Vec::new();
    for _ in 0..200 {
        let seen = fixture.load();
        let keep = 3.min(seen.turns.len() as u32 - 1);
        execute::undo(&Toy, &fixture.state, &fixture.session, &seen, keep, true).unwrap();
        // The first append that is logged from here on may have returned before the cut, with a client that had no
        // processor since; those behind it began after the cut and must be there until the next one.
        let from = logged(&log) + 1;
        while logged(&log) < from + 4 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let to = logged(&log);
        let text = std::fs::read_to_string(&wire).unwrap();
        after_cuts.push((from, to, text));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut checked = 0;
    for (from, to, text) in &after_cuts {
        for line in text.lines() {
            let number = line.strip_prefix('T').filter(|rest| rest.len() == 8 && rest.parse::<u32>().is_ok());
            let old = ["H", "Ta", "x0", "Tb", "x1 longer", "C", "Tc", "x2"].contains(&line);
            assert!(old || number.is_some(), "torn line {line:?}");
        }
        for n in *from..*to {
            assert!(text.contains(&format!("\nT{n:08}\n")), "record {n} is lost");
            checked += 1;
        }
        let numbers: Vec<u32> = text.lines().filter_map(|l| l.strip_prefix('T')?.parse().ok()).collect();
        assert!(numbers.windows(2).all(|w| w[0] + 1 == w[1]), "a gap behind a cut: {numbers:?}");
    }
    println!("200 forced undos, {checked} records written after a cut, 0 lost");
}

#[test]
fn two_hundred_undos_without_force_all_answer_ebusy_while_a_client_writes() {
    let fixture = Fixture::new();
    let log = fixture.dir.path().join("log");
    let mut child = appender(&fixture.path("wire.jsonl"), &log, 1);
    let (mut refused, mut starved) = (0, 0);
    while refused < 200 {
        let seen = fixture.load();
        let before = logged(&log);
        match execute::undo(&Toy, &fixture.state, &fixture.session, &seen, 2, false) {
            Err(refusal) => {
                assert_eq!(refusal.errno(), Errno::BUSY, "{refusal}");
                refused += 1;
            }
            // On a busy machine the client may get no processor for as long as an undo looks.
            Ok(_) => {
                let written = logged(&log) - before;
                assert!(written <= 1, "a client wrote {written} records during an undo that was not refused");
                starved += 1;
                assert!(starved < 20, "the client hardly ever runs");
                while logged(&log) < before + 8 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
