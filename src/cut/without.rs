//! A fork that leaves one turn out. It is for turns that nothing behind them depends on, so that the client accepts what
//! is left as a session like any other: the agent says which those are.

use super::fork;
use super::state::StateDir;
use super::verify::Proof;
use crate::agents::AgentStore;
use crate::session::{History, Item, Refusal, Result, Session, Turn, time_of_writing};
use crate::transcript;

/// Makes a new session with the turns 0..=n of `session` but turn `without`; returns its id.
///
/// # Errors
/// [`Refusal::NoSuchTurn`]; [`Refusal::CannotCut`] where the client would not accept it: of a group of turns, across a
/// compaction, and where later records depend on the turn; and as every fork. Nothing is left behind.
pub fn fork_without(
    agent: &dyn AgentStore,
    state: &StateDir,
    session: &Session,
    seen: &History,
    n: u32,
    without: u32,
) -> Result<String> {
    time_of_writing()?;
    seen.turn(n)?;
    if without > n {
        return Err(Refusal::NoSuchTurn { asked: without, turns: n + 1 });
    }
    if n == 0 {
        return Err(Refusal::CannotCut { what: "no turn would be left".into(), hint: None });
    }
    let left = seen.without(without)?;
    for turn in &seen.turns[without as usize..=n as usize] {
        if is_compacted(agent, session, turn)? {
            let what = format!(
                "the history was compacted in turn {}, and what stands there was made of turn {without}, too",
                turn.n
            );
            // A fork that ends before the compaction may do.
            let last = turn.n.checked_sub(1).filter(|last| *last > without);
            let hint =
                last.map(|last| format!("with {last} as the last turn, turn {without} can be left out"));
            return Err(Refusal::CannotCut { what, hint });
        }
    }
    agent.can_leave_out(session, seen, &seen.turns[without as usize])?;
    fork::fork(agent, state, session, &left, n - 1, Proof::Turns)
}

/// Whether the history was compacted in this turn.
fn is_compacted(agent: &dyn AgentStore, session: &Session, turn: &Turn) -> Result<bool> {
    let mut records = Vec::new();
    for (file, span) in turn.ranges() {
        records.extend(transcript::read_range(&session.key.root, file, span)?);
    }
    let mut compacted = false;
    agent.items(session, turn, &records, &mut |_, item| {
        compacted |= matches!(item, Item::Compaction { .. })
    })?;
    Ok(compacted)
}
