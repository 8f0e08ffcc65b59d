//! Nothing changed outside: then nothing is read, however often somebody looks.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::store::{metric, setting};
use crate::support::TestStore;

#[test]
fn a_steady_state_reads_no_byte_and_parses_nothing() {
    let store = TestStore::empty();
    let samples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    let mut options = Vec::new();
    for agent in ["kimi-cli", "codex", "openmax"] {
        for sample in fs::read_dir(samples.join(agent)).unwrap() {
            let sample = sample.unwrap();
            let copy = store.dir.path().join(agent).join(sample.file_name());
            crate::support::copy_tree(&sample.path().join("store"), &copy);
            options.extend(["--store".to_owned(), format!("{agent}={}", copy.display())]);
        }
    }
    let mount = store.mount(&options);
    let look = |rounds: u64| {
        let script = format!(
            "for i in $(seq {rounds}); do ls -lR . >/dev/null 2>&1; \
             find . -path '*/turns/*' -type f -exec cat {{}} + >/dev/null 2>&1; done"
        );
        let status = Command::new("sh").arg("-c").arg(script).current_dir(&mount.path).status().unwrap();
        assert!(status.success() || status.code() == Some(1), "{status}");
    };
    // Longer than stamps are too young to be believed.
    std::thread::sleep(Duration::from_millis(2500));
    look(2);
    let sessions = metric(&mount.path, "turnfs_sessions{");
    assert!(sessions >= 50, "{sessions} sessions");
    let counters =
        || (metric(&mount.path, "turnfs_store_bytes_read_total"), metric(&mount.path, "turnfs_parses_total"));
    let rounds = setting("TURNFS_TEST_ROUNDS", 3);
    // The kernel may drop a page of a text at any time, and a machine with proactive reclaim does: the text is
    // read once more then. The state is steady if a whole run of rounds reads nothing.
    let mut after = counters();
    let mut before = (0, 0);
    for _ in 0..10 {
        if before == after {
            break;
        }
        before = after;
        look(rounds);
        after = counters();
    }
    println!("{rounds} rounds of {sessions} sessions: bytes and parses {before:?} before, {after:?} after");
    assert_eq!(before, after);
}
