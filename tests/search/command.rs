//! `turnfs search`.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::say;
use crate::support::{self, TestStore};

const A_PLAIN: &str = "0c45fd13-bf97-4bf8-9665-76d7e8ac2706";
const PROJECT: &str = "/home/dev/projects/work/a-plain";

/// The turns that are found, the first one first.
#[track_caller]
fn turns(store: &TestStore, query: &str) -> Vec<u64> {
    let ran = store.run(&["search", "--json", "--", query]);
    assert!(ran.code < 2, "{}", ran.stderr);
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    let turns: Vec<u64> = found.as_array().unwrap().iter().map(|hit| hit["turn"].as_u64().unwrap()).collect();
    assert_eq!(ran.code, i32::from(turns.is_empty()), "{query:?}: {}", ran.stdout);
    turns
}

#[test]
fn what_is_found_is_told_for_people_and_for_programs() {
    let store = TestStore::from_sample("a-plain");
    let ran = store.run(&["search", "REPLY"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "capitals count if there are any");
    let text = store.run(&["search", "reply", "three"]).ok();
    let line = support_line(&store, 2, "R4: reply to <turn three>");
    let expected = format!(
        "e8ac2706  kimi-cli  {PROJECT}  turn one\n  turn 2, line {line}: R4: reply to <turn three>\n"
    );
    assert_eq!(text, expected);
    let json = store.run(&["search", "--json", "reply three"]).json();
    let expected = serde_json::json!([{
        "id": A_PLAIN, "agent": "kimi-cli", "project": PROJECT, "turn": 2, "line": line, "text": "R4: reply to <turn three>",
    }]);
    assert_eq!(json, expected);
    assert_eq!(
        turns(&store, "reply"),
        [4, 3, 2, 1, 0].into_iter().filter(|n| *n < count(&store)).collect::<Vec<_>>()
    );
}

fn count(store: &TestStore) -> u64 {
    store.run(&["ls", "--all", "--json"]).json()[0]["turns"].as_u64().unwrap()
}

/// The number of a line in the turn's text.
fn support_line(store: &TestStore, turn: u32, line: &str) -> usize {
    let text = store.run(&["show", A_PLAIN, &turn.to_string()]).ok();
    1 + text.lines().position(|own| own == line).unwrap_or_else(|| panic!("{line:?} is not in {text}"))
}

#[test]
fn words_are_found_however_json_writes_them() {
    for escaped in [false, true] {
        let store = TestStore::from_sample("a-plain");
        let text =
            "Größe 🎉 \"quoted\" C:\\temp\\new\ttab\nnext flaky\n  test 修复登录竞争 <b>&amp; src/main.rs";
        say(&store, "R4: reply to <turn three>", text, escaped);
        for query in [
            "größe",
            "GRÖSSE größe",
            "🎉",
            "\\\"quoted\\\"",
            "c:\\temp\\new",
            "\"flaky test\"",
            "\"next flaky test\"",
            "登录",
            "<b>&amp;",
            "src/main.rs",
            "main.rs quoted",
            "\"tab next\"",
        ] {
            let expected: &[u64] = if query.contains("GRÖSSE") { &[] } else { &[2] };
            assert_eq!(turns(&store, query), expected, "{query:?}, escaped: {escaped}");
        }
        for query in ["größer", "\"test flaky\"", "GRÖSSE", "Flaky", "srcmain", "assistant", "complete"] {
            assert_eq!(turns(&store, query), [0; 0], "{query:?}, escaped: {escaped}");
        }
    }
}

#[test]
fn odd_queries_are_searched_for_as_they_are() {
    let store = TestStore::from_sample("a-plain");
    say(&store, "R4: reply to <turn three>", "a .. b * c -x d ( [ e %2F", false);
    let long = "x".repeat(255);
    say(&store, "R3: reply to <turn two>", &long, false);
    for (query, expected) in [("..", 2), ("*", 2), ("-x", 2), ("( [", 2), ("%2F", 2), (long.as_str(), 1)] {
        assert_eq!(turns(&store, query), [expected], "{query}");
    }
    for query in ["", "  ", "\"\""] {
        let ran = store.run(&["search", "--", query]);
        assert_eq!(ran.code, 2, "{query:?}");
        assert!(
            ran.stderr.starts_with("turnfs: cannot search: the query has no word in it\n"),
            "{}",
            ran.stderr
        );
    }
    assert_eq!(store.run(&["search"]).code, 2);
}

#[test]
fn sessions_are_chosen_by_project_and_agent() {
    let store = TestStore::from_samples(&["a-plain", "c-compact"]);
    let ids = |args: &[&str]| {
        let ran = store.run(&[&["search", "--json", "reply"], args].concat());
        let found: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
        let ids = found.as_array().unwrap().iter().map(|hit| hit["id"].as_str().unwrap().to_owned());
        ids.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(ids(&[]).len(), 2);
    assert_eq!(ids(&["--project", PROJECT]), [A_PLAIN.to_owned()].into());
    assert_eq!(ids(&["--agent", "kimi-cli"]).len(), 2);
    assert_eq!(ids(&["--agent", "codex"]).len(), 0);
    let ran = store.run(&["search", "reply", "--project", "/no/such/place"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("there is no directory /no/such/place"), "{}", ran.stderr);
}

#[test]
fn of_a_damaged_session_the_turns_before_the_damage_are_searched() {
    let store = TestStore::from_sample("a-plain");
    let wire = store.root.join("sessions/301f8022c44669fd30b93f123c419b45").join(A_PLAIN).join("wire.jsonl");
    let text = fs::read_to_string(&wire).unwrap();
    let at = text.find("turn three").unwrap();
    let line = text[..at].rfind('\n').unwrap() + 1;
    fs::write(&wire, format!("{}not json\n{}", &text[..line], &text[line..])).unwrap();
    assert_eq!(turns(&store, "reply"), [1, 0]);
    let said = store.run(&["search", "two"]).ok();
    assert!(said.contains("(damaged)"), "{said}");
}

#[test]
fn a_sub_agents_turns_are_found_and_can_be_shown() {
    let store = TestStore::from_sample("j-sub");
    let agent = "af20e08a2";
    let text = store.run(&["show", agent, "0"]).ok();
    let word = text.lines().skip_while(|line| *line != "## User").nth(2).unwrap();
    let found = store.run(&["search", "--json", "--", &format!("\"{word}\"")]).json();
    let own = found.as_array().unwrap().iter().find(|hit| hit["parent"].is_string()).unwrap();
    assert_eq!(own["parent"], "7f6c7f9f-1478-435b-a679-8901a074683e");
    assert_eq!(own["turn"], 0);
    let id = own["id"].as_str().unwrap();
    assert_eq!(store.run(&["show", id, "0"]).ok(), text);
}

#[test]
fn compressed_transcripts_are_searched() {
    let store = TestStore::of("codex", "c_compaction");
    let before = store.run(&["search", "--json", "charlie"]).json();
    assert!(!before.as_array().unwrap().is_empty());
    crate::for_each_transcript(&store.root.join("sessions"), &mut |file| {
        let packed = zstd::encode_all(&*fs::read(file).unwrap(), 3).unwrap();
        fs::write(file.with_extension("jsonl.zst"), packed).unwrap();
        fs::remove_file(file).unwrap();
    });
    assert_eq!(store.run(&["search", "--json", "charlie"]).json(), before);
}

#[test]
fn whoever_reads_no_further_ends_the_search() {
    let store = TestStore::from_sample("a-plain");
    let ran = support::run(store.shell("bash", "turnfs search reply | head -n 1; echo ${PIPESTATUS[0]}"));
    assert!(ran.stdout.ends_with("\n0\n"), "{}", ran.stdout);
}

#[test]
fn on_a_terminal_the_words_stand_out_and_nothing_else_is_obeyed() {
    let store = TestStore::from_sample("a-plain");
    say(&store, "R4: reply to <turn three>", "red \u{1b}[7m needle here", false);
    let run = |environment: &str| {
        let script = format!("{environment} script -qec 'turnfs search needle' /dev/null");
        let mut command = store.shell("bash", &script);
        command.stdin(Stdio::null());
        support::run(command)
    };
    let marked = run("");
    assert!(marked.stdout.contains("\u{1b}[1;31mneedle\u{1b}[0m here"), "{:?}", marked.stdout);
    assert!(!marked.stdout.contains("\u{1b}[7m"), "{:?}", marked.stdout);
    assert!(!run("NO_COLOR=1").stdout.contains('\u{1b}'));
}
