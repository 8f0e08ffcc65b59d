//! What the mount shows is what is on disk now: edits that hide, pushed changes, crawlers, lost events,
//! odd file systems, and a steady state that reads nothing.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod edits;
mod elsewhere;
mod kinds;
mod live;
mod odd_file_systems;
mod passthrough;
mod push;
mod readers;
mod steady;
mod store;
