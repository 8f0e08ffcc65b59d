//! Changes are pushed: they are seen within moments, whatever else goes on, also after events were lost.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::kinds;
use super::store::{Case, SOON, setting, soon};
use crate::support::{copy_tree, signal};

/// Programs that read the whole mount again and again. Ended when dropped.
struct Crawlers(Vec<Child>);

impl Crawlers {
    fn start(mount: &Path) -> Crawlers {
        let loops = ["find . -type f", "grep -r turn .", "rg --hidden --no-ignore turn", "ls -lR"];
        let start = |command: &&str| {
            let script = format!("while :; do {command}; done");
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(script).current_dir(mount);
            shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            std::os::unix::process::CommandExt::process_group(&mut shell, 0);
            shell.spawn().unwrap()
        };
        Crawlers(loops.iter().map(start).collect())
    }
}

impl Drop for Crawlers {
    fn drop(&mut self) {
        for shell in &mut self.0 {
            let group = rustix::process::Pid::from_child(shell);
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
            let _ = shell.wait();
        }
    }
}

#[test]
fn every_change_is_seen_and_most_within_two_seconds_while_others_crawl_the_tree() {
    let case = Case::at(None);
    let crawlers = Crawlers::start(&case.mount.path);
    let end = std::time::Instant::now() + Duration::from_secs(setting("TURNFS_TEST_CRAWL_SECONDS", 10));
    let (mut round, mut times) = (0, Vec::new());
    while round == 0 || std::time::Instant::now() < end {
        times.extend(kinds::ALL.map(|(_, once)| once(&case, round)));
        round += 1;
    }
    drop(crawlers);
    times.sort();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{round} rounds of all kinds of change among crawlers: {median:?} usually, {longest:?} at most");
    assert!(median < Duration::from_secs(2), "{median:?}");
}

#[test]
fn what_was_told_is_taken_back_also_where_nobody_asked_for_a_while() {
    let case = Case::with_short_window(None);
    let known = |name: &str| fs::metadata(case.dir.join(name)).unwrap();
    let (turn, dir) = (known("turns/003"), known("turns"));
    // Longer than any answer is on its way and than notices are given again, and than stamps are too young to be
    // believed.
    std::thread::sleep(Duration::from_millis(1200));
    case.append_turn("later");
    soon("the directory's time", || known("turns").mtime_nsec() != dir.mtime_nsec());
    soon("the new turn", || case.dir.join("turns/004").exists());
    assert_eq!(known("turns/003").len(), turn.len());
}

#[test]
fn an_undo_is_seen_by_everybody_as_soon_as_the_write_returns() {
    let case = Case::at(None);
    for _ in 0..setting("TURNFS_TEST_UNDOS", 20) {
        assert!(case.dir.join("turns/003").exists() && case.dir.join("turns/002").exists());
        assert!(!case.dir.join("turns/004").exists());
        fs::write(case.dir.join("undo"), "2\n").unwrap();
        assert!(!case.dir.join("turns/003").exists() && !case.dir.join("turns/002").exists());
        assert!(case.dir.join("turns/001").exists());
        fs::write(case.dir.join("redo"), "last\n").unwrap();
    }
    let project = case.dir.parent().unwrap();
    let before = fs::read_link(project.join("latest")).unwrap();
    fs::write(case.dir.join("fork"), "1\n").unwrap();
    let id = fs::read_to_string(case.dir.join("fork")).unwrap();
    assert!(project.join(id.trim()).join("turns/001").exists());
    assert_ne!(fs::read_link(project.join("latest")).unwrap(), before);
}

#[test]
fn answers_are_right_after_events_were_lost() {
    let case = Case::at(None);
    assert!(case.dir.join("turns/003").exists());
    assert!(!case.dir.join("turns/004").exists());
    soon("watches", || {
        fs::read_to_string(case.mount.path.join(".turnfs/status")).unwrap().contains("watch: kimi-cli pushed")
    });
    signal(case.mount.pid(), Signal::STOP);
    // More than the kernel keeps: fs.inotify.max_queued_events, usually 16,384.
    let files = setting("TURNFS_TEST_LOST_EVENTS", 20_000);
    for n in 0..files {
        File::create(case.root.join("sessions").join(format!(".{n}"))).unwrap();
    }
    case.append_turn("in the dark");
    let id = "11111111-2222-3333-4444-555555555555";
    copy_tree(&case.session(), &case.session().with_file_name(id));
    signal(case.mount.pid(), Signal::CONT);
    let seen = || {
        case.dir.join("turns/004").exists() && case.dir.parent().unwrap().join(id).join("turns/004").exists()
    };
    let limit = std::time::Instant::now() + SOON;
    while !seen() {
        assert!(std::time::Instant::now() < limit, "not seen after events were lost");
        std::thread::sleep(Duration::from_millis(5));
    }
    // And what comes later is pushed again.
    soon("watches again", || {
        fs::read_to_string(case.mount.path.join(".turnfs/status")).unwrap().contains("watch: kimi-cli pushed")
    });
    assert!(!case.dir.join("turns/005").exists());
    case.append_turn("in the light");
    soon("a turn after the loss", || case.dir.join("turns/005").exists());
}
