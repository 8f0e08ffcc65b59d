//! Links between a crash and its recovery.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::toy::{Fixture, snapshot};
use crate::cut::recover;

/// A session whose group was moved to another disk, with an undo that a kill stopped just before its commit.
fn crashed(fixture: &Fixture) -> (PathBuf, Vec<u8>) {
    let disk = fixture.dir.path().join("disk");
    std::fs::rename(fixture.root().join("group"), &disk).unwrap();
    symlink(&disk, fixture.root().join("group")).unwrap();
    let whole = std::fs::read(fixture.path("wire.jsonl")).unwrap();
    fixture.undo(2).unwrap();
    let folder = std::fs::read_dir(fixture.state.path().join("sessions")).unwrap().next().unwrap().unwrap();
    std::fs::rename(folder.path().join("undone/1/undo.json"), folder.path().join("journal.json")).unwrap();
    (disk, whole)
}

fn point_to(fixture: &Fixture, target: &Path) {
    std::fs::remove_file(fixture.root().join("group")).unwrap();
    symlink(target, fixture.root().join("group")).unwrap();
}

#[test]
fn a_link_that_leads_elsewhere_after_a_crash_is_not_followed_until_it_leads_back() {
    let fixture = Fixture::new();
    let (disk, whole) = crashed(&fixture);
    let other = fixture.dir.path().join("other");
    std::fs::create_dir_all(other.join("s")).unwrap();
    std::fs::write(other.join("s/wire.jsonl"), "somebody else's\n").unwrap();
    let before = (snapshot(&disk), snapshot(&other));
    for target in [other.as_path(), Path::new("/nowhere")] {
        point_to(&fixture, target);
        let told = recover(&fixture.state).unwrap();
        assert!(told.len() == 1 && told[0].contains("could not be put back"), "{told:?}");
        assert!(told[0].contains("is a link that is not followed"), "{told:?}");
        assert_eq!((snapshot(&disk), snapshot(&other)), before, "nothing was touched");
    }
    // By another way to the same place it is the same place only if the link says the same.
    point_to(&fixture, &disk);
    let told = recover(&fixture.state).unwrap();
    assert!(told.len() == 1 && told[0].contains("rolled back"), "{told:?}");
    assert_eq!(std::fs::read(fixture.path("wire.jsonl")).unwrap(), whole);
}

#[test]
fn a_link_that_is_changed_in_the_middle_of_a_cut_does_not_move_the_cut() {
    use crate::cut::disk::Tree;
    let fixture = Fixture::new();
    let disk = fixture.dir.path().join("disk");
    std::fs::rename(fixture.root().join("group"), &disk).unwrap();
    symlink(&disk, fixture.root().join("group")).unwrap();
    let store = Tree::store(&fixture.root()).unwrap();
    assert!(store.stat(Path::new("group/s/wire.jsonl")).unwrap().is_some());
    let other = fixture.dir.path().join("other");
    std::fs::create_dir_all(other.join("s")).unwrap();
    point_to(&fixture, &other);
    store.create(Path::new("group/s/new")).unwrap();
    assert!(disk.join("s/new").exists() && !other.join("s/new").exists());
}
