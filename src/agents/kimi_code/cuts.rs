//! Cuts of this store as steps. Facts: `docs/stores/kimi-code.md`, "3. Undo" and "4. Fork".

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::chain::Chain;
use super::history::{Loaded, wire_of};
use super::state::{self, LONGEST, STATE};
use super::taken;
use super::wire::{What, Wire};
use crate::agents::Companion;
use crate::session::{
    Changes, Damage, DamageClass, History, Lock, Plan, Postcondition, Refusal, Result, Session, State, Step,
    UndoPlan, time_of_writing,
};
use crate::transcript::{StoreDir, read_small};

/// The session without turn `n` and everything after it: as the client does it, by records behind all others that open
/// a new branch at the turn's beginning.
pub(super) fn plan_undo(session: &Session, history: &History, n: u32) -> Result<UndoPlan> {
    undoable(session, history)?;
    history.undo_point(n)?;
    let (wire, chain) = as_seen(session, history)?;
    let file = wire_of(session).to_path_buf();
    let time = time_of_writing()?.as_millisecond();
    let mut bytes = if wire.unterminated { b"\n".to_vec() } else { Vec::new() };
    bytes.extend(records_of_undo(&wire, &chain, n as usize, time)?);
    let step = Step::Append { file: file.clone(), at: wire.end(), bytes };
    Ok(Plan {
        made: Changes { steps: vec![step], rows: None },
        entry: None,
        locks: vec![Lock::Lease { file: file.clone() }],
        based_on: history.files.clone(),
        promise: Postcondition::of(session, file, n),
    })
}

/// The record that opens a branch. Its fields and those of the two others stand in the client's own order.
#[derive(Serialize)]
struct Switched<'a> {
    r#type: &'static str,
    #[serde(rename = "agentId")]
    agent: &'static str,
    branch: String,
    reason: &'static str,
    base: Base<'a>,
    turns: usize,
    #[serde(rename = "legacyUndoLine")]
    undo_line: usize,
    time: i64,
}

#[derive(Serialize)]
struct Base<'a> {
    branch: &'a str,
    line: u64,
}

/// For clients that know no branches.
#[derive(Serialize)]
struct Undo {
    r#type: &'static str,
    #[serde(rename = "agentId")]
    agent: &'static str,
    count: usize,
    time: i64,
}

#[derive(Serialize)]
struct Undone {
    r#type: &'static str,
    #[serde(rename = "agentId")]
    agent: &'static str,
    turns: usize,
    #[serde(rename = "fromTurnId", skip_serializing_if = "Option::is_none")]
    from: Option<i64>,
    time: i64,
}

fn records_of_undo(wire: &Wire, chain: &Chain, n: usize, time: i64) -> Result<Vec<u8>> {
    let agent = "main";
    let turns = chain.turns.len() - n;
    let (base, line) = base(wire, chain, n)?;
    let number = (wire.branches.len()..).find(|number| {
        let name = format!("b{number}");
        wire.branches.iter().all(|branch| *branch.name != *name)
    });
    let branch = format!("b{}", number.unwrap_or_default());
    let id = chain.anchor_of(wire, n).and_then(|(id, _)| id);
    let from = wire.marks.iter().find_map(|(_, what)| match what {
        What::Prompt { id: Some(own), turn } if Some(own) == id => *turn,
        _ => None,
    });
    let mut lines = Vec::new();
    let base = Base { branch: base, line };
    let undo_line = wire.places.len() + 2;
    let switched =
        Switched { r#type: "agent.switched", agent, branch, reason: "undo", base, turns, undo_line, time };
    put(&mut lines, &switched)?;
    put(&mut lines, &Undo { r#type: "context.undo", agent, count: turns, time })?;
    put(&mut lines, &Undone { r#type: "context.undone", agent, turns, from, time })?;
    Ok(lines)
}

/// The last record before turn `n`, as a branch names it: the branch that wrote it, and its line from 1.
fn base<'w>(wire: &'w Wire, chain: &Chain, n: usize) -> Result<(&'w str, u64)> {
    let start = chain.start_of(n);
    let no_branch = || Refusal::Internal { what: "a record of no branch".into() };
    let owner = wire.branches.iter().rev().find(|branch| branch.from <= start).ok_or_else(no_branch)?;
    // The line before it is what the client names. Where a branch begins with this turn, what comes before it in the
    // file belongs to another one.
    match owner.base {
        Some((base, line)) if owner.from == start => {
            Ok((&wire.branches.get(base).ok_or_else(no_branch)?.name, line))
        }
        _ => Ok((&owner.name, start as u64)),
    }
}

pub(super) fn put(lines: &mut Vec<u8>, record: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *lines, record)
        .map_err(|error| Refusal::Internal { what: format!("writing a record: {error}") })?;
    lines.push(b'\n');
    Ok(())
}

/// The session's wire read again: the plan needs more of it than its history tells.
///
/// # Errors
/// [`Refusal::Changed`] if it is not what `history` was made from.
pub(super) fn as_seen(session: &Session, history: &History) -> Result<(Wire, Chain)> {
    let loaded = Loaded::read(session)?;
    match loaded.wire {
        Some(wire) if loaded.history.files == history.files => Ok((wire, loaded.chain)),
        _ => Err(Refusal::Changed { what: wire_of(session).display().to_string() }),
    }
}

/// Refuses what no undo of this session may do.
pub(super) fn undoable(session: &Session, history: &History) -> Result<()> {
    require_turns(history)?;
    if session.subagent.is_some() {
        return Err(Refusal::cannot_cut(
            "a sub-agent's session cannot be undone by itself",
            "undo its parent's turn, or use `fork`",
        ));
    }
    require_state(session).map(drop)
}

pub(super) fn require_turns(history: &History) -> Result<()> {
    history.readable()?;
    match (history.state, history.cuts.first()) {
        // There is a file, and no complete record in it: that is damage to every cut.
        (State::Empty, Some(Err(refusal))) => Err(refusal.clone()),
        _ => Ok(()),
    }
}

/// A session's state.json; the client finds no session without a sound one. Asked at every cut, so that a refusal ends as
/// soon as it is repaired.
pub(super) fn require_state(session: &Session) -> Result<Vec<u8>> {
    let file = directory(session).join(STATE);
    let store = StoreDir::open(&session.key.root)?;
    let bytes = match store {
        Some(store) => read_small(&store, &file, LONGEST)?,
        None => None,
    };
    let Some(bytes) = bytes else {
        let what = "its state.json is not there and kimi-code does not find it without".into();
        return Err(Refusal::ReadOnlySession { what });
    };
    let name = directory(session).file_name().unwrap_or_default().to_string_lossy().into_owned();
    match state::parse(&bytes, &name) {
        Ok(_) => Ok(bytes),
        Err(why) => {
            let message = format!("{why}; kimi-code does not find the session then");
            let damage = Damage::of_whole(STATE, DamageClass::Sidecar, message);
            Err(Refusal::Damaged { damage })
        }
    }
}

/// The directory of the session, or of the one that a sub-agent belongs to; relative to the root.
pub(super) fn directory(session: &Session) -> PathBuf {
    let own = &session.key.path;
    let above = if session.subagent.is_some() { own.ancestors().nth(2) } else { Some(&**own) };
    above.unwrap_or(own).to_path_buf()
}

/// Its state, and what its sub-agents and its user's pictures are: all that a fork takes besides the wire.
pub(super) fn companions(session: &Session, history_files: &[PathBuf]) -> Result<Vec<Companion>> {
    let Some(store) = StoreDir::open(&session.key.root)? else { return Ok(Vec::new()) };
    let directory = directory(session);
    let mut files = vec![directory.join(STATE)];
    files.extend(taken::others(&store, &directory)?.into_iter().map(|file| directory.join(file)));
    files.extend(
        taken::wires_of_subagents(&store, &directory)?.into_iter().map(|(_, file)| directory.join(file)),
    );
    files.retain(|file| !history_files.contains(file));
    Companion::of(&store, files)
}

/// A path of the store with this session's directory as its beginning.
pub(super) fn within(session: &Session, file: &Path) -> PathBuf {
    directory(session).join(file)
}
