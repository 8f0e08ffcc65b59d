//! The store of kimi-cli (Python client 1.52.0, wire protocol 1.10).

pub mod align;
mod plan;
pub mod records;
pub mod turns;
mod writer;

use super::{Agent, Discovery, Environment};
use crate::session::{AgentKind, History, ItemSink, Plan, Refusal, Result, Session, Turn, Writer};
use std::path::{Path, PathBuf};

pub struct KimiCli;

impl Agent for KimiCli {
    fn kind(&self) -> AgentKind {
        AgentKind::KimiCli
    }
    fn place(&self, env: &Environment) -> Option<PathBuf> {
        env.path("KIMI_SHARE_DIR").or_else(|| Some(env.home.as_ref()?.join(".kimi")))
    }
    fn discover(&self, _: &Path, _: &Discovery) -> Result<Discovery> {
        Ok(Discovery::default())
    }
    fn load(&self, _: &Session) -> Result<History> {
        Err(Refusal::Internal { what: "not built".into() })
    }
    fn items(&self, _: &Session, _: &Turn, _: &[u8], _: &mut ItemSink<'_>) -> Result<()> {
        Ok(())
    }
    fn prompt(&self, _: &Session, _: &Turn, _: &[u8]) -> Result<String> {
        Ok(String::new())
    }
    fn context(&self, _: &Session, _: &History, _: &mut ItemSink<'_>) -> Result<()> {
        Ok(())
    }
    fn subagents(&self, _: &Session) -> Result<Vec<Session>> {
        Ok(Vec::new())
    }
    fn plan_fork(&self, session: &Session, history: &History, n: u32) -> Result<Plan> {
        plan::plan_fork(session, history, n)
    }
    fn plan_undo(&self, session: &Session, history: &History, n: u32) -> Result<Plan> {
        plan::plan_undo(session, history, n)
    }
    fn writer(&self, session: &Session, history: &History) -> Option<Writer> {
        writer::writer(session, history)
    }
}
