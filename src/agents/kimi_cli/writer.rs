//! Who has a session open. Facts: `docs/stores/kimi-cli.md`, "Live writer".
//!
//! The client has no lock file and no open descriptor, so this is evidence: a kimi process in the work
//! directory, or a last turn without its end in files that were written a moment ago.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};
use std::time::Duration;

use crate::host::lexically_normal;
use crate::host::processes::{Process, Running};
use crate::session::{AgentKind, History, Session, Writer};
use crate::transcript::StoreDir;

/// A last turn without its end counts as running while the files are younger than this.
const RECENT: Duration = Duration::from_secs(60);

pub(super) fn writer(session: &Session, history: &History, running: &Running) -> Option<Writer> {
    process(session, running).or_else(|| open_turn(session, history))
}

fn open_turn(session: &Session, history: &History) -> Option<Writer> {
    let last = history.open_end().last()?;
    let now = crate::session::now();
    // Who is at it writes records of this moment. Older ones in files of this moment were left last by an undo.
    let recent_record = now.as_second() - RECENT.as_secs() as i64;
    if last.last.is_some_and(|written| written.as_second() < recent_record) {
        return None;
    }
    let store = StoreDir::open(&session.key.root).ok()?;
    let recent = history.files.iter().any(|view| {
        let facts = store.as_ref().and_then(|store| store.stat(&view.file).ok()?);
        // A time in the future is no reason to think that nobody is there.
        facts.is_some_and(|facts| {
            now.duration_since(facts.modified()).unsigned_abs() < RECENT || facts.modified() > now
        })
    });
    recent.then(|| Writer {
        agent: AgentKind::KimiCli,
        pid: None,
        evidence: format!("turn {} has not ended and was written to just now", last.n),
    })
}

/// A kimi process that works in the session's directory, or holds one of its files open for writing.
fn process(session: &Session, running: &Running) -> Option<Writer> {
    let uid = rustix::process::geteuid();
    // Descriptors are known by the paths that they really have.
    let store = StoreDir::open(&session.key.root).ok()?;
    let place = store.map_or_else(|| session.key.absolute(), |store| store.real_path(&session.key.path));
    let all = running.processes().iter();
    let mut clients =
        all.filter(|process| is_kimi(&process.arguments) && (uid.is_root() || process.uid == uid.as_raw()));
    clients.find_map(|client| {
        let evidence = evidence(client, session, &place, running)?;
        Some(Writer { agent: AgentKind::KimiCli, pid: Some(client.pid), evidence })
    })
}

fn evidence(client: &Process, session: &Session, place: &Path, running: &Running) -> Option<String> {
    if let Some(project) = session.project() {
        let named = work_dir_argument(&client.arguments, client.cwd.as_deref());
        if named.is_some_and(|dir| lexically_normal(&dir) == *project) {
            return Some(format!("was started for {}", project.display()));
        }
        match running.works_in(client, project) {
            Some(true) => return Some(format!("works in {}", project.display())),
            Some(false) => {}
            None => return Some("may work there: the project's directory does not answer".into()),
        }
    }
    client.writes(place).then(|| "has its files open".into())
}

/// Whether a command line is the client: the program, or the script that an interpreter runs, is named
/// kimi or lies in its package. A file called kimi that some other program was given is not enough.
fn is_kimi(arguments: &[OsString]) -> bool {
    let Some(program) = arguments.first() else { return false };
    // Once it runs, the client names its process `Kimi Code` (workers: `kimi-code-worker` and the like), and
    // its arguments are gone.
    if is_kimi_path(program)
        || program.as_bytes() == b"Kimi Code"
        || program.as_bytes().starts_with(b"kimi-code")
    {
        return true;
    }
    let base = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    let interpreter =
        ["python", "pypy", "uv", "uvx", "pipx", "sh", "bash", "dash", "zsh"].iter().any(|name| {
            base.strip_prefix(name).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
        });
    if !interpreter {
        return false;
    }
    // The script is the first argument that is no option, or what follows -m; -c programs name the package.
    let mut rest = arguments[1..].iter();
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("-m") => return rest.next().is_some_and(|module| is_kimi_module(module)),
            Some("-c") => {
                return rest.next().is_some_and(|code| code.to_string_lossy().contains("kimi_cli"));
            }
            // Options of Python that take a value.
            Some("-W" | "-X") => {
                rest.next();
            }
            Some("run" | "tool") => {}
            Some(option) if option.starts_with('-') => {}
            _ => return is_kimi_path(argument),
        }
    }
    false
}

fn is_kimi_module(module: &OsStr) -> bool {
    module.to_str().is_some_and(|module| module == "kimi_cli" || module.starts_with("kimi_cli."))
}

fn is_kimi_path(argument: &OsStr) -> bool {
    let path = Path::new(argument);
    let named = |name: &OsStr| matches!(name.to_str(), Some("kimi" | "kimi-cli" | "kimi_cli"));
    let package = |component: Component<'_>| match component {
        Component::Normal(name) => matches!(name.to_str(), Some("kimi_cli" | "kimi-cli")),
        _ => false,
    };
    path.file_name().is_some_and(named) || path.components().any(package)
}

/// `--work-dir DIR`, `--work-dir=DIR`, `-w DIR`; a relative one against the process's directory.
fn work_dir_argument(arguments: &[OsString], cwd: Option<&Path>) -> Option<std::path::PathBuf> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let value = match argument.as_bytes() {
            b"--work-dir" | b"-w" => rest.next().map(OsString::as_os_str),
            other => other.strip_prefix(b"--work-dir=").map(OsStr::from_bytes),
        };
        if let Some(value) = value {
            return Some(cwd.unwrap_or(Path::new("/")).join(value));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_client_is_known_by_the_title_that_it_gives_itself() {
        assert!(is_kimi(&["Kimi Code", "", "", ""].map(OsString::from)));
    }

    fn kimi(line: &str) -> bool {
        is_kimi(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_client_is_told_from_programs_that_were_given_a_file_called_kimi() {
        for line in [
            "kimi",
            "kimi-code-worker",
            "/home/ana/.local/bin/kimi --work-dir /x",
            "/usr/bin/python3.13 /home/ana/.local/bin/kimi --continue",
            "python -m kimi_cli",
            "python3 -X utf8 -m kimi_cli.__main__ --print",
            "python -u -c import\u{a0}kimi_cli.__main__",
            "/home/ana/.local/share/uv/tools/kimi-cli/bin/python /home/ana/.local/bin/kimi",
            "uv tool run kimi-cli",
        ] {
            assert!(kimi(line), "{line}");
        }
        for line in [
            "vim kimi",
            "vim /home/ana/kimi/notes.md",
            "python3 train.py --data kimi",
            "less /home/ana/.kimi/sessions/x/wire.jsonl",
            "/usr/bin/kimono",
            "git clone https://example.org/kimi-cli",
            "",
        ] {
            assert!(!kimi(line), "{line}");
        }
    }

    #[test]
    fn a_work_dir_argument_counts_like_the_directory() {
        let arguments = ["kimi", "--work-dir", "../app/."].map(OsString::from);
        let dir = work_dir_argument(&arguments, Some(Path::new("/home/ana/work")));
        assert!(dir.is_some_and(|dir| lexically_normal(&dir) == Path::new("/home/ana/app")));
        let arguments = ["kimi", "--work-dir=/home/ana/app"].map(OsString::from);
        assert!(
            work_dir_argument(&arguments, None)
                .is_some_and(|dir| lexically_normal(&dir) == Path::new("/home/ana/app"))
        );
    }
}
