//! A kill or an error at every durable operation of every cut of every sample. Feature `faults`.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Mutex;

use turnfs::agents::agent;
use turnfs::cut;
use turnfs::session::AgentKind;

use super::store::{ERRNO_BASE, Sample, Snapshot, Store, child, samples, without_ids};

fn run(store: &Store, act: &str, fault: &str) -> Output {
    child(store, act).env("TURNFS_FAULT", fault).stderr(Stdio::null()).output().unwrap()
}

/// The cuts to try on a sample: all turns, or with `TURNFS_TEST_QUICK` the first, a middle and the last.
fn acts(sample: &Sample) -> Vec<(Option<String>, String)> {
    let turns = sample.turns();
    let quick = std::env::var_os("TURNFS_TEST_ALL").is_none();
    let wanted = |n: &u32| !quick || [0, turns / 2, turns - 1].contains(n);
    let mut acts = Vec::new();
    for n in (0..turns).filter(wanted) {
        acts.push((None, format!("undo {n}")));
        acts.push((Some(format!("undo {n}")), "redo".to_owned()));
        acts.push((None, format!("fork {n}")));
    }
    acts
}

/// A fresh copy with the cut prepared; `None` if this cut is refused anyway.
fn prepared(sample: &Sample, prepare: Option<&str>) -> Option<Store> {
    let store = sample.copy();
    match prepare {
        Some(prepare) => store.act(prepare).is_ok().then_some(store),
        None => Some(store),
    }
}

struct Case {
    before: Snapshot,
    after: Snapshot,
    operations: u64,
}

/// Does the cut once, counting its operations.
fn measure(sample: &Sample, prepare: Option<&str>, act: &str) -> Option<Case> {
    let store = prepared(sample, prepare)?;
    let before = store.snapshot();
    let count = store.top().join("count");
    let output = run(&store, act, &format!("count:{}", count.display()));
    if !output.status.success() {
        return None;
    }
    let after = without_ids(&store, &before, store.snapshot());
    let operations = std::fs::read_to_string(count).unwrap().lines().count() as u64;
    assert!(operations > 8, "{}, {act}: only {operations} operations", sample.name);
    Some(Case { before, after, operations })
}

fn assert_nothing_is_left(store: &Store, what: &str) {
    for (path, ..) in store.snapshot() {
        assert!(!path.to_string_lossy().contains("turnfs-"), "{what}: {} is left", path.display());
    }
    assert_eq!(cut::recover(&store.state()).unwrap(), Vec::<String>::new(), "{what}: a second recovery");
    // It is a session that can be read and listed, whichever it is.
    agent(AgentKind::KimiCli).load(&store.session()).unwrap();
    cut::undone(&store.state(), &store.session().key).unwrap();
}

/// Runs `check` for every sample's every act on two threads.
fn sweep(check: impl Fn(&Sample, Option<&str>, &str, &Case) -> u64 + Sync) -> (usize, u64) {
    let mut work = Vec::new();
    for sample in samples() {
        let acts = acts(&sample);
        let sample = std::sync::Arc::new(sample);
        work.extend(acts.into_iter().map(|(prepare, act)| (sample.clone(), prepare, act)));
    }
    let (work, totals) = (Mutex::new(work), Mutex::new((0, 0)));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((sample, prepare, act)) = work.lock().unwrap().pop() else { return };
                    let Some(case) = measure(&sample, prepare.as_deref(), &act) else { continue };
                    let steps = check(&sample, prepare.as_deref(), &act, &case);
                    let mut totals = totals.lock().unwrap();
                    totals.0 += 1;
                    totals.1 += steps;
                }
            });
        }
    });
    totals.into_inner().unwrap()
}

#[test]
fn a_kill_at_any_step_leaves_the_session_before_or_after_once_recovered() {
    let (cuts, steps) = sweep(|sample, prepare, act, case| {
        for k in 1..=case.operations {
            let what = format!("{}, {act}, killed at {k} of {}", sample.name, case.operations);
            let store = prepared(sample, prepare).unwrap();
            let output = run(&store, act, &format!("abort:{k}"));
            assert!(output.status.code().is_none(), "{what}: was not killed");
            // The recovery itself is killed too, at a step that moves with k.
            if k % 3 == 0 {
                run(&store, "recover", &format!("abort:{}", k % 7 + 1));
            }
            let told = cut::recover(&store.state()).unwrap();
            assert!(!told.iter().any(|line| line.contains("could not")), "{what}: {told:?}");
            let now = without_ids(&store, &case.before, store.snapshot());
            assert!(now == case.before || now == case.after, "{what}: neither before nor after");
            assert_nothing_is_left(&store, &what);
        }
        case.operations
    });
    println!("{cuts} cuts, killed at each of {steps} steps, 0 lost");
    assert!(cuts > 60);
}

#[test]
fn an_error_at_any_step_is_told_and_the_session_is_as_before() {
    let errors =
        [("EIO", libc_errno("EIO")), ("ENOSPC", libc_errno("ENOSPC")), ("EACCES", libc_errno("EACCES"))];
    let (cuts, steps) = sweep(|sample, prepare, act, case| {
        for k in 1..=case.operations {
            let (name, errno) = errors[(k % 3) as usize];
            let what = format!("{}, {act}, {name} at {k} of {}", sample.name, case.operations);
            let store = prepared(sample, prepare).unwrap();
            let output = run(&store, act, &format!("errno:{name}:{k}"));
            let now = without_ids(&store, &case.before, store.snapshot());
            match output.status.code() {
                // Tidying up after the commit of a redo may fail; the redo is done.
                Some(0) => assert!(now == case.after, "{what}: done, but not as promised"),
                code => {
                    let told = String::from_utf8_lossy(&output.stdout);
                    assert_eq!(code, Some(ERRNO_BASE + errno), "{what}: {told}");
                    assert!(now == case.before, "{what}: changed by a refused cut: {told}");
                }
            }
            cut::recover(&store.state()).unwrap();
            assert_nothing_is_left(&store, &what);
        }
        case.operations
    });
    println!("{cuts} cuts, an error at each of {steps} steps, 0 lost");
    assert!(cuts > 60);
}

fn libc_errno(name: &str) -> i32 {
    match name {
        "EIO" => 5,
        "ENOSPC" => 28,
        "EACCES" => 13,
        other => panic!("{other}"),
    }
}

#[test]
fn two_processes_that_recover_at_once_do_it_once() {
    let sample = samples().into_iter().find(|sample| sample.name == "m-autocompact").unwrap();
    for k in (1..40).step_by(3) {
        let store = sample.copy();
        let before = store.snapshot();
        let Some(case) = measure(&sample, None, "undo 1") else { panic!("undo 1 works") };
        run(&store, "undo 1", &format!("abort:{k}"));
        let spawn = || child(&store, "recover").stdout(Stdio::piped()).spawn().unwrap();
        let children = [spawn(), spawn(), spawn()];
        let told = children.map(|child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap());
        let rolled_back = told.iter().filter(|text| text.contains("rolled back")).count();
        assert!(rolled_back <= 1, "{told:?}");
        let now = store.snapshot();
        assert!(now == before || now == case.after, "killed at {k}");
        assert!(Path::new(&store.root()).is_dir());
    }
}
