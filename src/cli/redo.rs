//! `turnfs redo`.

use std::io::Write;

use super::args::{Number, RedoArgs};
use super::exit::{Exit, Failure};
use super::session_arg::Target;
use super::{output, session_arg, stores};
use crate::cut;

pub fn run(args: &RedoArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let meant = session_arg::find(&catalog, &args.session)?;
    // A path below `undone/N` names the undo, too.
    let (session, named) = match meant.target {
        Target::Undone { session, number } => (session.session, Some(number)),
        _ => (meant.session("redo")?, None),
    };
    let state = stores::recovered_state()?;
    let number = match args.number {
        Number::Last => named,
        Number::This(number) if named.is_some_and(|named| named != number) => {
            return Err(session_arg::of_undone("redo of another undo", &session, named.unwrap_or(number)));
        }
        Number::This(number) => Some(number),
    };
    let (number, back) = cut::redo(&state, &session, number, args.force)?;
    writeln!(out, "brought back {} (undo {number})", output::turns(back))?;
    Ok(Exit::Done)
}
