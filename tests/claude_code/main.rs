//! The store of Claude Code beyond what its samples hold: transcripts that a client could write, made record by record
//! (`transcript`), and what a mount shows of the branches in them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod model;
mod mounted;
mod rules;
mod stores;
mod transcript;
