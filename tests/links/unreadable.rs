//! What this user may not read: told as that, and hiding nothing else.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use super::find;
use super::support::skipped::skipped;
use super::support::{Ran, TestStore, run};

/// An ordinary user, to whom the store belongs.
const USER: u32 = 65534;

/// A store of that user; `None` where there is none to be had.
fn of_a_user(agent: &str, sample: &str) -> Option<TestStore> {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can give a store to another user");
        return None;
    }
    let store = TestStore::of(agent, sample);
    give_all(store.dir.path());
    Some(store)
}

fn give_all(dir: &Path) {
    chown(dir, Some(USER), Some(USER)).unwrap();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => give_all(&entry.path()),
            false => chown(entry.path(), Some(USER), Some(USER)).unwrap(),
        }
    }
}

fn lock_away(path: &Path, mode: u32) {
    chown(path, Some(0), Some(0)).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A command as that user.
fn as_user(store: &TestStore, args: &[&str]) -> Ran {
    let mut command = store.program("setpriv");
    let user = USER.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups", env!("CARGO_BIN_EXE_turnfs")]);
    command.args(args);
    run(command)
}

#[test]
fn a_transcript_of_another_user_is_unreadable_and_not_damaged() {
    for (agent, sample, end) in [
        ("codex", "a_plain4", ".jsonl"),
        ("codex", "a_plain4_legacy", ".jsonl"),
        ("kimi-cli", "a-plain", "wire.jsonl"),
        ("kimi-cli", "a-plain", "context.jsonl"),
        ("kimi-cli", "a-plain", "76d7e8ac2706"),
        ("openmax", "a_plain", ".messages.json"),
        ("kimi-code", "a-plain", "main/wire.jsonl"),
        ("kimi-code", "a-plain", "48e3280f5f51"),
    ] {
        let Some(store) = of_a_user(agent, sample) else { return };
        let id = super::only(&store)["id"].as_str().unwrap().to_owned();
        let path = find(&store.root, end);
        lock_away(&path, if path.is_dir() { 0o700 } else { 0o600 });
        let what = format!("{agent}, {end}");
        let listed = as_user(&store, &["ls", "--all", "--json"]);
        let sessions: serde_json::Value = serde_json::from_str(&listed.stdout).unwrap();
        assert_eq!(sessions[0]["id"], *id, "{what}: {sessions}");
        assert_eq!(sessions[0]["state"], "unreadable", "{what}: {sessions}");
        assert_eq!(sessions[0]["turns"], serde_json::Value::Null, "{what}");
        let checked = as_user(&store, &["check", "--all", "--json"]);
        let found: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
        assert!(found.as_array().unwrap().iter().all(|it| it["state"] == "unreadable"), "{what}: {found}");
        assert_eq!(checked.code, 2, "{what}: not all was read, and nothing is damaged");
        let refused = as_user(&store, &["undo", &id, "0"]).refused();
        assert!(refused.contains("Permission denied"), "{what}: {refused}");
        let doctor = as_user(&store, &["doctor"]).stdout;
        let told = doctor.contains("cannot be read by this user") || doctor.contains("Permission denied");
        assert!(told, "{what}: {doctor}");
    }
}

#[test]
fn an_unreadable_folder_or_index_hides_nothing_else() {
    for (agent, sample, make, listed) in [
        ("codex", "a_plain4", "sessions/2026/11/29", true),
        ("codex", "a_plain4", "sessions/2027", true),
        ("codex", "a_plain4", "archived_sessions", true),
        ("kimi-cli", "a-plain", "sessions/ffffffffffffffffffffffffffffffff", true),
        ("codex", "a_plain4", "state_5.sqlite", true),
        ("codex", "a_plain4", "session_index.jsonl", true),
        ("kimi-cli", "a-plain", "kimi.json", true),
        ("openmax", "a_plain", "sessions/index.json", true),
        ("kimi-cli", "a-plain", "sessions", false),
        ("codex", "a_plain4", "sessions", false),
        ("openmax", "a_plain", "sessions", false),
        ("kimi-code", "a-plain", "sessions/wd_other_ffffffffffff", true),
        ("kimi-code", "a-plain", "sessions", false),
    ] {
        let Some(store) = of_a_user(agent, sample) else { return };
        let path = store.root.join(make);
        let is_file = make.ends_with(".json") || make.ends_with(".jsonl") || make.ends_with(".sqlite");
        match is_file {
            true if !path.exists() => std::fs::write(&path, "").unwrap(),
            true => {}
            false => std::fs::create_dir_all(&path).unwrap(),
        }
        lock_away(&path, if is_file { 0o600 } else { 0o700 });
        let what = format!("{agent}, {make}");
        let all = as_user(&store, &["ls", "--all"]);
        assert!(all.stderr.contains("unreadable"), "{what}: {}{}", all.stdout, all.stderr);
        assert!(!all.stderr.contains("line 1"), "{what}: {}", all.stderr);
        assert_eq!(all.stdout.contains(agent), listed, "{what}: {}{}", all.stdout, all.stderr);
        let checked = as_user(&store, &["check", "--all", "--json"]);
        let found: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
        let mine: Vec<_> =
            found.as_array().unwrap().iter().filter(|it| it["class"] == "unreadable").collect();
        assert!(!mine.is_empty(), "{what}: {found}");
        for finding in mine {
            assert_eq!(finding["state"], "unreadable", "{what}: {finding}");
            assert_eq!(finding["line"], serde_json::Value::Null, "{what}: {finding}");
        }
        assert!(as_user(&store, &["doctor"]).stdout.contains("unreadable"), "{what}");
    }
}
