//! `turnfs fork`.

use std::io::Write;

use super::args::{ForkArgs, Number};
use super::exit::{Exit, Failure};
use super::{session_arg, show, stores};
use crate::cut;
use crate::session::{History, Refusal, TurnStatus};

pub fn run(args: &ForkArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let session = session_arg::find(&catalog, &args.session)?.listed.session;
    let state = stores::recovered_state()?;
    let view = catalog.view(&session.key)?;
    let n = last_kept(&view.history, args.n)?;
    let id = cut::fork(&state, &view.session, &view.history, n)?;
    // The id and nothing else: `$(turnfs fork ...)`.
    writeln!(out, "{id}")?;
    Ok(Exit::Done)
}

/// `last` is the last finished turn: one that still runs is no place to cut.
fn last_kept(history: &History, number: Number) -> Result<u32, Refusal> {
    if number == Number::Last {
        history.readable()?;
        let finished = history.turns.iter().rev().find(|turn| turn.status != TurnStatus::Running);
        if let Some(turn) = finished {
            return Ok(turn.n);
        }
    }
    show::turn(history, number).map(|turn| turn.n)
}
