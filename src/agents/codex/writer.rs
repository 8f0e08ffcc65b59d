//! Who has a thread loaded, told without disturbing anybody.
//!
//! A client holds a flock on the thread's lock file for as long as it has the thread loaded; the background
//! daemon that a TUI leaves behind does so for about a minute more.

use std::path::Path;

use super::layout::thread_lock;
use crate::host::processes::Running;
use crate::session::{AgentKind, Writer};
use crate::transcript::StoreDir;

/// The process that has the thread loaded.
pub fn writer(root: &Path, thread: &str, running: &Running) -> Option<Writer> {
    let store = StoreDir::open(root).ok()??;
    let file = thread_lock(thread);
    let (device, inode) = store.stat(&file).ok()??.identity();
    let pid = running.lock_holder(device, inode, || store.real_path(&file))?;
    let evidence = "has this thread loaded; an idle daemon lets go about a minute after its last client";
    Some(Writer { agent: AgentKind::Codex, pid, evidence: evidence.into() })
}
