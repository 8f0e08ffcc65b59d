//! Who else runs on this host, and where: what tells that a session is open in an agent that keeps no lock.
//!
//! All of it is read from /proc. What a process refers to (its directory, its open files) is compared by
//! path and never touched: it may lie on a dead network mount.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;

use super::mountinfo::{self, Device};
use super::{Host, Resolution, locks, within};

/// How long the file system of a project may take to say which directory that is. A busy machine needs longer
/// than one would think, and whoever does not answer counts as a writer.
const PROJECT_TIME: Duration = Duration::from_secs(1);
/// How often a command line that is still empty is read, 1 ms apart.
const LOOKS: u32 = 20;

/// A process, as it was when it was looked at.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub uid: u32,
    /// Its name: at most 15 bytes, and for itself to choose.
    pub name: OsString,
    /// Its command line, the program first.
    pub arguments: Vec<OsString>,
    /// Its working directory, resolved; only of an own process, or as root.
    pub cwd: Option<PathBuf>,
    dir: PathBuf,
    /// What its descriptors lead to, and their numbers, as of the first question.
    open: OnceLock<Vec<(PathBuf, OsString)>>,
}

/// Every process but this one and the kernel's own.
///
/// However many there are and however long it takes: "not finished looking" must never mean "nobody".
pub fn others() -> impl Iterator<Item = Process> {
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(move |pid| *pid != own).filter_map(Process::look)
}

impl Process {
    /// `None` of one that has ended.
    fn look(pid: u32) -> Option<Process> {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let command_line = command_line(&dir)?;
        let arguments =
            command_line.split(|byte| *byte == 0).map(|argument| OsStr::from_bytes(argument).to_owned());
        let arguments = arguments.collect();
        let mut name = std::fs::read(dir.join("comm")).unwrap_or_default();
        name.truncate(name.trim_ascii_end().len());
        let uid = std::fs::symlink_metadata(&dir).ok()?.uid();
        let cwd = std::fs::read_link(dir.join("cwd")).ok();
        Some(Process { pid, uid, name: OsString::from_vec(name), arguments, cwd, dir, open: OnceLock::new() })
    }

    /// Whether it has a file open for writing that is `file`, or lies below it; a resolved path.
    pub fn writes(&self, file: &Path) -> bool {
        self.open_files()
            .iter()
            .any(|(target, descriptor)| target.starts_with(file) && self.is_for_writing(descriptor))
    }

    /// Whether it has `file` (a resolved path) open at all.
    pub fn has_open(&self, file: &Path) -> bool {
        self.open_files().iter().any(|(target, _)| target == file)
    }

    /// None where /proc does not show it.
    fn open_files(&self) -> &[(PathBuf, OsString)] {
        self.open.get_or_init(|| {
            let entries = std::fs::read_dir(self.dir.join("fd")).into_iter().flatten().flatten();
            entries
                .filter_map(|entry| Some((std::fs::read_link(entry.path()).ok()?, entry.file_name())))
                .collect()
        })
    }

    fn is_for_writing(&self, descriptor: &OsStr) -> bool {
        let info = std::fs::read_to_string(self.dir.join("fdinfo").join(descriptor)).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
    }
}

/// Who runs and who holds locks, as one look at /proc found it: for whoever asks about many sessions at once. Each
/// thing is looked at when it is first asked for, and never again: as old as the first question at most.
#[derive(Default)]
pub struct Running {
    processes: OnceLock<Vec<Process>>,
    locks: OnceLock<locks::Table>,
    /// Where projects lead; `None` where no answer came in time.
    ways: Mutex<HashMap<PathBuf, Option<Resolution>>>,
    /// Mount points whose file systems did not answer in time: what lies on them is not asked for again.
    silent: Mutex<Vec<PathBuf>>,
}

impl Running {
    /// Every process but this one and the kernel's own.
    pub fn processes(&self) -> &[Process] {
        self.processes.get_or_init(|| others().collect())
    }

    /// As [`locks::Table::holder`]; `path` is asked only where a lock is held on such a file.
    pub fn lock_holder(
        &self,
        device: Device,
        inode: u64,
        path: impl FnOnce() -> PathBuf,
    ) -> Option<Option<u32>> {
        self.locks.get_or_init(locks::Table::read).holder(device, inode, path)
    }

    /// Whether `process` works in `project`, a path that may lead over symlinks; `None` if the file system of the
    /// project does not say in time where the path leads.
    pub fn works_in(&self, process: &Process, project: &Path) -> Option<bool> {
        let Some(cwd) = &process.cwd else { return Some(false) };
        if cwd == project {
            return Some(true);
        }
        match self.way(project)? {
            Resolution::Leads(place) => Some(place == *cwd),
            Resolution::Missing(_) => Some(false),
            // Only who works on that file system can work in the project.
            Resolution::Untouched(place) if cwd.starts_with(&place) => None,
            Resolution::Untouched(_) => Some(false),
        }
    }

    fn way(&self, project: &Path) -> Option<Resolution> {
        if let Some(known) = self.ways.lock().get(project) {
            return known.clone();
        }
        let mounted_at = || {
            let mounts = mountinfo::read().unwrap_or_default();
            mountinfo::containing(&mounts, project).map(|mount| mount.mount_point.clone())
        };
        let is_silent = |place: &PathBuf| self.silent.lock().contains(place);
        let way = if !self.silent.lock().is_empty() && mounted_at().is_some_and(|place| is_silent(&place)) {
            None
        } else {
            let asked = project.to_owned();
            let way = within(PROJECT_TIME, move || Host::default().way(&asked));
            if way.is_none() {
                self.silent.lock().extend(mounted_at());
            }
            way
        };
        self.ways.lock().insert(project.to_owned(), way.clone());
        way
    }
}

/// The process that has `file` open for writing, where /proc shows it (own processes, or all as root). It
/// only names somebody; whether a file is free is told by its lease.
pub fn writer_of(file: &Path) -> Option<u32> {
    let file = file.canonicalize().ok()?;
    others().find(|process| process.writes(&file)).map(|process| process.pid)
}

/// The process with this number, if it is there.
pub fn process(pid: u32) -> Option<Process> {
    Process::look(pid)
}

/// Whether this process was ended and is still there: nobody has asked for its end, or a thread of it cannot end.
pub fn is_zombie(pid: u32) -> bool {
    // 1234 (a name, with anything in it) Z 1 ...
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let end = stat.iter().rposition(|byte| *byte == b')').unwrap_or(stat.len());
    stat.get(end + 2) == Some(&b'Z')
}

/// `None` of a process of the kernel's own, or of one that has ended.
fn command_line(dir: &Path) -> Option<Vec<u8>> {
    for _ in 0..LOOKS {
        let command_line = std::fs::read(dir.join("cmdline")).ok()?;
        if !command_line.is_empty() {
            return Some(command_line);
        }
        // A program that is just being started has none for a moment; what has no program never will.
        std::fs::read_link(dir.join("exe")).ok()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(Vec::new())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::process::{Child, Command};

    /// Ends the process when the test does, however it does.
    struct Ends(Child);

    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn run(command: &mut Command) -> Ends {
        Ends(command.spawn().unwrap())
    }

    #[test]
    fn a_program_that_is_just_being_started_is_seen() {
        use std::os::unix::process::CommandExt as _;
        for _ in 0..200 {
            let child = run(Command::new("sleep").arg0("/opt/bin/client").arg("30"));
            let seen = others().find(|process| process.pid == child.0.id()).unwrap();
            assert_eq!(seen.arguments.first().unwrap(), "/opt/bin/client");
        }
    }

    #[test]
    fn a_process_that_has_ended_is_told_from_one_that_runs() {
        let mut child = Command::new("sleep").arg("30").spawn().unwrap();
        assert!(!is_zombie(child.id()));
        child.kill().unwrap();
        let start = std::time::Instant::now();
        while !is_zombie(child.id()) {
            assert!(start.elapsed().as_secs() < 10);
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(!is_zombie(child.id()));
    }

    #[test]
    fn where_a_process_works_is_told_through_links_and_of_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("real/app")).unwrap();
        std::os::unix::fs::symlink("real", base.join("link")).unwrap();
        let child = run(Command::new("sleep").arg("30").current_dir(base.join("real/app")));
        let seen = process(child.0.id()).unwrap();
        for (project, works) in
            [("real/app", true), ("link/app", true), ("real", false), ("real/app/gone", false)]
        {
            let running = Running::default();
            assert_eq!(running.works_in(&seen, &base.join(project)), Some(works), "{project}");
        }
    }

    #[test]
    fn a_writer_is_told_from_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let file = base.join("f");
        std::fs::write(&file, "x").unwrap();
        for (redirection, writes) in [("<", false), (">>", true), ("<>", true)] {
            let script = format!("exec 3{redirection} '{}'; exec sleep 30", file.display());
            let child = run(Command::new("sh").arg("-c").arg(script));
            let start = std::time::Instant::now();
            let open = || process(child.0.id()).filter(|process| process.has_open(&file));
            while open().is_none() && start.elapsed().as_secs() < 10 {
                std::thread::sleep(Duration::from_millis(5));
            }
            let seen = open().unwrap();
            assert_eq!(seen.writes(&file), writes, "{redirection}");
            assert_eq!(seen.writes(&base), writes, "{redirection}");
            assert!(!seen.writes(&base.join("other")));
        }
    }
}
