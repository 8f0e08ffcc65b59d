//! Whoever has a turn open reads the version that was opened, to its end, whatever becomes of the file.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::process::Command;
use std::time::Duration;

use rustix::fs::Advice;

use super::store::{Case, Edit, metric, soon};
use crate::support::racy::settle;

/// What is done to the transcript between two reads.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Other words in the turn, of the same length.
    Edit(Edit),
    /// The turn becomes shorter.
    Shorter,
    /// The turn becomes longer in its middle.
    Longer,
    /// The file ends before the turn begins.
    Gone,
    /// A line in the turn is no record any more, so that the whole session refuses.
    Damaged,
}

const CHANGES: [Change; 8] = [
    Change::Edit(Edit::InPlace),
    Change::Edit(Edit::Truncating),
    Change::Edit(Edit::RenameOver),
    Change::Edit(Edit::Recreate),
    Change::Shorter,
    Change::Longer,
    Change::Gone,
    Change::Damaged,
];

/// The wire of the sample with a turn 2 that is far longer than what is read ahead.
fn long_turn(wire: &str, words: usize) -> String {
    let at = wire.find("turn three").unwrap();
    let step = at + wire[at..].find("StepBegin").unwrap();
    let line = step + wire[step..].find('\n').unwrap() + 1;
    let text: String = (0..words).map(|n| format!("word {n} ")).collect();
    let part = format!(
        "{{\"timestamp\": 1796045260.5, \"message\": {{\"type\": \"ContentPart\", \"payload\": {{\"type\": \"text\", \"text\": \"{text}\"}}}}}}\n"
    );
    format!("{}{part}{}", &wire[..line], &wire[line..])
}

fn make(change: Change, case: &Case, original: &str) {
    let wire = case.wire();
    match change {
        Change::Edit(edit) => {
            // Every word changes, not only the mark.
            let other = original.replace("word ", "WORD ");
            fs::write(&wire, &other).unwrap();
            edit.make(&wire, &other, "TURN THREE");
        }
        Change::Shorter => fs::write(&wire, original.replace("word ", "w")).unwrap(),
        Change::Longer => fs::write(&wire, original.replace("word ", "longer word ")).unwrap(),
        Change::Gone => {
            let at = original.find("turn three").unwrap();
            let line = original[..at].rfind('\n').unwrap() + 1;
            File::options().write(true).open(&wire).unwrap().set_len(line as u64).unwrap();
        }
        Change::Damaged => fs::write(
            &wire,
            original.replace("{\"type\": \"text\", \"text\": \"word 0", "{\"type\" \"word 0"),
        )
        .unwrap(),
    }
}

/// Other processes look at the turn, so that the kernel learns what it is now.
fn others_look(case: &Case) {
    let turn = case.dir.join("turns/002");
    for command in ["stat", "cat"] {
        Command::new(command).arg(&turn).output().unwrap();
    }
    Command::new("ls").arg("-l").arg(case.dir.join("turns")).output().unwrap();
}

/// Reads a turn with a change in the middle. `cached`: how much the kernel has of it when it is opened.
fn read_through(case: &Case, change: Change, settled: bool, looked_at: bool, cached: Cached) {
    let what = format!("{change:?}, settled {settled}, looked at {looked_at}, {cached:?}");
    let turn = case.dir.join("turns/002");
    let original = fs::read_to_string(case.wire()).unwrap();
    if settled {
        settle();
    }
    let expected = fs::read(&turn).unwrap();
    assert!(expected.len() > 1 << 20, "{what}: {} bytes", expected.len());
    if cached != Cached::Whole {
        let file = File::open(&turn).unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    }
    if cached == Cached::Beginning {
        File::open(&turn).unwrap().read_exact(&mut [0; 4096]).unwrap();
    }
    let mut reader = File::open(&turn).unwrap();
    let mut got = vec![0; 10_000];
    reader.read_exact(&mut got).unwrap();
    make(change, case, &original);
    if looked_at {
        others_look(case);
    }
    let rest = reader.read_to_end(&mut got);
    // Of a settled turn that the kernel has pages of, nothing was read for this reader: where they do not last,
    // what is left is to say so.
    let too_late = settled && cached != Cached::Nothing;
    match rest {
        Err(error) if too_late => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{what}"),
        rest => {
            rest.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(
                got == expected,
                "{what}: {} bytes of {} are right",
                right(&got, &expected),
                expected.len()
            );
            reader.seek(SeekFrom::Start(100)).unwrap();
            let mut again = Vec::new();
            reader.read_to_end(&mut again).unwrap();
            assert!(again == expected[100..], "{what}: read again");
        }
    }
    if !matches!(change, Change::Gone | Change::Damaged) {
        soon(&format!("{what}: the new version"), || fs::read(&turn).is_ok_and(|now| now != expected));
    }
    drop(reader);
    fs::write(case.wire(), &original).unwrap();
    soon(&format!("{what}: the old version again"), || fs::read(&turn).is_ok_and(|now| now == expected));
}

fn right(got: &[u8], expected: &[u8]) -> usize {
    got.iter().zip(expected).take_while(|(got, expected)| got == expected).count()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cached {
    Nothing,
    Beginning,
    Whole,
}

fn every_change(changes: &[Change], settled: bool, others: &[bool]) {
    let case = if settled { Case::with_short_window(None) } else { Case::at(None) };
    let wire = fs::read_to_string(case.wire()).unwrap();
    fs::write(case.wire(), long_turn(&wire, 100_000)).unwrap();
    for &change in changes {
        for &looked_at in others {
            for cached in [Cached::Nothing, Cached::Beginning, Cached::Whole] {
                read_through(&case, change, settled, looked_at, cached);
            }
        }
    }
}

#[test]
fn a_reader_of_a_turn_that_changed_just_now_keeps_its_version_to_the_end() {
    every_change(&CHANGES, false, &[false, true]);
}

#[test]
fn a_reader_of_a_settled_turn_keeps_its_version_to_the_end() {
    // Each takes as long as it takes to settle.
    let changes =
        [Change::Edit(Edit::InPlace), Change::Edit(Edit::RenameOver), Change::Shorter, Change::Gone];
    every_change(&changes, true, &[true]);
}

#[test]
fn two_readers_of_two_versions_each_keep_theirs() {
    let case = Case::at(None);
    let wire = fs::read_to_string(case.wire()).unwrap();
    let original = long_turn(&wire, 100_000);
    fs::write(case.wire(), &original).unwrap();
    let turn = case.dir.join("turns/002");
    let mut readers = Vec::new();
    for version in 0..4 {
        fs::write(case.wire(), original.replace("word ", &format!("w{version} {}", "x".repeat(version))))
            .unwrap();
        let expected = fs::read(&turn).unwrap();
        let mut reader = File::open(&turn).unwrap();
        let mut got = vec![0; 5000];
        reader.read_exact(&mut got).unwrap();
        readers.push((reader, got, expected));
    }
    for (version, (mut reader, mut got, expected)) in readers.into_iter().enumerate() {
        others_look(&case);
        reader.read_to_end(&mut got).unwrap();
        assert!(got == expected, "version {version}: {} bytes are right", right(&got, &expected));
    }
}

#[test]
fn an_append_costs_what_was_appended_not_what_was_there() {
    use super::store::metric;
    let case = Case::at(None);
    let wire = fs::read_to_string(case.wire()).unwrap();
    fs::write(case.wire(), long_turn(&wire, 500_000)).unwrap();
    let turns = case.dir.join("turns");
    assert_eq!(fs::read_dir(&turns).unwrap().count(), 4);
    let parsed = || {
        let name = "turnfs_store_bytes_read_total{agent=\"kimi-cli\",kind=\"transcript\"}";
        metric(&case.mount.path, name)
    };
    let before = parsed();
    let len = fs::metadata(case.wire()).unwrap().len();
    case.append_turn("one more");
    soon("the appended turn", || turns.join("004").exists());
    let cost = parsed() - before;
    println!(
        "{} bytes appended to {len}: {cost} bytes parsed",
        fs::metadata(case.wire()).unwrap().len() - len
    );
    assert!(cost < len / 10, "{cost} bytes of {len} were parsed");
}

/// An answer about a size that crosses an invalidation is dropped by the kernel. Each needless one is a chance that
/// `tail -n 1 status`, right after a command, sees the end where the file ended before.
#[test]
fn the_kernel_is_told_once_that_the_size_of_a_file_has_changed() {
    let case = Case::at(None);
    let status = case.dir.join("status");
    let sent = || metric(&case.mount.path, "turnfs_invalidations_total{kind=\"attributes\"}");
    let size = || File::open(&status).unwrap().seek(SeekFrom::End(0)).unwrap();
    // Names may be told of again, and so may what was found right after the mount.
    size();
    std::thread::sleep(Duration::from_millis(1500));
    let (before, first) = (sent(), size());
    fs::write(case.dir.join("undo"), "99").unwrap_err();
    let told = sent();
    assert!(told > before, "nothing was sent");
    assert_ne!(size(), first);
    // Repetitions would come after 0.1 s and 1 s.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(sent(), told);
}
