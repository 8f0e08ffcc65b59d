//! The store of Codex CLI (0.171.0): rollout files, legacy and paginated, with a thread index beside them.
//!
//! `layout` knows names, `heads`, `tails` and `database` read what lists need, `lineage` follows a history through
//! its files, `walk` knows where turns begin and `voice` whose words a message is, `pass` and `load` put the turns
//! together, `items` (by `reader` and `kinds`) and `context` say what is in them, `cuts` says how to fork and undo,
//! `writer` who has a thread open; `first_format` is what came before all this. Only files count; the index says
//! which one is current.
//! Facts: `docs/stores/codex.md`.

mod archive;
mod calls;
mod context;
mod cuts;
mod database;
mod discover;
mod first_format;
mod heads;
mod items;
mod kinds;
mod layout;
mod leave_out;
mod line;
mod lineage;
mod load;
mod notices;
mod open_turn;
mod outputs;
mod pass;
mod reader;
mod records;
mod shown;
mod tails;
mod titles;
mod todays_form;
mod tools;
mod voice;
mod walk;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{Agent, AgentStore, Companion, Discovery, command, unless_irregular};
use crate::host::processes::Running;
use crate::session::{
    AgentKind, ForkPlan, History, Item, ItemSink, Refusal, Result, Session, Turn, UndoPlan, Writer,
};
use crate::transcript::{Passes, StoreDir};
use discover::Memory;
use records::Mode;

/// Opens the stores of Codex.
pub static AGENT: Agent = Agent {
    variables: &["CODEX_HOME"],
    place: |env| env.path("CODEX_HOME").or_else(|| Some(env.home.as_ref()?.join(".codex"))),
    open: |root| Arc::new(Codex::at(root)),
};

/// A store of Codex.
pub struct Codex {
    root: Arc<Path>,
    memory: Mutex<Memory>,
}

impl Codex {
    pub fn at(root: impl Into<Arc<Path>>) -> Codex {
        Codex { root: root.into(), memory: Mutex::default() }
    }

    /// How many heads of files were read so far.
    pub fn heads_read(&self) -> u64 {
        self.memory.lock().heads.reads
    }
}

impl AgentStore for Codex {
    fn kind(&self) -> AgentKind {
        AgentKind::Codex
    }

    fn root(&self) -> &Arc<Path> {
        &self.root
    }

    fn discover(&self) -> Result<Arc<Discovery>> {
        Ok(Arc::new(self.memory.lock().threads(&self.root)?.top))
    }

    fn is_current(&self, session: &Session) -> Result<bool> {
        let Some(store) = StoreDir::open(&self.root)? else { return Ok(false) };
        self.memory.lock().is_current(&store, session)
    }

    fn updated(&self, session: &Session) -> Result<Option<Timestamp>> {
        let Some(store) = StoreDir::open(&self.root)? else { return Ok(None) };
        self.memory.lock().updated(&store, session)
    }

    fn load_again(&self, session: &Session, passes: &mut Passes) -> Result<History> {
        unless_irregular(load::load(session, passes))
    }

    fn transcripts(&self, session: &Session) -> Result<Vec<PathBuf>> {
        load::transcripts(session)
    }

    fn items(&self, session: &Session, turn: &Turn, span: &[u8], sink: &mut ItemSink<'_>) -> Result<()> {
        let paginated = session.history_mode.as_deref() == Some(Mode::Paginated.name());
        items::items(span, paginated, turn.prompt.is_some(), sink);
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
        let mut threads = self.memory.lock().threads(&self.root)?;
        Ok(threads.subagents.remove(&session.id).unwrap_or_default())
    }

    fn subagents_of(&self, sessions: &[Arc<Session>]) -> Vec<(usize, Session)> {
        // One look tells all of them.
        let Ok(threads) = self.memory.lock().threads(&self.root) else { return Vec::new() };
        let places: HashMap<&str, usize> =
            sessions.iter().enumerate().map(|(at, session)| (session.id.as_str(), at)).collect();
        let all = threads.subagents.into_iter();
        all.filter_map(|(parent, agents)| Some((*places.get(parent.as_str())?, agents)))
            .flat_map(|(at, agents)| agents.into_iter().map(move |agent| (at, agent)))
            .collect()
    }

    fn found_again(&self, session: &Session) -> Result<Session> {
        let found = self.memory.lock().threads(&self.root)?.top.sessions;
        let gone = || Refusal::NotFound { what: session.key.absolute().display().to_string() };
        let found = found.into_iter().find(|found| found.key == session.key).ok_or_else(gone)?;
        Ok(Arc::unwrap_or_clone(found))
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

    fn can_leave_out(&self, session: &Session, _: &History, turn: &Turn) -> Result<()> {
        leave_out::can_leave_out(session, turn)
    }

    fn companions(&self, session: &Session, history_files: &[PathBuf]) -> Result<Vec<Companion>> {
        cuts::companions(session, history_files)
    }

    fn undo_refusals(&self, session: &Session, history: &History) -> Result<Vec<Result<()>>> {
        cuts::undo_refusals(&self.memory, session, history)
    }

    fn plan_undo(&self, session: &Session, history: &History, n: u32) -> Result<UndoPlan> {
        cuts::plan_undo(&self.memory, session, history, n)
    }

    fn index_file(&self) -> Option<&'static str> {
        Some(layout::STATE_DB)
    }

    fn resume(&self, session: &Session, _: &History) -> Option<Vec<Vec<String>>> {
        let resume = command(["codex", "resume", &session.id]);
        match session.history_mode.as_deref() {
            Some(mode) if mode == Mode::First.name() => None,
            // The client resumes no archived thread.
            _ if session.archived == Some(true) => {
                Some(vec![command(["codex", "unarchive", &session.id]), resume])
            }
            _ => Some(vec![resume]),
        }
    }

    fn writer(&self, session: &Session, _: &History, running: &Running) -> Option<Writer> {
        writer::writer(&session.key.root, &session.id, running)
    }
}
