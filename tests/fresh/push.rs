//! Changes are pushed: they are seen within moments, whatever else goes on, also after events were lost.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

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

fn turns(case: &Case) -> u64 {
    fs::read_dir(case.dir.join("turns")).map_or(0, |all| all.count() as u64)
}

/// Each kind of change once; what the kernel remembers of it must go.
fn every_kind_of_change_once(case: &Case, round: u64) {
    let dir = &case.dir;
    let original = fs::read(case.wire()).unwrap();
    let project = dir.parent().unwrap();

    // An append: the new turn was looked for before, so that its absence is remembered.
    let new = dir.join("turns/004");
    assert!(!new.exists());
    let mtime = fs::metadata(dir).unwrap().mtime_nsec();
    case.append_turn(&format!("round {round}"));
    soon("an appended turn", || new.exists());
    soon("a session's time", || fs::metadata(dir).unwrap().mtime_nsec() != mtime);

    let last = fs::metadata(&new).unwrap().len();
    case.append_turn("one more");
    soon("a second turn", || dir.join("turns/005").exists());
    assert_eq!(fs::metadata(&new).unwrap().len(), last);

    // A truncation.
    File::options().write(true).open(case.wire()).unwrap().set_len(original.len() as u64).unwrap();
    soon("a truncation", || !new.exists() && !dir.join("turns/005").exists());

    // A replacement with a longer prompt: the size of a turn that everybody knows.
    let size = fs::metadata(dir.join("turns/002")).unwrap().len();
    let longer = String::from_utf8(original.clone()).unwrap().replace("turn three", "turn three and more");
    fs::write(case.session().join("wire.tmp"), longer).unwrap();
    fs::rename(case.session().join("wire.tmp"), case.wire()).unwrap();
    soon("a replacement", || fs::metadata(dir.join("turns/002")).unwrap().len() > size);
    fs::write(case.wire(), &original).unwrap();
    soon("the old bytes", || fs::metadata(dir.join("turns/002")).unwrap().len() == size);

    // A new session, and its end.
    let id = format!("11111111-2222-3333-4444-{round:012}");
    let alias = project.join(&id);
    assert!(!alias.exists());
    let sessions = fs::read_dir(project).unwrap().count();
    copy_tree(&case.session(), &case.session().with_file_name(&id));
    soon("a new session", || fs::read_dir(project).unwrap().count() == sessions + 1);
    soon("a new session's id", || alias.join("turns/000").exists());
    fs::remove_dir_all(case.session().with_file_name(&id)).unwrap();
    soon("a deleted session", || !alias.exists() && fs::read_dir(project).unwrap().count() == sessions);

    // A title.
    let titled = |title: &str| {
        fs::write(case.session().join("state.json"), format!("{{\"custom_title\": \"{title}\"}}")).unwrap();
        soon("a title", || fs::read_to_string(dir.join("meta.json")).unwrap().contains(title));
    };
    titled(&format!("title {round}"));

    // A new project, at a place that was looked for.
    let place = case.mount.path.join("home/dev/new").join(round.to_string());
    assert!(!place.exists());
    let index = fs::read_to_string(case.root.join("kimi.json")).unwrap();
    let path = format!("/home/dev/new/{round}");
    let group = {
        use md5::{Digest as _, Md5};
        let digest = Md5::digest(path.as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let entry = format!("{{\"path\": \"{path}\", \"kaos\": \"local\", \"last_session_id\": null}}");
    let with = index.replacen("\"work_dirs\": [", &format!("\"work_dirs\": [{entry}, "), 1);
    assert_ne!(with, index);
    fs::write(case.root.join("kimi.json"), with).unwrap();
    copy_tree(&case.session(), &case.root.join("sessions").join(&group).join(&id));
    soon("a new project", || place.join("latest/turns/000").exists());
    fs::write(case.root.join("kimi.json"), index).unwrap();
    fs::remove_dir_all(case.root.join("sessions").join(&group)).unwrap();
    soon("a project that is gone", || !place.exists());
    assert_eq!(turns(case), 4);
}

#[test]
fn every_change_is_seen_within_two_seconds_while_others_crawl_the_tree() {
    let case = Case::at(None);
    let crawlers = Crawlers::start(&case.mount.path);
    let end = std::time::Instant::now() + Duration::from_secs(setting("TURNFS_TEST_CRAWL_SECONDS", 10));
    let mut round = 0;
    while round == 0 || std::time::Instant::now() < end {
        every_kind_of_change_once(&case, round);
        round += 1;
    }
    println!("{round} rounds of all kinds of change among crawlers");
    drop(crawlers);
}

#[test]
fn what_was_told_is_taken_back_also_where_nobody_asked_for_a_while() {
    let case = Case::at(None);
    let known = |name: &str| fs::metadata(case.dir.join(name)).unwrap();
    let (turn, dir) = (known("turns/003"), known("turns"));
    // Longer than any answer is on its way, and than stamps are too young to be believed.
    std::thread::sleep(Duration::from_millis(2500));
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
    let limit = std::time::Instant::now() + SOON * 5;
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
