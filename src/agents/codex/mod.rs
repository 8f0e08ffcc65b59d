//! The store of Codex CLI (0.171.0): rollout files, legacy and paginated, with a thread index beside them.
//!
//! `layout` knows names, `heads` and `database` read what lists need, `lineage` follows a history through
//! its files, `pass` and `load` find turns, `items` and `context` say what is in them, `cuts` says how to
//! fork and undo, `writer` who has a thread open. Only files count; the index says which one is current.
//! Facts: `docs/stores/codex.md`.

mod context;
mod cuts;
mod database;
mod discover;
mod heads;
mod items;
mod layout;
mod lineage;
mod load;
mod pass;
mod records;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Agent, Discovery, unless_irregular};
use crate::host::Environment;
use crate::session::{
    AgentKind, ForkPlan, History, Item, ItemSink, Refusal, Result, Session, Turn, UndoPlan, Writer,
};
use crate::transcript::{Passes, StoreDir};
use discover::Memory;

/// Codex, with what is remembered of each store that was looked at.
#[derive(Default)]
pub struct Codex {
    stores: Mutex<HashMap<PathBuf, Arc<Mutex<Memory>>>>,
}

impl Codex {
    fn memory(&self, root: &Path) -> Arc<Mutex<Memory>> {
        self.stores.lock().entry(root.to_owned()).or_default().clone()
    }

    /// How many heads of files were read so far in the store at `root`.
    pub fn heads_read(&self, root: &Path) -> u64 {
        self.memory(root).lock().heads.reads
    }
}

impl Agent for Codex {
    fn kind(&self) -> AgentKind {
        AgentKind::Codex
    }

    fn place(&self, env: &Environment) -> Option<PathBuf> {
        env.path("CODEX_HOME").or_else(|| Some(env.home.as_ref()?.join(".codex")))
    }

    fn discover(&self, root: &Path, _previous: &Discovery) -> Result<Discovery> {
        Ok(self.memory(root).lock().threads(root)?.top)
    }

    fn is_current(&self, session: &Session) -> Result<bool> {
        let root = &session.key.root;
        let Some(store) = StoreDir::open(root)? else { return Ok(false) };
        self.memory(root).lock().is_current(&store, session)
    }

    fn load_again(&self, session: &Session, passes: &mut Passes) -> Result<History> {
        unless_irregular(load::load(session, passes))
    }

    fn items(&self, _session: &Session, _turn: &Turn, span: &[u8], sink: &mut ItemSink<'_>) -> Result<()> {
        let mut reader = items::Reader::default();
        items::lines_of(span, |line| reader.line(line, sink));
        reader.finish(sink);
        Ok(())
    }

    fn prompt(&self, session: &Session, turn: &Turn, span: &[u8]) -> Result<String> {
        let mut prompt = None;
        self.items(session, turn, span, &mut |_, item| {
            if let Item::User { text } = item {
                prompt.get_or_insert_with(|| text.into_owned());
            }
        })?;
        Ok(prompt.unwrap_or_default())
    }

    fn context(&self, session: &Session, history: &History, sink: &mut ItemSink<'_>) -> Result<()> {
        context::context(session, history, sink)
    }

    fn subagents(&self, session: &Session) -> Result<Vec<Session>> {
        if session.subagent.is_some() {
            return Ok(Vec::new());
        }
        let root = &session.key.root;
        let mut threads = self.memory(root).lock().threads(root)?;
        Ok(threads.subagents.remove(&session.id).unwrap_or_default())
    }

    fn found_again(&self, session: &Session) -> Result<Session> {
        let found = self.memory(&session.key.root).lock().threads(&session.key.root)?.top.sessions;
        let gone = || Refusal::NotFound { what: session.key.absolute().display().to_string() };
        let found = found.into_iter().find(|found| found.key == session.key).ok_or_else(gone)?;
        Ok(Arc::unwrap_or_clone(found))
    }

    fn plan_fork(&self, session: &Session, history: &History, n: u32) -> Result<ForkPlan> {
        cuts::plan_fork(session, history, n, None)
    }

    fn plan_adopt(&self, session: &Session, history: &History, n: u32, project: &Path) -> Result<ForkPlan> {
        cuts::plan_fork(session, history, n, Some(project))
    }

    fn undo_refusals(&self, session: &Session, history: &History) -> Result<Vec<Result<()>>> {
        cuts::undo_refusals(&self.memory(&session.key.root), session, history)
    }

    fn plan_undo(&self, session: &Session, history: &History, n: u32) -> Result<UndoPlan> {
        cuts::plan_undo(&self.memory(&session.key.root), session, history, n)
    }

    fn index_file(&self) -> Option<&'static str> {
        Some(layout::STATE_DB)
    }

    fn writer(&self, session: &Session, _: &History) -> Option<Writer> {
        writer::writer(&session.key.root, &session.id)
    }
}
