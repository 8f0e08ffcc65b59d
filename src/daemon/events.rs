//! What can end a daemon, each watched by a thread that blocks until it happens.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::Sender;

use signal_hook::consts::signal::{
    SIGALRM, SIGHUP, SIGINT, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::Signals;

use crate::fuse::Mounted;
use crate::host::mountinfo::{self, Device};

/// A reason to end.
#[derive(Debug)]
pub enum Event {
    /// A signal asks to stop.
    Stop(i32),
    /// The mount is no longer in the tree; programs may still have files of it open.
    MountGone,
    /// Nobody uses the mount any more.
    SessionEnded,
}

/// The signals that ask to stop; SIGXCPU says that a limit of processor time (`ulimit -t`) is reached, and that
/// SIGKILL will follow.
const STOP: [i32; 4] = [SIGTERM, SIGINT, SIGQUIT, SIGXCPU];

/// Signals that mean nothing to the daemon, and would kill it if they were not caught: a killed daemon leaves a dead
/// mount. SIGXFSZ says that a file, the log for example, reached a limit (`ulimit -f`): the write fails, and no more.
const NOTED: [i32; 8] =
    [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXFSZ, libc::SIGPWR, libc::SIGSTKFLT];

/// Catches all signals that can be caught and would end the daemon, from now on.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn watch_signals(sender: Sender<Event>) -> io::Result<()> {
    let mut stop = STOP.to_vec();
    let mut noted = NOTED.to_vec();
    // `nohup` has it ignored, and then it shall stay so. It says that the terminal was closed, where there is one.
    if !is_ignored(SIGHUP) {
        let has_terminal = File::open("/dev/tty").is_ok();
        if has_terminal { &mut stop } else { &mut noted }.push(SIGHUP);
    }
    let mut signals = Signals::new(stop.iter().chain(&noted))?;
    thread("signals", move || {
        for signal in signals.forever() {
            if !stop.contains(&signal) {
                log::info!("signal {signal} means nothing here; SIGTERM ends the mount");
            } else if sender.send(Event::Stop(signal)).is_err() {
                return;
            }
        }
    })
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).map(drop)
}

fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

/// Tells when the session has ended.
///
/// # Errors
/// When no thread can be started.
pub fn watch_session(sender: Sender<Event>, mounted: Mounted) -> io::Result<()> {
    thread("session", move || {
        mounted.join();
        // Nobody is listening any more when the daemon is ending.
        let _ = sender.send(Event::SessionEnded);
    })
}

/// Tells when the mount is out of the tree: a lazy unmount from outside does not end the session.
///
/// # Errors
/// When no thread can be started.
pub fn watch_mountinfo(sender: Sender<Event>, path: PathBuf, device: Device) -> io::Result<()> {
    thread("mountinfo", move || {
        let Ok(mut changes) = mountinfo::Changes::open() else { return };
        loop {
            let Ok(mounts) = changes.mounts() else { return };
            if !mounts.iter().any(|mount| mount.device == device && mount.mount_point == path) {
                // Nobody is listening any more when the daemon is ending.
                let _ = sender.send(Event::MountGone);
                return;
            }
            if changes.wait().is_err() {
                return;
            }
        }
    })
}
