//! Who has a session open. Facts: `docs/stores/openmax.md`, "4. Locks".
//!
//! Newer clients hold `<id>.lock`; that lock is never tried here, since even a shared one for an instant
//! makes a client that starts fail. /proc/locks tells who has it. Older clients hold nothing: a process of
//! that name that works in the project is the only sign of them.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::layout::Files;
use crate::agents::lock_holder;
use crate::host::processes::{Process, Running};
use crate::session::{AgentKind, Session, Writer};

pub(super) fn writer(session: &Session, running: &Running) -> Option<Writer> {
    let lock = Files::of(&session.key).lock;
    lock_holder(AgentKind::OpenMax, &session.key.root, &lock, running, "has it open and holds its lock")
        .or_else(|| process(session, running))
}

/// An openmax process that works in the session's project.
fn process(session: &Session, running: &Running) -> Option<Writer> {
    let project = session.project()?;
    let uid = rustix::process::geteuid().as_raw();
    let all = running.processes().iter();
    let mut clients = all.filter(|process| process.uid == uid && is_openmax(process));
    clients.find_map(|client| {
        let evidence = match running.works_in(client, project) {
            Some(true) => format!("works in {}", project.display()),
            Some(false) => return None,
            None => "may work there: the project's directory does not answer".into(),
        };
        Some(Writer { agent: AgentKind::OpenMax, pid: Some(client.pid), evidence })
    })
}

fn is_openmax(process: &Process) -> bool {
    let named = |text: &OsString| Path::new(text).file_name() == Some(OsStr::new("openmax"));
    named(&process.name) || process.arguments.first().is_some_and(named)
}
