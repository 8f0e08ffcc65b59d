//! What the mount itself remembers of sessions while it lives: the last command's outcome, the last fork,
//! who was seen to have it open, and in which state it was when last looked at.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::session::{SessionKey, State, Writer};

/// How long a writer that was found is good enough for a file's size.
const WRITER_GOOD_FOR: Duration = Duration::from_secs(1);
/// How many writers are remembered.
const MOST_WRITERS: usize = 256;

#[derive(Default)]
pub(super) struct Memory {
    commands: Mutex<HashMap<SessionKey, Commands>>,
    writers: Mutex<HashMap<SessionKey, (Instant, Option<Writer>)>>,
    states: Mutex<HashMap<SessionKey, State>>,
}

#[derive(Clone, Default)]
struct Commands {
    last: String,
    forked: Option<String>,
}

impl Memory {
    /// Notes the outcome of a command, and the session that it made.
    pub fn note(&self, key: &SessionKey, sentence: String, forked: Option<String>) {
        let mut commands = self.commands.lock();
        let entry = commands.entry(key.clone()).or_default();
        entry.last = sentence;
        if forked.is_some() {
            entry.forked = forked;
        }
    }

    /// The last command's outcome.
    pub fn last(&self, key: &SessionKey) -> Option<String> {
        self.commands.lock().get(key).map(|commands| commands.last.clone())
    }

    /// The id of the session that the last fork made.
    pub fn forked(&self, key: &SessionKey) -> Option<String> {
        self.commands.lock().get(key)?.forked.clone()
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
            && asked.elapsed() < WRITER_GOOD_FOR
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
