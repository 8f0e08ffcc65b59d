//! The fixture of all tests that run the binary: a copy of a sample's store in a temporary directory with
//! its own HOME and state directory, and real mounts that are gone when the test is over.
//!
//! Nothing here touches the caller's own sessions: the environment of every command is cleared first.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

pub mod racy;
pub mod skipped;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;

/// Longest time that any single command of a test may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// Longest time from starting a daemon to its mount's first answer, and from asking it to stop to its end.
const DAEMON_LIMIT: Duration = Duration::from_secs(60);

/// The agents of which there are samples, each with the place of its store below HOME.
pub const AGENTS: [(&str, &str); 5] = [
    ("kimi-cli", ".kimi"),
    ("kimi-code", ".kimi-code"),
    ("codex", ".codex"),
    ("openmax", ".openmax"),
    ("claude-code", ".claude"),
];

/// A store of a test's own, of Kimi CLI where nothing else is said, with HOME and state directory.
pub struct TestStore {
    /// The directory of everything below.
    pub dir: tempfile::TempDir,
    /// HOME of all commands.
    pub home: PathBuf,
    /// XDG_STATE_HOME of all commands.
    pub state: PathBuf,
    /// The store's root, such as `~/.kimi`.
    pub root: PathBuf,
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// The standard output of a command that must have succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stdout
    }

    /// The standard error of a command that must have been refused or failed with exit code 1.
    #[track_caller]
    pub fn refused(self) -> String {
        assert_eq!(self.code, 1, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stderr
    }

    /// The standard output as JSON, of a command that must have succeeded.
    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// The directory of the samples of Kimi CLI.
pub fn samples() -> PathBuf {
    samples_of("kimi-cli")
}

/// The directory of an agent's samples.
pub fn samples_of(agent: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(agent)
}

/// The names of all samples of Kimi CLI, sorted.
pub fn sample_names() -> Vec<String> {
    names_of("kimi-cli")
}

/// The names of an agent's samples, sorted.
pub fn names_of(agent: &str) -> Vec<String> {
    let samples = samples_of(agent);
    let entries = fs::read_dir(&samples).unwrap().map(Result::unwrap);
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("expected.json").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(!names.is_empty(), "no samples in {}", samples.display());
    names
}

/// The expected.json of a sample of Kimi CLI.
pub fn expected(sample: &str) -> serde_json::Value {
    expected_of("kimi-cli", sample)
}

/// The expected.json of an agent's sample.
pub fn expected_of(agent: &str, sample: &str) -> serde_json::Value {
    let path = samples_of(agent).join(sample).join("expected.json");
    serde_json::from_slice(&fs::read(&path).unwrap()).unwrap()
}

impl TestStore {
    /// A HOME without any store.
    pub fn empty() -> TestStore {
        TestStore::empty_of("kimi-cli")
    }

    /// A HOME without any store; `root` is where the agent would make it.
    pub fn empty_of(agent: &str) -> TestStore {
        let dir = tempfile::tempdir().unwrap();
        // Mount points are reported at their resolved path.
        let base = dir.path().canonicalize().unwrap();
        let (home, state) = (base.join("home"), base.join("state"));
        fs::create_dir(&home).unwrap();
        fs::create_dir(&state).unwrap();
        let (_, place) = AGENTS.iter().find(|(name, _)| *name == agent).unwrap();
        let root = home.join(place);
        TestStore { dir, home, state, root }
    }

    /// A copy of the store of an agent's sample. Codex's thread index names the files at their new place.
    pub fn of(agent: &str, sample: &str) -> TestStore {
        let store = TestStore::empty_of(agent);
        copy_tree(&samples_of(agent).join(sample).join("store"), &store.root);
        if let Some(index) = store.thread_index() {
            let home = store.root.to_str().unwrap();
            let place = "max(instr(rollout_path, '/sessions/'), instr(rollout_path, '/archived_sessions/'))";
            let sql = format!("UPDATE threads SET rollout_path = ?1 || substr(rollout_path, {place})");
            index.execute(&sql, [home]).unwrap();
        }
        store
    }

    /// Codex's thread index, where the store has one.
    pub fn thread_index(&self) -> Option<rusqlite::Connection> {
        let path = self.root.join("state_5.sqlite");
        path.exists().then(|| rusqlite::Connection::open(path).unwrap())
    }

    /// A copy of one sample's store.
    pub fn from_sample(name: &str) -> TestStore {
        TestStore::from_samples(&[name])
    }

    /// The sessions and work dirs of several samples in one store. Samples of one work dir merge; where
    /// two have the same session, the later one counts.
    pub fn from_samples(names: &[impl AsRef<str>]) -> TestStore {
        let store = TestStore::empty();
        let mut work_dirs: Vec<serde_json::Value> = Vec::new();
        for name in names {
            let from = samples().join(name.as_ref()).join("store");
            copy_tree(&from, &store.root);
            let index: serde_json::Value =
                serde_json::from_slice(&fs::read(from.join("kimi.json")).unwrap()).unwrap();
            for work_dir in index["work_dirs"].as_array().unwrap() {
                work_dirs.retain(|known| known["path"] != work_dir["path"]);
                work_dirs.push(work_dir.clone());
            }
        }
        let index = serde_json::json!({ "work_dirs": work_dirs });
        fs::write(store.root.join("kimi.json"), serde_json::to_vec_pretty(&index).unwrap()).unwrap();
        store
    }

    /// Moves the sessions of the store's only project to another project path, as if they had been made
    /// there.
    pub fn move_project(&self, to: &Path) {
        use md5::Digest as _;
        let path = self.root.join("kimi.json");
        let mut index: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let folder = |project: &str| {
            let digest = md5::Md5::digest(project.as_bytes());
            let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            self.root.join("sessions").join(name)
        };
        let from = index["work_dirs"][0]["path"].as_str().unwrap().to_owned();
        let to = to.to_str().unwrap();
        fs::rename(folder(&from), folder(to)).unwrap();
        index["work_dirs"][0]["path"] = to.into();
        fs::write(&path, serde_json::to_vec_pretty(&index).unwrap()).unwrap();
    }

    /// The binary with this store's environment and nothing else of the caller's.
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_turnfs"));
        command.args(args);
        command
    }

    /// A shell command with this store's environment, the binary first in PATH.
    pub fn shell(&self, shell: &str, script: &str) -> Command {
        let mut command = self.program(shell);
        command.arg("-c").arg(script);
        command
    }

    /// Any program with this store's environment, the binary first in PATH.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        let bin = Path::new(env!("CARGO_BIN_EXE_turnfs")).parent().unwrap();
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", bin.display());
        command
            .env_clear()
            .env("HOME", &self.home)
            .env("XDG_STATE_HOME", &self.state)
            .env("PATH", path)
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .current_dir(&self.home)
            .stdin(Stdio::null());
        command
    }

    /// Runs the binary to its end.
    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        run(self.command(args))
    }

    /// Runs a shell script to its end.
    pub fn sh(&self, script: &str) -> Ran {
        run(self.shell("sh", script))
    }

    /// Mounts all projects at a new directory. `args` are more options of `turnfs mount`.
    pub fn mount<S: AsRef<OsStr>>(&self, args: &[S]) -> Mount {
        let path = self.dir.path().canonicalize().unwrap().join(format!("mnt{}", self.mounts()));
        self.mount_at(&path, args)
    }

    /// As [`TestStore::mount`], by a daemon that believes stamps soon: for tests that call [`racy::settle`].
    pub fn mount_with_short_window<S: AsRef<OsStr>>(&self, args: &[S]) -> Mount {
        let path = self.dir.path().canonicalize().unwrap().join(format!("mnt{}", self.mounts()));
        let mut command = self.mount_command(&path, args);
        racy::shorten(&mut command);
        Mount::start(command, &path)
    }

    /// Mounts at `path`, which is made by the daemon where it does not exist.
    pub fn mount_at<S: AsRef<OsStr>>(&self, path: &Path, args: &[S]) -> Mount {
        Mount::start(self.mount_command(path, args), path)
    }

    fn mount_command<S: AsRef<OsStr>>(&self, path: &Path, args: &[S]) -> Command {
        let mut command = self.command(&["mount", "-f"]);
        command.args(args).arg(path).stderr(Stdio::piped()).stdout(Stdio::null());
        command
    }

    fn mounts(&self) -> usize {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        entries.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("mnt")).count()
    }

    /// Every file of the store with its bytes and mode; two equal ones mean an untouched store.
    pub fn snapshot(&self) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
        let mut files = BTreeMap::new();
        snapshot_into(&self.root, &self.root, &mut files);
        files
    }
}

/// Runs a command to its end, within the time limit.
pub fn run(mut command: Command) -> Ran {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let shown = format!("{command:?}");
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{shown}: {error}"));
    let stdout = read_all(child.stdout.take().unwrap());
    let stderr = read_all(child.stderr.take().unwrap());
    let Some(status) = wait(&mut child, COMMAND_LIMIT) else {
        let _ = child.kill();
        panic!("{shown}: not done within {COMMAND_LIMIT:?}");
    };
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    // As a shell reports it: a signal's number plus 128.
    let code = status
        .code()
        .unwrap_or_else(|| 128 + std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(127));
    Ran { code, stdout, stderr }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for a child's end; `None` when it takes longer than `limit`.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if start.elapsed() > limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A mount by a daemon in the foreground that is this test's own child. Gone when dropped.
pub struct Mount {
    pub path: PathBuf,
    daemon: Child,
    log: Option<std::thread::JoinHandle<String>>,
}

impl Mount {
    /// Starts `command`, which must mount at `path`, and waits for the mount's first answer.
    pub fn start(mut command: Command, path: &Path) -> Mount {
        let mut daemon = command.spawn().unwrap();
        let log = daemon.stderr.take().map(read_all);
        let mut mount = Mount { path: path.to_owned(), daemon, log };
        let start = Instant::now();
        // By its device: where a dead mount is cleared first, the bare directory answers for a moment.
        let outside = path.parent().unwrap().metadata().unwrap().dev();
        let answers = || fs::metadata(path).is_ok_and(|facts| facts.dev() != outside);
        while !(is_mounted(path) && answers()) {
            if let Some(status) = mount.daemon.try_wait().unwrap() {
                panic!("the daemon ended with {status}: {}", mount.take_log());
            }
            if start.elapsed() > DAEMON_LIMIT {
                panic!("no mount at {} within {DAEMON_LIMIT:?}", path.display());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        mount
    }

    /// The daemon's process id.
    pub fn pid(&self) -> u32 {
        self.daemon.id()
    }

    /// The directory of the only session in the mount, or of the session with this id.
    #[track_caller]
    pub fn session(&self, store: &TestStore, id: Option<&str>) -> PathBuf {
        let sessions = store.run(&["ls", "--all", "--json"]).json();
        let mut fitting = sessions
            .as_array()
            .unwrap()
            .iter()
            .filter(|session| id.is_none_or(|id| session["id"] == id))
            .map(|session| self.path.join(session["path"].as_str().unwrap()));
        let first = fitting.next().unwrap_or_else(|| panic!("no session {id:?} in {sessions}"));
        assert!(id.is_some() || fitting.next().is_none(), "more than one session in {sessions}");
        first
    }

    /// Asks the daemon to end and waits for it; its exit status and its log.
    pub fn stop(mut self) -> (ExitStatus, String) {
        signal(self.daemon.id(), Signal::TERM);
        let status = wait(&mut self.daemon, DAEMON_LIMIT).expect("the daemon ends when asked to");
        assert!(!is_mounted(&self.path), "{} is still mounted", self.path.display());
        (status, self.take_log())
    }

    /// Kills the daemon so that a dead mount is left ("Transport endpoint is not connected").
    pub fn kill(mut self) -> PathBuf {
        let _ = self.daemon.kill();
        let path = self.path.clone();
        let ended = wait(&mut self.daemon, Duration::from_secs(10)).is_some();
        std::mem::forget(self);
        assert!(ended, "the daemon of {} does not end", path.display());
        path
    }

    /// Kills the daemon, and does not wait for its end: a thread of it may wait for a reader that waits for it.
    pub fn kill_and_leave(mut self) -> Child {
        let _ = self.daemon.kill();
        let mut this = std::mem::ManuallyDrop::new(self);
        std::mem::replace(&mut this.daemon, Command::new("true").spawn().unwrap())
    }

    fn take_log(&mut self) -> String {
        self.log.take().map(|log| log.join().unwrap()).unwrap_or_default()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.daemon.try_wait().ok().flatten().is_none() {
            signal(self.daemon.id(), Signal::TERM);
            if wait(&mut self.daemon, DAEMON_LIMIT).is_none() {
                let _ = self.daemon.kill();
                let _ = self.daemon.wait();
            }
        }
        detach(&self.path);
        if std::thread::panicking() {
            let log = self.take_log();
            eprintln!("log of the mount at {}:\n{log}", self.path.display());
        }
    }
}

/// Takes a mount away by force, if it is there: the last resort.
pub fn detach(path: &Path) {
    while is_mounted(path) {
        let lazily = |program: &str, flag: &str| {
            let mut command = Command::new(program);
            command.arg(flag).arg(path).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        if !lazily("umount", "-l") && !lazily("fusermount3", "-uz") {
            eprintln!("could not take away the mount at {}", path.display());
            return;
        }
    }
}

/// Whether something is mounted exactly at `path` (which is resolved and has no blanks).
pub fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// Sends a signal to a process of this test's own.
pub fn signal(pid: u32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}

/// Copies a directory; modes as an agent makes them, times long ago, so that no session looks live.
pub fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
            fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
            let file = fs::File::options().write(true).open(&target).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_760_000_000)).unwrap();
        }
    }
}

fn snapshot_into(root: &Path, dir: &Path, files: &mut BTreeMap<PathBuf, (u32, Vec<u8>)>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().to_owned();
        if meta.is_dir() {
            files.insert(name, (meta.mode(), Vec::new()));
            snapshot_into(root, &path, files);
        } else {
            files.insert(name, (meta.mode(), fs::read(&path).unwrap()));
        }
    }
}
