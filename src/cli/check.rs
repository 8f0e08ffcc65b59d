//! `turnfs check`.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::args::CheckArgs;
use super::exit::{Exit, Failure};
use super::{output, selection, stores};
use crate::catalog::Catalog;
use crate::session::{Damage, Refusal, Session, State};

/// Something that is not ok, as programs see it. Without an id: a file that sessions share.
#[derive(Debug, Serialize)]
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

/// The state of what cannot be read at all.
const UNREADABLE: &str = "unreadable";

impl Finding {
    /// Torn tails, empty sessions and unknown formats are said, and are no damage.
    fn is_damage(&self) -> bool {
        self.state == State::Damaged.name() || self.state == UNREADABLE
    }
}

pub fn run(args: &CheckArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let listing = catalog.listing()?;
    let chosen = selection::choose(&listing, args.dir.as_deref(), args.all)?;
    let shared = listing.problems.iter().map(|(agent, damage)| Finding {
        id: None,
        agent: agent.name(),
        project: None,
        ..of_damage(damage, State::Damaged)
    });
    let mut findings: Vec<Finding> = shared.collect();
    let mut sessions = 0_u64;
    for (project, listed) in &chosen {
        for session in with_subagents(&catalog, &listed.session) {
            sessions += 1;
            findings.extend(look_at(&catalog, &session, project.as_deref()));
        }
    }
    let damaged = findings.iter().filter(|finding| finding.is_damage()).count();
    match args.json {
        true => output::json(out, &findings)?,
        false => print(&findings, out)?,
    }
    out.flush()?;
    output::complain(&format!(
        "{sessions} sessions read, {damaged} damages, {} other remarks",
        findings.len() - damaged
    ));
    Ok(if damaged > 0 { Exit::Damage } else { Exit::Done })
}

fn with_subagents(catalog: &Catalog, session: &Arc<Session>) -> Vec<Arc<Session>> {
    let mut all = vec![session.clone()];
    match catalog.subagents(session) {
        Ok(subagents) => all.extend(subagents),
        Err(refusal) => output::complain(&format!("{}: {refusal}", session.id)),
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
        Err(refusal) => vec![plain(UNREADABLE, refusal.to_string())],
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
        State::Ok | State::Torn | State::Damaged | State::Unsupported => "no more is known",
    }
}

fn of_damage(damage: &Damage, state: State) -> Finding {
    Finding {
        file: Some(damage.file.clone()),
        line: Some(damage.line),
        byte: Some(damage.byte),
        class: Some(damage.class.name()),
        // A damaged session may have a torn tail besides: that one is no damage.
        ..plain(if damage.class.is_torn() { State::Torn } else { state }.name(), damage.message.clone())
    }
}

fn plain(state: &'static str, message: String) -> Finding {
    let nothing = (None, None, None, None);
    let (file, line, byte, class) = nothing;
    Finding { id: None, agent: "", project: None, state, file, line, byte, class, message }
}

/// `FILE:LINE`, as compilers write it.
fn print(findings: &[Finding], out: &mut dyn Write) -> Result<(), Failure> {
    for finding in findings {
        let of = finding.id.as_deref().map(|id| format!("{id}: ")).unwrap_or_default();
        let place = match (&finding.file, finding.line) {
            (Some(file), Some(line)) => format!("{file}:{line}: "),
            _ => String::new(),
        };
        let class = finding.class.unwrap_or(finding.state);
        let line = format!("{of}{place}{class}: {}", finding.message);
        writeln!(out, "{}", crate::render::one_line(&line))?;
    }
    Ok(())
}
