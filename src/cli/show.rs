//! `turnfs show`.

use std::io::Write;
use std::path::{Component, Path};

use serde::Serialize;

use super::args::{Number, ShowArgs};
use super::exit::{Exit, Failure};
use super::session_arg::Target;
use super::{output, session_arg, stores};
use crate::agents;
use crate::catalog::{Catalog, Facts, View};
use crate::cut;
use crate::render;
use crate::session::{Confidence, History, Refusal, Tokens, Turn, rfc3339};

/// Longest prompt in the list of turns, characters.
const PROMPT: usize = 70;

/// A session, as programs see it.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    id: &'a str,
    agent: &'static str,
    project: Option<String>,
    title: Option<String>,
    #[serde(flatten)]
    facts: Facts,
    state: &'static str,
    damage: Option<DamageShown<'a>>,
    turns: Vec<TurnShown>,
}

#[derive(Debug, Serialize)]
struct DamageShown<'a> {
    file: &'a str,
    line: u64,
    byte: u64,
    class: &'static str,
}

#[derive(Debug, Serialize)]
struct TurnShown {
    n: u32,
    /// The user's exact text.
    prompt: Option<String>,
    status: &'static str,
    started: Option<String>,
    ended: Option<String>,
    /// How sure the boundary before this turn is, where `undo N` cuts.
    boundary: &'static str,
    /// Left out where the store does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Tokens>,
}

pub fn run(args: &ShowArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let named = args.session.as_deref().unwrap_or(session_arg::LATEST);
    let meant = session_arg::find(&catalog, named)?;
    let (session, undone, abandoned) = match &meant.target {
        Target::Session(listed) => (&listed.session, args.undone, args.abandoned),
        Target::Subagent { agent, .. } => (agent, args.undone, args.abandoned),
        Target::Undone { session, number } => (&session.session, Some(*number), None),
        Target::Abandoned { session, number } => (&session.session, None, Some(*number)),
    };
    let view = catalog.view(&session.key)?;
    let history = &view.history;
    let asked = args.n.or_else(|| turn_in_path(&meant.rest));
    let project = meant.project.as_deref();
    if let Some(number) = undone {
        let all = cut::undone(&stores::state()?, &view.session.key)?;
        let Some(undone) = all.iter().find(|undone| undone.number == number) else {
            return Err(Refusal::NothingToRedo { asked: Some(number) }.into());
        };
        let turns: Vec<&Turn> = match asked {
            None => undone.turns.iter().collect(),
            Some(asked) => vec![one_of(&undone.turns, asked, || format!("undo {number}"))?],
        };
        let span = |turn: &Turn| cut::undone_span(undone, turn);
        if args.json {
            // The turns were cut there.
            return json(&catalog, &view, project, &turns, &span, &|_| Confidence::Exact, out);
        }
        if asked.is_some() {
            return print_text(&view, &turns, &span, out);
        }
        writeln!(out, "undo {} of {}, {}", number, view.session.id, rfc3339(undone.at))?;
        print_turns(&undone.turns, None, out)?;
        return Ok(Exit::Done);
    }
    let span = |turn: &Turn| catalog.span(&view, turn);
    if let Some(number) = abandoned {
        let branch = history.abandoned_turns(number)?;
        let turns: Vec<&Turn> = match asked {
            None => branch.turns.iter().collect(),
            Some(asked) => vec![one_of(&branch.turns, asked, || format!("abandoned/{number}"))?],
        };
        if args.json {
            return json(&catalog, &view, project, &turns, &span, &|_| Confidence::Exact, out);
        }
        if asked.is_some() {
            return print_text(&view, &turns, &span, out);
        }
        writeln!(out, "abandoned/{number} of {}", view.session.id)?;
        print_turns(&branch.turns, None, out)?;
        return Ok(Exit::Done);
    }
    if args.json {
        // What refuses the turns is said in `state` and `damage`; nothing is shown as the session's.
        let turns: Vec<&Turn> = match (history.readable(), asked) {
            (Err(_), _) => Vec::new(),
            (Ok(()), None) => history.turns.iter().collect(),
            (Ok(()), Some(number)) => vec![turn(history, number)?],
        };
        return json(&catalog, &view, project, &turns, &span, &|n| history.boundary(n), out);
    }
    if let Some(number) = asked {
        return print_text(&view, &[turn(history, number)?], &span, out);
    }
    print_facts(&catalog, &view, project, out)?;
    out.flush()?;
    history.readable()?;
    print_turns(&history.turns, Some(history), out)?;
    Ok(Exit::Done)
}

/// The record bytes of a turn.
type Span<'a> = &'a dyn Fn(&Turn) -> Result<Vec<u8>, Refusal>;

/// `show .../latest/turns/003` means that turn.
fn turn_in_path(rest: &Path) -> Option<Number> {
    let mut components = rest.components();
    match (components.next()?, components.next()?, components.next()) {
        (Component::Normal(dir), Component::Normal(name), None) if dir == "turns" => {
            name.to_str()?.parse().ok()
        }
        _ => None,
    }
}

/// The turn that a number means.
///
/// # Errors
/// As [`History::turn`].
pub fn turn(history: &History, number: Number) -> Result<&Turn, Refusal> {
    match number {
        Number::This(n) => history.turn(n),
        Number::Last => history.turn((history.turns.len() as u32).saturating_sub(1)),
    }
}

fn json(
    catalog: &Catalog,
    view: &View,
    project: Option<&Path>,
    turns: &[&Turn],
    span: Span<'_>,
    boundary: &dyn Fn(u32) -> Confidence,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let session = &view.session;
    let shown = |turn: &&Turn| {
        let prompt = turn.prompt.as_ref().map(|_| view.store.prompt(session, turn, &span(turn)?));
        Ok(TurnShown {
            n: turn.n,
            prompt: prompt.transpose()?,
            status: turn.status.name(),
            started: turn.started.map(rfc3339),
            ended: turn.ended.map(rfc3339),
            boundary: boundary(turn.n).name(),
            model: turn.model.as_deref().map(str::to_owned),
            tokens: turn.tokens.as_deref().copied(),
        })
    };
    let shown = Shown {
        id: &session.id,
        agent: session.key.agent.name(),
        project: project.map(|project| project.to_string_lossy().into_owned()),
        title: crate::session::title(session, Some(&view.history)),
        facts: catalog.facts(session, Some(&view.history)),
        state: view.history.state.name(),
        damage: view.history.shown_damage().map(|damage| DamageShown {
            file: &damage.file,
            line: damage.line,
            byte: damage.byte,
            class: damage.class.name(),
        }),
        turns: turns.iter().map(shown).collect::<Result<_, Refusal>>()?,
    };
    output::json(out, &shown)?;
    Ok(Exit::Done)
}

fn print_facts(
    catalog: &Catalog,
    view: &View,
    project: Option<&Path>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let session = &view.session;
    let mut facts = vec![
        ("session", session.id.clone()),
        ("agent", session.key.agent.to_string()),
        ("project", project.map_or("none".into(), |project| project.to_string_lossy().into_owned())),
        ("state", view.history.state.to_string()),
    ];
    if let Some(title) = crate::session::title(session, Some(&view.history)) {
        facts.insert(1, ("title", title));
    }
    if let Some(command) = catalog.resume(session, &view.history) {
        facts.push(("resume", command));
    }
    if let Some(damage) = view.history.shown_damage() {
        facts.push(("damage", damage.to_string()));
    }
    let notes = view.history.notes.iter().map(|note| ("note", note.clone()));
    for (key, value) in facts.into_iter().chain(notes) {
        writeln!(out, "{key}: {}", render::one_line(&value))?;
    }
    Ok(())
}

/// The list of turns; with a history also how sure each boundary is.
fn print_turns(turns: &[Turn], history: Option<&History>, out: &mut dyn Write) -> Result<(), Failure> {
    if turns.is_empty() {
        return Ok(());
    }
    let mut rows = vec![["TURN", "STATUS", "STARTED", "BOUNDARY", "PROMPT"].map(String::from).to_vec()];
    rows.extend(turns.iter().map(|turn| {
        vec![
            turn.n.to_string(),
            turn.detail.map_or(turn.status.to_string(), |detail| format!("{} ({detail})", turn.status)),
            turn.started.map_or("-".into(), rfc3339),
            history.map_or("-", |history| history.boundary(turn.n).name()).into(),
            output::headline(turn.prompt.as_deref().unwrap_or_default(), PROMPT),
        ]
    }));
    writeln!(out)?;
    output::table(out, &rows)?;
    Ok(())
}

/// The same text as the turns' files in a mount.
fn print_text(view: &View, turns: &[&Turn], span: Span<'_>, out: &mut dyn Write) -> Result<Exit, Failure> {
    for turn in turns {
        out.write_all(agents::turn_text(&*view.store, &view.session, turn, &span(turn)?)?.as_bytes())?;
    }
    Ok(Exit::Done)
}

/// One of the turns of a branch.
fn one_of(turns: &[Turn], asked: Number, branch: impl Fn() -> String) -> Result<&Turn, Refusal> {
    let found = match asked {
        Number::This(n) => turns.iter().find(|turn| turn.n == n),
        Number::Last => turns.last(),
    };
    found.ok_or_else(|| Refusal::NotFound { what: format!("that turn in {}", branch()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_to_a_turn_means_that_turn() {
        let table = [
            ("turns/003", Some(Number::This(3))),
            ("turns/12", Some(Number::This(12))),
            ("turns", None),
            ("prompts/003", None),
            ("turns/x", None),
            ("", None),
        ];
        for (rest, expected) in table {
            assert_eq!(turn_in_path(Path::new(rest)), expected, "{rest}");
        }
    }
}
