//! `turnfs ls`.

use std::io::Write;
use std::num::NonZero;
use std::path::Path;

use serde::Serialize;

use super::args::LsArgs;
use super::exit::{Exit, Failure};
use super::selection::{self, Chosen};
use super::{output, stores};
use crate::catalog::Catalog;
use crate::session::{self, Refusal, State, rfc3339, short_id};

/// Longest title in the table, characters.
const TITLE: usize = 60;

/// How many threads read sessions at most, and how many sessions are worth one.
const MOST_THREADS: usize = 8;
const SHARE: usize = 64;

/// One session, as programs see it.
#[derive(Debug, Serialize)]
struct Row {
    id: String,
    agent: &'static str,
    project: Option<String>,
    name: String,
    title: Option<String>,
    created: String,
    updated: String,
    /// Absent where the store knows no archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    archived: Option<bool>,
    /// `null` where the history is refused.
    turns: Option<usize>,
    state: &'static str,
    writer: Option<WriterRow>,
    /// Relative to an all-projects mount.
    path: String,
    /// The shell command that continues it; `null` where there is none.
    resume: Option<String>,
}

#[derive(Debug, Serialize)]
struct WriterRow {
    agent: &'static str,
    pid: Option<u32>,
}

pub fn run(args: &LsArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let listing = catalog.listing();
    for (agent, problem) in &listing.problems {
        output::warn(&format!("{agent}: {problem}"));
    }
    let dir = selection::directory(&listing, &args.what)?;
    let is_of_all = args.all || dir.is_none();
    let chosen = match dir {
        Some(dir) => selection::choose(&listing, dir, args.all)?,
        None => selection::titled(&listing, &args.what)?,
    };
    let rows = rows(&catalog, &chosen);
    if let (true, false, Some(dir)) = (rows.is_empty(), args.all, dir) {
        selection::is_there(&listing, dir)?;
    }
    if args.json {
        output::json(out, &rows)?;
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        if !listing.problems.is_empty() {
            // There may be sessions that could not be listed.
            return Ok(Exit::Failed);
        }
        match is_of_all {
            true => output::warn("no sessions in any store"),
            false => {
                let dir = output::path(&selection::as_given(dir.flatten())?);
                output::warn(&format!("no sessions of {dir}"));
                output::hint("`turnfs ls --all` lists the sessions of all projects");
            }
        }
        return Ok(Exit::Done);
    }
    table(&rows, &chosen, is_of_all, out)?;
    Ok(Exit::Done)
}

/// A row for each, in their order; many are read by all processors.
fn rows(catalog: &Catalog, chosen: &[Chosen]) -> Vec<Row> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
    let share = chosen.len().div_ceil(threads).max(SHARE);
    let read = |part: &[Chosen]| part.iter().map(|one| row(catalog, one)).collect::<Vec<_>>();
    let parts: Vec<_> = std::thread::scope(|scope| {
        let mut parts = chosen.chunks(share);
        let first = parts.next().unwrap_or_default();
        let others: Vec<_> = parts.map(|part| (part, scope.spawn(move || read(part)))).collect();
        let own = read(first);
        // A thread that panicked has logged why; its part is read here.
        let others = others.into_iter().map(|(part, thread)| thread.join().unwrap_or_else(|_| read(part)));
        std::iter::once(own).chain(others).collect()
    });
    let show = |(row, refusal): (Row, Option<Refusal>)| {
        refusal.iter().for_each(|refusal| output::refused(&row.id, refusal));
        row
    };
    parts.into_iter().flatten().map(show).collect()
}

/// The row, and why there is no history for it.
fn row(catalog: &Catalog, (project, listed): &Chosen) -> (Row, Option<Refusal>) {
    let session = &listed.session;
    let seen = catalog.view_listed(session);
    let (state, turns, writer) = match &seen {
        Ok(view) => {
            let history = &view.history;
            let turns = history.readable().is_ok().then_some(history.turns.len());
            let writer = view.store.writer(session, history, &catalog.running());
            (history.state.name(), turns, writer)
        }
        Err(refusal) => (State::of_unread(refusal).name(), None, None),
    };
    // Each is looked at once: what was read of it need not stay.
    catalog.forget(&session.key);
    let row = Row {
        id: session.id.clone(),
        agent: session.key.agent.name(),
        project: project.as_deref().map(text),
        name: listed.name.clone(),
        title: session::title(session, seen.as_ref().ok().map(|view| &view.history)),
        created: rfc3339(session.created),
        updated: rfc3339(session.updated),
        archived: session.archived,
        turns,
        state,
        writer: writer.map(|writer| WriterRow { agent: writer.agent.name(), pid: writer.pid }),
        path: text(&listed.path_in_mount(project.as_deref())),
        resume: seen.as_ref().ok().and_then(|view| catalog.resume(session, &view.history)),
    };
    (row, seen.err())
}

/// A path in JSON; bytes that are not UTF-8 are replaced.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn table(rows: &[Row], chosen: &[Chosen], with_project: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let now = crate::session::now();
    let mut lines = vec![["ID", "AGENT", "TURNS", "AGE", "STATE", "TITLE"].map(String::from).to_vec()];
    if with_project {
        lines[0].insert(5, "PROJECT".into());
    }
    for (row, (project, listed)) in rows.iter().zip(chosen) {
        let session = &listed.session;
        let in_use = row.writer.is_some() && row.state == State::Ok.name();
        let mut line = vec![
            short(&row.id),
            row.agent.into(),
            row.turns.map_or("-".into(), |turns| turns.to_string()),
            output::age(session.updated, now),
            if in_use { "in use" } else { row.state }.into(),
            output::headline(row.title.as_deref().unwrap_or_default(), TITLE),
        ];
        if with_project {
            line.insert(5, project.as_deref().map_or("-".into(), output::path));
        }
        lines.push(line);
    }
    output::table(out, &lines)?;
    Ok(())
}

/// The end of the id, as in the directory's name; enough to name the session.
fn short(id: &str) -> String {
    crate::render::one_line(short_id(id)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_id_is_the_one_in_directory_names() {
        for (id, expected) in [
            ("1473b527-dfc7-46c2-b4e0-c7ca83718181", "83718181"),
            ("abc", "abc"),
            ("", ""),
            ("äöüäöüäöüä", "üäöüäöüä"),
        ] {
            assert_eq!(short(id), expected);
        }
    }
}
