//! The inputs R1 to R5, R10, R11 and R24 of `docs/stores/damage.md`, "3. Inputs", and what the client crashes
//! on.

use super::*;

/// a-plain with its wire changed, read again.
fn with_wire(change: impl FnOnce(Vec<Vec<u8>>) -> Vec<u8>) -> (tempfile::TempDir, Session, History) {
    with_file("wire.jsonl", change)
}

fn with_file(
    file: &str,
    change: impl FnOnce(Vec<Vec<u8>>) -> Vec<u8>,
) -> (tempfile::TempDir, Session, History) {
    let (dir, sample) = copy_of("a-plain");
    let path = sample.store.join(sample.expected["session_path"].as_str().unwrap()).join(file);
    let lines = fs::read(&path).unwrap().split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    fs::write(&path, change(lines)).unwrap();
    let (session, history) = read(&sample);
    (dir, session, history)
}

fn half(line: &[u8]) -> Vec<u8> {
    line[..line.len() / 2].to_vec()
}

fn assert_refused(history: &History, file: &str, line: u64, class: DamageClass) {
    assert_eq!(history.state, State::Damaged);
    let damages: Vec<_> =
        history.damages.iter().map(|damage| (&*damage.file, damage.line, damage.class)).collect();
    assert_eq!(damages, [(file, line, class)]);
    assert_eq!(history.turn(0).unwrap_err().errno(), rustix::io::Errno::UCLEAN);
    assert_eq!(history.cut_before(0).unwrap_err().errno(), rustix::io::Errno::UCLEAN);
}

#[test]
fn r1_a_cut_line_with_its_newline_refuses_everything() {
    let mut start = 0;
    let (_dir, _, history) = with_wire(|mut lines| {
        start = lines[..8].concat().len() as u64;
        lines[8] = [half(&lines[8]), b"\n".to_vec()].concat();
        lines.concat()
    });
    assert_refused(&history, "wire.jsonl", 9, DamageClass::BadLine);
    assert_eq!(history.damages[0].byte, start);
    assert_eq!(history.sound_turns, 1, "the first turn ends before the damage");
}

#[test]
fn damage_in_the_context_leaves_the_turns_that_are_cut_before_it() {
    let (_dir, _, history) = with_file("context.jsonl", |mut lines| {
        lines[15] = b"{\"role\":\"user\",\"content\":\"ha\n".to_vec();
        lines.concat()
    });
    assert_refused(&history, "context.jsonl", 16, DamageClass::BadLine);
    assert_eq!(history.sound_turns, 2);
}

#[test]
fn r2_a_torn_last_line_leaves_what_is_complete() {
    for cut in [1, 40] {
        let (_dir, session, history) = with_wire(|mut lines| {
            let last = lines.pop().unwrap();
            lines.push(last[..cut].to_vec());
            lines.concat()
        });
        assert_eq!(history.state, State::Torn);
        assert_eq!(history.damages[0].class, DamageClass::TornTail);
        assert_eq!((history.turns.len(), history.sound_turns), (4, 4));
        assert_eq!(history.turns[3].detail, Some(TurnDetail::Open), "its TurnEnd is torn off");
        assert_eq!(history.turns[3].span.end, history.damages[0].byte);
        assert_eq!(history.turns[3].text_len, render(&session, &history, 3).len() as u64);
    }
}

#[test]
fn a_last_record_without_newline_counts_and_is_told() {
    let (_dir, _, history) = with_wire(|lines| {
        let mut whole = lines.concat();
        whole.pop();
        whole
    });
    assert_eq!((history.state, history.damages[0].class), (State::Torn, DamageClass::NoFinalNewline));
    assert_eq!(history.turns[3].detail, None, "its TurnEnd is there");
    assert_eq!(history.turns[3].span.end, history.files[0].len.unwrap());
}

#[test]
fn r3_a_cut_record_with_a_complete_one_behind_it_is_one_damaged_line() {
    let (_dir, _, history) = with_wire(|mut lines| {
        lines[8] = [b"{\"timestamp\": 1796045260.1, \"message\":".to_vec(), lines[8].clone()].concat();
        lines.concat()
    });
    assert_refused(&history, "wire.jsonl", 9, DamageClass::GluedCut);
}

#[test]
fn r4_two_records_on_one_line_can_be_mended_by_hand_and_are_refused() {
    let (_dir, _, history) = with_wire(|mut lines| {
        lines[7].pop();
        lines.concat()
    });
    assert_refused(&history, "wire.jsonl", 8, DamageClass::MissingNewline);
    assert!(history.damages[0].message.contains("by hand"));
}

#[test]
fn r5_a_run_of_nul_bytes_is_told_and_the_turns_behind_it_are_still_found() {
    let (_dir, _, history) = with_wire(|mut lines| {
        lines.insert(12, [vec![0; 512], b"\n".to_vec()].concat());
        lines.concat()
    });
    assert_refused(&history, "wire.jsonl", 13, DamageClass::NulRun);
    assert_eq!(history.turns.len(), 4);
    assert!(history.turns[3].last.is_some());
}

#[test]
fn r10_a_broken_state_file_costs_the_title_only() {
    let (_dir, sample) = copy_of("a-plain");
    let path = sample.expected["session_path"].as_str().unwrap();
    fs::write(sample.store.join(path).join("state.json"), "{ custom").unwrap();
    let found = discover(&sample.store);
    assert_eq!(found.sessions[0].title, None);
    assert_eq!(found.sessions[0].first_prompt.as_deref(), Some("turn one"));
    assert_eq!(found.problems.len(), 1);
    assert_eq!(found.problems[0].class, DamageClass::Sidecar);
    assert!(found.problems[0].file.ends_with("state.json"));
    assert_eq!(read(&sample).1.state, State::Ok);
}

#[test]
fn r11_a_raw_newline_in_a_string_is_one_record_over_several_lines() {
    let (_dir, _, history) = with_wire(|mut lines| {
        let text = String::from_utf8(lines[8].clone()).unwrap();
        lines[8] = text.replace("R3: reply to", "R3:\n5\nreply to").into_bytes();
        lines.concat()
    });
    assert_refused(&history, "wire.jsonl", 9, DamageClass::SplitRecord);
    assert!(history.damages[0].message.contains("lines 9 to 11"), "{}", history.damages[0].message);
}

#[test]
fn r24_a_lone_surrogate_shows_as_a_replacement_and_a_line_separator_splits_nothing() {
    let (_dir, session, history) = with_wire(|mut lines| {
        let text = String::from_utf8(lines[1].clone()).unwrap();
        lines[1] = text.replace("turn one", "turn \\ud800 \u{2028}one").into_bytes();
        lines.concat()
    });
    assert_eq!((history.damages.len(), history.turns.len()), (0, 4));
    let text = render(&session, &history, 0);
    assert!(text.contains("turn \u{fffd} "), "{text}");
    assert_eq!(history.turns[0].text_len, text.len() as u64);
    let turn = &history.turns[0];
    let span = read_range(&session.key.root, &turn.file, turn.span.clone()).unwrap();
    assert_eq!(store_of(&session).prompt(&session, turn, &span).unwrap(), "turn \u{fffd} \u{2028}one");
}

#[test]
fn a_user_record_without_content_is_damage_because_the_client_crashes_on_it() {
    let (_dir, _, history) = with_file("context.jsonl", |mut lines| {
        lines[8] = b"{\"role\":\"user\"}\n".to_vec();
        lines.concat()
    });
    assert_refused(&history, "context.jsonl", 9, DamageClass::BadRecord);
    assert!(history.damages[0].message.contains("crashes"), "{}", history.damages[0].message);
}

#[test]
fn without_its_context_a_session_is_readable_and_cannot_be_cut() {
    let (_dir, sample) = copy_of("a-plain");
    let path = sample.expected["session_path"].as_str().unwrap();
    fs::remove_file(sample.store.join(path).join("context.jsonl")).unwrap();
    let (_, history) = read(&sample);
    assert_eq!((history.state, history.turns.len()), (State::Ok, 4));
    assert!(history.files.iter().any(|view| view.file.ends_with("context.jsonl") && view.len.is_none()));
    for n in 0..=4 {
        assert_eq!(history.cut_before(n).unwrap_err().errno(), rustix::io::Errno::NODATA, "cut {n}");
    }
}

#[test]
fn an_undone_session_is_empty_and_not_damaged() {
    let (_dir, sample) = copy_of("a-plain");
    let session = sample.store.join(sample.expected["session_path"].as_str().unwrap());
    for file in ["wire.jsonl", "context.jsonl"] {
        let whole = fs::read(session.join(file)).unwrap();
        let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        fs::write(session.join(file), &whole[..first]).unwrap();
    }
    let found = discover(&sample.store);
    let history = store_of(&found.sessions[0]).load(&found.sessions[0]).unwrap();
    assert_eq!((history.state, history.turns.len(), history.cuts.len()), (State::Empty, 0, 1));
    assert_eq!(history.head_bytes, 49);
}

#[test]
fn an_unknown_protocol_is_not_taken_for_a_known_one() {
    let (_dir, _, history) = with_wire(|mut lines| {
        lines[0] = b"{\"type\": \"metadata\", \"protocol_version\": \"2.0\"}\n".to_vec();
        lines.concat()
    });
    assert_eq!(history.state, State::Unsupported);
    let refusal = history.readable().unwrap_err();
    assert_eq!(refusal.errno(), rustix::io::Errno::OPNOTSUPP);
    assert!(refusal.to_string().contains("2.0"), "{refusal}");
}

#[test]
fn a_context_without_a_wire_is_numbered_by_its_own_runs() {
    let (_dir, sample) = copy_of("a-plain");
    let path = sample.expected["session_path"].as_str().unwrap();
    fs::remove_file(sample.store.join(path).join("wire.jsonl")).unwrap();
    let (session, history) = read(&sample);
    assert_eq!((history.state, history.turns.len()), (State::Ok, 4));
    for n in 0..4 {
        let text = render(&session, &history, n);
        assert_eq!(history.turns[n].text_len, text.len() as u64);
        assert!(text.contains("## User\n\nturn ") && text.contains("reply to"), "{text}");
    }
}

#[test]
fn sizes_are_counted_in_one_place() {
    let mut length = Length::default();
    let (session, history) = read(&sample("a-plain"));
    render::heading(&history.turns[0], &mut length);
    assert!(length.0 > 0 && length.0 < render(&session, &history, 0).len() as u64);
}
