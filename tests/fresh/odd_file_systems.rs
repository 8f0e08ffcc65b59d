//! Stores where stamps or events tell less than elsewhere: right answers all the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};

use super::passthrough;
use super::store::{Case, Edit, SOON, soon};
use crate::support::skipped::skipped;
use crate::support::{TestStore, copy_tree};

/// A mount of the test's own. Gone when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Runs a tool that makes or takes away a file system; false where that is not possible here.
fn made(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

fn edits_and_appends_are_seen(case: &Case, edits: usize) {
    let original = fs::read_to_string(case.wire()).unwrap();
    for n in 0..edits {
        let new = format!("{n:010}");
        Edit::ALL[n % Edit::ALL.len()].make(&case.wire(), &original, &new);
        let seen = fs::read_to_string(case.dir.join("turns/002")).unwrap();
        assert!(seen.contains(&new), "edit {n}");
    }
    fs::write(case.wire(), &original).unwrap();
    case.append_turn("one more");
    soon("an appended turn", || case.dir.join("turns/004").exists());
}

#[test]
fn on_an_ext4_with_whole_seconds_and_no_birth_times_no_edit_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("at"));
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    fs::create_dir(&at).unwrap();
    let (image, place) = (image.to_str().unwrap(), at.to_str().unwrap());
    if !made("mkfs.ext4", &["-V"]) {
        skipped("mkfs.ext4 is not installed");
        return;
    }
    assert!(made("mkfs.ext4", &["-q", "-F", "-I", "128", image]));
    if !made("mount", &["-o", "loop", image, place]) {
        skipped("mounting an image is not permitted here");
        return;
    }
    let _mounted = Mounted(at.clone());
    let case = Case::at(Some(&at));
    edits_and_appends_are_seen(&case, 200);
    drop(case);
}

#[test]
fn in_a_store_below_a_bind_mount_no_edit_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let (real, bound) = (dir.path().join("real"), dir.path().join("bound"));
    fs::create_dir(&real).unwrap();
    fs::create_dir(&bound).unwrap();
    if rustix::mount::mount(&real, &bound, "", MountFlags::BIND, c"").is_err() {
        skipped("a bind mount is not permitted here");
        return;
    }
    let _mounted = Mounted(bound.clone());
    let mut case = Case::at(Some(&bound));
    edits_and_appends_are_seen(&case, 100);
    // Written through the other path to the same files.
    case.root = real.join("store");
    edits_and_appends_are_seen(&case, 100);
}

#[test]
fn in_a_store_on_a_file_system_in_user_space_no_edit_is_missed() {
    let store = TestStore::from_sample("a-plain");
    let (real, passed) = (store.dir.path().join("real"), store.dir.path().join("passed"));
    fs::create_dir(&passed).unwrap();
    copy_tree(&store.root, &real.join("store"));
    let session = match passthrough::mount(&real, &passed) {
        Ok(session) => session,
        Err(error) => {
            skipped(&format!("no file system in user space here ({error})"));
            return;
        }
    };
    let option = format!("kimi-cli={}", passed.join("store").display());
    let mount = store.mount(&["--store", &option]);
    let listed = crate::support::run(store.command(&["ls", "--all", "--json", "--store", &option])).json();
    let dir = mount.path.join(listed[0]["path"].as_str().unwrap());
    let case = Case { mount, store, root: real.join("store"), dir };
    let status = fs::read_to_string(case.mount.path.join(".turnfs/status")).unwrap();
    assert!(status.contains("watch: kimi-cli looked at for each answer"), "{status}");
    edits_and_appends_are_seen(&case, 100);
    drop(case);
    session.umount_and_join().unwrap();
}

/// A process of the test's own. Ended when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn where_no_watches_are_left_directories_are_polled_and_it_says_so() {
    // The limit belongs to the user and to all its programs together, so one of a name space of its own is
    // lowered. The mount is in that name space, too, and goes with it.
    if !made("unshare", &["--user", "--map-root-user", "--mount", "true"]) {
        skipped("no user name space can be made here");
        return;
    }
    let store = TestStore::from_sample("a-plain");
    let at = store.dir.path().canonicalize().unwrap().join("mnt-polled");
    let mut command = store.program("unshare");
    let script = "echo 1 > /proc/sys/user/max_inotify_watches && exec turnfs mount -f \"$0\"";
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).arg(&at);
    let daemon = Daemon(command.stderr(Stdio::null()).spawn().unwrap());
    let within = |path: &Path| {
        let root = PathBuf::from(format!("/proc/{}/root", daemon.0.id()));
        root.join(path.strip_prefix("/").unwrap())
    };
    let status = || fs::read_to_string(within(&at).join(".turnfs/status")).unwrap_or_default();
    let limit = Instant::now() + SOON;
    while !status().contains("looked at once a second") {
        assert!(Instant::now() < limit, "no polled directory in {:?}", status());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(status().contains("max_user_watches"), "{}", status());
    let listed = store.run(&["ls", "--all", "--json"]).json();
    let dir = within(&at.join(listed[0]["path"].as_str().unwrap()));
    let wire = store.root.join("sessions/301f8022c44669fd30b93f123c419b45");
    let wire = wire.join("0c45fd13-bf97-4bf8-9665-76d7e8ac2706/wire.jsonl");
    let original = fs::read_to_string(&wire).unwrap();
    assert!(dir.join("turns/003").exists());
    fs::write(&wire, original.replace("turn three", "turn 3 and more")).unwrap();
    assert!(fs::read_to_string(dir.join("turns/002")).unwrap().contains("turn 3 and more"));
    let two: usize = original.match_indices('\n').nth(9).unwrap().0 + 1;
    fs::write(&wire, &original[..two]).unwrap();
    let gone = Instant::now() + SOON;
    while dir.join("turns/003").exists() {
        assert!(Instant::now() < gone, "a poll sees a truncation");
        std::thread::sleep(Duration::from_millis(10));
    }
}
