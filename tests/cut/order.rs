//! The order of system calls, as strace sees it: what is durable before what.

use std::process::{Command, Stdio};

use super::store::{child, samples};

struct Call {
    name: String,
    text: String,
}

/// The calls that change or sync something; descriptors carry their paths (`strace -y`).
fn trace(sample: &str, prepare: Option<&str>, act: &str) -> Option<Vec<Call>> {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        eprintln!("skipped: strace is not installed");
        return None;
    }
    let all = samples();
    let store = all.iter().find(|one| one.name == sample).unwrap().copy();
    if let Some(prepare) = prepare {
        store.act(prepare).unwrap();
    }
    let log = store.top().join("strace");
    let inner = child(&store, act);
    let mut command = Command::new("strace");
    command
        .args(["-f", "-y", "-e"])
        .arg("trace=fsync,ftruncate,rename,renameat,renameat2,unlinkat,pwrite64,copy_file_range,fallocate")
        .arg("-o")
        .arg(&log)
        .arg(inner.get_program())
        .args(inner.get_args());
    for (key, value) in inner.get_envs() {
        command.env(key, value.unwrap());
    }
    let output = command.output().unwrap();
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    if text.is_empty() || text.contains("Operation not permitted") && !output.status.success() {
        eprintln!("skipped: strace cannot trace here");
        return None;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let calls = text.lines().filter_map(|line| {
        let call = line.split_once(' ')?.1.trim_start();
        let name = call.split_once('(')?.0.to_owned();
        Some(Call { name, text: call.to_owned() })
    });
    Some(calls.collect())
}

fn position(calls: &[Call], what: &str, matches: impl Fn(&Call) -> bool) -> usize {
    calls.iter().position(matches).unwrap_or_else(|| {
        let all: Vec<_> = calls.iter().map(|call| call.text.as_str()).collect();
        panic!("no {what} in\n{}", all.join("\n"))
    })
}

/// The folder of the session below the state directory ends like this in `-y` output.
fn syncs_dir(call: &Call, end: &str) -> bool {
    call.name == "fsync" && call.text.contains(&format!("{end}>)"))
}

/// Every rename comes after an fsync of what is renamed, and before an fsync of the directory.
fn assert_renames_are_durable(calls: &[Call]) {
    for (at, call) in calls.iter().enumerate().filter(|(_, call)| call.name.starts_with("rename")) {
        let from = call.text.split('"').nth(1).unwrap();
        let dir = call.text.split('<').nth(1).unwrap().split('>').next().unwrap();
        let moved = format!("{dir}/{from}>)");
        let synced = calls[..at].iter().any(|c| c.name == "fsync" && c.text.contains(&moved));
        // The journal is renamed to commit; it was synced under the name before.
        let committed = from == "journal.json";
        assert!(synced || committed, "{} was renamed without fsync", call.text);
        let target = call.text.split('<').nth(2).unwrap().split('>').next().unwrap();
        let after = calls[at..].iter().any(|c| syncs_dir(c, target));
        assert!(after, "{}: the directory was not synced after it", call.text);
    }
}

#[test]
fn an_undo_makes_backup_and_journal_durable_before_it_shortens_anything() {
    let Some(calls) = trace("m-autocompact", None, "undo 1") else { return };
    assert_renames_are_durable(&calls);
    let truncate = position(&calls, "truncate", |c| c.name == "ftruncate" && c.text.contains("/store/"));
    let journal = position(&calls, "journal", |c| {
        c.name.starts_with("rename") && c.text.contains("\"journal.json\"") && c.text.contains("journal.new")
    });
    let first_write = position(&calls, "change of the store", |c| {
        let changes = ["pwrite64", "copy_file_range", "ftruncate", "fallocate", "unlinkat"];
        let target = c.text.rsplit('<').next().unwrap_or_default();
        changes.contains(&c.name.as_str()) && target.contains("/store/")
    });
    assert!(journal < first_write && first_write <= truncate);
    for backup in [".before>", ".after>", "turns.json>", "/files>", "/undone>"] {
        let synced = position(&calls, backup, |c| c.name == "fsync" && c.text.contains(backup));
        assert!(synced < journal, "{backup} is synced after the journal");
    }
    let commit = position(&calls, "commit", |c| c.text.contains("\"undo.json\""));
    for file in ["wire.jsonl>", "context.jsonl>"] {
        let last_sync = calls.iter().rposition(|c| c.name == "fsync" && c.text.contains(file));
        assert!(last_sync.is_some_and(|at| truncate < at || file == "context.jsonl>"));
        assert!(last_sync.is_some_and(|at| at < commit), "{file} is synced after the commit");
    }
    let unlinked =
        position(&calls, "unlink", |c| c.name == "unlinkat" && c.text.contains("\"context_1.jsonl\""));
    assert!(journal < unlinked && unlinked < commit);
    let session_dir_synced = calls[unlinked..commit]
        .iter()
        .any(|c| c.name == "fsync" && c.text.contains("/store/sessions/") && !c.text.contains(".jsonl"));
    assert!(session_dir_synced, "the session's directory is not synced after the unlink");
}

#[test]
fn redo_and_fork_rename_only_what_is_durable() {
    for (prepare, act) in [(Some("undo 1"), "redo"), (None, "fork 3")] {
        let Some(calls) = trace("m-autocompact", prepare, act) else { return };
        assert_renames_are_durable(&calls);
        assert!(calls.iter().any(|call| call.name.starts_with("rename")));
    }
}
