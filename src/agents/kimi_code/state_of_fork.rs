//! A fork's state.json. Facts: `docs/stores/kimi-code.md`, "4. Fork".

use std::collections::HashSet;
use std::path::Path;

use super::layout::{AGENTS, MAIN};
use super::state::STATE;
use crate::agents::json::Object;
use crate::session::{History, Refusal, Result, Session, rfc3339};

/// Longest name that a fork gets, characters.
const TITLE: usize = 200;

/// A fork as far as its state.json tells it.
pub(super) struct Made<'a> {
    pub id: &'a str,
    /// Relative to the root.
    pub dir: &'a Path,
    /// The agents whose wires it has.
    pub kept: &'a HashSet<String>,
    /// Milliseconds since 1970.
    pub time: i64,
    pub project: Option<&'a Path>,
}

/// The source's state.json with what is the fork's own.
pub(super) fn state_of_fork(
    session: &Session,
    history: &History,
    n: u32,
    state: &[u8],
    made: &Made<'_>,
) -> Result<Vec<u8>> {
    let changed = || Refusal::Changed { what: STATE.into() };
    let source = std::str::from_utf8(state).map_err(|_| changed())?;
    let mut state = Object::parse(source).map_err(|_| changed())?;
    let title = crate::session::title(session, Some(history)).unwrap_or_else(|| "Untitled".into());
    let title = if made.project.is_some() { title } else { format!("Fork: {title}") };
    let title: String = title.chars().take(TITLE).collect();
    state.set("id", text(made.id));
    if let Some(project) = made.project {
        for key in
            ["cwd", "workDir"].into_iter().filter(|key| *key == "cwd" || source.contains("\"workDir\""))
        {
            state.set(key, text(&project.to_string_lossy()));
        }
    }
    // Some versions write times as text.
    let is_text = |key: &str| state.get(key).is_some_and(|value| value.starts_with('"'));
    let as_text = is_text("createdAt");
    let now = jiff::Timestamp::from_millisecond(made.time).map(rfc3339).map_err(|_| changed())?;
    let now = if as_text { text(&now) } else { made.time.to_string() };
    state.set("createdAt", now.clone());
    state.set("updatedAt", now);
    state.set("archived", "false".into());
    state.set("title", text(&title));
    state.set("titleKind", text("custom"));
    state.set("isCustomTitle", "true".into());
    state.set("forkedFrom", text(&session.id));
    let prompt = history.turn(n)?.prompt.clone().unwrap_or_default();
    state.set("lastPrompt", text(&prompt));
    let agents = agents_of_fork(session, state.get("agents"), made).ok_or_else(changed)?;
    state.set("agents", agents);
    Ok(state.to_json().into_bytes())
}

/// The agents that the fork has, at their new places.
fn agents_of_fork(session: &Session, agents: Option<&str>, made: &Made<'_>) -> Option<String> {
    let source = Object::parse(agents.unwrap_or("{}")).ok()?;
    let mut agents = Object::parse("{}").ok()?;
    for (name, agent) in source.fields().filter(|(name, _)| made.kept.contains(*name)) {
        let mut agent = Object::parse(agent).ok()?;
        let place = session.key.root.join(made.dir).join(AGENTS).join(name);
        agent.set("homedir", text(&place.to_string_lossy()));
        agents.set(name, agent.to_json());
    }
    if agents.get(MAIN).is_none() {
        let place = session.key.root.join(made.dir).join(AGENTS).join(MAIN);
        agents.set(MAIN, format!("{{\"homedir\":{},\"type\":\"main\"}}", text(&place.to_string_lossy())));
    }
    Some(agents.to_json())
}

fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
