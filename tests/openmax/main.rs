//! The OpenMax store: every sample, the numbered behaviours, and other programs at work in the same store.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod behaviours;
#[cfg(feature = "faults")]
mod crash;
mod cuts;
mod others;
mod pruned;
mod samples;
mod store;
