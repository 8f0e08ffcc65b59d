//! Sessions made of what undos removed, at every turn of the samples.

use turnfs::agents::{open, store_of};
use turnfs::cut;
use turnfs::session::{AgentKind, Errno, History, TurnDetail};

use super::store::{Sample, Store, samples_of};

/// What a session shows: for each turn its prompt, its outcome, and the sizes of its text and of its records.
type Shown = Vec<(Option<String>, &'static str, u64, u64)>;

fn shown(history: &History) -> Shown {
    let turns = history.turns.iter();
    turns.map(|t| (t.prompt.clone(), t.status.name(), t.text_len, t.record_bytes())).collect()
}

/// Whether the size of records tells a history: where undone records stay in the transcript, some of them (the prompt
/// that was removed) are the last turn's from then on.
fn comparable(kind: AgentKind, shown: Shown) -> Shown {
    match kind {
        AgentKind::KimiCode => {
            shown.into_iter().map(|(prompt, status, text, _)| (prompt, status, text, 0)).collect()
        }
        _ => shown,
    }
}

/// The session with this id, as its agent reads it.
fn session(store: &Store, id: &str) -> History {
    let found = open(store.kind, &*store.root()).discover().unwrap().sessions.clone();
    let session = found.iter().find(|session| session.id == id).expect("the fork is listed");
    let history = store_of(session).load(session).unwrap();
    history.readable().unwrap();
    history
}

/// Does it, and puts the store's shared index back: a fork has a later time than any session of its project, so the
/// next one would have to wait for the next second.
fn on_its_own<T>(store: &Store, act: impl FnOnce() -> T) -> T {
    let index = store.root().join("sessions/index.json");
    let before = std::fs::read(&index).ok();
    let done = act();
    if let Some(before) = before {
        std::fs::write(&index, before).unwrap();
    }
    done
}

/// Lets the entries of OpenMax's index be a minute older, as if the undo had been made then: a fork waits until its
/// second is a later one.
fn a_minute_passes(store: &Store) {
    let index = store.root().join("sessions/index.json");
    let Ok(bytes) = std::fs::read(&index) else { return };
    let mut entries: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    for entry in entries.as_array_mut().unwrap() {
        let at = entry["updated_at"].as_u64().unwrap();
        entry["updated_at"] = (at - 60).into();
    }
    std::fs::write(&index, serde_json::to_vec(&entries).unwrap()).unwrap();
}

/// What a fork of the untouched session at each turn shows; `None` where it is refused.
fn forks(sample: &Sample) -> Vec<Option<Shown>> {
    let store = sample.copy();
    let turns = store.history().turns;
    let fork = |n: u32| store.fork(n).ok().map(|id| shown(&session(&store, &id)));
    turns.iter().map(|turn| on_its_own(&store, || fork(turn.n))).collect()
}

fn branch(store: &Store, number: u32, n: u32) -> Result<(String, u32), turnfs::session::Refusal> {
    cut::fork_undone(&*store_of(&store.session()), &store.state(), &store.session(), number, Some(n))
}

/// Compares the forks of what an undo removed with those that were made when nothing was undone.
fn check(sample: &Sample, store: &Store, number: u32, wanted: &[Option<Shown>], what: &str) -> u64 {
    let undone = cut::undone(&store.state(), &store.session().key).unwrap();
    let undone = undone.into_iter().find(|undone| undone.number == number).expect("it is there");
    let mut made = 0;
    for turn in &undone.turns {
        let what = format!("{}, {what}, undone/{number}, turn {}", sample.name, turn.n);
        on_its_own(store, || match (branch(store, number, turn.n), &wanted[turn.n as usize]) {
            (Ok((id, n)), Some(wanted)) => {
                assert_eq!(n, turn.n, "{what}");
                let (now, wanted) = (shown(&session(store, &id)), wanted.clone());
                let same = comparable(sample.kind, now) == comparable(sample.kind, wanted);
                assert!(same, "{what}: another history");
                made += 1;
            }
            (Err(refusal), None) => {
                assert_ne!(refusal.errno(), Errno::IO, "{what}: {refusal}");
            }
            // Nobody can be at these turns any more.
            (Ok(_), None) if turn.detail == Some(TurnDetail::Open) => {}
            (Ok(_), None) => panic!("{what}: a fork of the session itself is refused"),
            (Err(refusal), Some(_)) => panic!("{what}: {refusal}"),
        });
    }
    made
}

fn every_branch_of(kind: AgentKind) -> u64 {
    let mut made = 0;
    for (index, sample) in samples_of(kind).into_iter().enumerate() {
        let wanted = forks(&sample);
        let turns = wanted.len() as u32;
        for n in 0..turns {
            if n != 0 && n != turns / 2 && index % 3 != 0 {
                continue;
            }
            let store = sample.copy();
            if store.undo(n).is_err() {
                continue;
            }
            a_minute_passes(&store);
            made += check(&sample, &store, 1, &wanted, &format!("undo {n}"));
            // A deeper undo on top: what lies between the two is only in its backup.
            if n > 0 && store.undo(n / 2).is_ok() {
                a_minute_passes(&store);
                made += check(&sample, &store, 1, &wanted, &format!("undo {n}, undo {}", n / 2));
                made += check(&sample, &store, 2, &wanted, &format!("undo {n}, undo {}", n / 2));
            }
        }
    }
    made
}

#[test]
fn every_undone_turn_of_kimi_sessions_can_be_forked() {
    assert!(every_branch_of(AgentKind::KimiCli) > 60);
}

#[test]
fn every_undone_turn_of_kimi_code_sessions_can_be_forked() {
    assert!(every_branch_of(AgentKind::KimiCode) > 30);
}

#[test]
fn every_undone_turn_of_codex_threads_can_be_forked() {
    assert!(every_branch_of(AgentKind::Codex) > 30);
}

#[test]
fn every_undone_turn_of_openmax_sessions_can_be_forked() {
    assert!(every_branch_of(AgentKind::OpenMax) > 30);
}

/// Goes on in the session: what was removed comes once more, with other words.
fn go_on(store: &Store, before: &[(std::path::PathBuf, Vec<u8>)]) {
    use std::io::Write as _;
    for (file, whole) in before {
        let path = store.root().join(file);
        let Ok(now) = std::fs::read(&path) else { continue };
        if whole.len() <= now.len() || !whole.starts_with(&now) {
            continue;
        }
        let mut other = whole[now.len()..].to_vec();
        for at in memchr::memmem::find_iter(&whole[now.len()..], b"turn") {
            other[at..at + 4].copy_from_slice(b"TURN");
        }
        std::fs::File::options().append(true).open(path).unwrap().write_all(&other).unwrap();
    }
}

#[test]
fn a_branch_can_be_forked_although_the_session_has_gone_on() {
    let cases = [
        (AgentKind::KimiCli, "a-plain"),
        (AgentKind::Codex, "a_plain4_legacy"),
        (AgentKind::OpenMax, "a_plain"),
    ];
    for (kind, name) in cases {
        let sample = samples_of(kind).into_iter().find(|sample| sample.name.starts_with(name)).unwrap();
        let wanted = forks(&sample);
        let store = sample.copy();
        let files = store.session().files;
        let before: Vec<_> = files
            .into_iter()
            .filter_map(|file| Some((file.clone(), std::fs::read(store.root().join(file)).ok()?)))
            .collect();
        store.undo(1).unwrap();
        go_on(&store, &before);
        let gone_on = shown(&store.history());
        assert!(gone_on.len() > 1, "{name}: it went on");
        assert_eq!(store.redo().unwrap_err().errno(), Errno::STALE, "{name}");
        assert!(check(&sample, &store, 1, &wanted, "gone on") > 0);
        assert!(shown(&store.history()) == gone_on, "{name}: the session itself is as it was");
        // And cut again.
        store.undo(1).unwrap();
        check(&sample, &store, 1, &wanted, "gone on and undone");
    }
}

#[test]
fn a_turn_that_the_undo_did_not_remove_and_an_undo_that_is_not_there_are_refused() {
    let sample = samples_of(AgentKind::KimiCli).into_iter().find(|sample| sample.name == "a-plain").unwrap();
    let store = sample.copy();
    assert_eq!(branch(&store, 1, 0).unwrap_err().errno(), Errno::RANGE);
    store.undo(2).unwrap();
    let before = store.snapshot();
    for (number, n) in [(1, 0), (1, 1), (1, 4), (2, 2), (0, 2)] {
        let refusal = branch(&store, number, n).unwrap_err();
        assert_eq!(refusal.errno(), Errno::RANGE, "{number} {n}: {refusal}");
    }
    assert_eq!(store.snapshot(), before);
    let (_, n) =
        cut::fork_undone(&*store_of(&store.session()), &store.state(), &store.session(), 1, None).unwrap();
    assert_eq!(n, 3, "the last finished one");
}

#[test]
fn a_branch_whose_backup_is_gone_is_refused_with_a_sentence() {
    let sample = samples_of(AgentKind::KimiCli).into_iter().find(|sample| sample.name == "a-plain").unwrap();
    let store = sample.copy();
    store.undo(3).unwrap();
    store.undo(1).unwrap();
    let folder = std::fs::read_dir(store.state().path().join("sessions")).unwrap().next().unwrap().unwrap();
    std::fs::remove_dir_all(folder.path().join("undone/2")).unwrap();
    let before = store.snapshot();
    let refusal = branch(&store, 1, 3).unwrap_err();
    assert_eq!(refusal.errno(), Errno::NODATA, "{refusal}");
    assert!(refusal.to_string().contains("pruned"), "{refusal}");
    assert_eq!(store.snapshot(), before);
    assert!(!folder.path().join("branch").exists());
}
