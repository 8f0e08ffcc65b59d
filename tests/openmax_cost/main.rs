//! What looking at an OpenMax store costs, counted. One test, one process: the counters are the process's.
//! The numbers are those of `docs/stores/openmax.md`, "9. Behaviours by number".

#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code)]

#[path = "../support/racy.rs"]
mod racy;
#[path = "../openmax/store.rs"]
mod store;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use turnfs::catalog::{Catalog, StoreOptions};
use turnfs::host::Environment;
use turnfs::session::AgentKind;
use turnfs::transcript::metrics::{self, ReadKind};

use racy::settle;
use store::Store;

const PRUNED: &str = "d2e4e057-91a4-45b8-ba0f-e987fe44efaa";
const PROJECT: &str = "/home/dev/projects/openmax/c_compact/proj";

fn read(kind: ReadKind) -> u64 {
    metrics::bytes(AgentKind::OpenMax, kind)
}

/// One look as `ls` of the project and `stat` of each turn make it.
fn look(catalog: &Catalog) {
    let project = Some(Path::new(PROJECT));
    let listing = catalog.listing();
    let [listed] = listing.of(project) else { panic!("the project has one session") };
    assert!(catalog.is_current(&listed.session));
    let view = catalog.view(&listed.session.key).unwrap();
    assert_eq!(view.history.turns.len(), 12);
}

/// The time of one `cat` of a turn whose name is known; the best of many, so that noise does not count.
fn time_of_a_turn(catalog: &Catalog) -> Duration {
    let project = Some(Path::new(PROJECT));
    let name = catalog.last_listing().of(project)[0].name.clone();
    let once = || {
        let start = Instant::now();
        let listing = catalog.last_listing();
        let listed = listing.named(project, &name).unwrap();
        assert!(catalog.is_current(&listed.session));
        let view = catalog.view(&listed.session.key).unwrap();
        catalog.span(&view, &view.history.turns[11]).unwrap();
        start.elapsed()
    };
    (0..300).map(|_| once()).min().unwrap()
}

/// Behaviours 1 to 4, 6, 21, 23, 24 and 26 of `docs/stores/openmax.md`.
#[test]
fn only_what_changed_is_read_and_a_large_index_costs_a_turn_nothing() {
    racy::shorten_here();
    let store = Store::of("c_compact");
    settle();
    let options = StoreOptions {
        places: vec![(AgentKind::OpenMax, store.root.clone())],
        only: vec![AgentKind::OpenMax],
    };
    let catalog = Catalog::new(&Environment::default(), &options);

    // 1: read once. 2 and 21: then nothing.
    look(&catalog);
    let index = fs::metadata(store.index()).unwrap();
    assert_eq!(read(ReadKind::Index), index.len());
    let (transcript, parses) = (read(ReadKind::Transcript), metrics::parses());
    for _ in 0..100 {
        look(&catalog);
    }
    assert_eq!(read(ReadKind::Index), index.len());
    assert_eq!((read(ReadKind::Transcript), metrics::parses()), (transcript, parses));
    // A turn that is read costs its own bytes and no more.
    let key = store.session(PRUNED).key.clone();
    let view = catalog.view(&key).unwrap();
    let bytes: u64 =
        view.history.turns.iter().map(|turn| catalog.span(&view, turn).unwrap().len() as u64).sum();
    assert_eq!(read(ReadKind::Transcript) - transcript, bytes);
    let small = time_of_a_turn(&catalog);
    let transcript = read(ReadKind::Transcript);

    // 3: 100,000 entries of other projects, and 4: one write by another program costs one read.
    let own = fs::read_to_string(store.index()).unwrap();
    let own = own.trim_start_matches("[\n").trim_end().trim_end_matches(']').trim_end();
    let other = |n: u32| {
        let id = format!("{n:08x}-0000-4000-8000-000000000000");
        let project = format!("/home/somebody/projects/{n}/{}", "a-long-name-of-a-directory/".repeat(4));
        let title = "a first prompt of some length, as they are";
        format!(
            "  {{\n    \"id\": \"{id}\",\n    \"project\": \"{project}\",\n    \"title\": \"{title}\",\n    \"created_at\": 1,\n    \"updated_at\": 2\n  }}"
        )
    };
    let others: Vec<String> = (0..100_000).map(other).collect();
    fs::write(store.index(), format!("[\n{},\n{own}\n]", others.join(",\n"))).unwrap();
    settle();
    let before = read(ReadKind::Index);
    let start = Instant::now();
    look(&catalog);
    println!("the first look at the large index: {:?}", start.elapsed());
    let large = fs::metadata(store.index()).unwrap();
    assert!(large.len() > 25_000_000, "{}", large.len());
    assert_eq!(read(ReadKind::Index) - before, large.len());
    let start = Instant::now();
    for _ in 0..100 {
        look(&catalog);
    }
    println!("100 looks with {} bytes of index: {:?}", large.len(), start.elapsed());
    assert_eq!(read(ReadKind::Index) - before, large.len());
    assert_eq!(read(ReadKind::Transcript), transcript, "no transcript was read again");
    let with_large = time_of_a_turn(&catalog);
    println!("a turn: {small:?} with 1 entry, {with_large:?} with 100,001");
    assert!(with_large < small * 3 + Duration::from_micros(200), "{small:?} {with_large:?}");
    // 6: reading left it alone.
    let now = fs::metadata(store.index()).unwrap();
    assert_eq!((now.ino(), now.mtime_nsec(), now.len()), (large.ino(), large.mtime_nsec(), large.len()));

    // 23, 24 and 26: an edit that keeps length and mtime, in place and by rename, at once.
    let path = store.transcript(PRUNED);
    let good = fs::read(&path).unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let key = store.session(PRUNED).key.clone();
    let shown = || {
        let view = catalog.view(&key).unwrap();
        let turn = view.history.turns.last().unwrap();
        String::from_utf8(catalog.span(&view, turn).unwrap()).unwrap()
    };
    let edited =
        String::from_utf8(good.clone()).unwrap().replace("ANSWER 5abe2f3a", "ANSWER 00000000").into_bytes();
    assert!(edited != good && edited.len() == good.len());
    for (bytes, word) in
        [(&edited, "ANSWER 00000000"), (&good, "ANSWER 5abe2f3a"), (&edited, "ANSWER 00000000")]
    {
        fs::write(&path, bytes).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert!(shown().contains(word), "an edit in place was not noticed");
    }
    let beside = store.file("beside");
    fs::write(&beside, &good).unwrap();
    fs::File::options().write(true).open(&beside).unwrap().set_modified(modified).unwrap();
    fs::rename(&beside, &path).unwrap();
    assert!(shown().contains("ANSWER 5abe2f3a"), "a rename over it was not noticed");
    fs::remove_file(&path).unwrap();
    fs::write(&path, &edited).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    assert!(shown().contains("ANSWER 00000000"), "a new file under its name was not noticed");

    // 23: damage is refused at the next look, and trusted again when repaired.
    fs::write(&path, [b"damage\n".as_slice(), &good].concat()).unwrap();
    assert!(catalog.view(&key).unwrap().history.readable().is_err());
    fs::write(&path, &good).unwrap();
    assert!(catalog.view(&key).unwrap().history.readable().is_ok());
    settle();
    catalog.view(&key).unwrap(); // the last one that reads it, as the stamp was too young before
    let before = read(ReadKind::Transcript);
    catalog.view(&key).unwrap();
    assert_eq!(read(ReadKind::Transcript), before);

    // 30: gone is never unchanged.
    fs::remove_file(&path).unwrap();
    assert_eq!(catalog.view(&key).unwrap().history.turns.len(), 0);
}
