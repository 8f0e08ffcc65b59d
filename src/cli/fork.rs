//! `turnfs fork`.

use std::io::Write;

use super::args::{ForkArgs, Number};
use super::exit::{Exit, Failure};
use super::session_arg::Target;
use super::{session_arg, show, stores};
use crate::cut;

pub fn run(args: &ForkArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let (session, branch) = match session_arg::find(&catalog, &args.session)?.target {
        Target::Session(listed) => (listed.session, args.undone),
        Target::Subagent { agent, .. } => (agent, args.undone),
        // A path below `undone/N` means that branch, never the session as it is.
        Target::Undone { session, number } => (session.session, Some(number)),
    };
    let state = stores::recovered_state()?;
    let asked = args.n.unwrap_or(Number::Last);
    if let Some(number) = branch {
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
    writeln!(out, "{}", crate::render::one_line(&id))?;
    Ok(Exit::Done)
}
