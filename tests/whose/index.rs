//! A damaged index of OpenMax through a real mount: nothing that was listed goes away, nothing is written,
//! and everything works again once it is repaired. Behaviours 4, 16 to 19.

use std::fs;
use std::path::Path;

use crate::record::{names, prompts, record};
use crate::support::racy::settle;
use crate::support::{Mount, TestStore};

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn status(dir: &Path) -> String {
    fs::read_to_string(dir.join("status")).unwrap()
}

/// A counter of the mount.
fn metric(mount: &Mount, name: &str) -> u64 {
    let text = fs::read_to_string(mount.path.join(".turnfs/metrics")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0, |value| value.trim().parse().unwrap())
}

/// Replaces the index as the client does; its new length, bytes.
fn write_over(index: &Path, entries: &[serde_json::Value]) -> u64 {
    let bytes = serde_json::to_vec_pretty(entries).unwrap();
    let beside = index.with_extension("tmp");
    fs::write(&beside, &bytes).unwrap();
    fs::rename(beside, index).unwrap();
    bytes.len() as u64
}

const INDEX_BYTES: &str = "turnfs_store_bytes_read_total{agent=\"openmax\",kind=\"index\"}";

/// Behaviours 16 to 19 of `docs/stores/openmax.md`.
#[test]
fn a_damaged_index_hides_nothing_and_refuses_every_cut_until_it_is_repaired() {
    let store = TestStore::empty();
    record(&store, "openmax", "/w/p", "x");
    record(&store, "openmax", "/w/q", "y");
    let index = store.home.join(".openmax/sessions/index.json");
    let good = fs::read(&index).unwrap();
    let mount = store.mount::<&str>(&[]);
    let dir = mount.path.join("w/p/latest");
    let there = [names(&mount.path.join("w/p")), names(&mount.path.join("w/q"))];
    assert!(!status(&dir).contains("index: "));
    for bad in [&good[..good.len() / 2], b"", b"{}", b"\xff\xfe"] {
        fs::write(&index, bad).unwrap();
        assert_eq!([names(&mount.path.join("w/p")), names(&mount.path.join("w/q"))], there);
        assert!(names(&mount.path.join(".turnfs/unplaced")).is_empty());
        assert!(fs::read_to_string(dir.join("turns/000")).unwrap().contains("x one"));
        // Marked, with the advice: the session, and the mount as a whole.
        let marked = status(&dir);
        assert!(marked.contains("index: sessions/index.json, line"), "{marked}");
        assert!(
            marked.contains("close every openmax, then move the file aside (openmax --check)"),
            "{marked}"
        );
        assert!(marked.contains("state: ok"), "{marked}");
        let summary = fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
        assert!(summary.contains("problem: openmax: sessions/index.json"), "{summary}");
        for _ in 0..2 {
            for (control, command) in [("undo", "1"), ("fork", "1")] {
                let refused = errno(fs::write(dir.join(control), command));
                assert_eq!(refused, Some(libc::EUCLEAN), "{control}");
                let status = status(&dir);
                assert!(status.lines().last().unwrap().contains("close every openmax"), "{status}");
                assert!(
                    status.contains("\nhint: raw/index.json shows the file as it is\nlast: "),
                    "{status}"
                );
            }
        }
        assert_eq!(fs::read(&index).unwrap(), bad, "a damaged index is never replaced");
        // A mount that is made now says so, and damaged is not empty.
        let fresh = store.mount::<&str>(&[]);
        let summary = fs::read_to_string(fresh.path.join(".turnfs/status")).unwrap();
        assert!(summary.contains("problem: openmax: sessions/index.json"), "{summary}");
        assert_eq!(names(&fresh.path.join(".turnfs/unplaced")).len(), 2);
        drop(fresh);

        fs::write(&index, &good).unwrap();
        assert_eq!([names(&mount.path.join("w/p")), names(&mount.path.join("w/q"))], there);
        assert!(!status(&dir).contains("index: "), "{}", status(&dir));
    }
    // Without a remount.
    fs::write(dir.join("undo"), "2").unwrap();
    assert_eq!(fs::read_dir(dir.join("turns")).unwrap().count(), 2);
    fs::write(dir.join("fork"), "1").unwrap();
    assert_eq!(names(&mount.path.join("w/p")).len(), 2);
}

/// Behaviours 4 and 22 of `docs/stores/openmax.md`.
#[test]
fn an_index_that_was_written_is_read_no_more_once_it_is_settled_and_never_for_an_append() {
    let store = TestStore::empty();
    let id = record(&store, "openmax", "/w/p", "x");
    let mount = store.mount_with_short_window::<&str>(&[]);
    let look = || {
        for name in names(&mount.path.join("w/p")) {
            let dir = mount.path.join("w/p").join(name);
            for turn in fs::read_dir(dir.join("turns")).unwrap() {
                fs::metadata(turn.unwrap().path()).unwrap();
            }
        }
    };
    settle();
    look();
    let before = metric(&mount, INDEX_BYTES);
    (0..50).for_each(|_| look());
    assert_eq!(metric(&mount, INDEX_BYTES), before, "steady state reads no index");
    let index = store.home.join(".openmax/sessions/index.json");
    let mut entries: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    entries[0]["title"] = "another title".into();
    let len = write_over(&index, &entries);
    settle();
    let meta = mount.path.join("w/p/latest/meta.json");
    assert!(fs::read_to_string(meta).unwrap().contains("another title"));
    // While it was young the daemon may have read it more than once.
    let read = metric(&mount, INDEX_BYTES);
    assert!(read - before >= len, "{before}, {read}, {len}");
    (0..50).for_each(|_| look());
    assert_eq!(metric(&mount, INDEX_BYTES), read, "once it is settled it is read no more");

    // 22: an append is one more turn.
    let transcript = store.home.join(format!(".openmax/sessions/{id}.messages.json"));
    let more = "{\"role\":\"user\",\"content\":\"more\"}\n{\"role\":\"assistant\",\"content\":\"reply\"}\n";
    let mut text = fs::read_to_string(&transcript).unwrap();
    text.push_str(more);
    {
        use std::io::Write as _;
        let mut file = fs::OpenOptions::new().append(true).open(&transcript).unwrap();
        file.write_all(more.as_bytes()).unwrap();
    }
    let found = prompts(&store, &id);
    assert_eq!((found.len(), found[4].as_str()), (5, "more"));
    let end = &id[id.len() - 8..];
    let dir = names(&mount.path.join("w/p")).into_iter().find(|name| name.ends_with(end)).unwrap();
    assert!(fs::read_to_string(mount.path.join("w/p").join(dir).join("turns/004")).unwrap().contains("more"));
    assert_eq!(fs::read_to_string(&transcript).unwrap(), text, "reading wrote nothing");
    assert_eq!(metric(&mount, INDEX_BYTES), read, "a transcript's append is no reason to read the index");
}

/// Behaviours 7 and 8 of `docs/stores/openmax.md`.
#[test]
fn a_session_that_its_client_deletes_is_gone_also_for_who_has_it_open() {
    let store = TestStore::empty();
    let id = record(&store, "openmax", "/w/p", "x");
    record(&store, "openmax", "/w/q", "y");
    let mount = store.mount::<&str>(&[]);
    let dir = mount.path.join("w/p").join(names(&mount.path.join("w/p")).remove(0));
    let mut undo = fs::OpenOptions::new().write(true).open(dir.join("undo")).unwrap();
    let sessions = store.home.join(".openmax/sessions");
    let index = sessions.join("index.json");
    let mut entries: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    entries.retain(|entry| entry["id"] != id.as_str());
    fs::write(&index, serde_json::to_vec_pretty(&entries).unwrap()).unwrap();
    for suffix in ["messages.json", "manifest.json"] {
        fs::remove_file(sessions.join(format!("{id}.{suffix}"))).unwrap();
    }
    use std::io::Write as _;
    let refused = errno(undo.write_all(b"1\n"));
    assert!(matches!(refused, Some(libc::ENOENT | libc::ESTALE)), "{refused:?}");
    drop(undo);
    let left: Vec<String> = names(&sessions).into_iter().filter(|name| name.starts_with(&id)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(names(&mount.path.join("w")) == ["q"]);
    assert_eq!(errno(fs::metadata(&dir)), Some(libc::ENOENT));
}

/// Behaviours 9 and 40 of `docs/stores/openmax.md`.
#[test]
fn a_fork_is_the_latest_session_and_nothing_can_be_deleted_through_the_mount() {
    let store = TestStore::empty();
    let id = record(&store, "openmax", "/w/p", "x");
    let sessions = store.home.join(".openmax/sessions");
    let mount = store.mount::<&str>(&[]);
    let dir = mount.path.join("w/p").join(names(&mount.path.join("w/p")).remove(0));
    let source = fs::read(sessions.join(format!("{id}.messages.json"))).unwrap();
    let script = format!("echo 2 > '{0}/fork' && cat '{0}/fork'", dir.display());
    let made = store.sh(&script).ok().trim().to_owned();
    assert_eq!(prompts(&store, &made).len(), 3);
    assert_eq!(fs::read(sessions.join(format!("{id}.messages.json"))).unwrap(), source);
    let latest = fs::read_link(mount.path.join("w/p/latest")).unwrap();
    assert!(latest.to_str().unwrap().ends_with(&made[made.len() - 8..]), "{}", latest.display());
    let entries: serde_json::Value =
        serde_json::from_slice(&fs::read(sessions.join("index.json")).unwrap()).unwrap();
    let at = |n: usize| entries[n]["updated_at"].as_u64().unwrap();
    assert!(entries[1]["id"] == made.as_str() && at(1) > at(0), "older clients take the first of equal ones");

    let before = fs::read(sessions.join("index.json")).unwrap();
    for what in ["turns/000", "status", "undo"] {
        let refused = errno(fs::remove_file(dir.join(what)));
        assert!(matches!(refused, Some(libc::EPERM | libc::EROFS)), "{what}: {refused:?}");
    }
    for what in ["", "turns"] {
        let refused = errno(fs::remove_dir(dir.join(what)));
        assert!(matches!(refused, Some(libc::EPERM | libc::EROFS)), "{what}: {refused:?}");
    }
    assert_eq!(fs::read(sessions.join("index.json")).unwrap(), before);
    assert_eq!(names(&mount.path.join("w/p")).len(), 2);
}

/// Behaviour 28 of `docs/stores/openmax.md`.
#[test]
fn a_directory_that_was_moved_away_and_back_is_watched_again() {
    let store = TestStore::empty();
    let id = record(&store, "openmax", "/w/p", "x");
    let mount = store.mount::<&str>(&[]);
    let dir = mount.path.join("w/p").join(names(&mount.path.join("w/p")).remove(0));
    let turns = || fs::read_dir(dir.join("turns")).map_or(0, |turns| turns.count());
    let soon = |what: &str, is_so: &dyn Fn() -> bool| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !is_so() {
            assert!(std::time::Instant::now() < end, "not within 20 s: {what}");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    };
    let summary = || fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
    soon("watches", &|| summary().contains("watch: openmax pushed"));
    assert_eq!(turns(), 4);
    assert!(!dir.join("turns/004").exists());
    let (sessions, away) = (store.home.join(".openmax/sessions"), store.home.join(".openmax/away"));
    fs::rename(&sessions, &away).unwrap();
    soon("that there is nothing left", &|| !dir.join("turns/000").exists());
    fs::rename(&away, &sessions).unwrap();
    soon("what is there again", &|| turns() == 4);
    soon("watches again", &|| summary().contains("watch: openmax pushed"));
    use std::io::Write as _;
    let mut file =
        fs::OpenOptions::new().append(true).open(sessions.join(format!("{id}.messages.json"))).unwrap();
    file.write_all(
        b"{\"role\":\"user\",\"content\":\"more\"}\n{\"role\":\"assistant\",\"content\":\"ok\"}\n",
    )
    .unwrap();
    drop(file);
    soon("a turn that is appended then", &|| dir.join("turns/004").exists());
}
