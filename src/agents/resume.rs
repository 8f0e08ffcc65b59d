//! The shell command that continues a session with its agent.

use std::path::Path;

use super::{AgentStore, agent};
use crate::host::Environment;
use crate::render::{one_line, shell_path, shell_word};
use crate::session::{AgentKind, History, Session, State};

/// The shell command that continues the session, in its directory: one line of visible text, for any POSIX shell. The
/// store's place is in it where its agent would not look there by itself.
///
/// `None` where there is no such command: for sub-agents, for sessions without a project, for those that are damaged,
/// unsupported, unreadable or without a transcript, and where the agent itself has no way
/// ([`AgentStore::resume`]).
pub fn resume(store: &dyn AgentStore, session: &Session, history: &History) -> Option<String> {
    if session.subagent.is_some() || !matches!(history.state, State::Ok | State::Torn | State::Empty) {
        return None;
    }
    // An id that no terminal shows is no word to paste; one that begins with a dash is an option.
    if session.id.is_empty() || session.id.starts_with('-') || one_line(&session.id) != session.id {
        return None;
    }
    let project = session.project()?;
    let setting = setting(session.key.agent, &session.key.root)?;
    let mut command = format!("cd {}", shell_path(project));
    for words in store.resume(session, history)? {
        let words: Vec<String> = words.iter().map(|word| shell_word(word.as_ref())).collect();
        command = format!("{command} && {setting}{}", words.join(" "));
    }
    Some(command)
}

/// What must stand before a command of the agent's so that it finds the store at `root`; empty where it looks there by
/// itself. `None`: it can be told nothing.
fn setting(kind: AgentKind, root: &Path) -> Option<String> {
    if (agent(kind).place)(&Environment::of_home()).is_some_and(|place| place == root) {
        return Some(String::new());
    }
    Some(format!("{}={} ", agent(kind).variables.first()?, shell_path(root)))
}
