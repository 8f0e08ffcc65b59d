//! A day's work in a short time: agents append to twenty sessions, crawlers read, cuts are made, mounts come and go, and
//! a daemon is killed now and then. No read may be wrong, and the daemon that lives through all of it may not grow.
//!
//! TURNFS_TEST_SOAK sets for how many seconds.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod store;
#[path = "../support/mod.rs"]
mod support;
mod vitals;

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use store::{Marks, PROJECT, Session, Sessions};
use support::{Mount, TestStore, detach};
use vitals::Vitals;

/// Longest time until a listing shows what was written.
const SOON: Duration = Duration::from_secs(20);
/// A session grows to this many turns, and is then taken back to a few: the store as a whole does not grow.
const MANY: usize = 40;
const FEW: usize = 10;

/// What everybody shares.
struct World {
    sessions: Sessions,
    /// A mount that lives through all of it.
    steady: PathBuf,
    /// One that is killed now and then.
    killed: PathBuf,
    over: AtomicBool,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    appended: AtomicU64,
    read: AtomicU64,
    /// Reads that found no mount: its daemon had just been killed.
    missed: AtomicU64,
    undone: AtomicU64,
    redone: AtomicU64,
    forked: AtomicU64,
    /// Cuts whose daemon was killed meanwhile.
    interrupted: AtomicU64,
    kills: AtomicU64,
    mounts: AtomicU64,
}

fn count(of: &AtomicU64) {
    of.fetch_add(1, Ordering::Relaxed);
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }
}

impl World {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn dir(&self, mount: &Path, session: &Session) -> PathBuf {
        mount.join(PROJECT).join(&session.id)
    }

    fn mount(&self, dice: &mut Dice) -> &Path {
        if dice.roll(3) == 0 { &self.killed } else { &self.steady }
    }

    /// Agents: one turn after the other, in any session that nobody else is at.
    fn append(&self, seed: u64) {
        let mut dice = Dice(seed);
        while self.goes_on() {
            let session = self.sessions.get(dice.roll(1 << 20));
            if let Some(mut marks) = session.try_lock().filter(|marks| marks.now.len() < MANY) {
                session.append(&mut marks);
                count(&self.counts.appended);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A reader that knows what there must be, and lets nobody change the session meanwhile.
    fn read_exactly(&self, seed: u64) {
        let mut dice = Dice(seed);
        while self.goes_on() {
            let session = self.sessions.get(dice.roll(1 << 20));
            let mount = self.mount(&mut dice).to_owned();
            let Some(marks) = session.try_lock() else { continue };
            let n = dice.roll(marks.now.len());
            match self.check_turn(&mount, session, &marks, n) {
                Ok(()) => count(&self.counts.read),
                Err(error) if mount == self.killed && is_gone(&error) => {
                    count(&self.counts.missed);
                    drop(marks);
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => panic!("turn {n} of {} in {}: {error}", session.id, mount.display()),
            }
        }
    }

    fn check_turn(&self, mount: &Path, session: &Session, marks: &Marks, n: usize) -> io::Result<()> {
        let turns = self.dir(mount, session).join("turns");
        let text = fs::read_to_string(turns.join(n.to_string()))?;
        assert!(
            session.is_only(&marks.now[n], &text),
            "turn {n} of {} is {}: {text}",
            session.id,
            marks.now[n]
        );
        let start = Instant::now();
        loop {
            let names = fs::read_dir(&turns)?.count();
            if names == marks.now.len() {
                break;
            }
            assert!(start.elapsed() < SOON, "{} turns of {}, {names} listed", marks.now.len(), session.id);
            std::thread::sleep(Duration::from_millis(1));
        }
        let size = fs::metadata(turns.join(n.to_string()))?.len();
        assert_eq!(size, text.len() as u64, "turn {n} of {}", session.id);
        Ok(())
    }

    /// A crawler that knows nothing and waits for nobody: what it reads may be old or new, but is of one turn.
    fn crawl(&self, seed: u64) {
        let mut dice = Dice(seed);
        while self.goes_on() {
            let session = self.sessions.get(dice.roll(1 << 20));
            let dir = self.dir(self.mount(&mut dice), session);
            for name in ["status", "meta.json", "undo", "context.md"] {
                let _ = fs::read(dir.join(name));
            }
            let turns = fs::read_dir(dir.join("turns")).into_iter().flatten().flatten();
            for turn in turns {
                let Ok(text) = fs::read_to_string(turn.path()) else { continue };
                let marks = text.matches("mark-").count();
                assert_eq!(marks, text.matches(&session.prefix()).count(), "another session: {text}");
                assert!(marks <= 1, "a mixture of turns: {text}");
                count(&self.counts.read);
            }
        }
    }

    fn cut(&self, seed: u64) {
        let mut dice = Dice(seed);
        while self.goes_on() {
            let session = self.sessions.get(dice.roll(1 << 20));
            let mount = self.mount(&mut dice).to_owned();
            let mut marks = session.lock();
            let turns = marks.now.len();
            if turns < 2 {
                session.append(&mut marks);
                continue;
            }
            let dir = self.dir(&mount, session);
            match if turns == MANY { 0 } else { 1 + dice.roll(2) } {
                0 => {
                    let removed = marks.now.split_off(FEW);
                    if self.command(&dir.join("undo"), FEW) {
                        count(&self.counts.undone);
                    } else {
                        self.see_whether(session, &mut marks, &removed);
                    }
                }
                1 => {
                    let n = 1 + dice.roll(turns - 1);
                    let removed = marks.now.split_off(n);
                    let undone = self.command(&dir.join("undo"), n);
                    if undone && self.command(&dir.join("redo"), "last") {
                        marks.now.extend(removed);
                        count(&self.counts.redone);
                    } else {
                        self.see_whether(session, &mut marks, &removed);
                    }
                }
                _ => {
                    if let Some(id) = self.fork(&dir, dice.roll(turns)) {
                        self.sessions.delete(&id);
                        count(&self.counts.forked);
                    }
                }
            }
        }
    }

    /// Writes into a control file; whether it was done. On the steady mount it must be.
    fn command(&self, control: &Path, what: impl std::fmt::Display) -> bool {
        let written =
            fs::File::options().write(true).open(control).and_then(|mut file| writeln!(file, "{what}"));
        match written {
            Ok(()) => true,
            Err(error) if control.starts_with(&self.killed) && is_gone(&error) => false,
            Err(error) => {
                let status = fs::read_to_string(control.with_file_name("status")).unwrap_or_default();
                panic!("{what} > {}: {error}\n{status}", control.display())
            }
        }
    }

    fn fork(&self, dir: &Path, n: usize) -> Option<String> {
        let mut file = fs::File::options().read(true).write(true).open(dir.join("fork")).ok()?;
        writeln!(file, "{n}").ok()?;
        let mut id = [0; 36];
        file.read_exact_at(&mut id, 0).ok()?;
        let id = String::from_utf8(id.into()).unwrap();
        let turns = dir.parent().unwrap().join(&id).join("turns");
        // The daemon may be killed at any time, but for the steady one.
        let Ok(entries) = fs::read_dir(turns) else {
            assert!(dir.starts_with(&self.killed), "the fork {id} cannot be read");
            return Some(id);
        };
        assert_eq!(entries.count(), n + 1, "{id}");
        Some(id)
    }

    /// The daemon was killed during a cut: the session is as before or as after it, and nothing else.
    fn see_whether(&self, session: &Session, marks: &mut Marks, removed: &[String]) {
        count(&self.counts.interrupted);
        // Finishes the cut, or rolls it back.
        let shown = self.sessions.store.run(&["show", &session.id, "--json"]).json();
        let turns = shown["turns"].as_array().unwrap_or_else(|| panic!("{shown}")).len();
        let kept = marks.now.len();
        match turns {
            _ if turns == kept + removed.len() => marks.now.extend_from_slice(removed),
            _ if turns == kept => {}
            _ => panic!("{turns} turns of {}, and {kept} or {} are right", session.id, kept + removed.len()),
        }
    }

    /// Kills the daemon of one mount, and mounts there again, which clears the dead mount.
    fn kill(&self, mut mount: Mount) {
        while self.wait(Duration::from_millis(1500)) {
            let mut daemon = mount.kill_and_leave();
            count(&self.counts.kills);
            mount = self.sessions.store.mount_at(&self.killed, &[] as &[&str]);
            assert!(support::wait(&mut daemon, SOON).is_some(), "a killed daemon does not end");
        }
    }

    /// Mounts and unmounts beside the others.
    fn come_and_go(&self, store: &TestStore) {
        let at = store.dir.path().canonicalize().unwrap().join("now-and-then");
        let place = at.to_str().unwrap();
        while self.wait(Duration::from_millis(500)) {
            store.run(&["mount", place]).ok();
            assert!(at.join(PROJECT).exists());
            store.run(&["umount", place]).ok();
            store.run(&["prune", "--older-than", "30s"]).ok();
            count(&self.counts.mounts);
        }
        detach(&at);
    }

    /// Waits; whether it goes on.
    fn wait(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while self.goes_on() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.goes_on()
    }
}

/// What a program gets whose mount is dead, or was replaced while it looked.
fn is_gone(error: &io::Error) -> bool {
    let errno = error.raw_os_error().unwrap_or_default();
    [libc::ENOTCONN, libc::ECONNABORTED, libc::ENOENT, libc::ENODEV, libc::EIO, libc::EINTR].contains(&errno)
}

/// Ends everybody, also when one of them has failed.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What one of the threads does again and again, with a seed.
type Work = fn(&World, u64);

#[test]
fn a_daemon_that_works_hard_reads_nothing_wrong_and_does_not_grow() {
    let seconds = std::env::var("TURNFS_TEST_SOAK").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let sessions = Sessions::new();
    let steady = sessions.store.mount(&[] as &[&str]);
    let killed = sessions.store.mount(&[] as &[&str]);
    let world = World {
        sessions,
        steady: steady.path.clone(),
        killed: killed.path.clone(),
        over: AtomicBool::new(false),
        counts: Counts::default(),
    };
    for session in world.sessions.all() {
        let marks = session.lock();
        for n in 0..marks.now.len() {
            world.check_turn(&world.steady, session, &marks, n).unwrap();
        }
    }
    let vitals = Vitals::of(steady.pid());
    std::thread::scope(|scope| {
        let world = &world;
        let mut workers = Vec::new();
        let works: [(Work, u64); 9] = [
            (World::append, 1),
            (World::append, 2),
            (World::read_exactly, 3),
            (World::read_exactly, 4),
            (World::crawl, 5),
            (World::crawl, 6),
            (World::cut, 7),
            (World::cut, 8),
            (World::cut, 9),
        ];
        for (work, seed) in works {
            workers.push(scope.spawn(move || {
                let _over = Over(&world.over);
                work(world, seed);
            }));
        }
        workers.push(scope.spawn(move || {
            let _over = Over(&world.over);
            world.kill(killed);
        }));
        workers.push(scope.spawn(move || {
            let _over = Over(&world.over);
            world.come_and_go(&world.sessions.store);
        }));
        vitals.watch(Duration::from_secs(seconds), || world.goes_on());
        world.over.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap();
        }
    });
    eprintln!("{:#?}", world.counts);
    for (what, number) in [
        ("turns appended", &world.counts.appended),
        ("turns read", &world.counts.read),
        ("undone", &world.counts.undone),
        ("redone", &world.counts.redone),
        ("forked", &world.counts.forked),
        ("daemons killed", &world.counts.kills),
        ("mounts", &world.counts.mounts),
    ] {
        assert!(number.load(Ordering::Relaxed) > 0, "nothing was tried: {what}");
    }
    // Quiet again: everything is as it must be, and nothing is left over.
    for session in world.sessions.all() {
        let marks = session.lock();
        for n in 0..marks.now.len() {
            world.check_turn(&world.steady, session, &marks, n).unwrap();
        }
    }
    world.sessions.store.run(&["check", "--all"]).ok();
    vitals.must_be_as_before();
    let (status, log) = steady.stop();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("internal error"), "{log}");
}
