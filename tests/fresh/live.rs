//! A long session that an agent is writing to: a look costs what was appended, and no edit of what was there
//! before is missed by the next `cat`.

use std::fs;
use std::path::Path;

use super::store::{Case, Edit, metric, setting, soon};

/// Above the length, bytes, from which the old part of a file is believed until it is shown.
const LONG: u64 = 3 << 19;

fn long_case(place: &Path) -> Case {
    let case = Case::at(Some(place));
    let prompt = "words and more words ".repeat(400);
    while fs::metadata(case.wire()).unwrap().len() < LONG {
        case.append_turn(&prompt);
    }
    case
}

fn turns(case: &Case) -> usize {
    fs::read_dir(case.dir.join("turns")).unwrap().count()
}

/// Store bytes read so far.
fn bytes_read(case: &Case) -> u64 {
    metric(&case.mount.path, "turnfs_store_bytes_read_total")
}

#[test]
fn a_look_at_a_long_session_that_grew_reads_what_was_appended_and_a_block() {
    let place = tempfile::tempdir().unwrap();
    let case = long_case(place.path());
    let dir = case.dir.join("turns");
    let before = turns(&case);
    case.store.sh(&format!("ls -l {}", dir.display())).ok();
    for n in 1..=20 {
        let read = bytes_read(&case);
        case.append_turn("one more");
        soon("the new turn is there", || turns(&case) == before + n);
        case.store
            .sh(&format!("ls -l {} && cat {}/{:03}", dir.display(), dir.display(), before + n - 1))
            .ok();
        let cost = bytes_read(&case) - read;
        // Two looks at the most: the one that heard of it, and ours. The context file is short and hashed whole.
        assert!(cost < LONG / 2, "look {n} read {cost} bytes of {LONG}");
    }
}

#[test]
fn no_edit_of_an_old_turn_is_missed_while_the_session_grows() {
    let place = tempfile::tempdir().unwrap();
    let case = long_case(place.path());
    let wire = case.wire();
    let turn = case.dir.join("turns/002");
    let mut text = fs::read_to_string(&wire).unwrap();
    assert!(fs::read_to_string(&turn).unwrap().contains("turn three"));
    let mut mark = "turn three".to_owned();
    let mut missed = 0;
    let edits = setting("TURNFS_TEST_EDITS", 120);
    for n in 0..edits {
        let new = format!("{n:010}");
        // The client appends, and something else edits, in either order, or without an append.
        if n % 3 == 0 {
            case.append_turn("the agent goes on");
        }
        let original = match n % 3 {
            2 => text.clone(),
            _ => fs::read_to_string(&wire).unwrap(),
        };
        text = original.replace(&mark, &new);
        let edit = Edit::ALL[(n / 3) as usize % Edit::ALL.len()];
        edit.replace(&wire, &original, &mark, &new);
        if n % 3 == 1 {
            case.append_turn("the agent goes on");
            text = fs::read_to_string(&wire).unwrap();
        }
        mark = new.clone();
        let seen = fs::read_to_string(&turn).unwrap();
        if !seen.contains(&new) {
            eprintln!("missed edit {n} ({edit:?})");
            missed += 1;
        }
    }
    assert_eq!(missed, 0, "of {edits}");
}

#[test]
fn an_edit_that_nobody_reads_changes_the_size_once_the_session_is_quiet() {
    let place = tempfile::tempdir().unwrap();
    let case = long_case(place.path());
    let turn = case.dir.join("turns/002");
    let size = || fs::metadata(&turn).unwrap().len();
    let before = size();
    let text = fs::read_to_string(case.wire()).unwrap();
    // The same number of bytes in the file, fewer in the text: an escape is one character.
    Edit::InPlace.replace(&case.wire(), &text, "turn three", "turn\\u0033");
    case.append_turn("the agent goes on");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while size() == before {
        assert!(std::time::Instant::now() < end, "the size is the old one");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(size(), fs::read_to_string(&turn).unwrap().len() as u64);
}

#[test]
fn a_look_through_latest_or_an_id_asks_for_the_target_once() {
    let place = tempfile::tempdir().unwrap();
    let case = long_case(place.path());
    let project = case.dir.parent().unwrap();
    let id = case.session().file_name().unwrap().to_owned();
    for link in ["latest".into(), id] {
        let turns = project.join(link).join("turns/");
        let asked = || metric(&case.mount.path, "turnfs_fuse_requests_total{op=\"readlink\"}");
        let before = asked();
        let list = format!("ls -l {}", turns.display());
        let lines = case.store.sh(&list).ok().lines().count();
        case.store.sh(&list).ok();
        assert!(asked() - before <= 2, "{} requests for {lines} lines", asked() - before);
    }
}
