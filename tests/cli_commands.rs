//! The commands that need no mount, run as a user runs them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use support::{TestStore, expected, run, sample_names};

const COMPACT: &str = "1473b527-dfc7-46c2-b4e0-c7ca83718181";
const COMPACT_DIR: &str = "2026-11-30-kimi-cli-turn-one-83718181";

#[test]
fn ls_json_has_the_documented_form() {
    let store = TestStore::from_sample("c-compact");
    let mut listed = store.run(&["ls", "--all", "--json"]).json();
    let updated = listed[0]["updated"].take();
    assert!(updated.as_str().unwrap().ends_with('Z'), "{updated}");
    assert_eq!(
        listed,
        json!([{
            "id": COMPACT,
            "agent": "kimi-cli",
            "project": "/home/dev/projects/work/c-compact",
            "name": COMPACT_DIR,
            "title": "turn one",
            "created": "2026-11-30T13:27:49.289Z",
            "updated": null,
            "turns": 4,
            "state": "ok",
            "writer": null,
            "path": format!("home/dev/projects/work/c-compact/{COMPACT_DIR}"),
            "resume": format!("cd /home/dev/projects/work/c-compact && kimi --session {COMPACT}"),
        }])
    );
}

#[test]
fn show_json_has_the_documented_form() {
    let store = TestStore::from_sample("c-compact");
    let shown = store.run(&["show", COMPACT, "--json"]).json();
    assert_eq!(shown["id"], COMPACT);
    assert_eq!(shown["state"], "ok");
    assert_eq!(shown["damage"], Value::Null);
    assert_eq!(
        shown["turns"][2],
        json!({
            "n": 2,
            "prompt": "/compact",
            "status": "complete",
            "started": "2026-11-30T13:27:49.702Z",
            "ended": "2026-11-30T13:27:49.719Z",
            "boundary": "exact",
        })
    );
    let one = store.run(&["show", COMPACT, "last", "--json"]).json();
    assert_eq!(one["turns"].as_array().unwrap().len(), 1);
    assert_eq!(one["turns"][0]["n"], 3);
}

#[test]
fn a_dry_run_promises_what_the_sample_expects_and_changes_nothing() {
    for sample in sample_names() {
        let expected = expected(&sample);
        let store = TestStore::from_sample(&sample);
        let before = store.snapshot();
        let turns = expected["turns"].as_array().unwrap().len();
        for n in 0..turns {
            // `undo n` leaves what "keep" has for the turn before.
            let Some(keep) = expected["keep"].get((n as i64 - 1).to_string()) else { continue };
            let number = n.to_string();
            let ran =
                store.run(&["undo", expected["session"].as_str().unwrap(), &number, "--dry-run", "--json"]);
            if ran.code != 0 {
                // Refused cuts are another test's; here it only counts that nothing is promised.
                assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{sample} undo {n}");
                continue;
            }
            let planned = ran.json();
            for file in planned["files"].as_array().unwrap() {
                let name = file["file"].as_str().unwrap();
                let files = keep["files"].as_object().unwrap();
                // A session that is one flat file is named by its path in the sample.
                let wanted = files.get(name).or_else(|| {
                    files
                        .iter()
                        .find(|(path, _)| path.ends_with(&format!("/{name}")))
                        .map(|(_, wanted)| wanted)
                });
                let wanted =
                    wanted.unwrap_or_else(|| panic!("{sample} undo {n}: {name} is not in {files:?}"));
                assert_eq!(file["keep_lines"], wanted["lines"], "{sample} undo {n}: {name}");
                assert_eq!(file["keep_bytes"], wanted["bytes"], "{sample} undo {n}: {name}");
            }
            let (keeps, drops) = (planned["keeps"].as_u64().unwrap(), planned["drops"].as_u64().unwrap());
            assert_eq!(keeps + drops, turns as u64, "{sample} undo {n}");
        }
        assert_eq!(store.snapshot(), before, "{sample}");
    }
}

#[test]
fn undo_can_be_looked_at_and_redone_byte_for_byte() {
    let store = TestStore::from_sample("c-compact");
    let before = store.snapshot();
    let text = store.run(&["show", COMPACT, "3"]).ok();
    assert!(text.contains("turn three"), "{text}");
    let said = store.run(&["undo", COMPACT, "002"]).ok();
    assert!(said.contains("removed 2 turns, kept 2 turns"), "{said}");
    assert_ne!(store.snapshot(), before);
    assert_eq!(store.run(&["ls", "--all", "--json"]).json()[0]["turns"], 2);
    assert_eq!(store.run(&["show", COMPACT, "--undone", "1", "3"]).ok(), text);
    let undone = store.run(&["show", COMPACT, "--undone", "1", "--json"]).json();
    assert_eq!(undone["turns"][1]["prompt"], "turn three");
    assert!(store.run(&["show", COMPACT, "--undone", "2"]).refused().contains("under the number 2"));
    assert!(store.run(&["redo", COMPACT]).ok().contains("brought back 2 turns"));
    assert_eq!(store.snapshot(), before);
    assert!(store.run(&["redo", COMPACT]).refused().contains("nothing to redo"));
}

#[test]
fn fork_prints_the_new_id_and_nothing_else() {
    let store = TestStore::from_sample("c-compact");
    let before = store.snapshot();
    let id = store.run(&["fork", COMPACT, "1"]).ok();
    let id = id.strip_suffix('\n').unwrap();
    assert!(!id.is_empty() && !id.contains(char::is_whitespace), "{id:?}");
    let shown = store.run(&["show", id, "--json"]).json();
    assert_eq!(shown["turns"].as_array().unwrap().len(), 2);
    let after = store.snapshot();
    for (file, bytes) in before.iter().filter(|(file, _)| file.as_path() != "kimi.json") {
        assert_eq!(after.get(file), Some(bytes), "{}: the source is not altered", file.display());
    }
    assert!(store.run(&["fork", COMPACT, "last"]).ok() != id);
}

#[test]
fn refusals_are_one_sentence_with_hints_exit_code_1_and_leave_the_store_alone() {
    let store = TestStore::from_samples(&["c-compact", "adv-damaged"]);
    let damaged = expected("adv-damaged")["session"].as_str().unwrap().to_owned();
    let before = store.snapshot();
    let table: [(&[&str], &str); 9] = [
        (&["undo", COMPACT, "4"], "turn 4 does not exist; the last turn is 3"),
        (&["fork", COMPACT, "99"], "turn 99 does not exist; the last turn is 3"),
        (&["show", COMPACT, "4"], "turn 4 does not exist"),
        (&["redo", COMPACT], "nothing to redo"),
        (&["undo", "no-such-session", "1"], "no-such-session"),
        (&["undo", &damaged, "1"], "context.jsonl, line 10"),
        (&["fork", &damaged, "0"], "context.jsonl, line 10"),
        (&["show", &damaged], "bad-line"),
        (&["show", "./"], "is not in a turnfs mount"),
    ];
    for (args, sentence) in table {
        let said = store.run(args).refused();
        assert!(said.contains(sentence), "{args:?}: {said}");
        assert!(said.starts_with("turnfs: "), "{args:?}: {said}");
        assert!(said.lines().skip(1).all(|line| line.starts_with("hint: ")), "{args:?}: {said}");
    }
    assert_eq!(store.snapshot(), before);
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let store = TestStore::from_sample("c-compact");
    let table: [&[&str]; 6] = [
        &["undo", COMPACT, "x"],
        &["undo", COMPACT],
        &["nonsense"],
        &[],
        &["ls", "--agents", "nobody"],
        &["ls", "--store", "kimi-cli"],
    ];
    for args in table {
        assert_eq!(store.run(args).code, 2, "{args:?}");
    }
}

#[test]
fn a_session_goes_by_its_id_a_part_of_it_or_its_directory_name() {
    let store = TestStore::from_samples(&["c-compact", "a-plain"]);
    for name in [COMPACT, "1473b527", "83718181", "b4e0-c7ca83718181", COMPACT_DIR] {
        assert_eq!(store.run(&["show", name, "--json"]).json()["id"], COMPACT, "{name}");
    }
    assert!(store.run(&["show", "3718181"]).refused().contains("8 or more characters"));
}

#[test]
fn ls_takes_a_project_as_given_and_as_resolved() {
    let store = TestStore::from_sample("c-compact");
    let (real, link) = (store.home.join("real"), store.home.join("link"));
    fs::create_dir(&real).unwrap();
    symlink("real", &link).unwrap();
    store.move_project(&real);
    let listed = |dir: &std::path::Path| {
        let mut command = store.command(&["ls", "--json"]);
        command.arg(dir);
        run(command).json().as_array().unwrap().len()
    };
    assert_eq!(listed(&real), 1);
    assert_eq!(listed(&link), 1, "the recorded path is what the link leads to");
    // Recorded with the link's spelling, as a client does that was started there.
    store.move_project(&link);
    assert_eq!(listed(&link), 1);
    assert_eq!(listed(&real), 0);
    // The working directory, in the shell's spelling.
    let mut here = store.command(&["ls", "--json"]);
    here.current_dir(&link).env("PWD", &link);
    assert_eq!(run(here).json().as_array().unwrap().len(), 1);
    let mut stale = store.command(&["ls", "--json"]);
    stale.current_dir(&real).env("PWD", "/somewhere/else");
    assert_eq!(run(stale).json(), json!([]), "a PWD that is not the working directory does not count");
}

#[test]
fn a_project_without_sessions_is_no_error() {
    let store = TestStore::from_sample("c-compact");
    let ran = store.run(&["ls"]);
    assert!(ran.stderr.contains("no sessions of"), "{}", ran.stderr);
    assert_eq!(ran.ok(), "");
    let ran = store.run(&["ls", "--json"]);
    assert_eq!(ran.stderr, "");
    assert_eq!(ran.json(), json!([]));
}

#[test]
fn check_tells_damage_by_its_exit_code_and_by_file_and_line() {
    let clean =
        TestStore::from_samples(&["a-plain", "c-compact", "j-sub"]).run(&["check", "--all", "--json"]);
    assert_eq!(clean.json(), json!([]));
    let store = TestStore::from_sample("adv-damaged");
    let ran = store.run(&["check", "--all", "--json"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    let wanted = expected("adv-damaged");
    for key in ["file", "line", "byte", "class"] {
        assert_eq!(found[0][key], wanted["damage"][key], "{key}");
    }
    assert_eq!(found[0]["state"], "damaged");
    let text = store.run(&["check", "--all"]);
    assert!(text.stdout.contains("context.jsonl:10: bad-line: "), "{}", text.stdout);
    let mut homeless = store.command(&["check", "--all"]);
    homeless.env_remove("HOME");
    assert_eq!(run(homeless).code, 2);
}

#[test]
fn check_takes_a_project_or_a_session_and_says_what_to_write_where_there_is_neither() {
    let store = TestStore::from_samples(&["c-compact", "adv-damaged"]);
    let damaged = expected("adv-damaged")["session"].as_str().unwrap().to_owned();
    for session in [COMPACT, &COMPACT[..8]] {
        let ran = store.run(&["check", session]);
        assert!(ran.stderr.contains("1 session read, 0 damaged places"), "{session}: {}", ran.stderr);
        assert_eq!(ran.ok(), "", "{session}");
    }
    let ran = store.run(&["check", &damaged]);
    assert!(ran.code == 1 && ran.stdout.contains("context.jsonl:10: bad-line: "), "{ran:?}");
    let mount = store.mount(&[] as &[&str]);
    let inside = mount.session(&store, Some(&damaged)).join("turns");
    let ran = store.run(&[Path::new("check"), &inside, Path::new("--json")]);
    assert!(ran.code == 1 && ran.stdout.contains("\"bad-line\""), "{ran:?}");
    assert!(store.run(&["check", "/home/dev/projects/work/c-compact"]).stderr.contains("1 session read"));
    // Neither: not a word about "0 sessions".
    for (args, names) in [
        (&["check"][..], store.home.to_str().unwrap()),
        (&["check", "."], store.home.to_str().unwrap()),
        (&["check", "/no/such/dir"], "/no/such/dir"),
        (&["check", "--json"], store.home.to_str().unwrap()),
    ] {
        let ran = store.run(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args:?}");
        let says =
            format!("turnfs: no sessions belong to {names}\nhint: `turnfs check --all` checks every session");
        assert!(ran.stderr.contains(&says), "{args:?}: {}", ran.stderr);
    }
    let ran = store.run(&["check", "nosuch12"]);
    assert!(ran.code == 2 && ran.stderr.contains("nosuch12"), "{ran:?}");
    assert!(!ran.stderr.contains("read, "), "{ran:?}");
    assert!(store.run(&["check", "--all"]).stderr.contains("2 sessions read"));
}

#[test]
fn a_damaged_session_is_listed_and_its_turns_are_refused() {
    let store = TestStore::from_sample("adv-damaged");
    let listed = store.run(&["ls", "--all", "--json"]).json();
    assert_eq!(listed[0]["state"], "damaged");
    assert_eq!(listed[0]["turns"], Value::Null);
    let id = listed[0]["id"].as_str().unwrap();
    let shown = store.run(&["show", id, "--json"]).json();
    assert_eq!(shown["damage"], expected("adv-damaged")["damage"]);
    assert_eq!(shown["turns"], json!([]));
    let ran = store.run(&["show", id]);
    assert!(ran.stdout.contains("state: damaged"), "{}", ran.stdout);
    assert_eq!(ran.code, 1);
}

#[test]
fn a_damaged_index_is_reported_and_never_replaced() {
    let store = TestStore::from_sample("c-compact");
    fs::write(store.root.join("kimi.json"), "{\"work_dirs\": [").unwrap();
    let before = store.snapshot();
    for args in [
        &["ls", "--all"][..],
        &["check", "--all"],
        &["doctor"],
        &["undo", COMPACT, "1"],
        &["fork", COMPACT, "1"],
    ] {
        let ran = store.run(args);
        assert!(!ran.stderr.contains("panicked"), "{args:?}: {}", ran.stderr);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(!said.is_empty(), "{args:?}");
        assert_eq!(store.snapshot(), before, "{args:?}");
    }
    assert_eq!(store.run(&["check", "--all"]).code, 1);
    assert!(store.run(&["ls", "--all"]).stderr.contains("kimi.json"));
}

#[test]
fn without_a_home_every_command_says_so_and_writes_nothing() {
    let store = TestStore::empty();
    for args in
        [&["ls", "--all"][..], &["mount"], &["mount", "m"], &["undo", COMPACT, "1"], &["check", "--all"]]
    {
        for home in [None, Some("")] {
            let mut command = store.command(args);
            command.env_remove("HOME").env_remove("XDG_STATE_HOME");
            if let Some(home) = home {
                command.env("HOME", home);
            }
            let ran = run(command);
            assert!(ran.code == 1 || ran.code == 2, "{args:?}: {ran:?}");
            assert!(ran.stderr.contains("HOME is not set"), "{args:?}: {}", ran.stderr);
        }
    }
    assert_eq!(fs::read_dir(&store.home).unwrap().count(), 0);
    assert_eq!(fs::read_dir(&store.state).unwrap().count(), 0);
}

#[test]
fn an_empty_home_has_no_sessions_and_stays_empty() {
    let store = TestStore::empty();
    assert_eq!(store.run(&["ls", "--all", "--json"]).json(), json!([]));
    assert_eq!(store.run(&["check", "--all", "--json"]).json(), json!([]));
    assert!(store.run(&["doctor"]).stdout.contains("is not there"));
    assert_eq!(fs::read_dir(&store.home).unwrap().count(), 0);
}

#[test]
fn another_place_of_the_store_can_be_named() {
    let store = TestStore::from_sample("c-compact");
    let elsewhere = store.home.join("elsewhere");
    fs::rename(&store.root, &elsewhere).unwrap();
    assert_eq!(store.run(&["ls", "--all", "--json"]).json(), json!([]));
    for option in [
        "kimi-cli=elsewhere".to_owned(),
        format!("kimi-cli={}", elsewhere.display()),
        "kimi-cli=~/elsewhere".into(),
    ] {
        let listed = store.run(&["ls", "--all", "--json", "--store", &option]).json();
        assert_eq!(listed[0]["id"], COMPACT, "{option}");
    }
    let mut by_variable = store.command(&["ls", "--all", "--json"]);
    by_variable.env("KIMI_SHARE_DIR", &elsewhere);
    assert_eq!(run(by_variable).json()[0]["id"], COMPACT);
}

#[test]
fn a_title_cannot_reach_the_terminal_as_a_command() {
    let store = TestStore::from_sample("c-compact");
    let session = store.root.join("sessions/7dedf93ed433a3da7091e615bedb8707").join(COMPACT);
    let path = session.join("state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    state["custom_title"] = "\u{1b}]0;owned\u{7}\u{202e}\u{9b}31m".into();
    fs::write(&path, state.to_string()).unwrap();
    for args in [&["ls", "--all"][..], &["ls", "--all", "--json"], &["show", COMPACT]] {
        let text = store.run(args).ok();
        let obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(obeyed), "{args:?}: {text:?}");
        assert!(text.contains("owned"), "{args:?}: {text:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let store = TestStore::from_sample("c-compact");
    for command in
        ["turnfs ls --all", "turnfs completions bash", "turnfs man", "turnfs --help", "turnfs show 83718181"]
    {
        // The reader has gone before the first byte is written.
        let script = format!("set -o pipefail; (sleep 0.2; {command}) | true; echo ${{PIPESTATUS[0]}}");
        let ran = run(store.shell("bash", &script));
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("0\n", ""), "{command}");
    }
}

#[test]
fn help_man_pages_and_completions_know_every_command() {
    let store = TestStore::empty();
    let help = store.run(&["--help"]).ok();
    let man = store.run(&["man"]).ok();
    let completions = store.run(&["completions", "bash"]).ok();
    for command in [
        "mount",
        "umount",
        "ls",
        "show",
        "undo",
        "redo",
        "fork",
        "check",
        "prune",
        "doctor",
        "service",
        "completions",
        "man",
    ] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
        assert!(man.contains(&format!("turnfs\\-{command}(1)")), "{command}: {man}");
        assert!(
            completions.contains(&format!("turnfs__subcmd__{command}"))
                || completions.contains(&format!("turnfs__{command}")),
            "{command}"
        );
        assert!(store.run(&["man", command]).ok().starts_with(".ie"), "{command}");
        assert!(store.run(&[command, "--help"]).ok().contains("Usage: turnfs"), "{command}");
    }
    for command in ["install", "status", "remove"] {
        let page = store.run(&["man", "service", command]).ok();
        assert!(page.contains(&format!(".TH turnfs-service-{command} 1")), "{page}");
    }
    assert!(store.run(&["man", "service", "none"]).refused().contains("\"service none\""));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(!store.run(&["completions", shell]).ok().is_empty(), "{shell}");
    }
    assert_eq!(store.run(&["--version"]).ok(), format!("turnfs {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn prune_deletes_old_backups_only() {
    let store = TestStore::from_sample("c-compact");
    store.run(&["undo", COMPACT, "3"]).ok();
    store.run(&["prune"]).ok();
    let would = store.run(&["prune", "--older-than", "0s", "--dry-run"]);
    assert!(would.stdout.contains("undo 1, 1 turn"), "{}", would.stdout);
    store.run(&["show", COMPACT, "--undone", "1"]).ok();
    store.run(&["prune", "--older-than", "0s"]).ok();
    store.run(&["show", COMPACT, "--undone", "1"]).refused();
    store.run(&["redo", COMPACT]).refused();
}

#[test]
fn doctor_finds_what_a_mount_needs() {
    let store = TestStore::from_sample("c-compact");
    let ran = store.run(&["doctor"]);
    for subject in
        ["/dev/fuse", "fusermount3", "fuse.conf", "kimi-cli: 1 session", "state directory", "turns"]
    {
        assert!(ran.stdout.contains(subject), "{subject}: {}", ran.stdout);
    }
    let fails = ran.stdout.lines().any(|line| line.starts_with("fail"));
    assert_eq!(ran.code, i32::from(fails), "{}", ran.stdout);
    let mut homeless = store.command(&["doctor"]);
    homeless.env_remove("HOME").env_remove("XDG_STATE_HOME");
    let ran = run(homeless);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("-> export HOME"), "{}", ran.stdout);
}
