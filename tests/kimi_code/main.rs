//! The store of Kimi Code beyond what its samples hold: wires that a client could write (`wires`), made by hand
//! (`branches`, `stores`) and at random (`model`).
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod branches;
mod model;
mod mounted;
mod stores;
mod wires;
