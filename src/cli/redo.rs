//! `turnfs redo`.

use std::io::Write;

use super::args::{Number, RedoArgs};
use super::exit::{Exit, Failure};
use super::{output, session_arg, stores};
use crate::cut;

pub fn run(args: &RedoArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let session = session_arg::find(&catalog, &args.session)?.listed.session;
    let state = stores::recovered_state()?;
    let number = match args.number {
        Number::Last => None,
        Number::This(number) => Some(number),
    };
    let (number, back) = cut::redo(&state, &session, number, args.force)?;
    writeln!(out, "brought back {} (undo {number})", output::turns(back))?;
    Ok(Exit::Done)
}
