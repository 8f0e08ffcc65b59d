//! The commands that need no more than a few lines each.

use std::io::Write;
use std::sync::Arc;

use clap::CommandFactory as _;
use jiff::Timestamp;

use super::args::{
    Cli, CompletionsArgs, ForkArgs, ManArgs, Number, PruneArgs, RedoArgs, RescueArgs, UmountArgs,
};
use super::exit::{Exit, Failure};
use super::session_arg::Target;
use super::{output, session_arg, stores};
use crate::catalog::Catalog;
use crate::cut::{self, Pruned};
use crate::daemon::{self, Detached};
use crate::render;
use crate::session::{Refusal, Session, counted, turns};

/// `turnfs umount`.
pub fn umount(args: &UmountArgs) -> Result<Exit, Failure> {
    // The state directory only tells when the daemon has ended.
    let how = daemon::umount(stores::state().ok().as_ref(), &args.mountpoint)?;
    if how == Detached::Lazily {
        output::warn("a program was still using the mount, so it was detached: its open files end now");
    }
    Ok(Exit::Done)
}

/// `turnfs redo`.
pub fn redo(args: &RedoArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let meant = session_arg::find(&catalog, &args.session)?;
    // A path below `undone/N` names the undo, too.
    let (session, named) = match meant.target {
        Target::Undone { session, number } => (session.session, Some(number)),
        _ => (meant.session("redo")?, None),
    };
    let state = stores::recovered_state()?;
    let number = match (args.number, named) {
        (Number::Last, named) => named,
        (Number::This(number), Some(named)) if named != number => {
            return Err(session_arg::of_undone("redo of another undo", &session, named));
        }
        (Number::This(number), _) => Some(number),
    };
    let store = catalog.store_of(&session.key)?;
    let (number, back) = cut::redo(&*store, &state, &session, number, args.force)?;
    writeln!(out, "brought back {} (undo {number})", turns(back))?;
    Ok(Exit::Done)
}

/// `turnfs fork`.
pub fn fork(args: &ForkArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let (session, undone, abandoned) = match session_arg::find(&catalog, &args.session)?.target {
        Target::Session(listed) => (listed.session, args.undone, args.abandoned),
        Target::Subagent { agent, .. } => (agent, args.undone, args.abandoned),
        // A path below `undone/N` or `abandoned/N` means that branch, never the session as it is.
        Target::Undone { session, number } => (session.session, Some(number), None),
        Target::Abandoned { session, number } => (session.session, None, Some(number)),
    };
    if args.without.is_some() && (undone.is_some() || abandoned.is_some()) {
        let what = "a branch is forked as a whole";
        return Err(
            Refusal::cannot_cut(what, "make a session of it first, then fork that with --without").into()
        );
    }
    let state = stores::recovered_state()?;
    let asked = match args.n {
        Some(Number::This(n)) => Some(n),
        None | Some(Number::Last) => None,
    };
    let id = match (undone, abandoned) {
        (Some(number), _) => {
            let store = catalog.store_of(&session.key)?;
            cut::fork_undone(&*store, &state, &session, number, asked)?.0
        }
        (None, Some(number)) => {
            let view = catalog.view(&session.key)?;
            cut::fork_abandoned(&*view.store, &state, &view.session, &view.history, number, asked)?.0
        }
        (None, None) => {
            let view = catalog.view(&session.key)?;
            let n = match asked {
                // A turn that is still running cannot be the last one of a fork.
                None => view.history.last_finished()?,
                Some(n) => view.history.turn(n)?.n,
            };
            match args.without {
                None => cut::fork(&*view.store, &state, &view.session, &view.history, n)?,
                Some(without) => {
                    cut::fork_without(&*view.store, &state, &view.session, &view.history, n, without)?
                }
            }
        }
    };
    // The id and nothing else: `$(turnfs fork ...)`.
    writeln!(out, "{}", render::one_line(&id))?;
    out.flush()?;
    say_resume(&catalog, &session, &id);
    Ok(Exit::Done)
}

/// Says on stderr how a session that was just made of `source` is continued.
fn say_resume(catalog: &Catalog, source: &Session, id: &str) {
    let listing = catalog.listing();
    let is_new = |session: &&Arc<Session>| session.id == id && session.key.root == source.key.root;
    let made = listing.all().into_iter().map(|(_, listed)| &listed.session).find(is_new);
    let view = made.and_then(|session| catalog.view(&session.key).ok());
    if let Some(command) = view.and_then(|view| catalog.resume(&view.session, &view.history)) {
        output::fact("resume", &command);
    }
}

/// `turnfs rescue`.
pub fn rescue(args: &RescueArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let session = session_arg::find(&catalog, &args.session)?.session("rescue")?;
    let state = stores::recovered_state()?;
    let view = catalog.view(&session.key)?;
    let (id, kept) = cut::rescue(&*view.store, &state, &view.session, &view.history)?;
    // The id and nothing else: `$(turnfs rescue ...)`.
    writeln!(out, "{}", render::one_line(&id))?;
    let these = match kept {
        1 => "turn 0 is".to_owned(),
        _ => format!("turns 0 to {} are", kept - 1),
    };
    output::warn(&format!("{these} in the new session {id}"));
    say_resume(&catalog, &session, &id);
    match view.history.sound_turns - kept {
        0 => {}
        more => {
            output::warn(&format!("{} more in salvage/ cannot be told apart from what follows", turns(more)))
        }
    }
    Ok(Exit::Done)
}

/// `turnfs prune`.
pub fn prune(args: &PruneArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let pruned = cut::prune(&stores::state()?, args.older_than.0, args.dry_run)?;
    let now = crate::session::now();
    for one in &pruned {
        writeln!(out, "{}", render::one_line(&describe(one, now)))?;
    }
    out.flush()?;
    let bytes: u64 = pruned.iter().map(|one| one.bytes).sum();
    let verb = if args.dry_run { "would delete" } else { "deleted" };
    output::warn(&format!(
        "{verb} {} of undos, {}",
        counted(pruned.len() as u64, "backup"),
        counted(bytes, "byte")
    ));
    Ok(Exit::Done)
}

fn describe(one: &Pruned, now: Timestamp) -> String {
    let agent = one.agent.map_or("unknown agent", |agent| agent.name());
    let gone = if one.session_gone { ", session deleted" } else { "" };
    let (removed, bytes) = (turns(one.turns), counted(one.bytes, "byte"));
    let age = output::age(one.at, now);
    format!("{} ({agent}): undo {}, {removed}, {bytes}, {age} old{gone}", one.session, one.number)
}

/// `turnfs completions`.
pub fn completions(args: &CompletionsArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    // The generator panics if it cannot write, so it writes into memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "turnfs", &mut script);
    out.write_all(&script)?;
    Ok(Exit::Done)
}

/// `turnfs man`.
pub fn man(args: &ManArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut cli = Cli::command();
    cli.build();
    let mut page = &cli;
    for name in &args.command {
        let found = page.find_subcommand(name);
        page = found.ok_or_else(|| Failure::UnknownCommand { name: args.command.join(" ") })?;
    }
    clap_mangen::Man::new(page.clone()).render(out)?;
    Ok(Exit::Done)
}
