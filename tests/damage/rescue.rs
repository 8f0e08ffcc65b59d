//! `turnfs rescue`: the turns that end before the first damaged line, as a new session.

use std::fs;

use turnfs::session::AgentKind;

use crate::sample::{PLAIN, Sample, half, victim, write_old};

#[test]
fn rescue_makes_a_sound_session_of_the_turns_before_the_damage_and_leaves_the_damaged_one() {
    for sample in Sample::all() {
        let texts: Vec<String> =
            (0..2).map(|n| sample.store.run(&["show", &sample.id, &n.to_string()]).ok()).collect();
        sample.change(|lines| lines[victim(&sample)] = half(&lines[victim(&sample)]));
        let damaged = fs::read(&sample.transcript).unwrap();
        let ran = sample.store.run(&["rescue", &sample.id]);
        let of = sample.name;
        assert!(ran.stderr.contains("0 to 1"), "{of}: {}", ran.stderr);
        let printed = ran.ok();
        let id = printed.trim();
        assert_eq!(printed, format!("{id}\n"), "{of}: the id and nothing else");
        assert_ne!(id, sample.id);
        let shown = sample.shown(id);
        assert_eq!(shown["state"], "ok", "{of}");
        assert_eq!(shown["project"], sample.project(), "{of}");
        let turns = shown["turns"].as_array().unwrap();
        assert_eq!(turns.len(), 2, "{of}: {shown}");
        for (n, text) in texts.iter().enumerate() {
            assert_eq!(&sample.store.run(&["show", id, &n.to_string()]).ok(), text, "{of}: turn {n}");
            assert_eq!(turns[n]["boundary"], "exact", "{of}");
        }
        assert_eq!(fs::read(&sample.transcript).unwrap(), damaged, "{of}: the damaged session changed");
        assert_eq!(sample.listed()["state"], "damaged", "{of}");
    }
}

#[test]
fn every_line_of_every_sample_can_be_damaged_and_exactly_the_turns_before_it_are_rescued() {
    // Where each turn ends in the undamaged transcript, lines counted from 0.
    let ends = |agent: AgentKind| match agent {
        AgentKind::KimiCli => [5, 10, 15, 20],
        AgentKind::KimiCode => [19, 34, 49, 64],
        AgentKind::Codex => [13, 22, 31, 40],
        AgentKind::OpenMax => [2, 4, 6, 8],
        // The client's own notes behind an answer are no part of the conversation; without the last one nothing tells
        // that turn 3 had ended.
        AgentKind::ClaudeCode => [5, 10, 16, 22],
    };
    for (agent, name) in PLAIN {
        let sample = Sample::of(agent, name);
        let whole = sample.lines();
        for line in 0..whole.len() {
            sample.write(&[whole[..line].concat(), half(&whole[line]), whole[line + 1..].concat()].concat());
            let expected = ends(agent).iter().filter(|end| **end < line).count();
            let of = format!("{agent} {name}, line {}", line + 1);
            let ran = sample.store.run(&["rescue", &sample.id]);
            if expected == 0 {
                assert!(ran.refused().contains("nothing to rescue"), "{of}");
                continue;
            }
            let id = ran.ok().trim().to_owned();
            let shown = sample.shown(&id);
            assert_eq!(shown["state"], "ok", "{of}");
            assert_eq!(shown["turns"].as_array().unwrap().len(), expected, "{of}");
            let later = ["one", "two", "three", "four"][expected..].iter();
            for later in later {
                let leaked = files_of(&sample, &id).into_iter().any(|(_, text)| {
                    text.contains(&format!("{later} ")) || text.contains(&format!(" {later}"))
                });
                assert!(!leaked, "{of}: the new session holds something of turn {later}");
            }
        }
    }
}

/// The transcripts of a session, as text.
fn files_of(sample: &Sample, id: &str) -> Vec<(std::path::PathBuf, String)> {
    let all = sample.store.snapshot().into_iter();
    let mine = all.filter(|(path, _)| path.to_string_lossy().contains(id) && !path.ends_with("state.json"));
    mine.filter(|(path, _)| path.extension().is_some_and(|it| it == "jsonl" || it == "json"))
        .map(|(path, (_, bytes))| (path, String::from_utf8_lossy(&bytes).into_owned()))
        .collect()
}

#[test]
fn damage_in_a_context_of_kimi_cli_is_rescued_as_far_as_the_checkpoints_prove_it() {
    let sample = Sample::of(AgentKind::KimiCli, "a-plain");
    let context = sample.transcript.with_file_name("context.jsonl");
    let whole = fs::read(&context).unwrap();
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    let mut rescued = Vec::new();
    for line in 0..lines.len() {
        let damaged = [&lines[..line].concat()[..], &half(lines[line]), &lines[line + 1..].concat()].concat();
        write_old(&context, &damaged);
        let ran = sample.store.run(&["rescue", &sample.id]);
        if ran.code != 0 {
            assert!(
                ran.stderr.contains("rescue") || ran.stderr.contains("before the damage"),
                "{}",
                ran.stderr
            );
            rescued.push(0);
            continue;
        }
        let id = ran.ok().trim().to_owned();
        let shown = sample.shown(&id);
        assert_eq!(shown["state"], "ok", "line {}", line + 1);
        let turns = shown["turns"].as_array().unwrap().len();
        let copied = fs::read(context.parent().unwrap().with_file_name(&id).join("context.jsonl")).unwrap();
        assert!(
            lines[..line].concat().starts_with(&copied),
            "line {}: more than what is before it",
            line + 1
        );
        let users = String::from_utf8_lossy(&copied).matches("\"role\":\"user\"").count();
        assert_eq!(users, turns, "line {}: exactly the runs of its turns", line + 1);
        rescued.push(turns);
    }
    // A run begins with a checkpoint and its prompt: where one of these two is damaged, it is not certain
    // where the turn before ends, and that one is left out too.
    let run = 6;
    let third_answer = 1 + 2 * run + 4;
    assert_eq!(rescued[third_answer], 2, "{rescued:?}");
    assert!(rescued.is_sorted() || rescued.windows(2).all(|pair| pair[0] <= pair[1] + 1), "{rescued:?}");
}

#[test]
fn rescue_refuses_with_a_sentence_what_is_not_damaged_or_damaged_from_the_start() {
    for sample in Sample::all() {
        let of = sample.name;
        let before = sample.bytes();
        let sentence = sample.store.run(&["rescue", &sample.id]).refused();
        assert!(sentence.contains("not damaged") && sentence.contains("fork"), "{of}: {sentence}");
        assert!(sample.bytes() == before, "{of}");
        sample.change(|lines| lines[0] = half(&lines[0]));
        let before = sample.bytes();
        let sentence = sample.store.run(&["rescue", &sample.id]).refused();
        assert!(sentence.contains("line 1") && sentence.contains("nothing to rescue"), "{of}: {sentence}");
        assert!(sample.bytes() == before, "{of}: something was left behind");
    }
}
