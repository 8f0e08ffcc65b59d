//! A session's time is its last record's, so that a restore, a copy or a `touch` changes nothing.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::support::TestStore;
use super::{APP, NEWER, OLDER, eventually, ids, touch, two_threads};

const DEC_1: u64 = 1_796_083_200;

fn latest(mount: &Path) -> String {
    fs::read_link(mount.join(APP).join("latest")).unwrap().to_str().unwrap().to_owned()
}

fn mtime(path: &Path) -> String {
    let facts = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    jiff::Timestamp::new(facts.mtime(), facts.mtime_nsec() as i32).unwrap().to_string()
}

#[test]
fn restamped_files_change_neither_order_nor_latest_nor_times() {
    let (store, older, newer) = two_threads();
    touch(&newer, DEC_1);
    touch(&older, DEC_1 + 86_400);
    let listed = store.run(&["ls", "--all", "--json"]).json();
    assert_eq!(ids(&listed), [NEWER, OLDER]);
    let times: Vec<_> = (0..2).map(|at| listed[at]["updated"].as_str().unwrap()).collect();
    assert_eq!(times, ["2026-11-30T13:42:43.777Z", "2026-11-30T13:42:41.649Z"]);

    let mount = store.mount(&[] as &[&str]);
    assert!(latest(&mount.path).ends_with("f751bc93"));
    assert_eq!(mtime(&mount.session(&store, Some(OLDER))), "2026-11-30T13:42:41.649Z");
    assert_eq!(mtime(&mount.session(&store, Some(OLDER)).join("turns/003")), "2026-11-30T13:42:41.649Z");
    // Touched under a living mount.
    touch(&older, DEC_1 + 2 * 86_400);
    touch(&newer, DEC_1 - 86_400);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(latest(&mount.path).ends_with("f751bc93"));
    assert_eq!(mtime(&mount.session(&store, Some(OLDER))), "2026-11-30T13:42:41.649Z");
    let sorted = store.sh(&format!("ls -t {}", mount.path.join(APP).display())).ok();
    let first = sorted.lines().find(|name| *name != "latest").unwrap();
    assert!(first.ends_with("f751bc93"), "{sorted}");
}

#[test]
fn an_append_makes_a_session_the_latest_and_costs_one_small_read() {
    let (store, older, _) = two_threads();
    let record = |time: &str| {
        format!(r#"{{"timestamp":"2026-11-30T{time}.000Z","type":"event_msg","payload":{{"type":"x"}}}}"#)
    };
    let mut file = fs::File::options().append(true).open(&older).unwrap();
    file.write_all(format!("{}\n", record("13:42:42")).repeat(40_000).as_bytes()).unwrap();
    let mount = store.mount(&[] as &[&str]);
    assert!(latest(&mount.path).ends_with("f751bc93"));
    let read = || {
        let metrics = fs::read_to_string(mount.path.join(".turnfs/metrics")).unwrap();
        let line = metrics.lines().find(|line| line.contains("agent=\"codex\",kind=\"transcript\"")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let before = read();
    writeln!(file, "{}", record("14:00:00")).unwrap();
    eventually("the older thread is the latest", || latest(&mount.path).ends_with("7cc3b0a3"));
    // A torn record has no time yet.
    write!(file, r#"{{"timestamp":"2026-11-30T15:00:00.000Z","type""#).unwrap();
    drop(file);
    eventually("the time is the last whole record's", || {
        mtime(&mount.session(&store, Some(OLDER))) == "2026-11-30T14:00:00Z"
    });
    let after = read();
    // Head and end of young files are read at each look that finds nothing to prove them; none reads the whole.
    let len = fs::metadata(&older).unwrap().len();
    assert!(len > 3_000_000 && after - before < 1_000_000, "{} bytes of {len}", after - before);
    assert_eq!(ids(&store.run(&["ls", "--all", "--json"]).json()), [OLDER, NEWER]);
}

#[test]
fn a_fork_of_old_turns_is_the_latest() {
    let (store, ..) = two_threads();
    let mount = store.mount(&[] as &[&str]);
    let id = store.run(&["fork", OLDER, "1"]).ok();
    eventually("the fork is the latest", || latest(&mount.path).ends_with(&id.trim()[28..]));
    assert_eq!(ids(&store.run(&["ls", "--all", "--json"]).json())[0], id.trim());
}

#[test]
fn a_compressed_thread_has_the_time_of_its_last_record() {
    let (store, older, newer) = two_threads();
    let packed = zstd::encode_all(&*fs::read(&newer).unwrap(), 3).unwrap();
    fs::write(newer.with_extension("jsonl.zst"), packed).unwrap();
    fs::remove_file(&newer).unwrap();
    touch(&older, DEC_1);
    let listed = store.run(&["ls", "--all", "--json"]).json();
    assert_eq!(ids(&listed), [NEWER, OLDER]);
    assert_eq!(listed[0]["updated"], "2026-11-30T13:42:43.777Z");
}

#[test]
fn a_thread_without_any_time_has_that_of_its_file() {
    let (store, older, _) = two_threads();
    fs::write(&older, "{}\n").unwrap();
    touch(&older, DEC_1);
    // The thread index has a row, with a time.
    store.thread_index().unwrap().execute("DELETE FROM threads", []).unwrap();
    let listed = store.run(&["ls", "--all", "--json"]).json();
    assert_eq!(listed[0]["id"], OLDER);
    assert_eq!(listed[0]["updated"], "2026-12-01T00:00:00.000Z");
}

#[test]
fn turns_of_openmax_have_the_time_of_their_session() {
    let store = TestStore::of("openmax", "a_plain");
    for entry in fs::read_dir(store.root.join("sessions")).unwrap() {
        touch(&entry.unwrap().path(), DEC_1);
    }
    let updated = store.run(&["ls", "--all", "--json"]).json()[0]["updated"].as_str().unwrap().to_owned();
    let updated: jiff::Timestamp = updated.parse().unwrap();
    let mount = store.mount(&[] as &[&str]);
    let session = mount.session(&store, None);
    for file in ["", "turns", "turns/000", "turns/003", "status"] {
        let shown: jiff::Timestamp = mtime(&session.join(file)).parse().unwrap();
        assert_eq!(shown.as_second(), updated.as_second(), "{file}");
    }
}

#[test]
fn sessions_of_kimi_cli_stand_in_the_order_of_their_client() {
    let store = TestStore::from_samples(&["a-plain", "b-tools"]);
    let session = |sample: &str| {
        let listed = store.run(&["ls", "--all", "--json"]).json();
        let project = format!("/home/dev/projects/work/{sample}");
        let mut all = listed.as_array().unwrap().iter();
        let found = all.find(|session| session["project"] == *project).unwrap();
        found["id"].as_str().unwrap().to_owned()
    };
    let (a, b) = (session("a-plain"), session("b-tools"));
    let file = |id: &str, name: &str| {
        let groups = fs::read_dir(store.root.join("sessions")).unwrap();
        let mut dirs = groups.map(|group| group.unwrap().path().join(id));
        dirs.find(|dir| dir.exists()).unwrap().join(name)
    };
    // Its client sorts by the file's time, and by that of context.jsonl alone.
    touch(&file(&a, "context.jsonl"), DEC_1);
    touch(&file(&b, "wire.jsonl"), DEC_1 + 86_400);
    let listed = store.run(&["ls", "--all", "--json"]).json();
    assert_eq!(ids(&listed), [a.as_str(), b.as_str()]);
    assert_eq!(listed[0]["updated"], "2026-12-01T00:00:00.000Z");
}
