//! Which projects and sessions exist, and what is known of them: listing, names, lookup, freshness.
//!
//! Everything that shows a session asks here. Nothing is handed out from memory before the stamps of
//! the files that it came from were compared with the disk.

mod names;
mod stamp;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::agents::{Agent, Environment};
use crate::session::{AgentKind, Damage, History, Refusal, Result, Session, SessionKey, Turn};

/// A store of one agent.
#[derive(Clone)]
pub struct Store {
    pub agent: &'static dyn Agent,
    /// Absolute.
    pub root: Arc<Path>,
}

/// Which stores to use.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// `--store AGENT=DIR`: replaces that agent's default place; repeatable.
    pub places: Vec<(AgentKind, PathBuf)>,
    /// `--agents`: only these; empty means all.
    pub only: Vec<AgentKind>,
}

/// A session with its place in the tree.
#[derive(Clone, Debug)]
pub struct Listed {
    pub session: Arc<Session>,
    /// Directory name, unique in its project (or in `.turnfs/unplaced/`).
    pub name: String,
}

/// All sessions at one moment.
#[derive(Debug, Default)]
pub struct Listing {
    /// By project path as recorded; each project's sessions newest activity first.
    pub projects: BTreeMap<PathBuf, Vec<Listed>>,
    /// Sessions without a place in the tree, newest activity first.
    pub unplaced: Vec<Listed>,
    /// Damaged shared indexes and the like.
    pub problems: Vec<Damage>,
}

/// A session and its history as they are on disk now.
#[derive(Debug)]
pub struct View {
    pub session: Arc<Session>,
    pub history: History,
}

/// The catalog. Shared by all threads; no lock is held over the reading of another session.
pub struct Catalog {}

impl Catalog {
    pub fn new(env: &Environment, options: &StoreOptions) -> Catalog {
        todo!()
    }
    pub fn stores(&self) -> &[Store] {
        todo!()
    }
    /// All sessions, as they are on disk now; costs stats only while nothing changed.
    pub fn listing(&self) -> Result<Arc<Listing>> {
        todo!()
    }
    /// The session with its history, verified to be what is on disk now.
    ///
    /// # Errors
    /// What prevents reading; damage is a state of the view's history.
    pub fn view(&self, key: &SessionKey) -> Result<Arc<View>> {
        todo!()
    }
    /// The record bytes of a turn of this view.
    ///
    /// # Errors
    /// [`Refusal::Changed`] when the file is no longer what the view saw.
    pub fn span(&self, view: &View, turn: &Turn) -> Result<Vec<u8>> {
        todo!()
    }
    /// The sub-agent sessions of a session.
    pub fn subagents(&self, session: &Session) -> Result<Vec<Arc<Session>>> {
        todo!()
    }
    /// Forgets what is known of a session (after an own write).
    pub fn forget(&self, key: &SessionKey) {
        todo!()
    }
    /// Resolves a SESSION argument: full id, unique id prefix or suffix (8+ characters), directory name.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], or [`Refusal::CannotCut`]-like sentence when more than one fits.
    pub fn find(&self, text: &str) -> Result<(Option<PathBuf>, Listed)> {
        todo!()
    }
}
