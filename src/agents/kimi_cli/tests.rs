//! Every sample store, read as any session is read; and the inputs of `docs/stores/damage.md` made from
//! one.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::KimiCli;
use crate::agents::{AgentStore as _, Discovery, store_of};
use crate::render::{self, Length};
use crate::session::{Damage, DamageClass, History, NewFiles, Place, Session, State, TurnDetail};
use crate::transcript::{hash, read_range};

mod damage;
mod finding;
mod spelling;

struct Sample {
    name: String,
    store: PathBuf,
    expected: Value,
}

fn samples() -> Vec<Sample> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/kimi-cli");
    let mut samples: Vec<Sample> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let expected = fs::read_to_string(path.join("expected.json")).unwrap();
            Sample {
                name: path.file_name().unwrap().to_string_lossy().into_owned(),
                store: path.join("store"),
                expected: serde_json::from_str(&expected).unwrap(),
            }
        })
        .collect();
    samples.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!samples.is_empty());
    samples
}

fn discover(root: &Path) -> Arc<Discovery> {
    KimiCli::at(root).discover().unwrap()
}

/// The session that the sample is about, and its history.
fn read(sample: &Sample) -> (Session, History) {
    let path = Path::new(sample.expected["session_path"].as_str().unwrap());
    let found = discover(&sample.store);
    let session = found.sessions.iter().find(|session| &*session.key.path == path);
    let session = session.unwrap_or_else(|| panic!("{}: not found", sample.name));
    let history = store_of(session).load(session).unwrap();
    (Session::clone(session), history)
}

fn place(damage: &Damage) -> (&str, u64, u64, &str) {
    (&damage.file, damage.line, damage.byte, damage.class.name())
}

fn expected_place(damage: &Value) -> (&str, u64, u64, &str) {
    let number = |key: &str| damage[key].as_u64().unwrap();
    (damage["file"].as_str().unwrap(), number("line"), number("byte"), damage["class"].as_str().unwrap())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn sample(name: &str) -> Sample {
    samples().into_iter().find(|sample| sample.name == name).unwrap()
}

/// A copy of a sample's store in a new directory.
fn copy_of(name: &str) -> (tempfile::TempDir, Sample) {
    let mut sample = sample(name);
    let dir = tempfile::tempdir().unwrap();
    copy(&sample.store, dir.path());
    sample.store = dir.path().to_owned();
    (dir, sample)
}

fn render(session: &Session, history: &History, n: usize) -> String {
    let turn = &history.turns[n];
    let span = read_range(&session.key.root, &turn.file, turn.span.clone()).unwrap();
    let mut text = String::new();
    render::heading(turn, &mut text);
    store_of(session).items(session, turn, &span, &mut |_, item| render::item(&item, &mut text)).unwrap();
    text
}

#[test]
fn every_sample_has_its_turns_and_its_state() {
    for sample in samples() {
        let (session, history) = read(&sample);
        let name = &sample.name;
        assert_eq!(history.state.name(), sample.expected["state"], "{name}");
        assert_eq!(
            session.place,
            Place::Project(sample.expected["project"].as_str().unwrap().into()),
            "{name}"
        );
        assert_eq!(session.id, sample.expected["session"], "{name}");
        let expected = sample.expected["turns"].as_array().unwrap();
        assert_eq!(history.turns.len(), expected.len(), "{name}");
        assert_eq!(history.cuts.len(), expected.len() + 1, "{name}");
        for (turn, expected) in history.turns.iter().zip(expected) {
            let name = format!("{name}, turn {}", turn.n);
            assert_eq!(u64::from(turn.n), expected["index"].as_u64().unwrap(), "{name}");
            assert_eq!(turn.status.name(), expected["status"], "{name}");
            assert_eq!(turn.detail.map(TurnDetail::name), expected["detail"].as_str(), "{name}");
            if let Some(group) = expected["group"].as_u64() {
                assert_eq!(u64::from(turn.group), group, "{name}");
            }
            let span = read_range(&session.key.root, &turn.file, turn.span.clone()).unwrap();
            let prompt = store_of(&session).prompt(&session, turn, &span).unwrap();
            assert_eq!(prompt, expected["prompt"], "{name}");
            assert_eq!(turn.prompt.as_deref(), Some(&*prompt), "{name}");
        }
        let first = expected.first().and_then(|turn| turn["prompt"].as_str());
        assert_eq!(session.first_prompt.as_deref(), first, "{name}");
    }
}

#[test]
fn every_sample_has_its_damage_and_nothing_else() {
    for sample in samples() {
        let (_, history) = read(&sample);
        let name = &sample.name;
        let expected = match &sample.expected["damages"] {
            Value::Array(damages) => damages.iter().map(expected_place).collect(),
            _ => Vec::new(),
        };
        let found: Vec<_> = history.damages.iter().map(place).collect();
        assert_eq!(found, expected, "{name}");
        match &sample.expected["damage"] {
            Value::Null => assert!(history.readable().is_ok(), "{name}"),
            damage => {
                assert_eq!(place(&history.damages[0]), expected_place(damage), "{name}");
                let refusal = history.readable().unwrap_err();
                assert_eq!(refusal.errno(), rustix::io::Errno::UCLEAN, "{name}");
                assert!(refusal.to_string().contains("kimi-cli"), "{name}: {refusal}");
            }
        }
    }
}

#[test]
fn the_size_of_a_turn_is_that_of_its_text_and_the_text_is_always_the_same() {
    for sample in samples() {
        let (session, history) = read(&sample);
        for n in 0..history.turns.len() {
            let text = render(&session, &history, n);
            assert_eq!(text, render(&session, &history, n), "{}, turn {n}", sample.name);
            assert_eq!(history.turns[n].text_len, text.len() as u64, "{}, turn {n}: {text}", sample.name);
            let shown =
                history.turns[n].prompt.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
            assert!(text.contains(shown), "{}, turn {n}: {text}", sample.name);
        }
    }
}

#[test]
fn head_and_spans_together_are_the_whole_file_up_to_its_last_complete_line() {
    for sample in samples() {
        let (session, history) = read(&sample);
        let main = &history.files[0];
        let whole = fs::read(session.key.root.join(&main.file)).unwrap();
        let torn =
            history.damages.iter().find(|damage| damage.class.is_torn() && main.file.ends_with(&damage.file));
        let end = torn.map_or(whole.len(), |damage| damage.byte as usize);
        let mut joined = whole[..history.head_bytes as usize].to_vec();
        for turn in &history.turns {
            assert_eq!(*turn.file, *main.file, "{}", sample.name);
            assert_eq!(turn.span.start, joined.len() as u64, "{}, turn {}", sample.name, turn.n);
            let lines = whole[..joined.len()].iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!(turn.line, lines + 1, "{}, turn {}", sample.name, turn.n);
            joined.extend(read_range(&session.key.root, &turn.file, turn.span.clone()).unwrap());
        }
        assert!(joined == whole[..end], "{}", sample.name);
    }
}

#[test]
fn every_file_that_was_read_is_named_with_its_hash() {
    for sample in samples() {
        let (session, history) = read(&sample);
        assert_eq!(history.files.len(), session.files.len(), "{}", sample.name);
        for view in &history.files {
            assert!(session.files.contains(&view.file), "{}: {:?}", sample.name, view.file);
            assert_eq!(hash(&session.key.root, &view.file).unwrap(), (view.len, view.hash));
        }
        for sidecar in &session.sidecars {
            assert!(!session.files.contains(sidecar));
        }
    }
}

#[test]
fn the_context_shows_what_the_model_will_be_sent() {
    let (session, history) = read(&sample("b-tools"));
    let mut text = String::new();
    store_of(&session).context(&session, &history, &mut |_, item| render::item(&item, &mut text)).unwrap();
    for shown in ["SYSTEM PROMPT", "## User\n\nplain end", "deep thoughts here", "Shell (call_6_0)", "hi\n"] {
        assert!(text.contains(shown), "{shown} is not in {text}");
    }
}

#[test]
fn an_older_clients_sub_agent_is_a_context_beside_its_parents() {
    let (parent, _) = read(&sample("old-upgraded"));
    let found = store_of(&parent).subagents(&parent).unwrap();
    let names: Vec<_> = found.iter().filter_map(|agent| agent.subagent.as_deref()).collect();
    assert_eq!(names, ["context_sub_1", "context_sub_2"]);
    let history = store_of(&found[0]).load(&found[0]).unwrap();
    assert_eq!((history.state, history.turns.len()), (State::Ok, 2));
    assert_eq!(history.turns[0].prompt.as_deref(), Some("sub work"));
    assert!(render(&found[0], &history, 0).contains("reply to <sub work>"));
    assert!(store_of(&found[0]).undo_refusals(&found[0], &history).is_err());
}

#[test]
fn a_forked_sub_agent_is_a_session_beside_its_parent() {
    for (name, agent) in [("old-upgraded", "context_sub_1"), ("j-sub", "af20e08a2")] {
        let (parent, _) = read(&sample(name));
        let found = store_of(&parent).subagents(&parent).unwrap();
        let found = found.iter().find(|found| found.subagent.as_deref() == Some(agent)).unwrap();
        let history = store_of(found).load(found).unwrap();
        let plan = store_of(found).plan_fork(found, &history, 0, None).unwrap();
        assert_eq!(plan.promise.session.parent(), parent.key.path.parent(), "{name}");
    }
}

#[test]
fn a_fork_takes_the_older_sub_agents_of_the_turns_that_it_keeps() {
    let (session, history) = read(&sample("old-upgraded"));
    for (n, expected) in [(0, 0), (1, 1), (5, 1), (6, 2), (9, 2)] {
        let plan = store_of(&session).plan_fork(&session, &history, n, None).unwrap();
        let NewFiles::Dir { files, .. } = plan.made else { panic!("{:?}", plan.made) };
        let agents = files.iter().filter(|(file, _)| file.to_string_lossy().starts_with("context_sub_"));
        assert_eq!(agents.count(), expected, "fork {n}");
    }
}

#[test]
fn a_sub_agents_session_is_read_like_any_other() {
    let (parent, _) = read(&sample("j-sub"));
    let found = store_of(&parent).subagents(&parent).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].subagent.as_deref(), Some("af20e08a2"));
    assert_eq!(found[0].title.as_deref(), Some("explore: sub job"));
    let history = store_of(&found[0]).load(&found[0]).unwrap();
    assert_eq!((history.state, history.turns.len()), (State::Ok, 2));
    assert!(render(&found[0], &history, 0).contains("R54: reply to"));
    let (flat, _) = read(&sample("l-legacy-flat"));
    assert!(store_of(&flat).subagents(&flat).unwrap().is_empty());
}
