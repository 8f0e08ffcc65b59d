//! A kill or an error at every durable operation of every cut of every sample of every store. Feature
//! `faults`.

use std::collections::HashSet;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use turnfs::agents::store_of;
use turnfs::cut;
use turnfs::session::AgentKind;

use super::outcome::{Known, Outcome};
use super::store::{ERRNO_BASE, Sample, Store, child, samples, samples_of};

fn run(store: &Store, act: &str, fault: &str) -> Output {
    child(store, act).env("TURNFS_FAULT", fault).stderr(Stdio::null()).output().unwrap()
}

/// A cut, and what has to be done before it.
type Act = (Option<String>, String);

/// The cuts to try on a sample: all at every turn with `TURNFS_TEST_ALL` in the environment. Else at one turn,
/// another one for each sample, and of the stores with many like samples one kind of cut.
fn acts(index: usize, sample: &Sample) -> Vec<Act> {
    let (turns, all) = (sample.turns(), is_all());
    let wanted = |n: &u32| all || [0, turns / 2, turns - 1][index % 3] == *n;
    let mut acts = Vec::new();
    for n in (0..turns).filter(wanted) {
        let undo = format!("undo {n}");
        let of_turn = [(None, undo.clone()), (Some(undo), "redo".to_owned()), (None, format!("fork {n}"))];
        match sample.kind {
            AgentKind::Codex | AgentKind::OpenMax | AgentKind::KimiCode | AgentKind::ClaudeCode if !all => {
                acts.extend(of_turn.into_iter().skip(index / 3 % 3).take(1));
            }
            _ => acts.extend(of_turn),
        }
    }
    acts
}

/// Whether every cut is to be tried at every step.
fn is_all() -> bool {
    std::env::var_os("TURNFS_TEST_ALL").is_some()
}

/// Kinds of steps that a sweep has tried: the command, the operation before, and the operation.
type Tried = Mutex<HashSet<(String, String, String)>>;

/// The steps of a cut to try, from 1. With `TURNFS_TEST_ALL` all of them. Else every third one, beginning at
/// another one for other samples, and each whose kind the sweep has not tried yet with any sample.
fn steps(kind: AgentKind, act: &str, case: &Case, tried: &Tried) -> Vec<u64> {
    let first = match kind {
        AgentKind::KimiCli => case.index / 3 % 3,
        AgentKind::Codex | AgentKind::OpenMax => case.index / 9 % 3,
        AgentKind::KimiCode => case.index % 3,
        AgentKind::ClaudeCode => case.index / 3 % 3,
    };
    let command = act.split(' ').next().unwrap_or(act);
    let mut tried = tried.lock().unwrap();
    let mut steps = Vec::new();
    let mut before = "";
    for (at, operation) in case.operations.iter().enumerate() {
        let is_new = tried.insert((command.to_owned(), before.to_owned(), operation.clone()));
        if is_all() || at % 3 == first || is_new {
            steps.push(at as u64 + 1);
        }
        before = operation;
    }
    steps
}

/// A fresh copy with the cut prepared, and what of it is no cut's work; `None` where preparing is refused.
///
/// No cut is made in this process: a child that the other thread is just starting has copies of all open
/// files, and on a busy machine a transcript would look open for writing for longer than it is waited for.
fn prepared(sample: &Sample, prepare: Option<&str>) -> Option<(Store, Known)> {
    let store = sample.copy();
    let known = Known::of(&store);
    let done = prepare.is_none_or(|prepare| run(&store, prepare, "").status.success());
    done.then_some((store, known))
}

struct Case {
    before: Outcome,
    after: Outcome,
    /// The names of its durable operations, in order.
    operations: Vec<String>,
    /// Of the sample.
    index: usize,
}

/// Does the cut once, counting its operations.
fn measure(index: usize, sample: &Sample, prepare: Option<&str>, act: &str) -> Option<Case> {
    // Some cuts are refused anyway.
    let (store, known) = prepared(sample, prepare)?;
    let before = Outcome::of(&store, &known);
    let count = store.top().join("count");
    let output = run(&store, act, &format!("count:{}", count.display()));
    if !output.status.success() {
        return None;
    }
    let after = Outcome::of(&store, &known);
    let operations: Vec<String> =
        std::fs::read_to_string(count).unwrap().lines().map(str::to_owned).collect();
    assert!(operations.len() > 8, "{}, {act}: only {operations:?}", sample.name);
    assert!(before != after, "{}, {act}: nothing was done", sample.name);
    Some(Case { before, after, operations, index })
}

/// Recovers, and checks that the store, as `seen` looks at it, is as it was before the cut or as it is after it.
fn assert_before_or_after(
    store: &Store,
    before: &Outcome,
    after: &Outcome,
    seen: impl FnOnce() -> Outcome,
    what: &str,
) {
    let told = cut::recover(&store.state()).unwrap();
    assert!(!told.iter().any(|line| line.contains("could not")), "{what}: {told:?}");
    let now = seen();
    assert!(
        now == *before || now == *after,
        "{what}: neither before nor after; {told:?}\nagainst before: {}\nagainst after: {}",
        before.difference(&now),
        after.difference(&now)
    );
}

fn assert_nothing_is_left(store: &Store, what: &str) {
    for (path, ..) in store.snapshot() {
        let name = path.to_string_lossy();
        let left = name.contains("turnfs-") || name.contains(".turnfs") || name.ends_with(".tmp");
        assert!(!left, "{what}: {name} is left");
    }
    assert_eq!(cut::recover(&store.state()).unwrap(), Vec::<String>::new(), "{what}: a second recovery");
    // It is a session that can be read and listed, whichever it is.
    store_of(&store.session()).load(&store.session()).unwrap();
    cut::undone(&store.state(), &store.session().key).unwrap();
}

/// Cuts tried, and steps of them.
#[derive(Clone, Copy, Default)]
struct Totals {
    cuts: u64,
    steps: u64,
}

/// Runs `check` for every act of every sample of a store, on two threads.
fn sweep(
    kind: AgentKind,
    what: &str,
    check: impl Fn(&Sample, Option<&str>, &str, &Case) -> u64 + Sync,
) -> Totals {
    let start = Instant::now();
    let mut work = Vec::new();
    for (index, sample) in samples_of(kind).into_iter().enumerate() {
        let acts = acts(index, &sample);
        let sample = std::sync::Arc::new(sample);
        work.extend(acts.into_iter().map(|(prepare, act)| (index, sample.clone(), prepare, act)));
    }
    let (work, totals) = (Mutex::new(work), Mutex::new(Totals::default()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = work.lock().unwrap().pop();
                    let Some((index, sample, prepare, act)) = next else { return };
                    let Some(case) = measure(index, &sample, prepare.as_deref(), &act) else { continue };
                    let steps = check(&sample, prepare.as_deref(), &act, &case);
                    let mut totals = totals.lock().unwrap();
                    totals.cuts += 1;
                    totals.steps += steps;
                }
            });
        }
    });
    let totals = totals.into_inner().unwrap();
    let (cuts, steps, seconds) = (totals.cuts, totals.steps, start.elapsed().as_secs_f32());
    println!("{kind}: {cuts} cuts, {what} at each of {steps} steps, 0 lost, {seconds:.0} s");
    totals
}

fn killed_at_every_step(kind: AgentKind) -> Totals {
    let tried = Tried::default();
    sweep(kind, "killed", |sample, prepare, act, case| {
        let steps = steps(kind, act, case, &tried);
        for (nth, k) in (1..).zip(&steps) {
            let what = format!("{}, {act}, killed at {k} of {}", sample.name, case.operations.len());
            let (store, known) = prepared(sample, prepare).unwrap();
            let output = run(&store, act, &format!("abort:{k}"));
            let told = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.code().is_none(), "{what}: was not killed: {told}");
            // Every other recovery is killed too, at a step that moves with k.
            if nth % 2 == 0 {
                run(&store, "recover", &format!("abort:{}", k % 7 + 1));
            }
            assert_before_or_after(&store, &case.before, &case.after, || Outcome::of(&store, &known), &what);
            assert_nothing_is_left(&store, &what);
        }
        steps.len() as u64
    })
}

fn an_error_at_every_step(kind: AgentKind) -> Totals {
    let errors = [("EIO", libc::EIO), ("ENOSPC", libc::ENOSPC), ("EACCES", libc::EACCES)];
    let tried = Tried::default();
    sweep(kind, "an error", |sample, prepare, act, case| {
        let steps = steps(kind, act, case, &tried);
        for (nth, k) in (1..).zip(&steps) {
            let (name, errno) = errors[nth % 3];
            let what = format!("{}, {act}, {name} at {k} of {}", sample.name, case.operations.len());
            let (store, known) = prepared(sample, prepare).unwrap();
            let output = run(&store, act, &format!("errno:{name}:{k}"));
            let now = Outcome::of(&store, &known);
            match output.status.code() {
                // Tidying up after the commit may fail; the cut is done.
                Some(0) => {
                    let difference = case.after.difference(&now);
                    assert!(now == case.after, "{what}: done, but not as promised: {difference}");
                }
                code => {
                    let told = String::from_utf8_lossy(&output.stdout);
                    assert_eq!(code, Some(ERRNO_BASE + errno), "{what}: {told}");
                    let difference = case.before.difference(&now);
                    assert!(now == case.before, "{what}: changed by a refused cut: {told}\n{difference}");
                }
            }
            cut::recover(&store.state()).unwrap();
            assert_nothing_is_left(&store, &what);
        }
        steps.len() as u64
    })
}

#[test]
fn a_kill_at_any_step_leaves_a_kimi_session_before_or_after_once_recovered() {
    assert!(killed_at_every_step(AgentKind::KimiCli).cuts > 50);
}

#[test]
fn a_kill_at_any_step_leaves_a_kimi_code_session_before_or_after_once_recovered() {
    assert!(killed_at_every_step(AgentKind::KimiCode).cuts >= 8);
}

#[test]
fn a_kill_at_any_step_leaves_a_codex_thread_before_or_after_once_recovered() {
    assert!(killed_at_every_step(AgentKind::Codex).cuts > 15);
}

#[test]
fn a_kill_at_any_step_leaves_an_openmax_session_before_or_after_once_recovered() {
    assert!(killed_at_every_step(AgentKind::OpenMax).cuts > 15);
}

#[test]
fn a_kill_at_any_step_leaves_a_claude_code_session_before_or_after_once_recovered() {
    assert!(killed_at_every_step(AgentKind::ClaudeCode).cuts > 15);
}

#[test]
fn an_error_at_any_step_is_told_and_a_claude_code_session_is_as_before() {
    assert!(an_error_at_every_step(AgentKind::ClaudeCode).cuts > 15);
}

#[test]
fn an_error_at_any_step_is_told_and_a_kimi_session_is_as_before() {
    assert!(an_error_at_every_step(AgentKind::KimiCli).cuts > 50);
}

#[test]
fn an_error_at_any_step_is_told_and_a_kimi_code_session_is_as_before() {
    assert!(an_error_at_every_step(AgentKind::KimiCode).cuts >= 8);
}

#[test]
fn an_error_at_any_step_is_told_and_a_codex_thread_is_as_before() {
    assert!(an_error_at_every_step(AgentKind::Codex).cuts > 15);
}

#[test]
fn an_error_at_any_step_is_told_and_an_openmax_session_is_as_before() {
    assert!(an_error_at_every_step(AgentKind::OpenMax).cuts > 15);
}

/// Hard links of all files of the store, as `cp -al` makes them.
fn linked(store: &Store) -> (std::path::PathBuf, super::store::Snapshot) {
    fn link(from: &Path, to: &Path) {
        std::fs::create_dir(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            let target = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => link(&entry.path(), &target),
                false => std::fs::hard_link(entry.path(), target).unwrap(),
            }
        }
    }
    let backup = store.top().join("backup");
    link(&store.root(), &backup);
    let kept = super::store::snapshot(&backup);
    (backup, kept)
}

/// Cuts that change files in place, of a store that `cp -al` was made of.
fn swept_with_hard_links(kind: AgentKind, name: &str, prepare: Option<&str>, act: &str) -> u64 {
    let sample = samples_of(kind).into_iter().find(|sample| sample.name == name).unwrap();
    let case = measure(0, &sample, prepare, act).unwrap_or_else(|| panic!("{name}: {act} works"));
    let (store, known) = prepared(&sample, prepare).unwrap();
    let (backup, kept) = linked(&store);
    let count = store.top().join("count");
    let output = run(&store, act, &format!("count:{}", count.display()));
    assert!(output.status.success(), "{name}, {act}: {}", String::from_utf8_lossy(&output.stdout));
    assert!(Outcome::of(&store, &known) == case.after, "{name}, {act} with hard links");
    assert_eq!(super::store::snapshot(&backup), kept, "{name}, {act}");
    let operations = std::fs::read_to_string(count).unwrap().lines().count() as u64;
    assert!(operations > case.operations.len() as u64, "{name}, {act}: cut in place");
    for k in 1..=operations {
        for (which, fault) in [format!("abort:{k}"), format!("errno:ENOSPC:{k}")].into_iter().enumerate() {
            // Of each three steps one is killed and one fails.
            if !is_all() && k % 3 != which as u64 {
                continue;
            }
            let what = format!("{name}, {act}, {fault} of {operations}");
            let (store, known) = prepared(&sample, prepare).unwrap();
            let (backup, kept) = linked(&store);
            run(&store, act, &fault);
            if fault.starts_with("abort") && k % 2 == 0 {
                run(&store, "recover", &format!("abort:{}", k % 7 + 1));
            }
            assert_before_or_after(&store, &case.before, &case.after, || Outcome::of(&store, &known), &what);
            assert_nothing_is_left(&store, &what);
            assert_eq!(super::store::snapshot(&backup), kept, "{what}: the backup");
        }
    }
    operations
}

#[test]
fn a_fault_at_any_step_of_cutting_a_hard_linked_session_spares_session_and_backup() {
    let undo_1 = Some("undo 1");
    let mut steps = 0;
    steps += swept_with_hard_links(AgentKind::KimiCli, "a-plain", None, "undo 1");
    steps += swept_with_hard_links(AgentKind::KimiCli, "a-plain", undo_1, "redo");
    steps += swept_with_hard_links(AgentKind::KimiCli, "m-autocompact", None, "undo 1");
    steps += swept_with_hard_links(AgentKind::Codex, "a_plain4_legacy", None, "undo 1");
    // With its database.
    steps += swept_with_hard_links(AgentKind::Codex, "a_plain4", None, "undo 1");
    steps += swept_with_hard_links(AgentKind::Codex, "a_plain4", undo_1, "redo");
    steps += swept_with_hard_links(AgentKind::Codex, "a_plain4", None, "fork 1");
    steps += swept_with_hard_links(AgentKind::OpenMax, "a_plain", None, "undo 1");
    steps += swept_with_hard_links(AgentKind::ClaudeCode, "plain", None, "undo 1");
    steps += swept_with_hard_links(AgentKind::ClaudeCode, "branch-resume-at", Some("undo 2"), "redo");
    steps += swept_with_hard_links(AgentKind::KimiCode, "a-plain", None, "undo 1");
    steps += swept_with_hard_links(AgentKind::KimiCode, "a-plain", undo_1, "redo");
    println!("{steps} steps of hard-linked cuts, each killed and failed");
}

/// A cut of a store whose sessions (and database) are links, killed or failed at every step.
fn swept_behind_links(kind: AgentKind, name: &str, prepare: Option<&str>, act: &str) -> u64 {
    let sample = samples_of(kind).into_iter().find(|sample| sample.name == name).unwrap();
    let moved = || {
        let (store, known) = prepared(&sample, None).unwrap();
        for part in ["sessions", "projects", "state_5.sqlite"] {
            let (path, target) = (store.root().join(part), store.top().join(format!("moved-{part}")));
            if path.exists() {
                std::fs::rename(&path, &target).unwrap();
                std::os::unix::fs::symlink(&target, &path).unwrap();
            }
        }
        if let Some(prepare) = prepare {
            assert!(run(&store, prepare, "").status.success(), "{name}: {prepare}");
        }
        (store, known)
    };
    // Where the links lead, as it is seen through them.
    let seen = |store: &Store, known: &Known| {
        let seen = store.copy_behind_links();
        Outcome::of(&seen, known)
    };
    let (store, known) = moved();
    let before = seen(&store, &known);
    let count = store.top().join("count");
    let output = run(&store, act, &format!("count:{}", count.display()));
    assert!(output.status.success(), "{name}, {act}: {}", String::from_utf8_lossy(&output.stdout));
    let after = seen(&store, &known);
    assert!(before != after, "{name}, {act}");
    let operations = std::fs::read_to_string(count).unwrap().lines().count() as u64;
    for k in (1..=operations).step_by(if is_all() { 1 } else { 3 }) {
        let fault = [format!("abort:{k}"), format!("errno:EIO:{k}")][(k % 2) as usize].clone();
        let what = format!("{name}, {act}, {fault} of {operations}, behind links");
        let (store, known) = moved();
        run(&store, act, &fault);
        assert_before_or_after(&store, &before, &after, || seen(&store, &known), &what);
        assert_nothing_is_left(&store.copy_behind_links(), &what);
        assert!(["sessions", "projects"].iter().any(|part| store.root().join(part).is_symlink()), "{what}");
    }
    operations
}

#[test]
fn a_fault_at_any_step_of_a_cut_behind_links_leaves_before_or_after() {
    let mut steps = 0;
    for (kind, name, prepare, act) in [
        (AgentKind::KimiCli, "m-autocompact", None, "undo 1"),
        (AgentKind::KimiCli, "a-plain", Some("undo 1"), "redo"),
        (AgentKind::KimiCli, "a-plain", None, "fork 1"),
        (AgentKind::Codex, "a_plain4", None, "undo 1"),
        (AgentKind::Codex, "a_plain4", None, "fork 1"),
        (AgentKind::OpenMax, "a_plain", None, "undo 1"),
        (AgentKind::OpenMax, "a_plain", None, "fork 1"),
        (AgentKind::ClaudeCode, "plain", None, "undo 1"),
        (AgentKind::ClaudeCode, "branch-resume-at", None, "undo 2"),
        (AgentKind::ClaudeCode, "compact", None, "fork 3"),
        (AgentKind::KimiCode, "a-plain", None, "undo 1"),
        (AgentKind::KimiCode, "a-plain", Some("undo 1"), "redo"),
        (AgentKind::KimiCode, "j-sub", None, "fork 1"),
    ] {
        steps += swept_behind_links(kind, name, prepare, act);
    }
    println!("{steps} steps of cuts behind links, each killed or failed");
}

/// A kill and an error at every step of a fork of what an undo removed.
fn swept_branch(kind: AgentKind, name: &str) -> u64 {
    let sample = samples_of(kind).into_iter().find(|sample| sample.name == name).unwrap();
    let (prepare, act) = (Some("undo 1"), "branch 2");
    let case = measure(0, &sample, prepare, act).unwrap_or_else(|| panic!("{name}: {act} works"));
    let operations = case.operations.len() as u64;
    for k in (1..=operations).step_by(if is_all() { 1 } else { 3 }) {
        let fault = [format!("abort:{k}"), format!("errno:ENOSPC:{k}")][(k % 2) as usize].clone();
        let what = format!("{name}, {act}, {fault} of {operations}");
        let (store, known) = prepared(&sample, prepare).unwrap();
        run(&store, act, &fault);
        assert_before_or_after(&store, &case.before, &case.after, || Outcome::of(&store, &known), &what);
        assert_nothing_is_left(&store, &what);
        let folders = std::fs::read_dir(store.state().path().join("sessions")).unwrap().map(Result::unwrap);
        assert!(!folders.into_iter().any(|folder| folder.path().join("branch").exists()), "{what}: the copy");
    }
    operations
}

#[test]
fn a_fault_at_any_step_of_forking_a_branch_leaves_the_whole_new_session_or_none() {
    let mut steps = 0;
    for (kind, name) in [
        (AgentKind::KimiCli, "a-plain"),
        (AgentKind::Codex, "a_plain4"),
        (AgentKind::Codex, "a_plain4_legacy"),
        (AgentKind::OpenMax, "a_plain"),
        (AgentKind::KimiCode, "a-plain"),
    ] {
        steps += swept_branch(kind, name);
    }
    println!("{steps} steps of forking a branch, each killed or failed");
}

#[test]
fn two_processes_that_recover_at_once_do_it_once() {
    let sample = samples().into_iter().find(|sample| sample.name == "m-autocompact").unwrap();
    let Some(case) = measure(0, &sample, None, "undo 1") else { panic!("undo 1 works") };
    let mut rounds_rolled_back = 0;
    for k in (1..=case.operations.len()).step_by(2) {
        let (store, known) = prepared(&sample, None).unwrap();
        run(&store, "undo 1", &format!("abort:{k}"));
        let spawn = || child(&store, "recover").stdout(Stdio::piped()).spawn().unwrap();
        let children = [spawn(), spawn(), spawn()];
        let told = children.map(|child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap());
        let rolled_back = told.iter().filter(|text| text.contains("rolled back")).count();
        assert!(rolled_back <= 1, "{told:?}");
        rounds_rolled_back += rolled_back;
        let now = Outcome::of(&store, &known);
        assert!(now == case.before || now == case.after, "killed at {k}");
        assert!(Path::new(&store.root()).is_dir());
    }
    assert!(rounds_rolled_back > 0, "no kill left anything to roll back");
}
