//! Files with several hard links.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use super::appender::{appender, logged};
use super::toy::{Fixture, TURNS, Toy, snapshot};
use crate::cut::execute;
use crate::cut::{recover, undone};
use crate::session::{Errno, Refusal};

/// Hard links of all files of the session, as `cp -al` makes them.
fn linked(fixture: &Fixture, name: &str) -> std::path::PathBuf {
    let backup = fixture.dir.path().join(name);
    std::fs::create_dir(&backup).unwrap();
    for entry in std::fs::read_dir(fixture.path("")).unwrap() {
        let entry = entry.unwrap();
        std::fs::hard_link(entry.path(), backup.join(entry.file_name())).unwrap();
    }
    backup
}

#[test]
fn a_hard_linked_session_is_cut_through_new_files_and_the_backup_keeps_its_bytes() {
    for n in 0..TURNS {
        let fixture = Fixture::new();
        let backup = linked(&fixture, "backup");
        let (before, kept) = (snapshot(&fixture.root()), snapshot(&backup));
        fixture.undo(n).unwrap();
        assert_eq!(fixture.prompts(), ["a", "b", "c", "d", "e"][..n as usize]);
        assert_eq!(snapshot(&backup), kept, "undo {n}");
        // Once more, of what the undo left.
        let backup_of_the_cut = linked(&fixture, "second");
        let kept_of_the_cut = snapshot(&backup_of_the_cut);
        fixture.redo(None).unwrap();
        assert_eq!(snapshot(&fixture.root()), before, "redo of {n}");
        assert_eq!(snapshot(&backup), kept, "redo of {n}");
        assert_eq!(snapshot(&backup_of_the_cut), kept_of_the_cut, "redo of {n}");
    }
}

#[test]
fn a_new_file_has_the_mode_the_owner_and_the_attributes_of_the_linked_one() {
    use std::os::unix::fs::PermissionsExt as _;
    let fixture = Fixture::new();
    let wire = fixture.path("wire.jsonl");
    std::fs::set_permissions(&wire, std::fs::Permissions::from_mode(0o640)).unwrap();
    let marked = rustix::fs::setxattr(&wire, "user.note", b"mine", rustix::fs::XattrFlags::empty()).is_ok();
    let backup = linked(&fixture, "backup");
    let old = std::fs::metadata(&wire).unwrap();
    fixture.undo(2).unwrap();
    let new = std::fs::metadata(&wire).unwrap();
    assert_ne!(new.ino(), old.ino());
    assert_eq!(std::fs::metadata(backup.join("wire.jsonl")).unwrap().ino(), old.ino());
    assert_eq!((new.mode(), new.uid(), new.gid(), new.nlink()), (old.mode(), old.uid(), old.gid(), 1));
    if marked {
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(&wire, "user.note", &mut value[..]).unwrap();
        assert_eq!(&value[..len], b"mine");
    }
}

#[test]
fn a_link_that_is_made_between_crash_and_recovery_keeps_its_bytes() {
    for appended in ["", "Tnew\n"] {
        let fixture = Fixture::new();
        let mut whole = std::fs::read(fixture.path("wire.jsonl")).unwrap();
        fixture.undo(2).unwrap();
        // As a kill just before the commit would leave it.
        let folder =
            std::fs::read_dir(fixture.state.path().join("sessions")).unwrap().next().unwrap().unwrap();
        std::fs::rename(folder.path().join("undone/1/undo.json"), folder.path().join("journal.json"))
            .unwrap();
        super::append(&fixture.path("wire.jsonl"), appended);
        let backup = linked(&fixture, "backup");
        let kept = snapshot(&backup);
        let told = recover(&fixture.state).unwrap();
        assert!(told.len() == 1 && told[0].contains("rolled back"), "{told:?}");
        whole.extend_from_slice(appended.as_bytes());
        assert_eq!(std::fs::read(fixture.path("wire.jsonl")).unwrap(), whole);
        assert_eq!(snapshot(&backup), kept);
    }
}

#[test]
fn what_a_client_wrote_to_the_old_inode_before_a_kill_goes_behind_the_restored_content() {
    let fixture = Fixture::new();
    let mut whole = std::fs::read(fixture.path("wire.jsonl")).unwrap();
    linked(&fixture, "backup");
    // The state of a kill between the rename and the end of the cut: the name leads to the copy, which is cut.
    std::fs::rename(fixture.path("wire.jsonl"), fixture.path(".wire.jsonl.turnfs-old")).unwrap();
    std::fs::write(fixture.path("wire.jsonl"), &whole).unwrap();
    fixture.undo(2).unwrap();
    let folder = std::fs::read_dir(fixture.state.path().join("sessions")).unwrap().next().unwrap().unwrap();
    std::fs::rename(folder.path().join("undone/1/undo.json"), folder.path().join("journal.json")).unwrap();
    super::append(&fixture.path(".wire.jsonl.turnfs-old"), "Twaited\n");
    recover(&fixture.state).unwrap();
    whole.extend_from_slice(b"Twaited\n");
    assert_eq!(std::fs::read(fixture.path("wire.jsonl")).unwrap(), whole);
    assert!(!fixture.path(".wire.jsonl.turnfs-old").exists());
}

#[test]
fn a_linked_file_that_a_program_keeps_open_for_writing_is_not_cut_even_by_force() {
    let fixture = Fixture::new();
    linked(&fixture, "backup");
    let before = snapshot(&fixture.root());
    let seen = fixture.load();
    let writer = std::fs::OpenOptions::new().append(true).open(fixture.path("wire.jsonl")).unwrap();
    let refusal =
        execute::undo(&Toy, &fixture.state, &fixture.session, &seen, 2, true).map(drop).unwrap_err();
    assert_eq!(refusal.errno(), Errno::BUSY, "{refusal}");
    assert!(refusal.to_string().contains("several hard links"), "{refusal}");
    assert_eq!(snapshot(&fixture.root()), before);
    drop(writer);
    fixture.undo(2).unwrap();
}

#[test]
fn forced_undos_of_linked_files_lose_no_record_of_a_client_that_appends() {
    let fixture = Fixture::new();
    let log = fixture.dir.path().join("log");
    let wire = fixture.path("wire.jsonl");
    let (mut cut, mut refused) = (0, 0);
    // A client that never rests comes to each undo; one that does is cut between two records.
    let mut child = appender(&wire, &log, 1);
    for round in 0..60 {
        if round == 15 {
            child.kill().unwrap();
            child.wait().unwrap();
            std::fs::remove_file(&log).unwrap();
            child = appender(&wire, &log, 150);
        }
        let link = fixture.dir.path().join(format!("link{round}"));
        std::fs::hard_link(&wire, &link).unwrap();
        let seen = fixture.load();
        let keep = 3.min(seen.turns.len() as u32 - 1);
        match execute::undo(&Toy, &fixture.state, &fixture.session, &seen, keep, true) {
            Ok(_) => cut += 1,
            Err(refusal) => {
                assert!(matches!(refusal, Refusal::Changed { .. }), "{refusal}");
                refused += 1;
            }
        }
        let from = logged(&log);
        while logged(&log) < from + 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let text = std::fs::read_to_string(&wire).unwrap();
        for n in from..from + 3 {
            assert!(text.contains(&format!("\nT{n:08}\n")), "record {n} is lost in round {round}");
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let undos = undone(&fixture.state, &fixture.session.key).unwrap().len();
    assert_eq!(undos, cut);
    assert!(cut > 0, "all were refused");
    println!("60 forced undos of a linked file: {cut} cut, {refused} refused, 0 records lost");
    assert!(!Path::new(&fixture.path(".wire.jsonl.turnfs-old")).exists());
}
