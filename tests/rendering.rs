//! What a turn's text looks like: `tests/rendering/<agent>/` holds a transcript with a call of every tool that turnfs
//! knows of the agent, and what a person sees of it. `TURNFS_GOLDEN=1` writes the latter anew; it must be read then.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::TestStore;

/// Each agent, a sample of it, and the place of the transcript in there.
const STORES: [(&str, &str, &str); 5] = [
    (
        "claude-code",
        "plain",
        "projects/-home-dev-repos-team-proj-alpha/d2a89d11-f8f5-4cb1-836c-5321ecbadd9b.jsonl",
    ),
    (
        "codex",
        "a_plain4_legacy",
        "sessions/2026/11/30/rollout-2026-11-30T13-42-53-01a22cb1-b422-7990-971d-5f69f5f275f3.jsonl",
    ),
    (
        "kimi-cli",
        "a-plain",
        "sessions/301f8022c44669fd30b93f123c419b45/0c45fd13-bf97-4bf8-9665-76d7e8ac2706/wire.jsonl",
    ),
    (
        "kimi-code",
        "a-plain",
        "sessions/wd_kc-a-plain_d23af06e25cb/session_43f6366c-ff5f-40c9-bd48-48e3280f5f51/agents/main/wire.jsonl",
    ),
    ("openmax", "a_plain", "sessions/561d5266-2612-4a70-b3b5-4277aff74b94.messages.json"),
];

fn rendering(agent: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rendering").join(agent)
}

/// A store whose one session has the agent's transcript.
fn store(agent: &str) -> TestStore {
    let (_, sample, transcript) = STORES.into_iter().find(|(name, ..)| *name == agent).unwrap();
    let store = TestStore::of(agent, sample);
    assert!(store.root.join(transcript).exists(), "{agent}: the sample has no {transcript}");
    fs::copy(rendering(agent).join("transcript.jsonl"), store.root.join(transcript)).unwrap();
    store
}

fn id_of(store: &TestStore) -> String {
    let sessions = store.run(&["ls", "--all", "--json"]).json();
    assert_eq!(sessions.as_array().unwrap().len(), 1, "{sessions}");
    sessions[0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_turn_reads_as_a_person_wants_it() {
    for (agent, ..) in STORES {
        let store = store(agent);
        let text = store.run(&["show", &id_of(&store), "0"]).ok();
        let golden = rendering(agent).join("turn.md");
        if std::env::var_os("TURNFS_GOLDEN").is_some() {
            fs::write(&golden, &text).unwrap();
        }
        let wanted = fs::read_to_string(&golden).unwrap();
        for (number, (line, wanted)) in text.lines().zip(wanted.lines()).enumerate() {
            assert_eq!(line, wanted, "{}, line {}", golden.display(), number + 1);
        }
        assert_eq!(text.len(), wanted.len(), "{agent}");
    }
}

#[test]
fn the_size_of_a_turn_is_that_of_its_text() {
    for (agent, ..) in STORES {
        let store = store(agent);
        let mount = store.mount::<&str>(&[]);
        let turns = mount.session(&store, None).join("turns");
        for turn in fs::read_dir(turns).unwrap().map(Result::unwrap) {
            let size = turn.metadata().unwrap().len();
            assert_eq!(fs::read(turn.path()).unwrap().len() as u64, size, "{agent} {:?}", turn.file_name());
        }
    }
}

#[test]
fn no_section_of_a_turn_reaches_into_the_next() {
    use pulldown_cmark::{Event, HeadingLevel, Parser, Tag};
    for (agent, ..) in STORES {
        let text = fs::read_to_string(rendering(agent).join("turn.md")).unwrap();
        // Every line that looks like a section is one, and every section is found.
        let lines = text.match_indices("\n## ").map(|(at, _)| at + 1);
        let fenced = |at: &usize| {
            let mut inside = Parser::new(&text).into_offset_iter();
            inside
                .any(|(event, range)| matches!(event, Event::Start(Tag::CodeBlock(_))) && range.contains(at))
        };
        let lines: Vec<usize> = lines.filter(|at| !fenced(at)).collect();
        let (mut depth, mut sections) = (0, Vec::new());
        for (event, range) in Parser::new(&text).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { level: HeadingLevel::H2, .. }) if depth == 0 => {
                    sections.push(range.start);
                    depth += 1;
                }
                Event::Start(_) => depth += 1,
                Event::End(_) => depth -= 1,
                _ => {}
            }
        }
        assert_eq!(lines, sections, "{agent}");
        assert!(sections.len() > 10, "{agent}");
    }
}

#[test]
fn a_word_that_was_said_is_found_by_grep() {
    for (agent, ..) in STORES {
        let text = fs::read_to_string(rendering(agent).join("turn.md")).unwrap();
        for word in ["do everything", "fn main() {", "Let me look.", "ls -la", "Done <!-- with a comment"] {
            assert!(text.lines().any(|line| line.contains(word)), "{agent}: {word}");
        }
    }
}
