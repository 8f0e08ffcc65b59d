//! `turnfs check`: its bar is for terminals, its output for programs, its exit code for scripts.

use std::fs;

use turnfs::session::AgentKind;

use crate::sample::{Sample, half, victim};
use crate::support::run;

#[test]
fn check_tells_clean_damaged_and_could_not_run_apart() {
    let sample = Sample::of(AgentKind::KimiCli, "a-plain");
    let clean = sample.store.run(&["check", "--all", "--json"]);
    assert_eq!((clean.code, clean.stdout.as_str()), (0, "[]\n"));
    assert_eq!(
        clean.stderr, "turnfs: 1 session read, 0 damaged places, 0 other remarks\n",
        "no bar without a terminal"
    );
    sample.change(|lines| lines[victim(&sample)] = half(&lines[victim(&sample)]));
    let one = sample.store.run(&["check", "--all"]);
    assert_eq!(one.stderr, "turnfs: 1 session read, 1 damaged place, 0 other remarks\n");
    fs::write(sample.transcript.with_file_name("state.json"), "{").unwrap();
    let damaged = sample.store.run(&["check", "--all", "--json"]);
    assert_eq!(damaged.code, 1);
    let found: serde_json::Value = serde_json::from_str(&damaged.stdout).unwrap();
    assert_eq!(found.as_array().unwrap().len(), 2, "{found}");
    let keys: Vec<&String> = found[1].as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 9, "{keys:?}");
    let plain = sample.store.run(&["check", "--all"]);
    assert!(plain.stdout.contains("wire.jsonl:14: bad-line"), "{}", plain.stdout);
    let mut command = sample.store.command(&["check", "--all"]);
    command.env_remove("HOME").env_remove("XDG_STATE_HOME");
    assert_eq!(run(command).code, 2);
}

#[test]
fn check_on_a_terminal_shows_a_bar_on_standard_error_only() {
    let sample = Sample::of(AgentKind::KimiCli, "a-plain");
    // `script` gives the command a terminal; standard output is taken away from it.
    let mut script = sample.store.shell("sh", "script -qec 'turnfs check --all --json > out.json' /dev/null");
    script.env("TERM", "xterm");
    let ran = run(script);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("/1 "), "no bar in {:?}", ran.stdout);
    assert_eq!(fs::read_to_string(sample.store.home.join("out.json")).unwrap(), "[]\n");
}
