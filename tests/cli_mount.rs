//! The life of real mounts: start, readiness, refusals, signals, dead mounts, ends.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal};
use support::{Mount, TestStore, detach, is_mounted, run, signal};

/// Takes the mounts away that background daemons made, however the test ends.
struct Background(PathBuf);

impl Drop for Background {
    fn drop(&mut self) {
        detach(&self.0);
    }
}

/// The daemons of a mount point.
fn daemons(mount_point: &Path) -> Vec<u32> {
    let ours = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.next().is_some_and(|name| name.ends_with(b"turnfs"))
            && words.any(|word| word == mount_point.as_os_str().as_encoded_bytes())
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(ours).collect()
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn path_of(store: &TestStore, name: &str) -> PathBuf {
    store.home.join(name)
}

#[test]
fn mount_returns_when_the_mount_answers_and_umount_when_the_daemon_has_gone() {
    let store = TestStore::from_sample("c-compact");
    let at = path_of(&store, "turns");
    let _guard = Background(at.clone());
    let said = store.run(&["mount"]).ok();
    assert!(said.contains(&format!("mounted at {}", at.display())), "{said}");
    assert!(at.join("home/dev/projects/work/c-compact/latest/turns/000").exists());
    let mut command = store.command(&["mount"]);
    command.arg(&at);
    assert!(run(command).ok().contains("already mounted"), "twice is fine");

    let lines = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = lines.lines().find(|line| line.contains(at.to_str().unwrap())).unwrap();
    for word in [" - fuse.turnfs turnfs ", "nosuid", "nodev", "noexec"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    assert!(store.state.join("turnfs/turnfs.log").exists());
    assert_eq!(store.state.join("turnfs").metadata().unwrap().permissions().mode() & 0o777, 0o700);

    assert_eq!(store.run(&["umount", "turns"]).ok(), "");
    assert!(!at.exists(), "what was made is removed");
    eventually("no daemon", || daemons(&at).is_empty());
}

#[test]
fn a_directory_that_was_there_stays() {
    let store = TestStore::from_sample("c-compact");
    let at = path_of(&store, "there");
    fs::create_dir(&at).unwrap();
    let mount = store.mount_at(&at, &[] as &[&str]);
    mount.stop();
    assert!(at.is_dir());
}

#[test]
fn the_daemon_works_in_the_root_directory_and_keeps_nothing_of_its_starter_open() {
    let store = TestStore::from_sample("c-compact");
    let at = path_of(&store, "m");
    let _guard = Background(at.clone());
    // Descriptor 9 is a pipe of the caller: `cat` ends only when nobody has it open any more.
    let script = format!("(turnfs mount {0} 9>&1 >/dev/null) | cat; echo done", at.display());
    assert_eq!(run(store.shell("bash", &script)).ok(), "done\n");
    let pids = daemons(&at);
    let [pid] = pids.as_slice() else { panic!("one daemon, not {pids:?}") };
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    assert_eq!(fs::read_link(format!("/proc/{pid}/fd/1")).unwrap(), Path::new("/dev/null"));
    signal(*pid, Signal::TERM);
    eventually("unmounted", || !is_mounted(&at) && daemons(&at).is_empty());
}

#[test]
fn many_starts_at_once_make_one_daemon() {
    let store = TestStore::from_sample("c-compact");
    let at = path_of(&store, "m");
    let _guard = Background(at.clone());
    let script = format!("for i in 1 2 3 4 5; do turnfs mount {} & done; wait", at.display());
    let said = store.sh(&script).ok();
    assert_eq!(said.lines().filter(|line| line.starts_with("mounted at")).count(), 1, "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("already mounted")).count(), 4, "{said}");
    let lines = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains(at.to_str().unwrap())).count(), 1);
    // Those that had nothing to do say so and end.
    eventually("one daemon", || daemons(&at).len() == 1);
    store.run(&["umount", "m"]).ok();
}

#[test]
fn unfit_mount_points_are_refused_and_left_as_they_were() {
    let store = TestStore::from_sample("c-compact");
    fs::create_dir(path_of(&store, "full")).unwrap();
    fs::write(path_of(&store, "full/file"), "x").unwrap();
    let before = store.snapshot();
    let table = [
        ("full", "is not empty"),
        ("full/file", "is not a directory"),
        (".kimi", "lies inside the store"),
        (".kimi/new", "lies inside the store"),
        (".", "would be hidden"),
        ("no/such", "does not exist"),
        ("/proc", "another file system (proc)"),
    ];
    for (place, sentence) in table {
        for foreground in [false, true] {
            let options: &[&str] = if foreground { &["mount", "-f"] } else { &["mount"] };
            let mut command = store.command(options);
            command.arg(place);
            let said = run(command).refused();
            assert!(said.contains(sentence), "{place}: {said}");
        }
    }
    assert_eq!(store.snapshot(), before);
    let mount = store.mount(&[] as &[&str]);
    let inside = mount.path.join("home");
    let said = store.run(&[Path::new("mount"), &inside]).refused();
    assert!(said.contains("inside the turnfs mount"), "{said}");
}

#[test]
fn a_dead_mount_is_cleared_by_the_next_start_and_by_umount() {
    let store = TestStore::from_sample("c-compact");
    let at = store.mount_at(&path_of(&store, "m"), &[] as &[&str]).kill();
    let _guard = Background(at.clone());
    assert!(is_mounted(&at) && fs::metadata(&at).is_err(), "the mount is dead");
    let report = store.run(&["doctor"]).stdout;
    assert!(report.contains("dead mount") && report.contains("turnfs umount"), "{report}");

    let mount = store.mount_at(&at, &[] as &[&str]);
    assert!(at.join("home").exists());
    mount.kill();
    store.run(&["umount", "m"]).ok();
    assert!(!is_mounted(&at));
    assert!(store.run(&["umount", "m"]).refused().contains("is not mounted"));
}

/// A thread of the daemon that waited for an answer of its own mount kept the killed process, and so the mount,
/// alive for ever.
#[test]
fn a_daemon_that_is_killed_while_it_starts_ends_and_leaves_a_dead_mount() {
    let store = TestStore::from_sample("c-compact");
    let at = path_of(&store, "m");
    fs::create_dir(&at).unwrap();
    let mut met_the_mount = 0;
    for microseconds in (0..40).map(|step| step * 50) {
        let mut command = store.command(&["mount", "-f"]);
        command.arg(&at).stdout(Stdio::null()).stderr(Stdio::null());
        let mut daemon = command.spawn().unwrap();
        let _guard = Background(at.clone());
        eventually("mounted", || is_mounted(&at));
        std::thread::sleep(Duration::from_micros(microseconds));
        daemon.kill().unwrap();
        let ended = support::wait(&mut daemon, Duration::from_secs(60));
        assert!(ended.is_some(), "killed {microseconds} us after it had mounted, and it does not end");
        met_the_mount += u32::from(is_mounted(&at));
        let asked = run({
            let mut stat = Command::new("stat");
            stat.arg(&at);
            stat
        });
        assert!(!is_mounted(&at) || asked.code != 0, "{}", asked.stdout);
    }
    assert!(met_the_mount > 0, "none of 40 was killed with a mount");
}

#[test]
fn umount_leaves_other_file_systems_alone() {
    let store = TestStore::empty();
    assert!(store.run(&["umount", "/proc"]).refused().contains("is a proc mount, not turnfs"));
    assert!(store.run(&["umount", "."]).refused().contains("is not mounted"));
    assert!(Path::new("/proc/self").exists());
}

#[test]
fn signals_that_ask_to_stop_unmount_and_others_do_not_kill() {
    let store = TestStore::from_sample("c-compact");
    let harmless = [
        Signal::IO,
        Signal::PIPE,
        // The terminal was closed, but there is none.
        Signal::HUP,
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::VTALARM,
        Signal::PROF,
        Signal::XFSZ,
        Signal::POWER,
    ];
    for stop in [Signal::TERM, Signal::INT, Signal::QUIT, Signal::XCPU] {
        let mut command = store.program("setsid");
        let at = store.dir.path().canonicalize().unwrap().join("m");
        command.args([env!("CARGO_BIN_EXE_turnfs"), "mount", "-f"]).arg(&at).stderr(Stdio::piped());
        let mount = Mount::start(command, &at);
        for harmless in harmless {
            signal(mount.pid(), harmless);
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(mount.path.join("home").exists());
        signal(mount.pid(), stop);
        let path = mount.path.clone();
        eventually("unmounted", || !is_mounted(&path));
        let (status, log) = mount.stop();
        assert_eq!(status.code(), Some(0), "{log}");
    }
}

#[test]
fn a_daemon_that_has_run_out_of_descriptors_answers_with_an_error_and_still_unmounts() {
    let store = TestStore::from_sample("c-compact");
    let mount = store.mount(&[] as &[&str]);
    let at = mount.path.clone();
    let turn = mount.session(&store, None).join("turns/000");
    assert!(std::fs::read_to_string(&turn).unwrap().contains("turn one"));
    // Nothing is left from here on: whatever it has open now is all it will ever have.
    let pid = rustix::process::Pid::from_raw(mount.pid() as i32);
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: Some(1), maximum };
    rustix::process::prlimit(pid, Resource::Nofile, limit).unwrap();
    let session = turn.parent().unwrap().parent().unwrap();
    let refused = std::fs::read(session.join("raw/wire.jsonl")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EMFILE));
    assert!(std::fs::read_dir(&mount.path).unwrap().count() > 0, "it still answers");
    // Those up to the last one that it keeps for its end may be used again: when it gives them back, they are free.
    let spare = std::fs::read_dir(format!("/proc/{}/fd", mount.pid())).unwrap().map(Result::unwrap);
    let spare = spare.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == Path::new("/dev/null")));
    let spare = spare.map(|fd| fd.file_name().to_str().unwrap().parse::<u64>().unwrap());
    let most = 1 + spare.max().unwrap();
    let limit = Rlimit { current: Some(most), maximum };
    rustix::process::prlimit(pid, Resource::Nofile, limit).unwrap();
    let (status, log) = mount.stop();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!is_mounted(&at) && !log.contains("EMFILE"), "{log}");
}

#[test]
fn a_file_that_is_held_open_delays_the_end_but_does_not_prevent_it() {
    let store = TestStore::from_sample("c-compact");
    let mount = store.mount(&[] as &[&str]);
    let held = fs::File::open(mount.path.join(".turnfs/version")).unwrap();
    let start = Instant::now();
    let (status, log) = mount.stop();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(start.elapsed() > Duration::from_secs(1), "the reader was given time");
    drop(held);
}

#[test]
fn umount_of_a_mount_in_use_detaches_it_and_says_so() {
    let store = TestStore::from_sample("c-compact");
    let mount = store.mount(&[] as &[&str]);
    let held = fs::File::open(mount.path.join(".turnfs/version")).unwrap();
    let path = mount.path.clone();
    let umount = std::thread::spawn({
        let mut command = store.command(&["umount"]);
        command.arg(&path);
        move || run(command)
    });
    eventually("out of the tree", || !is_mounted(&path));
    drop(held);
    let ran = umount.join().unwrap();
    assert!(ran.stderr.contains("was still using the mount"), "{ran:?}");
    assert_eq!(ran.code, 0);
    assert_eq!(mount.stop().0.code(), Some(0));
}

#[test]
fn umount_of_a_mount_that_does_not_answer_frees_whoever_waits_for_it() {
    let store = TestStore::from_sample("c-compact");
    let mount = store.mount(&[] as &[&str]);
    signal(mount.pid(), Signal::STOP);
    let mut reader = store.program("ls");
    reader.arg(mount.path.join("no-such-project")).stderr(Stdio::null());
    let mut reader = reader.spawn().unwrap();
    let asks = format!("/proc/{}/wchan", reader.id());
    eventually("the reader waits", || fs::read_to_string(&asks).unwrap_or_default().contains("wait_answer"));
    let mut umount = store.command(&["umount"]);
    umount.arg(&mount.path);
    let mut umount = umount.spawn().unwrap();
    let ended = support::wait(&mut reader, Duration::from_secs(30));
    assert!(ended.is_some_and(|status| !status.success()), "the reader still waits");
    signal(mount.pid(), Signal::CONT);
    assert!(support::wait(&mut umount, Duration::from_secs(30)).is_some_and(|status| status.success()));
    assert!(!is_mounted(&mount.path));
}

#[test]
fn whoever_mounts_at_our_place_after_us_is_left_alone() {
    if !rustix::process::geteuid().is_root() {
        support::skipped::skipped("only root can mount another file system");
        return;
    }
    let store = TestStore::from_sample("c-compact");
    let at = path_of(&store, "m");
    fs::create_dir(&at).unwrap();
    let mount = store.mount_at(&at, &[] as &[&str]);
    let held = fs::File::open(at.join(".turnfs/version")).unwrap();
    let status = |program: &str, args: &[&str]| Command::new(program).args(args).arg(&at).status().unwrap();
    assert!(status("umount", &["-l"]).success());
    assert!(status("mount", &["-t", "tmpfs", "tmpfs"]).success());
    let _guard = Background(at.clone());
    fs::write(at.join("theirs"), "x").unwrap();
    drop(held);
    let mount = std::mem::ManuallyDrop::new(mount);
    let pid = mount.pid();
    eventually("the daemon has ended", || {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    });
    assert!(at.join("theirs").exists());
    assert!(store.run(&["umount", "m"]).refused().contains("tmpfs"));
    assert!(at.join("theirs").exists());
    assert!(store.run(&["mount", "m"]).refused().contains("another file system (tmpfs)"));
}

#[test]
fn systemd_is_told_when_the_mount_is_ready_and_when_it_ends() {
    let store = TestStore::from_sample("c-compact");
    let socket = store.dir.path().join("notify");
    let listener = UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let at = path_of(&store, "m");
    let mut command = store.command(&["mount", "-f"]);
    command.arg(&at).env("NOTIFY_SOCKET", &socket).stderr(Stdio::piped());
    let mount = Mount::start(command, &at);
    let told = || {
        let mut buffer = [0; 64];
        let length = listener.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    assert_eq!(told(), "READY=1");
    mount.stop();
    assert_eq!(told(), "STOPPING=1");
}

#[test]
fn sessions_go_by_paths_inside_mounts() {
    let store = TestStore::from_samples(&["c-compact", "a-plain"]);
    let mount = store.mount(&[] as &[&str]);
    let project = mount.path.join("home/dev/projects/work/c-compact");
    let id = "1473b527-dfc7-46c2-b4e0-c7ca83718181";
    let names = ["latest", "latest/", "latest/turns", "latest/turns/1", "latest/undo", id];
    for name in names {
        let shown = store.run(&[Path::new("show"), &project.join(name), Path::new("--json")]).json();
        assert_eq!(shown["id"], id, "{name}");
    }
    let one = store.run(&[Path::new("show"), &project.join("latest/turns/001")]).ok();
    assert_eq!(one, fs::read_to_string(project.join("latest/turns/001")).unwrap(), "the same text");
    for (dir, name) in
        [(project.clone(), "latest"), (project.join("latest/turns"), ".."), (project.join("latest"), ".")]
    {
        let mut command = store.command(&["show", name, "--json"]);
        command.current_dir(dir);
        assert_eq!(run(command).json()["id"], id, "{name}");
    }
    let mut here = store.command(&["ls", "--json"]);
    here.current_dir(&project);
    assert_eq!(run(here).json()[0]["id"], id);
    let said = store.run(&[Path::new("show"), &project]).refused();
    assert!(said.contains("is not a session"), "{said}");

    let one_project = store.mount(&["--project", "/home/dev/projects/work/c-compact"]);
    let shown = store.run(&[Path::new("show"), &one_project.path.join("latest"), Path::new("--json")]).json();
    assert_eq!(shown["id"], id);
}

#[test]
fn the_commands_and_the_mount_see_each_others_work_at_once() {
    let store = TestStore::from_sample("c-compact");
    let before = store.snapshot();
    let mount = store.mount(&[] as &[&str]);
    let session = mount.session(&store, None);
    let turns = || fs::read_dir(session.join("turns")).unwrap().count();
    assert_eq!(turns(), 4);
    store.run(&["undo", "83718181", "2"]).ok();
    assert_eq!(turns(), 2);
    fs::write(session.join("redo"), "last\n").unwrap();
    assert_eq!(store.run(&["ls", "--all", "--json"]).json()[0]["turns"], 4);
    assert_eq!(store.snapshot(), before);
}

#[test]
fn allow_root_needs_root_or_fuse_conf() {
    let store = TestStore::from_sample("c-compact");
    let allowed = rustix::process::geteuid().is_root()
        || fs::read_to_string("/etc/fuse.conf")
            .is_ok_and(|conf| conf.lines().any(|line| line.trim() == "user_allow_other"));
    if allowed {
        drop(store.mount(&["--allow-root"]));
        drop(store.mount(&["--allow-other"]));
    } else {
        for option in ["--allow-root", "--allow-other"] {
            assert!(store.run(&["mount", option]).refused().contains("user_allow_other"));
        }
    }
}

/// Runs the life of a mount as a user without any rights, in a mount namespace of its own, where
/// /dev/fuse has the mode that it has on every desktop.
#[test]
fn an_ordinary_user_can_do_all_of_it() {
    if !rustix::process::geteuid().is_root() {
        support::skipped::skipped("not root; but then all other tests show it");
        return;
    }
    let store = TestStore::from_sample("c-compact");
    let binary = store.dir.path().join("turnfs");
    fs::copy(env!("CARGO_BIN_EXE_turnfs"), &binary).unwrap();
    let base = store.dir.path().canonicalize().unwrap();
    fs::write(
        base.join("user.sh"),
        r#"set -eu
set -x; cd "$HOME"
turnfs mount
session=$(echo turns/home/dev/projects/work/c-compact/2*)
test "$(ls $session/turns | wc -l)" = 4
cat $session/turns/000 > /dev/null
test "$(stat -c %u $session/turns/000)" = 65534
echo 3 > $session/undo
test "$(ls $session/turns | wc -l)" = 3
echo last > $session/redo
echo 0 > $session/fork
cat $session/fork > /dev/null
turnfs fork 83718181 1 > /dev/null
turnfs umount turns
test ! -e turns
! turnfs mount --allow-other m 2> said
grep -q user_allow_other said
# A dead mount.
turnfs mount -f m 2> log &
until grep -q ready log; do sleep 0.05; done
kill -9 $!
wait || true
! stat m 2> said
grep -q 'not connected' said
turnfs mount m
ls m > /dev/null
turnfs umount m
# A store that cannot be read.
chmod 0 .kimi
! turnfs mount new 2> said
grep -q 'Permission denied' said
! turnfs ls --all 2> said
grep -q 'Permission denied' said
test ! -e new
chmod 700 .kimi
echo fine
"#,
    )
    .unwrap();
    let script = r#"set -eu
mkdir "$BASE/dev"
mount -t tmpfs tmpfs "$BASE/dev"
mknod -m 666 "$BASE/dev/fuse" c 10 229
mount --bind "$BASE/dev/fuse" /dev/fuse
chmod 755 "$BASE" "$BASE/turnfs"
chown -R 65534:65534 "$HOME" "$XDG_STATE_HOME"
PATH=$BASE:$PATH exec setpriv --reuid 65534 --regid 65534 --clear-groups sh "$BASE/user.sh""#;
    let mut as_user = store.program("unshare");
    as_user.args(["--mount", "--propagation", "private", "sh", "-c", script]).env("BASE", &base);
    let ran = run(as_user);
    assert_eq!((ran.stdout.lines().last(), ran.code), (Some("fine"), 0), "{ran:?}");
}
