//! `turnfs undo`.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use super::args::UndoArgs;
use super::exit::{Exit, Failure};
use super::{output, session_arg, show, stores};
use crate::catalog::View;
use crate::cut;
use crate::render;
use crate::session::{CutPoint, Session, counted, turns};

/// What an undo would do, as programs see it.
#[derive(Debug, Serialize)]
struct Planned {
    n: u32,
    keeps: u32,
    drops: u32,
    boundary: &'static str,
    files: Vec<FileKept>,
}

#[derive(Debug, Serialize)]
struct FileKept {
    /// Relative to the session's directory.
    file: String,
    /// Where the kept bytes come from another file: which.
    source: Option<String>,
    keep_lines: u64,
    keep_bytes: u64,
}

pub fn run(args: &UndoArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let session = session_arg::find(&catalog, &args.session)?.session("undo")?;
    if args.dry_run {
        let view = catalog.view(&session.key)?;
        let n = show::turn(&view.history, args.n)?.n;
        let planned = plan(&view, n)?;
        match args.json {
            true => output::json(out, &planned)?,
            false => print(&planned, out)?,
        }
        return Ok(Exit::Done);
    }
    let state = stores::recovered_state()?;
    let view = catalog.view(&session.key)?;
    let n = show::turn(&view.history, args.n)?.n;
    let done = cut::undo(&*view.store, &state, &view.session, &view.history, n, args.force)?;
    let (keeps, drops) = (turns(done.keeps), turns(done.drops));
    writeln!(
        out,
        "removed {drops}, kept {keeps}; `turnfs redo {}` brings them back (undo {})",
        render::shell_word(session.id.as_ref()),
        done.number
    )?;
    if done.keeps > n {
        writeln!(out, "{}", render::one_line(&view.history.what_stays(n)))?;
    }
    Ok(Exit::Done)
}

fn plan(view: &View, n: u32) -> Result<Planned, Failure> {
    let history = &view.history;
    let point: &CutPoint = history.undo_point(n)?;
    // What would be refused is refused here, too: an archived thread, a file that another session needs.
    view.store.plan_undo(&view.session, history, n)?;
    let keeps = history.turns_kept(n);
    let files = point.kept.iter().map(|kept| FileKept {
        file: in_session(&view.session, &kept.file),
        source: (kept.source != kept.file).then(|| in_session(&view.session, &kept.source)),
        keep_lines: kept.lines,
        keep_bytes: kept.bytes,
    });
    Ok(Planned {
        n,
        keeps,
        drops: (history.turns.len() as u32).saturating_sub(keeps),
        boundary: point.confidence.name(),
        files: files.collect(),
    })
}

/// A file of the store as the session names it: relative to its directory.
fn in_session(session: &Session, file: &Path) -> String {
    let own = file.strip_prefix(&session.key.path).ok().filter(|own| !own.as_os_str().is_empty());
    // A session that is a single file has no directory: its own name is left.
    let beside = || file.strip_prefix(session.key.path.parent()?).ok();
    own.or_else(beside).unwrap_or(file).to_string_lossy().into_owned()
}

fn print(planned: &Planned, out: &mut dyn Write) -> Result<(), Failure> {
    let Planned { n, keeps, drops, boundary, files } = planned;
    let (removed, kept) = (turns(*drops), turns(*keeps));
    writeln!(out, "undo {n} removes {removed}, keeps {kept} (boundary {boundary})")?;
    for kept in files {
        let source = kept.source.as_ref().map(|source| format!(", taken from {source}")).unwrap_or_default();
        let (file, lines, bytes) = (&kept.file, kept.keep_lines, kept.keep_bytes);
        writeln!(
            out,
            "  {}",
            render::one_line(&format!(
                "{file}: keeps {}, {}{source}",
                counted(lines, "line"),
                counted(bytes, "byte")
            ))
        )?;
    }
    Ok(())
}
