//! Whose history it is, for every store alike: the path as recorded decides, never what stands there now;
//! and `turnfs adopt`, the explicit way to another path.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod adopt;
mod hung;
mod index;
mod paths;
mod record;
#[path = "../support/mod.rs"]
mod support;
