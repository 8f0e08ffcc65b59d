//! Edits that keep the length and put the time back, none of which the next `cat` may miss.

use std::path::Path;

use super::store::{Case, Edit, setting};
use crate::support::racy::settle;
use crate::support::skipped::skipped;

/// Edits, and after each a look through the mount.
fn missed(case: &Case, edits: u64, wait: fn()) -> u64 {
    let wire = case.wire();
    let original = std::fs::read_to_string(&wire).unwrap();
    let turn = case.dir.join("turns/002");
    let mut missed = 0;
    for n in 0..edits {
        wait();
        let new = format!("{n:010}");
        let edit = Edit::ALL[n as usize % Edit::ALL.len()];
        edit.make(&wire, &original, &new);
        let seen = std::fs::read_to_string(&turn).unwrap();
        if !seen.contains(&new) {
            eprintln!("missed edit {n} ({edit:?})");
            missed += 1;
        }
    }
    std::fs::write(&wire, &original).unwrap();
    missed
}

fn none_is_missed_on(name: &str, place: &Path) {
    let place = tempfile::tempdir_in(place).unwrap();
    let case = Case::at(Some(place.path()));
    let edits = setting("TURNFS_TEST_EDITS", 2000);
    let at_once = missed(&case, edits, || ());
    drop(case);
    let place = tempfile::tempdir_in(place.path()).unwrap();
    let case = Case::with_short_window(Some(place.path()));
    let settled = setting("TURNFS_TEST_SETTLED_EDITS", 12);
    let later = missed(&case, settled, settle);
    println!("{name}: {edits} edits at once, {at_once} missed; {settled} settled, {later} missed");
    assert_eq!((at_once, later), (0, 0));
}

#[test]
fn no_edit_of_equal_length_with_its_time_put_back_is_missed_on_a_disk() {
    none_is_missed_on("disk", Path::new(env!("CARGO_TARGET_TMPDIR")));
}

#[test]
fn no_edit_of_equal_length_with_its_time_put_back_is_missed_in_memory() {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        skipped("there is no /dev/shm");
        return;
    }
    none_is_missed_on("tmpfs", memory);
}
