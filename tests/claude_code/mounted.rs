//! Branches on a mount, with a shell.

use std::fs;

use crate::support::{TestStore, run};

#[test]
fn an_abandoned_branch_is_read_and_forked_in_a_mount_and_by_commands() {
    let store = TestStore::of("claude-code", "branch-resume-at");
    let id = "d2a89d11-f8f5-4cb1-836c-5321ecbadd9b";
    let mount = store.mount::<&str>(&[]);
    let dir = mount.session(&store, Some(id));
    let names = |path: &str| -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir.join(path))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert!(names("").contains(&"abandoned".to_owned()));
    assert_eq!(
        (names("abandoned"), names("abandoned/1")),
        (vec!["1".to_owned()], vec!["fork".into(), "status".into(), "turns".into()])
    );
    assert_eq!(names("abandoned/1/turns"), ["002", "003"]);
    let text = fs::read_to_string(dir.join("abandoned/1/turns/003")).unwrap();
    assert!(text.contains("prompt number 4") && text.contains("reply-to[prompt number 4]"), "{text}");
    assert_eq!(text.len() as u64, fs::metadata(dir.join("abandoned/1/turns/003")).unwrap().len());
    let status = fs::read_to_string(dir.join("abandoned/1/status")).unwrap();
    assert!(status.contains("the turns 2 to 3") && status.contains("echo 3 > abandoned/1/fork"), "{status}");
    let script = format!(
        "cd '{}' && echo 2 > abandoned/1/fork && cat abandoned/1/fork && tail -n 1 status",
        dir.display()
    );
    let said = run(store.shell("sh", &script)).ok();
    let (new, last) = said.split_once('\n').unwrap();
    assert!(last.contains("abandoned/1/fork: done, turns 0 to 2 of the branch abandoned/1"), "{last}");
    let prompts = |id: &str| -> Vec<String> {
        let shown = store.run(&["show", id, "--json"]).json();
        shown["turns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|turn| turn["prompt"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(prompts(new), ["first prompt", "prompt number 2", "prompt number 3"]);
    let all = store.run(&["fork", id, "--abandoned", "1"]).ok();
    assert_eq!(prompts(all.trim()).last().unwrap(), "prompt number 4");
    let path = dir.join("abandoned/1");
    let by_path = store.run(&["show", path.to_str().unwrap(), "last"]).ok();
    assert!(by_path.contains("prompt number 4"), "{by_path}");
    let listed = store.run(&["show", id, "--abandoned", "1"]).ok();
    assert!(listed.contains("prompt number 3") && !listed.contains("first prompt"), "{listed}");
    assert!(store.run(&["undo", path.to_str().unwrap(), "1"]).refused().contains("abandoned branch"));
    assert!(store.run(&["fork", id, "0", "--abandoned", "1"]).refused().contains("turns 2 to 3"));
    assert!(store.run(&["show", id, "--abandoned", "7"]).refused().contains("abandoned/7"));
}

#[test]
fn a_session_that_was_never_rewound_has_no_abandoned_directory() {
    let store = TestStore::of("claude-code", "plain");
    let mount = store.mount::<&str>(&[]);
    let dir = mount.session(&store, None);
    assert!(!fs::read_dir(&dir).unwrap().any(|entry| entry.unwrap().file_name() == "abandoned"));
    assert_eq!(fs::read_dir(dir.join("abandoned")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
}
