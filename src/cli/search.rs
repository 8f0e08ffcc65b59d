//! `turnfs search`.

use std::io::{self, IsTerminal as _, Write};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use super::args::SearchArgs;
use super::exit::{Exit, Failure};
use super::safe_out::SafeOut;
use super::{output, selection, stores};
use crate::search::{Hit, Matching, Outcome, Query, Reads, search};
use crate::session::{self, Session, short_id};

/// How many threads search at most.
const MOST_THREADS: usize = 8;
/// Longest title above the turns of a session, columns.
const TITLE: usize = 60;

/// A turn that was found, as programs see it.
#[derive(Debug, Serialize)]
struct Row<'a> {
    id: &'a str,
    agent: &'static str,
    project: Option<String>,
    turn: u32,
    /// From 1, in the turn's text.
    line: u64,
    /// The line, or what stands around the first match of one that has more than 400 characters.
    text: &'a str,
    /// Of a sub-agent: its session's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<&'a str>,
}

pub fn run<W: Write>(args: &SearchArgs, out: &mut SafeOut<W>) -> Result<Exit, Failure> {
    let query = Query::parse(&args.query.join(" "))?;
    let catalog = stores::open(&args.stores)?;
    let listing = catalog.listing();
    for (agent, problem) in &listing.problems {
        output::warn(&format!("{agent}: {problem}"));
    }
    let chosen = selection::choose(&listing, args.project.as_deref(), args.project.is_none())?;
    if chosen.is_empty() && args.project.is_some() {
        selection::is_there(&listing, args.project.as_deref())?;
    }
    let mut report = Report {
        out,
        json: args.json,
        bold: io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty()),
        found: 0,
        unsearched: listing.problems.len(),
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
    let mut written = Ok(());
    // Each session is looked at once: what was read of it need not stay.
    let reads = Reads { threads, keep: false };
    search(&catalog, &query, &chosen, reads, &AtomicBool::new(false), |outcome| {
        written = report.add(&outcome);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    written?;
    report.end()?;
    Ok(match (report.found, report.unsearched) {
        (1.., _) => Exit::Done,
        (0, 0) => Exit::Failed,
        // It may be in what could not be searched.
        (0, 1..) => Exit::NotRun,
    })
}

/// What was found, written as it comes.
struct Report<'o, W: Write> {
    out: &'o mut SafeOut<W>,
    json: bool,
    bold: bool,
    found: usize,
    unsearched: usize,
}

impl<W: Write> Report<'_, W> {
    fn add(&mut self, outcome: &Outcome) -> Result<(), Failure> {
        for (id, refusal) in &outcome.unsearched {
            self.unsearched += 1;
            output::refused(id, refusal);
        }
        for matching in &outcome.found {
            match self.json {
                true => self.add_json(matching)?,
                false => self.add_lines(matching)?,
            }
            self.found += matching.hits.len();
        }
        if !outcome.found.is_empty() {
            self.out.flush()?;
        }
        Ok(())
    }

    fn add_json(&mut self, matching: &Matching) -> Result<(), Failure> {
        let parent = &matching.listed.session;
        let session = matching.subagent.as_ref().unwrap_or(parent);
        for (number, hit) in matching.hits.iter().enumerate() {
            write!(self.out, "{}", if self.found + number == 0 { "[\n" } else { "," })?;
            let row = Row {
                id: &session.id,
                agent: session.key.agent.name(),
                project: matching.project.as_deref().map(|path| path.to_string_lossy().into_owned()),
                turn: hit.turn,
                line: hit.shown.line,
                text: &hit.shown.text,
                parent: matching.subagent.as_ref().map(|_| parent.id.as_str()),
            };
            output::json(self.out, &row)?;
        }
        Ok(())
    }

    fn add_lines(&mut self, matching: &Matching) -> Result<(), Failure> {
        if self.found > 0 {
            writeln!(self.out)?;
        }
        writeln!(self.out, "{}", heading(matching))?;
        for hit in &matching.hits {
            self.add_line(hit)?;
        }
        Ok(())
    }

    fn add_line(&mut self, hit: &Hit) -> Result<(), Failure> {
        write!(self.out, "  turn {}, line {}: ", hit.turn, hit.shown.line)?;
        let text = &hit.shown.text;
        let mut at = 0;
        for mark in hit.shown.marks.iter().filter(|_| self.bold) {
            write!(self.out, "{}", &text[at..mark.start])?;
            self.out.put_bold(&text[mark.clone()])?;
            at = mark.end;
        }
        writeln!(self.out, "{}", &text[at..])?;
        Ok(())
    }

    fn end(&mut self) -> Result<(), Failure> {
        if self.json {
            writeln!(self.out, "{}", if self.found == 0 { "[]" } else { "]" })?;
        }
        Ok(self.out.flush()?)
    }
}

/// The session, named so that `turnfs show` takes it.
fn heading(matching: &Matching) -> String {
    let session = &matching.listed.session;
    let project = matching.project.as_deref().map_or("-".into(), output::path);
    let title = output::headline(&session::title(session, None).unwrap_or_default(), TITLE);
    let salvaged = if matching.salvaged { "  (damaged)" } else { "" };
    let name = match &matching.subagent {
        Some(agent) => format!("{} of {}", name_of(agent), short_id(&session.id)),
        None => short_id(&session.id).to_owned(),
    };
    let line = format!("{name}  {}  {project}  {title}{salvaged}", session.key.agent);
    crate::render::one_line(line.trim_end()).into_owned()
}

/// What `turnfs show` calls a sub-agent.
fn name_of(agent: &Session) -> &str {
    agent.subagent.as_deref().unwrap_or(&agent.id)
}
