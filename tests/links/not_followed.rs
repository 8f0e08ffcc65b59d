//! Links that are not followed are told with the reason.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::find;
use super::support::TestStore;
use super::support::skipped::skipped;

/// What `ls`, `check` and `doctor` say where this part of a store is a link to `target`.
#[track_caller]
fn is_told(agent: &str, sample: &str, end: &str, target: &Path, why: &str) {
    let store = TestStore::of(agent, sample);
    let path = find(&store.root, end);
    let aside = store.home.join("aside");
    std::fs::rename(&path, &aside).unwrap();
    symlink(target, &path).unwrap();
    let what = format!("{agent}: {end} to {}", target.display());
    for command in [&["ls", "--all"][..], &["check", "--all"], &["doctor"]] {
        let ran = store.run(command);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(said.contains(why), "{what}, {command:?}: {said}");
    }
    let mount = store.mount::<&str>(&[]);
    let status = std::fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
    assert!(status.contains(why), "{what}: {status}");
}

const PARTS: &[(&str, &str, &str)] = &[
    ("kimi-cli", "a-plain", "sessions"),
    ("kimi-cli", "a-plain", "76d7e8ac2706"),
    ("codex", "a_plain4", "sessions"),
    ("codex", "a_plain4", "sessions/2026"),
    ("openmax", "a_plain", "sessions"),
    ("kimi-code", "a-plain", "sessions"),
    ("kimi-code", "a-plain", "48e3280f5f51"),
];

#[test]
fn a_link_that_leads_nowhere_is_told() {
    for (agent, sample, end) in PARTS {
        is_told(agent, sample, end, Path::new("/nowhere/at/all"), "it leads nowhere");
    }
}

#[test]
fn a_link_in_a_circle_and_one_to_a_device_are_told() {
    is_told("codex", "a_plain4", "sessions/2026", Path::new("2026"), "it leads in a circle");
    is_told("kimi-cli", "a-plain", "sessions", Path::new("sessions"), "it leads in a circle");
    for (agent, sample, end) in PARTS {
        is_told(agent, sample, end, Path::new("/dev/null"), "it leads to no directory or regular file");
    }
}

#[test]
fn a_database_that_is_a_dangling_link_is_told_and_the_threads_are_listed() {
    let store = TestStore::of("codex", "a_plain4");
    std::fs::remove_file(store.root.join("state_5.sqlite")).unwrap();
    symlink("/nowhere/db", store.root.join("state_5.sqlite")).unwrap();
    let listed = store.run(&["ls", "--all"]);
    assert!(listed.stderr.contains("it leads nowhere"), "{}", listed.stderr);
    assert!(listed.stdout.contains("7cc3b0a3"), "{}", listed.stdout);
}

#[test]
fn what_belongs_to_somebody_else_is_told_and_neither_read_nor_written() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can give files away");
    }
    use std::os::unix::fs::{chown, lchown};
    for (agent, sample, end) in PARTS {
        let store = TestStore::of(agent, sample);
        let (path, aside) = (find(&store.root, end), store.home.join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        symlink(&aside, &path).unwrap();
        // The store is another user's; what the link leads to is root's, who looks.
        chown(&store.root, Some(65534), None).unwrap();
        lchown(&path, Some(65534), None).unwrap();
        let ran = store.run(&["ls", "--all"]);
        let why = "what it leads to belongs to another user";
        assert!(ran.stderr.contains(why), "{agent} {end}: {}{}", ran.stdout, ran.stderr);
        chown(&aside, Some(65534), None).unwrap();
        lchown(&path, Some(0), None).unwrap();
        let ran = store.run(&["ls", "--all"]);
        assert!(ran.stderr.contains("it belongs to another user"), "{agent} {end}: {}", ran.stderr);
    }
}

#[test]
fn a_link_into_our_own_mount_is_told_and_nobody_waits() {
    let store = TestStore::from_sample("a-plain");
    let mount = store.mount::<&str>(&[]);
    let session = mount.session(&store, None);
    for (target, end) in [(mount.path.clone(), "ffffffffffffffffffffffffffffffff"), (session, "round")] {
        let link = match end {
            "round" => find(&store.root, "76d7e8ac2706").with_file_name(end),
            _ => store.root.join("sessions").join(end),
        };
        symlink(&target, &link).unwrap();
        let ran = store.run(&["ls", "--all"]);
        assert!(ran.stderr.contains("it leads into a mount of turnfs"), "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains("e8ac2706"), "{}", ran.stdout);
        let status = std::fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
        assert!(status.contains("it leads into a mount of turnfs"), "{status}");
    }
}

#[test]
fn backups_of_a_session_on_a_disk_that_is_not_there_now_are_not_pruned() {
    let store = TestStore::from_sample("a-plain");
    let (sessions, disk) = (store.root.join("sessions"), store.home.join("disk"));
    std::fs::rename(&sessions, &disk).unwrap();
    symlink(&disk, &sessions).unwrap();
    store.run(&["undo", "e8ac2706", "2"]).ok();
    // Not mounted: nothing there, or an empty directory.
    std::fs::rename(&disk, store.home.join("unplugged")).unwrap();
    for empty in [false, true] {
        if empty {
            std::fs::create_dir(&disk).unwrap();
        }
        let pruned = store.run(&["prune"]);
        assert!(!pruned.stdout.contains("undo 1"), "{}{}", pruned.stdout, pruned.stderr);
    }
    std::fs::remove_dir(&disk).unwrap();
    std::fs::rename(store.home.join("unplugged"), &disk).unwrap();
    store.run(&["redo", "e8ac2706"]).ok();
}

#[test]
fn a_redo_goes_where_its_undo_was_and_nowhere_else() {
    let store = TestStore::from_sample("a-plain");
    let (sessions, disk) = (store.root.join("sessions"), store.home.join("disk"));
    std::fs::rename(&sessions, &disk).unwrap();
    symlink(&disk, &sessions).unwrap();
    store.run(&["undo", "e8ac2706", "2"]).ok();
    let copy = store.home.join("copy");
    super::support::copy_tree(&disk, &copy);
    std::fs::remove_file(&sessions).unwrap();
    symlink(&copy, &sessions).unwrap();
    let refused = store.run(&["redo", "e8ac2706"]).refused();
    assert!(refused.contains("it leads elsewhere than when the cut was made"), "{refused}");
    std::fs::remove_file(&sessions).unwrap();
    symlink(&disk, &sessions).unwrap();
    store.run(&["redo", "e8ac2706"]).ok();
}
