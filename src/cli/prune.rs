//! `turnfs prune`.

use std::io::Write;

use jiff::Timestamp;

use super::args::PruneArgs;
use super::exit::{Exit, Failure};
use super::output;
use crate::cut::{self, Pruned, StateDir};
use crate::host::Environment;

pub fn run(args: &PruneArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let state = StateDir::of(&Environment::of_process())?;
    let pruned = cut::prune(&state, args.older_than.0, args.dry_run)?;
    let now = crate::session::now();
    for one in &pruned {
        writeln!(out, "{}", crate::render::one_line(&describe(one, now)))?;
    }
    out.flush()?;
    let bytes: u64 = pruned.iter().map(|one| one.bytes).sum();
    let verb = if args.dry_run { "would delete" } else { "deleted" };
    output::warn(&format!("{verb} {} of undos, {bytes} bytes", output::counted(pruned.len(), "backup")));
    Ok(Exit::Done)
}

fn describe(one: &Pruned, now: Timestamp) -> String {
    let agent = one.agent.map_or("unknown agent", |agent| agent.name());
    let gone = if one.session_gone { ", session deleted" } else { "" };
    let (turns, age) = (output::counted(one.turns as usize, "turn"), output::age(one.at, now));
    format!("{} ({agent}): undo {}, {turns}, {} bytes, {age} old{gone}", one.session, one.number, one.bytes)
}
