//! `turnfs adopt`: the explicit, copying way of a history to another path.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::record::{AGENTS, folder, listed, prompts, record};
use crate::support::{Ran, TestStore};

/// A HOME with a project that moved from `old` to `new`.
struct Moved {
    store: TestStore,
    old: PathBuf,
    new: PathBuf,
}

impl Moved {
    fn empty() -> Moved {
        let store = TestStore::empty();
        let (old, new) = (store.home.join("old"), store.home.join("new"));
        fs::create_dir(&new).unwrap();
        Moved { store, old, new }
    }

    fn record(&self, agent: &str, word: &str) -> String {
        record(&self.store, agent, self.old.to_str().unwrap(), word)
    }

    fn adopt(&self, more: &[&str]) -> Ran {
        let paths = ["adopt", self.old.to_str().unwrap(), self.new.to_str().unwrap()];
        self.store.run(&[&paths, more].concat())
    }

    fn listed_new(&self) -> Vec<String> {
        listed(&self.store, &[self.new.to_str().unwrap()])
    }

    /// Every file of every store.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        for root in [".kimi", ".codex", ".openmax"].map(|name| self.store.home.join(name)) {
            collect(&root, &mut files);
        }
        files
    }
}

fn collect(dir: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => collect(&path, files),
            false => drop(files.insert(path.clone(), fs::read(&path).unwrap())),
        }
    }
}

/// Whether a file of a store has a name that is turnfs's own.
fn is_ours(moved: &Moved, path: &Path) -> bool {
    let home = moved.store.home.as_path();
    path.strip_prefix(home).unwrap_or(path).to_string_lossy().contains("turnfs")
}

fn is_index(path: &Path) -> bool {
    ["kimi.json", "index.json", "index.lock"].iter().any(|name| path.ends_with(name))
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn every_session_is_copied_whole_and_the_source_is_not_touched() {
    let moved = Moved::empty();
    for agent in AGENTS {
        let (first, second) = (moved.record(agent, "first"), moved.record(agent, "second"));
        let before = moved.files();
        let old = listed(&moved.store, &[moved.old.to_str().unwrap(), "--agents", agent]);
        let made = sorted(&moved.adopt(&["--agents", agent]).ok());
        assert_eq!(made.len(), 2, "{agent}");
        let new = listed(&moved.store, &[moved.new.to_str().unwrap(), "--agents", agent]);
        assert_eq!(new, made, "{agent}: the ids that are printed are the ones that are there");
        assert_eq!(listed(&moved.store, &[moved.old.to_str().unwrap(), "--agents", agent]), old, "{agent}");
        let mut there: Vec<Vec<String>> = made.iter().map(|id| prompts(&moved.store, id)).collect();
        there.sort();
        assert_eq!(there, [prompts(&moved.store, &first), prompts(&moved.store, &second)], "{agent}");
        assert!(there.iter().all(|prompts| prompts.len() == 4), "{agent}");
        let after = moved.files();
        for (path, bytes) in before.iter().filter(|(path, _)| !is_index(path)) {
            assert_eq!(after.get(path), Some(bytes), "{agent}: {}", path.display());
        }
        // Nothing of the old path where the agent looks for the project, and none of turnfs's own names.
        assert!(after.keys().all(|path| !is_ours(&moved, path)), "{agent}");
    }
}

#[test]
fn each_store_says_the_new_project_in_its_own_way() {
    let moved = Moved::empty();
    let new = moved.new.to_str().unwrap();
    let ids: Vec<String> = AGENTS.iter().map(|agent| moved.record(agent, "x")).collect();
    // The client of Kimi CLI would go on with this one at the old path.
    let index = moved.store.root.join("kimi.json");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("null", &format!("\"{}\"", ids[0]))).unwrap();
    moved.adopt(&[]).ok();
    let copy = |agent: &str| listed(&moved.store, &[new, "--agents", agent]).remove(0);

    let kimi = copy("kimi-cli");
    let known: serde_json::Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    let entry = known["work_dirs"].as_array().unwrap().iter().find(|dir| dir["path"] == new).unwrap();
    assert_eq!(*entry, serde_json::json!({"path": new, "kaos": "local", "last_session_id": kimi}));
    let dir = moved.store.root.join("sessions").join(folder(new)).join(&kimi);
    let context = fs::read_to_string(dir.join("context.jsonl")).unwrap();
    let old_context =
        moved.store.root.join("sessions").join(folder(moved.old.to_str().unwrap())).join(&ids[0]);
    let old_context = fs::read_to_string(old_context.join("context.jsonl")).unwrap();
    let (first, rest) = old_context.split_once('\n').unwrap();
    assert!(first.contains("_system_prompt"));
    assert_eq!(context, rest, "the client writes a system prompt that names the new directory");

    let code = copy("kimi-code");
    let mut files = BTreeMap::new();
    collect(&moved.store.home.join(".kimi-code/sessions"), &mut files);
    let own = |end: &str| {
        let is_own = |path: &Path| path.to_string_lossy().contains(&code) && path.ends_with(end);
        let (path, text) = files.iter().find(|(path, _)| is_own(path)).unwrap();
        (path.clone(), String::from_utf8(text.clone()).unwrap())
    };
    let (path, state) = own("state.json");
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    assert_eq!((&state["cwd"], &state["forkedFrom"]), (&new.into(), &ids[1].as_str().into()));
    // The client resumes no session whose records name another workspace than its directory.
    let workspace = path.ancestors().nth(2).unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let (_, wire) = own("wire.jsonl");
    let binding = wire.lines().find(|line| line.contains("runtime.set_binding")).unwrap();
    assert!(binding.contains(&format!("\"workspaceId\":\"{workspace}\"")), "{binding}");

    let codex = copy("codex");
    let mut files = BTreeMap::new();
    collect(&moved.store.home.join(".codex/sessions"), &mut files);
    let (_, rollout) = files.iter().find(|(path, _)| path.to_string_lossy().contains(&codex)).unwrap();
    let lines: Vec<serde_json::Value> =
        rollout.split_inclusive(|b| *b == b'\n').map(|line| serde_json::from_slice(line).unwrap()).collect();
    let meta = &lines[0]["payload"];
    assert_eq!((&meta["cwd"], &meta["runtime_workspace_roots"][0]), (&new.into(), &new.into()));
    assert_eq!(meta["forked_from_id"], ids[2].as_str());
    let last = lines.iter().rfind(|line| line["type"] == "turn_context").unwrap();
    assert_eq!(last["payload"]["cwd"], new);

    let openmax = copy("openmax");
    let dir = moved.store.home.join(".openmax/sessions");
    let entries: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.join("index.json")).unwrap()).unwrap();
    assert_eq!((&entries[1]["id"], &entries[1]["project"]), (&openmax.into(), &new.into()));
    assert_eq!(entries[1]["title"], "x one");
    let manifest = entries[1]["id"].as_str().unwrap().to_owned() + ".manifest.json";
    assert!(!dir.join(manifest).exists(), "without it the client freezes its system prompt anew");
}

#[test]
fn a_second_run_copies_only_what_is_not_there_yet_and_says_so() {
    for agent in AGENTS {
        let moved = Moved::empty();
        let first = moved.record(agent, "first");
        let made = moved.adopt(&[]).ok();
        let made = made.trim();
        let again = moved.adopt(&[]);
        assert!(again.stderr.contains(&first) && again.stderr.contains(made), "{agent}: {}", again.stderr);
        assert_eq!(again.ok(), "", "{agent}");
        assert_eq!(moved.listed_new(), [made], "{agent}: copied twice");
        moved.record(agent, "second");
        assert_eq!(moved.adopt(&[]).ok().lines().count(), 1, "{agent}: the new one only");
        assert_eq!(moved.listed_new().len(), 2, "{agent}");
    }
    // A copy that its agent deleted is made again.
    let moved = Moved::empty();
    moved.record("kimi-cli", "x");
    let made = moved.adopt(&[]).ok();
    let new = moved.store.root.join("sessions").join(folder(moved.new.to_str().unwrap()));
    fs::remove_dir_all(new.join(made.trim())).unwrap();
    assert_ne!(moved.adopt(&[]).ok(), made);
    assert_eq!(moved.listed_new().len(), 1);
}

#[test]
fn the_newest_session_of_the_old_path_is_the_newest_at_the_new_one() {
    let moved = Moved::empty();
    for word in ["one", "two", "three"] {
        moved.record("openmax", word);
    }
    moved.adopt(&[]).ok();
    let rows = moved.store.run(&["ls", moved.new.to_str().unwrap(), "--json"]).json();
    let titles: Vec<&str> =
        rows.as_array().unwrap().iter().map(|row| row["title"].as_str().unwrap()).collect();
    assert_eq!(titles, ["three one", "two one", "one one"]);
}

#[test]
fn a_dry_run_tells_what_would_be_copied_and_changes_nothing() {
    let moved = Moved::empty();
    let ids: Vec<String> = AGENTS.iter().map(|agent| moved.record(agent, "word")).collect();
    let before = moved.files();
    let told = moved.adopt(&["--dry-run"]).ok();
    for (id, agent) in ids.iter().zip(AGENTS) {
        let line = told.lines().find(|line| line.starts_with(id.as_str())).unwrap();
        assert!(line.contains(agent) && line.contains("4 turns"), "{line}");
    }
    assert!(moved.files() == before);
    assert!(fs::read_dir(&moved.store.state).unwrap().next().is_none(), "a dry run leaves no state");
    assert!(moved.listed_new().is_empty());
}

#[test]
fn one_session_can_be_chosen_and_only_of_the_old_project() {
    let moved = Moved::empty();
    let (one, _two) = (moved.record("codex", "one"), moved.record("kimi-cli", "two"));
    let other = record(&moved.store, "codex", "/somewhere/else", "other");
    let refused = moved.adopt(&["--session", &other]).refused();
    assert!(refused.contains(&other), "{refused}");
    assert!(moved.listed_new().is_empty());
    let made = moved.adopt(&["--session", &one]).ok();
    assert_eq!(moved.listed_new(), [made.trim()]);
}

#[test]
fn what_is_refused_is_said_in_a_sentence_and_changes_nothing() {
    let moved = Moved::empty();
    moved.record("kimi-cli", "x");
    let before = moved.files();
    fs::write(moved.store.home.join("file"), "").unwrap();
    let run = |old: &Path, new: &Path, more: &[&str]| {
        let all = [&["adopt", old.to_str().unwrap(), new.to_str().unwrap()], more].concat();
        moved.store.run(&all)
    };
    let home = &moved.store.home;
    for (new, word) in [("file", "Not a directory"), ("nowhere", "No such file")] {
        let refused = run(&moved.old, &home.join(new), &[]).refused();
        assert!(refused.contains(word), "{refused}");
    }
    let refused = run(&home.join("nothing"), &moved.new, &[]).refused();
    assert!(refused.contains("no sessions of") && refused.contains("hint: `turnfs ls --all`"), "{refused}");
    let root = rustix::process::geteuid().is_root();
    if root {
        let theirs = home.join("theirs");
        fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(65534), None).unwrap();
        let refused = run(&moved.old, &theirs, &[]).refused();
        assert!(refused.contains("another user's"), "{refused}");
    }
    // The old path is a directory still: nothing seems to have moved.
    fs::create_dir(&moved.old).unwrap();
    let refused = moved.adopt(&[]).refused();
    assert!(refused.contains("--force"), "{refused}");
    let refused = run(&moved.old, &moved.old, &["--force"]).refused();
    assert!(refused.contains("already"), "{refused}");
    assert!(moved.files() == before);
    assert!(moved.listed_new().is_empty());
    moved.adopt(&["--force"]).ok();
    assert_eq!(moved.listed_new().len(), 1);
}

#[test]
fn a_path_that_is_linked_back_or_spelled_over_a_symlink_is_the_recorded_one() {
    let moved = Moved::empty();
    let id = moved.record("kimi-cli", "x");
    symlink("new", &moved.old).unwrap();
    let home = moved.store.home.clone();
    symlink(&home, home.join("elsewhere")).unwrap();
    let spelled = |name: &str| home.join("elsewhere").join(name).to_str().unwrap().to_owned();
    let made = moved.store.run(&["adopt", &spelled("old"), &spelled("new")]).ok();
    assert_eq!(moved.listed_new(), [made.trim()], "at the resolved path, where an agent is started");
    // From the new path back: its own sessions, not those of the old one again.
    let mount = moved.store.mount::<&str>(&[]);
    let again = moved.store.run(&[
        "adopt".into(),
        format!("{}{}", mount.path.display(), moved.old.display()),
        moved.new.display().to_string(),
    ]);
    assert!(again.stderr.contains(&id), "a path in the mount means what it shows: {}", again.stderr);
    assert_eq!(again.ok(), "");
}

#[test]
fn a_damaged_session_is_refused_and_the_others_are_copied() {
    let moved = Moved::empty();
    let (good, bad) = (moved.record("openmax", "good"), moved.record("openmax", "bad"));
    let file = moved.store.home.join(format!(".openmax/sessions/{bad}.messages.json"));
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("damage\n{text}")).unwrap();
    let ran = moved.adopt(&[]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains(&bad) && ran.stderr.contains("line 1"), "{}", ran.stderr);
    assert_eq!(moved.listed_new(), [ran.stdout.trim()]);
    assert_eq!(prompts(&moved.store, ran.stdout.trim()), prompts(&moved.store, &good));
}

#[test]
fn a_damaged_index_refuses_every_copy() {
    for (agent, index) in [("kimi-cli", ".kimi/kimi.json"), ("openmax", ".openmax/sessions/index.json")] {
        let moved = Moved::empty();
        moved.record(agent, "x");
        let path = moved.store.home.join(index);
        let good = fs::read(&path).unwrap();
        fs::write(&path, &good[..good.len() - 3]).unwrap();
        let before = moved.files();
        moved.adopt(&[]).refused();
        assert!(moved.files() == before, "{agent}");
        fs::write(&path, &good).unwrap();
        moved.adopt(&[]).ok();
        assert_eq!(moved.listed_new().len(), 1, "{agent}");
    }
}

#[test]
fn projects_below_a_moved_one_are_mentioned() {
    let moved = Moved::empty();
    moved.record("kimi-cli", "x");
    let below = moved.old.join("sub");
    record(&moved.store, "kimi-cli", below.to_str().unwrap(), "y");
    let ran = moved.adopt(&[]);
    assert!(ran.stderr.contains(below.to_str().unwrap()), "{}", ran.stderr);
    assert_eq!(ran.ok().lines().count(), 1);
}

#[cfg(feature = "faults")]
#[test]
fn a_kill_at_any_step_leaves_a_whole_copy_or_none() {
    for agent in AGENTS {
        let mut complete = 0;
        for step in 1.. {
            let moved = Moved::empty();
            moved.record(agent, "x");
            let before = moved.files();
            let (old, new) = (moved.old.to_str().unwrap(), moved.new.to_str().unwrap());
            let mut command = moved.store.command(&["adopt", old, new]);
            command.env("TURNFS_FAULT", format!("abort:{step}"));
            let done = crate::support::run(command).code == 0;
            // The next command puts everything in order.
            let copies = moved.listed_new();
            let after = moved.files();
            assert!(copies.len() <= 1, "{agent} {step}");
            if copies.is_empty() {
                let is_new = |path: &PathBuf| !before.contains_key(path) && !is_index(path);
                let left: Vec<_> = after.keys().filter(|path| is_new(path)).collect();
                assert!(left.is_empty(), "{agent} {step}: {left:?}");
                for (path, bytes) in &before {
                    assert!(after.get(path) == Some(bytes), "{agent} {step}: {}", path.display());
                }
            } else {
                assert_eq!(prompts(&moved.store, &copies[0]).len(), 4, "{agent} {step}");
                complete += 1;
            }
            // And the next run ends with exactly one.
            moved.adopt(&[]).ok();
            assert_eq!(moved.listed_new().len(), 1, "{agent} {step}");
            assert!(moved.files().keys().all(|path| !is_ours(&moved, path)), "{agent} {step}");
            if done {
                assert!(step > 8, "{agent}: only {step} steps");
                break;
            }
        }
        assert!(complete > 0, "{agent}");
    }
}
