//! Every word of every turn of every sample is found in exactly the turns that have it: whatever a store does to write it
//! down, the bytes that are looked at first do not hide it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

use serde_json::Value;
use turnfs::agents;
use turnfs::catalog::{Catalog, StoreOptions};
use turnfs::host::Environment;
use turnfs::render;
use turnfs::search::{Query, Reads, search};
use turnfs::session::{AgentKind, Session, State};

use crate::support::{TestStore, names_of};

/// How many words of a sample are looked for.
const WORDS: usize = 40;
type Turns = BTreeSet<(String, u32)>;

/// A turn of a session or of a sub-agent, by the words that stand in it.
fn words_of_turns(catalog: &Catalog, session: &Session, words: &mut BTreeMap<String, Turns>) {
    let Ok(view) = catalog.view(&session.key) else { return };
    let turns = match view.history.state {
        State::Damaged => view.history.sound(),
        _ if view.history.readable().is_err() => return,
        _ => &view.history.turns,
    };
    for turn in turns {
        let span = catalog.span(&view, turn).unwrap();
        let text = agents::turn_text(&*view.store, session, turn, &span).unwrap();
        let lines = text.lines().skip(1).filter(|line| !render::is_bare_title(line));
        let recorded = recorded(&span);
        for word in lines.flat_map(|line| line.split(|c: char| !c.is_alphanumeric())) {
            let is_recorded = || recorded.contains(&word.to_lowercase());
            if word.chars().count() > 2 && word.chars().any(|c| !c.is_numeric()) && is_recorded() {
                words.entry(word.to_lowercase()).or_default().insert((session.id.clone(), turn.n));
            }
        }
    }
}

/// All strings and names in these records, in lower case: what stands in a turn's text besides was written by turnfs.
fn recorded(span: &[u8]) -> String {
    fn gather(value: &Value, all: &mut String) {
        match value {
            Value::String(text) => {
                all.push_str(text);
                all.push('\n');
                // Arguments of a tool are JSON in a string.
                if let Ok(inner @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
                    gather(&inner, all);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| gather(value, all)),
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                all.push_str(name);
                all.push('\n');
                gather(value, all);
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut all = String::new();
    for line in span.split(|byte| *byte == b'\n') {
        if let Ok(value) = serde_json::from_slice(line) {
            gather(&value, &mut all);
        }
    }
    all.to_lowercase()
}

fn found(catalog: &Catalog, query: &str) -> Turns {
    let listing = catalog.listing();
    let all: Vec<_> = listing
        .all()
        .into_iter()
        .map(|(project, listed)| (project.map(ToOwned::to_owned), listed.clone()))
        .collect();
    let query = Query::parse(query).unwrap();
    let mut turns = Turns::new();
    search(catalog, &query, &all, Reads { threads: 2, keep: false }, &AtomicBool::new(false), |outcome| {
        for matching in outcome.found {
            let session = matching.subagent.as_ref().unwrap_or(&matching.listed.session);
            turns.extend(matching.hits.iter().map(|hit| (session.id.clone(), hit.turn)));
        }
        ControlFlow::Continue(())
    });
    turns
}

/// Looks for words of every sample of an agent, at least for so many.
#[track_caller]
fn every_word_is_found_where_it_stands(agent: &str, least: usize) {
    let mut looked_for = 0;
    let mut wrong = Vec::new();
    for sample in names_of(agent) {
        let store = TestStore::of(agent, &sample);
        let kind: AgentKind = agent.parse().unwrap();
        let options = StoreOptions { places: vec![(kind, store.root.clone())], only: vec![kind] };
        let catalog = Catalog::new(&Environment::default(), &options);
        let mut words = BTreeMap::new();
        for (_, listed) in catalog.listing().all() {
            words_of_turns(&catalog, &listed.session, &mut words);
            for subagent in catalog.subagents(&listed.session).unwrap_or_default() {
                words_of_turns(&catalog, &subagent, &mut words);
            }
        }
        let every = words.len().div_ceil(WORDS).max(1);
        for word in words.keys().step_by(every) {
            looked_for += 1;
            // A word is found within longer ones, too.
            let fitting = words.iter().filter(|(longer, _)| longer.contains(word.as_str()));
            let expected: Turns = fitting.flat_map(|(_, turns)| turns.clone()).collect();
            let found = found(&catalog, word);
            if !expected.is_subset(&found) {
                wrong.push(format!("{agent} {sample}: {word:?}: {expected:?} but found {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {looked_for} words:\n{}", wrong.len(), wrong.join("\n"));
    assert!(looked_for >= least, "only {looked_for} words were looked for");
}

#[test]
fn every_word_of_every_sample_of_kimi_cli_is_found() {
    every_word_is_found_where_it_stands("kimi-cli", 200);
}

#[test]
fn every_word_of_every_sample_of_kimi_code_is_found() {
    every_word_is_found_where_it_stands("kimi-code", 60);
}

#[test]
fn every_word_of_every_sample_of_codex_is_found() {
    every_word_is_found_where_it_stands("codex", 250);
}

#[test]
fn every_word_of_every_sample_of_openmax_is_found() {
    every_word_is_found_where_it_stands("openmax", 250);
}

#[test]
fn every_word_of_every_sample_of_claude_code_is_found() {
    every_word_is_found_where_it_stands("claude-code", 200);
}
