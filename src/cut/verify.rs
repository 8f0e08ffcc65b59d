//! Whether a session that was read again shows exactly what the cut promised.

use std::path::Path;

use crate::session::{Confidence, Content, History, Refusal, Result, State, Turn};

/// The turns that must be found.
pub(super) struct Expected<'a> {
    /// The file that they must stand in; turns in other files are not counted. Empty: any file,
    /// and each turn stays in its own.
    pub transcript: &'a Path,
    /// Compared one by one, as far as they go (a redo knows only those that came back).
    pub turns: &'a [Turn],
    /// How many there must be in all; `None` where only the bytes are known.
    pub count: Option<u32>,
    /// Whether the last one must end where it ended; a cut may drop records behind a turn's end.
    pub same_ends: bool,
    /// Whether their bytes were put together anew, so that places tell nothing.
    pub rebuilt: bool,
}

/// What a new session must show besides its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Nothing more.
    Turns,
    /// That it is whole and that every record of it belongs to one of its turns: it was made of a damaged one.
    Sound,
}

impl Proof {
    /// Makes sure that the new session, as it was read, shows it.
    ///
    /// # Errors
    /// [`Refusal::NotAsPromised`].
    pub fn holds(self, history: &History) -> Result<()> {
        let wrong = |what: String| Err(Refusal::NotAsPromised { what });
        if self == Proof::Turns {
            return Ok(());
        }
        if history.state != State::Ok {
            return wrong(format!("the new session's state ({})", history.state));
        }
        match (0..=history.turns.len() as u32).find(|n| history.boundary(*n) != Confidence::Exact) {
            Some(n) => wrong(format!("the boundary before turn {n} ({})", history.boundary(n))),
            None => Ok(()),
        }
    }
}

/// Compares what was read with what was promised.
///
/// # Errors
/// [`Refusal::NotAsPromised`].
pub(super) fn turns(history: &History, expected: &Expected<'_>) -> Result<()> {
    let wrong = |what: String| Err(Refusal::NotAsPromised { what });
    if !matches!(history.state, State::Ok | State::Torn | State::Empty | State::NoTranscript) {
        return wrong(format!("the session's state ({})", history.state));
    }
    let anywhere = expected.transcript.as_os_str().is_empty();
    let in_transcript = history.turns.iter().filter(|turn| anywhere || *turn.file == *expected.transcript);
    let found = in_transcript.count() as u32;
    if let Some(count) = expected.count.filter(|count| *count != found) {
        return wrong(format!("the number of turns ({found}, not {count})"));
    }
    for old in expected.turns {
        let Some(new) = history.turns.get(old.n as usize) else {
            return wrong(format!("turn {} (missing)", old.n));
        };
        let last = old.n + 1 == found || expected.count.is_none();
        let same_end = new.span.end == old.span.end || (last && !expected.same_ends);
        if expected.rebuilt {
            // What ended a turn may stand behind the cut: then it is open now.
            let same_status = new.status == old.status || new.is_open();
            if new.prompt != old.prompt || !same_status {
                return wrong(format!("turn {}", old.n));
            }
            continue;
        }
        let file = if anywhere { &old.file } else { expected.transcript };
        let same = new.prompt == old.prompt && new.line == old.line && new.started == old.started;
        if new.span.start != old.span.start || !same_end || !same || *new.file != *file {
            return wrong(format!("turn {}", old.n));
        }
    }
    Ok(())
}

/// Whether the cut puts content together anew, so that turns stand elsewhere afterwards.
pub(super) fn is_rebuilt<'c>(contents: impl IntoIterator<Item = &'c Content>) -> bool {
    contents.into_iter().any(|content| matches!(content, Content::Parts(_)))
}
