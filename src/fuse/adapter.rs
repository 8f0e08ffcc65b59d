//! fuser's requests to calls of `fs`, and their results to replies.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use fuser::Filesystem;

use crate::fs::Fs;

/// What fuser calls.
pub(super) struct Adapter {
    fs: Arc<Fs>,
    /// Dropped with the adapter: tells that the session has ended.
    _alive: Sender<()>,
}

impl Adapter {
    pub fn new(fs: Arc<Fs>, alive: Sender<()>) -> Adapter {
        Adapter { fs, _alive: alive }
    }
}

impl Filesystem for Adapter {}
