//! Who has a thread loaded, told without disturbing anybody.
//!
//! A client holds a flock on the thread's lock file for as long as it has the thread loaded; the background
//! daemon that a TUI leaves behind does so for about a minute more.

use std::path::Path;

use super::layout::thread_lock;
use crate::host::locks;
use crate::session::{AgentKind, Writer};
use crate::transcript::StoreDir;

/// The process that has the thread loaded.
pub fn writer(root: &Path, thread: &str) -> Option<Writer> {
    let store = StoreDir::open(root).ok()??;
    let file = thread_lock(thread);
    let (device, inode) = store.stat(&file).ok()??.identity();
    let path = root.canonicalize().unwrap_or_else(|_| root.to_owned()).join(&file);
    let pid = locks::holder(&path, device, inode)?;
    let evidence = "has this thread loaded; an idle daemon lets go about a minute after its last client";
    Some(Writer { agent: AgentKind::Codex, pid, evidence: evidence.into() })
}
