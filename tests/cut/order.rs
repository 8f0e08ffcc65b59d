//! The order of system calls, as strace sees it: what is durable before what.

use std::process::{Command, Stdio};

use turnfs::session::AgentKind;

use super::skipped::skipped;
use super::store::{child, samples_of};

struct Call {
    name: String,
    text: String,
}

/// The calls that change or sync something; descriptors carry their paths (`strace -y`).
fn trace(kind: AgentKind, sample: &str, prepare: Option<&str>, act: &str) -> Option<Vec<Call>> {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        skipped("strace is not installed");
        return None;
    }
    let all = samples_of(kind);
    let store = all.iter().find(|one| one.name == sample).unwrap().copy();
    if let Some(prepare) = prepare {
        store.act(prepare).unwrap();
    }
    let log = store.top().join("strace");
    let inner = child(&store, act);
    let mut command = Command::new("strace");
    command
        .args(["-f", "-y", "-e"])
        .arg("trace=fsync,fdatasync,ftruncate,rename,renameat,renameat2,unlinkat,pwrite64,copy_file_range,fallocate")
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
        skipped("strace cannot trace here");
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

/// Where the journal gets its name.
fn journal_written(calls: &[Call]) -> usize {
    position(calls, "journal", |c| {
        c.name.starts_with("rename") && c.text.contains("\"journal.json\"") && c.text.contains("journal.new")
    })
}

/// The last descriptor of a call, with its path: the file that is changed.
fn target(call: &Call) -> &str {
    call.text.rsplit('<').next().unwrap_or_default()
}

fn changes_store(call: &Call) -> bool {
    let changes = ["pwrite64", "copy_file_range", "ftruncate", "fallocate", "unlinkat"];
    changes.contains(&call.name.as_str()) && target(call).contains("/store/")
}

fn assert_backup_is_durable_before(journal: usize, calls: &[Call]) {
    for backup in [".before>", ".after>", "turns.json>", "/files>", "/undone>"] {
        let synced = position(calls, backup, |c| c.name == "fsync" && c.text.contains(backup));
        assert!(synced < journal, "{backup} is synced after the journal");
    }
}

#[test]
fn an_undo_makes_backup_and_journal_durable_before_it_shortens_anything() {
    let Some(calls) = trace(AgentKind::KimiCli, "m-autocompact", None, "undo 1") else { return };
    assert_renames_are_durable(&calls);
    let truncate = position(&calls, "truncate", |c| c.name == "ftruncate" && c.text.contains("/store/"));
    let journal = journal_written(&calls);
    let first_write = position(&calls, "change of the store", changes_store);
    assert!(journal < first_write && first_write <= truncate);
    assert_backup_is_durable_before(journal, &calls);
    let commit = position(&calls, "commit", |c| c.text.contains("\"undo.json\""));
    for file in ["wire.jsonl>", "context.jsonl>"] {
        let last = |what: &str, is_it: &dyn Fn(&Call) -> bool| {
            calls.iter().rposition(is_it).unwrap_or_else(|| panic!("no {what} of {file}"))
        };
        let changed = last("change", &|c| changes_store(c) && target(c).contains(file));
        let synced = last("sync", &|c| c.name == "fsync" && c.text.contains(file));
        assert!(changed < synced, "{file} is not synced after its last change");
        assert!(synced < commit, "{file} is synced after the commit");
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
        let Some(calls) = trace(AgentKind::KimiCli, "m-autocompact", prepare, act) else { return };
        assert_renames_are_durable(&calls);
        assert!(calls.iter().any(|call| call.name.starts_with("rename")));
    }
}

#[test]
fn a_codex_undo_makes_its_new_file_durable_before_the_index_names_it() {
    for (act, prepare) in [("undo 2", None), ("redo", Some("undo 2")), ("fork 2", None)] {
        let Some(calls) = trace(AgentKind::Codex, "a_plain4", prepare, act) else { return };
        assert_renames_are_durable(&calls);
        let journal = journal_written(&calls);
        let in_index =
            |c: &Call| c.text.contains("/store/state_5.sqlite>") || c.text.contains("state_5.sqlite-wal>");
        let written = position(&calls, "write into the index", |c| c.name == "pwrite64" && in_index(c));
        let synced = calls.iter().rposition(|c| c.name.ends_with("sync") && in_index(c));
        let synced = synced.expect("the index is synced");
        let commit = position(&calls, "commit", |c| match act {
            "undo 2" => c.text.contains("\"undo.json\""),
            "redo" => c.text.contains("\"redone.json\""),
            _ => c.name == "unlinkat" && c.text.contains("\"journal.json\""),
        });
        assert!(journal < written && written < synced && synced < commit, "{act}");
        match act {
            // The file that the undo made goes when nothing names it any more.
            "redo" => {
                let gone =
                    position(&calls, "unlink", |c| c.name == "unlinkat" && c.text.contains("rollout-"));
                let durable = calls[gone..commit]
                    .iter()
                    .any(|c| c.name == "fsync" && c.text.contains("/store/sessions/"));
                assert!(synced < gone && durable, "{act}");
            }
            _ => {
                let named = position(&calls, "new file", |c| {
                    c.name.starts_with("rename")
                        && c.text.contains("rollout-")
                        && c.text.contains("/store/sessions/")
                });
                let dir = |c: &Call| {
                    c.name == "fsync" && c.text.contains("/store/sessions/") && !c.text.contains("rollout-")
                };
                let durable = named + position(&calls[named..], "sync of the directory", dir);
                // A fork takes the index's lock before its file has its name, and writes after it.
                assert!(journal < named && durable < written, "{act}: {named} {durable} {written}");
            }
        }
        if act == "undo 2" {
            assert_backup_is_durable_before(journal, &calls);
        }
    }
}

#[test]
fn a_kimi_code_undo_is_one_durable_write_behind_its_journal() {
    let Some(calls) = trace(AgentKind::KimiCode, "a-plain", None, "undo 2") else { return };
    assert_renames_are_durable(&calls);
    let journal = journal_written(&calls);
    assert_backup_is_durable_before(journal, &calls);
    let of_wire = |c: &Call| c.text.contains("agents/main/wire.jsonl>");
    let changes: Vec<&Call> = calls.iter().filter(|c| of_wire(c) && !c.name.ends_with("sync")).collect();
    let texts: Vec<_> = changes.iter().map(|c| c.text.as_str()).collect();
    assert!(changes.len() == 1 && changes[0].name == "pwrite64", "one write, and nothing else: {texts:?}");
    let written = position(&calls, "write", |c| of_wire(c) && c.name == "pwrite64");
    let synced = position(&calls, "sync of the wire", |c| of_wire(c) && c.name == "fsync");
    let commit = position(&calls, "commit", |c| c.text.contains("\"undo.json\""));
    assert!(journal < written && written < synced && synced < commit);
}

#[test]
fn an_openmax_undo_makes_its_entry_durable_before_the_transcript_changes() {
    // One that makes the transcript shorter, one that puts it together anew and moves the sidecars away.
    for (sample, act) in [("a_plain", "undo 2"), ("c_compact", "undo 4")] {
        let Some(calls) = trace(AgentKind::OpenMax, sample, None, act) else { return };
        assert_renames_are_durable(&calls);
        let journal = journal_written(&calls);
        assert_backup_is_durable_before(journal, &calls);
        let entry = position(&calls, "new index", |c| {
            c.name.starts_with("rename") && c.text.contains("\"index.json\"")
        });
        let dir = |c: &Call| syncs_dir(c, "/store/sessions");
        let durable = entry + position(&calls[entry..], "sync of the directory", dir);
        let changed = position(&calls, "change of the transcript", |c| {
            let cut = c.name == "ftruncate" && c.text.contains("messages.json>");
            cut || c.name.starts_with("rename") && c.text.contains(".messages.json\"")
        });
        let commit = position(&calls, "commit", |c| c.text.contains("\"undo.json\""));
        assert!(journal < entry && durable < changed && changed < commit, "{sample}");
        let synced = calls[changed..commit].iter().any(|c| {
            c.name == "fsync" && (c.text.contains("messages.json>") || syncs_dir(c, "/store/sessions"))
        });
        assert!(synced, "{sample}: the change is not synced before the commit");
        for (at, call) in calls
            .iter()
            .enumerate()
            .filter(|(_, c)| c.name == "unlinkat" && c.text.contains(".archive.jsonl\""))
        {
            assert!(changed < at && at < commit, "{sample}: {}", call.text);
            assert!(calls[at..commit].iter().any(dir), "{sample}: {} is not made durable", call.text);
        }
    }
}
