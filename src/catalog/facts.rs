//! What is known of a session besides its turns, as programs see it.

use std::collections::HashMap;

use serde::Serialize;

use super::Catalog;
use super::listing::Listing;
use crate::agents;
use crate::session::{AgentKind, History, Session, Tokens};

/// A part of `meta.json` and of `show --json`. What the store does not tell is left out, but for `resume`.
#[derive(Debug, Serialize)]
pub struct Facts {
    /// The directory that the session was begun in, as recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    /// What git had checked out there.
    #[serde(skip_serializing_if = "Option::is_none")]
    branch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    /// Those that answered, in the order of their first answers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    models: Vec<String>,
    /// What all turns took.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Tokens>,
    /// The session that it was forked from, or whose sub-agent it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    /// The sessions that were forked from it, the oldest first, then its sub-agents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<String>,
    /// The shell command that continues it; `null` where there is none.
    pub resume: Option<String>,
}

/// Which sessions were forked from one, by its agent and its id; the oldest first.
pub(super) type Forks = HashMap<(AgentKind, String), Vec<String>>;

impl Listing {
    /// The ids of the sessions that were forked from this one, the oldest first.
    pub fn forks_of(&self, session: &Session) -> &[String] {
        let forks = self.forks.get_or_init(|| {
            let mut all: Vec<_> = self.all().into_iter().map(|(_, listed)| &listed.session).collect();
            all.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
            let mut forks = Forks::new();
            for fork in all {
                if let Some(source) = &fork.forked_from {
                    let source = (fork.key.agent, source.clone());
                    forks.entry(source).or_default().push(fork.id.clone());
                }
            }
            forks
        });
        forks.get(&(session.key.agent, session.id.clone())).map_or(&[], Vec::as_slice)
    }
}

impl Catalog {
    /// What is known of a session of the last listing, or of a sub-agent of one. `history`: if it could be read.
    pub fn facts(&self, session: &Session, history: Option<&History>) -> Facts {
        let sound = history.filter(|history| history.readable().is_ok());
        let owned = |models: Vec<&str>| models.into_iter().map(str::to_owned).collect();
        let store = self.store_of(&session.key).ok();
        let parent = match session.subagent {
            Some(_) => self.parent_of(&session.key).map(|parent| parent.id.clone()),
            None => session.forked_from.clone(),
        };
        let mut children = match session.subagent {
            Some(_) => Vec::new(),
            None => self.last_listing().forks_of(session).to_vec(),
        };
        // What cannot be listed is left out.
        let agents = self.subagents(session).unwrap_or_default();
        children.extend(agents.into_iter().map(|agent| agent.id.clone()));
        let begun = &session.begun;
        let project = || session.project().map(|path| path.to_string_lossy().into_owned());
        Facts {
            cwd: begun.cwd.clone().or_else(project),
            branch: begun.branch.clone(),
            commit: begun.commit.clone(),
            models: sound.map(|history| owned(history.models())).unwrap_or_default(),
            tokens: sound.zip(store.as_ref()).and_then(|(history, store)| store.tokens(session, history)),
            parent,
            children,
            resume: history.and_then(|history| self.resume(session, history)),
        }
    }

    /// The shell command that continues the session: [`agents::resume`].
    pub fn resume(&self, session: &Session, history: &History) -> Option<String> {
        agents::resume(&*self.store_of(&session.key).ok()?, session, history)
    }
}
