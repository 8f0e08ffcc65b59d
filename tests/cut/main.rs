//! Cuts on copies of every sample store: undo, redo and fork at every turn, errors and kills at every step,
//! a full disk, and the order of system calls.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod branches;
mod database;
#[cfg(feature = "faults")]
mod faults;
mod full_disk;
mod order;
mod outcome;
mod rows;
mod samples;
#[path = "../support/skipped.rs"]
mod skipped;
mod store;
mod version_1;
