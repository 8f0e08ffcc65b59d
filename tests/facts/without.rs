//! `turnfs fork SESSION N --without M`: one turn less, or a refusal that changes nothing.

use serde_json::Value;

use crate::support::{AGENTS, TestStore, names_of};

fn prompts(shown: &Value) -> Vec<Value> {
    shown["turns"].as_array().unwrap().iter().map(|turn| turn["prompt"].clone()).collect()
}

/// What a turn shows, without its heading: that has the turn's number.
fn text(store: &TestStore, id: &str, n: usize) -> String {
    let text = store.run(&["show", id, &n.to_string()]).ok();
    text.split_once('\n').unwrap().1.to_owned()
}

#[test]
fn every_turn_of_every_sample_is_left_out_or_that_is_refused_and_changes_nothing() {
    let mut made = std::collections::BTreeMap::new();
    for (agent, _) in AGENTS {
        for name in names_of(agent) {
            let store = TestStore::of(agent, &name);
            let sessions = store.run(&["ls", "--all", "--json"]).json();
            for session in sessions.as_array().unwrap().iter().filter(|session| session["state"] == "ok") {
                let id = session["id"].as_str().unwrap();
                let all = prompts(&store.run(&["show", id, "--json"]).json());
                let Some(last) = all.len().checked_sub(1) else { continue };
                for without in 0..last {
                    let place = format!("{agent} {name} {id} without {without} of {last}");
                    let before = store.snapshot();
                    let ran = store.run(&["fork", id, &last.to_string(), "--without", &without.to_string()]);
                    if ran.code != 0 {
                        assert!(ran.code == 1 && ran.stderr.starts_with("turnfs: "), "{place}: {ran:?}");
                        assert!(ran.stdout.is_empty() && store.snapshot() == before, "{place}: {ran:?}");
                        continue;
                    }
                    let new = ran.stdout.trim();
                    let shown = store.run(&["show", new, "--json"]).json();
                    assert_eq!(shown["state"], "ok", "{place}: {shown}");
                    let mut expected = all.clone();
                    expected.remove(without);
                    assert_eq!(prompts(&shown), expected, "{place}");
                    for n in 0..last {
                        let source = if n < without { n } else { n + 1 };
                        assert_eq!(text(&store, new, n), text(&store, id, source), "{place}: turn {source}");
                    }
                    // Nothing that was there is another one; but for an index, of which an entry is new.
                    let after = store.snapshot();
                    let changed: Vec<_> =
                        before.iter().filter(|(path, file)| after.get(*path) != Some(*file)).collect();
                    let is_index = |path: &std::path::Path| {
                        path.ends_with("index.json") || path.to_str().unwrap().starts_with("state_5.sqlite")
                    };
                    assert!(changed.iter().all(|(path, _)| is_index(path)), "{place}: {:?}", changed.first());
                    *made.entry(agent).or_insert(0) += 1;
                }
            }
        }
    }
    println!("{made:?}");
    for (agent, least) in [("codex", 20), ("claude-code", 25), ("openmax", 20)] {
        assert!(made.get(agent).is_some_and(|count| *count >= least), "{made:?}");
    }
}

#[test]
fn what_depends_on_a_turn_keeps_it() {
    for (agent, sample, n, without, says) in [
        ("codex", "a_plain4", "3", "0", "which later turns depend on"),
        ("codex", "c_compaction", "last", "1", "compacted"),
        ("claude-code", "compact", "last", "1", "compacted"),
        ("openmax", "c_compact", "last", "1", ""),
        ("kimi-cli", "a-plain", "2", "1", "cannot leave out a turn"),
        ("codex", "a_plain4", "2", "3", "turn 3 does not exist; the last turn is 2"),
        ("codex", "a_plain4", "0", "0", "no turn would be left"),
    ] {
        let store = TestStore::of(agent, sample);
        let sessions = store.run(&["ls", "--all", "--json"]).json();
        let id = sessions[0]["id"].as_str().unwrap();
        let before = store.snapshot();
        let said = store.run(&["fork", id, n, "--without", without]).refused();
        assert!(said.contains(says), "{agent} {sample}: {said}");
        assert_eq!(store.snapshot(), before, "{agent} {sample}");
    }
    // The last turn left out is a fork up to the one before it; a branch is forked as a whole.
    let store = TestStore::of("codex", "a_plain4");
    let id = store.run(&["ls", "--all", "--json"]).json()[0]["id"].as_str().unwrap().to_owned();
    let new = store.run(&["fork", &id, "3", "--without", "3"]).ok();
    let all = prompts(&store.run(&["show", &id, "--json"]).json());
    assert_eq!(prompts(&store.run(&["show", new.trim(), "--json"]).json()), all[..3]);
    assert_eq!(store.run(&["fork", &id, "--undone", "1", "--without", "1"]).code, 2);
}
