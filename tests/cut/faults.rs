//! A kill or an error at every durable operation of every cut of every sample of every store. Feature
//! `faults`.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use turnfs::agents::agent;
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
            AgentKind::Codex | AgentKind::OpenMax if !all => {
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

/// The steps of a cut to try. Many samples of Codex and OpenMax go the same way: each takes every third step,
/// from another one on.
fn steps(kind: AgentKind, index: usize, operations: u64) -> impl Iterator<Item = u64> {
    let (first, by) = match kind {
        AgentKind::Codex | AgentKind::OpenMax if !is_all() => (index / 9 % 3 + 1, 3),
        _ => (1, 1),
    };
    (first as u64..=operations).step_by(by)
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
    operations: u64,
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
    let operations = std::fs::read_to_string(count).unwrap().lines().count() as u64;
    assert!(operations > 8, "{}, {act}: only {operations} operations", sample.name);
    assert!(before != after, "{}, {act}: nothing was done", sample.name);
    Some(Case { before, after, operations, index })
}

fn assert_nothing_is_left(store: &Store, what: &str) {
    for (path, ..) in store.snapshot() {
        let name = path.to_string_lossy();
        let left = name.contains("turnfs-") || name.contains(".turnfs") || name.ends_with(".tmp");
        assert!(!left, "{what}: {name} is left");
    }
    assert_eq!(cut::recover(&store.state()).unwrap(), Vec::<String>::new(), "{what}: a second recovery");
    // It is a session that can be read and listed, whichever it is.
    agent(store.kind).load(&store.session()).unwrap();
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
    sweep(kind, "killed", |sample, prepare, act, case| {
        let mut tried = 0;
        for k in steps(sample.kind, case.index, case.operations) {
            tried += 1;
            let what = format!("{}, {act}, killed at {k} of {}", sample.name, case.operations);
            let (store, known) = prepared(sample, prepare).unwrap();
            let output = run(&store, act, &format!("abort:{k}"));
            let told = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.code().is_none(), "{what}: was not killed: {told}");
            // The recovery itself is killed too, at a step that moves with k.
            if k % 3 == 0 {
                run(&store, "recover", &format!("abort:{}", k % 7 + 1));
            }
            let told = cut::recover(&store.state()).unwrap();
            assert!(!told.iter().any(|line| line.contains("could not")), "{what}: {told:?}");
            let now = Outcome::of(&store, &known);
            assert!(
                now == case.before || now == case.after,
                "{what}: neither before nor after; {told:?}\nagainst before: {}\nagainst after: {}",
                case.before.difference(&now),
                case.after.difference(&now)
            );
            assert_nothing_is_left(&store, &what);
        }
        tried
    })
}

fn an_error_at_every_step(kind: AgentKind) -> Totals {
    let errors = [("EIO", libc::EIO), ("ENOSPC", libc::ENOSPC), ("EACCES", libc::EACCES)];
    sweep(kind, "an error", |sample, prepare, act, case| {
        let mut tried = 0;
        for k in steps(sample.kind, case.index, case.operations) {
            tried += 1;
            let (name, errno) = errors[(k % 3) as usize];
            let what = format!("{}, {act}, {name} at {k} of {}", sample.name, case.operations);
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
        tried
    })
}

#[test]
fn a_kill_at_any_step_leaves_a_kimi_session_before_or_after_once_recovered() {
    assert!(killed_at_every_step(AgentKind::KimiCli).cuts > 50);
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
fn an_error_at_any_step_is_told_and_a_kimi_session_is_as_before() {
    assert!(an_error_at_every_step(AgentKind::KimiCli).cuts > 50);
}

#[test]
fn an_error_at_any_step_is_told_and_a_codex_thread_is_as_before() {
    assert!(an_error_at_every_step(AgentKind::Codex).cuts > 15);
}

#[test]
fn an_error_at_any_step_is_told_and_an_openmax_session_is_as_before() {
    assert!(an_error_at_every_step(AgentKind::OpenMax).cuts > 15);
}

#[test]
fn two_processes_that_recover_at_once_do_it_once() {
    let sample = samples().into_iter().find(|sample| sample.name == "m-autocompact").unwrap();
    let Some(case) = measure(0, &sample, None, "undo 1") else { panic!("undo 1 works") };
    let mut rounds_rolled_back = 0;
    for k in (1..=case.operations).step_by(2) {
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
