//! The shell command that continues a session: what a shell makes of it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{AGENTS, Ran, TestStore, copy_tree, run, samples_of};

/// Programs that take the clients' places, and tell how and where they were started.
const CLIENTS: [&str; 4] = ["kimi", "codex", "claude", "openmax"];
const SAYS: &str = r#"#!/bin/sh
printf '%s|' "${0##*/}" "$PWD" "$@"
printf '%s|' "${KIMI_SHARE_DIR-}${KIMI_CODE_HOME-}${CODEX_HOME-}${CLAUDE_CONFIG_DIR-}"
echo
"#;

fn pasted(store: &TestStore, shell: &str, command: &str) -> Ran {
    let bin = store.home.join("clients");
    fs::create_dir_all(&bin).unwrap();
    for client in CLIENTS {
        let path = bin.join(client);
        fs::write(&path, SAYS).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let mut child = store.shell(shell, command);
    child.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    run(child)
}

fn only(sessions: Value) -> Value {
    let [session] = &sessions.as_array().unwrap()[..] else { panic!("{sessions}") };
    session.clone()
}

#[test]
fn a_shell_starts_the_client_in_the_sessions_directory_whatever_that_is_called() {
    for name in [
        "plain",
        "two  blanks",
        "it's \"quoted\" $(id) `id` \\ $HOME; #",
        "two\nlines and \x1b[31m red",
        "ends with a newline\n",
        "\u{1f600} äöü 修复",
        "100 %s",
        "back\u{202e}wards",
    ] {
        let store = TestStore::from_sample("a-plain");
        let project = store.home.join(name);
        fs::create_dir(&project).unwrap();
        store.move_project(&project);
        let listed = only(store.run(&["ls", "--all", "--json"]).json());
        let command = listed["resume"].as_str().unwrap();
        assert!(!command.chars().any(char::is_control), "{command}");
        for shell in ["sh", "bash"] {
            let said = pasted(&store, shell, command).ok();
            let id = listed["id"].as_str().unwrap();
            assert_eq!(said, format!("kimi|{}|--session|{id}||\n", project.display()), "{shell}: {command}");
        }
    }
}

/// A sample of each agent whose project is moved to a directory that is there, and how its client is called.
#[test]
fn each_agent_is_called_as_its_client_wants_it() {
    for (agent, sample, expected) in [
        ("kimi-cli", "a-plain", "kimi --session ID"),
        ("kimi-code", "a-plain", "kimi --session ID"),
        ("codex", "a_plain4", "codex resume ID"),
        ("codex", "g_archived_named", "codex unarchive ID && codex resume ID"),
        ("claude-code", "plain", "claude --resume ID"),
        ("openmax", "a_plain", "openmax --continue"),
    ] {
        let store = TestStore::of(agent, sample);
        for session in store.run(&["ls", "--all", "--json"]).json().as_array().unwrap() {
            let (id, project) = (session["id"].as_str().unwrap(), session["project"].as_str().unwrap());
            let expected = format!("cd {project} && {}", expected.replace("ID", id));
            assert_eq!(session["resume"], expected, "{agent} {sample}");
        }
    }
}

#[test]
fn a_store_at_another_place_is_named_where_the_client_can_be_told() {
    for (agent, variable) in [
        ("kimi-cli", Some("KIMI_SHARE_DIR")),
        ("kimi-code", Some("KIMI_CODE_HOME")),
        ("codex", Some("CODEX_HOME")),
        ("claude-code", Some("CLAUDE_CONFIG_DIR")),
        ("openmax", None),
    ] {
        let sample = if agent == "codex" || agent == "openmax" { "a_plain" } else { "a-plain" };
        let sample = if agent == "claude-code" { "plain" } else { sample };
        let sample = if agent == "codex" { "a_plain4" } else { sample };
        let store = TestStore::empty_of(agent);
        let place = store.home.join("another place");
        copy_tree(&samples_of(agent).join(sample).join("store"), &place);
        let option = format!("{agent}={}", place.display());
        let sessions = store.run(&["ls", "--all", "--json", "--store", &option]).json();
        let session = &sessions[0];
        match variable {
            None => assert_eq!(session["resume"], Value::Null, "{agent}"),
            Some(variable) => {
                let command = session["resume"].as_str().unwrap();
                assert!(command.contains(&format!("&& {variable}='{}' ", place.display())), "{command}");
                let here = command.split_once("&& ").unwrap().1;
                let said = pasted(&store, "sh", here).ok();
                assert!(said.ends_with(&format!("|{}|\n", place.display())), "{said}");
            }
        }
    }
}

#[test]
fn of_openmax_only_a_projects_newest_session_can_be_continued_by_a_command() {
    let store = TestStore::of("openmax", "d_resume");
    let source = only(store.run(&["ls", "--all", "--json"]).json());
    let id = source["id"].as_str().unwrap();
    let new = store.run(&["fork", id, "0"]).ok();
    let sessions = store.run(&["ls", "--all", "--json"]).json();
    let resume = |id: &str| {
        let session = sessions.as_array().unwrap().iter().find(|session| session["id"] == id);
        session.unwrap()["resume"].clone()
    };
    assert_eq!(resume(id), Value::Null);
    assert_eq!(resume(new.trim()), source["resume"]);
}

#[test]
fn fork_and_rescue_say_the_command_on_stderr_and_nothing_but_the_id_on_stdout() {
    for (agent, sample) in [("kimi-cli", "c-compact"), ("codex", "a_plain4"), ("claude-code", "plain")] {
        let store = TestStore::of(agent, sample);
        let source = only(store.run(&["ls", "--all", "--json"]).json());
        let forked = store.run(&["fork", source["id"].as_str().unwrap(), "1"]);
        let new = forked.stdout.trim_end();
        assert_eq!(forked.stdout, format!("{new}\n"));
        let command = source["resume"].as_str().unwrap().replace(source["id"].as_str().unwrap(), new);
        assert_eq!(forked.stderr, format!("resume: {command}\n"), "{agent}");
        assert_eq!(forked.code, 0);
        // The same in the new session's `status`.
        let mount = store.mount::<&str>(&[]);
        let status = fs::read_to_string(mount.session(&store, Some(new)).join("status")).unwrap();
        assert!(status.lines().any(|line| line == format!("resume: {command}")), "{status}");
    }
    let store = TestStore::of("codex", "a_plain4");
    let source = only(store.run(&["ls", "--all", "--json"]).json());
    let id = source["id"].as_str().unwrap().to_owned();
    damage(&store.root, &id);
    let rescued = store.run(&["rescue", &id]);
    assert!(rescued.stderr.contains(&format!("codex resume {}\n", rescued.stdout.trim())), "{rescued:?}");
}

/// Makes the last line of a thread's file one that is no record, with another one behind it.
fn damage(root: &Path, id: &str) {
    fn find(dir: &Path, id: &str) -> Option<PathBuf> {
        let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        all.into_iter().find_map(|path| match path.is_dir() {
            true => find(&path, id),
            false => path.to_str().unwrap().contains(id).then_some(path),
        })
    }
    let file = find(&root.join("sessions"), id).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let last = text.lines().last().unwrap();
    fs::write(&file, format!("{text}no record\n{last}\n")).unwrap();
}

#[test]
fn what_cannot_be_continued_has_no_command() {
    let mut seen = std::collections::BTreeSet::new();
    for (agent, _) in AGENTS {
        for name in crate::support::names_of(agent) {
            let store = TestStore::of(agent, &name);
            for session in store.run(&["ls", "--all", "--json"]).json().as_array().unwrap() {
                let state = session["state"].as_str().unwrap();
                let unplaced = session["project"].is_null();
                if unplaced || !["ok", "torn", "empty"].contains(&state) {
                    assert_eq!(session["resume"], Value::Null, "{agent} {name} {session}");
                    seen.insert(if unplaced { "unplaced" } else { state }.to_owned());
                }
            }
        }
    }
    for kind in ["unplaced", "damaged", "no-transcript"] {
        assert!(seen.contains(kind), "{seen:?}");
    }
}
