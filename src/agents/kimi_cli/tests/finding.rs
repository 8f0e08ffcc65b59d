//! Discovery: what is found, where it is placed, and what is read again.

use std::os::unix::fs::symlink;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode};

use super::*;

const ID: &str = "0c45fd13-bf97-4bf8-9665-76d7e8ac2706";

fn reason(session: &Session) -> &str {
    match &session.place {
        Place::Unplaced { reason } => reason,
        Place::Project(path) => panic!("{} is in {}", session.id, path.display()),
    }
}

fn index(store: &Path, entries: &str) {
    fs::write(store.join("kimi.json"), format!("{{\"work_dirs\": [{entries}]}}")).unwrap();
}

/// A store whose only directory under sessions/ has the name of this path.
fn store_for(path: &str, prefix: &str) -> tempfile::TempDir {
    use md5::{Digest, Md5};
    let dir = tempfile::tempdir().unwrap();
    let hash: String = Md5::digest(path.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let from = sample("a-plain").store.join("sessions/301f8022c44669fd30b93f123c419b45");
    copy(&from, &dir.path().join("sessions").join(format!("{prefix}{hash}")));
    dir
}

/// Waits until stamps are old enough to be believed.
fn settle() {
    crate::transcript::set_racy_window(Duration::from_millis(20));
    std::thread::sleep(Duration::from_millis(40));
}

#[test]
fn a_directory_that_kimi_json_does_not_list_is_unplaced() {
    let (_dir, sample) = copy_of("a-plain");
    index(&sample.store, "");
    let found = discover(&sample.store);
    assert_eq!(found.sessions.len(), 1);
    assert!(reason(&found.sessions[0]).contains("lists no work directory"));
    assert!(found.problems.is_empty());
}

#[test]
fn a_damaged_or_missing_index_hides_no_session() {
    for content in [Some("{\"work_dirs\": [{\"path\""), Some("[]"), None] {
        let (_dir, sample) = copy_of("a-plain");
        match content {
            Some(content) => fs::write(sample.store.join("kimi.json"), content).unwrap(),
            None => fs::remove_file(sample.store.join("kimi.json")).unwrap(),
        }
        let found = discover(&sample.store);
        assert_eq!(found.sessions.len(), 1);
        assert!(reason(&found.sessions[0]).contains("kimi.json"));
        let problems: Vec<_> = found.problems.iter().map(|problem| (&*problem.file, problem.class)).collect();
        assert_eq!(problems, [("kimi.json", DamageClass::Sidecar)]);
    }
}

#[test]
fn only_an_absolute_plain_local_path_is_a_project() {
    let cases = [
        ("/w/a", "local", "", None),
        ("w/a", "local", "", Some("relative")),
        ("/w/../a", "local", "", Some("no place in a tree")),
        ("/w/a", "ssh", "ssh_", Some("ssh")),
    ];
    for (path, kaos, prefix, unplaced) in cases {
        let dir = store_for(path, prefix);
        index(
            dir.path(),
            &format!("{{\"path\": \"{path}\", \"kaos\": \"{kaos}\", \"last_session_id\": null}}"),
        );
        let found = discover(dir.path());
        assert_eq!(found.sessions.len(), 1, "{path}");
        match unplaced {
            Some(word) => assert!(reason(&found.sessions[0]).contains(word), "{path}"),
            None => assert_eq!(found.sessions[0].place, Place::Project(path.into())),
        }
    }
}

#[test]
fn two_spellings_of_one_directory_are_two_projects_as_recorded() {
    let dir = store_for("/w/a", "");
    let other = store_for("/link/a", "");
    copy(&other.path().join("sessions"), &dir.path().join("sessions"));
    index(dir.path(), "{\"path\": \"/w/a\"}, {\"path\": \"/link/a\"}");
    let mut projects: Vec<_> =
        discover(dir.path()).sessions.iter().map(|session| session.project().unwrap().to_owned()).collect();
    projects.sort();
    assert_eq!(projects, [PathBuf::from("/link/a"), PathBuf::from("/w/a")]);
}

#[test]
fn what_is_no_session_is_left_out_and_told_and_what_cannot_be_opened_is_listed() {
    use std::os::unix::ffi::OsStrExt;
    let (_dir, sample) = copy_of("a-plain");
    let group = sample.store.join("sessions/301f8022c44669fd30b93f123c419b45");
    let outside = tempfile::tempdir().unwrap();
    copy(&group.join(ID), outside.path());
    symlink(outside.path().join("none"), group.join("linked")).unwrap();
    symlink("/dev/null", sample.store.join("sessions/linked-group")).unwrap();
    fs::create_dir(group.join("empty")).unwrap();
    fs::create_dir(group.join("link-inside")).unwrap();
    symlink("/dev/null", group.join("link-inside/wire.jsonl")).unwrap();
    fs::create_dir(group.join("pipe")).unwrap();
    rustix::fs::mknodat(CWD, group.join("pipe/wire.jsonl"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    rustix::fs::mknodat(CWD, group.join("pipe.jsonl"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    fs::write(group.join(std::ffi::OsStr::from_bytes(b"bad\xff.jsonl")), "{}\n").unwrap();
    fs::create_dir(group.join(".building")).unwrap();
    fs::write(group.join(".building/wire.jsonl"), "").unwrap();
    fs::write(group.join("notes.txt"), "").unwrap();
    let found = discover(&sample.store);
    let ids: Vec<_> = found.sessions.iter().map(|session| &*session.id).collect();
    assert_eq!(ids, [".building", ID, "link-inside", "pipe"]);
    let mut problems: Vec<_> = found.problems.iter().map(|problem| problem.message.clone()).collect();
    problems.sort();
    assert_eq!(problems.len(), 4, "{problems:?}");
    let told =
        ["it leads nowhere", "it leads to no directory or regular file", "not a regular file", "UTF-8"];
    assert!(problems.iter().zip(told).all(|(problem, what)| problem.contains(what)), "{problems:?}");
}

#[test]
fn an_old_flat_file_is_a_session_unless_its_directory_is_there() {
    let (_dir, sample) = copy_of("a-plain");
    let group = sample.store.join("sessions/301f8022c44669fd30b93f123c419b45");
    fs::write(group.join(format!("{ID}.jsonl")), "{\"role\":\"user\",\"content\":\"old\"}\n").unwrap();
    fs::write(group.join("other.jsonl"), "{\"role\":\"user\",\"content\":\"old\"}\n").unwrap();
    let found = discover(&sample.store);
    let mut ids: Vec<_> = found.sessions.iter().map(|session| &*session.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [ID, "other"]);
}

#[test]
fn a_store_that_is_not_there_has_no_sessions() {
    let dir = tempfile::tempdir().unwrap();
    for root in [dir.path().join("none"), dir.path().to_owned()] {
        let found = discover(&root);
        assert!(found.sessions.is_empty() && found.problems.is_empty());
    }
}

#[test]
fn title_and_first_prompt_follow_the_files() {
    let (_dir, sample) = copy_of("a-plain");
    let session = sample.store.join("sessions/301f8022c44669fd30b93f123c419b45").join(ID);
    let store = KimiCli::at(&*sample.store);
    let first = store.discover().unwrap();
    assert_eq!(first.sessions[0].title.as_deref(), Some("turn one"));
    let created = first.sessions[0].created;
    settle();
    store.discover().unwrap();

    let state = fs::read_to_string(session.join("state.json")).unwrap();
    fs::write(session.join("state.json"), state.replace("\"turn one\"", "\"renamed\"")).unwrap();
    let second = store.discover().unwrap();
    assert_eq!(second.sessions[0].title.as_deref(), Some("renamed"));
    assert_eq!(second.sessions[0].created, created);

    // Undo 0 in place, then a new first turn, between two looks: same inode, longer file.
    let wire = fs::read_to_string(session.join("wire.jsonl")).unwrap();
    let header = wire.lines().next().unwrap();
    let prompt = "another beginning ".repeat(400);
    let begin = format!(
        "{{\"timestamp\": 1796049999.5, \"message\": {{\"type\": \"TurnBegin\", \"payload\": {{\"user_input\": \"{prompt}\"}}}}}}"
    );
    fs::write(session.join("wire.jsonl"), format!("{header}\n{begin}\n")).unwrap();
    let third = store.discover().unwrap();
    assert!(third.sessions[0].first_prompt.as_deref().unwrap().starts_with("another beginning"));
    assert_eq!(third.sessions[0].first_prompt.as_deref().unwrap().chars().count(), 1000);
    assert!(third.sessions[0].created > created);

    fs::write(session.join("wire.jsonl"), format!("{header}\n")).unwrap();
    let fourth = store.discover().unwrap();
    assert_eq!(fourth.sessions[0].first_prompt, None);
}

#[test]
fn a_first_prompt_with_a_large_image_is_found() {
    let (_dir, sample) = copy_of("a-plain");
    let session = sample.store.join("sessions/301f8022c44669fd30b93f123c419b45").join(ID);
    let image = "A".repeat(300 * 1024);
    let begin = format!(
        "{{\"timestamp\": 1, \"message\": {{\"type\": \"TurnBegin\", \"payload\": {{\"user_input\": [{{\"type\":\"image_url\",\"image_url\":{{\"url\":\"data:image/png;base64,{image}\"}}}},{{\"type\":\"text\",\"text\":\"look\"}}]}}}}}}\n"
    );
    fs::write(session.join("wire.jsonl"), begin).unwrap();
    let found = discover(&sample.store);
    assert_eq!(found.sessions[0].first_prompt.as_deref(), Some("look"));
    let history = store_of(&found.sessions[0]).load(&found.sessions[0]).unwrap();
    let text = render(&found.sessions[0], &history, 0);
    assert!(text.contains("[image/png, 230400 bytes]") && text.len() < 500, "{text}");
}

#[test]
fn a_thousand_sessions_are_read_once() {
    let dir = store_for("/w/a", "");
    index(dir.path(), "{\"path\": \"/w/a\"}");
    let group = fs::read_dir(dir.path().join("sessions")).unwrap().next().unwrap().unwrap().path();
    for n in 0..1000 {
        copy(&group.join(ID), &group.join(format!("session-{n}")));
    }
    settle();
    let store = KimiCli::at(dir.path());
    let cold = store.discover().unwrap();
    assert_eq!((cold.sessions.len(), cold.problems.len()), (1001, 0));
    let reads_before = reads();
    let warm = store.discover().unwrap();
    // Looking at the counter is counted too; a read per session would be a thousand.
    assert!(reads() - reads_before < 10, "{} reads", reads() - reads_before);
    assert_eq!(warm.sessions.len(), 1001);
    for (a, b) in cold.sessions.iter().zip(&warm.sessions) {
        assert_eq!(
            (&a.key, &a.title, &a.first_prompt, a.created),
            (&b.key, &b.title, &b.first_prompt, b.created)
        );
    }
}

/// Read calls of this thread so far, as the kernel counts them.
fn reads() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
}
