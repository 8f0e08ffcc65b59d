//! What is around a mount: the mount that is there already, other users' directories, git, the clock, a terminal.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

use support::skipped::skipped;
use support::{Mount, TestStore, run};

const PROJECT: &str = "home/dev/projects/work/a-plain";

/// A mount point beside the test's HOME, which does not exist.
fn beside(store: &TestStore, name: &str) -> PathBuf {
    store.home.parent().unwrap().join(name)
}

#[test]
fn a_mount_that_is_there_with_other_options_is_refused_and_named() {
    let store = TestStore::from_sample("a-plain");
    let mount = store.mount::<&str>(&[]);
    let path = mount.path.to_str().unwrap();
    for (args, said) in [
        (vec!["mount", "--read-only", path], "--read-only is off"),
        (vec!["mount", "--show-all", path], "--show-all is off"),
        (vec!["mount", "--agents", "codex", path], "it shows kimi-cli, too"),
        (vec!["mount", "--project", store.home.to_str().unwrap(), path], "it shows all projects"),
    ] {
        let refused = store.run(&args).refused();
        assert!(refused.contains(said) && refused.contains("turnfs umount"), "{args:?}: {refused}");
    }
    let mut elsewhere = store.command(&["mount", path]);
    elsewhere.env("CODEX_HOME", store.home.join("alt"));
    let refused = run(elsewhere).refused();
    assert!(refused.contains("codex is") && refused.contains("alt"), "{refused}");
    assert!(store.run(&["mount", path]).ok().contains("already mounted"), "the same options are fine");

    let mut doctor = store.command(&["doctor"]);
    doctor.env("CODEX_HOME", store.home.join("alt"));
    let said = run(doctor).stdout;
    assert!(said.contains("that mount shows other stores"), "{said}");
    assert!(!store.run(&["doctor"]).stdout.contains("other stores"));
}

/// Whether this process may give files away.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_state_directory_of_somebody_else_is_not_used_by_mount() {
    if !is_root() {
        return skipped("only root can make another user's directory");
    }
    let store = TestStore::from_sample("a-plain");
    let victim = beside(&store, "victim");
    fs::write(&victim, "precious").unwrap();
    let state = store.state.join("turnfs");
    fs::create_dir(&state).unwrap();
    symlink(&victim, state.join("turnfs.log")).unwrap();
    lchown(&state, Some(65534), Some(65534)).unwrap();
    let refused = store.run(&["mount", beside(&store, "m").to_str().unwrap()]).refused();
    assert!(refused.contains("belongs to another user"), "{refused}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn mount_writes_nothing_through_links_in_its_state_directory() {
    let store = TestStore::from_sample("a-plain");
    let mount = beside(&store, "m");
    let path = mount.to_str().unwrap();
    store.run(&["mount", path]).ok();
    let lock = fs::read_dir(store.state.join("turnfs/mounts")).unwrap();
    let lock = lock.map(|entry| entry.unwrap().path()).find(|path| path.extension() == Some("lock".as_ref()));
    let lock = lock.expect("a running mount has a lock file");
    store.run(&["umount", path]).ok();
    let victim = beside(&store, "victim");
    for planted in [lock, store.state.join("turnfs/turnfs.log")] {
        fs::write(&victim, "precious").unwrap();
        let _ = fs::remove_file(&planted);
        symlink(&victim, &planted).unwrap();
        let refused = store.run(&["mount", path]).refused();
        assert!(refused.contains("symbolic link"), "{}: {refused}", planted.display());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{}", planted.display());
        fs::remove_file(&planted).unwrap();
    }
    store.run(&["mount", path]).ok();
    store.run(&["umount", path]).ok();
}

#[test]
fn a_mount_point_that_a_killed_daemon_made_goes_with_umount() {
    let store = TestStore::from_sample("a-plain");
    let mount = store.mount::<&str>(&[]);
    let path = mount.kill();
    store.run(&["umount", path.to_str().unwrap()]).ok();
    assert!(!path.exists());
    fs::create_dir(&path).unwrap();
    let path = store.mount_at::<&str>(&path, &[]).kill();
    store.run(&["umount", path.to_str().unwrap()]).ok();
    assert!(path.exists(), "a directory that was there before stays");
}

#[test]
fn a_mount_in_a_git_work_tree_names_the_line_that_keeps_git_out() {
    let store = TestStore::from_sample("a-plain");
    let tree = store.home.join("p");
    fs::create_dir_all(tree.join(".git/info")).unwrap();
    let mount = tree.join("m");
    let path = mount.to_str().unwrap();
    let cure = format!("echo /m/ >> {}/.git/info/exclude", tree.display());
    let ran = store.run(&["mount", path]);
    assert!(ran.stderr.contains(&cure), "{}", ran.stderr);
    ran.ok();
    assert!(store.run(&["doctor"]).stdout.contains(&cure));
    store.run(&["umount", path]).ok();
    store.sh(&cure).ok();
    let ran = store.run(&["mount", path]);
    assert_eq!(ran.stderr, "");
    ran.ok();
    store.run(&["umount", path]).ok();
}

#[test]
fn a_sentence_that_stays_true_is_logged_once_and_the_log_is_bounded() {
    let store = TestStore::from_sample("a-plain");
    let id = store.run(&["ls", "--all", "--json"]).json()[0]["id"].as_str().unwrap().to_owned();
    store.run(&["undo", &id, "2"]).ok();
    store.run(&["redo", &id]).ok();
    let session = fs::read_dir(store.state.join("turnfs/sessions")).unwrap().next().unwrap().unwrap();
    fs::write(session.path().join("journal.json"), "garbage").unwrap();
    let mount = beside(&store, "m");
    let path = mount.to_str().unwrap();
    let log = store.state.join("turnfs/turnfs.log");
    store.run(&["mount", path]).ok();
    let warnings = || {
        let text = fs::read_to_string(&log).unwrap();
        text.lines().filter(|line| line.contains("WARN") && line.contains("journal")).count()
    };
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert_eq!(warnings(), 1, "{}", fs::read_to_string(&log).unwrap());
    // What fills the log is put aside while the daemon runs.
    let long = "x".repeat(2 << 20);
    let mut file = fs::File::options().append(true).open(&log).unwrap();
    std::io::Write::write_all(&mut file, long.as_bytes()).unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while fs::metadata(&log).unwrap().len() > 1 << 20 {
        assert!(std::time::Instant::now() < end, "the log is not put aside");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    store.run(&["umount", path]).ok();
    assert!(fs::read_to_string(&log).unwrap().contains("has ended"), "it goes on in the new one");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&log), mode(&log.with_extension("log.old"))), (0o600, 0o600));
}

/// Characters that a terminal obeys, as raw bytes of UTF-8.
fn obeyed(text: &str) -> Option<char> {
    let harmless = |c: char| c == '\n' || c == '\t';
    text.chars().find(|c| !harmless(*c) && (c.is_control() || ('\u{202a}'..='\u{202e}').contains(c)))
}

#[test]
fn nothing_that_a_store_holds_makes_a_terminal_do_something() {
    let store = TestStore::empty_of("openmax");
    let sessions = store.root.join("sessions");
    fs::create_dir_all(&sessions).unwrap();
    let evil = "bb\nbb\u{1b}]0;x\u{7}\u{9b}31m\u{202e}";
    let project = store.home.join("p\u{1b}[31m\u{9b}");
    fs::create_dir(&project).unwrap();
    let entry = serde_json::json!([{
        "id": evil, "project": project, "title": format!("title {evil}"), "created_at": 1, "updated_at": 1,
    }]);
    fs::write(sessions.join("index.json"), entry.to_string()).unwrap();
    let line = |role: &str| {
        serde_json::json!({"role": role, "content": format!("{role} {evil}")}).to_string() + "\n"
    };
    let text = line("system") + &line("user") + &line("assistant") + &line("user") + &line("assistant");
    fs::write(sessions.join(format!("{evil}.messages.json")), text).unwrap();
    let here = project.to_str().unwrap();
    let commands: [&[&str]; 14] = [
        &["ls", "--all"],
        &["ls", "--all", "--json"],
        &["ls", here],
        &["show", evil],
        &["show", evil, "0"],
        &["show", evil, "--json"],
        &["show", "nothing\u{1b}[31m\u{9b}like this"],
        &["undo", evil, "1", "--dry-run"],
        &["undo", evil, "9"],
        &["undo", evil, "1"],
        &["redo", evil],
        &["check", "--all"],
        &["check", here],
        &["doctor"],
    ];
    for args in commands {
        let ran = store.run(args);
        for said in [&ran.stdout, &ran.stderr] {
            assert_eq!(obeyed(said), None, "{args:?}: {said:?}");
        }
    }
    let mount: Mount = store.mount(&["--show-all"]);
    let session = mount.session(&store, Some(evil));
    for name in ["status", "meta.json", "undo", "redo", "turns/000", "context.md"] {
        let text = fs::read_to_string(session.join(name)).unwrap();
        assert_eq!(obeyed(&text), None, "{name}: {text:?}");
    }
    for name in ["status", "README.md", "metrics"] {
        let text = fs::read_to_string(mount.path.join(".turnfs").join(name)).unwrap();
        assert_eq!(obeyed(&text), None, "{name}: {text:?}");
    }
    store.sh(&format!("echo 99 > '{}/undo'", session.display().to_string().replace('\'', "'\\''")));
    let (_, log) = mount.stop();
    assert_eq!(obeyed(&log), None, "{log:?}");
}

#[test]
fn before_1970_a_cut_is_refused_with_a_sentence() {
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
    if !Path::new(library).exists() {
        return skipped("libfaketime is not installed");
    }
    let store = TestStore::of("codex", "a_plain4");
    let id = store.run(&["ls", "--all", "--json"]).json()[0]["id"].as_str().unwrap().to_owned();
    let before = store.snapshot();
    for args in [["fork", &id, "1"], ["undo", &id, "1"]] {
        let mut command = store.command(&args);
        command.env("LD_PRELOAD", library).env("FAKETIME", "1969-12-31 10:00:00");
        let refused = run(command).refused();
        assert!(refused.contains("before 1970"), "{args:?}: {refused}");
        assert!(!refused.contains("panicked"), "{args:?}: {refused}");
    }
    assert!(store.snapshot() == before, "the store is as before");
    // Far ahead everything works; what is shown is only odd.
    let mut command = store.command(&["fork", &id, "1"]);
    command.env("LD_PRELOAD", library).env("FAKETIME", "2200-01-01 10:00:00");
    run(command).ok();
}

#[test]
fn check_reads_a_session_and_says_so_when_there_is_nothing_to_read() {
    let store = TestStore::from_samples(&["a-plain", "c-compact"]);
    let nothing = store.run(&["check"]);
    assert_eq!(nothing.code, 2, "{}", nothing.stderr);
    assert!(
        nothing.stderr.contains("no sessions belong to") && nothing.stderr.contains("--all"),
        "{}",
        nothing.stderr
    );
    let one = store.run(&["check", "0c45fd13"]);
    assert!(one.stderr.contains("1 sessions read"), "{}", one.stderr);
    assert_eq!(one.code, 0);
    let project = store.run(&["check", &format!("/{PROJECT}")]);
    assert!(project.stderr.contains("1 sessions read"), "{}", project.stderr);
    let unknown = store.run(&["check", "nosuch12"]);
    assert_eq!(unknown.code, 2, "{}", unknown.stderr);
    assert!(!unknown.stderr.contains("sessions read"), "{}", unknown.stderr);
    let all = store.run(&["check", "--all"]);
    assert!(all.stderr.contains("2 sessions read"), "{}", all.stderr);
}
