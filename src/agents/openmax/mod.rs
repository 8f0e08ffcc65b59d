//! The store of OpenMax (the client of August 2026, and the stricter one that followed it).
//!
//! One shared index names the sessions; each has a transcript and, once it was pruned, an archive of what
//! the prune dropped. Facts: `docs/stores/openmax.md`, named by section where they are used.
//!
//! `layout` finds sessions through `index`, `history` reads one (`scan` its files, line by line with
//! `records`; `whole` puts together what a prune took apart, `landed` says which prunes count), `items` says what is in a turn, `cuts` how to
//! fork and undo, `writer` who has a session open.

mod bill;
mod cuts;
mod history;
mod index;
mod items;
mod landed;
mod layout;
mod records;
mod scan;
mod tools;
mod whole;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use super::{
    Agent, AgentStore, Companion, Discovery, LastLook, SharedIndex, command, modified, unless_irregular,
};
use crate::host::processes::Running;
use crate::session::{
    AgentKind, ForkPlan, History, ItemSink, Result, Session, Tokens, Turn, UndoPlan, Writer,
};
use crate::transcript::{self, Passes};

use history::Loaded;
use layout::{Files, Look};

/// Opens the stores of OpenMax. The client has no variable of its own for their place.
pub static AGENT: Agent = Agent {
    variables: &[],
    place: |env| Some(env.home.as_ref()?.join(".openmax")),
    open: |root| Arc::new(OpenMax { root, last: LastLook::default(), bills: bill::Bills::default() }),
};

/// A store of OpenMax.
struct OpenMax {
    root: Arc<Path>,
    last: LastLook<Look>,
    bills: bill::Bills,
}

impl AgentStore for OpenMax {
    fn kind(&self) -> AgentKind {
        AgentKind::OpenMax
    }

    fn root(&self) -> &Arc<Path> {
        &self.root
    }

    fn discover(&self) -> Result<Arc<Discovery>> {
        if let Some(last) = self.last.get().filter(|last| last.holds(&self.root)) {
            return Ok(last.found.clone());
        }
        Ok(self.last.again(|last| layout::look(&self.root, last))?.found.clone())
    }

    fn updated(&self, session: &Session) -> Result<Option<Timestamp>> {
        let Some(modified) = modified(&session.key.root, &session.files) else { return Ok(None) };
        // Records have no times, and the index does: whoever asks knows that it is the same index.
        Ok(if layout::is_indexed(session) { Some(session.updated) } else { modified.into_iter().next() })
    }

    fn load_again(&self, session: &Session, passes: &mut Passes) -> Result<History> {
        let loaded = Loaded::read_again(&session.key.root, &Files::of(&session.key), passes);
        unless_irregular(loaded.map(|loaded| loaded.history))
    }

    fn items(&self, _: &Session, _: &Turn, span: &[u8], sink: &mut ItemSink<'_>) -> Result<()> {
        items::of_turn(span, sink)
    }

    fn prompt(&self, _: &Session, _: &Turn, span: &[u8]) -> Result<String> {
        items::prompt(span)
    }

    fn context(&self, session: &Session, _: &History, sink: &mut ItemSink<'_>) -> Result<()> {
        let files = Files::of(&session.key);
        let loaded = Loaded::read(&session.key.root, &files)?;
        loaded.history.readable()?;
        if loaded.live.found.is_empty() {
            return Ok(());
        }
        let bytes = transcript::read_range(&session.key.root, &files.messages, 0..loaded.live.end())?;
        items::context(&bytes, sink)
    }

    fn subagents(&self, _: &Session) -> Result<Vec<Session>> {
        Ok(Vec::new())
    }

    fn plan_fork(
        &self,
        session: &Session,
        history: &History,
        n: u32,
        project: Option<&Path>,
    ) -> Result<ForkPlan> {
        cuts::plan_fork(session, history, n, project)
    }

    fn companions(&self, session: &Session, history_files: &[PathBuf]) -> Result<Vec<Companion>> {
        cuts::companions(session, history_files)
    }

    fn can_leave_out(&self, session: &Session, _: &History, _: &Turn) -> Result<()> {
        let files = Files::of(&session.key);
        let loaded = Loaded::read(&session.key.root, &files)?;
        if loaded.was_pruned() { Err(cuts::pruned()) } else { Ok(()) }
    }

    fn undo_refusals(&self, session: &Session, history: &History) -> Result<Vec<Result<()>>> {
        cuts::undo_refusals(session, history)
    }

    fn plan_undo(&self, session: &Session, history: &History, n: u32) -> Result<UndoPlan> {
        cuts::plan_undo(session, history, n)
    }

    fn index_file(&self) -> Option<&'static str> {
        Some(layout::INDEX)
    }

    fn shared_index(&self) -> Option<&dyn SharedIndex> {
        Some(&index::Entries)
    }

    /// Its command line continues the newest session of a project; an older one is chosen inside, by `/resume`.
    fn resume(&self, session: &Session, history: &History) -> Option<Vec<Vec<String>>> {
        let look = self.last.get()?;
        let of_project = look.found.sessions.iter().filter(|other| other.place == session.place);
        let newest = of_project.max_by_key(|other| other.updated)?;
        let is_it = newest.key == session.key && history.damages.iter().all(|damage| damage.class.is_torn());
        is_it.then(|| vec![command(["openmax", "--continue"])])
    }

    fn tokens(&self, session: &Session, _: &History) -> Option<Tokens> {
        bill::tokens(&self.bills, session)
    }

    fn writer(&self, session: &Session, _: &History, running: &Running) -> Option<Writer> {
        writer::writer(session, running)
    }
}
