//! What the client itself reads is no damage, and what its parser does not reach is: NaN, equal keys, depth.

use std::fs;

use turnfs::session::AgentKind;

use crate::sample::{Sample, replaced, victim, write_old};

#[test]
fn nan_and_equal_keys_are_what_kimi_cli_reads() {
    let inserts = [r#""x": NaN, "#, r#""x": [-Infinity, Infinity], "#, r#""type": "text", "#];
    for insert in inserts {
        let sample = Sample::of(AgentKind::KimiCli, "a-plain");
        sample.change(|lines| {
            let line = victim(&sample);
            lines[line] = replaced(&lines[line], r#""type": "text""#, &format!(r#"{insert}"type": "text""#));
        });
        let context = sample.transcript.with_file_name("context.jsonl");
        let text = fs::read_to_string(&context).unwrap();
        write_old(
            &context,
            text.replacen(r#"{"role":"user""#, &format!(r#"{{{insert}"role":"user""#), 1).as_bytes(),
        );
        let shown = sample.shown(&sample.id);
        assert_eq!(
            (&shown["state"], shown["turns"].as_array().unwrap().len()),
            (&"ok".into(), 4),
            "{insert}"
        );
        let text = sample.store.run(&["show", &sample.id, "2"]).ok();
        assert!(text.contains("reply to <turn three>"), "{insert}: {text}");
        assert_eq!(shown["turns"][3]["boundary"], "exact", "{insert}");
        sample.store.run(&["fork", &sample.id, "3"]).ok();
    }
}

#[test]
fn a_type_that_is_escaped_or_given_twice_begins_the_turn_that_kimi_cli_reads() {
    let type_of = r#""type": "TurnBegin", "payload": {"user_input": "turn three""#;
    for (spelled, is_read) in [
        (r#""type": "Turn\u0042egin", "payload": {"user_input": "turn three""#, true),
        (r#""typ\u0065": "TurnBegin", "payload": {"user_input": "turn three""#, true),
        (r#""type": "TurnEnd", "type": "TurnBegin", "payload": {"user_input": "turn three""#, true),
        (r#""type": "TurnBegin", "payload": {}, "payload": {"user_input": "turn three""#, false),
        (
            r#""type": "TurnEnd", "payload": {}, "type": "TurnBegin", "payload": {"user_input": "turn three""#,
            false,
        ),
    ] {
        let sample = Sample::of(AgentKind::KimiCli, "a-plain");
        sample.change(|lines| lines[11] = replaced(&lines[11], type_of, spelled));
        let shown = sample.shown(&sample.id);
        if !is_read {
            assert_eq!(shown["damage"]["class"], "bad-record", "{spelled}");
            sample.store.run(&["undo", &sample.id, "2"]).refused();
            continue;
        }
        assert_eq!(shown["turns"][2]["prompt"], "turn three", "{spelled}");
        sample.store.run(&["undo", &sample.id, "2"]).ok();
        let context = fs::read_to_string(sample.transcript.with_file_name("context.jsonl")).unwrap();
        assert!(context.contains("turn two") && !context.contains("turn three"), "{spelled}: {context}");
    }
}

#[test]
fn a_raw_control_character_is_read_in_a_context_and_is_damage_in_a_wire() {
    let sample = Sample::of(AgentKind::KimiCli, "a-plain");
    let context = sample.transcript.with_file_name("context.jsonl");
    let text = fs::read_to_string(&context).unwrap();
    write_old(&context, text.replace("reply to <turn three>", "reply to\t<turn three>").as_bytes());
    assert_eq!(sample.shown(&sample.id)["state"], "ok");
    sample.change(|lines| lines[victim(&sample)] = replaced(&lines[victim(&sample)], "three", "th\tree"));
    assert_eq!(sample.shown(&sample.id)["damage"]["class"], "bad-line");
}

#[test]
fn nesting_without_end_crashes_nothing() {
    for depth in [100, 150, 100_000, 2_000_000] {
        for sample in Sample::all() {
            let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            sample.change(|lines| {
                let line = String::from_utf8(lines[victim(&sample)].clone()).unwrap();
                let brace = line.rfind('}').unwrap();
                let line = format!("{},\"x\":{nested}{}", &line[..brace], &line[brace..]);
                lines[victim(&sample)] = line.into_bytes();
            });
            let listed = sample.listed();
            // Where the clients' parsers stop; they skip such a line. OpenMax's passes over a field that it
            // does not know, however deep.
            let limit = match sample.agent {
                AgentKind::KimiCli => 200,
                AgentKind::Codex => 127,
                AgentKind::OpenMax | AgentKind::KimiCode | AgentKind::ClaudeCode => usize::MAX,
            };
            assert_eq!(
                listed["state"],
                if depth > limit { "damaged" } else { "ok" },
                "{} {depth}",
                sample.name
            );
            let code = sample.store.run(&["check", "--all"]).code;
            assert!(code == 0 || code == 1, "{} {depth}: {code}", sample.name);
        }
    }
}
