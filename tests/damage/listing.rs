//! Whatever stands in the place of a transcript: the session stays listed, with a state and the reason.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use turnfs::session::AgentKind;

use crate::sample::{Sample, write_old};

const STATES: [&str; 7] = ["ok", "torn", "damaged", "unsupported", "empty", "no-transcript", "unreadable"];

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_link_to_a_device_or_a_fifo_in_the_place_of_a_transcript_is_listed_and_not_opened() {
    for sample in Sample::all() {
        let of = sample.name;
        let whole = fs::read(&sample.transcript).unwrap();
        let mount = sample.store.mount::<&str>(&[]);
        for kind in ["link", "fifo", "directory"] {
            let _ = fs::remove_file(&sample.transcript);
            match kind {
                "link" => symlink("/dev/null", &sample.transcript).unwrap(),
                "fifo" => fifo(&sample.transcript),
                // Not a file, so not a session.
                _ if matches!(
                    sample.agent,
                    AgentKind::Codex | AgentKind::OpenMax | AgentKind::ClaudeCode
                ) =>
                {
                    continue;
                }
                _ => fs::create_dir(&sample.transcript).unwrap(),
            }
            let listed = sample.listed();
            assert_eq!(listed["state"], "unsupported", "{of}: {kind}");
            let sentence = sample.store.run(&["show", &sample.id, "0"]).refused();
            assert!(sentence.contains("regular file"), "{of}: {kind}: {sentence}");
            assert_eq!(sample.store.run(&["check", "--all"]).code, 0, "{of}: {kind}: no damage");
            // By its id: without a transcript its name is made of another date, and the mount knows the old one.
            let dir = mount.path.join(listed["path"].as_str().unwrap()).with_file_name(&sample.id);
            let status = fs::read_to_string(dir.join("status")).unwrap();
            assert!(status.starts_with("state: unsupported\n"), "{of}: {kind}: {status}");
            let errno = fs::read_dir(dir.join("turns")).unwrap_err().raw_os_error();
            assert_eq!(errno, Some(libc::EOPNOTSUPP), "{of}: {kind}");
            if kind == "directory" {
                fs::remove_dir(&sample.transcript).unwrap();
            }
        }
        let _ = fs::remove_file(&sample.transcript);
        write_old(&sample.transcript, &whole);
        assert_eq!(sample.listed()["state"], "ok", "{of}: no verdict is permanent");
        let dir = mount.session(&sample.store, Some(&sample.id)).with_file_name(&sample.id);
        assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), 4, "{of}");
    }
}

#[test]
fn every_state_is_one_of_the_seven() {
    // Root reads everything: what cannot be opened is made by links here, what cannot be listed by modes.
    for sample in Sample::all() {
        fs::set_permissions(&sample.transcript, fs::Permissions::from_mode(0o000)).unwrap();
        let state = sample.listed()["state"].as_str().unwrap().to_owned();
        assert!(STATES.contains(&&*state), "{}: {state}", sample.name);
        fs::remove_file(&sample.transcript).unwrap();
        let all = sample.store.run(&["ls", "--all", "--json"]).json();
        for row in all.as_array().unwrap() {
            assert!(STATES.contains(&row["state"].as_str().unwrap()), "{}: {row}", sample.name);
        }
    }
}

#[test]
fn an_empty_transcript_is_listed_in_every_store() {
    for sample in Sample::all() {
        sample.write(b"");
        let listed = sample.listed();
        let state = listed["state"].as_str().unwrap();
        assert!(["empty", "ok"].contains(&state), "{}: {state}", sample.name);
        assert!(sample.store.run(&["fork", &sample.id, "0"]).code != 0 || sample.agent == AgentKind::KimiCli);
    }
}

#[test]
fn an_id_that_begins_with_a_dot_is_listed() {
    let mut sample = Sample::of(AgentKind::KimiCli, "a-plain");
    let dir = sample.transcript.parent().unwrap();
    fs::rename(dir, dir.with_file_name(".hidden")).unwrap();
    sample.id = ".hidden".into();
    let listed = sample.listed();
    assert_eq!((&listed["state"], listed["turns"].as_u64()), (&"ok".into(), Some(4)));
    assert!(!listed["name"].as_str().unwrap().starts_with('.'));
}

#[test]
fn r10_a_broken_state_file_of_kimi_cli_costs_the_title_and_refuses_forks() {
    let sample = Sample::of(AgentKind::KimiCli, "a-plain");
    let state = sample.transcript.with_file_name("state.json");
    write_old(&state, b"{ custom");
    let listed = sample.listed();
    // The title is what the first prompt asks for, as of every session without one.
    assert_eq!((&listed["state"], &listed["title"]), (&"ok".into(), &"turn one".into()));
    assert!(listed["name"].as_str().unwrap().contains("turn-one"));
    sample.store.run(&["show", &sample.id, "0"]).ok();
    let before = sample.bytes();
    // A fork takes the additional directories over from it.
    let sentence = sample.store.run(&["fork", &sample.id, "1"]).refused();
    assert!(
        sentence.contains("state.json") && sentence.contains("kimi-cli takes its defaults"),
        "{sentence}"
    );
    assert!(sample.bytes() == before);
    let mount = sample.store.mount::<&str>(&[]);
    let dir = mount.session(&sample.store, None);
    let status = fs::read_to_string(dir.join("status")).unwrap();
    assert!(status.contains("state: ok\n") && status.contains("problem: state.json: sidecar"), "{status}");
    // An undo neither reads nor writes it.
    sample.store.run(&["undo", &sample.id, "2"]).ok();
    assert_eq!(fs::read(&state).unwrap(), b"{ custom");
    fs::remove_file(&state).unwrap();
    sample.store.run(&["fork", &sample.id, "1"]).ok();
}

#[test]
fn r10_a_broken_state_file_of_kimi_code_hides_no_turn_and_nothing_is_written() {
    for broken in ["{ a", "", "{\"cwd\":\"/a\",\"workDir\":\"/b\"}"] {
        let sample = Sample::of(AgentKind::KimiCode, "a-plain");
        let state = sample.transcript.ancestors().nth(3).unwrap().join("state.json");
        write_old(&state, broken.as_bytes());
        let listed = sample.listed();
        assert_eq!((&listed["state"], listed["turns"].as_u64()), (&"ok".into(), Some(4)), "{broken}");
        assert_eq!(listed["title"], "turn one", "{broken}: the first prompt");
        assert!(listed["path"].as_str().unwrap().starts_with(".turnfs/unplaced/"), "{broken}: {listed}");
        sample.store.run(&["show", &sample.id, "0"]).ok();
        let before = sample.bytes();
        for command in [["undo", &sample.id, "2"], ["fork", &sample.id, "1"]] {
            let sentence = sample.store.run(&command).refused();
            assert!(sentence.contains("state.json"), "{broken}, {command:?}: {sentence}");
        }
        assert!(sample.bytes() == before, "{broken}");
        // Without it the client does not find the session either.
        fs::remove_file(&state).unwrap();
        assert_eq!(sample.listed()["turns"], 4, "{broken}");
        sample.store.run(&["undo", &sample.id, "2"]).refused();
    }
}

#[test]
fn r10_a_damaged_index_hides_no_turn_and_is_never_written() {
    let has_index = |sample: &Sample| matches!(sample.agent, AgentKind::Codex | AgentKind::OpenMax);
    for sample in Sample::all().filter(has_index) {
        let index = sample.store.root.join(match sample.agent {
            AgentKind::OpenMax => "sessions/index.json",
            _ => "state_5.sqlite",
        });
        write_old(&index, b"[ broken");
        let of = sample.name;
        let listed = sample.listed();
        assert_eq!((&listed["state"], listed["turns"].as_u64()), (&"ok".into(), Some(4)), "{of}");
        let before = sample.bytes();
        let checked = sample.store.run(&["check", "--all", "--json"]);
        assert_eq!(checked.code, 1, "{of}");
        assert!(checked.stdout.contains("\"sidecar\""), "{of}: {}", checked.stdout);
        if sample.name != "a_plain4_legacy" {
            sample.store.run(&["undo", &sample.id, "2"]).refused();
        }
        if sample.agent == AgentKind::OpenMax {
            sample.store.run(&["fork", &sample.id, "2"]).refused();
            assert!(listed["project"].is_null(), "{of}: only the index tells the project");
        }
        assert!(sample.bytes() == before, "{of}: the store changed");
    }
}

#[test]
fn r7_a_codex_session_whose_first_line_is_cut_is_unplaced_under_the_id_of_its_name() {
    for name in ["a_plain4", "a_plain4_legacy"] {
        let sample = Sample::of(AgentKind::Codex, name);
        sample.change(|lines| lines[0] = crate::sample::half(&lines[0]));
        // Its index still knows the project; without it nobody does.
        assert_eq!(sample.listed()["project"], sample.project());
        fs::remove_file(sample.store.root.join("state_5.sqlite")).unwrap();
        let listed = sample.listed();
        assert!(listed["project"].is_null());
        assert!(listed["path"].as_str().unwrap().starts_with(".turnfs/unplaced/"), "{listed}");
    }
}

#[test]
fn r6_a_tool_call_without_a_result_is_noted_and_cut_as_a_whole() {
    let cases = [
        (AgentKind::KimiCli, "b-tools", "\"ToolResult\""),
        (AgentKind::KimiCode, "b-tools", "\"tool.result\""),
        (AgentKind::Codex, "b_tools_reasoning_legacy", "_call_output\""),
        (AgentKind::OpenMax, "b_tools", "\"role\":\"tool\""),
        (AgentKind::ClaudeCode, "tools", "\"tool_result\""),
    ];
    for (agent, name, result) in cases {
        let sample = Sample::of(agent, name);
        let lines = sample.lines();
        let is_result = |line: &Vec<u8>| String::from_utf8_lossy(line).contains(result);
        let first = lines.iter().position(is_result).unwrap();
        // The file ends before the first result, as after a kill in the tool.
        sample.write(&lines[..first].concat());
        let shown = sample.shown(&sample.id);
        let turns = shown["turns"].as_array().unwrap();
        let last = turns.len() - 1;
        assert_eq!(turns[last]["status"], "interrupted", "{agent}: {shown}");
        let said = sample.store.run(&["show", &sample.id]).ok();
        assert!(said.contains(&format!("open-tool-call: a tool call of turn {last}")), "{agent}: {said}");
        if agent == AgentKind::OpenMax {
            // The client itself goes on from exactly these bytes.
            sample.store.run(&["fork", &sample.id, &last.to_string()]).ok();
        }
        assert_eq!(sample.store.run(&["check", "--all"]).code, 0, "{agent}: no damage");
    }
}
