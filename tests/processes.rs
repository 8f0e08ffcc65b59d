//! Cuts by several processes at once, and daemons that are killed in the middle of one.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::{Mount, TestStore, detach, expected};

const SAMPLE: &str = "m-autocompact";
const NONE: [&str; 0] = [];
const KILLS: u32 = 200;
const ROUNDS: u32 = 20;

type Files = BTreeMap<PathBuf, (u32, Vec<u8>)>;

/// The files of a store with a fork's random id taken out.
fn without_ids(store: &TestStore, known: &str) -> Files {
    let rename = |path: PathBuf| {
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        match &parts[..] {
            [sessions, group, id, rest @ ..] if sessions == "sessions" && id != known => {
                Path::new("sessions").join(group).join("fork").join(rest.iter().collect::<PathBuf>())
            }
            _ => path,
        }
    };
    store.snapshot().into_iter().map(|(path, file)| (rename(path), file)).collect()
}

fn id() -> String {
    expected(SAMPLE)["session"].as_str().unwrap().to_owned()
}

fn turns(store: &TestStore, id: &str) -> usize {
    store.run(&["show", id, "--json"]).json()["turns"].as_array().unwrap().len()
}

/// Random numbers that are the same at every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A cut that a daemon is killed in.
#[derive(Clone, Copy, Debug)]
enum Act {
    Undo(u32),
    Redo,
    Fork(u32),
}

impl Act {
    /// Brings a fresh store to where the act can be done.
    fn prepare(self, store: &TestStore) {
        if let Act::Redo = self {
            store.run(&["undo", &id(), "1"]).ok();
        }
    }

    fn control(self) -> (&'static str, String) {
        match self {
            Act::Undo(n) => ("undo", n.to_string()),
            Act::Redo => ("redo", "last".into()),
            Act::Fork(n) => ("fork", n.to_string()),
        }
    }

    /// The store before and after the act.
    fn outcomes(self) -> (Files, Files) {
        let store = TestStore::from_sample(SAMPLE);
        self.prepare(&store);
        let before = store.snapshot();
        let (verb, argument) = self.control();
        match self {
            Act::Redo => store.run(&[verb, &id()]).ok(),
            _ => store.run(&[verb, &id(), &argument]).ok(),
        };
        (before, without_ids(&store, &id()))
    }
}

#[test]
fn a_daemon_killed_at_any_moment_of_a_cut_loses_nothing() {
    let acts = [Act::Undo(1), Act::Undo(3), Act::Undo(4), Act::Redo, Act::Fork(2)];
    let outcomes = acts.map(Act::outcomes);
    let next = AtomicU32::new(0);
    let counts = [(); 3].map(|()| AtomicU32::new(0));
    let [stayed, done, mended] = &counts;
    // How long each act takes differs from machine to machine. The times at which daemons are killed move to
    // where about half of them come too late.
    let usual = acts.map(|_| AtomicU64::new(60_000));
    let work = || {
        loop {
            let round = next.fetch_add(1, Ordering::Relaxed);
            if round >= KILLS {
                return;
            }
            let which = round as usize % acts.len();
            let (act, (before, after)) = (acts[which], &outcomes[which]);
            let store = TestStore::from_sample(SAMPLE);
            act.prepare(&store);
            let mount = store.mount(&NONE);
            let (verb, argument) = act.control();
            let control = mount.session(&store, Some(&id())).join(verb);
            let script = format!("echo {argument} > '{}'", control.display());
            let mut random = Random(u64::from(round) + 1);
            random.below(1);
            let middle = usual[which].load(Ordering::Relaxed);
            let wait = Duration::from_micros(middle * 3 / 4 + random.below(middle / 2));
            let mut shell = store.shell("sh", &script).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(wait);
            let path = mount.kill();
            let told = shell.wait().unwrap();
            detach(&path);
            let what = format!("{act:?}, killed after {wait:?}");

            // A new daemon puts everything in order.
            let (status, log) = store.mount(&NONE).stop();
            assert!(status.success(), "{what}: {log}");
            let now = without_ids(&store, &id());
            assert!(now == *before || now == *after, "{what}: neither before nor after; {log}");
            assert!(!told.success() || now == *after, "{what}: it was said to be done");
            let left = turns(&store, &id());
            let wanted = match (act, now == *after) {
                (Act::Undo(n), true) => n as usize,
                (Act::Redo, false) => 1,
                _ => expected(SAMPLE)["turns"].as_array().unwrap().len(),
            };
            assert_eq!(left, wanted, "{what}");
            store.run(&["check", "--all"]).ok();
            let (count, middle) =
                if now == *after { (done, middle * 9 / 10) } else { (stayed, middle * 11 / 10) };
            usual[which].store(middle, Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
            if log.contains("rolled back") || log.contains("did not finish") || log.contains("is complete") {
                mended.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let start = Instant::now();
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    let [stayed, done, mended] = counts.map(AtomicU32::into_inner);
    println!(
        "{KILLS} cuts killed in {:.0} s: {stayed} as before, {done} done, {mended} put in order by the next command; 0 lost",
        start.elapsed().as_secs_f32()
    );
    assert_eq!(stayed + done, KILLS);
    assert!(stayed > 0 && done > 0 && mended > 0, "no kill hit a cut");
}

/// What a try came to: done, or the errno.
type Outcome = Result<(), i32>;

/// A cut that another process makes; it begins when told to.
type Try<'a> = Box<dyn FnOnce() -> Outcome + Send + 'a>;

fn cli<'a>(store: &'a TestStore, args: &'a [&'a str]) -> Try<'a> {
    Box::new(move || {
        let ran = store.run(args);
        if ran.code == 0 {
            return Ok(());
        }
        let says = |text: &str| ran.stderr.contains(text);
        Err(match () {
            () if says("does not exist") || says("nothing to redo") => libc::ERANGE,
            () if says("changed since") || says("moved on") => libc::ESTALE,
            () if says("locked") => libc::EAGAIN,
            () => panic!("refused for another reason: {}", ran.stderr),
        })
    })
}

/// The control file is opened before the start, so both have seen the same.
fn control(session: &Path, verb: &str, text: &'static str) -> Try<'static> {
    let mut file = OpenOptions::new().write(true).open(session.join(verb)).unwrap();
    Box::new(move || file.write_all(text.as_bytes()).map_err(|error| error.raw_os_error().unwrap()))
}

/// Starts both at the same moment.
fn race(tries: [Try<'_>; 2]) -> [Outcome; 2] {
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let handles = tries.map(|one| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                one()
            })
        });
        handles.map(|handle| handle.join().unwrap())
    })
}

/// Of two equal ones one is done; the other is told that there is nothing (any more) to do, or to try again.
#[track_caller]
fn assert_one_done(outcomes: [Outcome; 2], what: &str) {
    let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!(done, 1, "{what}: {outcomes:?}");
    for errno in outcomes.into_iter().filter_map(Result::err) {
        let allowed = [libc::ERANGE, libc::ESTALE, libc::EAGAIN, libc::EBUSY];
        assert!(allowed.contains(&errno), "{what}: errno {errno}");
    }
}

/// Runs `check` with the two tries made for each of: two commands, a mount and a command, two mounts.
fn in_every_pair(verb: &str, argument: &'static str, prepare: &[&str], turns_after: usize) {
    let id = id();
    let line: &'static str = if argument == "last" { "last\n" } else { "2\n" };
    let full = expected(SAMPLE)["turns"].as_array().unwrap().len();
    for round in 0..ROUNDS {
        let store = TestStore::from_sample(SAMPLE);
        let whole = store.snapshot();
        let args: Vec<&str> = if verb == "redo" { vec![verb, &id] } else { vec![verb, &id, argument] };
        let mounts: [Mount; 2] = [store.mount(&NONE), store.mount(&NONE)];
        for pair in ["two commands", "a mount and a command", "two mounts"] {
            if !prepare.is_empty() {
                store.run(prepare).ok();
            }
            let sessions = [0, 1].map(|n: usize| mounts[n].session(&store, Some(&id)));
            let tries = match pair {
                "two commands" => [cli(&store, &args), cli(&store, &args)],
                "a mount and a command" => [control(&sessions[0], verb, line), cli(&store, &args)],
                _ => [control(&sessions[0], verb, line), control(&sessions[1], verb, line)],
            };
            let what = format!("{verb}, {pair}, round {round}");
            assert_one_done(race(tries), &what);
            assert_eq!(turns(&store, &id), turns_after, "{what}");
            // Back to where it began: byte for byte, so nothing was cut twice.
            if turns_after < full {
                store.run(&["redo", &id]).ok();
                store.run(&["redo", &id]).refused();
            }
            assert_eq!(store.snapshot(), whole, "{what}");
        }
    }
}

#[test]
fn of_two_equal_undos_by_two_processes_one_is_done() {
    in_every_pair("undo", "2", &[], 2);
}

#[test]
fn of_two_redos_by_two_processes_one_is_done() {
    let id = id();
    let full = expected(SAMPLE)["turns"].as_array().unwrap().len();
    in_every_pair("redo", "last", &["undo", &id, "2"], full);
}

#[test]
fn an_undo_and_a_fork_at_once_are_both_right_or_one_is_told_why_not() {
    let id = id();
    let (mut forks, mut stale) = (0, 0);
    for round in 0..ROUNDS {
        let store = TestStore::from_sample(SAMPLE);
        let mounts: [Mount; 2] = [store.mount(&NONE), store.mount(&NONE)];
        let sessions = [0, 1].map(|n: usize| mounts[n].session(&store, Some(&id)));
        let whole = turns(&store, &id);
        let fork_args = ["fork", &id, "4"];
        let fork = match round % 2 {
            0 => control(&sessions[1], "fork", "4\n"),
            _ => cli(&store, &fork_args),
        };
        let [undone, forked] = race([control(&sessions[0], "undo", "2\n"), fork]);
        assert_eq!(undone, Ok(()), "round {round}: a fork holds nobody up for long");
        assert_eq!(turns(&store, &id), 2, "round {round}");
        let sessions = store.run(&["ls", "--all", "--json"]).json();
        let sizes: Vec<u64> =
            sessions.as_array().unwrap().iter().map(|session| session["turns"].as_u64().unwrap()).collect();
        match forked {
            // It came first, and has all that it was asked for.
            Ok(()) => {
                forks += 1;
                assert!(sizes.contains(&(whole as u64)), "round {round}: {sessions}");
            }
            Err(errno) => {
                stale += 1;
                assert!([libc::ERANGE, libc::ESTALE].contains(&errno), "round {round}: errno {errno}");
                assert_eq!(sizes.len(), 1, "round {round}: {sessions}");
            }
        }
        store.run(&["redo", &id]).ok();
        assert_eq!(turns(&store, &id), whole, "round {round}");
    }
    println!("{forks} forks came before the undo, {stale} after it");
}
