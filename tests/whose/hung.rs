//! A project on a file system that answers never (a dead network mount): nobody else waits for it.
//!
//! The file system is a FUSE mount by a child of the test (this test binary, started again) that replies to
//! nothing. Killing the child ends everything that waits in it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::record::{AGENTS, listed, names, record, shown};
use crate::support::{TestStore, detach};

/// Replies to nothing: what is asked waits until the process is gone.
struct Silent;

impl fuser::Filesystem for Silent {
    fn lookup(&self, _: &fuser::Request, _: fuser::INodeNo, _: &std::ffi::OsStr, reply: fuser::ReplyEntry) {
        std::mem::forget(reply);
    }

    fn getattr(
        &self,
        _: &fuser::Request,
        _: fuser::INodeNo,
        _: Option<fuser::FileHandle>,
        reply: fuser::ReplyAttr,
    ) {
        std::mem::forget(reply);
    }

    fn opendir(&self, _: &fuser::Request, _: fuser::INodeNo, _: fuser::OpenFlags, reply: fuser::ReplyOpen) {
        std::mem::forget(reply);
    }
}

/// Not a test, but what [`Hung`] runs.
#[test]
#[ignore = "the part of a child process"]
fn the_silent_file_system() {
    let path = std::env::var_os("TURNFS_TEST_SILENT").unwrap();
    let mut config = fuser::Config::default();
    config.mount_options.push(fuser::MountOption::FSName("silent".into()));
    let _session = fuser::spawn_mount(Silent, path, &config).unwrap();
    println!("mounted");
    std::thread::sleep(Duration::from_secs(600));
}

struct Hung {
    child: Child,
    path: PathBuf,
}

impl Hung {
    fn at(path: &Path) -> Hung {
        fs::create_dir_all(path).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "hung::the_silent_file_system", "--nocapture"])
            .env("TURNFS_TEST_SILENT", path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map(Result::unwrap).any(|line| line.ends_with("mounted")), "nothing was mounted");
        Hung { child, path: path.to_owned() }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        detach(&self.path);
    }
}

/// What `act` gives, and that it took less than `limit`.
#[track_caller]
fn within<T>(limit: Duration, what: &str, act: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = act();
    let took = start.elapsed();
    assert!(took < limit, "{what} took {took:?}");
    done
}

/// Generous to a busy machine; who touches that file system waits for ten minutes.
const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_project_on_a_file_system_that_hangs_slows_nobody() {
    let store = TestStore::empty();
    let dead = store.home.join("dead");
    let hung_project = dead.join("app");
    let alive = store.home.join("alive");
    fs::create_dir(&alive).unwrap();
    for agent in AGENTS {
        record(&store, agent, hung_project.to_str().unwrap(), "x");
        record(&store, agent, alive.to_str().unwrap(), "y");
    }
    let hung = Hung::at(&dead);
    // It does hang: somebody who looks there is still waiting after a while.
    let mut waiting =
        Command::new("stat").arg(&hung_project).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(waiting.try_wait().unwrap().is_none(), "the file system of this test answers");

    let mount = within(SOON, "the mount", || store.mount::<&str>(&[]));
    let run = |what: &str| within(SOON, what, || store.sh(what).ok());
    let (m, a, d) = (mount.path.display(), shown(&mount, &alive), shown(&mount, &hung_project));
    let (a, d) = (a.display(), d.display());
    assert_eq!(run(&format!("ls '{a}' | grep -vc latest")).trim(), AGENTS.len().to_string());
    run(&format!("ls -l '{a}'"));
    run(&format!("ls -lR '{a}' > /dev/null"));
    run(&format!("ls -l '{}'", shown(&mount, &store.home).display()));
    run(&format!("cat '{a}/latest/turns/000' '{a}/latest/status' '{a}/latest/meta.json' > /dev/null"));
    run("turnfs ls --all --json > /dev/null");
    run(&format!("turnfs ls --json '{}' > /dev/null", alive.display()));
    run("cd alive && turnfs ls");
    run(&format!("cat '{m}/.turnfs/status' '{m}/.turnfs/metrics' > /dev/null"));
    // The history of the project that hangs is all there, and only `meta.json` asks about its place.
    assert_eq!(run(&format!("ls '{d}' | grep -vc latest")).trim(), AGENTS.len().to_string());
    run(&format!("ls -lR '{d}' > /dev/null"));
    run(&format!("cat '{d}/latest/turns/000' > /dev/null"));
    for _ in 0..3 {
        let meta = run(&format!("cat '{d}/latest/meta.json'"));
        assert!(meta.contains("\"project_state\": \"unknown\""), "{meta}");
    }
    run(&format!("cat '{d}'/*/meta.json '{a}'/*/meta.json > /dev/null"));
    // A command that names it waits for a bounded time, then takes it as given.
    let found = within(SOON, "turnfs ls of the project that hangs", || {
        listed(&store, &[hung_project.to_str().unwrap()])
    });
    assert_eq!(found.len(), AGENTS.len());
    let new = alive.to_str().unwrap();
    let made = within(SOON, "adopting from there", || {
        store.run(&["adopt", hung_project.to_str().unwrap(), new]).ok()
    });
    assert_eq!(made.lines().count(), AGENTS.len());
    let project = ["--project", hung_project.to_str().unwrap()];
    let one = within(SOON, "a mount of that project", || store.mount(&project));
    assert_eq!(names(&one.path).len(), AGENTS.len());
    // The daemons end when asked to, although a question of theirs is still open.
    for mount in [one, mount] {
        let (status, log) = within(SOON, "the end of the daemon", || mount.stop());
        assert_eq!(status.code(), Some(0), "{log}");
    }
    // Nothing else ends who waits in a FUSE file system.
    assert!(waiting.try_wait().unwrap().is_none(), "the file system of this test answers");
    drop(hung);
    waiting.wait().unwrap();
}
