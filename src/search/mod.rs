//! Finds words in the text of turns: the one engine of `turnfs search` and of the mount's `search/`.
//!
//! What is searched is what `cat turns/NNN` shows, without the headings that turnfs writes itself. `query` is what the
//! user asked for; `sieve` tells cheaply, from the bytes on disk, which sessions and turns cannot have it; of the rest
//! the text is made and `line` looks for the line to show. `run` does that for many sessions on several threads, and
//! hands out what is found in their order.
//!
//! Sub-agents' turns are searched with their session's. Of a damaged session those before the damage are. What was
//! undone or abandoned is not: it is no part of the session any more.

mod line;
mod query;
mod run;
mod sieve;

pub use line::Shown;
pub use query::{BadQuery, Query};
pub use run::{Hit, Matching, Outcome, Reads, Searched, search};
