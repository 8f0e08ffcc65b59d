//! `turnfs fork`.

use std::io::Write;

use super::args::{ForkArgs, Number};
use super::exit::{Exit, Failure};
use super::{session_arg, show, stores};
use crate::cut;

pub fn run(args: &ForkArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let session = session_arg::find(&catalog, &args.session)?.listed.session;
    let state = stores::recovered_state()?;
    let view = catalog.view(&session.key)?;
    let n = match args.n {
        // A turn that still runs is no place to cut.
        Number::Last => view.history.last_finished()?,
        Number::This(_) => show::turn(&view.history, args.n)?.n,
    };
    let id = cut::fork(&state, &view.session, &view.history, n)?;
    // The id and nothing else: `$(turnfs fork ...)`.
    writeln!(out, "{id}")?;
    Ok(Exit::Done)
}
