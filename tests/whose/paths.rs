//! Which sessions a project has. Behaviours 31 to 37 of OpenMax and both findings of their section G, kept for
//! every store.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::record::{AGENTS, folder, listed, names, prompts, record, shown};
use crate::support::{Mount, TestStore};

/// A directory of the test's own, resolved.
fn base(store: &TestStore) -> std::path::PathBuf {
    let base = store.home.join("w");
    fs::create_dir(&base).unwrap();
    base
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn meta(dir: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(dir.join("meta.json")).unwrap()).unwrap()
}

/// What `grep -r` finds below a directory of the mount.
fn grep(store: &TestStore, word: &str, dir: &Path) -> bool {
    let found = store.sh(&format!("grep -rqs -e {word} '{}'", dir.display()));
    found.code == 0
}

#[test]
fn a_session_is_shown_at_the_path_as_recorded_whether_it_is_there_or_not() {
    let store = TestStore::empty();
    let project = Path::new("/no/such/place");
    let mut ids: Vec<String> = AGENTS.iter().map(|agent| record(&store, agent, text(project), "x")).collect();
    ids.sort();
    let mount = store.mount::<&str>(&[]);
    assert_eq!(names(&shown(&mount, project)).len(), AGENTS.len());
    assert_eq!(listed(&store, &[text(project)]), ids);
    assert!(names(&shown(&mount, Path::new("/no/such"))) == ["place"]);
}

/// Behaviour 35 of `docs/stores/openmax.md`.
#[test]
fn paths_are_equal_by_components() {
    for agent in AGENTS {
        let store = TestStore::empty();
        let same = ["/w/a/b", "/w/a/b/", "/w//a/b", "/w/./a/b"];
        let mut ids: Vec<String> = same.iter().map(|path| record(&store, agent, path, "x")).collect();
        ids.sort();
        let other = record(&store, agent, "/w/a-b", "y");
        assert_eq!(listed(&store, &["/w/a/b"]), ids, "{agent}");
        for spelled in ["/w/a/b/", "/w/a//b", "/w/./a/b"] {
            assert_eq!(listed(&store, &[spelled]), ids, "{agent} {spelled}");
        }
        assert_eq!(listed(&store, &["/w/a-b"]), [other], "{agent}");
        let above = store.run(&["ls", "/w/a"]).refused();
        assert!(
            above.contains("no session was recorded for it"),
            "{agent}: a directory above is no project: {above}"
        );
        let mount = store.mount::<&str>(&[]);
        assert_eq!(names(&mount.path.join("w")), ["a", "a-b"], "{agent}");
        assert_eq!(names(&mount.path.join("w/a")), ["b"], "{agent}");
        assert_eq!(names(&mount.path.join("w/a/b")).len(), 4, "{agent}");
        let rows = store.run(&["ls", "/w/a/b", "--json"]).json();
        assert!(rows.as_array().unwrap().iter().all(|row| row["project"] == "/w/a/b"), "{rows}");
    }
}

/// Behaviour 37 of `docs/stores/openmax.md`.
#[test]
fn a_directory_below_a_project_is_a_project_of_its_own() {
    for agent in AGENTS {
        let store = TestStore::empty();
        let (above, below) = (record(&store, agent, "/w/p", "x"), record(&store, agent, "/w/p/sub", "y"));
        assert_eq!(listed(&store, &["/w/p"]), [above]);
        assert_eq!(listed(&store, &["/w/p/sub"]), [below]);
        let mount = store.mount::<&str>(&[]);
        let inside = names(&mount.path.join("w/p"));
        assert!(inside.len() == 2 && inside.contains(&"sub".to_owned()), "{agent}: {inside:?}");
    }
}

/// Behaviour 33 of `docs/stores/openmax.md`.
#[test]
fn a_relative_path_is_unplaced_from_every_working_directory() {
    for agent in AGENTS {
        let store = TestStore::empty();
        for path in [".", "w/p", "", "/w/../p"] {
            record(&store, agent, path, "x");
        }
        fs::create_dir_all(store.home.join("w/p")).unwrap();
        let mount = store.mount::<&str>(&[]);
        let unplaced = mount.path.join(".turnfs/unplaced");
        assert_eq!(names(&unplaced).len(), 4, "{agent}");
        assert!(names(&mount.path).is_empty(), "{agent}");
        for name in names(&unplaced) {
            let dir = unplaced.join(name);
            assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), 4, "{agent}");
            assert!(fs::read_to_string(dir.join("status")).unwrap().contains("unplaced: "), "{agent}");
            assert!(meta(&dir)["project"].is_null());
        }
        for dir in ["", "w", "w/p"] {
            let here = store.sh(&format!("cd ~/{dir} && turnfs ls --json")).json();
            assert_eq!(here, serde_json::json!([]), "{agent} in {dir:?}");
        }
    }
}

/// Behaviour 20 of `docs/stores/openmax.md`.
#[test]
fn files_without_an_entry_and_sessions_without_a_project_are_unplaced() {
    let store = TestStore::empty();
    let kimi = record(&store, "kimi-cli", "/w/p", "x");
    fs::write(store.root.join("kimi.json"), "{\"work_dirs\": []}").unwrap();
    let codex = record(&store, "codex", "/w/p", "x");
    let day = store.home.join(".codex/sessions/2026/11/30");
    let file = fs::read_dir(&day).unwrap().next().unwrap().unwrap().path();
    let rollout = fs::read_to_string(&file).unwrap();
    fs::write(&file, rollout.replacen("\"cwd\":\"/w/p\",", "", 1)).unwrap();
    let openmax = record(&store, "openmax", "/w/p", "x");
    fs::write(store.home.join(".openmax/sessions/index.json"), "[]").unwrap();
    let mount = store.mount::<&str>(&[]);
    let unplaced = names(&mount.path.join(".turnfs/unplaced"));
    for id in [kimi, codex, openmax] {
        let end = &id[id.len() - 8..];
        assert!(unplaced.iter().any(|name| name.ends_with(end)), "{id} is not in {unplaced:?}");
        assert!(!prompts(&store, &id).is_empty());
    }
    assert_eq!(unplaced.len(), 3);
    assert!(names(&mount.path).is_empty());
}

/// Behaviour 31 of `docs/stores/openmax.md`.
#[test]
fn a_project_is_found_from_a_symlinked_working_directory() {
    for agent in AGENTS {
        let store = TestStore::empty();
        let base = base(&store);
        fs::create_dir_all(base.join("real/app")).unwrap();
        symlink("real", base.join("link")).unwrap();
        let id = record(&store, agent, text(&base.join("real/app")), "x");
        let mount = store.mount::<&str>(&[]);
        // The shell's $PWD keeps the spelling.
        let script = |dir: &str, what: &str| format!("cd '{}/{dir}' && {what}", base.display());
        let same = format!("ls \"{}$PWD\"", mount.path.display());
        let real = store.sh(&script("real/app", &same)).ok();
        assert!(real.contains(&id[id.len() - 8..]), "{agent}: {real}");
        assert_eq!(store.sh(&script("link/app", &same)).ok(), real, "{agent}");
        assert_eq!(store.sh(&script("link/app", "turnfs ls --json")).json()[0]["id"], id.as_str());
        let link = fs::read_link(shown(&mount, &base.join("link"))).unwrap();
        assert!(link.is_relative(), "{}", link.display());
        assert_eq!(names(&shown(&mount, &base)), ["real"], "a link is answered, not listed");
        for dir in ["real/app", "link/app"] {
            let one = store.mount(&["--project", text(&base.join(dir))]);
            assert_eq!(names(&one.path).len(), 1, "{agent} {dir}");
        }
    }
}

/// Behaviour 36 of `docs/stores/openmax.md`.
#[test]
fn sessions_of_both_spellings_stay_reachable_and_each_is_shown_once() {
    for agent in AGENTS {
        let store = TestStore::empty();
        let base = base(&store);
        fs::create_dir(base.join("real")).unwrap();
        symlink("real", base.join("link")).unwrap();
        let by_real = record(&store, agent, text(&base.join("real")), "x");
        let by_link = record(&store, agent, text(&base.join("link")), "y");
        let all = store.mount::<&str>(&[]);
        // Each spelling that is recorded has its own directory ...
        for (dir, id) in [("real", &by_real), ("link", &by_link)] {
            let there = names(&shown(&all, &base.join(dir)));
            assert!(there.len() == 1 && there[0].ends_with(&id[id.len() - 8..]), "{agent} {dir}: {there:?}");
        }
        // ... and who asks for the project gets what is recorded as given and as resolved, each once.
        let mut both = vec![by_real.clone(), by_link];
        both.sort();
        assert_eq!(listed(&store, &[text(&base.join("link"))]), both, "{agent}");
        assert_eq!(listed(&store, &[text(&base.join("real"))]), [by_real], "{agent}");
        let one = store.mount(&["--project", text(&base.join("link"))]);
        assert_eq!(names(&one.path).len(), 2, "{agent}");
    }
}

#[test]
fn a_project_below_a_symlink_that_is_a_recorded_path_itself_is_found_too() {
    let store = TestStore::empty();
    let base = base(&store);
    fs::create_dir_all(base.join("real/sub")).unwrap();
    symlink("real", base.join("old")).unwrap();
    record(&store, "kimi-cli", text(&base.join("old")), "x");
    record(&store, "kimi-cli", text(&base.join("real/sub")), "y");
    let mount = store.mount::<&str>(&[]);
    assert_eq!(names(&shown(&mount, &base.join("old/sub"))).len(), 1);
    assert_eq!(names(&shown(&mount, &base.join("old"))).len(), 1, "only what is recorded is listed");
}

/// A store with a project at `old` whose text holds `secret`, and another one at `other`.
fn two_projects(agent: &str) -> (TestStore, std::path::PathBuf, [String; 2]) {
    let store = TestStore::empty();
    let base = base(&store);
    fs::create_dir(base.join("old")).unwrap();
    fs::create_dir(base.join("other")).unwrap();
    let ids = [("old", "secret"), ("other", "plain")]
        .map(|(dir, word)| record(&store, agent, text(&base.join(dir)), word));
    (store, base, ids)
}

/// Behaviour 32 of `docs/stores/openmax.md`.
#[test]
fn a_retargeted_symlink_carries_no_history_into_the_other_project() {
    for agent in AGENTS {
        let (store, base, [old, other]) = two_projects(agent);
        let check = |mount: &Mount| {
            let there = shown(mount, &base.join("other"));
            assert_eq!(names(&there).len(), 1, "{agent}");
            assert!(!grep(&store, "secret", &there), "{agent}: the other project shows the old one's text");
            assert!(grep(&store, "plain", &there), "{agent}");
            let here = shown(mount, &base.join("old"));
            assert!(grep(&store, "secret", &here), "{agent}: the history is gone from its own path");
            assert!(!grep(&store, "plain", &here), "{agent}");
        };
        // While the mount looks on, and for one that is made afterwards.
        let before = store.mount::<&str>(&[]);
        check(&before);
        fs::rename(base.join("old"), base.join("gone")).unwrap();
        symlink("other", base.join("old")).unwrap();
        check(&before);
        check(&store.mount::<&str>(&[]));
        assert_eq!(listed(&store, &[text(&base.join("other"))]), [other], "{agent}");
        let one = store.mount(&["--project", text(&base.join("other"))]);
        assert!(!grep(&store, "secret", &one.path), "{agent}");
        assert!(!prompts(&store, &old).is_empty());
    }
}

#[test]
fn a_moved_project_keeps_its_history_at_the_old_path_also_when_it_is_linked_back() {
    for agent in AGENTS {
        let (store, base, [old, _]) = two_projects(agent);
        let mount = store.mount::<&str>(&[]);
        let dir = |mount: &Mount| shown(mount, &base.join("old"));
        let name = names(&dir(&mount)).remove(0);
        let state = |mount: &Mount| meta(&dir(mount).join(&name));
        fs::rename(base.join("old"), base.join("new")).unwrap();
        assert_eq!(names(&dir(&mount)), std::slice::from_ref(&name), "{agent}: moved");
        std::thread::sleep(Duration::from_millis(1100)); // an answer is good for a second
        assert_eq!(state(&mount)["project_state"], "missing", "{agent}");
        assert!(listed(&store, &[text(&base.join("new"))]).is_empty(), "{agent}: nothing moves by itself");
        symlink("new", base.join("old")).unwrap();
        assert_eq!(names(&dir(&mount)), std::slice::from_ref(&name), "{agent}: linked back");
        assert!(names(&shown(&mount, &base.join("new"))).is_empty(), "{agent}");
        std::thread::sleep(Duration::from_millis(1100));
        let meta = state(&mount);
        assert_eq!(meta["project"], text(&base.join("old")), "{agent}");
        assert_eq!(meta["project_state"], "symlink", "{agent}");
        assert_eq!(meta["project_leads_to"], text(&base.join("new")), "{agent}");
        assert_eq!(listed(&store, &[text(&base.join("old"))]), [old], "{agent}");
    }
}

#[test]
fn a_new_directory_at_an_old_path_is_told_from_the_one_of_the_session() {
    let store = TestStore::empty();
    let base = base(&store);
    let project = base.join("app");
    fs::create_dir(&project).unwrap();
    let id = record(&store, "kimi-cli", text(&project), "x");
    let mount = store.mount::<&str>(&[]);
    let dir = shown(&mount, &project).join("latest");
    let state = || {
        std::thread::sleep(Duration::from_millis(1100));
        meta(&dir)["project_state"].as_str().unwrap().to_owned()
    };
    if fs::metadata(&project).unwrap().created().is_err() {
        crate::support::skipped::skipped("this file system does not tell when a directory was made");
        return;
    }
    let session = store.root.join("sessions").join(folder(text(&project))).join(&id);
    let last_active = |time: SystemTime| {
        for name in ["wire.jsonl", "context.jsonl"] {
            fs::File::options().write(true).open(session.join(name)).unwrap().set_modified(time).unwrap();
        }
    };
    last_active(SystemTime::now() - Duration::from_secs(86_400));
    assert_eq!(state(), "replaced");
    last_active(SystemTime::now());
    assert_eq!(state(), "present", "there was activity in this directory");
    fs::remove_dir(&project).unwrap();
    assert_eq!(state(), "missing");
}

/// Behaviour 38 of `docs/stores/openmax.md`.
#[test]
fn looking_at_everything_writes_nothing_into_any_store() {
    let store = TestStore::empty();
    for agent in AGENTS {
        record(&store, agent, "/w/p", "x");
    }
    let snapshot = || {
        let stores = [".kimi", ".codex", ".openmax"].map(|name| store.home.join(name));
        let all = stores.iter().flat_map(|root| walk(root)).collect::<Vec<_>>();
        assert!(all.len() > 10);
        all
    };
    let before = snapshot();
    let mount = store.mount(&["--show-all"]);
    store
        .sh(&format!(
            "cp -r '{}/w' ~/copy && ls -lR '{}' > /dev/null",
            mount.path.display(),
            mount.path.display()
        ))
        .ok();
    store.run(&["ls", "--all"]).ok();
    store.run(&["check", "--all"]).ok();
    assert_eq!(snapshot(), before);
}

/// Every path below with its inode, times and bytes.
fn walk(root: &Path) -> Vec<(std::path::PathBuf, u64, i64, Vec<u8>)> {
    use std::os::unix::fs::MetadataExt as _;
    let mut found = Vec::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let facts = path.symlink_metadata().unwrap();
        let time = facts.mtime() * 1_000_000_000 + facts.mtime_nsec();
        let bytes = if facts.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        found.push((path.clone(), facts.ino(), time, bytes));
        if facts.is_dir() {
            found.extend(walk(&path));
        }
    }
    found.sort();
    found
}
