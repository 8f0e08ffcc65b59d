//! A small tmpfs, filled to every level: a cut succeeds or the disk is full, and then nothing changed.

use std::io::Write as _;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags};
use turnfs::session::{AgentKind, Errno};

use super::outcome::{Known, Outcome};
use super::skipped::skipped;
use super::store::{samples_of, snapshot};

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

/// Tries the acts on a sample with every so many pages free.
fn at_every_level(
    kind: AgentKind,
    sample: &str,
    acts: &[(Option<&str>, &str)],
    levels: impl Iterator<Item = u64> + Clone,
) {
    let mount = tempfile::tempdir().unwrap();
    let options = c"size=4m,mode=700";
    if let Err(e) = rustix::mount::mount("turnfs-test", mount.path(), "tmpfs", MountFlags::empty(), options) {
        skipped(&format!("mounting a tmpfs is not permitted here ({e})"));
        return;
    }
    let _tmpfs = Tmpfs(mount.path());
    let all = samples_of(kind);
    let sample = all.iter().find(|one| one.name == sample).unwrap();
    let (mut done, mut full) = (0, 0);
    for (prepare, act) in acts {
        for pages in levels.clone() {
            let what = format!("{kind}, {act}, {pages} pages free");
            let top = mount.path().join("t");
            std::fs::create_dir(&top).unwrap();
            let store = sample.copy_to(&top);
            let known = Known::of(&store);
            if let Some(prepare) = prepare {
                store.act(prepare).unwrap();
            }
            let (before, files) = (Outcome::of(&store, &known), store.snapshot());
            fill(mount.path(), pages * 4096);
            let result = store.act(act);
            std::fs::remove_file(mount.path().join("filler")).unwrap();
            match result {
                Ok(_) => done += 1,
                Err(refusal) => {
                    assert_eq!(refusal.errno(), Errno::NOSPC, "{what}: {refusal}");
                    let now = Outcome::of(&store, &known);
                    assert!(now == before, "{what}: {}", before.difference(&now));
                    // Byte for byte, where no database is looked at in between.
                    assert!(kind == AgentKind::Codex || store.snapshot() == files, "{what}");
                    full += 1;
                    // With space again it goes through, and nothing is left of the first try.
                    store.act(act).unwrap();
                    assert_eq!(store.act("recover").unwrap(), "", "{what}");
                }
            }
            for (path, ..) in snapshot(&top) {
                let name = path.to_string_lossy();
                // The directory of a Kimi fork is built under a name of ours and renamed.
                assert!(!name.contains("turnfs-") && !name.ends_with(".tmp"), "{what}: {name} was left");
            }
            std::fs::remove_dir_all(&top).unwrap();
        }
    }
    println!("{kind}: {done} cuts done, {full} refused with ENOSPC, 0 lost");
    assert!(done > 10 && full > 10);
}

#[test]
fn at_any_fill_level_a_kimi_cut_is_done_or_refused_with_the_store_as_it_was() {
    let acts = [(None, "undo 1"), (None, "undo 4"), (Some("undo 1"), "redo"), (None, "fork 3")];
    at_every_level(AgentKind::KimiCli, "m-autocompact", &acts, 0..60);
}

#[test]
fn at_any_fill_level_a_kimi_code_cut_is_done_or_refused_with_the_store_as_it_was() {
    let acts = [(None, "undo 1"), (None, "undo 0"), (Some("undo 1"), "redo"), (None, "fork 1")];
    at_every_level(AgentKind::KimiCode, "j-sub", &acts, (0..40).step_by(2));
}

#[test]
fn at_any_fill_level_a_codex_cut_is_done_or_refused_with_the_store_as_it_was() {
    let acts = [(None, "undo 2"), (Some("undo 2"), "redo"), (None, "fork 2")];
    at_every_level(AgentKind::Codex, "a_plain4", &acts, (0..100).step_by(3));
    at_every_level(AgentKind::Codex, "a_plain4_legacy", &acts, (0..40).step_by(4));
}

#[test]
fn at_any_fill_level_an_openmax_cut_is_done_or_refused_with_the_store_as_it_was() {
    let acts = [(None, "undo 4"), (Some("undo 4"), "redo"), (None, "fork 4"), (None, "fork 10")];
    at_every_level(AgentKind::OpenMax, "c_compact", &acts, (0..40).step_by(2));
}
