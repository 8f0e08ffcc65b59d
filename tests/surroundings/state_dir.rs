//! The state directory: never somebody else's, never through a link; and what daemons leave in it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use super::support::{TestStore, is_mounted, skipped::skipped};
use super::{Background, eventually};

const SAMPLE: &str = "c-compact";
const ID: &str = "1473b527-dfc7-46c2-b4e0-c7ca83718181";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs `undo` and `mount` (both ways); each must be refused with this in its sentence, and change nothing in `victim`.
#[track_caller]
fn refuses(store: &TestStore, says: &str, victim: &Path, undo_too: bool) {
    let before = (store.snapshot(), fs::read(victim).unwrap());
    let at = Background::at(store, "m");
    let mut commands: Vec<Vec<&str>> = vec![vec!["mount", "m"], vec!["mount", "-f", "m"]];
    if undo_too {
        commands.push(vec!["undo", ID, "1"]);
    }
    for args in commands {
        let said = store.run(&args).refused();
        assert!(said.contains(says) && said.contains("so turnfs does not use it"), "{args:?}: {said}");
    }
    assert!(!is_mounted(at.path()) && !at.path().exists());
    assert_eq!((store.snapshot(), fs::read(victim).unwrap()), before);
    let report = store.run(&["doctor"]);
    assert!(report.stdout.contains(says), "{}", report.stdout);
}

/// A file that must stay as it is.
fn victim(store: &TestStore) -> PathBuf {
    let victim = store.dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    victim
}

fn state(store: &TestStore) -> PathBuf {
    let state = store.state.join("turnfs");
    fs::create_dir_all(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    state
}

#[test]
fn a_state_directory_of_another_user_is_used_by_no_command() {
    if !is_root() {
        return skipped("only root can give a directory away");
    }
    let store = TestStore::from_sample(SAMPLE);
    let (state, victim) = (state(&store), victim(&store));
    symlink(&victim, state.join("turnfs.log")).unwrap();
    chown(&state, Some(65534), None).unwrap();
    refuses(&store, "belongs to another user", &victim, true);
}

#[test]
fn a_state_directory_that_others_can_write_or_that_is_a_link_is_used_by_no_command() {
    let store = TestStore::from_sample(SAMPLE);
    let (state, victim) = (state(&store), victim(&store));
    for mode in [0o770, 0o702, 0o1777] {
        fs::set_permissions(&state, fs::Permissions::from_mode(mode)).unwrap();
        refuses(&store, "can be written by other users", &victim, true);
    }
    fs::rename(&state, store.dir.path().join("real")).unwrap();
    symlink(store.dir.path().join("real"), &state).unwrap();
    refuses(&store, "is a symbolic link", &victim, true);
    fs::remove_file(&state).unwrap();
    fs::write(&state, "").unwrap();
    refuses(&store, "is not a directory", &victim, true);
}

#[test]
fn one_that_others_can_only_read_is_closed_to_them() {
    let store = TestStore::from_sample(SAMPLE);
    let state = state(&store);
    fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).unwrap();
    store.mount(&[] as &[&str]).stop();
    assert_eq!(state.metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

/// What is planted where, and whether `undo` meets it, too.
#[test]
fn nothing_is_written_through_what_was_planted_in_the_state_directory() {
    let lock = |store: &TestStore| {
        let at = Background::at(store, "m");
        store.run(&["mount", "m"]).ok();
        let name = fs::read_dir(store.state.join("turnfs/mounts")).unwrap().flatten();
        let name = name.map(|entry| entry.path()).find(|path| path.extension().unwrap() == "lock").unwrap();
        store.run(&["umount", "m"]).ok();
        drop(at);
        name
    };
    for place in ["log", "lock", "mounts", "sessions"] {
        for link in ["symbolic", "hard"] {
            let store = TestStore::from_sample(SAMPLE);
            let victim = victim(&store);
            let path = match place {
                "log" => state(&store).join("turnfs.log"),
                "lock" => lock(&store),
                _ => state(&store).join(place),
            };
            let is_dir = place == "mounts" || place == "sessions";
            let says = match (is_dir, link) {
                (true, "hard") => continue,
                (true, _) => {
                    let elsewhere = store.dir.path().join("elsewhere");
                    fs::create_dir(&elsewhere).unwrap();
                    symlink(&elsewhere, &path).unwrap();
                    "is a symbolic link"
                }
                (false, "hard") => {
                    fs::hard_link(&victim, &path).unwrap();
                    "has a second name (hard link)"
                }
                (false, _) => {
                    symlink(&victim, &path).unwrap();
                    "is a symbolic link"
                }
            };
            let before = fs::read(&victim).unwrap();
            let at = Background::at(&store, "m");
            let args: &[&str] = if place == "sessions" { &["undo", ID, "1"] } else { &["mount", "m"] };
            let said = store.run(args).refused();
            assert!(said.contains(says), "{place}, {link}: {said}");
            assert_eq!(fs::read(&victim).unwrap(), before, "{place}, {link}");
            assert!(!is_mounted(at.path()));
        }
    }
}

#[test]
fn a_lock_or_log_of_another_user_is_not_used() {
    if !is_root() {
        return skipped("only root can give a file away");
    }
    for name in ["turnfs.log", "mounts"] {
        let store = TestStore::from_sample(SAMPLE);
        let path = state(&store).join(name);
        match name {
            "mounts" => fs::create_dir(&path).unwrap(),
            _ => fs::write(&path, "").unwrap(),
        }
        chown(&path, Some(65534), None).unwrap();
        let said = store.run(&["mount", "m"]).refused();
        assert!(said.contains("belongs to another user"), "{name}: {said}");
    }
}

#[test]
fn a_log_that_others_can_write_is_not_used() {
    let store = TestStore::from_sample(SAMPLE);
    let log = state(&store).join("turnfs.log");
    fs::write(&log, "").unwrap();
    fs::set_permissions(&log, fs::Permissions::from_mode(0o622)).unwrap();
    let said = store.run(&["mount", "m"]).refused();
    assert!(said.contains("can be written by other users") && said.contains("chmod go-w"), "{said}");
}

/// The log of a daemon in the background.
fn log(store: &TestStore) -> String {
    fs::read_to_string(store.state.join("turnfs/turnfs.log")).unwrap()
}

#[test]
fn a_sentence_about_what_stays_as_it_is_is_logged_once_until_it_changes() {
    let store = TestStore::from_sample(SAMPLE);
    store.run(&["undo", ID, "3"]).ok();
    let folder = fs::read_dir(store.state.join("turnfs/sessions")).unwrap().next().unwrap().unwrap().path();
    fs::write(folder.join("journal.bad-1"), "garbage").unwrap();
    let at = Background::at(&store, "m");
    store.run(&["mount", "m"]).ok();
    // Three looks, two seconds apart.
    std::thread::sleep(std::time::Duration::from_millis(5_000));
    assert_eq!(log(&store).matches("journal.bad-1").count(), 1, "{}", log(&store));
    fs::rename(folder.join("journal.bad-1"), folder.join("journal.bad-2")).unwrap();
    eventually("what is new is said", || log(&store).contains("journal.bad-2"));
    // A state directory that cannot be used is said once, too.
    fs::set_permissions(store.state.join("turnfs"), fs::Permissions::from_mode(0o722)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(5_000));
    assert_eq!(log(&store).matches("can be written by other users").count(), 1, "{}", log(&store));
    fs::set_permissions(store.state.join("turnfs"), fs::Permissions::from_mode(0o700)).unwrap();
    store.run(&["umount", "m"]).ok();
    drop(at);
}

#[test]
fn a_log_that_has_grown_large_is_put_aside_while_the_daemons_run() {
    let store = TestStore::from_sample(SAMPLE);
    let both = [Background::at(&store, "m"), Background::at(&store, "n")];
    for at in &both {
        store.run(&[Path::new("mount"), at.path()]).ok();
    }
    let (log, old) = (store.state.join("turnfs/turnfs.log"), store.state.join("turnfs/turnfs.log.old"));
    fs::File::options().append(true).open(&log).unwrap().set_len(2 << 20).unwrap();
    // Each command of a control file is logged.
    let command = |at: &Background| {
        let undo = at.path().join("home/dev/projects/work/c-compact/latest/undo");
        let _ = fs::write(undo, "99\n");
    };
    command(&both[0]);
    assert_eq!(old.metadata().unwrap().len(), 2 << 20, "put aside");
    command(&both[1]);
    let text = fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches("turn 99 does not exist").count(), 2, "both write to the new one: {text}");
    assert_eq!(log.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // The one that was put aside is put aside again, not added to.
    fs::File::options().append(true).open(&log).unwrap().set_len(3 << 20).unwrap();
    command(&both[1]);
    assert_eq!(old.metadata().unwrap().len(), 3 << 20);
    // Whatever stands in the place of the new one is not written through.
    let victim = victim(&store);
    fs::remove_file(&log).unwrap();
    symlink(&victim, &log).unwrap();
    command(&both[0]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    fs::remove_file(&log).unwrap();
    for at in &both {
        store.run(&[Path::new("umount"), at.path()]).ok();
    }
    let text = fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches("has ended").count(), 2, "it goes on in the new one: {text}");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&log), mode(&old)), (0o600, 0o600));
}

#[test]
fn a_mount_point_that_turnfs_made_is_removed_after_a_crash_too() {
    let store = TestStore::from_sample(SAMPLE);
    let at = Background::at(&store, "m");
    let notes = || {
        let names = fs::read_dir(store.state.join("turnfs/mounts")).unwrap().flatten();
        names.filter(|entry| entry.path().extension().is_some_and(|end| end == "made")).count()
    };
    // By `umount` of the dead mount.
    at.mount(&store);
    assert_eq!(notes(), 1);
    at.kill();
    store.run(&["umount", "m"]).ok();
    assert!(!at.path().exists() && notes() == 0);
    // By `umount` after somebody else took the dead mount away.
    at.mount(&store);
    at.kill();
    super::support::detach(at.path());
    assert!(at.path().exists());
    store.run(&["umount", "m"]).ok();
    assert!(!at.path().exists());
    // By the end of the next daemon there.
    at.mount(&store);
    at.kill();
    at.mount(&store);
    store.run(&["umount", "m"]).ok();
    assert!(!at.path().exists() && notes() == 0);
    // Not if it was made anew, or has something in it, or was there.
    at.mount(&store);
    at.kill();
    super::support::detach(at.path());
    fs::rename(at.path(), store.home.join("kept")).unwrap();
    fs::create_dir(at.path()).unwrap();
    assert!(store.run(&["umount", "m"]).refused().contains("is not mounted"));
    at.mount(&store);
    at.kill();
    store.run(&["umount", "m"]).ok();
    assert!(at.path().exists() && notes() == 0);
}
