//! The tree as plain values: names, nodes, inodes, handles, control files.
//!
//! No fuser type; testable without a mount. Asks the catalog for what is true now and `cut` for changes;
//! called by `fuse`, which only translates.

use std::path::PathBuf;
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::cut::StateDir;

/// What a mount shows, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only this project's sessions, at the root of the mount; `None`: all projects.
    pub project: Option<PathBuf>,
    /// Nothing in any store can be changed through this mount.
    pub read_only: bool,
    /// List `prompts/`, `records/`, `raw/` and `context.md` too.
    pub show_all: bool,
    /// Where the mount is; nothing below it is ever looked at through the host.
    pub mountpoint: PathBuf,
}

/// The file system. Shared by all threads.
pub struct Fs {
    catalog: Arc<Catalog>,
    state: StateDir,
    options: Options,
}

impl Fs {
    pub fn new(catalog: Arc<Catalog>, state: StateDir, options: Options) -> Fs {
        Fs { catalog, state, options }
    }
}
