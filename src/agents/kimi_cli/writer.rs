//! Who has a session open. Facts: `docs/stores/kimi-cli.md`, "Live writer".
//!
//! The client has no lock file and no open descriptor, so this is evidence: a kimi process in the work
//! directory, or a last turn without its end in files that were written a moment ago. The project itself
//! is hardly touched (it may be on a dead network mount): only who is a client is asked where it works.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};
use std::time::{Duration, SystemTime};

use crate::host::{self, Host, Way};
use crate::session::{AgentKind, History, Session, Writer};

/// How long the file system of a project may take to say which directory that is. A busy machine needs longer
/// than one would think, and whoever does not answer counts as a writer.
const PROJECT_TIME: Duration = Duration::from_secs(1);
/// A last turn without its end counts as running while the files are younger than this.
const RECENT: Duration = Duration::from_secs(60);

pub(super) fn writer(session: &Session, history: &History) -> Option<Writer> {
    process(session).or_else(|| open_turn(session, history))
}

fn open_turn(session: &Session, history: &History) -> Option<Writer> {
    let last = history.open_end().last()?;
    let now = SystemTime::now();
    // Who is at it writes records of this moment. Older ones in files of this moment were left last by an undo.
    let recent_record = jiff::Timestamp::now().as_second() - RECENT.as_secs() as i64;
    if last.last.is_some_and(|written| written.as_second() < recent_record) {
        return None;
    }
    let recent = history.files.iter().any(|view| {
        let facts = std::fs::symlink_metadata(session.key.root.join(&view.file));
        let changed = facts.and_then(|facts| facts.modified());
        // A time in the future is no reason to think that nobody is there.
        changed
            .is_ok_and(|changed| now.duration_since(changed).is_ok_and(|age| age < RECENT) || changed > now)
    });
    recent.then(|| Writer {
        agent: AgentKind::KimiCli,
        pid: None,
        evidence: format!("turn {} has not ended and was written to just now", last.n),
    })
}

/// A kimi process that works in the session's directory, or holds one of its files open for writing.
///
/// All processes are looked at, however long that takes: "not finished looking" must never mean "nobody".
fn process(session: &Session) -> Option<Writer> {
    let own = rustix::process::getpid().as_raw_nonzero().get() as u32;
    let uid = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == own {
            continue;
        }
        let proc = entry.path();
        let Ok(command_line) = std::fs::read(proc.join("cmdline")) else { continue };
        let arguments: Vec<&OsStr> = command_line.split(|byte| *byte == 0).map(OsStr::from_bytes).collect();
        if !is_kimi(&arguments) {
            continue;
        }
        use std::os::unix::fs::MetadataExt as _;
        if uid != 0 && !entry.metadata().is_ok_and(|facts| facts.uid() == uid) {
            continue;
        }
        let writer = |evidence: String| Some(Writer { agent: AgentKind::KimiCli, pid: Some(pid), evidence });
        let cwd = std::fs::read_link(proc.join("cwd")).ok();
        if let Some(project) = session.project() {
            if cwd.as_deref() == Some(project) {
                return writer(format!("works in {}", project.display()));
            }
            if work_dir_argument(&arguments, cwd.as_deref()).is_some_and(|dir| same(&dir, project)) {
                return writer(format!("was started for {}", project.display()));
            }
            // A recorded path may lead over symlinks; what /proc shows is resolved. Only asked where there
            // is a client at all, for a project may be on a dead network mount.
            match cwd.as_deref().map_or(Some(false), |cwd| is_in(cwd, project)) {
                Some(true) => return writer(format!("works in {}", project.display())),
                Some(false) => {}
                None => return writer("may work there: the project's directory does not answer".into()),
            }
        }
        if holds_open(&proc, &session.key.absolute()) {
            return writer("has its files open".into());
        }
    }
    None
}

/// Whether a process's directory (resolved, as /proc shows it) is where the project's path leads: asked on a
/// thread of its own, and `None` if that does not answer in time.
fn is_in(cwd: &Path, project: &Path) -> Option<bool> {
    let asked = project.to_owned();
    let way = host::within(PROJECT_TIME, move || Host::default().way(&asked))?;
    match way {
        Way::Leads(place) => Some(place == cwd),
        Way::Missing(_) => Some(false),
        // Only who works on that file system can work in the project.
        Way::Untouched(place) => {
            if cwd.starts_with(place) {
                None
            } else {
                Some(false)
            }
        }
    }
}

/// Whether a command line is the client: the program, or the script that an interpreter runs, is named
/// kimi or lies in its package. A file called kimi that some other program was given is not enough.
fn is_kimi(arguments: &[&OsStr]) -> bool {
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
fn work_dir_argument(arguments: &[&OsStr], cwd: Option<&Path>) -> Option<std::path::PathBuf> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let value = match argument.as_bytes() {
            b"--work-dir" | b"-w" => rest.next().copied(),
            other => other.strip_prefix(b"--work-dir=").map(OsStr::from_bytes),
        };
        if let Some(value) = value {
            return Some(cwd.unwrap_or(Path::new("/")).join(value));
        }
    }
    None
}

/// Equal by components, with `.` and `..` taken out by their letters; nothing is resolved on disk.
fn same(given: &Path, project: &Path) -> bool {
    let mut plain = std::path::PathBuf::new();
    for component in given.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain == project
}

/// Whether a process has something of the session open for writing, by /proc alone.
fn holds_open(proc: &Path, session: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(proc.join("fd")) else { return false };
    entries.flatten().take(256).any(|entry| {
        let ours = std::fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(session));
        ours && {
            let info =
                std::fs::read_to_string(proc.join("fdinfo").join(entry.file_name())).unwrap_or_default();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
            let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
            flags.is_some_and(|flags| flags & (libc::O_ACCMODE as u32) != libc::O_RDONLY as u32)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_client_is_known_by_the_title_that_it_gives_itself() {
        let title: Vec<&OsStr> = b"Kimi Code\0\0\0".split(|byte| *byte == 0).map(OsStr::from_bytes).collect();
        assert!(is_kimi(&title));
    }

    fn kimi(line: &str) -> bool {
        is_kimi(&line.split(' ').map(OsStr::new).collect::<Vec<_>>())
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
        let arguments: Vec<&OsStr> = ["kimi", "--work-dir", "../app/."].map(OsStr::new).to_vec();
        let dir = work_dir_argument(&arguments, Some(Path::new("/home/ana/work")));
        assert!(dir.is_some_and(|dir| same(&dir, Path::new("/home/ana/app"))));
        let arguments: Vec<&OsStr> = ["kimi", "--work-dir=/home/ana/app"].map(OsStr::new).to_vec();
        assert!(
            work_dir_argument(&arguments, None).is_some_and(|dir| same(&dir, Path::new("/home/ana/app")))
        );
    }
}
