//! Which project a session belongs to, where names are close; reserved names; stores and projects that are not there.

use std::fs;
use std::path::Path;

use turnfs::session::AgentKind;

use crate::sample::Sample;

/// Gives the sample's session another recorded project.
fn move_to(sample: &Sample, project: &str) {
    match sample.agent {
        AgentKind::KimiCli => sample.store.move_project(Path::new(project)),
        AgentKind::ClaudeCode => {
            let old = sample.project().to_owned();
            sample.change(|lines| {
                for line in lines {
                    let text = String::from_utf8(line.clone()).unwrap();
                    *line = text.replace(&format!("\"{old}\""), &format!("\"{project}\"")).into_bytes();
                }
            });
        }
        AgentKind::Codex => {
            let old = sample.project().to_owned();
            sample.change(|lines| {
                let text = String::from_utf8(lines[0].clone()).unwrap();
                lines[0] = text.replace(&format!("\"{old}\""), &format!("\"{project}\"")).into_bytes();
            });
        }
        AgentKind::KimiCode => {
            let state = sample.transcript.ancestors().nth(3).unwrap().join("state.json");
            let text = fs::read_to_string(&state).unwrap();
            fs::write(&state, text.replace(&format!("\"{}\"", sample.project()), &format!("\"{project}\"")))
                .unwrap();
        }
        AgentKind::OpenMax => {
            let index = sample.store.root.join("sessions/index.json");
            let text = fs::read_to_string(&index).unwrap();
            fs::write(&index, text.replace(&format!("\"{}\"", sample.project()), &format!("\"{project}\"")))
                .unwrap();
        }
    }
}

#[test]
fn r22_a_project_shows_only_its_own_sessions_by_the_recorded_path() {
    for (agent, name) in [
        (AgentKind::KimiCli, "a-plain"),
        (AgentKind::KimiCode, "a-plain"),
        (AgentKind::Codex, "a_plain4"),
        (AgentKind::OpenMax, "a_plain"),
        (AgentKind::ClaudeCode, "plain"),
    ] {
        for (project, other) in [("/w/a-b", "/w/a/b"), ("/w/a/b", "/w/a-b")] {
            let sample = Sample::of(agent, name);
            move_to(&sample, project);
            let found = sample.store.run(&["ls", project, "--json"]).json();
            assert_eq!(found.as_array().unwrap().len(), 1, "{agent} {project}");
            // A path that is neither a directory nor a project is a typo.
            let said = sample.store.run(&["ls", other, "--json"]).refused();
            assert!(said.contains(project), "the near project is named: {said}");
        }
    }
}

#[test]
fn a_project_that_would_stand_in_the_place_of_turnfs_own_files_is_unplaced() {
    for (agent, name) in [
        (AgentKind::KimiCli, "a-plain"),
        (AgentKind::KimiCode, "a-plain"),
        (AgentKind::Codex, "a_plain4"),
        (AgentKind::OpenMax, "a_plain"),
        (AgentKind::ClaudeCode, "plain"),
    ] {
        let sample = Sample::of(agent, name);
        move_to(&sample, "/.turnfs/unplaced");
        let listed = sample.listed();
        assert!(listed["path"].as_str().unwrap().starts_with(".turnfs/unplaced/"), "{listed}");
        let mount = sample.store.mount::<&str>(&[]);
        let status =
            fs::read_to_string(mount.path.join(listed["path"].as_str().unwrap()).join("status")).unwrap();
        assert!(status.contains("unplaced: its project /.turnfs/unplaced"), "{status}");
        assert!(fs::read_to_string(mount.path.join(".turnfs/version")).unwrap().starts_with("turnfs "));
    }
}

#[test]
fn a_project_named_latest_keeps_its_name_and_that_is_said() {
    let sample = Sample::of(AgentKind::OpenMax, "a_plain");
    move_to(&sample, "/w/latest");
    let other = Sample::of(AgentKind::KimiCli, "a-plain");
    move_to(&other, "/w");
    let kimi = format!("kimi-cli={}", other.store.root.display());
    let mount = sample.store.mount(&["--store", &kimi]);
    let latest = fs::symlink_metadata(mount.path.join("w/latest")).unwrap();
    assert!(latest.is_dir(), "the project is a directory, not a link to a session");
    assert!(fs::read_dir(mount.path.join("w/latest")).unwrap().count() > 0);
    let status = fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
    assert!(status.contains("/w has no link to its newest session"), "{status}");
}

#[test]
fn a_store_that_is_not_there_or_is_given_twice_is_refused_with_a_sentence() {
    let sample = Sample::of(AgentKind::KimiCli, "a-plain");
    let gone = format!("kimi-cli={}", sample.store.home.join("nowhere").display());
    let here = format!("kimi-cli={}", sample.store.root.display());
    let again = format!("kimi-cli={}/../.kimi/", sample.store.root.display());
    let mountpoint = sample.store.dir.path().join("m");
    let mountpoint = mountpoint.to_str().unwrap();
    for args in [&["ls", "--all"][..], &["show", "x"], &["mount", mountpoint], &["doctor"]] {
        let with = |more: &[&str]| sample.store.run(&[args, more].concat());
        let sentence = with(&["--store", &gone]).refused();
        assert!(
            sentence.contains("nowhere") && sentence.contains("no such directory"),
            "{args:?}: {sentence}"
        );
        let sentence = with(&["--store", &here, "--store", &again]).refused();
        assert!(sentence.contains("given twice"), "{args:?}: {sentence}");
        let sentence = with(&["--store", &here, "--agents", "codex"]).refused();
        assert!(sentence.contains("leaves kimi-cli out"), "{args:?}: {sentence}");
    }
    assert_eq!(sample.store.run(&["check", "--all", "--store", &gone]).code, 2, "check could not run");
}

#[test]
fn a_project_that_nobody_knows_is_not_mounted_in_silence() {
    let sample = Sample::of(AgentKind::KimiCli, "a-plain");
    let mountpoint = sample.store.dir.path().join("m");
    let mount =
        |project: &str| sample.store.run(&["mount", "--project", project, mountpoint.to_str().unwrap()]);
    let sentence = mount("/nonexistent/anywhere").refused();
    assert!(sentence.contains("/nonexistent/anywhere") && sentence.contains("no session"), "{sentence}");
    // A project that is gone from this machine still has its sessions.
    mount(sample.project()).ok();
    sample.store.run(&["umount", mountpoint.to_str().unwrap()]).ok();
    // A directory without sessions may get some.
    mount(sample.store.home.to_str().unwrap()).ok();
    sample.store.run(&["umount", mountpoint.to_str().unwrap()]).ok();
}
