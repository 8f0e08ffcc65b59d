//! A small tmpfs, filled to every level: a cut succeeds or the disk is full, and then nothing changed.

use std::io::Write as _;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags};
use turnfs::session::Errno;

use super::store::{samples, snapshot, without_ids};

struct Tmpfs<'a>(&'a Path);

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, UnmountFlags::DETACH);
    }
}

/// Fills the file system and then leaves `free` bytes, in pages.
fn fill(top: &Path, free: u64) {
    let mut file = std::fs::File::create(top.join("filler")).unwrap();
    let page = [1; 4096];
    while file.write_all(&page).is_ok() {}
    let len = file.metadata().unwrap().len();
    file.set_len(len.saturating_sub(free)).unwrap();
}

#[test]
fn at_any_fill_level_a_cut_is_done_or_refused_with_the_store_as_it_was() {
    let mount = tempfile::tempdir().unwrap();
    let options = c"size=4m,mode=700";
    if let Err(e) = rustix::mount::mount("turnfs-test", mount.path(), "tmpfs", MountFlags::empty(), options) {
        eprintln!("skipped: mounting a tmpfs is not permitted here ({e})");
        return;
    }
    let _tmpfs = Tmpfs(mount.path());
    let all = samples();
    let sample = all.iter().find(|sample| sample.name == "m-autocompact").unwrap();
    let (mut done, mut full) = (0, 0);
    for act in ["undo 1", "undo 4", "redo", "fork 3"] {
        for pages in 0..60 {
            let top = mount.path().join("t");
            std::fs::create_dir(&top).unwrap();
            let store = sample.copy_to(&top);
            if act == "redo" {
                store.undo(1).unwrap();
            }
            let before = store.snapshot();
            fill(mount.path(), pages * 4096);
            let result = store.act(act);
            std::fs::remove_file(mount.path().join("filler")).unwrap();
            match result {
                Ok(_) => done += 1,
                Err(refusal) => {
                    assert_eq!(refusal.errno(), Errno::NOSPC, "{act}, {pages} pages free: {refusal}");
                    assert_eq!(store.snapshot(), before, "{act}, {pages} pages free");
                    full += 1;
                    // With space again it goes through, and nothing is left of the first try.
                    store.act(act).unwrap();
                    let told = store.act("recover").unwrap();
                    assert_eq!(told, "", "{act}, {pages} pages free");
                }
            }
            let names = without_ids(&store, &before, snapshot(&top));
            let left = names.iter().find(|(path, ..)| path.to_string_lossy().contains("turnfs-"));
            assert!(left.is_none(), "{act}: {:?} was left", left.unwrap().0);
            std::fs::remove_dir_all(&top).unwrap();
        }
    }
    println!("{done} cuts done, {full} refused with ENOSPC, 0 lost");
    assert!(done > 10 && full > 10);
}
