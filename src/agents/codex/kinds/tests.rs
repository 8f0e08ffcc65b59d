//! Every kind of the table has an example in `tests/codex_kinds/rollout.jsonl`; `turn.md` beside it is how a
//! person should see them.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::super::items::items;
use super::*;
use crate::render;

fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/codex_kinds").join(name)
}

fn examples() -> Vec<String> {
    fs::read_to_string(file("rollout.jsonl")).unwrap().lines().map(str::to_owned).collect()
}

/// The items of these lines, as those of a turn.
fn shown(lines: &[String]) -> (String, Vec<String>) {
    let (mut text, mut unknown, mut length) = (String::new(), Vec::new(), render::Length::default());
    let mut sink = |_, item: Item<'_>| {
        if let Item::Unknown { kind, .. } = &item {
            unknown.push(kind.to_string());
        }
        render::item(&item, &mut text);
        render::item(&item, &mut length);
    };
    items(lines.join("\n").as_bytes(), false, true, &mut sink);
    assert_eq!(length.0, text.len() as u64);
    (text, unknown)
}

#[test]
fn every_kind_of_the_table_has_an_example_that_is_no_raw_json() {
    let mut seen: BTreeSet<(&str, String)> = BTreeSet::new();
    for example in examples() {
        let line: Value = serde_json::from_str(&example).unwrap();
        let of = |value: &Value| value["type"].as_str().unwrap_or_default().to_owned();
        let (kind, payload) = (of(&line), &line["payload"]);
        match kind.as_str() {
            "event_msg" => seen.insert(("event", of(payload))),
            "response_item" => seen.insert(("response", of(payload))),
            _ => false,
        };
        if !payload["item"].is_null() {
            seen.insert(("item", of(&payload["item"])));
        }
        seen.insert(("line", kind));
        // By itself, so that no other record says it.
        let (text, unknown) = shown(std::slice::from_ref(&example));
        assert_eq!(unknown, [""; 0], "{example}\n{text}");
    }
    let table = [("line", LINES), ("event", EVENTS), ("item", ITEMS), ("response", RESPONSES)];
    for (family, kinds) in table {
        for kind in kinds.iter().flat_map(|(_, names)| names.split(' ')) {
            assert!(seen.remove(&(family, kind.to_owned())), "{family} {kind} has no example");
        }
    }
    assert_eq!(seen, BTreeSet::new(), "examples of kinds that the table does not have");
}

#[test]
fn a_turn_with_every_kind_of_record_reads_as_it_should() {
    let (text, _) = shown(&examples());
    if std::env::var_os("TURNFS_GOLDEN").is_some() {
        fs::write(file("turn.md"), &text).unwrap();
    }
    let golden = fs::read_to_string(file("turn.md")).unwrap();
    for (number, (line, wanted)) in text.lines().zip(golden.lines()).enumerate() {
        assert_eq!(line, wanted, "turn.md, line {}", number + 1);
    }
    assert_eq!(text.len(), golden.len());
}

#[test]
fn a_kind_is_in_its_table_once() {
    for kinds in [LINES, EVENTS, ITEMS, RESPONSES] {
        let all: Vec<&str> = kinds.iter().flat_map(|(_, names)| names.split(' ')).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }
}

#[test]
fn a_kind_that_is_not_known_stays_visible() {
    let line = r#"{"type":"event_msg","payload":{"type":"brand_new","a":1}}"#.to_owned();
    assert_eq!(shown(&[line]).1, ["brand_new"]);
    let line = r#"{"type":"brand_new","payload":{"a":1}}"#.to_owned();
    assert_eq!(shown(&[line]).1, ["brand_new"]);
}
