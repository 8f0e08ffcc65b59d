//! The racy window: how long after a change equal stamps prove nothing yet.
//!
//! Tests that wait until a file is old enough to be believed make it short. What users build has one value
//! and reads no environment variable; `scripts/test` searches the program for the variable's name.

use jiff::SignedDuration;

/// Where the file system records whole seconds: 2 s is FAT's and twice 128-byte ext4's clock step, plus a tick.
const COARSE: SignedDuration = SignedDuration::from_millis(2100);

/// Where it records fractions of seconds: these are those of the kernel's coarse clock, with which they are compared
/// (see [`super::clock`]), so that in theory one tick is enough. A write gets its time before its bytes are copied;
/// the rest is for a writer that is interrupted in between.
const FINE: SignedDuration = SignedDuration::from_millis(50);

fn usual(fine: bool) -> SignedDuration {
    if fine { FINE } else { COARSE }
}

/// A change within this time before a file was read can have been followed by another one that left the same
/// times. `fine`: the file system records fractions of seconds.
#[cfg(not(any(test, feature = "faults")))]
#[inline]
pub(super) fn racy_window(fine: bool) -> SignedDuration {
    usual(fine)
}

#[cfg(any(test, feature = "faults"))]
pub(super) use injected::racy_window;
#[cfg(any(test, feature = "faults"))]
pub use injected::set_racy_window;

#[cfg(any(test, feature = "faults"))]
mod injected {
    use std::cell::Cell;
    use std::sync::OnceLock;
    use std::time::Duration;

    use super::{COARSE, SignedDuration, usual};

    thread_local! {
        static OF_THREAD: Cell<Option<SignedDuration>> = const { Cell::new(None) };
    }
    static OF_PROCESS: OnceLock<Option<SignedDuration>> = OnceLock::new();

    /// The thread's window if a test set one, else the one that `TURNFS_RACY_WINDOW_MS` gave the process.
    pub(in super::super) fn racy_window(fine: bool) -> SignedDuration {
        OF_THREAD.get().or_else(|| *OF_PROCESS.get_or_init(of_environment)).unwrap_or_else(|| usual(fine))
    }

    fn of_environment() -> Option<SignedDuration> {
        let value = std::env::var("TURNFS_RACY_WINDOW_MS").ok();
        value.and_then(|value| value.parse().ok()).map(SignedDuration::from_millis)
    }

    /// Sets the window of the calling thread, for tests: those of one process run side by side. It must be
    /// longer than a step of the file system's clock, which is the kernel's tick (at most 10 ms).
    pub fn set_racy_window(window: Duration) {
        OF_THREAD.set(Some(SignedDuration::try_from(window).unwrap_or(COARSE)));
    }
}
