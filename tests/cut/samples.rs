//! Every sample, every turn: exactly what the sample says is kept, and everything comes back.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use turnfs::agents::store_of;
use turnfs::cut;
use turnfs::session::Errno;

use super::store::{Sample, Store, errno, samples, without_ids};

/// Compares the history files in `dir` with what the sample says is kept.
fn assert_kept(sample: &Sample, store: &Store, last: i64, dir: &Path, what: &str) {
    let files = sample.keep(last)["files"].as_object().unwrap();
    let mut names: Vec<String> = Vec::new();
    for (name, kept) in files {
        // A flat session is named by its whole path, and becomes the context of a fork.
        let name = match Path::new(name).components().count() {
            1 => name.clone(),
            _ if what.starts_with("fork") => "context.jsonl".to_owned(),
            _ => Path::new(name).file_name().unwrap().to_string_lossy().into_owned(),
        };
        let bytes = std::fs::read(store.root().join(dir).join(&name))
            .unwrap_or_else(|e| panic!("{}, {what}: {name}: {e}", sample.name));
        let found = (bytes.len() as u64, hex(&Sha256::digest(&bytes)));
        let wanted = (kept["bytes"].as_u64().unwrap(), kept["sha256"].as_str().unwrap().to_owned());
        assert_eq!(found, wanted, "{}, {what}: {name}", sample.name);
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        assert_eq!(lines, kept["lines"].as_u64().unwrap(), "{}, {what}: lines of {name}", sample.name);
        names.push(name);
    }
    if dir.join("x") != store.path.parent().unwrap().join("x") {
        for entry in std::fs::read_dir(store.root().join(dir)).unwrap() {
            let name = entry.unwrap().file_name().to_string_lossy().into_owned();
            // A sub-agent of an old client stands beside the context, and goes with the turns that called it.
            let is_sub_agent = name.starts_with("context_sub_");
            let is_history = name == "wire.jsonl" || (name.starts_with("context") && !is_sub_agent);
            assert!(!is_history || names.contains(&name), "{}, {what}: {name} stayed", sample.name);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where the session's history files stand.
fn history_dir(store: &Store) -> PathBuf {
    if store.root().join(&store.path).is_dir() {
        store.path.clone()
    } else {
        store.path.parent().unwrap().to_owned()
    }
}

/// The errno that a cut keeping 0..=`last` must answer, if any.
fn refused(sample: &Sample, last: i64) -> Option<Errno> {
    if sample.expected["state"] == "damaged" {
        return Some(Errno::UCLEAN);
    }
    let keep = sample.keep(last);
    keep.get("refuse").map(|_| errno(keep["errno"].as_str().unwrap()))
}

#[test]
fn undo_at_every_turn_keeps_what_the_sample_says_and_redo_brings_back_every_byte() {
    let (mut cuts, mut refusals) = (0, 0);
    for sample in samples() {
        for n in 0..sample.turns() {
            let store = sample.copy();
            let before = store.snapshot();
            let history = store.history();
            let keeps = history.turns_kept(n);
            let result = store.undo(n);
            let inside_group = keeps >= sample.turns();
            let wanted = refused(&sample, i64::from(n) - 1).or(inside_group.then_some(Errno::RANGE));
            if let Some(errno) = wanted {
                let refusal = result.expect_err("a refusal");
                assert_eq!(refusal.errno(), errno, "{}, undo {n}: {refusal}", sample.name);
                assert_eq!(store.snapshot(), before, "{}, refused undo {n}", sample.name);
                refusals += 1;
                continue;
            }
            let done = result.unwrap_or_else(|e| panic!("{}, undo {n}: {e}", sample.name));
            assert_eq!((done.keeps, done.drops), (keeps, sample.turns() - keeps));
            let what = format!("undo {n}");
            assert_kept(&sample, &store, i64::from(n) - 1, &history_dir(&store), &what);
            let left = store.history();
            let in_transcript = left.turns.iter().filter(|turn| turn.file == history.turns[0].file).count();
            assert_eq!(in_transcript as u32, keeps, "{}, {what}", sample.name);

            // What was removed is readable byte for byte.
            let undone = cut::undone(&store.state(), &store.session().key).unwrap();
            for turn in &undone[0].turns {
                let whole = &before.iter().find(|(path, ..)| **path == *turn.file).unwrap().2;
                let span = turn.span.start as usize..turn.span.end as usize;
                assert_eq!(cut::undone_span(&undone[0], turn).unwrap(), &whole[span]);
            }
            let (_, back) = store.redo().unwrap_or_else(|e| panic!("{}, redo of {n}: {e}", sample.name));
            assert_eq!(back, sample.turns() - keeps);
            assert_eq!(store.snapshot(), before, "{}, {what}, redo", sample.name);
            cuts += 1;
        }
        let store = sample.copy();
        if refused(&sample, -1).is_none() {
            assert_eq!(store.undo(sample.turns()).unwrap_err().errno(), Errno::RANGE, "{}", sample.name);
        }
    }
    println!("{cuts} undos redone, {refusals} refused");
    assert!(cuts > 80);
}

#[test]
fn fork_at_every_turn_keeps_what_the_sample_says_and_the_agent_lists_it() {
    let mut forks = 0;
    for sample in samples() {
        for n in 0..sample.turns() {
            let store = sample.copy();
            let before = store.snapshot();
            let result = store.fork(n);
            if let Some(errno) = refused(&sample, i64::from(n)) {
                let refusal = result.expect_err("a refusal");
                assert_eq!(refusal.errno(), errno, "{}, fork {n}: {refusal}", sample.name);
                assert_eq!(store.snapshot(), before);
                continue;
            }
            let id = result.unwrap_or_else(|e| panic!("{}, fork {n}: {e}", sample.name));
            let dir = store.path.parent().unwrap().join(&id);
            assert_kept(&sample, &store, i64::from(n), &dir, &format!("fork {n}"));
            let mut after = store.snapshot();
            for (path, mode, _) in after.iter().filter(|(path, ..)| path.starts_with(&dir)) {
                assert!(matches!(mode & 0o777, 0o600 | 0o700), "{} {mode:o}", path.display());
            }
            after.retain(|(path, ..)| !path.starts_with(&dir));
            assert_eq!(after, before, "{}, fork {n}: the source changed", sample.name);
            let fork = store.session_at(&dir);
            assert!(fork.title.as_deref().unwrap_or("").starts_with("Fork: "), "{:?}", fork.title);
            // The fork is a session like any other: it can be undone where the source could.
            let history = store_of(&fork).load(&fork).unwrap();
            assert_eq!(history.turns.len() as u32, store.history().turns_kept(n + 1));
            forks += 1;
        }
    }
    println!("{forks} forks");
    assert!(forks > 80);
}

#[test]
fn undos_stack_over_every_sample_and_redo_goes_back_through_each_state() {
    for sample in samples() {
        let store = sample.copy();
        let mut states = vec![store.snapshot()];
        for n in (0..sample.turns()).rev() {
            if store.undo(n).is_ok() {
                states.push(store.snapshot());
            }
        }
        states.pop();
        while let Some(state) = states.pop() {
            store.redo().unwrap_or_else(|e| panic!("{}: {e}", sample.name));
            assert_eq!(store.snapshot(), state, "{}", sample.name);
        }
        assert_eq!(store.redo().unwrap_err().errno(), Errno::RANGE, "{}", sample.name);
    }
}

#[test]
fn a_fork_of_a_session_with_sub_agents_takes_those_that_its_turns_used() {
    let sample = samples().into_iter().find(|sample| sample.name == "j-sub").unwrap();
    let store = sample.copy();
    let before = store.snapshot();
    let id = store.fork(sample.turns() - 1).unwrap();
    let after = without_ids(&store, &before, store.snapshot());
    let fork = store.path.parent().unwrap().join("fork");
    let subagents = after.iter().filter(|(path, ..)| path.starts_with(fork.join("subagents"))).count();
    assert!(subagents > 4, "{id} has {subagents} paths below subagents/");
}

#[test]
fn a_session_whose_project_is_unknown_is_not_cut() {
    let sample = samples().into_iter().find(|sample| sample.name == "a-plain").unwrap();
    let store = sample.copy();
    std::fs::write(store.root().join("kimi.json"), "{\"work_dirs\": []}").unwrap();
    let before = store.snapshot();
    assert_eq!(store.undo(1).unwrap_err().errno(), Errno::OPNOTSUPP);
    assert_eq!(store.fork(1).unwrap_err().errno(), Errno::OPNOTSUPP);
    assert_eq!(store.snapshot(), before);
}

#[test]
fn a_turn_that_has_not_ended_is_live_while_it_is_fresh_and_can_be_undone_when_it_is_old() {
    let sample = samples().into_iter().find(|sample| sample.name == "a-plain").unwrap();
    let store = sample.copy();
    let wire = store.root().join(&store.path).join("wire.jsonl");
    let text = std::fs::read_to_string(&wire).unwrap();
    let cut = text.rfind("\n{").unwrap() + 1;
    assert!(text[cut..].contains("TurnEnd"));
    // Records of long ago in a file of this moment: an undo, or a backup put back.
    std::fs::write(&wire, &text[..cut]).unwrap();
    store.fork(3).unwrap();
    let last = text[..cut].lines().last().unwrap();
    let mut record: serde_json::Value = serde_json::from_str(last).unwrap();
    record["timestamp"] = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64().into();
    std::fs::write(&wire, text[..cut].replace(last, &record.to_string())).unwrap();
    assert_eq!(store.undo(1).unwrap_err().errno(), Errno::BUSY);
    assert_eq!(store.fork(3).unwrap_err().errno(), Errno::BUSY);
    store.fork(2).unwrap();
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    for entry in std::fs::read_dir(store.root().join(&store.path)).unwrap() {
        let file = std::fs::File::options().write(true).open(entry.unwrap().path()).unwrap();
        file.set_modified(hour_ago).unwrap();
    }
    store.fork(3).unwrap();
    store.undo(1).unwrap();
}

/// Leaves the second turn of a-plain without its end, as a killed client does, and ages all files.
fn with_a_killed_turn() -> Store {
    let sample = samples().into_iter().find(|sample| sample.name == "a-plain").unwrap();
    let store = sample.copy();
    let wire = store.root().join(&store.path).join("wire.jsonl");
    let text = std::fs::read_to_string(&wire).unwrap();
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let ends: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].contains("\"TurnEnd\"")).collect();
    lines.remove(ends[1]);
    std::fs::write(&wire, lines.concat()).unwrap();
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&wire).unwrap().set_modified(hour_ago).unwrap();
    for name in ["context.jsonl", "wire.jsonl"] {
        let file = store.root().join(&store.path).join(name);
        std::fs::File::options().write(true).open(file).unwrap().set_modified(hour_ago).unwrap();
    }
    store
}

#[test]
fn what_an_undo_has_just_written_is_not_taken_for_a_client_at_work() {
    let store = with_a_killed_turn();
    let before = store.snapshot();
    // The killed turn is the last one now, in files of this moment.
    store.undo(2).unwrap();
    store.redo().unwrap();
    assert_eq!(store.snapshot(), before);
    let store = with_a_killed_turn();
    store.undo(3).unwrap();
    store.undo(2).unwrap();
    store.fork(1).unwrap();
    store.undo(0).unwrap();
}

#[test]
fn redo_names_the_damage_that_is_in_its_way() {
    let sample = samples().into_iter().find(|sample| sample.name == "a-plain").unwrap();
    let store = sample.copy();
    store.undo(2).unwrap();
    let wire = store.root().join(&store.path).join("wire.jsonl");
    let left = std::fs::read_to_string(&wire).unwrap();
    std::fs::write(&wire, left.replacen("{\"timestamp\"", "{\"timest", 1)).unwrap();
    let refusal = store.redo().unwrap_err();
    assert_eq!(refusal.errno(), Errno::UCLEAN, "{refusal}");
    std::fs::write(&wire, left).unwrap();
    store.redo().unwrap();
}

#[test]
fn a_kimi_process_in_the_project_is_a_writer_and_an_editor_is_not() {
    let sample = samples().into_iter().find(|sample| sample.name == "a-plain").unwrap();
    let store = sample.copy();
    let project = tempfile::tempdir().unwrap();
    let project = project.path().canonicalize().unwrap();
    let session = store.session();
    let session =
        turnfs::session::Session { place: turnfs::session::Place::Project(project.clone()), ..session };
    let writer = || store_of(&session).writer(&session, &store.history(), &Default::default());
    let run = |name: &str| {
        use std::os::unix::process::CommandExt as _;
        let mut command = std::process::Command::new("sleep");
        command.arg0(name).arg("30").current_dir(&project).spawn().unwrap()
    };
    let mut editor = run("vim");
    assert_eq!(writer(), None);
    let mut client = run("/opt/bin/kimi");
    let found = writer().expect("a writer");
    assert_eq!(found.pid, Some(client.id()));
    let refusal =
        cut::undo(&*store_of(&session), &store.state(), &session, &store.history(), 1, false).unwrap_err();
    assert!(refusal.to_string().contains(&client.id().to_string()), "{refusal}");
    cut::undo(&*store_of(&session), &store.state(), &session, &store.history(), 1, true).unwrap();
    for child in [&mut editor, &mut client] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
