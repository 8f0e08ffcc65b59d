//! Who has a session open. Facts: `docs/stores/claude-code.md`, "5. Writers".
//!
//! The client holds no lock and keeps no file open. Each running one notes in `sessions/<pid>.json` which session it
//! has; the note of one that was killed stays, so the start time of the process decides.

use std::ffi::OsStr;
use std::path::Path;

use serde::Deserialize;

use super::records::{Raw, text};
use crate::host::processes::{Process, Running};
use crate::session::{AgentKind, Session, Writer};
use crate::transcript::{StoreDir, read_small};

const SESSIONS: &str = "sessions";
/// Longest note that is read, bytes. Real ones have less than one kilobyte.
const LONGEST: u64 = 64 * 1024;

/// A client that has a session open.
pub(super) struct Live {
    pub writer: Writer,
    /// It says that it is at work now; who is asked for one answer only says nothing.
    pub busy: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Note<'a> {
    pid: Option<u32>,
    #[serde(borrow)]
    session_id: Raw<'a>,
    #[serde(borrow)]
    proc_start: Raw<'a>,
    #[serde(borrow)]
    status: Raw<'a>,
}

pub(super) fn live(session: &Session, running: &Running) -> Option<Live> {
    let store = StoreDir::open(&session.key.root).ok()??;
    let mut noted = Vec::new();
    if let Ok(Some(dir)) = store.dir(Path::new(SESSIONS)) {
        for entry in dir.entries().unwrap_or_default() {
            let name = Path::new(&entry.name);
            if name.extension() != Some(OsStr::new("json")) {
                continue;
            }
            // What is no note says nothing of anybody.
            let Ok(Some(bytes)) = read_small(&dir, name, LONGEST) else { continue };
            let Ok(note) = serde_json::from_slice::<Note<'_>>(&bytes) else { continue };
            let Some(pid) = note.pid.filter(|pid| is_running(*pid, note.proc_start)) else { continue };
            if text(note.session_id).is_some_and(|id| *id == session.id) {
                let evidence = format!("says in {SESSIONS}/{} that it has this session", name.display());
                let writer = Writer { agent: AgentKind::ClaudeCode, pid: Some(pid), evidence };
                return Some(Live { writer, busy: text(note.status).is_some_and(|status| status == "busy") });
            }
            noted.push(pid);
        }
    }
    let writer = without_note(session, running, &noted)?;
    Some(Live { writer, busy: false })
}

/// A client of a version that leaves no notes, at work in the session's project.
fn without_note(session: &Session, running: &Running, noted: &[u32]) -> Option<Writer> {
    let project = session.project()?;
    let uid = rustix::process::geteuid().as_raw();
    let all = running.processes().iter();
    let mut clients = all
        .filter(|process| process.uid == uid && !noted.contains(&process.pid) && is_claude(process))
        .filter(|process| running.works_in(process, project) == Some(true));
    clients.next().map(|client| Writer {
        agent: AgentKind::ClaudeCode,
        pid: Some(client.pid),
        evidence: format!("works in {}", project.display()),
    })
}

fn is_claude(process: &Process) -> bool {
    let named = |text: &OsStr| Path::new(text).file_name() == Some(OsStr::new("claude"));
    named(&process.name) || process.arguments.first().is_some_and(|program| named(program))
}

/// Whether the process that noted its start time is still there. (Another one may have its number by now.)
fn is_running(pid: u32, noted: Raw<'_>) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let noted = noted.map(|noted| noted.get().trim_matches('"'));
    let Some(noted) = noted else { return true };
    // The name in parentheses may hold anything; behind it, the start time is the 20th field.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    fields.split_ascii_whitespace().nth(19) == Some(noted)
}
