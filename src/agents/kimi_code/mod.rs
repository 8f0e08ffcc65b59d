//! The store of Kimi Code (the TypeScript client 2.1.0, wire protocol 1.5).
//!
//! A session is a directory with a state.json and one append-only wire per agent. Branches and undos are records of the
//! wire, so what is the history is told by `chain`. Facts: `docs/stores/kimi-code.md`.
//!
//! `layout` finds sessions (`state` reads their state.json, `ends` both ends of their wires, `subagents` theirs), `wire`
//! reads one line by line with `records` (of which `kinds` are bookkeeping), `messages` and `values`, `history` tells its turns,
//! `items` what is in them, `cuts` how to undo, `fork` how to fork (`taken`: what goes along, `state_of_fork`), `writer` who
//! has a session open.

mod chain;
mod cuts;
mod ends;
mod fork;
mod history;
mod items;
mod kinds;
mod layout;
mod messages;
mod records;
mod state;
mod state_of_fork;
mod subagents;
mod taken;
mod tools;
mod values;
mod wire;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{Agent, AgentStore, Companion, Discovery, LastLook, command, unless_irregular};
use crate::host::processes::Running;
use crate::session::{
    AgentKind, ForkPlan, History, ItemSink, Refusal, Result, Session, State, Turn, UndoPlan, Writer,
};
use crate::transcript::{self, EntryKind, Passes, Stamp, StoreDir};

use history::{Loaded, whose, wire_of};
use layout::Look;
use subagents::Subagents;

/// How many wires are remembered between looks.
const MOST: usize = 4096;

/// Opens the stores of Kimi Code.
pub static AGENT: Agent = Agent {
    variables: &["KIMI_CODE_HOME"],
    place: |env| env.path("KIMI_CODE_HOME").or_else(|| Some(env.home.as_ref()?.join(".kimi-code"))),
    open: |root| {
        let (last, updated, subagents) = Default::default();
        Arc::new(KimiCode { root, last, updated, subagents })
    },
};

/// A store of Kimi Code.
struct KimiCode {
    root: Arc<Path>,
    last: LastLook<Look>,
    /// When sessions were last worked on that are asked about between looks, by their wires: with the stamp of the wire
    /// and when it was read.
    updated: Mutex<HashMap<Arc<Path>, (Stamp, Timestamp, Timestamp)>>,
    subagents: Subagents,
}

impl AgentStore for KimiCode {
    fn kind(&self) -> AgentKind {
        AgentKind::KimiCode
    }

    fn root(&self) -> &Arc<Path> {
        &self.root
    }

    fn discover(&self) -> Result<Arc<Discovery>> {
        Ok(self.last.again(|last| layout::look(&self.root, last))?.found.clone())
    }

    fn updated(&self, session: &Session) -> Result<Option<Timestamp>> {
        let Some(store) = StoreDir::open(&self.root)? else { return Ok(None) };
        let wire = wire_of(session);
        let Some(stamp) = store.stat(&wire)? else { return Ok(None) };
        if let Some(updated) = self.last.get().and_then(|last| last.updated(session, stamp)) {
            return Ok(Some(updated));
        }
        if let Some((known, at, updated)) = self.updated.lock().get(&*wire)
            && *known == stamp
            && stamp.vouches(*at)
        {
            return Ok(Some(*updated));
        }
        let at = transcript::clock();
        let is_regular = stamp.kind == EntryKind::File;
        let last = if is_regular { ends::last_time(&store, &wire)? } else { None };
        let updated = last.unwrap_or_else(|| stamp.modified());
        let mut known = self.updated.lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(wire, (stamp, at, updated));
        Ok(Some(updated))
    }

    fn load_again(&self, session: &Session, passes: &mut Passes) -> Result<History> {
        unless_irregular(Loaded::read_again(session, passes).map(|loaded| loaded.history))
    }

    fn items(&self, session: &Session, _: &Turn, span: &[u8], sink: &mut ItemSink<'_>) -> Result<()> {
        items::of_turn(span, whose(session), sink)
    }

    fn prompt(&self, session: &Session, _: &Turn, span: &[u8]) -> Result<String> {
        items::prompt(span, whose(session))
    }

    fn context(&self, session: &Session, history: &History, sink: &mut ItemSink<'_>) -> Result<()> {
        history.readable()?;
        let loaded = Loaded::read(session)?;
        let Some(wire) = &loaded.wire else { return Ok(()) };
        let read = |span| transcript::read_range(&session.key.root, &wire_of(session), span);
        items::context(wire, &loaded.chain, whose(session), read, sink)
    }

    fn subagents(&self, session: &Session) -> Result<Vec<Session>> {
        self.subagents.of(session)
    }

    fn plan_fork(
        &self,
        session: &Session,
        history: &History,
        n: u32,
        project: Option<&Path>,
    ) -> Result<ForkPlan> {
        fork::plan_fork(session, history, n, project)
    }

    fn companions(&self, session: &Session, history_files: &[PathBuf]) -> Result<Vec<Companion>> {
        cuts::companions(session, history_files)
    }

    fn undo_refusals(&self, session: &Session, history: &History) -> Result<Vec<Result<()>>> {
        cuts::undoable(session, history)?;
        Ok(vec![Ok::<(), Refusal>(()); history.turns.len()])
    }

    fn plan_undo(&self, session: &Session, history: &History, n: u32) -> Result<UndoPlan> {
        cuts::plan_undo(session, history, n)
    }

    fn resume(&self, session: &Session, history: &History) -> Option<Vec<Vec<String>>> {
        // A wire without a record has no model to go on with.
        let is_one = history.state != State::Empty || history.damages.is_empty();
        is_one.then(|| vec![command(["kimi", "--session", &session.id])])
    }

    fn writer(&self, session: &Session, history: &History, running: &Running) -> Option<Writer> {
        writer::writer(session, history, running)
    }
}
