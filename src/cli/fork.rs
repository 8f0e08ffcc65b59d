//! `turnfs fork`.

use std::io::Write;
use std::path::Path;

use super::args::{ForkArgs, Number};
use super::exit::{Exit, Failure};
use super::{session_arg, show, stores};
use crate::cut;

pub fn run(args: &ForkArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let meant = session_arg::find(&catalog, &args.session)?;
    let session = meant.listed.session;
    let state = stores::recovered_state()?;
    let asked = args.n.unwrap_or(Number::Last);
    // A path below `undone/N` means that branch, never the session as it is.
    if let Some(number) = args.undone.or_else(|| branch(&meant.rest)) {
        let n = match asked {
            Number::Last => None,
            Number::This(n) => Some(n),
        };
        let (id, _) = cut::fork_undone(&state, &session, number, n)?;
        writeln!(out, "{id}")?;
        return Ok(Exit::Done);
    }
    let view = catalog.view(&session.key)?;
    let n = match asked {
        // A turn that still runs is no place to cut.
        Number::Last => view.history.last_finished()?,
        Number::This(_) => show::turn(&view.history, asked)?.n,
    };
    let id = cut::fork(&state, &view.session, &view.history, n)?;
    // The id and nothing else: `$(turnfs fork ...)`.
    writeln!(out, "{id}")?;
    Ok(Exit::Done)
}

/// The undo's number in a path like `undone/1` or `undone/1/turns/003` inside a session's directory.
fn branch(rest: &Path) -> Option<u32> {
    let mut names = rest.iter();
    (names.next()? == "undone").then_some(())?;
    names.next()?.to_str()?.parse().ok()
}
