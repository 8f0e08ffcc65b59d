//! The racy window: how long after a change equal stamps prove nothing yet.
//!
//! Tests that wait until a file is old enough to be believed make it short. What users build has one value
//! and reads no environment variable; `scripts/test` searches the program for the variable's name.

use jiff::SignedDuration;

/// 2 s is FAT's and twice 128-byte ext4's clock step, plus a tick.
const WINDOW: SignedDuration = SignedDuration::from_millis(2100);

/// A change within this time before a file was read can have been followed by another one that left the same
/// times.
#[cfg(not(any(test, feature = "faults")))]
#[inline]
pub(super) fn racy_window() -> SignedDuration {
    WINDOW
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

    use super::{SignedDuration, WINDOW};

    thread_local! {
        static OF_THREAD: Cell<Option<SignedDuration>> = const { Cell::new(None) };
    }
    static OF_PROCESS: OnceLock<SignedDuration> = OnceLock::new();

    /// The thread's window if a test set one, else the one that `TURNFS_RACY_WINDOW_MS` gave the process.
    pub(in super::super) fn racy_window() -> SignedDuration {
        OF_THREAD.get().unwrap_or_else(|| *OF_PROCESS.get_or_init(of_environment))
    }

    fn of_environment() -> SignedDuration {
        let value = std::env::var("TURNFS_RACY_WINDOW_MS").ok();
        value.and_then(|value| value.parse().ok()).map_or(WINDOW, SignedDuration::from_millis)
    }

    /// Sets the window of the calling thread, for tests: those of one process run side by side. It must be
    /// longer than a step of the file system's clock, which is the kernel's tick (at most 10 ms).
    pub fn set_racy_window(window: Duration) {
        OF_THREAD.set(Some(SignedDuration::try_from(window).unwrap_or(WINDOW)));
    }
}
