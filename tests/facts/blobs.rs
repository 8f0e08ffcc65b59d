//! `blobs/NNN/`: pictures and other files of a turn, as files.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::support::TestStore;

/// Files in `blobs/`, by their paths in it, and what they hold.
fn blobs(session: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for turn in fs::read_dir(session.join("blobs")).unwrap() {
        let turn = turn.unwrap();
        for file in fs::read_dir(turn.path()).unwrap() {
            let file = file.unwrap();
            let (size, bytes) = (file.metadata().unwrap().len(), fs::read(file.path()).unwrap());
            assert_eq!(size, bytes.len() as u64, "{:?}", file.path());
            let name = [turn.file_name(), file.file_name()].map(|name| name.into_string().unwrap());
            found.push((name.join("/"), bytes));
        }
    }
    found.sort();
    found
}

/// How many bytes the attachments have that a turn's text names, in order.
fn attachments(session: &Path) -> Vec<u64> {
    let turns = fs::read_dir(session.join("turns")).unwrap();
    let mut turns: Vec<PathBuf> = turns.map(|turn| turn.unwrap().path()).collect();
    turns.sort();
    let text: String = turns.iter().map(|turn| fs::read_to_string(turn).unwrap()).collect();
    let sections = text.split("\n## Attachment\n\n[").skip(1);
    sections
        .map(|section| section.split_once(" bytes]").unwrap().0.rsplit_once(", ").unwrap().1.parse().unwrap())
        .collect()
}

#[test]
fn the_pictures_of_a_claude_code_session_are_files() {
    let store = TestStore::of("claude-code", "image");
    let mount = store.mount::<&str>(&[]);
    let session = mount.session(&store, None);
    let blobs = blobs(&session);
    let png =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let png = STANDARD.decode(png).unwrap();
    assert!(blobs.iter().any(|(_, bytes)| *bytes == png), "{blobs:?}");
    for (name, bytes) in &blobs {
        assert!(name.ends_with("/01.png") && bytes.starts_with(b"\x89PNG"), "{name}");
    }
    let sizes: Vec<u64> = blobs.iter().map(|(_, bytes)| bytes.len() as u64).collect();
    assert_eq!(sizes, attachments(&session));
    // Not listed, as other rooms that few need; and no name but the listed one leads there.
    let names = fs::read_dir(&session).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!names.into_iter().any(|name| name == "blobs"));
    for missing in ["blobs/000/99.png", "blobs/000/01.jpg", "blobs/000/1.png", "blobs/099", "blobs/x"] {
        let error = fs::metadata(session.join(missing)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{missing}");
    }
}

#[test]
fn a_picture_in_a_prompt_is_a_file_whichever_agent_recorded_it() {
    let picture = r#""data:image/jpeg;base64,/9j/QUJD""#;
    // One without padding; one that cannot be decoded, and so is none.
    let (webp, broken) = (r#""data:image/webp;base64,QUI""#, r#""data:image/png;base64,A*C=""#);
    let urls = |kind: &str, part: &dyn Fn(&str) -> String| {
        [picture, broken, webp].map(|url| format!(r#"{{"type":"{kind}",{}}}"#, part(url))).join(",")
    };
    let nested = |url: &str| format!(r#""image_url":{{"url":{url}}}"#);
    let flat = |url: &str| format!(r#""image_url":{url}"#);
    for (agent, sample, file, from, to) in [
        (
            "kimi-cli",
            "a-plain",
            "wire.jsonl",
            r#""user_input": "turn one""#,
            format!(r#""user_input": [{{"type":"text","text":"turn one"}},{}]"#, urls("image_url", &nested)),
        ),
        (
            "kimi-code",
            "a-plain",
            "wire.jsonl",
            r#"{"type":"text","text":"turn one"}"#,
            format!(r#"{{"type":"text","text":"turn one"}},{}"#, urls("image_url", &nested)),
        ),
        (
            "codex",
            "a_plain4",
            ".jsonl",
            r#"{"type":"input_text","text":"one ALPHA"}"#,
            format!(r#"{{"type":"input_text","text":"one ALPHA"}},{}"#, urls("input_image", &flat)),
        ),
    ] {
        let store = TestStore::of(agent, sample);
        let mut edited = 0;
        for file in files_named(&store.root, file) {
            let text = fs::read_to_string(&file).unwrap();
            edited += usize::from(text.contains(from));
            fs::write(&file, text.replace(from, &to)).unwrap();
        }
        assert_eq!(edited, 1, "{agent}");
        let mount = store.mount::<&str>(&[]);
        let session = mount.session(&store, None);
        let first = [("000/01.jpg", b"\xff\xd8\xffABC".as_slice()), ("000/02.webp", b"AB")];
        let first = first.map(|(name, bytes)| (name.to_owned(), bytes.to_vec()));
        assert_eq!(blobs(&session), first, "{agent}");
        assert_eq!(attachments(&session).len(), 3, "{agent}");
    }
}

fn files_named(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_named(&entry.path(), suffix));
        } else if entry.file_name().to_str().unwrap().ends_with(suffix) {
            found.push(entry.path());
        }
    }
    found
}
