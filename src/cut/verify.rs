//! Whether a session that was read again shows exactly what the cut promised.

use crate::session::{History, Refusal, Result, State, Turn};

/// The turns that must be found.
pub(super) struct Expected<'a> {
    /// Compared one by one, as far as they go (a redo knows only those that came back).
    pub turns: &'a [Turn],
    /// How many there must be in all.
    pub count: u32,
    /// Whether the last one must end where it ended; a cut may drop records behind a turn's end.
    pub same_ends: bool,
    /// Whether their bytes were put together anew, so that places tell nothing.
    pub rebuilt: bool,
}

/// Compares what was read with what was promised. `moved`: the turns stand in another session's files.
///
/// # Errors
/// [`Refusal::NotAsPromised`].
pub(super) fn turns(history: &History, expected: &Expected<'_>, moved: bool) -> Result<()> {
    let wrong = |what: String| Err(Refusal::NotAsPromised { what });
    if !matches!(history.state, State::Ok | State::Torn | State::Empty | State::NoTranscript) {
        return wrong(format!("the session's state ({})", history.state));
    }
    if history.turns.len() as u32 != expected.count {
        return wrong(format!("the number of turns ({}, not {})", history.turns.len(), expected.count));
    }
    for old in expected.turns {
        let Some(new) = history.turns.get(old.n as usize) else {
            return wrong(format!("turn {} (missing)", old.n));
        };
        let last = old.n + 1 == expected.count;
        let same_end = new.span.end == old.span.end || (last && !expected.same_ends);
        if expected.rebuilt {
            if new.prompt != old.prompt || new.status != old.status {
                return wrong(format!("turn {}", old.n));
            }
            continue;
        }
        let same = new.prompt == old.prompt && new.line == old.line && new.started == old.started;
        if new.span.start != old.span.start || !same_end || !same || (!moved && new.file != old.file) {
            return wrong(format!("turn {}", old.n));
        }
    }
    Ok(())
}
