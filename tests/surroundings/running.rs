//! A mount that is there already: with the options that are asked for, or with others.

use std::fs;
use std::process::Command;

use super::support::{Ran, TestStore, copy_tree, is_mounted, run, samples_of, skipped::skipped};
use super::{Background, about, eventually};

#[test]
fn mount_says_which_option_of_a_running_mount_differs_and_fails() {
    let store = TestStore::from_sample("c-compact");
    let other = store.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let other_store = format!("codex={}", other.display());
    let table: [(&[&str], &str); 6] = [
        (&["--read-only"], "it does not have --read-only"),
        (&["--show-all"], "it does not have --show-all"),
        (&["--project", "/home/dev/projects/work/c-compact"], "it shows all projects"),
        (&["--store", &other_store], "/other is asked for"),
        (&["--agents", "kimi-cli"], "of codex it shows "),
        (&["--read-only", "--show-all"], "it does not have --read-only; it does not have --show-all"),
    ];
    let at = Background::at(&store, "m");
    store.run(&["mount", "m"]).ok();
    assert!(store.run(&["mount", "m"]).ok().contains("already mounted"));
    for (options, says) in table {
        for foreground in [false, true] {
            let mut args = vec!["mount", "m"];
            args.extend(options);
            if foreground {
                args.push("-f");
            }
            let said = store.run(&args).refused();
            assert!(said.contains("already mounted") && said.contains(says), "{args:?}: {said}");
            assert!(said.contains("turnfs umount"), "what to do: {said}");
        }
    }
    assert!(is_mounted(at.path()));
    store.run(&["umount", "m"]).ok();
    // The other way round; and the same options are fine, however they are spelled.
    let (here, link) = (store.home.join("p"), store.home.join("l"));
    fs::create_dir(&here).unwrap();
    std::os::unix::fs::symlink("p", &link).unwrap();
    store.run(&["mount", "m", "--read-only", "--project", "p"]).ok();
    assert!(store.run(&["mount", "m", "--project", "l", "--read-only"]).ok().contains("already mounted"));
    let said = store.run(&["mount", "m"]).refused();
    assert!(said.contains("it has --read-only; it shows the project ") && said.contains(" only"), "{said}");
    store.run(&["umount", "m"]).ok();
}

/// A command in an environment that names another Codex store.
fn elsewhere(store: &TestStore, args: &[&str]) -> Ran {
    let mut command = store.command(args);
    command.env("CODEX_HOME", store.home.join("alt"));
    run(command)
}

#[test]
fn mount_and_doctor_say_that_a_mount_shows_other_stores_than_the_environment_names() {
    let store = TestStore::empty_of("codex");
    copy_tree(&samples_of("codex").join("a_plain4/store"), &store.home.join("alt"));
    let at = Background::at(&store, "m");
    store.run(&["mount", "m"]).ok();
    let said = elsewhere(&store, &["mount", "m"]).refused();
    assert!(said.contains("/.codex") && said.contains("/alt is asked for"), "{said}");
    let report = about(at.path(), &elsewhere(&store, &["doctor"]).stdout);
    let warning = report.lines().find(|line| line.starts_with("warn") && line.contains("/alt")).unwrap();
    assert!(warning.contains("/m does not show what this environment names"), "{report}");
    let alt = store.home.join("alt");
    let why = format!("(CODEX_HOME is not set for the daemon and {alt:?} here)");
    assert!(warning.contains(&why), "which variable: {report}");
    let mut command = store.command(&["doctor"]);
    command.env("XDG_STATE_HOME", &alt);
    let report = about(at.path(), &run(command).stdout);
    assert!(report.contains("keeps its backups in ") && report.contains("(XDG_STATE_HOME is "), "{report}");
    let report = about(at.path(), &store.run(&["doctor"]).stdout);
    assert!(!report.contains("does not show"), "{report}");
    assert!(report.contains("/m: kimi-cli "), "its stores are named: {report}");
    store.run(&["umount", "m"]).ok();
    // What was named with --store is meant so.
    let alt = format!("codex={}", store.home.join("alt").display());
    store.run(&["mount", "m", "--store", &alt]).ok();
    let report = about(at.path(), &store.run(&["doctor"]).stdout);
    assert!(!report.contains("does not show"), "{report}");
    store.run(&["umount", "m"]).ok();
}

#[test]
fn doctor_mends_what_it_can_when_it_is_asked_to() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can hide the mounts of other tests from a command");
    }
    let store = TestStore::from_sample("c-compact");
    store.sh("mkdir p && git init -q p").ok();
    let dead = store.mount(&[] as &[&str]).kill();
    let _guard = Background(dead.clone());
    let alive = store.mount_at(&store.home.join("p/m"), &[] as &[&str]);
    // In a table of mounts of its own, in which no mount of another test is left to be mended.
    let script = format!(
        "for mount in $(grep -w fuse.turnfs /proc/self/mountinfo | cut -d ' ' -f 5); do
             case $mount in {dead} | {alive}) ;; *) umount -l $mount ;; esac
         done
         turnfs doctor; echo ---; turnfs doctor --fix; echo ---; turnfs doctor; grep -cw fuse.turnfs /proc/self/mountinfo",
        dead = dead.display(),
        alive = alive.path.display()
    );
    let mut command = store.program("unshare");
    command.args(["-m", "sh", "-c", &script]);
    let said = run(command).ok();
    let [before, fixed, after] = said.split("---\n").collect::<Vec<_>>().try_into().unwrap();
    for report in [before, fixed] {
        assert!(report.contains("dead mount at ") && report.contains("lies in the git work tree"), "{said}");
    }
    assert_eq!(before.matches("-> done").count(), 0, "a look changes nothing: {said}");
    assert_eq!(fixed.matches("-> done").count(), 2, "{said}");
    assert!(!after.contains("dead mount at ") && !after.contains("lies in the git work tree"), "{said}");
    assert!(after.ends_with("\n1\n"), "the one that answers is left: {said}");
    assert_eq!(store.sh("tail -n 1 p/.git/info/exclude").ok(), "/m/\n");
}

#[test]
fn a_stopped_daemon_does_not_hold_up_mount_or_doctor() {
    let store = TestStore::from_sample("c-compact");
    let mount = store.mount(&[] as &[&str]);
    super::support::signal(mount.pid(), rustix::process::Signal::STOP);
    let start = std::time::Instant::now();
    let mut command = store.command(&["mount", "--read-only"]);
    command.arg(&mount.path);
    let said = run(command).refused();
    assert!(said.contains("does not answer"), "{said}");
    let report = about(&mount.path, &store.run(&["doctor"]).stdout);
    assert!(report.contains("does not answer"), "{report}");
    assert!(start.elapsed() < std::time::Duration::from_secs(30));
    super::support::signal(mount.pid(), rustix::process::Signal::CONT);
}

/// An overlay copies a control file and writes into the copy: `undo` would succeed and do nothing.
#[test]
fn a_mount_is_no_layer_of_an_overlay_where_the_kernel_can_refuse_that_and_doctor_says_so_elsewhere() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can mount an overlay");
    }
    let store = TestStore::from_sample("c-compact");
    let mount = store.mount(&[] as &[&str]);
    let place = |name: &str| store.dir.path().canonicalize().unwrap().join(name);
    // On a file system that can be an overlay's upper layer, whatever the temporary directory lies on.
    fs::create_dir(place("tmp")).unwrap();
    let _tmp = Background(place("tmp"));
    let mounted = |args: &[&str]| Command::new("mount").args(args).output().unwrap().status.success();
    assert!(mounted(&["-t", "tmpfs", "tmpfs", place("tmp").to_str().unwrap()]));
    for name in ["lower", "upper", "work", "o"] {
        fs::create_dir(place("tmp").join(name)).unwrap();
    }
    let over = |lower: &str| {
        let tmp = place("tmp");
        let options = format!("lowerdir={lower},upperdir={0}/upper,workdir={0}/work", tmp.display());
        mounted(&["-t", "overlay", "overlay", "-o", &options, tmp.join("o").to_str().unwrap()])
    };
    let o = Background(place("tmp").join("o"));
    if !over(place("tmp").join("lower").to_str().unwrap()) {
        return skipped("this kernel mounts no overlay");
    }
    super::support::detach(o.path());
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let can_refuse = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 9);
    if over(mount.path.to_str().unwrap()) {
        // Older, or built without FUSE_PASSTHROUGH.
        skipped("this kernel cannot refuse an overlay over a mount");
        let report = about(&mount.path, &store.run(&["doctor"]).stdout);
        assert!(report.contains("lies over the turnfs mount"), "{report}");
        super::support::detach(o.path());
    } else {
        assert!(can_refuse, "{release}");
    }
    drop(o);
    eventually("unmounted", || !is_mounted(&place("tmp").join("o")));
}
