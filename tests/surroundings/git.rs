//! A mount in a git work tree: what sessions say gets into no index, stash or commit, and searching still finds it.

use std::fs;

use super::support::{TestStore, run};
use super::{Background, about, has};

/// A repository at ~/p, and the mount in it at ~/p/m.
fn repository() -> (TestStore, Background) {
    let store = TestStore::from_sample("c-compact");
    let script = "mkdir p; cd p; git init -q -b main; git config user.email a@b; git config user.name a; \
                  echo x > f; git add f; git commit -qm1";
    store.sh(script).ok();
    let at = Background::at(&store, "p/m");
    (store, at)
}

#[test]
fn git_takes_nothing_of_a_mount_in_a_work_tree() {
    if !has("git") {
        return;
    }
    let (store, _at) = repository();
    let said = store.run(&["mount", "p/m"]);
    assert!(said.stderr.contains("lies in the git work tree"), "{}", said.stderr);
    let before = store.snapshot();
    let git = |script: &str| store.sh(&format!("cd p; {script}"));
    assert_eq!(git("git status --porcelain").ok(), "");
    git("echo more >> f; git stash -u && git stash pop").ok();
    assert_eq!(git("git add -A; git diff --cached --name-only").ok(), "f\n");
    git("git commit -qam2; git clean -fd").ok();
    assert_eq!(git("git ls-files").ok(), "f\n");
    // Told to remove even what it ignores, git can do no harm.
    git("git clean -fdx");
    assert_eq!(store.snapshot(), before);
    assert_eq!(git("ls m/home/dev/projects/work/c-compact/latest/turns | wc -l").ok(), "4\n");
    store.run(&["umount", "p/m"]).ok();
}

#[test]
fn mount_and_doctor_print_the_line_that_keeps_git_out_until_it_is_there() {
    if !has("git") {
        return;
    }
    let (store, at) = repository();
    let said = store.run(&["mount", "p/m"]).stderr;
    let (_, command) = said.trim_end().rsplit_once("altogether: ").unwrap();
    let report = store.run(&["doctor"]).stdout;
    assert!(about(at.path(), &report).contains("lies in the git work tree"), "{report}");
    assert!(report.contains(command), "{report}");
    store.run(&["umount", "p/m"]).ok();
    store.sh(command).ok();
    assert_eq!(store.sh("tail -n 1 p/.git/info/exclude").ok(), "/m/\n");
    let ran = store.run(&["mount", "p/m"]);
    assert_eq!(ran.stderr, "");
    let report = about(at.path(), &store.run(&["doctor"]).stdout);
    assert!(report.contains("mounted at") && !report.contains("work tree"), "{report}");
    store.run(&["umount", "p/m"]).ok();
}

/// In a linked work tree the line belongs into the file that all of them share; names are escaped.
#[test]
fn the_line_is_the_right_one_in_a_linked_work_tree_and_for_odd_names() {
    if !has("git") {
        return;
    }
    let (store, _at) = repository();
    store.sh("cd p; git worktree add -q ../w; mkdir '../w/a [b] '").ok();
    for place in ["w/m", "w/a [b] /it's"] {
        let at = Background::at(&store, place);
        let said = store.run(&["mount", place]).stderr;
        let (_, command) = said.trim_end().rsplit_once("altogether: ").unwrap();
        store.sh(command).ok();
        let mut ignored = store.program("git");
        ignored.args(["check-ignore", "-q"]).arg(at.path().join("x")).current_dir(store.home.join("w"));
        store.run(&["umount", place]).ok();
        assert_eq!(run(ignored).code, 0, "{command}");
    }
    assert_eq!(store.sh("tail -n 2 p/.git/info/exclude").ok(), "/m/\n/a \\[b] /it's/\n");
    // Outside of any work tree nothing is said.
    let _at = Background::at(&store, "free");
    assert_eq!(store.run(&["mount", "free"]).stderr, "");
    store.run(&["umount", "free"]).ok();
}

#[test]
fn ripgrep_searches_a_mount_in_a_work_tree_as_it_does_elsewhere() {
    if !has("git") || !has("rg") {
        return;
    }
    let (store, at) = repository();
    store.run(&["mount", "p/m"]).ok();
    let free = Background::at(&store, "free");
    store.run(&["mount", "free"]).ok();
    let files = |place: &str, options: &str| {
        let found = store.sh(&format!("cd {place}; rg --files {options} . | sort")).ok();
        found.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for options in ["", "--no-ignore", "--hidden --no-ignore"] {
        let inside = files("p/m", options);
        assert!(inside.len() > 5, "{inside:?}");
        assert_eq!(inside, files("free", options), "{options}");
    }
    let found = store.sh("cd p; rg -l 'turn two' m").ok();
    assert!(found.contains("turns/001"), "{found}");
    // The files that say so are not listed.
    let names: Vec<_> = fs::read_dir(at.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [".turnfs", "by-date", "recent", "home"]);
    assert!(fs::read_to_string(at.path().join(".gitignore")).unwrap().contains("\n*\n"));
    for at in [&at, &free] {
        let mut umount = store.command(&["umount"]);
        umount.arg(at.path());
        run(umount).ok();
    }
}
