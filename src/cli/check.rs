//! `turnfs check`.

use std::io::{self, IsTerminal as _, Write};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::args::CheckArgs;
use super::exit::{Exit, Failure};
use super::selection::Chosen;
use super::session_arg::{Meant, Target};
use super::{output, selection, session_arg, stores};
use crate::catalog::{Catalog, Listing};
use crate::session::{Damage, DamageClass, Refusal, Session, State, counted, short_id};

/// Something that is not ok, as programs see it. Without an id: a file that sessions share.
#[derive(Debug, Default, Serialize)]
struct Finding {
    id: Option<String>,
    agent: &'static str,
    project: Option<String>,
    state: &'static str,
    file: Option<String>,
    line: Option<u64>,
    byte: Option<u64>,
    class: Option<&'static str>,
    message: String,
}

impl Finding {
    /// Torn tails, empty sessions and unknown formats are reported, but are not damage.
    fn is_damage(&self) -> bool {
        self.state == State::Damaged.name()
    }
}

pub fn run(args: &CheckArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let listing = catalog.listing();
    let chosen = choose(&catalog, &listing, args)?;
    // Whose sessions the files of a store that are damaged hold cannot be told.
    if chosen.is_empty() && !args.all && listing.problems.is_empty() {
        let dir = output::path(&selection::as_given(args.what.as_deref())?);
        return Err(Failure::NothingToCheck { dir });
    }
    let mut progress = Progress::over(chosen.len());
    let mut report = Report { out, json: args.json, damaged: 0, unread: 0, remarks: 0 };
    for (agent, damage) in &listing.problems {
        let finding = of_damage(damage, State::Damaged);
        report.add(&Finding { agent: agent.name(), ..finding }, &progress)?;
    }
    let mut sessions = 0_u64;
    for (project, listed) in &chosen {
        progress.at(&listed.session.id);
        for session in with_subagents(&catalog, &listed.session) {
            sessions += 1;
            for finding in look_at(&catalog, &session, project.as_deref()) {
                report.add(&finding, &progress)?;
            }
            // Each is looked at once: what was read of it need not stay.
            catalog.forget(&session.key);
        }
        progress.done();
    }
    drop(progress);
    report.end()?;
    let Report { damaged, unread, remarks, .. } = report;
    output::warn(&format!(
        "{} read, {}, {}",
        counted(sessions, "session"),
        counted(damaged, "damaged place"),
        counted(remarks, "other remark")
    ));
    Ok(match (damaged, unread) {
        (1.., _) => Exit::Failed,
        // What could not be read may be damaged.
        (0, 1..) => Exit::NotRun,
        (0, 0) => Exit::Done,
    })
}

/// The sessions of a project, a session, or all.
fn choose(catalog: &Catalog, listing: &Listing, args: &CheckArgs) -> Result<Vec<Chosen>, Failure> {
    let of_project = selection::choose(listing, args.what.as_deref(), args.all)?;
    let Some(what) = args.what.as_deref().filter(|_| of_project.is_empty()) else { return Ok(of_project) };
    match session_arg::find(catalog, &what.to_string_lossy()) {
        // A session is checked with its sub-agents.
        Ok(Meant { project, target: Target::Session(listed), .. }) => Ok(vec![(project, listed)]),
        Ok(Meant { project, target: Target::Subagent { parent, .. }, .. }) => Ok(vec![(project, parent)]),
        Ok(Meant { target: Target::Abandoned { session, number }, .. }) => {
            Err(session_arg::of_abandoned("check", &session.session, number))
        }
        Ok(Meant { target: Target::Undone { session, number }, .. }) => {
            Err(session_arg::of_undone("check", &session.session, number))
        }
        // A directory, or the path of a missing one.
        Err(_) if what.is_dir() || what.has_root() => Ok(Vec::new()),
        Err(failure) => Err(failure),
    }
}

/// The findings, written as they come: their number has no bound.
struct Report<'o> {
    out: &'o mut dyn Write,
    json: bool,
    damaged: u64,
    /// Of the remarks: what could not be read.
    unread: u64,
    remarks: u64,
}

impl Report<'_> {
    fn add(&mut self, finding: &Finding, progress: &Progress) -> Result<(), Failure> {
        let first = self.damaged + self.remarks == 0;
        self.unread += u64::from(finding.state == State::Unreadable.name());
        match finding.is_damage() {
            true => self.damaged += 1,
            false => self.remarks += 1,
        }
        progress.clear();
        if self.json {
            write!(self.out, "{}", if first { "[\n" } else { "," })?;
            return output::json(self.out, finding);
        }
        print(finding, self.out)?;
        Ok(self.out.flush()?)
    }

    fn end(&mut self) -> Result<(), Failure> {
        if self.json {
            let none = self.damaged + self.remarks == 0;
            writeln!(self.out, "{}", if none { "[]" } else { "]" })?;
        }
        Ok(self.out.flush()?)
    }
}

/// To the beginning of the terminal's line, and clear it.
const CLEAR: &str = "\r\x1b[K";

/// A bar on standard error if that is a terminal. Errors of writing to it are ignored: a terminal that is gone does
/// not stop a check.
struct Progress {
    shown: bool,
    done: usize,
    all: usize,
    /// What is being read.
    name: String,
}

impl Progress {
    fn over(sessions: usize) -> Progress {
        Progress { shown: io::stderr().is_terminal(), done: 0, all: sessions, name: String::new() }
    }

    fn at(&mut self, id: &str) {
        self.name = crate::render::one_line(short_id(id)).into_owned();
        self.write(&format!("{CLEAR}{}", self.line()));
    }

    fn done(&mut self) {
        self.done += 1;
    }

    /// Makes room for something else in the terminal; the next session brings the bar back.
    fn clear(&self) {
        self.write(CLEAR);
    }

    fn write(&self, text: &str) {
        if self.shown {
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }

    /// Short enough for any terminal.
    fn line(&self) -> String {
        const WIDTH: usize = 20;
        let full = self.done * WIDTH / self.all.max(1);
        format!("[{:<WIDTH$}] {}/{} {}", "#".repeat(full), self.done, self.all, self.name)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn with_subagents(catalog: &Catalog, session: &Arc<Session>) -> Vec<Arc<Session>> {
    let mut all = vec![session.clone()];
    match catalog.subagents(session) {
        Ok(subagents) => all.extend(subagents),
        Err(refusal) => output::refused(&session.id, &refusal),
    }
    all
}

/// Reads a whole session.
fn look_at(catalog: &Catalog, session: &Session, project: Option<&Path>) -> Vec<Finding> {
    let found = match catalog.view(&session.key) {
        Ok(view) => {
            let history = &view.history;
            let mut found: Vec<Finding> =
                history.damages.iter().map(|damage| of_damage(damage, history.state)).collect();
            if found.is_empty() && history.state != State::Ok {
                let said = history.readable().err().as_ref().map(Refusal::to_string);
                let noted = || history.notes.first().cloned();
                let message = said.or_else(noted).unwrap_or_else(|| without_damage(history.state).into());
                found.push(plain(history.state.name(), message));
            }
            found
        }
        Err(refusal) => vec![plain(State::of_unread(&refusal).name(), refusal.to_string())],
    };
    let mine = |finding: Finding| Finding {
        id: Some(session.id.clone()),
        agent: session.key.agent.name(),
        project: project.map(|project| project.to_string_lossy().into_owned()),
        ..finding
    };
    found.into_iter().map(mine).collect()
}

fn without_damage(state: State) -> &'static str {
    match state {
        State::Empty => "the session has no turns",
        State::NoTranscript => "the session's transcript is not there",
        State::Ok | State::Torn | State::Damaged | State::Unsupported | State::Unreadable => {
            "nothing more is known"
        }
    }
}

fn of_damage(damage: &Damage, state: State) -> Finding {
    Finding {
        file: Some(damage.file.clone()),
        line: damage.place().map(|(line, _)| line),
        byte: damage.place().map(|(_, byte)| byte),
        class: Some(damage.class.name()),
        // A damaged session may have a torn tail besides: that one is not damage.
        ..plain(state_of(damage, state).name(), damage.message.clone())
    }
}

/// In which state a file is because of this damage, if its session is in `state`.
fn state_of(damage: &Damage, state: State) -> State {
    match damage.class {
        DamageClass::Unreadable => State::Unreadable,
        class if class.is_torn() => State::Torn,
        _ => state,
    }
}

fn plain(state: &'static str, message: String) -> Finding {
    Finding { state, message, ..Finding::default() }
}

/// `FILE:LINE`, as compilers write it.
fn print(finding: &Finding, out: &mut dyn Write) -> Result<(), Failure> {
    let of = finding.id.as_deref().map(|id| format!("{id}: ")).unwrap_or_default();
    let place = match (&finding.file, finding.line) {
        (Some(file), Some(line)) => format!("{file}:{line}: "),
        (Some(file), None) => format!("{file}: "),
        _ => String::new(),
    };
    let class = finding.class.unwrap_or(finding.state);
    let line = format!("{of}{place}{class}: {}", finding.message);
    writeln!(out, "{}", crate::render::one_line(&line))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_grows_with_the_sessions_that_are_read() {
        let mut progress = Progress::over(340);
        progress.shown = false;
        progress.at("0c45fd13-bf97-4bf8-9665-76d7e8ac2706");
        assert_eq!(progress.line(), "[                    ] 0/340 e8ac2706");
        (0..85).for_each(|_| progress.done());
        assert_eq!(progress.line(), "[#####               ] 85/340 e8ac2706");
        (85..340).for_each(|_| progress.done());
        assert_eq!(progress.line(), "[####################] 340/340 e8ac2706");
        assert!(!Progress::over(0).line().contains('#'));
    }
}
