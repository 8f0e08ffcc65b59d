//! What turnfs meets around a store: a state directory that is not its own, a mount that is there already, git, overlays,
//! clocks that are wrong, and stores that speak to the terminal.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod clocks;
mod git;
mod running;
mod state_dir;
#[path = "../support/mod.rs"]
mod support;
mod terminal;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::{TestStore, detach};

/// A mount point of a daemon in the background, unmounted at the end however the test ends.
pub struct Background(pub PathBuf);

impl Drop for Background {
    fn drop(&mut self) {
        detach(&self.0);
    }
}

impl Background {
    /// `name` below HOME, not mounted yet.
    pub fn at(store: &TestStore, name: &str) -> Background {
        Background(store.home.join(name))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Mounts there, by a daemon that [`Background::kill`] finds.
    pub fn mount(&self, store: &TestStore) {
        store.run(&[Path::new("mount"), self.path()]).ok();
    }

    /// Kills its daemon, so that a dead mount is left.
    pub fn kill(&self) {
        let daemons = self.daemons();
        assert!(!daemons.is_empty(), "nothing to kill");
        for pid in daemons {
            support::signal(pid, rustix::process::Signal::KILL);
        }
        eventually("the daemon is dead", || self.daemons().is_empty());
    }

    fn daemons(&self) -> Vec<u32> {
        let ours = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            words.next().is_some_and(|name| name.ends_with(b"turnfs"))
                && words.any(|word| word == self.0.as_os_str().as_encoded_bytes())
        };
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(ours).collect()
    }
}

/// Waits until it is so.
#[track_caller]
pub fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a report of `turnfs doctor` says about this mount. (It names the mounts of tests that run beside this one, too.)
pub fn about(mount: &Path, report: &str) -> String {
    let mount = mount.to_str().unwrap();
    report.lines().filter(|line| line.contains(mount)).map(|line| format!("{line}\n")).collect()
}

/// Whether a program can be run here; says so if not.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    if !found {
        support::skipped::skipped(&format!("{program} is not installed"));
    }
    found
}
