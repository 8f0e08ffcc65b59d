//! turnfs: the conversations of coding agents as directories and files.
//!
//! `docs/ARCHITECTURE.md` shows how the folders depend on each other; arrows only point downward.

#![deny(unsafe_code)]

pub mod agents;
pub mod catalog;
pub mod cli;
pub mod cut;
pub mod daemon;
pub mod fs;
pub mod fuse;
pub mod host;
pub mod render;
pub mod search;
pub mod service;
pub mod session;
pub mod transcript;
