//! What a user may call a session.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::support::{Ran, TestStore, run, signal};
use super::{APP, NEWER, OLDER, ids, two_threads};

/// The id that `turnfs show ARGUMENT` shows, told in another time zone.
fn shown(store: &TestStore, argument: impl AsRef<std::ffi::OsStr>, zone: &str) -> Ran {
    let mut command = store.command(&["show", "--json"]);
    command.arg(argument.as_ref()).env("TZ", zone);
    run(command)
}

#[test]
fn a_name_that_a_mount_shows_is_understood_in_every_time_zone() {
    let store = TestStore::of("codex", "a_plain4");
    let mount = store.mount(&[] as &[&str]);
    let session = mount.session(&store, None);
    let name = session.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name.starts_with("2026-11-30-"), "{name}");
    for zone in ["UTC", "Pacific/Kiritimati", "XXX12", "America/Los_Angeles"] {
        assert_eq!(shown(&store, &session, zone).json()["id"], OLDER, "{zone}");
        assert_eq!(shown(&store, session.join("turns/001"), zone).json()["turns"][0]["n"], 1, "{zone}");
        assert_eq!(shown(&store, &name, zone).json()["id"], OLDER, "{zone}");
        assert_eq!(shown(&store, mount.path.join(APP).join("latest"), zone).json()["id"], OLDER, "{zone}");
        let mut undo = store.command(&["undo", "--dry-run", &name, "3"]);
        undo.env("TZ", zone);
        assert!(run(undo).ok().contains("keeps 3 turns"), "{zone}");
        // And the other way round: the name that the command shows, at a mount of this zone.
        let mut list = store.command(&["ls", "--all", "--json"]);
        list.env("TZ", zone);
        let own = run(list).json()[0]["name"].as_str().unwrap().to_owned();
        assert_eq!(shown(&store, &own, "UTC").json()["id"], OLDER, "{zone}: {own}");
    }
    let one = store.mount(&["--project", &format!("/{APP}")]);
    assert_eq!(shown(&store, one.path.join(&name), "Pacific/Kiritimati").json()["id"], OLDER);
    assert_eq!(shown(&store, one.path.join("latest/turns"), "Pacific/Kiritimati").json()["id"], OLDER);
}

#[test]
fn an_old_name_means_the_session_with_its_end() {
    let (store, ..) = two_threads();
    for name in ["2026-11-30-codex-7cc3b0a3", "2026-11-30-codex-some-older-words-7cc3b0a3"] {
        assert_eq!(shown(&store, name, "UTC").json()["id"], OLDER, "{name}");
    }
    assert!(shown(&store, "2026-11-30-openmax-7cc3b0a3", "UTC").refused().contains("no session matches"));
    let mount = store.mount(&[] as &[&str]);
    let old = mount.path.join(APP).join("2026-11-30-codex-other-7cc3b0a3");
    assert!(shown(&store, old, "UTC").refused().contains("cannot find"));
}

#[test]
fn latest_is_the_newest_session_of_the_project_here_and_what_show_means_alone() {
    let store = TestStore::from_samples(&["a-plain", "c-compact"]);
    let project = store.home.join("app");
    fs::create_dir(&project).unwrap();
    let only = TestStore::from_sample("a-plain");
    let here = only.home.join("app");
    fs::create_dir_all(here.join("src")).unwrap();
    only.move_project(&here);
    let id = only.run(&["ls", "--all", "--json"]).json()[0]["id"].as_str().unwrap().to_owned();
    let at = |dir: &Path, arguments: &[&str]| {
        let mut command = only.command(arguments);
        command.current_dir(dir);
        run(command)
    };
    assert_eq!(at(&here, &["show", "latest", "--json"]).json()["id"], *id);
    assert_eq!(at(&here, &["show", "--json"]).json()["id"], *id);
    assert!(at(&here, &["undo", "latest", "last", "--dry-run"]).ok().contains("undo 3 removes 1 turn"));
    let fork = at(&here, &["fork", "latest", "1"]).ok();
    assert_eq!(at(&here, &["show", "latest", "--json"]).json()["id"], fork.trim());
    let below = at(&here.join("src"), &["show"]).refused();
    assert!(below.contains("no sessions of") && below.contains(here.to_str().unwrap()), "{below}");
    assert!(at(&only.home, &["show", "latest"]).refused().contains("turnfs ls --all"));
    // In a mount, at the project that is shown there.
    let mount = only.mount(&[] as &[&str]);
    let inside = mount.path.join(here.strip_prefix("/").unwrap());
    for arguments in [&["show", "--json"][..], &["show", "latest", "--json"]] {
        assert_eq!(at(&inside, arguments).json()["id"], fork.trim());
    }
}

#[test]
fn words_of_a_title_mean_the_only_session_with_them() {
    let (store, ..) = two_threads();
    // "one ALPHA" and "pre one ALPHA".
    assert_eq!(shown(&store, "PRE", "UTC").json()["id"], NEWER);
    assert_eq!(shown(&store, "alpha pre", "UTC").json()["id"], NEWER);
    let both = shown(&store, "one alpha", "UTC").refused();
    assert!(both.contains("\"one alpha\" matches 2 sessions: "), "{both}");
    assert!(
        both.contains(OLDER) && both.contains(NEWER) && both.contains("hint: give more characters"),
        "{both}"
    );
    assert!(shown(&store, "alph", "UTC").refused().contains("no session matches"));
}

#[test]
fn what_names_no_session_is_said_in_one_sentence_that_parses_and_suggests() {
    let (store, ..) = two_threads();
    let said = shown(&store, "nosuch12", "UTC").refused();
    let sentence = "no session matches \"nosuch12\"\nhint: give an id, 8 or more characters of its start or end, a directory name";
    assert!(said.contains(sentence) && !said.contains("did you mean"), "{said}");
    // Letters put wrong, swapped or left out.
    for typo in ["7cc3b0b3", "7cc3b0a", "7c3cb0a3", "2026-11-30-codex-one-alpa-7cc3b0b3"] {
        let said = shown(&store, typo, "UTC").refused();
        assert!(said.contains("did you mean") && said.contains(OLDER), "{typo}: {said}");
    }
    let both = shown(&store, "01a22cb1", "UTC").refused();
    assert!(both.contains("\"01a22cb1\" matches 2 sessions: ") && !both.contains("exist"), "{both}");
    let number = shown(&store, "3", "UTC").refused();
    assert!(number.contains("turnfs show latest 3"), "{number}");
    let command = store.run(&["man", "foo"]).refused();
    assert!(command.contains("unknown command \"foo\""), "{command}");
}

#[test]
fn a_directory_that_is_not_there_is_not_one_without_sessions() {
    let (store, ..) = two_threads();
    let nowhere = store.run(&["ls", "/nonexistent"]).refused();
    assert!(nowhere.contains("there is no directory /nonexistent"), "{nowhere}");
    let typo = store.run(&["ls", "/home/dev/work/ap1", "--json"]).refused();
    assert!(typo.contains("did you mean /home/dev/work/app1?"), "{typo}");
    let relative = store.run(&["ls", "./ap1"]).refused();
    assert!(relative.contains("there is no directory ") && relative.contains("/ap1"), "{relative}");
    let below = store.run(&["ls", "/home/dev/work/app1/src"]).refused();
    assert!(below.contains("did you mean /home/dev/work/app1?"), "{below}");
    // A project that was removed since still has its sessions, and a directory that is there may have none.
    assert_eq!(store.run(&["ls", "/home/dev/work/app1", "--json"]).json().as_array().unwrap().len(), 2);
    assert_eq!(store.run(&["ls", "/"]).ok(), "");
}

#[test]
fn a_list_of_sessions_looks_at_the_hosts_processes_once() {
    let store = TestStore::from_samples(&["a-plain", "b-tools", "c-compact", "d-steer", "j-sub"]);
    let trace = store.dir.path().join("trace");
    let mut command = store.program("strace");
    command.args(["-f", "-e", "trace=openat", "-o"]).arg(&trace);
    command.args([env!("CARGO_BIN_EXE_turnfs"), "ls", "--all", "--json"]);
    if !matches!(std::process::Command::new("strace").arg("-V").output(), Ok(said) if said.status.success()) {
        return super::support::skipped::skipped("strace is not there");
    }
    assert_eq!(run(command).json().as_array().unwrap().len(), 5);
    let trace = fs::read_to_string(trace).unwrap();
    let mut looks = std::collections::HashMap::new();
    for line in trace.lines().filter(|line| line.contains("/cmdline\"")) {
        let path = line.split('"').nth(1).unwrap();
        *looks.entry(path).or_insert(0) += 1;
    }
    // What has no command line yet is looked at again within a look.
    let often = looks.values().filter(|looks| **looks > 1).count();
    assert!(!looks.is_empty() && often * 2 < looks.len(), "{looks:?}");
}

#[test]
fn a_mount_that_does_not_answer_is_said_to_and_soon() {
    let store = TestStore::of("codex", "a_plain4");
    let mount = store.mount(&[] as &[&str]);
    let session = mount.session(&store, None);
    let project = mount.path.join(APP);
    signal(mount.pid(), Signal::STOP);
    let started = std::time::Instant::now();
    let runs: [(Vec<PathBuf>, Option<&Path>); 3] = [
        (vec!["ls".into(), project.clone(), "--json".into()], None),
        (vec!["show".into(), session.clone()], None),
        (vec!["undo".into(), session.join("turns"), "1".into()], None),
    ];
    let said: Vec<Ran> = runs
        .iter()
        .map(|(arguments, dir)| {
            let mut command = store.command(arguments);
            command.current_dir(dir.unwrap_or(&store.home));
            run(command)
        })
        .collect();
    let took = started.elapsed();
    signal(mount.pid(), Signal::CONT);
    for said in said {
        let said = said.refused();
        let place = mount.path.display();
        assert!(said.contains(&format!("the mount at {place} does not answer")), "{said}");
    }
    assert!(took.as_secs() < 30, "{took:?}");
    let mut list = store.command(&["ls", "--json"]);
    list.arg(&project);
    assert_eq!(run(list).json()[0]["id"], OLDER);
}

#[test]
fn ls_takes_words_of_titles_and_suggests_what_nearly_fits() {
    let (store, ..) = two_threads();
    let listed = |words: &[&str]| {
        let found = store.run(&[&["ls", "--json"], words].concat()).json();
        ids(&found).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    // The titles are `one ALPHA` and `pre one ALPHA`.
    for (words, expected) in [
        (&["alpha"] as &[&str], &[NEWER, OLDER] as &[&str]),
        (&["ONE"], &[NEWER, OLDER]),
        (&["pre"], &[NEWER]),
        (&["alp", "pre"], &[NEWER]),
        (&["pre one ALPHA"], &[NEWER]),
    ] {
        assert_eq!(listed(words), expected, "{words:?}");
    }
    let table = store.run(&["ls", "pre"]).ok();
    assert!(table.contains("PROJECT") && table.contains("/home/dev/work/app1"), "{table}");
    let said = store.run(&["ls", "aplha"]).refused();
    let sentence =
        "no session has \"aplha\" in its title, and there is no directory aplha\nhint: did you mean ";
    assert!(said.contains(sentence) && said.contains(NEWER) && said.contains(OLDER), "{said}");
    let said = store.run(&["ls", "alpha", "zebra"]).refused();
    let sentence =
        "no session has \"alpha zebra\" in its title\nhint: `turnfs search alpha zebra` looks into the turns";
    assert!(said.contains(sentence), "{said}");
    // A directory of that name counts more.
    fs::create_dir(store.home.join("pre")).unwrap();
    assert_eq!(listed(&["pre"]), [""; 0]);
}
