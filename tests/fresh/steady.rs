//! Nothing changed outside: then nothing is read, however often somebody looks, and whatever the kernel forgot.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rustix::fs::Advice;

use super::store::{Case, Edit, metric, setting};
use crate::support::racy::settle;
use crate::support::{Mount, TestStore};

/// After so many rounds the kernel is made to forget.
const FORGETS_EVERY: u64 = 10;

#[test]
fn a_steady_state_reads_no_byte_and_parses_nothing() {
    steady(&[], setting("TURNFS_TEST_ROUNDS", 3));
}

/// `prompts/` and `context.md` have texts whose sizes must be known, too.
#[test]
fn a_steady_state_with_everything_listed_reads_no_byte_and_parses_nothing() {
    steady(&["--show-all"], 3);
}

fn steady(options: &[&str], rounds: u64) {
    let store = TestStore::empty();
    let mount = mount_of_all_samples(&store, options);
    settle();
    look(&mount.path);
    look(&mount.path);
    let sessions = metric(&mount.path, "turnfs_sessions{");
    assert!(sessions >= 50, "{sessions} sessions");
    let turns = turns(&mount.path);
    assert!(turns.len() >= 100, "{} turns", turns.len());

    let before = what_was_read(&mount.path);
    let started = Instant::now();
    let (mut times, mut inodes_too) = (0, true);
    for round in 0..rounds {
        if round % FORGETS_EVERY == 1 {
            times += 1;
            inodes_too &= the_kernel_forgets(&mount.path, &turns);
        }
        look(&mount.path);
    }
    let after = what_was_read(&mount.path);
    println!(
        "{rounds} rounds of {sessions} sessions in {} s; the kernel was made to forget {times} times {}\n{after:#?}",
        started.elapsed().as_secs(),
        if inodes_too {
            "all pages and inodes"
        } else {
            "all pages, but no inodes: /proc/sys/vm is not ours"
        },
    );
    assert_eq!(before, after);
}

#[test]
fn what_changed_is_never_shown_from_memory() {
    let case = Case::with_short_window(None);
    let wire = fs::read_to_string(case.wire()).unwrap();
    let turn = case.dir.join("turns/002");
    for edit in Edit::ALL {
        settle();
        let original = fs::read_to_string(&turn).unwrap();
        the_kernel_forgets(&case.mount.path, std::slice::from_ref(&turn));
        assert_eq!(fs::read_to_string(&turn).unwrap(), original);
        edit.make(&case.wire(), &wire, "TURN THREE");
        the_kernel_forgets(&case.mount.path, &[]);
        let edited = fs::read_to_string(&turn).unwrap();
        assert!(edited.contains("## User\n\nTURN THREE\n"), "{edit:?}: {edited}");
        fs::write(case.wire(), &wire).unwrap();
        assert_eq!(fs::read_to_string(&turn).unwrap(), original, "{edit:?}");
    }
}

fn mount_of_all_samples(store: &TestStore, options: &[&str]) -> Mount {
    let samples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    let mut options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    for (agent, _) in crate::support::AGENTS {
        for sample in fs::read_dir(samples.join(agent)).unwrap() {
            let sample = sample.unwrap();
            let copy = store.dir.path().join(agent).join(sample.file_name());
            crate::support::copy_tree(&sample.path().join("store"), &copy);
            options.extend(["--store".to_owned(), format!("{agent}={}", copy.display())]);
        }
    }
    store.mount_with_short_window(&options)
}

/// Lists everything and reads every turn.
fn look(mount: &Path) {
    let script = "ls -lR . >/dev/null 2>&1; find . -path '*/turns/*' -type f -exec cat {} + >/dev/null 2>&1";
    let status = Command::new("sh").arg("-c").arg(script).current_dir(mount).status().unwrap();
    assert!(status.success() || status.code() == Some(1), "{status}");
}

fn turns(mount: &Path) -> Vec<PathBuf> {
    let find = ["-path", "*/turns/*", "-type", "f"];
    let found = Command::new("find").arg(mount).args(find).output().unwrap();
    String::from_utf8(found.stdout).unwrap().lines().map(PathBuf::from).collect()
}

/// Bytes of every kind and passes: the lines of the metrics.
fn what_was_read(mount: &Path) -> Vec<String> {
    let text = fs::read_to_string(mount.join(".turnfs/metrics")).unwrap();
    let counted = ["turnfs_store_bytes_read_total{", "turnfs_parses_total "];
    let lines = text.lines().filter(|line| counted.iter().any(|name| line.starts_with(name)));
    lines.map(str::to_owned).collect()
}

/// Makes the kernel drop its pages of these files and, where that is permitted, its inodes; whether it was.
fn the_kernel_forgets(mount: &Path, turns: &[PathBuf]) -> bool {
    for turn in turns {
        // One that is refused has no pages.
        if let Ok(file) = File::open(turn) {
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        }
    }
    let known = metric(mount, "turnfs_inodes ");
    // Dentries and inodes, of the whole machine; files lose nothing by it that is not on disk.
    let permitted = fs::write("/proc/sys/vm/drop_caches", "2").is_ok();
    if permitted && known > 100 {
        let left = metric(mount, "turnfs_inodes ");
        assert!(left < known / 2, "the kernel did not forget: {left} of {known} inodes are left");
    }
    permitted
}
