//! The store of kimi-cli (Python client 1.52.0, wire protocol 1.10).
//!
//! `layout` finds sessions (`head`: the start of one; `subagents`: those below one), `load` reads one with
//! `parse` (a line to a record; `json`: what the client takes for JSON), `turns` (records to
//! turns) and `align` (turns to cut points). `view` shows a turn's bytes, record by record with `items`.
//! `cuts` says how to fork and undo, `work_dirs` what kimi.json tells and how it changes with a cut, `writer` who has a session
//! open. `docs/stores/kimi-cli.md` and the samples say what the store looks like.

mod align;
mod cuts;
mod head;
mod items;
mod json;
mod layout;
mod load;
mod parse;
mod records;
mod subagents;
mod tools;
mod turns;
mod view;
mod work_dirs;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use super::{
    Agent, AgentStore, Companion, Discovery, LastLook, SharedIndex, command, modified, unless_irregular,
};
use crate::host::processes::Running;
use crate::session::{
    AgentKind, FileView, ForkPlan, History, ItemSink, Result, Session, Turn, UndoPlan, Writer,
};
use crate::transcript::Passes;
use layout::Look;
use subagents::Subagents;

/// Opens the stores of Kimi CLI.
pub static AGENT: Agent = Agent {
    variables: &["KIMI_SHARE_DIR"],
    place: |env| env.path("KIMI_SHARE_DIR").or_else(|| Some(env.home.as_ref()?.join(".kimi"))),
    open: |root| Arc::new(KimiCli::at(root)),
};

/// A store of Kimi CLI.
struct KimiCli {
    root: Arc<Path>,
    last: LastLook<Look>,
    subagents: Subagents,
}

impl KimiCli {
    fn at(root: impl Into<Arc<Path>>) -> KimiCli {
        KimiCli { root: root.into(), last: LastLook::default(), subagents: Subagents::default() }
    }
}

impl AgentStore for KimiCli {
    fn kind(&self) -> AgentKind {
        AgentKind::KimiCli
    }

    fn root(&self) -> &Arc<Path> {
        &self.root
    }

    fn discover(&self) -> Result<Arc<Discovery>> {
        Ok(self.last.again(|last| layout::look(&self.root, last))?.found.clone())
    }

    fn updated(&self, session: &Session) -> Result<Option<Timestamp>> {
        let Some(modified) = modified(&session.key.root, &session.files) else { return Ok(None) };
        Ok(layout::active(&session.files, &modified))
    }

    fn load_again(&self, session: &Session, passes: &mut Passes) -> Result<History> {
        unless_irregular(load::load(session, passes))
    }

    fn items(&self, _: &Session, turn: &Turn, span: &[u8], sink: &mut ItemSink<'_>) -> Result<()> {
        view::items(turn, span, sink)
    }

    fn prompt(&self, _: &Session, turn: &Turn, span: &[u8]) -> Result<String> {
        view::prompt(turn, span)
    }

    fn context(&self, session: &Session, history: &History, sink: &mut ItemSink<'_>) -> Result<()> {
        view::context(session, history, sink)
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
        cuts::plan_fork(session, history, n, project)
    }

    fn companions(&self, session: &Session, history_files: &[PathBuf]) -> Result<Vec<Companion>> {
        cuts::companions(session, history_files)
    }

    fn undo_refusals(&self, session: &Session, history: &History) -> Result<Vec<Result<()>>> {
        cuts::undoable(session)?;
        Ok(vec![Ok(()); history.turns.len()])
    }

    fn plan_undo(&self, session: &Session, history: &History, n: u32) -> Result<UndoPlan> {
        cuts::plan_undo(session, history, n)
    }

    fn index_file(&self) -> Option<&'static str> {
        Some(work_dirs::INDEX)
    }

    fn shared_index(&self) -> Option<&dyn SharedIndex> {
        Some(&work_dirs::WorkDirs)
    }

    fn resume(&self, session: &Session, history: &History) -> Option<Vec<Vec<String>>> {
        // Where the live context is missing, the client would begin an empty session of this id.
        let is_lost = |view: &FileView| view.len.is_none() && view.file.ends_with(layout::CONTEXT);
        (!history.files.iter().any(is_lost)).then(|| vec![command(["kimi", "--session", &session.id])])
    }

    fn writer(&self, session: &Session, history: &History, running: &Running) -> Option<Writer> {
        writer::writer(session, history, running)
    }
}
