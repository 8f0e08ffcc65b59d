//! Damage, store by store: the inputs R1 to R25 (`docs/stores/damage.md`, "3. Inputs") applied to a sample of
//! each store, through the commands and a real mount. The store's bytes are compared before and after.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod inputs;
mod lenient;
mod listing;
mod places;
mod rescue;
mod sample;
mod sizes;
#[path = "../support/mod.rs"]
mod support;
mod tools;
