//! Who has a session open. Facts: `docs/stores/kimi-code.md`, "1. Layout", "Live writer".
//!
//! The client holds no lock and no open descriptor, so this is evidence: a server of this store that runs, a client that
//! works in the project, or a last turn without its end that was written to a moment ago. A client that has the session
//! loaded does not see an undo: it would send the old history and write behind the new branch.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};
use std::time::Duration;

use serde::Deserialize;

use crate::host::processes::{Process, Running};
use crate::session::{AgentKind, History, Session, Writer};
use crate::transcript::{StoreDir, read_small};

/// Where servers tell that they run, relative to the root.
const INSTANCES: &str = "server/instances";
/// A server writes there every 15 s. One that was stopped for longer may still go on; older files are another
/// process's that got the number.
const FRESH: Duration = Duration::from_secs(90);
/// Longest file there, bytes.
const LONGEST: u64 = 64 << 10;
/// A last turn without its end counts as running while its records are younger than this.
const RECENT: Duration = Duration::from_secs(60);

pub(super) fn writer(session: &Session, history: &History, running: &Running) -> Option<Writer> {
    server(session, running).or_else(|| process(session, running)).or_else(|| open_turn(history))
}

/// A server of the store that runs now. Which sessions it has loaded is not on disk.
fn server(session: &Session, running: &Running) -> Option<Writer> {
    #[derive(Deserialize)]
    struct Instance {
        pid: u32,
        /// Milliseconds since 1970.
        heartbeat_at: f64,
    }
    let store = StoreDir::open(&session.key.root).ok()??;
    let dir = store.dir(Path::new(INSTANCES)).ok()??;
    let files = dir.entries().ok()?.into_iter().filter(|entry| entry.name.as_bytes().ends_with(b".json"));
    let now = crate::session::now().as_millisecond() as f64;
    let mut instances = files.filter_map(|entry| {
        let bytes = read_small(&dir, Path::new(&entry.name), LONGEST).ok()??;
        serde_json::from_slice::<Instance>(&bytes).ok()
    });
    instances.find_map(|instance| {
        let process = running.processes().iter().find(|process| process.pid == instance.pid)?;
        let is_fresh = now - instance.heartbeat_at < FRESH.as_millis() as f64;
        let evidence = "is a server that runs, and may have any session loaded".to_owned();
        (is_fresh || is_kimi(process)).then_some(Writer {
            agent: AgentKind::KimiCode,
            pid: Some(instance.pid),
            evidence,
        })
    })
}

/// A client that works in the session's project.
fn process(session: &Session, running: &Running) -> Option<Writer> {
    let project = session.project()?;
    let uid = rustix::process::geteuid();
    let all = running.processes().iter();
    let mut clients =
        all.filter(|process| is_kimi(process) && (uid.is_root() || process.uid == uid.as_raw()));
    clients.find_map(|client| {
        let evidence = match running.works_in(client, project) {
            Some(true) => format!("works in {}", project.display()),
            Some(false) => return None,
            None => "may work there: the project's directory does not answer".into(),
        };
        Some(Writer { agent: AgentKind::KimiCode, pid: Some(client.pid), evidence })
    })
}

fn open_turn(history: &History) -> Option<Writer> {
    let last = history.open_end().last()?;
    let age = crate::session::now().as_second() - last.last?.as_second();
    (age < RECENT.as_secs() as i64).then(|| Writer {
        agent: AgentKind::KimiCode,
        pid: None,
        evidence: format!("turn {} has not ended and was written to just now", last.n),
    })
}

/// Whether a process is the client: it calls itself kimi-code once it runs; before that it is the script that an
/// interpreter runs.
fn is_kimi(process: &Process) -> bool {
    process.name.as_bytes() == b"kimi-code" || is_command(&process.arguments)
}

fn is_command(arguments: &[OsString]) -> bool {
    let Some(program) = arguments.first() else { return false };
    let name = |path: &OsString| Path::new(path).file_name().map(|name| name.as_bytes().to_vec());
    match name(program).as_deref() {
        Some(b"kimi-code" | b"kimi") => true,
        Some(b"node" | b"bun") => {
            let script = arguments[1..].iter().find(|argument| !argument.as_bytes().starts_with(b"-"));
            script.is_some_and(|script| {
                let package =
                    |part: Component<'_>| matches!(part, Component::Normal(name) if name == "kimi-code");
                matches!(name(script).as_deref(), Some(b"kimi" | b"kimi-code"))
                    || Path::new(script).components().any(package)
            })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_told_from_programs_that_were_given_a_file_called_kimi() {
        let command = |line: &str| is_command(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in [
            "kimi-code",
            "/home/ana/.local/bin/kimi --continue",
            "node /usr/lib/node_modules/@moonshot-ai/kimi-code/dist/main.mjs",
            "/usr/bin/node --enable-source-maps /usr/bin/kimi -p x",
        ] {
            assert!(command(line), "{line}");
        }
        for line in ["vim kimi", "node server.js kimi", "python /usr/bin/kimi", "kimono", ""] {
            assert!(!command(line), "{line}");
        }
    }
}
