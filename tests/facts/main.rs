//! What turnfs tells of a session besides its turns: model, tokens, where it was begun, how to go on with it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod blobs;
mod meta;
mod resume;
mod tokens;
mod without;
