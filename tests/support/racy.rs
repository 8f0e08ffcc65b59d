//! The racy window: how long after a change equal stamps prove nothing. In a build with the feature `faults` a
//! test can make it short, so that it need not wait for seconds until what it wrote is believed.

#![allow(dead_code)]

use std::process::Command;
use std::time::Duration;

/// The short window, where it can be had: several ticks of the kernel, which are the steps of the clock of every
/// file system that the tests run on.
const SHORT: Duration = Duration::from_millis(if cfg!(feature = "faults") { 50 } else { 2100 });

/// Waits until what was changed before is older than the short window.
pub fn settle() {
    std::thread::sleep(SHORT + Duration::from_millis(30));
}

/// The program will believe stamps after the short window.
pub fn shorten(command: &mut Command) {
    command.env("TURNFS_RACY_WINDOW_MS", SHORT.as_millis().to_string());
}

/// The library will, where this thread calls it.
pub fn shorten_here() {
    #[cfg(feature = "faults")]
    turnfs::transcript::set_racy_window(SHORT);
}
