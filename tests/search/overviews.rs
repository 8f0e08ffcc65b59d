//! `recent/`, `by-date/` and `search/` of a mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::say;
use crate::support::{self, AGENTS, Mount, TestStore, copy_tree, samples_of};

/// Every agent's store, all in one home.
fn every_agent() -> TestStore {
    let store = TestStore::from_samples(&["a-plain", "c-compact", "j-sub"]);
    for (agent, sample) in [
        ("kimi-code", "a-plain"),
        ("codex", "c_compaction"),
        ("openmax", "a_plain"),
        ("claude-code", "plain"),
    ] {
        let (_, place) = AGENTS.iter().find(|(name, _)| *name == agent).unwrap();
        copy_tree(&samples_of(agent).join(sample).join("store"), &store.home.join(place));
    }
    store
}

fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The directories or files that the links in a directory lead to.
fn targets(dir: &Path) -> Vec<PathBuf> {
    names(dir)
        .iter()
        .map(|name| {
            let link = dir.join(name);
            assert!(fs::read_link(&link).unwrap().is_relative(), "{}", link.display());
            link.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", link.display()))
        })
        .collect()
}

fn sessions(store: &TestStore) -> Vec<serde_json::Value> {
    store.run(&["ls", "--all", "--json"]).json().as_array().unwrap().clone()
}

#[test]
fn recent_has_the_newest_sessions_of_all_projects_in_order() {
    let store = every_agent();
    let mount = store.mount::<&str>(&[]);
    let expected: Vec<String> = sessions(&store)
        .iter()
        .enumerate()
        .map(|(number, session)| format!("{number:02}-{}", session["name"].as_str().unwrap()))
        .collect();
    assert!(expected.len() >= 6);
    assert_eq!(names(mount.path.join("recent")), expected);
    let paths: Vec<PathBuf> =
        sessions(&store).iter().map(|session| mount.path.join(session["path"].as_str().unwrap())).collect();
    assert_eq!(targets(&mount.path.join("recent")), paths);
    assert_eq!(targets(&mount.path.join(".turnfs/recent")), paths);
    let link = mount.path.join("recent").join(&expected[0]);
    let shown = store.run(&["show", link.to_str().unwrap()]).ok();
    assert!(shown.contains(sessions(&store)[0]["id"].as_str().unwrap()), "{shown}");
}

#[test]
fn recent_follows_the_sessions_and_has_fifty() {
    let store = many(60);
    let mount = store.mount::<&str>(&[]);
    let recent = mount.path.join("recent");
    assert_eq!(names(&recent).len(), 50);
    let (first, last) = (names(&recent)[0].clone(), names(&recent)[49].clone());
    assert!(first.starts_with("00-") && last.starts_with("49-"), "{first} {last}");
    let all = sessions(&store);
    let oldest = all.last().unwrap();
    assert_eq!(targets(&recent)[0], mount.path.join(all[0]["path"].as_str().unwrap()));
    let id = oldest["id"].as_str().unwrap();
    append_turn(&store, id);
    let expected = mount.path.join(oldest["path"].as_str().unwrap());
    eventually("the session with the newest activity comes first", || targets(&recent)[0] == expected);
}

#[test]
fn by_date_has_each_session_once_at_the_date_of_its_name() {
    let store = every_agent();
    let mount = store.mount::<&str>(&[]);
    let mut found = Vec::new();
    for year in names(mount.path.join("by-date")) {
        for month in names(mount.path.join("by-date").join(&year)) {
            for day in names(mount.path.join("by-date").join(&year).join(&month)) {
                let dir = mount.path.join("by-date").join(&year).join(&month).join(&day);
                let date = format!("{year}-{month}-{day}-");
                assert!(names(&dir).iter().all(|name| name.starts_with(&date)), "{date}: {:?}", names(&dir));
                found.extend(targets(&dir));
            }
        }
    }
    let mut expected: Vec<PathBuf> =
        sessions(&store).iter().map(|session| mount.path.join(session["path"].as_str().unwrap())).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    for odd in ["by-date/1999", "by-date/26", "by-date/2026/1", "by-date/2026/13", "by-date/x", "recent/x"] {
        assert!(!mount.path.join(odd).exists(), "{odd}");
    }
}

#[test]
fn search_lists_the_turns_that_the_command_finds() {
    let store = every_agent();
    say(&store, "R4: reply to <turn three>", "Größe \"quoted\" src/main.rs 🎉\nflaky\ntest", true);
    let mount = store.mount::<&str>(&[]);
    let search = mount.path.join("search");
    for (name, query) in [
        ("turn", "turn"),
        ("größe", "größe"),
        ("🎉", "🎉"),
        ("\"flaky test\"", "\"flaky test\""),
        ("flaky größe", "flaky größe"),
        ("src%2Fmain.rs", "src/main.rs"),
        ("Turn", "Turn"),
        ("-x", "-x"),
        ("*", "*"),
        ("no such words", "no such words"),
        (&"y".repeat(255), &"y".repeat(255)),
        (" .turnfs", ".turnfs"),
    ] {
        let ran = store.run(&["search", "--json", "--", query]);
        let hits: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let hits = hits.as_array().unwrap();
        let all = sessions(&store);
        let expected: Vec<PathBuf> = hits
            .iter()
            .map(|hit| {
                let own = hit.get("parent").unwrap_or(&hit["id"]);
                let session = all.iter().find(|session| session["id"] == *own).unwrap();
                let mut path = mount.path.join(session["path"].as_str().unwrap());
                if hit.get("parent").is_some() {
                    path = fs::read_dir(path.join("agents")).unwrap().next().unwrap().unwrap().path();
                }
                path.join(format!("turns/{:03}", hit["turn"].as_u64().unwrap()))
            })
            .collect();
        let dir = search.join(name);
        eventually(name, || targets(&dir) == expected);
        for (number, (link, hit)) in names(&dir).iter().zip(hits).enumerate() {
            assert!(link.starts_with(&format!("{number:02}-20")), "{link}");
            assert!(link.ends_with(&format!("-{:03}", hit["turn"].as_u64().unwrap())), "{link}");
            let text = fs::read_to_string(dir.join(link)).unwrap();
            let line = text.lines().nth(hit["line"].as_u64().unwrap() as usize - 1).unwrap();
            assert_eq!(line, hit["text"].as_str().unwrap());
        }
    }
    assert_eq!(names(&search), [""; 0], "nothing is listed");
    for no_query in [".git", ".x", " ", "\"\"", ".turnfs"] {
        assert!(!search.join(no_query).exists(), "{no_query}");
    }
    assert!(!search.join("turn/HEAD").exists());
    let status = fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
    assert!(status.contains("search: \"no such words\": 0 turns found, "), "{status}");
}

#[test]
fn of_a_damaged_session_search_leads_to_salvage() {
    let store = TestStore::from_sample("a-plain");
    let wire = wire_of(&store, "0c45fd13-bf97-4bf8-9665-76d7e8ac2706");
    let text = fs::read_to_string(&wire).unwrap();
    let line = text[..text.find("turn three").unwrap()].rfind('\n').unwrap() + 1;
    fs::write(&wire, format!("{}not json\n{}", &text[..line], &text[line..])).unwrap();
    let mount = store.mount::<&str>(&[]);
    let session = mount.session(&store, None);
    let dir = mount.path.join("search/reply");
    assert_eq!(targets(&dir), [session.join("salvage/001"), session.join("salvage/000")]);
    fs::write(&wire, &text).unwrap();
    let last = session.join("turns");
    eventually("the repaired session's turns are found", || {
        targets(&dir).first().is_some_and(|first| first.starts_with(&last))
    });
}

#[test]
fn a_turn_that_comes_while_the_mount_is_looked_at_is_found_and_one_that_goes_is_not_shown() {
    let store = TestStore::from_sample("a-plain");
    let mount = store.mount::<&str>(&[]);
    let session = mount.session(&store, None);
    let dir = mount.path.join("search/needle");
    assert_eq!(names(&dir), [""; 0]);
    append_turn(&store, "0c45fd13-bf97-4bf8-9665-76d7e8ac2706");
    let turns = names(session.join("turns"));
    let last = session.join("turns").join(turns.last().unwrap());
    eventually("the new turn is found", || targets(&dir) == [last.clone()]);
    let name = names(&dir)[0].clone();
    let undo = format!("echo force last > '{}'", session.join("undo").display());
    assert_eq!(store.sh(&undo).code, 0);
    assert!(!dir.join(&name).exists(), "what was undone is not shown");
    assert_eq!(names(&dir), [""; 0]);
}

#[test]
fn what_nobody_changes_is_not_searched_twice() {
    let store = every_agent();
    let mount = store.mount::<&str>(&[]);
    let dir = mount.path.join("search/turn");
    // What was written a moment ago may still be told.
    let read = || {
        let before = searched_bytes(&mount);
        names(&dir);
        searched_bytes(&mount) - before
    };
    assert!(read() > 0);
    eventually("a second look reads nothing", || read() == 0);
    assert_eq!(targets(&dir).len(), names(&dir).len());
}

fn searched_bytes(mount: &Mount) -> u64 {
    let metrics = fs::read_to_string(mount.path.join(".turnfs/metrics")).unwrap();
    let own = metrics.lines().filter(|line| line.contains("kind=\"search\""));
    own.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn a_project_of_that_path_is_shown_and_the_overview_is_still_in_turnfs() {
    for (project, overview) in
        [("/recent", "recent"), ("/search/deep/app", "search"), ("/by-date", "by-date")]
    {
        let store = TestStore::from_sample("a-plain");
        store.move_project(Path::new(project));
        let mount = store.mount::<&str>(&[]);
        let session = mount.session(&store, None);
        assert!(session.join("turns/000").exists(), "{}", session.display());
        assert!(!mount.path.join(overview).join("turn").exists());
        assert!(names(&mount.path).contains(&overview.to_owned()));
        let found = targets(&mount.path.join(".turnfs/search/one"));
        assert_eq!(found, [session.join("turns/000")]);
        assert_eq!(targets(&mount.path.join(".turnfs/recent")), [session]);
        let status = fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
        assert!(status.contains(&format!("the overview {overview}/ is in .turnfs/ only")), "{status}");
    }
}

#[test]
fn a_mount_of_one_project_has_no_overviews() {
    let store = TestStore::from_sample("a-plain");
    let mount = store.mount(&["--project", "/home/dev/projects/work/a-plain"]);
    for name in ["recent", "by-date", "search", ".turnfs/recent", ".turnfs/search"] {
        assert!(!mount.path.join(name).exists(), "{name}");
    }
}

#[test]
fn crawlers_meet_every_turn_once() {
    let store = every_agent();
    let mount = store.mount::<&str>(&[]);
    fs::read_dir(mount.path.join("search/turn")).unwrap().count();
    let found =
        support::run(store.shell("sh", &format!("find '{}' -type f -name 00[0-9]", mount.path.display())))
            .ok();
    let mut files: Vec<&str> = found.lines().collect();
    let all = files.len();
    files.sort_unstable();
    files.dedup();
    assert_eq!(files.len(), all);
    assert!(
        !found.contains("/recent/") && !found.contains("/by-date/") && !found.contains("/search/"),
        "{found}"
    );
    let to = store.dir.path().join("copy");
    let copied = support::run(store.shell(
        "sh",
        &format!("cp -a '{}' '{}' && chmod -R u+w '{}'", mount.path.display(), to.display(), to.display()),
    ));
    assert_eq!(copied.code, 0, "{}", copied.stderr);
    assert!(to.join("recent").is_dir() && !to.join("search").exists());
}

#[test]
fn many_sessions_are_searched_while_the_mount_answers() {
    let store = many(2000);
    let mount = store.mount::<&str>(&[]);
    let dir = mount.path.join("search/reply three");
    // As soon as there is something, or after a second at most.
    names(&dir);
    let began = Instant::now();
    assert!(mount.path.join(".turnfs/version").exists());
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    eventually("the newest hundred are shown", || names(&dir).len() == 100);
    let status = fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
    assert!(status.contains("only the newest turns are shown, `turnfs search` shows all"), "{status}");
    for query in ["one", "two", "three", "four", "five"] {
        names(mount.path.join("search").join(query));
    }
    let found = store.run(&["search", "--json", "reply three"]).json();
    assert_eq!(found.as_array().unwrap().len(), 2000);
}

/// So many sessions of one project, copies of one.
fn many(count: u32) -> TestStore {
    let store = TestStore::from_sample("a-plain");
    let own = wire_of(&store, "0c45fd13-bf97-4bf8-9665-76d7e8ac2706");
    let own = own.parent().unwrap();
    for number in 1..count {
        let id = format!("{number:08x}-0000-4000-8000-{number:012x}");
        copy_tree(own, &own.with_file_name(id));
    }
    store
}

fn wire_of(store: &TestStore, id: &str) -> PathBuf {
    store.root.join("sessions/301f8022c44669fd30b93f123c419b45").join(id).join("wire.jsonl")
}

/// As the client does it: a turn with `needle` in its answer.
fn append_turn(store: &TestStore, id: &str) {
    let wire = wire_of(store, id);
    let context = wire.with_file_name("context.jsonl");
    let append = |file: &Path, lines: &[&str]| {
        let mut text = fs::read_to_string(file).unwrap();
        lines.iter().for_each(|line| text += &format!("{line}\n"));
        let mut opened = fs::File::options().append(true).open(file).unwrap();
        let before = fs::metadata(file).unwrap().len() as usize;
        std::io::Write::write_all(&mut opened, &text.as_bytes()[before..]).unwrap();
    };
    let checkpoints = fs::read_to_string(&context).unwrap().matches("\"_checkpoint\"").count();
    append(
        &context,
        &[
            &format!("{{\"role\": \"_checkpoint\", \"id\": {checkpoints}}}"),
            "{\"role\": \"user\", \"content\": \"one more\"}",
            "{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"a needle\"}]}",
        ],
    );
    append(
        &wire,
        &[
            r#"{"timestamp": 1796049999.1, "message": {"type": "TurnBegin", "payload": {"user_input": "one more"}}}"#,
            r#"{"timestamp": 1796049999.2, "message": {"type": "StepBegin", "payload": {"n": 1}}}"#,
            r#"{"timestamp": 1796049999.3, "message": {"type": "ContentPart", "payload": {"type": "text", "text": "a needle"}}}"#,
            r#"{"timestamp": 1796049999.4, "message": {"type": "TurnEnd", "payload": {}}}"#,
        ],
    );
}

#[track_caller]
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
