//! The file system as the kernel asks it, on copies of the samples, without a mount.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

use super::*;
use crate::catalog::StoreOptions;
use crate::host::Environment;
use crate::session::AgentKind;

/// A file system over a copy of one sample's store.
struct Sample {
    fs: Fs,
    dir: tempfile::TempDir,
}

impl Sample {
    fn of(name: &str) -> Sample {
        Sample::with(name, |_| {})
    }

    fn with(name: &str, change: impl FnOnce(&mut Options)) -> Sample {
        let dir = tempfile::tempdir().unwrap();
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/kimi-cli").join(name);
        copy(&sample.join("store"), &dir.path().join("store"));
        let places = vec![(AgentKind::KimiCli, dir.path().join("store"))];
        let stores = StoreOptions { places, only: Vec::new() };
        let catalog = Arc::new(Catalog::new(&Environment::default(), &stores));
        let mountpoint = dir.path().join("mount");
        let mut options =
            Options { project: None, read_only: false, show_all: false, running: "{}".into(), mountpoint };
        change(&mut options);
        Sample { fs: Fs::new(catalog, StateDir::at(&dir.path().join("state")), options), dir }
    }

    fn ino(&self, path: &str) -> Result<u64> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(ROOT, |parent, name| self.lookup(parent, name))
    }

    fn lookup(&self, parent: u64, name: &str) -> Result<u64> {
        match self.fs.lookup(parent, OsStr::new(name))? {
            Lookup::Found(attr) => Ok(attr.ino),
            Lookup::Absent { .. } => Err(tree::absent(OsStr::new(name))),
        }
    }

    fn names(&self, ino: u64) -> Vec<String> {
        let handle = self.fs.opendir(ino).unwrap().handle;
        let mut names = Vec::new();
        let collect = |entry: DirEntry<'_>| {
            names.push(entry.name.to_str().unwrap().to_owned());
            false
        };
        self.fs.readdir(handle, 0, collect).unwrap();
        self.fs.release(handle);
        names
    }

    /// The path of the only session.
    fn session(&self) -> String {
        let listing = self.fs.catalog.listing();
        let (project, listed) = listing.all()[0];
        format!("{}/{}", project.unwrap().display(), listed.name)
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let opened = self.fs.open(self.ino(path)?, Access::default())?;
        let bytes = self.fs.read(opened.handle, 0, u32::MAX, <[u8]>::to_vec);
        self.fs.release(opened.handle);
        bytes
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

const WRITE: Access = Access { write: true, truncate: true };

#[test]
fn a_turn_has_one_inode_and_its_exact_size_under_every_spelling() {
    let sample = Sample::of("a-plain");
    let session = sample.session();
    let turn = sample.ino(&format!("{session}/turns/003")).unwrap();
    assert_eq!(sample.ino(&format!("{session}/turns/3")).unwrap(), turn);
    for name in sample.names(sample.ino(&format!("{session}/turns")).unwrap()).iter().skip(2) {
        let path = format!("{session}/turns/{name}");
        let size = sample.fs.getattr(sample.ino(&path).unwrap(), None).unwrap().size;
        assert_eq!(sample.read(&path).unwrap().len() as u64, size, "{name}");
    }
    assert_eq!(sample.ino(&format!("{session}/turns/4")).unwrap_err().errno(), Errno::NOENT);
}

#[test]
fn records_put_together_are_the_file() {
    let sample = Sample::of("a-plain");
    let session = sample.session();
    let mut all = sample.read(&format!("{session}/records/head.jsonl")).unwrap();
    for n in 0..4 {
        all.extend(sample.read(&format!("{session}/records/{n:03}.jsonl")).unwrap());
    }
    assert_eq!(all, sample.read(&format!("{session}/raw/wire.jsonl")).unwrap());
}

#[test]
fn latest_and_the_full_id_are_relative_links_to_the_session() {
    let sample = Sample::of("a-plain");
    let session = sample.session();
    let (project, name) = session.rsplit_once('/').unwrap();
    let listing = sample.fs.catalog.listing();
    let id = &listing.all()[0].1.session.id;
    for link in ["latest", id] {
        let ino = sample.ino(&format!("{project}/{link}")).unwrap();
        assert_eq!(sample.fs.readlink(ino).unwrap(), Path::new(name));
    }
    assert_eq!(sample.names(sample.ino(project).unwrap()), [".", "..", "latest", name]);
}

#[test]
fn what_is_reachable_by_name_is_listed_only_with_show_all() {
    let extra = ["prompts", "records", "raw", "context.md"];
    for show_all in [false, true] {
        let sample = Sample::with("a-plain", |options| options.show_all = show_all);
        let session = sample.session();
        let names = sample.names(sample.ino(&session).unwrap());
        for name in extra {
            assert!(sample.ino(&format!("{session}/{name}")).is_ok(), "{name}");
            assert_eq!(names.iter().any(|listed| listed == name), show_all, "{name}");
        }
        // Not even then: each of its directories costs a look at a turn's records.
        assert!(sample.ino(&format!("{session}/blobs")).is_ok());
        assert!(!names.iter().any(|listed| listed == "blobs"));
    }
}

#[test]
fn a_directory_is_a_snapshot_with_stable_cookies() {
    let sample = Sample::of("a-plain");
    let turns = sample.ino(&format!("{}/turns", sample.session())).unwrap();
    let handle = sample.fs.opendir(turns).unwrap().handle;
    let mut first = Vec::new();
    sample
        .fs
        .readdir(handle, 0, |entry| {
            first.push((entry.name.to_owned(), entry.cookie));
            false
        })
        .unwrap();
    std::fs::remove_dir_all(sample.dir.path().join("store/sessions")).unwrap();
    for (index, (_, cookie)) in first.iter().enumerate() {
        let mut rest = Vec::new();
        let collect = |entry: DirEntry<'_>| {
            rest.push((entry.name.to_owned(), entry.cookie));
            false
        };
        sample.fs.readdir(handle, *cookie, collect).unwrap();
        assert_eq!(rest, first[index + 1..]);
    }
}

#[test]
fn the_kernel_can_forget_everything_it_was_told() {
    let sample = Sample::of("a-plain");
    let before = sample.fs.kernel.len();
    let path = format!("{}/turns", sample.session());
    let mut parent = ROOT;
    let mut told = Vec::new();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        parent = sample.lookup(parent, name).unwrap();
        told.push(parent);
    }
    let handle = sample.fs.opendir(parent).unwrap().handle;
    let mut entries = 0;
    // The fifth entry does not fit any more, so the kernel does not get to know it.
    let fill = |entry: DirEntry<'_>, attr: Attr| {
        entries += 1;
        if entries < 5 && entry.name != "." && entry.name != ".." {
            told.push(attr.ino);
        }
        entries == 5
    };
    sample.fs.readdirplus(handle, 0, fill).unwrap();
    sample.fs.release(handle);
    told.iter().for_each(|ino| sample.fs.forget(*ino, 1));
    assert_eq!(sample.fs.kernel.len(), before);
}

#[test]
fn nothing_but_control_files_can_be_written() {
    for (read_only, errno) in [(false, Errno::PERM), (true, Errno::ROFS)] {
        let sample = Sample::with("a-plain", |options| options.read_only = read_only);
        let session = sample.session();
        for name in ["turns/000", "status", "meta.json", "raw/wire.jsonl", "records/000.jsonl"] {
            let ino = sample.ino(&format!("{session}/{name}")).unwrap();
            assert_eq!(sample.fs.open(ino, WRITE).unwrap_err().errno(), errno, "{name}");
            assert_eq!(sample.fs.setattr(ino, Some(0), false).unwrap_err().errno(), errno, "{name}");
        }
        let undo = sample.ino(&format!("{session}/undo")).unwrap();
        assert_eq!(sample.fs.open(undo, WRITE).is_ok(), !read_only);
        assert_eq!(sample.fs.setattr(undo, Some(0), false).is_ok(), !read_only);
        assert_eq!(sample.fs.setattr(undo, Some(1), false).unwrap_err().errno(), errno);
    }
}

#[test]
fn what_was_written_is_followed_by_the_answer() {
    let sample = Sample::of("a-plain");
    let fork = sample.ino(&format!("{}/fork", sample.session())).unwrap();
    let handle = sample.fs.open(fork, Access { write: true, truncate: false }).unwrap().handle;
    sample.fs.write(handle, 0, b"\n", &mut Vec::new()).unwrap();
    sample.fs.write(handle, 0, b"1\n", &mut Vec::new()).unwrap();
    let read = |offset| sample.fs.read(handle, offset, 4096, <[u8]>::to_vec).unwrap();
    let id = String::from_utf8(read(2)).unwrap();
    assert_eq!(read(2 + id.len() as u64), b"");
    assert_eq!(read(0), id.as_bytes(), "also for a reader that goes back to the start");
    assert_eq!(read(id.len() as u64), b"");
    let listing = sample.fs.catalog.listing();
    assert!(listing.all().iter().any(|(_, listed)| format!("{}\n", listed.session.id) == id));
    assert_eq!(sample.fs.write(handle, 2, b"0\n", &mut Vec::new()).unwrap_err().errno(), Errno::INVAL);
    assert_eq!(sample.fs.catalog.listing().all().len(), 2, "the second command did nothing");
}

#[test]
fn a_damaged_session_shows_why_and_refuses_the_rest() {
    let sample = Sample::of("adv-damaged");
    let session = sample.session();
    assert!(
        String::from_utf8(sample.read(&format!("{session}/status")).unwrap())
            .unwrap()
            .contains("state: damaged")
    );
    assert!(sample.read(&format!("{session}/meta.json")).is_ok());
    assert!(sample.read(&format!("{session}/raw/wire.jsonl")).is_ok());
    for directory in ["turns", "prompts", "records"] {
        let ino = sample.ino(&format!("{session}/{directory}")).unwrap();
        assert_eq!(sample.fs.opendir(ino).unwrap_err().errno(), Errno::UCLEAN, "{directory}");
    }
    assert_eq!(sample.ino(&format!("{session}/turns/000")).unwrap_err().errno(), Errno::UCLEAN);
    for control in Control::ALL {
        let ino = sample.ino(&format!("{session}/{}", control.name())).unwrap();
        for access in [WRITE, Access::default()] {
            assert_eq!(sample.fs.open(ino, access).unwrap_err().errno(), Errno::UCLEAN, "{control:?}");
        }
    }
    assert!(sample.names(sample.ino(&session).unwrap()).contains(&"salvage".to_owned()));
}

#[test]
fn an_open_turn_stays_the_version_that_was_opened() {
    let sample = Sample::of("a-plain");
    let path = format!("{}/turns/001", sample.session());
    let before = sample.read(&path).unwrap();
    let handle = sample.fs.open(sample.ino(&path).unwrap(), Access::default()).unwrap().handle;
    let undo = sample.ino(&format!("{}/undo", sample.session())).unwrap();
    let control = sample.fs.open(undo, WRITE).unwrap().handle;
    sample.fs.write(control, 0, b"1", &mut Vec::new()).unwrap();
    assert_eq!(sample.fs.read(handle, 0, 1 << 20, <[u8]>::to_vec).unwrap(), before);
    assert_eq!(sample.ino(&path).unwrap_err().errno(), Errno::NOENT);
}

#[test]
fn one_project_is_shown_at_the_root() {
    let sample = Sample::with("a-plain", |options| {
        options.project = Some("/home/dev/projects/work/a-plain/".into());
    });
    let names = sample.names(ROOT);
    assert_eq!(names[..4], [".", "..", ".turnfs", "latest"]);
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(sample.ino(&format!("{}/turns/000", names[4])).is_ok());
    assert_eq!(sample.ino("home").unwrap_err().errno(), Errno::NOENT);
}

/// Waits until stamps are old enough to be believed.
fn settle() {
    crate::transcript::set_racy_window(Duration::from_millis(20));
    std::thread::sleep(Duration::from_millis(40));
}

/// The transcript of the only session of the sample `a-plain`.
fn wire(sample: &Sample) -> std::path::PathBuf {
    let listing = sample.fs.catalog.listing();
    let session = &listing.all()[0].1.session;
    session.key.root.join(&session.files[0])
}

fn turn_node(sample: &Sample) -> Node {
    sample.fs.node(sample.ino(&format!("{}/turns/002", sample.session())).unwrap()).unwrap()
}

/// Puts other bytes of the same length into a file, with its time put back.
fn edit(file: &Path, from: &str, to: &str) {
    let modified = std::fs::metadata(file).unwrap().modified().unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(from) && from.len() == to.len());
    std::fs::write(file, text.replace(from, to)).unwrap();
    std::fs::File::options().write(true).open(file).unwrap().set_modified(modified).unwrap();
}

#[test]
fn a_settled_text_is_made_once_whatever_the_kernel_forgets() {
    let sample = Sample::of("a-plain");
    settle();
    let session = sample.session();
    for name in ["turns/002", "prompts/002", "context.md", "records/002.jsonl", "records/head.jsonl"] {
        let path = format!("{session}/{name}");
        let node = sample.fs.node(sample.ino(&path).unwrap()).unwrap();
        let first = sample.fs.text(&node).unwrap().bytes;
        let ino = sample.ino(&path).unwrap();
        sample.fs.forget(ino, 100);
        assert_eq!(sample.fs.node(ino).unwrap_err().errno(), Errno::STALE, "{name}");
        assert_eq!(sample.read(&path).unwrap(), *first);
        assert!(Arc::ptr_eq(&sample.fs.text(&node).unwrap().bytes, &first), "{name} was made again");
    }
}

#[test]
fn a_text_whose_file_may_still_change_under_its_stamp_is_not_kept() {
    let sample = Sample::of("a-plain");
    let wire = wire(&sample);
    edit(&wire, "turn three", "TURN THREE");
    let node = turn_node(&sample);
    let first = sample.fs.text(&node).unwrap().bytes;
    assert!(!Arc::ptr_eq(&sample.fs.text(&node).unwrap().bytes, &first));
    assert_eq!(sample.fs.texts.cost(), 0);
}

/// Versions are never given twice: not after a view was dropped from memory, not after a session was removed
/// and made anew in the same place.
#[test]
fn a_text_of_a_session_that_was_forgotten_meanwhile_is_made_anew() {
    let sample = Sample::of("a-plain");
    let (wire, node) = (wire(&sample), turn_node(&sample));
    let Node::Session(session, _) = &node else { panic!("{node:?}") };
    let (key, directory) = (session.key.clone(), session.key.absolute());
    let mut versions = std::collections::HashSet::new();
    let mut is_shown = |words: &str, other: &str| {
        settle();
        let text = sample.fs.text(&node).unwrap();
        let shown = String::from_utf8(text.bytes.to_vec()).unwrap();
        assert!(shown.contains(words) && !shown.contains(other), "{shown}");
        assert!(versions.insert(text.version), "{} was given twice", text.version);
        let again = sample.fs.text(&node).unwrap();
        assert!(Arc::ptr_eq(&again.bytes, &text.bytes), "this must be a text that is kept");
    };
    is_shown("turn three", "TURN THREE");
    sample.fs.catalog.forget(&key);
    edit(&wire, "turn three", "TURN THREE");
    is_shown("TURN THREE", "turn three");

    let copy_of_it = sample.dir.path().join("copy");
    copy(&directory, &copy_of_it);
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(sample.fs.text(&node).is_err());
    copy(&copy_of_it, &directory);
    edit(&wire, "TURN THREE", "turn three");
    is_shown("turn three", "TURN THREE");

    // More sessions than histories are kept: this one's goes.
    for n in 0..600 {
        copy(&copy_of_it, &directory.with_file_name(format!("0c45fd13-bf97-4bf8-9665-{n:012}")));
    }
    let listing = sample.fs.catalog.listing();
    let all = listing.all();
    assert_eq!(all.len(), 601);
    for (_, other) in all.iter().filter(|(_, listed)| listed.session.key != key) {
        sample.fs.catalog.view(&other.session.key).unwrap();
    }
    edit(&wire, "turn three", "TURN THREE");
    is_shown("TURN THREE", "turn three");
}

/// The listing showed the directory, and a look at the name led to the session.
#[test]
fn a_project_below_another_wins_over_a_session_of_its_name() {
    use md5::{Digest as _, Md5};
    let sample = Sample::of("a-plain");
    let session = sample.session();
    let store = sample.dir.path().join("store");
    let index = store.join("kimi.json");
    let mut known: serde_json::Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
    let mut below = known["work_dirs"][0].clone();
    below["path"] = session.as_str().into();
    known["work_dirs"].as_array_mut().unwrap().push(below);
    std::fs::write(&index, known.to_string()).unwrap();
    let group: String = Md5::digest(session.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let first = std::fs::read_dir(store.join("sessions")).unwrap().next().unwrap().unwrap();
    copy(&first.path(), &store.join("sessions").join(group));

    // Looked at twice: the second time the list is known.
    for round in 0..2 {
        assert!(sample.ino(&format!("{session}/latest")).is_ok(), "round {round}");
        assert!(sample.ino(&format!("{session}/turns")).is_err(), "round {round}");
    }
}

/// After a panic in a request nothing that is remembered of the stores is believed.
#[test]
fn what_is_remembered_can_be_forgotten_at_any_time() {
    let sample = Sample::of("c-compact");
    let place = format!("{}/turns/001", sample.session());
    let text = |sample: &Sample| {
        let opened = sample.fs.open(sample.ino(&place).unwrap(), Access::default()).unwrap();
        sample.fs.read(opened.handle, 0, 1 << 20, <[u8]>::to_vec).unwrap()
    };
    let (before, known) = (text(&sample), sample.ino(&place).unwrap());
    let view = |sample: &Sample| {
        let key = sample.fs.catalog.listing().all()[0].1.session.key.clone();
        sample.fs.catalog.view(&key).unwrap()
    };
    let first = view(&sample);
    sample.fs.forget_all();
    assert_ne!(view(&sample).version, first.version, "it was read again");
    assert_eq!(text(&sample), before);
    assert_eq!(sample.ino(&place).unwrap(), known);
}
