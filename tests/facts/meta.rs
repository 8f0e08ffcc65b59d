//! `meta.json`, `ls --json` and `show --json`: the same facts wherever they stand.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::racy::settle;
use crate::support::{AGENTS, TestStore, names_of, run};

fn meta(dir: &Path) -> Value {
    let file = dir.join("meta.json");
    let size = fs::metadata(&file).unwrap().len();
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.len() as u64, size, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// The session as `ls` and `meta.json` tell it.
fn session<'v>(sessions: &'v Value, id: &str) -> &'v Value {
    sessions.as_array().unwrap().iter().find(|session| session["id"] == id).unwrap()
}

#[test]
fn a_mount_and_the_commands_tell_the_same_of_every_sample() {
    let mut with_tokens = 0;
    for (agent, _) in AGENTS {
        for name in names_of(agent) {
            let store = TestStore::of(agent, &name);
            let mount = store.mount::<&str>(&[]);
            for listed in store.run(&["ls", "--all", "--json"]).json().as_array().unwrap() {
                let place = format!("{agent} {name} {}", listed["id"]);
                let dir = mount.path.join(listed["path"].as_str().unwrap());
                let meta = meta(&dir);
                for key in ["id", "title", "project", "archived", "resume", "turns"] {
                    assert_eq!(meta[key], listed[key], "{key} of {place}");
                }
                let status = fs::read_to_string(dir.join("status")).unwrap();
                let line = status.lines().find_map(|line| line.strip_prefix("resume: "));
                assert_eq!(line, meta["resume"].as_str(), "{place}");
                let by_path = store.run(&["show", dir.to_str().unwrap(), "--json"]);
                if by_path.code != 0 {
                    assert!(listed["turns"].is_null(), "{place}: {by_path:?}");
                    continue;
                }
                let shown = by_path.json();
                for key in
                    ["title", "cwd", "branch", "commit", "models", "tokens", "parent", "children", "resume"]
                {
                    assert_eq!(shown[key], meta[key], "{key} of {place}");
                }
                if agent != "openmax" {
                    for key in ["input", "cached", "output", "reasoning"] {
                        let turns = shown["turns"].as_array().unwrap().iter();
                        let each = turns.filter_map(|turn| turn["tokens"][key].as_u64());
                        let sum = each.reduce(|one, other| one + other);
                        assert_eq!(meta["tokens"][key].as_u64(), sum, "{key} of {place}");
                    }
                }
                with_tokens += usize::from(meta["tokens"].is_object());
            }
        }
    }
    assert!(with_tokens > 80, "{with_tokens}");
}

#[test]
fn where_a_session_was_begun_is_told_as_its_store_records_it() {
    let store = TestStore::of("codex", "a_plain4");
    let mount = store.mount::<&str>(&[]);
    let codex = meta(&mount.session(&store, None));
    assert_eq!(codex["cwd"], "/home/dev/work/app1");
    assert_eq!(codex["branch"], "master");
    assert_eq!(codex["commit"].as_str().unwrap().len(), 40);
    assert_eq!(codex["models"], json!(["gpt-5.2-codex"]));

    for (recorded, branch) in [("HEAD", Value::Null), ("feat/x", "feat/x".into())] {
        let store = TestStore::of("claude-code", "plain");
        let id = "d2a89d11-f8f5-4cb1-836c-5321ecbadd9b";
        let file = store.root.join(format!("projects/-home-dev-repos-team-proj-alpha/{id}.jsonl"));
        let text = fs::read_to_string(&file).unwrap();
        // The client writes HEAD where there is no branch.
        assert!(text.contains(r#""gitBranch":"HEAD""#));
        fs::write(&file, text.replace(r#""gitBranch":"HEAD""#, &format!(r#""gitBranch":"{recorded}""#)))
            .unwrap();
        let mount = store.mount::<&str>(&[]);
        let claude = meta(&mount.session(&store, None));
        assert_eq!((&claude["branch"], &claude["cwd"]), (&branch, &claude["project"]));
    }
}

#[test]
fn the_bill_of_an_openmax_session_is_its_sum_and_is_read_again_when_it_grows() {
    let store = TestStore::of("openmax", "a_plain");
    let mount = store.mount::<&str>(&[]);
    let dir = mount.session(&store, None);
    let id = meta(&dir)["id"].as_str().unwrap().to_owned();
    let bill = store.root.join(format!("sessions/{id}.usage.jsonl"));
    let mut text = fs::read_to_string(&bill).unwrap();
    let sum = |text: &str, key: &str| -> u64 {
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter_map(|line| line[key].as_u64()).sum()
    };
    for more in
        ["", "{\"ts\":1796045290,\"prompt_tokens\":1000,\"completion_tokens\":9,\"cached_tokens\":500}\n"]
    {
        text += more;
        fs::write(&bill, &text).unwrap();
        let tokens = meta(&dir)["tokens"].clone();
        let expected = json!({
            "input": sum(&text, "prompt_tokens"), "cached": sum(&text, "cached_tokens"),
            "output": sum(&text, "completion_tokens"), "reasoning": null,
        });
        assert_eq!(tokens, expected);
    }
}

#[test]
fn a_fork_names_its_parent_and_the_parent_its_children_at_once() {
    for (agent, sample) in [("codex", "a_plain4"), ("kimi-code", "a-plain")] {
        let store = TestStore::of(agent, sample);
        let mount = store.mount::<&str>(&[]);
        let dir = mount.session(&store, None);
        let before = meta(&dir);
        assert_eq!((&before["parent"], &before["children"]), (&Value::Null, &Value::Null), "{agent}");
        let mut children = Vec::new();
        for n in [0, 1] {
            let script = format!("cd '{}' && echo {n} > fork && cat fork", dir.display());
            let id = run(store.shell("sh", &script)).ok().trim().to_owned();
            children.push(id.clone());
            // Stat and text agree, whatever the kernel had of the source.
            assert_eq!(meta(&dir)["children"], json!(children), "{agent}");
            let sessions = store.run(&["ls", "--all", "--json"]).json();
            let fork = meta(&mount.path.join(session(&sessions, &id)["path"].as_str().unwrap()));
            assert_eq!(fork["parent"], before["id"], "{agent}");
            assert_eq!(fork["forked_from"], before["id"], "{agent}");
        }
    }
}

#[test]
fn a_sub_agent_names_its_parent_and_cannot_be_continued() {
    for (agent, sample) in [("kimi-cli", "j-sub"), ("kimi-code", "j-sub")] {
        let store = TestStore::of(agent, sample);
        let mount = store.mount::<&str>(&[]);
        let dir = mount.session(&store, None);
        let parent = meta(&dir);
        let mut agents = Vec::new();
        for entry in fs::read_dir(dir.join("agents")).unwrap() {
            let own = meta(&entry.unwrap().path());
            assert_eq!(own["parent"], parent["id"], "{agent}");
            assert_eq!(own["resume"], Value::Null, "{agent}");
            agents.push(own["id"].clone());
        }
        assert!(!agents.is_empty());
        assert_eq!(parent["children"], json!(agents), "{agent}");
    }
}

#[test]
fn a_meta_json_that_was_looked_at_reads_no_byte_of_a_transcript() {
    for (agent, sample) in [
        ("kimi-cli", "j-sub"),
        ("kimi-code", "j-sub"),
        ("codex", "f_client_fork"),
        ("claude-code", "tools"),
        ("openmax", "c_compact"),
    ] {
        let store = TestStore::of(agent, sample);
        let mount = store.mount_with_short_window::<&str>(&[]);
        let sessions = store.run(&["ls", "--all", "--json"]).json();
        let dirs =
            sessions.as_array().unwrap().iter().map(|one| mount.path.join(one["path"].as_str().unwrap()));
        let dirs: Vec<_> = dirs.collect();
        settle();
        let look = || dirs.iter().for_each(|dir| drop(meta(dir)));
        look();
        look();
        let read = || -> Vec<String> {
            let metrics = fs::read_to_string(mount.path.join(".turnfs/metrics")).unwrap();
            metrics
                .lines()
                .filter(|line| line.starts_with("turnfs_store_bytes_read"))
                .map(str::to_owned)
                .collect()
        };
        let before = read();
        look();
        assert_eq!(read(), before, "{agent}");
    }
}
