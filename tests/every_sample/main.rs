//! Every sample store of every agent, on a real mount: the turns are the expected ones, and every cut leaves
//! exactly the expected files. Samples are looped over; a new sample folder is a new test.
//!
//! Here stands what holds for all agents; a file per agent says what its store must hold after a cut.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod claude_code;
mod codex;
mod kimi_cli;
mod kimi_code;
mod openmax;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{Mount, TestStore};

/// Everything of a store that counts, by name: a file with its mode and bytes, a row of a database.
type Contents = BTreeMap<PathBuf, (u32, Vec<u8>)>;
type Check = Result<(), String>;

/// What is particular to one agent's store.
struct Judge {
    agent: &'static str,
    /// What must be the same after an undo and its redo.
    contents: fn(&TestStore) -> Contents,
    /// A session's own transcript files below the store's root, the one that the agent writes to first.
    transcripts: fn(&TestStore, &Value) -> Vec<PathBuf>,
    /// Whether the fork with this id holds exactly what `keep[N]` says.
    forked: fn(&TestStore, &Cut<'_>, &str) -> Check,
    /// Whether the session in place holds exactly what `keep[N]` says.
    undone: fn(&TestStore, &Cut<'_>) -> Check,
}

/// One `keep[N]` of a session in expected.json.
struct Cut<'c> {
    session: &'c Value,
    expected: &'c Value,
    /// Turns that are kept.
    turns: usize,
    before: &'c Contents,
}

/// A test of each check for each agent, so that they run side by side; with how many things it must count for each.
macro_rules! for_every_agent {
    ($($test:ident: $kimi_cli:literal $kimi_code:literal $codex:literal $openmax:literal $claude_code:literal;)*) => {
        mod of_kimi_cli {
            $(#[test] fn $test() { super::$test(&super::kimi_cli::JUDGE, $kimi_cli) })*
        }
        mod of_kimi_code {
            $(#[test] fn $test() { super::$test(&super::kimi_code::JUDGE, $kimi_code) })*
        }
        mod of_codex {
            $(#[test] fn $test() { super::$test(&super::codex::JUDGE, $codex) })*
        }
        mod of_openmax {
            $(#[test] fn $test() { super::$test(&super::openmax::JUDGE, $openmax) })*
        }
        mod of_claude_code {
            $(#[test] fn $test() { super::$test(&super::claude_code::JUDGE, $claude_code) })*
        }
    };
}

for_every_agent! {
    the_turns_of_every_sample_are_the_expected_ones: 101 30 61 81 100;
    the_plan_refuses_what_the_undo_would_refuse: 101 30 61 81 100;
    head_turns_and_tail_of_the_records_are_the_transcript_byte_for_byte: 16 8 21 26 25;
    every_cut_of_every_sample_leaves_exactly_the_expected_files: 201 60 141 121 180;
    sub_agents_of_every_sample_are_sessions_without_control_files: 1 1 0 0 1;
}

/// Runs `check` for each session of each sample of an agent, on a mount of a copy of its store; shows every failure.
/// It must have counted at least so much.
fn each_session(
    judge: &Judge,
    least: usize,
    check: impl Fn(&TestStore, &Mount, &Value) -> Result<usize, String>,
) {
    let mut failures = Vec::new();
    let mut counted = 0;
    for name in support::names_of(judge.agent) {
        let expected = support::expected_of(judge.agent, &name);
        let store = TestStore::of(judge.agent, &name);
        let mount = store.mount::<&str>(&[]);
        let sessions = match expected.get("sessions") {
            Some(several) => several.as_array().unwrap().iter().collect(),
            None => vec![&expected],
        };
        for session in sessions {
            match check(&store, &mount, session) {
                Ok(n) => counted += n,
                Err(failure) => failures.push(format!("{name} {}: {failure}", session["session"])),
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    println!("{}: {counted}", judge.agent);
    assert!(counted >= least, "{}: only {counted}", judge.agent);
}

fn ensure(holds: bool, failure: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(failure()) }
}

fn id(session: &Value) -> &str {
    session["session"].as_str().unwrap()
}

fn turns(session: &Value) -> &[Value] {
    session["turns"].as_array().map_or(&[], Vec::as_slice)
}

/// The names in a directory, sorted.
fn names(dir: &Path) -> Result<Vec<String>, i32> {
    let entries = fs::read_dir(dir).map_err(errno)?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(errno)?.file_name().into_string().unwrap());
    }
    names.sort();
    Ok(names)
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn the_turns_of_every_sample_are_the_expected_ones(judge: &Judge, least: usize) {
    each_session(judge, least, |store, mount, session| {
        let id = id(session);
        let dir = mount.session(store, Some(id));
        let status = fs::read_to_string(dir.join("status")).unwrap();
        let state = session["state"].as_str().unwrap();
        ensure(status.lines().any(|line| line == format!("state: {state}")), || {
            format!("status is\n{status}")
        })?;
        let listed = names(&dir.join("turns"));
        if state == "damaged" {
            ensure(listed == Err(libc::EUCLEAN), || format!("turns/ of a damaged session: {listed:?}"))?;
            for control in ["undo", "fork", "redo"] {
                let seen = write(&dir.join(control), "0");
                ensure(seen == Err(libc::EUCLEAN), || format!("0 > {control}: {seen:?}"))?;
            }
            return Ok(0);
        }
        let expected = turns(session);
        let wanted: Vec<String> = (0..expected.len()).map(|n| format!("{n:03}")).collect();
        ensure(listed.as_ref() == Ok(&wanted), || format!("turns/ holds {listed:?}"))?;
        let shown = store.run(&["show", id, "--json"]).json();
        let plan = fs::read_to_string(dir.join("undo")).unwrap();
        for (n, turn) in expected.iter().enumerate() {
            let text = fs::read_to_string(dir.join(format!("turns/{n:03}"))).unwrap();
            let meta = fs::metadata(dir.join(format!("turns/{n:03}"))).unwrap();
            ensure(meta.len() == text.len() as u64, || {
                format!("turn {n}: {} is not {}", meta.len(), text.len())
            })?;
            ensure(text.starts_with(&format!("# Turn {n} ")), || format!("turn {n} begins {text:.60}"))?;
            let prompt = turn["prompt"].as_str().unwrap_or_default();
            let exact = fs::read_to_string(dir.join(format!("prompts/{n:03}"))).unwrap();
            // Several parts of a message are lines here and one text in expected.json.
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            let exact = if exact == prompt { exact } else { words(&exact) };
            ensure(exact == prompt, || format!("prompt {n} is {exact:?}"))?;
            ensure(words(&text).contains(&words(prompt)), || format!("turn {n} does not hold its prompt"))?;
            let shown = &shown["turns"][n];
            let said = |prompt: &Value| prompt.as_str().unwrap_or_default().replace('\n', " ");
            // As the clients themselves call it, in the samples of which they are the judges.
            let status = turn["status"].as_str().map(|status| match status {
                "completed" | "ok" => "complete",
                "open" => "interrupted",
                status => status,
            });
            let same = shown["n"] == n
                && said(&shown["prompt"]) == said(&turn["prompt"])
                // Of some samples only the prompts are known.
                && (status.is_none() || shown["status"].as_str() == status);
            ensure(same, || format!("show says {shown}, expected {turn}"))?;
            let begins = format!("{n:03}  ");
            ensure(plan.lines().any(|line| line.trim_start().starts_with(begins.trim())), || {
                format!("the plan does not name turn {n}:\n{plan}")
            })?;
        }
        if let Some((last, _)) = expected.iter().enumerate().next_back() {
            let messages = &session["keep"][last.to_string()]["messages"];
            // Of samples that tell no cut, the prompts are known.
            let prompts = || {
                expected
                    .iter()
                    .filter(|turn| turn["prompt"] != "")
                    .map(|turn| json!(["user", turn["prompt"]]))
            };
            match messages {
                // (Not where a prune took some of them from what the model is sent.)
                Value::Null if session["agent"] == "codex" => same_context(&dir, &prompts().collect())?,
                Value::Null => {}
                messages => same_context(&dir, messages)?,
            }
        }
        Ok(expected.len())
    });
}

/// `cat undo` once told of cuts that `echo N > undo` then refused: inside a group, of a session that is read only,
/// of a file that another thread needs.
fn the_plan_refuses_what_the_undo_would_refuse(judge: &Judge, least: usize) {
    each_session(judge, least, |store, mount, session| {
        let id = id(session);
        let Ok(plan) = fs::read_to_string(mount.session(store, Some(id)).join("undo")) else { return Ok(0) };
        for (n, line) in plan.lines().skip(1).enumerate() {
            let dry = store.run(&["undo", id, &n.to_string(), "--dry-run"]);
            let plan = line.split('\t').nth(2).unwrap();
            ensure(plan.starts_with("refused: ") == (dry.code != 0), || {
                format!("turn {n}: the plan says {plan:?}, the command {:?} {:?}", dry.stdout, dry.stderr)
            })?;
        }
        Ok(turns(session).len())
    });
}

/// Whether context.md holds all that the model must be sent, in that order.
fn same_context(dir: &Path, messages: &Value) -> Check {
    let context =
        fs::read_to_string(dir.join("context.md")).map_err(|error| format!("context.md: {error}"))?;
    // Several parts of a message are lines here and one text in expected.json.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    // What is no part of what user and model said is quoted.
    let unquoted = |line: &str| line.strip_prefix('>').unwrap_or(line).to_owned();
    let whole = words(&context.lines().map(unquoted).collect::<Vec<_>>().join("\n"));
    let mut rest = &*whole;
    for message in messages.as_array().unwrap() {
        let text = message[1].as_str().unwrap().replace('\u{1b}', "␛");
        // A picture is shown with its type and size.
        let text = if text == "[image]" { "[image/".to_owned() } else { words(&text) };
        let Some(at) = rest.find(&text) else {
            return Err(format!("context.md lacks {message} at its place:\n{context}"));
        };
        rest = &rest[at + text.len()..];
    }
    Ok(())
}

fn head_turns_and_tail_of_the_records_are_the_transcript_byte_for_byte(judge: &Judge, least: usize) {
    each_session(judge, least, |store, mount, session| {
        let dir = mount.session(store, Some(id(session)));
        for name in names(&dir.join("raw")).map_err(|errno| format!("raw/: errno {errno}"))? {
            let seen = fs::read(dir.join("raw").join(&name)).unwrap();
            let same = store
                .snapshot()
                .into_iter()
                .any(|(path, (_, bytes))| path.file_name().is_some_and(|it| *it == *name) && bytes == seen);
            ensure(same, || format!("raw/{name} differs"))?;
        }
        if ["damaged", "no-transcript"].contains(&session["state"].as_str().unwrap()) {
            return Ok(0);
        }
        let read = |name: &str| fs::read(dir.join("records").join(name)).unwrap_or_default();
        let record = |n: usize| read(&format!("{n:03}.jsonl"));
        let files = (judge.transcripts)(store, session);
        let whole = fs::read(store.root.join(&files[0])).unwrap();
        if dir.join("abandoned").exists() {
            // What was left behind stands between the turns, and is shown with its own.
            let records: Vec<Vec<u8>> = (0..turns(session).len()).map(record).collect();
            let lines = records.iter().flat_map(|bytes| bytes.split_inclusive(|byte| *byte == b'\n'));
            for line in lines {
                ensure(holds(&whole, line), || "a line of a record is not in the file".into())?;
            }
            return Ok(1);
        }
        let mut joined = read("head.jsonl");
        for (n, turn) in turns(session).iter().enumerate() {
            let bytes = record(n);
            ensure(!bytes.is_empty(), || format!("records/{n:03}.jsonl is empty"))?;
            let elsewhere = turn["file"].as_str().is_some_and(|file| Path::new(file) != files[0]);
            if elsewhere {
                // A turn of the history that this file goes on from: at its place in the other file.
                let start = turn["byte_offset"].as_u64().unwrap() as usize;
                let other = fs::read(store.root.join(turn["file"].as_str().unwrap())).unwrap();
                ensure(other[start..].starts_with(&bytes), || format!("record {n} is not at its place"))?;
            } else if files.len() > 1 && !holds(&whole, &bytes) {
                // What a compaction took out of the live file.
                let lines = bytes.split_inclusive(|byte| *byte == b'\n');
                let all: Vec<Vec<u8>> =
                    files.iter().map(|file| fs::read(store.root.join(file)).unwrap()).collect();
                for line in lines {
                    let found = all.iter().any(|file| holds(file, line));
                    ensure(found, || format!("a line of record {n} is in no file"))?;
                }
                joined.clear();
            } else {
                joined.extend(bytes);
            }
        }
        joined.extend(read("tail"));
        let at_end = whole.ends_with(&joined) && !joined.is_empty() || whole.is_empty();
        ensure(at_end, || format!("records/ are not {}", files[0].display()))?;
        ensure(files.len() > 1 || joined == whole, || {
            format!("records/ lack a part of {}", files[0].display())
        })?;
        Ok(1)
    });
}

fn holds(whole: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(whole, part).is_some()
}

fn every_cut_of_every_sample_leaves_exactly_the_expected_files(judge: &Judge, least: usize) {
    each_session(judge, least, |store, mount, session| {
        let dir = mount.session(store, Some(id(session)));
        let mut cuts = 0;
        for (keep, expected) in session["keep"].as_object().into_iter().flatten() {
            let keep: i64 = keep.parse().unwrap();
            cuts += forked(judge, store, mount, &dir, session, keep, expected)?;
            cuts += undone_and_redone(judge, store, &dir, session, keep, expected)?;
        }
        Ok(cuts)
    });
}

/// The errno of every cut at this place, where it must be refused.
fn refusal(session: &Value, expected: &Value) -> Option<i32> {
    let errno = session.get("cuts_refused").or(expected.get("errno"))?;
    Some(number(errno.as_str()?))
}

/// A write that must be refused with `wanted` and leave everything as it was.
fn refused(judge: &Judge, store: &TestStore, control: &Path, n: i64, wanted: i32) -> Check {
    let before = (judge.contents)(store);
    let seen = write(control, &n.to_string());
    ensure(seen == Err(wanted), || format!("{n} > {}: {seen:?}, expected {wanted}", control.display()))?;
    ensure((judge.contents)(store) == before, || format!("the refused {n} > {}: wrote", control.display()))
}

/// Forks behind turn `keep`, looks at the fork in its own directory, and takes it away again.
fn forked(
    judge: &Judge,
    store: &TestStore,
    mount: &Mount,
    dir: &Path,
    session: &Value,
    keep: i64,
    expected: &Value,
) -> Result<usize, String> {
    let Ok(turns) = usize::try_from(keep).map(|keep| keep + 1) else { return Ok(0) };
    if let Some(errno) = refusal(session, expected) {
        return refused(judge, store, &dir.join("fork"), keep, errno).map(|()| 1);
    }
    let (before, files) = ((judge.contents)(store), store.snapshot());
    write(&dir.join("fork"), &keep.to_string()).map_err(|errno| format!("fork {keep}: errno {errno}"))?;
    let new = fs::read_to_string(dir.join("fork")).unwrap().trim().to_owned();
    let cut = Cut { session, expected, turns, before: &before };
    (judge.forked)(store, &cut, &new).map_err(|why| format!("fork {keep}: {why}"))?;
    let fork = mount.session(store, Some(&new));
    let shown = names(&fork.join("turns")).unwrap().len();
    ensure(shown >= turns, || format!("fork {keep} shows {shown} turns"))?;
    same_context(&fork, fork_messages(expected)).map_err(|why| format!("fork {keep}: {why}"))?;
    put_back(store, &files);
    Ok(1)
}

/// What a fork's model is sent: what the session's own is sent after an undo, or the whole history where a fork
/// of a compacted session holds that instead.
fn fork_messages(expected: &Value) -> &Value {
    let fork = &expected["fork"];
    match fork.get("messages_full") {
        Some(whole) if fork["prefer"] != "as_is" => whole,
        _ => &expected["messages"],
    }
}

fn undone_and_redone(
    judge: &Judge,
    store: &TestStore,
    dir: &Path,
    session: &Value,
    keep: i64,
    expected: &Value,
) -> Result<usize, String> {
    let turns = (keep + 1) as usize;
    if turns >= self::turns(session).len() {
        return Ok(0);
    }
    let archived = session["archived"] == true;
    if let Some(errno) = refusal(session, expected).or(archived.then_some(libc::EOPNOTSUPP)) {
        return refused(judge, store, &dir.join("undo"), keep + 1, errno).map(|()| 1);
    }
    let before = (judge.contents)(store);
    write(&dir.join("undo"), &turns.to_string()).map_err(|errno| format!("undo {turns}: errno {errno}"))?;
    let cut = Cut { session, expected, turns, before: &before };
    (judge.undone)(store, &cut).map_err(|why| format!("undo {turns}: {why}"))?;
    let left = names(&dir.join("turns")).unwrap();
    let gone = names(&dir.join("undone")).unwrap();
    let removed = names(&dir.join("undone").join(gone.last().unwrap()).join("turns")).unwrap();
    let all: BTreeSet<&String> = left.iter().chain(&removed).collect();
    ensure(left.len() >= turns && all.len() == self::turns(session).len(), || {
        format!("after undo {turns} turns/ holds {left:?}, undone/ {removed:?}")
    })?;
    same_context(dir, &expected["messages"]).map_err(|why| format!("undo {turns}: {why}"))?;
    write(&dir.join("redo"), "last").map_err(|errno| format!("redo of undo {turns}: errno {errno}"))?;
    let after = (judge.contents)(store);
    let differing: BTreeSet<&PathBuf> =
        before.keys().chain(after.keys()).filter(|path| before.get(*path) != after.get(*path)).collect();
    ensure(differing.is_empty(), || format!("undo {turns} and redo do not give back {differing:?}"))?;
    Ok(1)
}

fn sub_agents_of_every_sample_are_sessions_without_control_files(judge: &Judge, least: usize) {
    each_session(judge, least, |store, mount, session| {
        let dir = mount.session(store, Some(id(session)));
        let Ok(agents) = names(&dir.join("agents")) else {
            ensure(!names(&dir).unwrap().contains(&"agents".into()), || {
                "agents/ is listed but not there".into()
            })?;
            return Ok(0);
        };
        for agent in &agents {
            let agent = dir.join("agents").join(agent);
            let listed = names(&agent).unwrap();
            ensure(listed == ["meta.json", "status", "turns"], || {
                format!("{} holds {listed:?}", agent.display())
            })?;
            let turns = names(&agent.join("turns")).unwrap();
            ensure(!turns.is_empty(), || format!("{} has no turns", agent.display()))?;
            let text = fs::read_to_string(agent.join("turns/000")).unwrap();
            ensure(text.starts_with("# Turn 0 "), || format!("its turn 0 begins {text:.60}"))?;
        }
        Ok(agents.len())
    });
}

/// Makes the store what it was, byte by byte.
fn put_back(store: &TestStore, files: &Contents) {
    for (path, (_, bytes)) in store.snapshot().iter().rev() {
        let place = store.root.join(path);
        match files.get(path) {
            None if place.is_dir() => fs::remove_dir(place).unwrap(),
            None => fs::remove_file(place).unwrap(),
            Some((_, old)) if old != bytes => fs::write(place, old).unwrap(),
            Some(_) => {}
        }
    }
}

/// One write of one command, as a shell's echo makes it; the errno of the call that failed.
fn write(control: &Path, command: &str) -> Result<(), i32> {
    use std::io::Write;
    let mut file = fs::File::options().write(true).truncate(true).open(control).map_err(errno)?;
    file.write_all(format!("{command}\n").as_bytes()).map_err(errno)
}

fn errno(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(-1)
}

fn number(errno: &str) -> i32 {
    match errno {
        "ENODATA" => libc::ENODATA,
        "ENOTUNIQ" => libc::ENOTUNIQ,
        "EUCLEAN" => libc::EUCLEAN,
        "EROFS" => libc::EROFS,
        other => panic!("expected.json names {other}"),
    }
}
