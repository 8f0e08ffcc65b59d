//! Rollouts as people have them: of every version since August 2025, with what the client of the time put in.
//!
//! `w_*` samples have the structure of public rollouts, and what Codex 0.171.0 answers about them. What stands here
//! besides are the kinds of which one sample says too little.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod codex_store;

use std::fs;

use codex_store::{Store, content, expected, older_names};
use serde_json::{Value, json};
use turnfs::agents::store_of;
use turnfs::cut;
use turnfs::session::{DamageClass, Errno, History, Item, Place, Session, State};

const THREAD: &str = "019f7ed6-0000-7000-8000-000000000001";

fn line(kind: &str, payload: Value) -> String {
    format!("{}\n", json!({"timestamp": "2026-07-20T09:00:01.000Z", "type": kind, "payload": payload}))
}

fn event(kind: &str, mut more: Value) -> String {
    more["type"] = kind.into();
    line("event_msg", more)
}

fn meta() -> String {
    line(
        "session_meta",
        json!({"id": THREAD, "timestamp": "2026-07-20T09:00:00.000Z", "cwd": "/home/dev/app",
        "originator": "codex_cli_rs", "cli_version": "0.63.0", "source": "cli"}),
    )
}

fn message(role: &str, texts: &[&str]) -> Value {
    let kind = if role == "assistant" { "output_text" } else { "input_text" };
    let parts: Vec<Value> = texts.iter().map(|text| json!({"type": kind, "text": text})).collect();
    json!({"type": "message", "role": role, "content": parts})
}

fn injected(texts: &[&str]) -> String {
    line("response_item", message("user", texts))
}

/// A prompt as the client writes it: the message, then the event.
fn said(text: &str) -> String {
    injected(&[text]) + &event("user_message", json!({"message": text, "images": []}))
}

fn answer(text: &str) -> String {
    line("response_item", message("assistant", &[text])) + &event("agent_message", json!({"message": text}))
}

fn started(id: &str) -> String {
    event("task_started", json!({"turn_id": id}))
}

fn complete(id: &str) -> String {
    event("task_complete", json!({"turn_id": id, "last_agent_message": null}))
}

fn back(n: u64) -> String {
    event("thread_rolled_back", json!({"num_turns": n}))
}

const PLUGINS: &str = "<recommended_plugins>\n- Example\n</recommended_plugins>";
const NOBODY_KNOWS: &str = "<brand_new_tag>\nof a later version\n</brand_new_tag>";

fn of(lines: &[String]) -> (Store, std::sync::Arc<Session>, History) {
    let store = Store::empty();
    store.rollout(THREAD, lines.concat().as_bytes());
    let session = store.only();
    let history = store.load(&session);
    (store, session, history)
}

fn prompts(history: &History) -> Vec<&str> {
    history.turns.iter().map(|turn| turn.prompt.as_deref().unwrap_or("")).collect()
}

/// The texts that are shown as the user's, and as steers, turn by turn.
fn users(store: &Store, session: &Session, history: &History) -> Vec<(Vec<String>, Vec<String>)> {
    let mut found = Vec::new();
    for (n, turn) in history.turns.iter().enumerate() {
        store.text(session, history, n);
        let span = turnfs::transcript::read_range(&session.key.root, &turn.file, turn.span.clone()).unwrap();
        let (mut users, mut steers) = (Vec::new(), Vec::new());
        let mut sink = |_, item: Item<'_>| match item {
            Item::User { text } => users.push(text.into_owned()),
            Item::Steer { text } => steers.push(text.into_owned()),
            _ => {}
        };
        store_of(session).items(session, turn, &span, &mut sink).unwrap();
        found.push((users, steers));
    }
    found
}

fn sent(session: &Session, history: &History) -> Vec<String> {
    let mut sent = Vec::new();
    let mut sink = |_, item: Item<'_>| {
        if let Item::User { text } = item {
            sent.push(text.into_owned());
        }
    };
    store_of(session).context(session, history, &mut sink).unwrap();
    sent
}

/// Head and turns are the whole file, without a gap.
fn tiles(store: &Store, session: &Session, history: &History) {
    let len = fs::metadata(store.root.join(&session.files[0])).unwrap().len();
    let mut at = history.turns.first().map_or(len, |turn| turn.span.start);
    assert_eq!(history.head_bytes, at);
    for turn in &history.turns {
        assert_eq!(turn.span.start, at, "turn {}", turn.n);
        at = turn.span.end;
    }
    assert_eq!(at, len);
}

#[test]
fn every_older_sample_has_the_turns_that_the_client_reads_and_every_cut_of_it_keeps_exactly_those() {
    let samples = older_names();
    assert!(samples.len() >= 14, "{samples:?}");
    for sample in samples {
        let want = &expected(&sample)[0];
        let turns = want["turns"].as_array().unwrap();
        let wanted: Vec<&str> = turns.iter().map(|turn| turn["prompt"].as_str().unwrap_or("")).collect();
        let store = Store::of(&sample);
        let session = store.only();
        assert_eq!(session.id, want["session"].as_str().unwrap(), "{sample}");
        assert_eq!(session.place, Place::Project(want["project"].as_str().unwrap().into()), "{sample}");
        let history = store.load(&session);
        assert_eq!(history.state.name(), want["state"].as_str().unwrap(), "{sample}: {:?}", history.damages);
        // Lists show what a prompt asks for; the exact words are compared where they are read.
        const REQUEST: &str = "## My request for Codex:";
        let wanted: Vec<&str> = wanted
            .iter()
            .map(|prompt| prompt.split_once(REQUEST).map_or(*prompt, |(_, request)| request.trim()))
            .collect();
        assert_eq!(prompts(&history), wanted, "{sample}");
        if !sample.contains("rollback") {
            let first = wanted.iter().find(|prompt| !prompt.is_empty()).copied();
            assert_eq!(session.first_prompt.as_deref(), first, "{sample}");
        }
        for (turn, want) in history.turns.iter().zip(turns) {
            let status = want["status"].as_str().unwrap();
            let status = if status == "completed" { "complete" } else { status };
            assert_eq!(turn.status.name(), status, "{sample} turn {}", turn.n);
        }
        for (shown, want) in users(&store, &session, &history).iter().zip(turns) {
            let both: Vec<&String> = shown.0.iter().chain(&shown.1).collect();
            assert_eq!(json!(both), want["prompts"], "{sample}");
        }
        tiles(&store, &session, &history);
        for n in 0..wanted.len() {
            let new = cut::fork(&*store_of(&session), &store.state, &session, &history, n as u32).unwrap();
            let forked = store.session(&new);
            assert_eq!(forked.history_mode.as_deref(), Some("legacy"), "{sample} fork {n}");
            assert_eq!(forked.place, session.place, "{sample} fork {n}");
            assert_eq!(prompts(&store.load(&forked)), wanted[..=n], "{sample} fork {n}");
            fs::remove_file(store.root.join(&forked.files[0])).unwrap();
        }
        let before = content(&store.root);
        for n in (0..wanted.len()).rev() {
            let history = store.load(&session);
            let undone = cut::undo(&*store_of(&session), &store.state, &session, &history, n as u32, false);
            if want.get("undo").is_some() {
                let refusal = undone.unwrap_err();
                assert_eq!(refusal.errno(), Errno::OPNOTSUPP, "{sample}: {refusal}");
                assert!(refusal.hints().concat().contains("fork"), "{sample}: {refusal}");
                assert_eq!(content(&store.root), before, "{sample}");
                continue;
            }
            undone.unwrap();
            let session = store.only();
            let left = store.load(&session);
            assert_eq!(prompts(&left), wanted[..n], "{sample} undo {n}");
            tiles(&store, &session, &left);
        }
    }
}

#[test]
fn a_turn_of_an_old_client_begins_at_the_message_that_its_event_repeats() {
    let head =
        [meta(), injected(&["# AGENTS.md instructions for /x\n\n<INSTRUCTIONS>\n</INSTRUCTIONS>"])].concat();
    let context = line("turn_context", json!({"cwd": "/x", "model": "m"}));
    let first = [said("one"), context.clone(), answer("re one")].concat();
    let (store, session, history) = of(&[head.clone(), first.clone(), said("one"), context, answer("again")]);
    assert_eq!(prompts(&history), ["one", "one"]);
    assert_eq!(history.turns[0].span.start, head.len() as u64);
    assert_eq!(history.turns[1].span.start, (head.len() + first.len()) as u64);
    assert_eq!(sent(&session, &history), ["one", "one"]);
    assert_eq!(history.model.as_deref(), Some("m"));
    tiles(&store, &session, &history);
}

#[test]
fn a_session_that_a_newer_client_went_on_with_has_turns_of_both_kinds() {
    let lines = [
        meta(),
        meta(),
        said("one"),
        answer("re one"),
        said("two"),
        event("turn_aborted", json!({"reason": "interrupted"})),
        said("three"),
        answer("re three"),
        started("a"),
        said("four"),
        said("a steer"),
        answer("re four"),
        complete("a"),
        started("b"),
        complete("b"),
        said("five"),
        event("thread_name_updated", json!({})),
        said("six"),
        back(1),
        said("seven"),
    ];
    let (store, session, history) = of(&lines);
    assert_eq!(prompts(&history), ["one", "two", "three", "four", "", "five", "seven"]);
    let status: Vec<&str> = history.turns.iter().map(|turn| turn.status.name()).collect();
    let complete = "complete";
    assert_eq!(status, [complete, "interrupted", complete, complete, complete, complete, complete]);
    assert_eq!(users(&store, &session, &history)[3], (vec!["four".into()], vec!["a steer".into()]));
    assert_eq!(sent(&session, &history), ["one", "two", "three", "four", "a steer", "five", "seven"]);
    tiles(&store, &session, &history);
}

#[test]
fn what_the_client_injects_is_no_prompt_title_or_steer_whatever_it_begins_with() {
    let all = [PLUGINS, NOBODY_KNOWS, "<environment_context>\n</environment_context>"];
    let cases: [(&str, Vec<String>); 4] = [
        ("before", vec![started("a"), injected(&all), said("the prompt"), answer("ok"), complete("a")]),
        (
            "behind",
            vec![started("a"), said("the prompt"), injected(&[NOBODY_KNOWS]), answer("ok"), complete("a")],
        ),
        (
            "around",
            vec![injected(&[PLUGINS]), said("the prompt"), injected(&["<skill>\n</skill>"]), answer("ok")],
        ),
        (
            "inside",
            vec![
                started("a"),
                injected(&[PLUGINS, NOBODY_KNOWS, "the prompt"]),
                event("user_message", json!({"message": "the prompt"})),
                answer("ok"),
                complete("a"),
            ],
        ),
    ];
    for (what, mut lines) in cases {
        lines.insert(0, meta());
        let (store, session, history) = of(&lines);
        assert_eq!(session.first_prompt.as_deref(), Some("the prompt"), "{what}");
        assert_eq!(users(&store, &session, &history), [(vec!["the prompt".to_owned()], vec![])], "{what}");
        let known = if what == "inside" { "the prompt" } else { "" };
        assert!(sent(&session, &history)[0].ends_with("the prompt"), "{what}{known}");
        assert_eq!(sent(&session, &history).len(), 1, "{what}");
        tiles(&store, &session, &history);
    }
}

#[test]
fn a_turn_that_was_aborted_before_its_prompt_was_written_has_none() {
    let aborted = |id: &str| event("turn_aborted", json!({"turn_id": id, "reason": "interrupted"}));
    let lines = [meta(), started("a"), injected(&[PLUGINS, NOBODY_KNOWS]), aborted("a")];
    let (_, session, history) = of(&lines);
    assert_eq!((history.turns.len(), history.turns[0].prompt.as_deref()), (1, None));
    assert_eq!(session.first_prompt, None);
    let more = [started("b"), injected(&[NOBODY_KNOWS]), said("the prompt"), aborted("b")];
    let (store, session, history) = of(&[&lines[..], &more[..]].concat());
    assert_eq!(prompts(&history), ["", "the prompt"]);
    assert!(history.turns.iter().all(|turn| turn.status.name() == "interrupted"));
    users(&store, &session, &history);
}

#[test]
fn a_rollback_counts_no_message_that_the_client_injected() {
    let turn = |id: &str, prompt: &str| {
        [
            started(id),
            injected(&[PLUGINS]),
            said(prompt),
            injected(&[NOBODY_KNOWS]),
            answer("re"),
            complete(id),
        ]
        .concat()
    };
    let (store, session, history) =
        of(&[meta(), turn("a", "one"), turn("b", "two"), back(1), turn("c", "three")]);
    assert_eq!(prompts(&history), ["one", "three"]);
    assert_eq!(sent(&session, &history), ["one", "three"]);
    assert!(!store.text(&session, &history, 0).contains("two"));
    tiles(&store, &session, &history);
    let (_, _, history) = of(&[meta(), turn("a", "setings"), back(1), turn("b", "settings")]);
    assert_eq!(prompts(&history), ["settings"]);
}

#[test]
fn where_the_clients_list_and_its_model_go_apart_the_turns_are_the_models_and_status_says_so() {
    let turn = |id: &str, prompt: &str| [started(id), said(prompt), answer("re"), complete(id)].concat();
    let aborted =
        [started("t"), event("turn_aborted", json!({"turn_id": "t", "reason": "interrupted"}))].concat();
    let (_store, session, history) =
        of(&[meta(), turn("a", "one"), turn("b", "two"), aborted.clone(), back(1), turn("c", "three")]);
    assert_eq!(prompts(&history), ["one", "three"]);
    assert_eq!(sent(&session, &history), ["one", "three"]);
    assert!(
        history.notes.iter().any(|note| note.contains("own list of turns differs")),
        "{:?}",
        history.notes
    );
    // Nothing was the user's: the list drops the turn, and the model never knew of it.
    let (_, _, history) = of(&[meta(), aborted, back(1), turn("c", "three")]);
    assert_eq!((prompts(&history), history.notes.len()), (vec!["three"], 0));
}

#[test]
fn a_picture_in_a_prompt_is_shown_once_with_the_users_words() {
    let picture = json!({"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "<image name=[Image #1]>"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        {"type": "input_text", "text": "</image>"},
        {"type": "input_text", "text": "Read [Image #1]"}]});
    let told = event(
        "user_message",
        json!({"message": "Read [Image #1]", "images": [], "local_images": ["/a.png"]}),
    );
    let alone = json!({"type": "message", "role": "user", "content": [
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}]});
    for before in [started("a"), String::new()] {
        let lines = [
            meta(),
            before.clone(),
            line("response_item", picture.clone()),
            told.clone(),
            answer("An empty picture."),
            before.clone(),
            line("response_item", alone.clone()),
            event("user_message", json!({"message": "", "images": ["data:image/png;base64,iVBORw0KGgo="]})),
            answer("Another."),
        ];
        let (store, session, history) = of(&lines);
        assert_eq!(session.first_prompt.as_deref(), Some("Read [Image #1]"));
        let shown = users(&store, &session, &history);
        assert_eq!(shown, [(vec!["Read [Image #1]".to_owned()], vec![]), (vec![String::new()], vec![])]);
        let text = store.text(&session, &history, 0);
        assert_eq!(text.matches("## Attachment").count(), 1, "{text}");
        assert!(!text.contains("<image"), "{text}");
        tiles(&store, &session, &history);
    }
}

#[test]
fn an_old_compaction_leaves_the_users_messages_and_its_summary() {
    let compacted = line("compacted", json!({"message": "what happened"}));
    let lines = [meta(), said("one"), answer("re one"), compacted, said("two"), answer("re two")];
    let (store, session, history) = of(&lines);
    assert_eq!(prompts(&history), ["one", "two"]);
    assert_eq!(sent(&session, &history), ["one", "what happened", "two"]);
    assert!(store.text(&session, &history, 0).contains("## Compaction\n\n> what happened"));
    // A compaction before the first prompt, and one behind a turn that ended.
    let compacted = line("compacted", json!({"message": "x"}));
    let (_, _, history) = of(&[meta(), compacted.clone(), said("one")]);
    assert_eq!(prompts(&history), ["one"]);
    let lines = [meta(), started("a"), said("one"), complete("a"), compacted, started("b"), said("two")];
    assert_eq!(prompts(&of(&lines).2), ["one", "", "two"]);
}

#[test]
fn an_abort_ends_the_turn_that_it_names_or_the_open_one() {
    let aborted = |id: &str| event("turn_aborted", json!({"turn_id": id, "reason": "interrupted"}));
    let nameless = event("turn_aborted", json!({"reason": "interrupted"}));
    let status = |lines: &[String]| -> Vec<(String, &str)> {
        let history = of(&[&[meta()], lines].concat()).2;
        let turn =
            |turn: &turnfs::session::Turn| (turn.prompt.clone().unwrap_or_default(), turn.status.name());
        history.turns.iter().map(turn).collect()
    };
    let open = [started("a"), said("one")];
    let with = |more: &[String]| status(&[&open[..], more].concat());
    let (one, two) = ("one".to_owned(), "two".to_owned());
    // What comes behind an abort begins a turn of its own; an abort that names no turn ends no explicit one.
    for abort in [aborted("a"), nameless.clone()] {
        assert_eq!(
            with(&[abort.clone(), said("two")]),
            [(one.clone(), "interrupted"), (two.clone(), "complete")]
        );
        assert_eq!(with(&[abort, complete("a")]), [(one.clone(), "interrupted")]);
    }
    assert_eq!(with(&[aborted("z"), complete("a")]), [(one.clone(), "complete")]);
    assert_eq!(with(&[complete("a"), started("b"), aborted("a"), complete("b")])[0].1, "interrupted");
    assert_eq!(with(&[complete("a"), nameless]), [(one, "complete")]);
    assert_eq!(status(&[said("two"), aborted("z")]), [(two, "interrupted")]);
}

#[test]
fn a_type_that_is_escaped_is_read_and_one_that_is_given_twice_is_damage() {
    let lines = [meta(), started("a"), said("one"), complete("a"), started("b"), said("two"), complete("b")];
    let whole = lines.concat();
    let escaped =
        whole.replace("task_started", "task\\u005fstarted").replace("\"payload\"", "\"p\\u0061yload\"");
    assert_eq!(prompts(&of(&[escaped]).2), ["one", "two"]);
    let taken = [whole.clone(), back(1).replace("thread_rolled_back", "thread_rolled\\u005fback")];
    let (store, session, taken) = of(&taken);
    assert_eq!(prompts(&taken), ["one"]);
    assert!(!store.text(&session, &taken, 0).contains("two"));
    for (from, to) in [
        (
            "\"turn_id\":\"b\",\"type\":\"task_started\"",
            "\"type\":\"token_count\",\"type\":\"task_started\",\"turn_id\":\"b\"",
        ),
        ("\"type\":\"task_started\"", "\"type\":\"token_count\",\"t\\u0079pe\":\"task_started\""),
        ("\"message\":\"two\"", "\"message\":\"2\",\"message\":\"two\""),
        ("\"text\":\"two\"", "\"text\":\"2\",\"text\":\"two\""),
        ("\"type\":\"event_msg\"", "\"type\":\"turn_context\",\"type\":\"event_msg\""),
    ] {
        assert!(whole.contains(from), "{from} in {whole}");
        let (_, _, history) = of(&[whole.replacen(from, to, 1)]);
        assert_eq!(history.state, State::Damaged, "{to}");
        assert_eq!(history.damages[0].class, DamageClass::BadRecord, "{to}");
    }
}

#[test]
fn a_pointer_of_a_large_file_store_is_named_as_one() {
    let pointers = [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 81023\n", "git lfs pull"),
        ("/annex/objects/SHA256E-s81023--00.jsonl\n", "git annex get"),
    ];
    for (pointer, says) in pointers {
        for name in ["sessions/2026/11/30", "archived_sessions"] {
            for end in ["jsonl", "jsonl.zst"] {
                let store = Store::empty();
                let folder = store.root.join(name);
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join(format!("rollout-2026-11-30T10-00-00-{THREAD}.{end}")), pointer)
                    .unwrap();
                let session = store.only();
                let history = store.load(&session);
                assert_eq!((history.state, history.damages.len()), (State::Unsupported, 0), "{name} {end}");
                let sentence = history.readable().unwrap_err().to_string();
                assert!(sentence.contains(says) && sentence.contains("never fetched"), "{sentence}");
                for refused in [
                    cut::fork(&*store_of(&session), &store.state, &session, &history, 0).map(|_| ()),
                    cut::undo(&*store_of(&session), &store.state, &session, &history, 0, true).map(|_| ()),
                ] {
                    assert_eq!(refused.unwrap_err().errno(), Errno::OPNOTSUPP);
                }
            }
        }
    }
}

/// The first format: no envelopes, no times, no events.
fn first_format(lines: &[Value]) -> String {
    let head = json!({"id": THREAD, "timestamp": "2025-08-26T20:21:01.000Z", "instructions": null,
        "git": {"branch": "main"}});
    let state = json!({"record_type": "state"});
    let all =
        [head, state.clone()].into_iter().chain(lines.iter().flat_map(|line| [line.clone(), state.clone()]));
    all.map(|line| format!("{line}\n")).collect()
}

fn hello() -> Vec<Value> {
    vec![
        message("user", &["<user_instructions>\nbe brief\n</user_instructions>"]),
        message("user", &["<environment_context>\n  <cwd>/home/dev/app</cwd>\n</environment_context>"]),
        message("user", &["say hello"]),
        json!({"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "greet"}],
            "content": null, "encrypted_content": "x"}),
        json!({"type": "function_call", "id": null, "name": "shell", "arguments": "{}", "call_id": "c1"}),
        json!({"type": "function_call_output", "call_id": "c1", "output": "done"}),
        message("assistant", &["Hello."]),
        message("user", &["and goodbye"]),
        message("assistant", &["Goodbye."]),
    ]
}

#[test]
fn a_rollout_of_the_first_format_is_browsed_forked_into_todays_form_and_not_undone() {
    let store = Store::empty();
    store.rollout(THREAD, first_format(&hello()).as_bytes());
    let session = store.only();
    assert_eq!(session.place, Place::Project("/home/dev/app".into()));
    assert_eq!(session.first_prompt.as_deref(), Some("say hello"));
    assert_eq!(session.history_mode.as_deref(), Some("first-format"));
    assert_eq!(session.created.to_string(), "2025-08-26T20:21:01Z");
    let history = store.load(&session);
    assert_eq!((history.state, history.damages.len()), (State::Ok, 0));
    assert_eq!(prompts(&history), ["say hello", "and goodbye"]);
    assert_eq!(sent(&session, &history), ["say hello", "and goodbye"]);
    assert!(
        history.turns.iter().all(|turn| turn.started.is_none() && turn.last.is_none()),
        "times were made up"
    );
    let text = store.text(&session, &history, 0);
    for shown in ["## User\n\nsay hello", "greet", "## Tool call: shell", "done", "## Assistant\n\nHello."] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    tiles(&store, &session, &history);
    for n in [0, 1] {
        let refusal = cut::undo(&*store_of(&session), &store.state, &session, &history, n, true).unwrap_err();
        assert_eq!(refusal.errno(), Errno::OPNOTSUPP, "{refusal}");
    }
    let new = cut::fork(&*store_of(&session), &store.state, &session, &history, 0).unwrap();
    let forked = store.session(&new);
    let again = store.load(&forked);
    assert_eq!((again.state, prompts(&again)), (State::Ok, vec!["say hello"]));
    assert_eq!(forked.forked_from.as_deref(), Some(THREAD));
    assert_eq!(forked.place, session.place);
    let body = |text: &str| text.split_once("\n\n").unwrap().1.to_owned();
    assert_eq!(body(&store.text(&forked, &again, 0)), body(&text));
    let written = fs::read_to_string(store.root.join(&forked.files[0])).unwrap();
    for item in &hello()[..7] {
        assert!(written.contains(&format!("\"payload\":{item}")), "{item} in {written}");
    }
    assert!(!written.contains("record_type"), "{written}");
}

#[test]
fn damage_in_a_rollout_of_the_first_format_is_damage() {
    for bad in ["{\"type\":\"mess", "[]", "{\"record_type\":\"state\",\"type\":\"message\"}", "{}"] {
        let store = Store::empty();
        let content = first_format(&hello()) + bad + "\n" + &first_format(&hello()[7..]);
        store.rollout(THREAD, content.as_bytes());
        let session = store.only();
        let history = store.load(&session);
        assert_eq!(history.state, State::Damaged, "{bad}");
        assert_eq!(session.place, Place::Project("/home/dev/app".into()), "{bad}");
        // Rescue takes the same way as a fork.
        let (new, _) = cut::rescue(&*store_of(&session), &store.state, &session, &history).unwrap();
        let rescued = store.load(&store.session(&new));
        assert_eq!((rescued.state, prompts(&rescued)), (State::Ok, vec!["say hello"]), "{bad}");
    }
}
