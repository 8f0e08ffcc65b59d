//! Mounts as such: two at once, one project, dead ones, odd places, odd stores.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::path::Path;

use support::{Mount, TestStore};

const PROJECT: &str = "/home/dev/projects/work/a-plain";

#[test]
fn two_mounts_of_one_store_agree() {
    let store = TestStore::from_samples(&["a-plain", "c-compact"]);
    let all = store.mount::<&str>(&[]);
    let one = store.mount(&["--project", PROJECT]);
    let below = format!("{}{PROJECT}", all.path.display());
    let same = format!("diff -r -x .turnfs --no-dereference '{below}' '{}'", one.path.display());
    let listing = |dir: &str| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.retain(|name| name != ".turnfs");
        names.sort();
        names
    };
    assert_eq!(listing(&below), listing(one.path.to_str().unwrap()));
    store.sh(&same).ok();
    // A cut through one is seen through the other at once.
    store.sh(&format!("echo 2 > '{}'/latest/undo", one.path.display())).ok();
    assert_eq!(fs::read_dir(Path::new(&below).join("latest/turns")).unwrap().count(), 2);
    store.sh(&format!("echo last > '{below}'/latest/redo")).ok();
    assert_eq!(fs::read_dir(one.path.join("latest/turns")).unwrap().count(), 4);
    // Only what each mount was last told differs.
    store.sh(&same.replace("-x .turnfs", "-x .turnfs -x status")).ok();
}

#[test]
fn a_project_is_found_from_any_spelling() {
    let store = TestStore::from_sample("a-plain");
    // The recorded path, moved into this test's own directory; beside it a link to it.
    let real = store.home.join("work/app");
    fs::create_dir_all(&real).unwrap();
    std::os::unix::fs::symlink("work", store.home.join("link")).unwrap();
    let kimi = fs::read_to_string(store.root.join("kimi.json")).unwrap();
    fs::write(store.root.join("kimi.json"), kimi.replace(PROJECT, real.to_str().unwrap())).unwrap();
    let digest = md5_hex(real.to_str().unwrap());
    let sessions = store.root.join("sessions");
    fs::rename(sessions.join("301f8022c44669fd30b93f123c419b45"), sessions.join(digest)).unwrap();
    let spelled = store.home.join("link/app");

    let all = store.mount::<&str>(&[]);
    let script = format!("cat '{}{}/latest/turns/000'", all.path.display(), spelled.display());
    assert!(store.sh(&script).ok().contains("turn one"));
    for dir in [&real, &spelled] {
        let found = store.run(&["ls", dir.to_str().unwrap(), "--json"]).json();
        assert_eq!(found.as_array().unwrap().len(), 1, "{}", dir.display());
        let one = store.mount(&["--project", dir.to_str().unwrap()]);
        assert_eq!(fs::read_dir(one.path.join("latest/turns")).unwrap().count(), 4);
    }
    // A place without sessions is not there.
    let nowhere = format!("ls '{}{}/work/none'", all.path.display(), store.home.display());
    assert_ne!(store.sh(&nowhere).code, 0);
}

fn md5_hex(text: &str) -> String {
    use md5::Digest;
    md5::Md5::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_background_mount_answers_when_the_command_returns_and_umount_ends_it() {
    let store = TestStore::from_sample("a-plain");
    let path = store.home.join("turns");
    let out = store.run(&["mount"]).ok();
    let _guard = Detach(path.clone());
    assert!(support::is_mounted(&path), "{out}");
    assert!(path.join(&PROJECT[1..]).join("latest/turns/000").exists());
    // Again: already there, says where, done.
    let again = store.run(&["mount"]);
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert!(format!("{}{}", again.stdout, again.stderr).contains(path.to_str().unwrap()));
    store.run(&["umount", path.to_str().unwrap()]).ok();
    assert!(!support::is_mounted(&path));
    assert!(!path.exists(), "the mount point that the daemon made is left behind");
}

struct Detach(std::path::PathBuf);

impl Drop for Detach {
    fn drop(&mut self) {
        support::detach(&self.0);
    }
}

#[test]
fn a_dead_mount_is_cleared_and_someone_elses_is_left_alone() {
    let store = TestStore::from_sample("a-plain");
    let dead = store.mount::<&str>(&[]).kill();
    let _guard = Detach(dead.clone());
    assert_eq!(fs::metadata(&dead).err().and_then(|error| error.raw_os_error()), Some(libc::ENOTCONN));
    let alive = store.mount_at::<&str>(&dead, &[]);
    assert!(fs::metadata(dead.join(&PROJECT[1..])).is_ok());
    let dead = alive.kill();
    store.run(&["umount", dead.to_str().unwrap()]).ok();
    assert!(!support::is_mounted(&dead));
    let refused = store.run(&["umount", "/proc"]).refused();
    assert!(refused.contains("/proc"), "{refused}");
}

#[test]
fn a_mount_point_that_would_do_harm_is_refused() {
    let store = TestStore::from_sample("a-plain");
    let full = store.home.join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("precious"), "x").unwrap();
    let file = store.home.join("file");
    fs::write(&file, "x").unwrap();
    let before = store.snapshot();
    for (place, word) in [
        (&full, "empty"),
        (&file, "directory"),
        (&store.root.join("sessions/x"), "store"),
        (&store.home, "store"),
    ] {
        let refused = store.run(&["mount", place.to_str().unwrap()]).refused();
        assert!(refused.contains(word), "{}: {refused}", place.display());
        assert!(!support::is_mounted(place));
    }
    assert!(store.snapshot() == before);
}

#[test]
fn terminating_the_daemon_unmounts_and_exits_0() {
    let store = TestStore::from_sample("a-plain");
    let mount: Mount = store.mount::<&str>(&[]);
    let (status, log) = mount.stop();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn an_empty_home_a_damaged_index_and_an_unreadable_store_are_said_plainly() {
    let store = TestStore::empty();
    let listed = store.run(&["ls", "--all"]);
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    assert_eq!(store.run(&["ls", "--all", "--json"]).json(), serde_json::json!([]));
    {
        let mount = store.mount::<&str>(&[]);
        let names: Vec<_> =
            fs::read_dir(&mount.path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [".turnfs", "by-date", "recent"]);
        let status = fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
        assert!(status.contains("kimi-cli"), "{status}");
    }
    assert!(!store.root.exists(), "a store was made");

    let store = TestStore::from_sample("a-plain");
    fs::write(store.root.join("kimi.json"), "{\"work_dirs\": [").unwrap();
    let before = store.snapshot();
    let mount = store.mount::<&str>(&[]);
    let status = fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
    assert!(status.contains("kimi.json"), "{status}");
    assert_eq!(fs::read_dir(mount.path.join(".turnfs/unplaced")).unwrap().count(), 1);
    assert_eq!(store.run(&["check", "--all"]).code, 1);
    assert!(store.snapshot() == before);
    drop(mount);

    let store = TestStore::empty();
    fs::write(&store.root, "not a directory").unwrap();
    let ran = store.run(&["ls", "--all"]);
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    assert!(ran.code == 1 && ran.stderr.contains(".kimi"), "{} {}", ran.code, ran.stderr);
}
