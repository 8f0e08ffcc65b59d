//! The model and the tokens of turns: what the records of each turn of every sample say, added up here once more from
//! the parsed lines.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use turnfs::agents;
use turnfs::session::{AgentKind, History, Session, Tokens, Turn};

use crate::support::{AGENTS, TestStore, names_of};

/// Every session of a store, sub-agents too, with its history.
fn histories(kind: AgentKind, root: &Path) -> Vec<(Session, History)> {
    let store = agents::open(kind, root);
    let found = store.discover().unwrap();
    let mut sessions: Vec<Session> = found.sessions.iter().map(|session| (**session).clone()).collect();
    sessions.extend(store.subagents_of(&found.sessions).into_iter().map(|(_, agent)| agent));
    sessions
        .into_iter()
        .filter_map(|session| store.load(&session).ok().map(|history| (session, history)))
        .collect()
}

/// The lines of a turn that are JSON.
fn records(session: &Session, turn: &Turn) -> Vec<Value> {
    let mut records = Vec::new();
    for (file, span) in turn.ranges() {
        let path = session.key.root.join(file);
        let Ok(bytes) = fs::read(&path) else { continue };
        let bytes = match path.extension().is_some_and(|extension| extension == "zst") {
            true => zstd::decode_all(&*bytes).unwrap(),
            false => bytes,
        };
        let own = &bytes[span.start as usize..span.end as usize];
        records.extend(own.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()));
    }
    records
}

/// The sum of these numbers of objects; `None` where none of them is there.
fn sum<'v>(of: impl IntoIterator<Item = &'v Value>, keys: &[&str]) -> Option<u64> {
    let all = of.into_iter().flat_map(|object| keys.iter().filter_map(|key| object[*key].as_u64()));
    all.reduce(|one, other| one + other)
}

/// Of the client's sums, which it writes behind each request; only the newest clients do.
fn of_codex(records: &[Value]) -> Option<Tokens> {
    let usages: Vec<&Value> = records
        .iter()
        .filter(|record| record["type"] == "token_usage_record")
        .map(|record| &record["payload"]["usage"])
        .collect();
    let all = || usages.iter().copied();
    (!usages.is_empty()).then(|| Tokens {
        input: sum(all(), &["input_tokens"]),
        cached: sum(all(), &["cached_input_tokens"]),
        output: sum(all(), &["output_tokens"]),
        reasoning: sum(all(), &["reasoning_output_tokens"]),
    })
}

fn of_claude_code(records: &[Value], sidechain: bool) -> Option<Tokens> {
    let mut replies: BTreeMap<&str, &Value> = BTreeMap::new();
    for record in records.iter().filter(|record| record["type"] == "assistant") {
        let (message, own) = (&record["message"], record["isSidechain"].as_bool() == Some(sidechain));
        if own && message["model"] != "<synthetic>" {
            replies.insert(message["id"].as_str().unwrap(), &message["usage"]);
        }
    }
    let all = || replies.values().copied();
    let input = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
    (!replies.is_empty()).then(|| Tokens {
        input: sum(all(), &input),
        cached: sum(all(), &["cache_read_input_tokens"]),
        output: sum(all(), &["output_tokens"]),
        reasoning: sum(all().map(|usage| &usage["output_tokens_details"]), &["thinking_tokens"]),
    })
}

fn of_kimi_cli(records: &[Value]) -> Option<Tokens> {
    let usages: Vec<&Value> = records
        .iter()
        .filter(|record| record["message"]["type"] == "StatusUpdate")
        .map(|record| &record["message"]["payload"]["token_usage"])
        .filter(|usage| usage.is_object())
        .collect();
    let all = || usages.iter().copied();
    (!usages.is_empty()).then(|| Tokens {
        input: sum(all(), &["input_other", "input_cache_read", "input_cache_creation"]),
        cached: sum(all(), &["input_cache_read"]),
        output: sum(all(), &["output"]),
        reasoning: None,
    })
}

fn of_kimi_code(records: &[Value]) -> Option<Tokens> {
    let usages = records.iter().filter(|record| record["type"] == "usage.record");
    let usages: Vec<&Value> = usages.map(|record| &record["usage"]).collect();
    let all = || usages.iter().copied();
    (!usages.is_empty()).then(|| Tokens {
        input: sum(all(), &["inputOther", "inputCacheRead", "inputCacheCreation"]),
        cached: sum(all(), &["inputCacheRead"]),
        output: sum(all(), &["output"]),
        reasoning: None,
    })
}

/// The last model that the records name.
fn model(agent: &str, records: &[Value]) -> Option<String> {
    let named = records.iter().rev().find_map(|record| match (agent, record["type"].as_str()?) {
        ("codex", "turn_context") => record["payload"]["model"].as_str(),
        ("kimi-code", "usage.record") => record["model"].as_str(),
        ("claude-code", "assistant") => {
            record["message"]["model"].as_str().filter(|model| *model != "<synthetic>")
        }
        _ => None,
    });
    named.map(str::to_owned)
}

#[test]
fn every_turn_of_every_sample_has_the_model_and_the_tokens_that_its_records_tell() {
    let mut counted: BTreeMap<&str, usize> = BTreeMap::new();
    for (agent, _) in AGENTS {
        let kind: AgentKind = agent.parse().unwrap();
        for name in names_of(agent) {
            let store = TestStore::of(agent, &name);
            for (session, history) in histories(kind, &store.root) {
                for turn in &history.turns {
                    let records = records(&session, turn);
                    let expected = match agent {
                        "codex" => of_codex(&records),
                        "claude-code" => of_claude_code(&records, session.subagent.is_some()),
                        "kimi-cli" => of_kimi_cli(&records),
                        "kimi-code" => of_kimi_code(&records),
                        _ => None,
                    };
                    let found = turn.tokens.as_deref().copied();
                    let place = format!("{agent} {name} {} turn {}", session.id, turn.n);
                    // Of older Codex files the next test.
                    if expected.is_some() || agent != "codex" {
                        assert_eq!(found, expected, "{place}");
                    }
                    if session.subagent.is_none() {
                        assert_eq!(turn.model.as_deref(), model(agent, &records).as_deref(), "{place}");
                    }
                    *counted.entry(agent).or_default() += usize::from(expected.is_some());
                }
            }
        }
    }
    for (agent, least) in [("kimi-cli", 60), ("kimi-code", 20), ("codex", 50), ("claude-code", 60)] {
        assert!(counted[agent] >= least, "{counted:?}");
    }
}

#[test]
fn older_codex_files_tell_totals_again_and_again_and_each_request_counts_once() {
    let mut seen = 0;
    for name in names_of("codex").into_iter().filter(|name| name.starts_with("w_old_")) {
        let store = TestStore::of("codex", &name);
        for (session, history) in histories(AgentKind::Codex, &store.root) {
            let text = fs::read_to_string(session.key.absolute()).unwrap();
            let totals: Vec<u64> = text
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .filter_map(|line| line["payload"]["info"]["total_token_usage"]["input_tokens"].as_u64())
                .collect();
            let Some(last) = totals.last() else { continue };
            let told: u64 = history.turns.iter().filter_map(|turn| turn.tokens.as_ref()?.input).sum();
            assert_eq!(told, *last, "{name} {}", session.id);
            seen += 1;
        }
    }
    assert!(seen >= 4, "{seen}");
}

#[test]
fn the_pieces_of_a_reply_count_once_and_the_model_that_answered_last_is_the_turns() {
    let store = TestStore::empty_of("claude-code");
    let file = store.root.join("projects/-w-a/d2a89d11-f8f5-4cb1-836c-5321ecbadd9b.jsonl");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let mut parent = "null".to_owned();
    let mut lines = String::new();
    let mut add = |kind: &str, message: String| {
        let uuid = format!("\"u{}\"", lines.lines().count());
        lines += &format!(
            r#"{{"type":"{kind}","uuid":{uuid},"parentUuid":{parent},"isSidechain":false,"cwd":"/w/a","timestamp":"2026-11-30T13:27:49.289Z","message":{message}}}"#
        );
        lines += "\n";
        parent = uuid;
    };
    let reply = |id: &str, model: &str, input: u32, output: u32| {
        format!(
            r#"{{"role":"assistant","id":"{id}","model":"{model}","content":[{{"type":"text","text":"x"}}],"usage":{{"input_tokens":{input},"cache_read_input_tokens":5,"output_tokens":{output}}}}}"#
        )
    };
    add("user", r#"{"role":"user","content":"ask"}"#.into());
    add("assistant", reply("m1", "small", 10, 1));
    add("assistant", reply("m1", "small", 10, 7));
    add("assistant", reply("m2", "large", 20, 3));
    add("assistant", reply("m3", "<synthetic>", 0, 0));
    add("user", r#"{"role":"user","content":"and"}"#.into());
    fs::write(&file, lines).unwrap();
    let [(_, history)] = &histories(AgentKind::ClaudeCode, &store.root)[..] else { panic!() };
    let [first, second] = &history.turns[..] else { panic!("{:?}", history.turns) };
    let expected = Tokens { input: Some(40), cached: Some(10), output: Some(10), reasoning: None };
    assert_eq!((first.tokens.as_deref(), first.model.as_deref()), (Some(&expected), Some("large")));
    assert_eq!((second.tokens.as_deref(), second.model.as_deref()), (None, None));
}

#[test]
fn what_an_undo_removed_keeps_its_model_and_its_tokens() {
    use turnfs::cut::{self, StateDir};
    let store = TestStore::of("codex", "a_plain4");
    let [(session, before)] = &histories(AgentKind::Codex, &store.root)[..] else { panic!() };
    store.run(&["undo", &session.id, "2"]).ok();
    let state = StateDir::at(&store.state.join("turnfs"));
    let undone = cut::undone(&state, &session.key).unwrap();
    let facts = |turn: &Turn| (turn.n, turn.model.clone(), turn.tokens.clone());
    let removed: Vec<_> = undone[0].turns.iter().map(facts).collect();
    assert_eq!(removed, before.turns[2..].iter().map(facts).collect::<Vec<(u32, Option<Arc<str>>, _)>>());
    assert!(removed.iter().all(|(_, model, tokens)| model.is_some() && tokens.is_some()), "{removed:?}");
}
