//! What the mount itself remembers of sessions while it lives: the last command's outcome, the last fork,
//! who was seen to have it open, and in which state it was when last looked at.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::kernel_view::A_SECOND;
use super::node::Branch;
use crate::session::{Session, SessionKey, State, Writer};

/// How many writers are remembered.
const MOST_WRITERS: usize = 256;

#[derive(Default)]
pub(super) struct Memory {
    commands: Mutex<HashMap<SessionKey, Commands>>,
    writers: Mutex<HashMap<SessionKey, (Instant, Option<Writer>)>>,
    states: Mutex<HashMap<SessionKey, State>>,
    errors: Mutex<VecDeque<(Timestamp, String)>>,
}

/// How many of the last errors are remembered.
const MOST_ERRORS: usize = 5;

#[derive(Clone, Default)]
struct Commands {
    last: String,
    forked: Option<String>,
    /// By forks of branches.
    branches: HashMap<Branch, String>,
    /// All sessions that forks of this one made.
    made: Vec<String>,
}

impl Memory {
    /// Notes the outcome of a command (`sentence`; each further line is a hint), and the session that it made; `branch`: out of which branch.
    pub fn note(&self, key: &SessionKey, sentence: String, branch: Option<Branch>, forked: Option<String>) {
        let mut commands = self.commands.lock();
        let entry = commands.entry(key.clone()).or_default();
        entry.last = sentence;
        if let Some(id) = forked {
            entry.made.push(id.clone());
            match branch {
                Some(branch) => drop(entry.branches.insert(branch, id)),
                None => entry.forked = Some(id),
            }
        }
    }

    /// The id of the session that the last fork of this branch made.
    pub fn forked_branch(&self, key: &SessionKey, branch: Branch) -> Option<String> {
        self.commands.lock().get(key)?.branches.get(&branch).cloned()
    }

    /// The last command's outcome.
    pub fn last(&self, key: &SessionKey) -> Option<String> {
        self.commands.lock().get(key).map(|commands| commands.last.clone())
    }

    /// The id of the session that the last fork made: from this session, or else the fork that made this
    /// session. The latter because `latest` leads to the new session at once, and
    /// `echo 3 > latest/fork; cat latest/fork` must print its id.
    pub fn forked(&self, session: &Session) -> Option<String> {
        let commands = self.commands.lock();
        let from_here = commands.get(&session.key).and_then(|commands| commands.forked.clone());
        let made_here = || commands.values().any(|other| other.made.contains(&session.id));
        from_here.or_else(|| made_here().then(|| session.id.clone()))
    }

    /// The writer as `ask` tells it, or as it was told within the last second if `recent` will do.
    pub fn writer(
        &self,
        key: &SessionKey,
        recent: bool,
        ask: impl FnOnce() -> Option<Writer>,
    ) -> Option<Writer> {
        if recent
            && let Some((asked, writer)) = self.writers.lock().get(key)
            && asked.elapsed() < A_SECOND
        {
            return writer.clone();
        }
        let writer = ask();
        let mut writers = self.writers.lock();
        if writers.len() >= MOST_WRITERS {
            writers.clear();
        }
        writers.insert(key.clone(), (Instant::now(), writer.clone()));
        writer
    }

    pub fn note_error(&self, sentence: String) {
        let mut errors = self.errors.lock();
        if errors.len() == MOST_ERRORS {
            errors.pop_front();
        }
        errors.push_back((crate::session::now(), sentence));
    }

    /// The last errors, oldest first.
    pub fn errors(&self) -> Vec<(Timestamp, String)> {
        self.errors.lock().iter().cloned().collect()
    }

    pub fn saw(&self, key: &SessionKey, state: State) {
        let mut states = self.states.lock();
        match states.get_mut(key) {
            Some(known) => *known = state,
            None => {
                states.insert(key.clone(), state);
            }
        }
    }

    /// The state in which the session was when last looked at.
    pub fn state(&self, key: &SessionKey) -> Option<State> {
        self.states.lock().get(key).copied()
    }

    /// Forgets the states of sessions that are gone.
    pub fn keep_states_of(&self, is_there: impl Fn(&SessionKey) -> bool) {
        self.states.lock().retain(|key, _| is_there(key));
    }
}
