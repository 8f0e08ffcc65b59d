//! Another directory stands where a store was, or a store cannot be looked at: nothing in the old directory tells
//! of it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};

use super::store::soon;
use crate::support::{Mount, TestStore, copy_tree, samples_of};

/// Two stores side by side and a mount of what stands at `path`.
struct Two {
    mount: Mount,
    // Held: its directories go when the test is over.
    _home: TestStore,
    other: PathBuf,
}

const FIRST: &str = "home/dev/projects/work/a-plain";
const OTHER: &str = "home/dev/projects/work/c-compact";

impl Two {
    /// `place` puts the first of two stores somewhere, and says where.
    fn with(place: impl FnOnce(&Path, &Path) -> PathBuf) -> Two {
        let home = TestStore::empty();
        let base = home.dir.path().canonicalize().unwrap();
        let (one, other) = (base.join("one/store"), base.join("other/store"));
        copy_tree(&samples_of("kimi-cli").join("a-plain/store"), &one);
        copy_tree(&samples_of("kimi-cli").join("c-compact/store"), &other);
        let path = place(&base, &one);
        let mount = home.mount(&["--store", &format!("kimi-cli={}", path.display())]);
        Two { mount, _home: home, other }
    }

    fn names(&self, project: &str) -> Vec<String> {
        let entries = fs::read_dir(self.mount.path.join(project)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    /// The other store is shown, and what happens in it from now on.
    fn shows_the_other_one(&self) {
        soon("the other store", || self.names(FIRST).is_empty() && !self.names(OTHER).is_empty());
        let before = self.names(OTHER).len();
        let group = fs::read_dir(self.other.join("sessions")).unwrap().next().unwrap().unwrap().path();
        let session = fs::read_dir(&group).unwrap().next().unwrap().unwrap().path();
        // Whatever is watched now is watched for this, too.
        std::thread::sleep(Duration::from_millis(300));
        copy_tree(&session, &group.join("11111111-2222-4333-8444-555555555555"));
        soon("a new session in the other store", || self.names(OTHER).len() > before);
    }
}

#[test]
fn a_link_to_a_store_that_leads_elsewhere_now_shows_the_other_store() {
    let two = Two::with(|base, one| {
        symlink(one, base.join("link")).unwrap();
        base.join("link")
    });
    assert!(!two.names(FIRST).is_empty());
    let link = two.other.parent().unwrap().with_file_name("link");
    symlink(&two.other, link.with_extension("new")).unwrap();
    fs::rename(link.with_extension("new"), &link).unwrap();
    two.shows_the_other_one();
}

#[test]
fn a_directory_above_a_store_that_was_replaced_shows_the_other_store() {
    let mut two = Two::with(|_, one| one.to_owned());
    assert!(!two.names(FIRST).is_empty());
    let other = two.other.parent().unwrap().to_owned();
    let one = other.with_file_name("one");
    fs::rename(&one, other.with_file_name("old")).unwrap();
    fs::rename(&other, &one).unwrap();
    two.other = one.join("store");
    two.shows_the_other_one();
}

/// A mount of the test's own. Gone when dropped.
struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn a_store_that_is_mounted_later_is_shown_and_gone_when_it_is_unmounted() {
    let two = Two::with(|base, _| {
        fs::create_dir(base.join("late")).unwrap();
        base.join("late")
    });
    assert!(two.names(FIRST).is_empty());
    let late = two.other.parent().unwrap().with_file_name("late");
    if rustix::mount::mount(&two.other, &late, "", MountFlags::BIND, c"").is_err() {
        crate::support::skipped::skipped("a bind mount is not permitted here");
        return;
    }
    let bound = Bound(late);
    two.shows_the_other_one();
    drop(bound);
    soon("nothing", || two.names(OTHER).is_empty());
}

#[test]
fn a_store_that_cannot_be_looked_at_hides_no_other() {
    let home = TestStore::from_sample("a-plain");
    let codex = home.dir.path().join("codex");
    copy_tree(&samples_of("codex").join("f_client_fork/store"), &codex);
    let option = format!("codex={}", codex.display());
    let kimi = format!("kimi-cli={}", home.root.display());
    let mount = home.mount(&["--store", &option, "--store", &kimi]);
    let sessions = codex.join("sessions");
    fs::rename(&sessions, codex.join("away")).unwrap();
    fs::write(&sessions, "not a directory").unwrap();
    let status = || fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
    soon("the trouble", || status().contains("cannot open") && status().contains("codex/sessions"));
    assert!(mount.path.join(FIRST).join("latest/turns/000").exists());
    let listed = crate::support::run(home.command(&["ls", "--all", "--store", &option, "--store", &kimi]));
    assert!(listed.stdout.contains("a-plain"), "{}{}", listed.stdout, listed.stderr);
    fs::remove_file(&sessions).unwrap();
    fs::rename(codex.join("away"), &sessions).unwrap();
    soon("the store again", || !status().contains("cannot open"));
}

#[test]
fn a_fork_hears_of_changes_of_the_file_that_it_goes_on_from() {
    let store = TestStore::of("codex", "f_client_fork");
    let mount = store.mount_with_short_window::<&str>(&[]);
    let file = "rollout-2026-11-30T13-42-48-01a22cb1-a011-7b83-94cc-e6a4fcaa6faf.jsonl";
    let ancestor = store.root.join("sessions/2026/11/30").join(file);
    let sessions = store.run(&["ls", "--all", "--json"]).json();
    let shown: Vec<PathBuf> = sessions
        .as_array()
        .unwrap()
        .iter()
        .map(|session| mount.path.join(session["path"].as_str().unwrap()).join("raw").join(file))
        .filter(|path| path.exists())
        .collect();
    assert!(shown.len() > 1, "{shown:?}");
    // The kernel remembers what it was told: notices are given again for a second.
    std::thread::sleep(Duration::from_millis(1200));
    shown.iter().for_each(|path| assert!(path.metadata().unwrap().size() > 0));
    let mut text = fs::read_to_string(&ancestor).unwrap();
    let last = text.lines().last().unwrap().to_owned();
    text.push_str(&(last + "\n"));
    fs::write(&ancestor, &text).unwrap();
    for path in &shown {
        soon("the new size", || path.metadata().unwrap().size() == text.len() as u64);
    }
}
