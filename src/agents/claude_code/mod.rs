//! The store of Claude Code (measured with 2.1.197 and 2.1.332).
//!
//! A transcript is a tree of records in one file: `layout` finds the sessions (`head`: what a list shows of one,
//! `subagents`: those below one), `records` reads a line, `tree` says which records are the conversation and which were
//! left behind, `history` makes turns of them, `items` says what is in a turn, `context` what the model is sent, `cuts` how to fork and
//! undo, `writer` who has a session open. Facts: `docs/stores/claude-code.md`.

mod context;
mod cuts;
mod head;
mod history;
mod items;
mod layout;
mod lines;
mod records;
mod subagents;
mod tools;
mod tree;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Agent, AgentStore, Companion, Discovery, LastLook, command, unless_irregular};
use crate::host::processes::Running;
use crate::session::{
    AgentKind, ForkPlan, History, ItemSink, Result, Session, State, Turn, UndoPlan, Writer,
};
use crate::transcript::{Passes, StoreDir};

use layout::Look;
use subagents::Subagents;

/// Opens the stores of Claude Code.
pub static AGENT: Agent = Agent {
    variables: &["CLAUDE_CONFIG_DIR"],
    place: |env| env.path("CLAUDE_CONFIG_DIR").or_else(|| Some(env.home.as_ref()?.join(".claude"))),
    open: |root| Arc::new(ClaudeCode { root, last: LastLook::default(), subagents: Subagents::default() }),
};

/// A store of Claude Code.
struct ClaudeCode {
    root: Arc<Path>,
    last: LastLook<Look>,
    subagents: Subagents,
}

impl ClaudeCode {
    /// Whether sub-agents may lie among the transcripts of sessions: only older versions put them there.
    fn has_agents_beside(&self, session: &Session) -> bool {
        self.last.get().is_none_or(|look| look.has_agents_beside(&session.key.path))
    }
}

impl AgentStore for ClaudeCode {
    fn kind(&self) -> AgentKind {
        AgentKind::ClaudeCode
    }

    fn root(&self) -> &Arc<Path> {
        &self.root
    }

    fn discover(&self) -> Result<Arc<Discovery>> {
        Ok(self.last.again(|last| layout::look(&self.root, last))?.found.clone())
    }

    fn load_again(&self, session: &Session, passes: &mut Passes) -> Result<History> {
        let sidechain = session.subagent.is_some();
        unless_irregular(history::load(&session.key.root, &session.key.path, sidechain, passes))
    }

    fn items(&self, _: &Session, _: &Turn, span: &[u8], sink: &mut ItemSink<'_>) -> Result<()> {
        items::of_turn(span, sink)
    }

    fn prompt(&self, _: &Session, _: &Turn, span: &[u8]) -> Result<String> {
        items::prompt(span)
    }

    fn context(&self, session: &Session, _: &History, sink: &mut ItemSink<'_>) -> Result<()> {
        context::context(session, sink)
    }

    fn subagents(&self, session: &Session) -> Result<Vec<Session>> {
        self.subagents.of(session, self.has_agents_beside(session))
    }

    fn subagent_count(&self, session: &Session) -> Result<usize> {
        self.subagents.count(session, self.has_agents_beside(session))
    }

    fn subagent(&self, session: &Session, name: &str) -> Result<Option<Session>> {
        self.subagents.named(session, name, self.has_agents_beside(session))
    }

    fn subagent_at(&self, session: &Session, path: &Path) -> Result<Option<Session>> {
        let Some(name) = subagents::name(path) else { return Ok(None) };
        let found = self.subagent(session, name)?;
        Ok(found.filter(|found| *found.key.path == *path))
    }

    fn parents_of(&self, subagent: &Path) -> Vec<PathBuf> {
        self.subagents.parent_of(&self.root, subagent).into_iter().collect()
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

    fn companions(&self, session: &Session, _: &[PathBuf]) -> Result<Vec<Companion>> {
        let Some(store) = StoreDir::open(&session.key.root)? else { return Ok(Vec::new()) };
        Companion::of(&store, session.sidecars.iter().cloned())
    }

    fn can_leave_out(&self, _: &Session, _: &History, _: &Turn) -> Result<()> {
        // What follows a turn names the record before it, and a fork names another one there.
        Ok(())
    }

    fn undo_refusals(&self, _: &Session, history: &History) -> Result<Vec<Result<()>>> {
        cuts::undo_refusals(history)
    }

    fn plan_undo(&self, session: &Session, history: &History, n: u32) -> Result<UndoPlan> {
        cuts::plan_undo(session, history, n)
    }

    fn resume(&self, session: &Session, history: &History) -> Option<Vec<Vec<String>>> {
        // A session without a prompt is none to the client.
        let is_one = history.state != State::Empty;
        is_one.then(|| vec![command(["claude", "--resume", &session.id])])
    }

    fn writer(&self, session: &Session, _: &History, running: &Running) -> Option<Writer> {
        writer::live(session, running).map(|live| live.writer)
    }
}
