//! Who has a thread loaded, told without disturbing anybody.
//!
//! A client holds a flock on the thread's lock file for as long as it has the thread loaded; the background
//! daemon that a TUI leaves behind does so for about a minute more.

use std::path::Path;

use super::layout::thread_lock;
use crate::agents::lock_holder;
use crate::host::processes::Running;
use crate::session::{AgentKind, Writer};

/// The process that has the thread loaded.
pub fn writer(root: &Path, thread: &str, running: &Running) -> Option<Writer> {
    let evidence = "has this thread loaded; an idle daemon lets go about a minute after its last client";
    lock_holder(AgentKind::Codex, root, &thread_lock(thread), running, evidence)
}
