//! Links that are the owner's own and lead to a directory or a regular file.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::support::TestStore;
use super::{as_seen, find, only};

/// How a link spells what it leads to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Spelled {
    Absolute,
    Relative,
    /// Over another link.
    Twice,
}

/// Moves `path` out of the store and leaves a link.
fn moved_away(store: &TestStore, path: &Path, spelled: Spelled) -> PathBuf {
    let disk = store.home.join("big disk");
    std::fs::create_dir_all(&disk).unwrap();
    let target = disk.join(format!("moved-{}", path.file_name().unwrap().to_str().unwrap()));
    std::fs::rename(path, &target).unwrap();
    match spelled {
        Spelled::Absolute => symlink(&target, path).unwrap(),
        Spelled::Relative => {
            let below = path.parent().unwrap().strip_prefix(&store.home).unwrap();
            let up: PathBuf = below.components().map(|_| "..").collect();
            symlink(up.join(target.strip_prefix(&store.home).unwrap()), path).unwrap();
        }
        Spelled::Twice => {
            symlink(&target, disk.join("hop")).unwrap();
            symlink(disk.join("hop"), path).unwrap();
        }
    }
    target
}

/// A store of which a part is a link, by the end of that part's path.
struct Variant {
    agent: &'static str,
    sample: &'static str,
    /// The ends of the paths of the parts.
    links: &'static [&'static str],
}

const VARIANTS: &[Variant] = &[
    Variant { agent: "kimi-cli", sample: "a-plain", links: &["sessions"] },
    Variant { agent: "kimi-cli", sample: "a-plain", links: &["76d7e8ac2706"] },
    Variant { agent: "kimi-cli", sample: "a-plain", links: &["0c45fd13-bf97-4bf8-9665-76d7e8ac2706/.."] },
    Variant { agent: "kimi-cli", sample: "a-plain", links: &["wire.jsonl"] },
    Variant { agent: "kimi-cli", sample: "a-plain", links: &["context.jsonl", "state.json"] },
    Variant { agent: "kimi-cli", sample: "a-plain", links: &["kimi.json"] },
    Variant { agent: "kimi-cli", sample: "m-autocompact", links: &["sessions", "kimi.json"] },
    Variant { agent: "codex", sample: "a_plain4", links: &["sessions"] },
    Variant { agent: "codex", sample: "a_plain4", links: &["sessions/2026"] },
    Variant { agent: "codex", sample: "a_plain4", links: &["sessions/2026/11", "state_5.sqlite"] },
    Variant { agent: "codex", sample: "a_plain4", links: &["97b-5aa67cc3b0a3.jsonl", "state_5.sqlite"] },
    Variant { agent: "codex", sample: "a_plain4_legacy", links: &["sessions"] },
    Variant { agent: "codex", sample: "a_plain4_legacy", links: &[".jsonl"] },
    Variant { agent: "openmax", sample: "a_plain", links: &["sessions"] },
    Variant { agent: "openmax", sample: "a_plain", links: &[".messages.json"] },
    Variant { agent: "openmax", sample: "a_plain", links: &["index.json"] },
    Variant { agent: "kimi-code", sample: "a-plain", links: &["sessions"] },
    Variant { agent: "kimi-code", sample: "a-plain", links: &["wd_kc-a-plain_d23af06e25cb"] },
    Variant { agent: "kimi-code", sample: "a-plain", links: &["48e3280f5f51"] },
    Variant { agent: "kimi-code", sample: "a-plain", links: &["main/wire.jsonl", "48e3280f5f51/state.json"] },
    Variant { agent: "kimi-code", sample: "a-plain", links: &["agents/main"] },
];

impl Variant {
    fn name(&self, spelled: Spelled) -> String {
        format!("{} {} {:?} {spelled:?}", self.agent, self.sample, self.links)
    }

    /// The store with its links, and where these are.
    fn made(&self, spelled: Spelled) -> (TestStore, Vec<PathBuf>) {
        let store = TestStore::of(self.agent, self.sample);
        let mut links = Vec::new();
        for end in self.links {
            let path = match end.strip_suffix("/..") {
                Some(child) => find(&store.root, child).parent().unwrap().to_owned(),
                None => find(&store.root, end),
            };
            moved_away(&store, &path, spelled);
            links.push(path);
        }
        (store, links)
    }
}

fn each_variant(check: impl Fn(&str, &TestStore, &[PathBuf])) {
    for (index, variant) in VARIANTS.iter().enumerate() {
        // Each spelling with each kind of link, and not all with all.
        let spelled = [Spelled::Absolute, Spelled::Relative, Spelled::Twice][index % 3];
        let (store, links) = variant.made(spelled);
        check(&variant.name(spelled), &store, &links);
        for link in links {
            assert!(link.is_symlink(), "{}: {} is a link no more", variant.name(spelled), link.display());
        }
    }
}

#[test]
fn a_session_behind_links_is_listed_shown_and_sound() {
    each_variant(|name, store, _| {
        let session = only(store);
        assert_eq!(session["state"], "ok", "{name}: {session}");
        let id = session["id"].as_str().unwrap();
        assert!(store.run(&["show", id, "0"]).ok().contains("## User"), "{name}");
        let checked = store.run(&["check", "--all"]);
        assert_eq!(checked.code, 0, "{name}: {}{}", checked.stdout, checked.stderr);
    });
}

#[test]
fn undo_and_redo_behind_links_cut_the_real_file_and_bring_every_byte_back() {
    each_variant(|name, store, _| {
        let session = only(store);
        let (id, turns) = (session["id"].as_str().unwrap(), session["turns"].as_u64().unwrap());
        let before = as_seen(store);
        store.run(&["undo", id, "1"]).ok();
        assert_eq!(only(store)["turns"], 1, "{name}");
        store.run(&["redo", id]).ok();
        assert_eq!(only(store)["turns"], turns, "{name}");
        let mut after = as_seen(store);
        // What the index says of times and the day's empty folder is not the session's.
        after.retain(|path, bytes| !bytes.is_empty() || before.contains_key(path));
        for (path, bytes) in &before {
            if !path.ends_with("index.json") {
                assert!(after.get(path) == Some(bytes), "{name}: {}", path.display());
            }
        }
        assert_eq!(after.len(), before.len(), "{name}");
    });
}

#[test]
fn a_fork_lands_where_the_client_would_put_it() {
    each_variant(|name, store, links| {
        let id = only(store)["id"].as_str().unwrap().to_owned();
        let before = as_seen(store);
        let new = store.run(&["fork", &id, "0"]).ok().trim().to_owned();
        let sessions = store.run(&["ls", "--all", "--json"]).json();
        let forked = sessions.as_array().unwrap().iter().find(|session| session["id"] == *new);
        let forked = forked.unwrap_or_else(|| panic!("{name}: {new} is not listed in {sessions}"));
        assert_eq!((&forked["state"], &forked["turns"]), (&"ok".into(), &1.into()), "{name}");
        assert_eq!(forked["project"], sessions[1]["project"], "{name}");
        // Found under the store's own paths, and really on the disk that the link leads to.
        let made: Vec<_> = as_seen(store).into_keys().filter(|path| !before.contains_key(path)).collect();
        assert!(made.iter().any(|path| path.to_string_lossy().contains(&new)), "{name}: {made:?}");
        for link in links.iter().filter(|link| link.is_dir()) {
            let within = link.strip_prefix(&store.root).unwrap();
            if !link.ends_with(&id) && made.iter().any(|path| path.starts_with(within)) {
                let real = link.canonicalize().unwrap();
                assert!(real.starts_with(store.home.join("big disk")), "{name}");
            }
        }
        assert!(!made.iter().any(|path| path.to_string_lossy().contains("turnfs")), "{name}: {made:?}");
    });
}

#[test]
fn a_session_that_links_lead_to_is_listed_once() {
    let store = TestStore::from_sample("a-plain");
    let session = find(&store.root, "76d7e8ac2706");
    symlink(&session, session.with_file_name("11111111-2222-4333-8444-555555555555")).unwrap();
    symlink(session.parent().unwrap(), store.root.join("sessions/ffffffffffffffffffffffffffffffff")).unwrap();
    assert_eq!(only(&store)["project"], "/home/dev/projects/work/a-plain");

    let store = TestStore::of("codex", "a_plain4");
    symlink("2026", store.root.join("sessions/2025")).unwrap();
    symlink("../sessions", store.root.join("sessions/round")).unwrap();
    assert_eq!(only(&store)["turns"], 4);
}

#[test]
fn a_mount_shows_a_session_behind_links_and_hears_what_happens_there() {
    for (agent, sample, link) in [("kimi-cli", "a-plain", "sessions"), ("codex", "a_plain4", "sessions/2026")]
    {
        let store = TestStore::of(agent, sample);
        let target = moved_away(&store, &find(&store.root, link), Spelled::Absolute);
        let mount = store.mount::<&str>(&[]);
        let session = mount.session(&store, None);
        assert!(std::fs::read_to_string(session.join("turns/000")).unwrap().contains("## User"));
        std::fs::write(session.join("undo"), "2\n").unwrap();
        assert_eq!(std::fs::read_dir(session.join("turns")).unwrap().count(), 2, "{agent}");
        std::fs::write(session.join("redo"), "last\n").unwrap();
        assert_eq!(std::fs::read_dir(session.join("turns")).unwrap().count(), 4, "{agent}");
        let status = || std::fs::read_to_string(mount.path.join(".turnfs/status")).unwrap();
        until(|| status().contains(&format!("watch: {agent} pushed")), "what is behind the link is watched");

        // The link leads to another disk now, which has no such session.
        let other = store.home.join("other disk");
        std::fs::create_dir(&other).unwrap();
        let path = find(&store.root, link);
        std::fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        until(|| !session.exists(), "the session is gone");
        // And back; what is written there now is seen, too.
        std::fs::remove_file(&path).unwrap();
        symlink(&target, &path).unwrap();
        until(|| session.join("turns/003").exists(), "the session is back");
        std::fs::remove_dir_all(&target).unwrap();
        std::fs::create_dir(&target).unwrap();
        until(|| !session.exists(), "the session is deleted");
    }
}

#[test]
fn a_transcript_behind_a_link_that_grows_is_shown_as_it_is() {
    let store = TestStore::of("codex", "a_plain4_legacy");
    let real = moved_away(&store, &find(&store.root, ".jsonl"), Spelled::Relative);
    let whole = std::fs::read(&real).unwrap();
    let mount = store.mount::<&str>(&[]);
    let session = mount.session(&store, None);
    std::fs::write(session.join("undo"), "1\n").unwrap();
    assert_eq!(std::fs::read_dir(session.join("turns")).unwrap().count(), 1);
    std::fs::write(&real, &whole).unwrap();
    until(|| session.join("turns/003").exists(), "what came back is seen");
    // By a new file at the link's end.
    std::fs::write(real.with_extension("new"), &whole[..whole.len() / 2]).unwrap();
    std::fs::rename(real.with_extension("new"), &real).unwrap();
    until(|| !session.join("turns/003").exists(), "what was replaced is seen");
}

#[track_caller]
fn until(is_so: impl Fn() -> bool, what: &str) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "{what}: not within 20 s");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
