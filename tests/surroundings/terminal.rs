//! Stores that speak to the terminal: no command and no text file of a mount passes on what a terminal would obey.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::support::{Ran, TestStore, run};

/// ESC sequences, BEL, a C1 character, bidi, line separators, DEL, a carriage return.
const EVIL: &str = "e\u{1b}]0;PWNED\u{7}\u{1b}[31m\u{9b}2J\u{202e}\u{2066}\u{200f}\u{2028}\u{7f}\rv";

fn is_obeyed(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{2028}' | '\u{2029}')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[track_caller]
fn safe(what: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    assert!(!text.contains(is_obeyed), "{what}: {text:?}");
}

/// A store of each agent in which ids, titles, paths, prompts and file names are hostile, as far as the agent reads them.
/// (The environment of every command is one: all three stores are below one HOME.)
fn hostile() -> TestStore {
    let store = TestStore::from_sample("c-compact");
    let title = serde_json::json!(EVIL);
    for state in find(&store.root, "state.json") {
        let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
        value["custom_title"] = title.clone();
        fs::write(&state, value.to_string()).unwrap();
    }
    let id = format!("evil\n{EVIL}");
    let sessions = store.home.join(".openmax/sessions");
    fs::create_dir_all(&sessions).unwrap();
    let project = format!("/p{EVIL}\nq");
    let entry = |id: &str| serde_json::json!({"id": id, "project": project, "title": EVIL, "created_at": 1, "updated_at": 1});
    let damaged = format!("bad\n{EVIL}");
    fs::write(sessions.join("index.json"), serde_json::json!([entry(&id), entry(&damaged)]).to_string())
        .unwrap();
    let line = |role: &str| {
        serde_json::json!({"role": role, "content": format!("{role} {EVIL}")}).to_string() + "\n"
    };
    let text: String =
        [line("system"), line("user"), line("assistant"), line("user"), line("assistant")].concat();
    fs::write(sessions.join(format!("{id}.messages.json")), &text).unwrap();
    fs::write(sessions.join(format!("{damaged}.messages.json")), format!("{text}{{{EVIL}\n{}", line("user")))
        .unwrap();
    let codex = store.home.join(".codex/sessions/2026/11/28");
    fs::create_dir_all(&codex).unwrap();
    let sample = super::support::samples_of("codex").join("a_plain4_legacy/store/sessions");
    let rollout = find(&sample, "jsonl").remove(0);
    let lines = fs::read_to_string(&rollout).unwrap();
    let mut lines = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .collect::<Vec<_>>();
    lines[0]["payload"]["cwd"] = project.clone().into();
    let hostile: Vec<String> = lines
        .iter()
        .map(|line| line.to_string().replace("ALPHA", "ALPHA \\u001b[31m\\u009b\\u202e"))
        .collect();
    fs::write(codex.join(rollout.file_name().unwrap()), hostile.join("\n") + "\n").unwrap();
    fs::write(codex.join("rollout-\u{1b}[31m.jsonl"), "{").unwrap();
    store
}

fn find(dir: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            found.extend(find(&path, end));
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    found
}

#[test]
fn no_command_prints_what_a_terminal_would_obey() {
    let store = hostile();
    let listed = store.run(&["ls", "--all", "--json"]).json();
    let sessions = listed.as_array().unwrap();
    assert!(sessions.len() >= 4, "{listed}");
    let check = |what: String, ran: &Ran| {
        safe(&what, ran.stdout.as_bytes());
        safe(&what, ran.stderr.as_bytes());
    };
    let whole: [&[&str]; 9] = [
        &["ls", "--all"],
        &["ls", "--all", "--json"],
        &["ls", EVIL],
        &["check", "--all"],
        &["check", "--all", "--json"],
        &["check", EVIL],
        &["doctor"],
        &["show", EVIL],
        &["undo", "x", EVIL],
    ];
    for args in whole {
        check(format!("{args:?}"), &store.run(args));
    }
    let moved = store.home.join(format!("moved{EVIL}"));
    fs::create_dir(&moved).unwrap();
    for session in sessions {
        let id = session["id"].as_str().unwrap();
        let each: [&[&str]; 15] = [
            &["show", id],
            &["show", id, "--json"],
            &["show", id, "0"],
            &["show", id, "99"],
            &["check", id],
            &["rescue", id],
            &["undo", id, "1", "--dry-run"],
            &["undo", id, "1", "--dry-run", "--json"],
            &["undo", id, "99"],
            &["undo", id, "1"],
            &["show", id, "--undone", "1"],
            &["fork", id, "--undone", "1"],
            &["redo", id],
            &["redo", id, "7"],
            &["fork", id, "0"],
        ];
        for args in each {
            check(format!("{args:?}"), &store.run(args));
        }
        store.run(&["undo", id, "1"]);
        if let Some(project) = session["project"].as_str() {
            for args in [
                &["adopt", project, moved.to_str().unwrap(), "--dry-run"][..],
                &["adopt", project, moved.to_str().unwrap()],
                &["adopt", project, "no"],
                &["mount", "--project", "/no\u{1b}", "m"],
            ] {
                check(format!("{args:?}"), &store.run(args));
            }
        }
    }
    // A journal in the way is named with the session.
    for folder in fs::read_dir(store.state.join("turnfs/sessions")).unwrap().flatten() {
        fs::write(folder.path().join("journal.bad-1"), "x").unwrap();
    }
    for args in [
        &["doctor"][..],
        &["ls", "--all"],
        &["prune", "--older-than", "0s", "--dry-run"],
        &["prune", "--older-than", "0s"],
    ] {
        let ran = store.run(args);
        check(format!("{args:?}"), &ran);
    }
}

#[test]
fn an_undo_names_the_session_in_one_line() {
    let store = hostile();
    let id = format!("evil\n{EVIL}");
    let said = store.run(&["undo", &id, "0"]).ok();
    assert_eq!(said.lines().count(), 1, "{said:?}");
    // A shell reads the very id out of it.
    let command = said.split('`').nth(1).unwrap();
    assert!(command.starts_with("turnfs redo ") && !command.chars().any(char::is_control), "{command}");
    assert_eq!(store.sh(command).ok(), "brought back 2 turns (undo 1)\n");
}

#[test]
fn no_text_of_a_mount_holds_what_a_terminal_would_obey() {
    let store = hostile();
    let mount = store.mount(&["--show-all"]);
    let mut read = 0;
    let mut dirs = vec![mount.path.clone()];
    while let Some(dir) = dirs.pop() {
        // The turns of the damaged one are refused.
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            let inside = path.strip_prefix(&mount.path).unwrap();
            // What is shown byte for byte, and where names are the store's own.
            let exact =
                ["raw", "records", "prompts"].iter().any(|name| inside.iter().any(|part| part == *name));
            // A project is shown at its path as recorded.
            let is_project =
                inside.components().count() <= 1 || inside.as_os_str().as_bytes().starts_with(b"p");
            if !exact && !is_project {
                safe("a name", entry.file_name().as_bytes());
            }
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file()
                && !exact
                && let Ok(text) = fs::read(&path)
            {
                safe(&format!("{}", path.display()), &text);
                read += 1;
            }
        }
    }
    assert!(read > 20, "{read} files");
    // What is refused is noted in `status` and in the log.
    let listed = store.run(&["ls", "--all", "--json"]).json();
    for session in listed.as_array().unwrap() {
        let dir = mount.path.join(session["path"].as_str().unwrap());
        for (control, command) in
            [("undo", "99\n"), ("redo", "last\n"), ("fork", "0\n"), ("undo", "1\n"), ("undo", EVIL)]
        {
            let _ = fs::write(dir.join(control), command);
            for file in ["status", "meta.json", "undo", "redo", "fork"] {
                if let Ok(text) = fs::read(dir.join(file)) {
                    safe(&format!("{file} after {control} {command:?}"), &text);
                }
            }
        }
    }
    for file in ["status", "metrics", "options.json", "version", "README.md"] {
        safe(file, &fs::read(mount.path.join(".turnfs").join(file)).unwrap());
    }
    let (_, log) = mount.stop();
    assert!(log.contains("PWNED"), "{log}");
    safe("the log", log.as_bytes());
}

#[test]
fn a_mount_point_with_control_characters_is_named_safely() {
    let store = TestStore::from_sample("c-compact");
    let at = super::Background::at(&store, "m\u{1b}[31m\u{9b}");
    for args in ["mount", "umount", "umount"] {
        let mut command = store.command(&[args]);
        command.arg(at.path());
        let ran = run(command);
        safe(args, format!("{}{}", ran.stdout, ran.stderr).as_bytes());
    }
    let log = fs::read(store.state.join("turnfs/turnfs.log")).unwrap();
    safe("the log", &log);
}
