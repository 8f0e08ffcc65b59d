//! Codex sessions as they are read: every sample must give what its expected.json says.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod codex_store;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use codex_store::{Store, content, expected, names, samples, sha256};
use serde_json::Value;
use turnfs::agents::AgentStore as _;
use turnfs::agents::codex::Codex;
use turnfs::session::{CutPoint, History, Place, Session, TurnDetail};

fn sessions(root: &Path) -> Vec<Arc<Session>> {
    Codex::at(root).discover().unwrap().sessions.clone()
}

fn session<'s>(sessions: &'s [Arc<Session>], id: &Value) -> &'s Session {
    sessions
        .iter()
        .find(|session| session.id == id.as_str().unwrap())
        .unwrap_or_else(|| panic!("{id} is not listed"))
}

/// The kept lines of a lineage without the files' own first lines: what a self-contained fork holds.
fn body(root: &Path, cut: &CutPoint) -> Vec<u8> {
    let mut body = Vec::new();
    for kept in &cut.kept {
        let bytes = fs::read(root.join(&kept.source)).unwrap();
        let first = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        body.extend_from_slice(&bytes[first..kept.bytes as usize]);
    }
    body
}

fn text(codex: &Codex, session: &Session, history: &History, n: usize) -> String {
    let turn = &history.turns[n];
    let span = turnfs::transcript::read_range(&session.key.root, &turn.file, turn.span.clone()).unwrap();
    let mut text = String::new();
    turnfs::render::heading(turn, &mut text);
    codex.items(session, turn, &span, &mut |_, item| turnfs::render::item(&item, &mut text)).unwrap();
    text
}

#[test]
fn every_sample_reads_as_expected_and_reading_leaves_no_trace() {
    for sample in names() {
        let store = Store::of(&sample);
        let root = &*store.root;
        let before = content(root);
        let codex = Codex::at(root);
        let found = codex.discover().unwrap();
        assert!(found.problems.is_empty(), "{sample}: {:?}", found.problems);
        let wanted = expected(&sample);
        assert_eq!(found.sessions.len(), wanted.len(), "{sample}");
        for want in &wanted {
            let session = session(&found.sessions, &want["session"]);
            let what = format!("{sample} {}", session.id);
            assert_eq!(session.place, Place::Project(want["project"].as_str().unwrap().into()), "{what}");
            assert_eq!(session.files[0], Path::new(want["rollout"].as_str().unwrap()), "{what}");
            assert_eq!(session.history_mode.as_deref(), want["history_mode"].as_str(), "{what}");
            assert_eq!(session.first_prompt.as_deref(), want["turns"][0]["prompt"].as_str(), "{what}");
            assert_eq!(session.forked_from.as_deref(), want["forked_from"].as_str(), "{what}");
            if let Some(name) = want["name"].as_str() {
                assert_eq!(session.title.as_deref(), Some(name), "{what}");
            }
            let history = codex.load(session).unwrap();
            assert_eq!(
                history.state.name(),
                want["state"].as_str().unwrap(),
                "{what}: {:?}",
                history.damages
            );
            assert!(history.damages.is_empty(), "{what}: {:?}", history.damages);
            check_turns(&codex, session, &history, want, &what);
            check_cuts(root, &history, want, &what);
        }
        assert_eq!(content(root), before, "{sample} was written to");
    }
}

fn check_turns(codex: &Codex, session: &Session, history: &History, want: &Value, what: &str) {
    let turns = want["turns"].as_array().unwrap();
    assert_eq!(history.turns.len(), turns.len(), "{what}");
    assert_eq!(history.sound_turns as usize, turns.len(), "{what}");
    for (turn, want) in history.turns.iter().zip(turns) {
        let what = format!("{what} turn {}", turn.n);
        assert_eq!(u64::from(turn.n), want["index"].as_u64().unwrap(), "{what}");
        assert_eq!(turn.prompt.as_deref(), want["prompt"].as_str(), "{what}");
        assert_eq!(turn.status.name(), want["status"].as_str().unwrap(), "{what}");
        assert_eq!(turn.detail.map(TurnDetail::name), want["detail"].as_str(), "{what}");
        assert_eq!(&*turn.file, Path::new(want["file"].as_str().unwrap()), "{what}");
        assert_eq!(turn.span.start, want["byte_offset"].as_u64().unwrap(), "{what}");
        let text = text(codex, session, history, turn.n as usize);
        assert_eq!(text.len() as u64, turn.text_len, "{what}:\n{text}");
        for prompt in want["prompts"].as_array().into_iter().flatten() {
            assert_eq!(
                text.matches(&format!("\n{}\n", prompt.as_str().unwrap())).count(),
                1,
                "{what}:\n{text}"
            );
        }
        if want.get("compaction").is_some() {
            assert!(text.contains("\n## Compaction\n"), "{what}:\n{text}");
        }
        if want["status"] == "failed" {
            assert!(text.contains("\n## Notice: error\n"), "{what}:\n{text}");
        }
    }
}

fn check_cuts(root: &Path, history: &History, want: &Value, what: &str) {
    let keep = want["keep"].as_object().unwrap();
    assert_eq!(history.cuts.len(), keep.len(), "{what}");
    for (n, want) in keep {
        let what = format!("{what} keeping {n}");
        let entry = (n.parse::<i64>().unwrap() + 1) as usize;
        let cut = history.cuts[entry].as_ref().unwrap();
        let at = cut.at.as_ref().unwrap();
        assert_eq!(at.file, Path::new(want["cut"]["file"].as_str().unwrap()), "{what}");
        assert_eq!(Some(at.id.as_str()), want["cut"]["rollout_id"].as_str(), "{what}");
        assert_eq!(Some(at.byte), want["cut"]["byte_offset"].as_u64(), "{what}");
        assert_eq!(at.ordinal, want["cut"]["ordinal"].as_u64(), "{what}");
        for (file, want) in want["files"].as_object().unwrap() {
            let kept = cut.kept.iter().find(|kept| kept.file == Path::new(file)).unwrap();
            assert_eq!(Some(kept.lines), want["lines"].as_u64(), "{what}");
            assert_eq!(Some(kept.bytes), want["bytes"].as_u64(), "{what}");
        }
        let hash = sha256(&body(root, cut));
        assert_eq!(hash, want["copy_body"]["sha256"].as_str().unwrap(), "{what}");
    }
}

#[test]
fn both_history_modes_give_the_same_text() {
    for (paginated, legacy) in [
        ("a_plain4", "a_plain4_legacy"),
        ("b_tools_reasoning", "b_tools_reasoning_legacy"),
        ("c_compaction", "c_compaction_legacy"),
        ("h_aborted", "h_aborted_legacy"),
    ] {
        let texts = |sample: &str| {
            let root = samples().join(sample).join("store");
            let codex = Codex::at(&*root);
            let session = &sessions(&root)[0];
            let history = codex.load(session).unwrap();
            let texts: Vec<String> = (0..history.turns.len())
                .map(|n| {
                    let text = text(&codex, session, &history, n);
                    // Heading and what the two runs happened to have: ids, times.
                    let lines = text
                        .lines()
                        .skip(1)
                        .filter(|line| !line.starts_with("- Chunk ID") && !line.starts_with("exit code 0"));
                    lines
                        .map(|line| line.split(" (call_").next().unwrap().split(": call_").next().unwrap())
                        .collect::<Vec<_>>()
                        .join("\n")
                })
                .collect();
            texts
        };
        assert_eq!(texts(paginated), texts(legacy), "{paginated}");
    }
}

#[test]
fn the_context_is_what_the_client_sends_its_model() {
    for sample in names() {
        for want in expected(&sample) {
            let root = samples().join(&sample).join("store");
            let sessions = sessions(&root);
            let session = session(&sessions, &want["session"]);
            let codex = Codex::at(&*root);
            let history = codex.load(session).unwrap();
            let mut sent: Vec<(String, String)> = Vec::new();
            codex
                .context(session, &history, &mut |_, item| {
                    use turnfs::session::Item;
                    let (role, text) = match item {
                        Item::User { text } => ("user", text),
                        Item::Assistant { text } => ("assistant", text),
                        Item::ToolCall { id, .. } => ("call", id),
                        Item::ToolResult { output, .. } => ("tool", output),
                        Item::Notice { kind, text } if kind != "developer" && kind != "context" => {
                            ("user", text)
                        }
                        _ => return,
                    };
                    sent.push((role.to_owned(), text.chars().take(80).collect()));
                })
                .unwrap();
            let last = (history.turns.len() - 1).to_string();
            let wanted: Vec<(String, String)> =
                serde_json::from_value(want["keep"][&last]["messages"].clone()).unwrap();
            assert_eq!(sent, wanted, "{sample} {}", session.id);
        }
    }
}
