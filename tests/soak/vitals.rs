//! What a daemon holds: memory, descriptors, threads.

use std::fs;
use std::time::{Duration, Instant};

/// Growth that no run may pass: 5 %, or what an allocator may keep or give back at any moment. Each of the threads has an
/// arena, and in a run of seconds, of 500 turns read and 70 appended a second, not every arena is warm after a third of the
/// time: 1.1 MiB were seen. What leaks passes this bound in a run of minutes, as the work goes on.
const GROWTH: f64 = 0.05;
const NOISE: u64 = 3 << 20;

pub struct Vitals {
    pid: u32,
    descriptors: usize,
    threads: usize,
    memory: std::cell::RefCell<Vec<u64>>,
}

impl Vitals {
    /// Of a daemon that is quiet.
    pub fn of(pid: u32) -> Vitals {
        Vitals {
            pid,
            descriptors: entries(pid, "fd"),
            threads: entries(pid, "task"),
            memory: Default::default(),
        }
    }

    /// Looks at its memory for this long.
    pub fn watch(&self, time: Duration, goes_on: impl Fn() -> bool) {
        let end = Instant::now() + time;
        while goes_on() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
            self.memory.borrow_mut().push(memory(self.pid));
        }
    }

    /// Nothing leaked: compared with the quiet daemon, and with its memory after the first third of the time, in which
    /// it got warm.
    pub fn must_be_as_before(&self) {
        let start = Instant::now();
        let now = || (entries(self.pid, "fd"), entries(self.pid, "task"));
        while now().0 > self.descriptors || now().1 > self.threads {
            let before = (self.descriptors, self.threads);
            assert!(
                start.elapsed().as_secs() < 20,
                "descriptors, threads: {before:?} before, {:?} now",
                now()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        let memory = self.memory.borrow();
        let third = memory.len() / 3;
        let (warm, last) = (median(&memory[third..2 * third]), median(&memory[2 * third..]));
        let (mib, of) = ((1 << 20) as f64, |bytes: u64| bytes as f64);
        let said = format!(
            "{:.1} MiB at the first look, {:.1} when warm, {:.1} in the end; {} descriptors, {} threads",
            of(memory[0]) / mib,
            of(warm) / mib,
            of(last) / mib,
            self.descriptors,
            self.threads
        );
        eprintln!("{said}");
        assert!(of(last) <= of(warm) * (1.0 + GROWTH) || last <= warm + NOISE, "it grows: {said}");
    }
}

fn median(of: &[u64]) -> u64 {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// Memory of its own, bytes.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn entries(pid: u32, what: &str) -> usize {
    fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count()
}
