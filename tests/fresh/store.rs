//! A session on a file system of choice, mounted, and its transcript's bytes to play with.

use std::fs::{self, File, FileTimes};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{Mount, TestStore, copy_tree};

/// The project and the session of the sample.
const SESSION: &str = "sessions/301f8022c44669fd30b93f123c419b45/0c45fd13-bf97-4bf8-9665-76d7e8ac2706";
/// Ten bytes of the prompt of turn 2.
const MARK: &str = "turn three";

/// How long an answer after a change may take at most, on however busy a machine: what is not pushed would stay as
/// it is for as long as the kernel remembers it.
pub const SOON: Duration = Duration::from_secs(20);

/// A mounted copy of the sample `a-plain`.
pub struct Case {
    /// Held: the mount goes when the test is over.
    pub mount: Mount,
    /// Held: its directories go when the test is over.
    #[allow(dead_code)]
    pub store: TestStore,
    /// The store, wherever it was put.
    pub root: PathBuf,
    /// The session's directory in the mount.
    pub dir: PathBuf,
}

impl Case {
    /// With the store below `place`; in the test's own directory if there is none.
    pub fn at(place: Option<&Path>) -> Case {
        Case::mounted(place, |store, option| store.mount(&["--store", option]))
    }

    /// By a daemon that believes stamps soon: for tests that call `racy::settle`.
    pub fn with_short_window(place: Option<&Path>) -> Case {
        Case::mounted(place, |store, option| store.mount_with_short_window(&["--store", option]))
    }

    fn mounted(place: Option<&Path>, mount: impl FnOnce(&TestStore, &str) -> Mount) -> Case {
        let store = TestStore::from_sample("a-plain");
        let root = match place {
            Some(place) => {
                copy_tree(&store.root, &place.join("store"));
                place.join("store")
            }
            None => store.root.clone(),
        };
        let option = format!("kimi-cli={}", root.display());
        let mount = mount(&store, &option);
        let project = "/home/dev/projects/a-plain";
        let listed = store.command(&["ls", "--all", "--json", "--store", &option]);
        let listed = crate::support::run(listed).json();
        let path = listed[0]["path"].as_str().unwrap_or(project);
        let dir = mount.path.join(path);
        Case { mount, store, root, dir }
    }

    pub fn session(&self) -> PathBuf {
        self.root.join(SESSION)
    }

    pub fn wire(&self) -> PathBuf {
        self.session().join("wire.jsonl")
    }

    /// Appends a whole turn with this prompt, as the client does.
    pub fn append_turn(&self, prompt: &str) {
        let mut wire = File::options().append(true).open(self.wire()).unwrap();
        let at = "1796045270.0";
        let event = |kind: &str, payload: &str| {
            format!(
                "{{\"timestamp\": {at}, \"message\": {{\"type\": \"{kind}\", \"payload\": {payload}}}}}\n"
            )
        };
        let begin = event("TurnBegin", &format!("{{\"user_input\": \"{prompt}\"}}"));
        wire.write_all((begin + &event("TurnEnd", "{}")).as_bytes()).unwrap();
    }
}

/// A way to put other bytes of the same length into a file, with its time put back.
#[derive(Clone, Copy, Debug)]
pub enum Edit {
    InPlace,
    Truncating,
    RenameOver,
    Recreate,
}

impl Edit {
    pub const ALL: [Edit; 4] = [Edit::InPlace, Edit::Truncating, Edit::RenameOver, Edit::Recreate];

    /// Replaces the mark by `new`, which is as long.
    pub fn make(self, path: &Path, original: &str, new: &str) {
        self.replace(path, original, MARK, new);
    }

    /// Replaces `old` by `new`, which is as long.
    pub fn replace(self, path: &Path, original: &str, old: &str, new: &str) {
        assert_eq!(new.len(), old.len());
        let modified = fs::metadata(path).unwrap().modified().unwrap();
        let at = original.find(old).unwrap();
        let text = original.replace(old, new);
        let file = match self {
            Edit::InPlace => {
                let file = File::options().write(true).open(path).unwrap();
                file.write_all_at(new.as_bytes(), at as u64).unwrap();
                file
            }
            Edit::Truncating => {
                let mut file = File::create(path).unwrap();
                file.write_all(text.as_bytes()).unwrap();
                file
            }
            Edit::RenameOver => {
                let beside = path.with_extension("tmp");
                let mut file = File::create(&beside).unwrap();
                file.write_all(text.as_bytes()).unwrap();
                file.set_times(FileTimes::new().set_modified(modified)).unwrap();
                fs::rename(&beside, path).unwrap();
                return;
            }
            Edit::Recreate => {
                fs::remove_file(path).unwrap();
                let mut file = File::create(path).unwrap();
                file.write_all(text.as_bytes()).unwrap();
                file
            }
        };
        file.set_times(FileTimes::new().set_modified(modified)).unwrap();
    }
}

/// Waits until `is_so`; how long it took.
#[track_caller]
pub fn soon(what: &str, is_so: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < SOON, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
    start.elapsed()
}

/// A number from the environment, for longer runs.
pub fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

/// The sum of all samples of a counter in `.turnfs/metrics`.
pub fn metric(mount: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(mount.join(".turnfs/metrics")).unwrap();
    let values = text.lines().filter(|line| line.starts_with(name));
    values.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}
