//! Every sample reads as expected.json says; a new sample folder is a new test.

use std::path::Path;

use serde_json::Value;
use turnfs::agents::store_of;
use turnfs::session::{Damage, Place, State, TurnDetail};

use crate::store::{Store, all_samples};

#[test]
fn every_sample_has_the_turns_states_and_damage_that_are_expected() {
    for (sample, _, sessions) in all_samples() {
        let store = Store::of(&sample);
        let before = store.snapshot();
        for expected in &sessions {
            let id = expected["session"].as_str().unwrap();
            let session = store.session(id);
            let history = store_of(&session).load(&session).unwrap();
            let at = format!("{sample} {id}");
            assert_eq!(history.state.name(), expected["state"], "{at}");
            check_damage(&expected["damage"], &history.damages, &at);
            match expected["project"].as_str() {
                Some(project) if project.starts_with('/') && !project.contains("/../") => {
                    assert_eq!(session.place, Place::Project(Path::new(project).to_owned()), "{at}");
                }
                _ => assert!(matches!(session.place, Place::Unplaced { .. }), "{at}"),
            }
            if let Some(title) = expected.get("title") {
                assert_eq!(session.title.as_deref(), title.as_str(), "{at}");
            }
            if history.state == State::Damaged {
                assert!(history.readable().is_err(), "{at}");
                continue;
            }
            let turns = expected["turns"].as_array().unwrap();
            assert_eq!(history.turns.len(), turns.len(), "{at}");
            assert_eq!(history.cuts.len(), turns.len() + 1, "{at}");
            for (turn, expected) in history.turns.iter().zip(turns) {
                let at = format!("{at} turn {}", turn.n);
                assert_eq!(turn.prompt.as_deref(), expected["prompt"].as_str(), "{at}");
                let bytes = store.bytes(turn);
                // Of some samples only the prompts are known.
                if let Some(status) = expected.get("status") {
                    assert_eq!(turn.status.name(), status, "{at}");
                    assert_eq!(turn.detail.map(TurnDetail::name), expected["detail"].as_str(), "{at}");
                    let messages =
                        bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
                    let range: Vec<u64> = serde_json::from_value(expected["messages"].clone()).unwrap();
                    assert_eq!(messages.count() as u64, range[1] - range[0], "{at}");
                }
                let text = store.text(&session, turn);
                assert_eq!(text.len() as u64, turn.text_len, "{at}");
                let prompt = store_of(&session).prompt(&session, turn, &bytes).unwrap();
                assert_eq!(Some(prompt.as_str()), expected["prompt"].as_str(), "{at}");
                assert!(text.contains("## User"), "{at}: {text}");
            }
            let mut context = 0;
            store_of(&session).context(&session, &history, &mut |_, _| context += 1).unwrap();
            if let Some(live) = expected["live_messages"].as_u64() {
                assert!(context >= live, "{at}");
            }
        }
        assert_eq!(store.snapshot(), before, "{sample}: reading wrote");
    }
}

fn check_damage(expected: &Value, found: &[Damage], at: &str) {
    let Some(first) = found.first() else {
        assert!(expected.is_null(), "{at}: {expected} was not found");
        return;
    };
    assert_eq!(expected["file"], first.file, "{at}");
    assert_eq!(expected["class"], first.class.name(), "{at}");
    if let Some(line) = expected["line"].as_u64() {
        assert_eq!(line, first.line, "{at}");
    }
    if let Some(byte) = expected["byte"].as_u64() {
        assert_eq!(byte, first.byte, "{at}");
    }
}
