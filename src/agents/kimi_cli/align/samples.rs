//! Every sample session that the real client wrote, or that was made from one: turns and cuts must be the
//! expected ones. The folder is looped over, so a new sample needs no line of code.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::super::records::{ContextRecord, TextKey};
use super::from_context::align_without_wire;
use super::sample_store::{Loaded, load, sample_folders};
use super::{Alignment, Refused, align};
use crate::session::{Confidence, TurnStatus};

/// What a test compares of a turn.
#[derive(Debug, PartialEq)]
struct Seen {
    prompt: TextKey,
    status: String,
    detail: Option<String>,
    group: u64,
    confidence: String,
}

struct Sample {
    name: String,
    expected: Value,
    loaded: Loaded,
    seen: Vec<Seen>,
    alignment: Alignment,
}

fn samples() -> Vec<Sample> {
    let all: Vec<_> = sample_folders().iter().map(|folder| sample(folder)).collect();
    assert!(!all.is_empty(), "no samples found");
    all
}

fn sample(folder: &Path) -> Sample {
    let expected: Value = serde_json::from_slice(&fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let loaded = load(&folder.join("store").join(expected["session_path"].as_str().unwrap()));
    let (seen, alignment) = if loaded.walk.turns.is_empty() {
        let (turns, alignment) = align_without_wire(&loaded.walk, &loaded.files);
        let seen = turns.iter().enumerate().map(|(index, turn)| Seen {
            prompt: turn.text.clone(),
            status: TurnStatus::Complete.name().into(),
            detail: None,
            group: index as u64,
            confidence: alignment.confidence(index).name().into(),
        });
        (seen.collect(), alignment)
    } else {
        let alignment = align(&loaded.walk, &loaded.files);
        let seen = loaded.walk.turns.iter().enumerate().map(|(index, turn)| Seen {
            prompt: turn.text.clone(),
            status: turn.status.name().into(),
            detail: turn.detail.map(|detail| detail.name().to_owned()),
            group: u64::from(turn.group),
            confidence: alignment.confidence(index).name().into(),
        });
        (seen.collect(), alignment)
    };
    let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
    Sample { name, expected, loaded, seen, alignment }
}

#[test]
fn turns_and_their_confidence_are_those_of_every_sample() {
    for sample in samples() {
        let expected = sample.expected["turns"].as_array().unwrap().iter().enumerate();
        let expected: Vec<Seen> = expected
            .map(|(index, turn)| Seen {
                prompt: TextKey::of(turn["prompt"].as_str().unwrap_or_default()),
                status: turn["status"].as_str().unwrap().into(),
                detail: turn["detail"].as_str().map(str::to_owned),
                group: turn["group"].as_u64().unwrap_or(index as u64),
                confidence: turn["confidence"].as_str().unwrap_or("exact").into(),
            })
            .collect();
        assert_eq!(sample.seen, expected, "{}", sample.name);
    }
}

#[test]
fn every_cut_of_every_sample_keeps_the_expected_lines_and_bytes_of_each_file() {
    for sample in samples() {
        let keep = sample.expected["keep"].as_object().unwrap();
        assert_eq!(sample.alignment.cuts.len(), keep.len(), "{}", sample.name);
        for (n, expected) in keep {
            let entry = (n.parse::<i64>().unwrap() + 1) as usize;
            let cut = &sample.alignment.cuts[entry];
            assert_eq!(shown(cut, expected), wanted(expected, &sample.loaded), "{}, keep {n}", sample.name);
        }
    }
}

/// A cut in the words of expected.json.
fn shown(cut: &Result<crate::session::CutPoint, Refused>, expected: &Value) -> Value {
    let session = |name: &Path| {
        // A flat session's only file is named by its path in the store.
        let name = name.to_str().unwrap();
        let flat = expected["files"]
            .as_object()
            .and_then(|files| files.keys().find(|key| key.ends_with(&format!("/{name}"))));
        flat.cloned().unwrap_or_else(|| name.to_owned())
    };
    match cut {
        Ok(point) => {
            let mut files = serde_json::Map::new();
            for kept in &point.kept {
                let place = json!({"lines": kept.lines, "bytes": kept.bytes, "from": session(&kept.source)});
                files.insert(session(&kept.file), place);
            }
            json!({"files": files})
        }
        Err(Refused::Ambiguous { options }) => {
            let options: Vec<_> =
                options.iter().map(|place| json!({"file": place.file, "lines": place.lines})).collect();
            json!({"refuse": "ambiguous", "options": options})
        }
        Err(Refused::Lost) => json!({"refuse": "lost"}),
        Err(Refused::TooLarge { .. }) => json!({"refuse": "too large"}),
    }
}

fn wanted(expected: &Value, loaded: &Loaded) -> Value {
    // The samples count a newline that a last line lacks, since whoever appends must write it first.
    let bytes = |from: &Value, kept: &Value| {
        let file = loaded.files.iter().find(|file| from.as_str() == Some(&file.name));
        let len = file.map_or(u64::MAX - 1, |file| file.byte_of(file.lines.len()));
        match kept["bytes"].as_u64().unwrap() {
            bytes if bytes == len + 1 => len,
            bytes => bytes,
        }
    };
    match expected["refuse"].as_str() {
        Some("ambiguous") => json!({"refuse": "ambiguous", "options": expected["options"]}),
        Some(why) => json!({"refuse": why}),
        None => {
            let files = expected["files"].as_object().unwrap().iter().map(|(file, kept)| {
                let from = kept.get("from").cloned().unwrap_or_else(|| json!(file));
                (file.clone(), json!({"lines": kept["lines"], "bytes": bytes(&from, kept), "from": from}))
            });
            json!({"files": files.collect::<serde_json::Map<_, _>>()})
        }
    }
}

#[test]
fn epochs_and_notes_are_those_of_every_sample() {
    for sample in samples() {
        if sample.expected["numbering"] == "context" {
            continue;
        }
        let epochs: Vec<Option<String>> =
            serde_json::from_value(sample.expected["context_epochs"].clone()).unwrap();
        assert_eq!(sample.alignment.epochs, epochs, "{}", sample.name);
        let mut notes: Vec<String> = serde_json::from_value(sample.expected["notes"].clone()).unwrap();
        // What a sample says about the product, not about the session.
        notes.retain(|note| !note.starts_with("turns[] and keep{}"));
        assert_eq!(sample.alignment.notes, notes, "{}", sample.name);
    }
}

/// Counting user records: turn N+1 begins at the (N+2)-th user record.
fn count_users(loaded: &Loaded, n: usize) -> usize {
    let live = loaded.files.last().unwrap();
    let users =
        live.lines.iter().enumerate().filter(|(_, line)| matches!(line.record, ContextRecord::User { .. }));
    let mut users = users.map(|(at, _)| at);
    users.nth(n + 1).unwrap_or(live.lines.len())
}

/// Matching texts: each turn is the next user record with its text.
fn match_texts(loaded: &Loaded, n: usize) -> usize {
    let live = loaded.files.last().unwrap();
    let mut at = 0;
    let mut cut = live.lines.len();
    for (index, turn) in loaded.walk.turns.iter().enumerate() {
        let found = (at..live.lines.len()).find(
            |&line| matches!(&live.lines[line].record, ContextRecord::User { text } if *text == turn.text),
        );
        let Some(found) = found else { continue };
        at = found + 1;
        if index > n {
            cut = found;
            break;
        }
    }
    cut
}

/// The samples bite: on these kinds of sessions the two obvious methods cut at the wrong line. Both get
/// the benefit of a checkpoint before the record that they found.
#[test]
fn counting_user_records_and_matching_texts_are_wrong_where_the_alignment_is_right() {
    let (mut counted_wrong, mut matched_wrong) = (Vec::new(), Vec::new());
    for sample in samples() {
        if sample.loaded.walk.turns.is_empty() {
            continue;
        }
        for n in 0..sample.loaded.walk.turns.len() {
            let Ok(point) = &sample.alignment.cuts[n + 1] else { continue };
            if point.confidence != Confidence::Exact {
                continue;
            }
            let context = point.kept.iter().find(|kept| kept.file == Path::new("context.jsonl")).unwrap();
            let right = |naive: usize| {
                let lines = context.lines as usize;
                context.source == context.file && (naive == lines || naive == lines + 1)
            };
            if !right(count_users(&sample.loaded, n)) {
                counted_wrong.push(sample.name.clone());
            }
            if !right(match_texts(&sample.loaded, n)) {
                matched_wrong.push(sample.name.clone());
            }
        }
    }
    for kind in ["c-compact", "d-steer", "e-slash", "g-dupcompact", "m-autocompact"] {
        assert!(counted_wrong.iter().any(|name| name == kind), "counting is right on {kind}");
        assert!(matched_wrong.iter().any(|name| name == kind), "matching texts is right on {kind}");
    }
    assert!(counted_wrong.iter().any(|name| name == "h-bg"));
    assert!(matched_wrong.iter().any(|name| name == "q-skill"));
}

/// expected.json records what the two methods give; where it differs from the expected cut, so must we.
#[test]
fn no_exact_cut_is_the_one_that_a_naive_method_gives_where_that_one_is_wrong() {
    let mut bites = 0;
    for sample in samples() {
        for turn in sample.expected["turns"].as_array().unwrap() {
            let n = turn["index"].as_u64().unwrap();
            let expected = &sample.expected["keep"][n.to_string()];
            let live = &expected["files"]["context.jsonl"];
            let Ok(point) = &sample.alignment.cuts[n as usize + 1] else { continue };
            let kept = point.kept.iter().find(|kept| kept.file == Path::new("context.jsonl"));
            for naive in ["count_user_records", "match_texts"] {
                let Some(lines) = turn["naive_cuts"][naive].as_u64() else { continue };
                // The naive cuts stand before a user record, the right ones before its checkpoint.
                let wrong = live["from"] != "context.jsonl"
                    || live["lines"].as_u64().is_some_and(|right| lines != right && lines != right + 1);
                if wrong {
                    bites += 1;
                    let same = kept
                        .is_some_and(|kept| kept.source == Path::new("context.jsonl") && kept.lines == lines);
                    assert!(!same, "{}, keep {n}, {naive}", sample.name);
                }
            }
        }
    }
    assert!(bites > 50, "only {bites} cuts where a naive method is wrong");
}
