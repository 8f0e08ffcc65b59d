//! Every sample store, on a real mount: the turns are the expected ones, and every cut leaves exactly the
//! expected files. Samples are looped over; a new sample folder is a new test.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use support::{Mount, TestStore};

/// The sessions of a sample's expected.json.
fn sessions(expected: &serde_json::Value) -> Vec<&serde_json::Value> {
    match expected.get("sessions") {
        Some(several) => several.as_array().unwrap().iter().collect(),
        None => vec![expected],
    }
}

/// Runs `check` for each session of each sample, on a mount of a copy of its store; shows every failure.
fn each_session(check: impl Fn(&TestStore, &Mount, &serde_json::Value) -> Result<usize, String>) -> usize {
    let mut failures = Vec::new();
    let mut checked = 0;
    for name in support::sample_names() {
        let expected = support::expected(&name);
        let store = TestStore::from_sample(&name);
        let mount = store.mount::<&str>(&[]);
        for session in sessions(&expected) {
            match check(&store, &mount, session) {
                Ok(n) => checked += n,
                Err(failure) => failures.push(format!("{name}: {failure}")),
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    checked
}

fn ensure(holds: bool, failure: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(failure()) }
}

#[test]
fn the_turns_of_every_sample_are_the_expected_ones() {
    let turns = each_session(|store, mount, session| {
        let id = session["session"].as_str().unwrap();
        let dir = mount.session(store, Some(id));
        let status = fs::read_to_string(dir.join("status")).unwrap();
        let state = session["state"].as_str().unwrap();
        ensure(status.lines().any(|line| line == format!("state: {state}")), || {
            format!("status is\n{status}")
        })?;
        let expected = session["turns"].as_array().unwrap();
        let turns_dir = fs::read_dir(dir.join("turns"));
        if state == "damaged" {
            let errno = turns_dir.err().and_then(|error| error.raw_os_error());
            return ensure(errno == Some(libc::EUCLEAN), || {
                format!("turns/ of a damaged session: {errno:?}")
            })
            .map(|()| 0);
        }
        let mut names: Vec<String> =
            turns_dir.unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        let wanted: Vec<String> = (0..expected.len()).map(|n| format!("{n:03}")).collect();
        ensure(names == wanted, || format!("turns/ holds {names:?}"))?;
        let shown = store.run(&["show", id, "--json"]).json();
        for (n, turn) in expected.iter().enumerate() {
            let text = fs::read_to_string(dir.join(format!("turns/{n:03}"))).unwrap();
            let meta = fs::metadata(dir.join(format!("turns/{n:03}"))).unwrap();
            ensure(meta.len() == text.len() as u64, || {
                format!("turn {n}: {} is not {}", meta.len(), text.len())
            })?;
            ensure(text.starts_with(&format!("# Turn {n} ")), || format!("turn {n} begins {text:.60}"))?;
            let prompt = turn["prompt"].as_str().unwrap_or_default();
            let exact = fs::read_to_string(dir.join(format!("prompts/{n:03}"))).unwrap();
            ensure(exact == prompt, || format!("prompt {n} is {exact:?}"))?;
            ensure(text.contains(prompt), || format!("turn {n} does not hold its prompt"))?;
            let shown = &shown["turns"][n];
            let same =
                shown["n"] == n && shown["prompt"] == turn["prompt"] && shown["status"] == turn["status"];
            ensure(same, || format!("show says {shown}, expected {turn}"))?;
            if let Some(confidence) = turn.get("confidence") {
                let plan = fs::read_to_string(dir.join("undo")).unwrap();
                ensure(!plan.is_empty(), || "the plan is empty".into())?;
                ensure(confidence.is_string(), || format!("odd confidence {confidence}"))?;
            }
        }
        Ok(expected.len())
    });
    assert!(turns > 100, "only {turns} turns were compared");
}

#[test]
fn head_turns_and_tail_of_the_records_are_the_transcript_byte_for_byte() {
    let files = each_session(|store, mount, session| {
        if session["state"] == "damaged" {
            return Ok(0);
        }
        let dir = mount.session(store, session["session"].as_str());
        let read = |name: &str| fs::read(dir.join("records").join(name)).unwrap_or_default();
        let mut joined = read("head.jsonl");
        for n in 0..session["turns"].as_array().unwrap().len() {
            joined.extend(read(&format!("{n:03}.jsonl")));
        }
        joined.extend(read("tail"));
        let raw: Vec<PathBuf> =
            fs::read_dir(dir.join("raw")).unwrap().map(|entry| entry.unwrap().path()).collect();
        let wire = raw.iter().find(|path| path.ends_with("wire.jsonl")).or(raw.first()).unwrap();
        ensure(joined == fs::read(wire).unwrap(), || format!("records/ are not {}", wire.display()))?;
        for path in &raw {
            let name = path.file_name().unwrap();
            let place = store.root.join(session["session_path"].as_str().unwrap());
            let original = if place.is_dir() { place.join(name) } else { place };
            let same = fs::read(path).unwrap() == fs::read(&original).unwrap();
            ensure(same, || format!("raw/{} differs", name.display()))?;
        }
        Ok(1)
    });
    assert!(files > 15, "only {files} sessions were compared");
}

#[test]
fn every_cut_of_every_sample_leaves_exactly_the_expected_files() {
    let cuts = each_session(|store, mount, session| {
        if session["session_path"].is_null() {
            return Err("expected.json names no session_path".into());
        }
        let place = PathBuf::from(session["session_path"].as_str().unwrap());
        let dir = mount.session(store, session["session"].as_str());
        let turns = session["turns"].as_array().unwrap().len() as i64;
        let before = store.snapshot();
        let mut cuts = 0;
        for (keep, expected) in session["keep"].as_object().unwrap() {
            let keep: i64 = keep.parse().unwrap();
            let refusal = session.get("cuts_refused").or(expected.get("errno"));
            if let Some(errno) = refusal.and_then(|errno| errno.as_str()) {
                for (file, n) in [("undo", keep + 1), ("fork", keep)] {
                    if n < 0 || n >= turns {
                        continue;
                    }
                    let seen = write(&dir.join(file), &n.to_string()).err();
                    ensure(seen == Some(number(errno)), || {
                        format!("{n} > {file}: {seen:?}, expected {errno}")
                    })?;
                    ensure(store.snapshot() == before, || format!("refused {n} > {file} changed the store"))?;
                    cuts += 1;
                }
                continue;
            }
            if keep >= 0 {
                write(&dir.join("fork"), &keep.to_string())
                    .map_err(|errno| format!("fork {keep}: errno {errno}"))?;
                let id = fs::read_to_string(dir.join("fork")).unwrap();
                let id = id.trim();
                let forked = place.with_file_name(id);
                same_files(store, &forked, &place, expected, true)
                    .map_err(|why| format!("fork {keep}: {why}"))?;
                ensure(
                    before.iter().all(|(file, content)| store.snapshot().get(file) == Some(content)),
                    || format!("fork {keep} changed its source"),
                )?;
                fs::remove_dir_all(store.root.join(&forked)).unwrap();
                cuts += 1;
            }
            if keep + 1 < turns {
                let n = (keep + 1).to_string();
                write(&dir.join("undo"), &n).map_err(|errno| format!("undo {n}: errno {errno}"))?;
                same_files(store, &place, &place, expected, false)
                    .map_err(|why| format!("undo {n}: {why}"))?;
                write(&dir.join("redo"), "last")
                    .map_err(|errno| format!("redo of undo {n}: errno {errno}"))?;
                ensure(store.snapshot() == before, || {
                    format!("undo {n} and redo do not give the store back")
                })?;
                cuts += 1;
            }
        }
        Ok(cuts)
    });
    println!("{cuts} cuts");
    assert!(cuts > 200, "only {cuts} cuts were made");
}

/// Whether the history files of the session at `session` are exactly those of `expected["files"]`.
fn same_files(
    store: &TestStore,
    session: &Path,
    source: &Path,
    expected: &serde_json::Value,
    fork: bool,
) -> Result<(), String> {
    let files = expected["files"].as_object().unwrap();
    let dir = store.root.join(session);
    let mut wanted = Vec::new();
    for (name, content) in files {
        // The flat form names its one file by its place in the store; a fork of it has the directory form.
        let flat = name.contains('/');
        let path = match (flat, fork) {
            (true, true) => dir.join("context.jsonl"),
            (true, false) => store.root.join(source),
            (false, _) => dir.join(name),
        };
        wanted.push(path.file_name().unwrap().to_owned());
        let bytes = fs::read(&path).map_err(|error| format!("{name}: {error}"))?;
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        ensure(content["lines"] == lines, || format!("{name} has {lines} lines, expected {content}"))?;
        let hash = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        ensure(content["sha256"] == hash, || format!("{name} has other bytes than expected"))?;
        let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
        ensure(mode == 0o600, || format!("{name} has mode {mode:o}"))?;
    }
    if dir.is_dir() {
        for entry in fs::read_dir(&dir).unwrap() {
            let name = entry.unwrap().file_name();
            let history = name.to_string_lossy().ends_with(".jsonl");
            ensure(!history || wanted.contains(&name), || format!("{} is left over", name.display()))?;
        }
    }
    Ok(())
}

/// One write of one command, as a shell's echo makes it; the errno of the call that failed.
fn write(control: &Path, command: &str) -> Result<(), i32> {
    use std::io::Write;
    let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(-1);
    let mut file = fs::File::options().write(true).truncate(true).open(control).map_err(errno)?;
    file.write_all(format!("{command}\n").as_bytes()).map_err(errno)
}

fn number(errno: &str) -> i32 {
    match errno {
        "ENODATA" => libc::ENODATA,
        "ENOTUNIQ" => libc::ENOTUNIQ,
        "EUCLEAN" => libc::EUCLEAN,
        other => panic!("expected.json names {other}"),
    }
}
