//! `turnfs rescue`.

use std::io::Write;

use super::args::RescueArgs;
use super::exit::{Exit, Failure};
use super::{output, session_arg, stores};
use crate::cut;

pub fn run(args: &RescueArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let session = session_arg::find(&catalog, &args.session)?.session("rescue")?;
    let state = stores::recovered_state()?;
    let view = catalog.view(&session.key)?;
    let (id, turns) = cut::rescue(&state, &view.session, &view.history)?;
    // The id and nothing else: `$(turnfs rescue ...)`.
    writeln!(out, "{}", crate::render::one_line(&id))?;
    let salvaged = view.history.sound_turns;
    let kept = match turns {
        1 => "turn 0 is".to_owned(),
        _ => format!("the turns 0 to {} are", turns - 1),
    };
    let rest = match salvaged - turns {
        0 => String::new(),
        more => format!("; {more} more in salvage/ cannot be told apart from what follows them"),
    };
    output::warn(&format!("{kept} in the new session {id}{rest}"));
    Ok(Exit::Done)
}
