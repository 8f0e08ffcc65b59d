//! What a test could not check on this machine: named at the end of `scripts/test`, for the output of tests
//! that pass is not shown.

use std::io::Write as _;

/// Says that the test leaves something out here, and why.
#[track_caller]
pub fn skipped(why: &str) {
    let at = std::panic::Location::caller();
    let line = format!("{}:{}: {why}\n", at.file(), at.line());
    eprint!("skipped: {line}");
    if let Some(list) = std::env::var_os("TURNFS_TEST_SKIPPED") {
        let mut list = std::fs::File::options().create(true).append(true).open(list).unwrap();
        list.write_all(line.as_bytes()).unwrap();
    }
}
