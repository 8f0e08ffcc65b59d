//! The executor with a toy agent. With real stores: `tests/cut/`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod appender;
mod links;
mod several_names;
mod toy;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::*;
use crate::cut::verify::Proof;
use crate::session::{Refusal, TurnDetail};
use toy::{Fixture, TURNS, Toy, snapshot};

#[test]
fn undo_leaves_exactly_the_turns_before_it_and_redo_brings_every_byte_back() {
    for n in 0..TURNS {
        let fixture = Fixture::new();
        std::fs::set_permissions(fixture.path("wire.jsonl"), std::fs::Permissions::from_mode(0o640)).unwrap();
        let before = snapshot(&fixture.root());
        let inode = std::fs::metadata(fixture.path("wire.jsonl")).unwrap().ino();
        let done = fixture.undo(n).unwrap();
        assert_eq!((done.number, done.keeps, done.drops), (1, n, TURNS - n));
        assert_eq!(fixture.prompts(), ["a", "b", "c", "d", "e"][..n as usize]);
        let wire = std::fs::metadata(fixture.path("wire.jsonl")).unwrap();
        assert_eq!((wire.ino(), wire.mode() & 0o777), (inode, 0o640), "the inode and its mode stay");
        assert_eq!(fixture.redo(None).unwrap(), (1, TURNS - n));
        assert_eq!(snapshot(&fixture.root()), before, "undo {n}, redo");
        assert!(undone(&fixture.state, &fixture.session.key).unwrap().is_empty());
    }
}

#[test]
fn undos_stack_and_keep_their_numbers_and_what_they_removed_stays_readable() {
    let fixture = Fixture::new();
    let states: Vec<_> = [4, 2, 1]
        .into_iter()
        .map(|n| {
            let before = snapshot(&fixture.root());
            fixture.undo(n).unwrap();
            before
        })
        .collect();
    let list = undone(&fixture.state, &fixture.session.key).unwrap();
    let numbers: Vec<_> = list.iter().map(|undone| (undone.number, undone.turns.len())).collect();
    assert_eq!(numbers, [(1, 1), (2, 2), (3, 1)]);
    let text = |turn| String::from_utf8(undone_span(&list[1], turn).unwrap()).unwrap();
    assert_eq!(text(&list[1].turns[0]), "Tc\nx2\n");
    assert_eq!(text(&list[1].turns[1]), "Td\nx3\nC\n");
    assert_eq!(list[1].turns[1].detail, Some(TurnDetail::Command));

    // A redo that is not the latest undo has moved on; nothing is lost by asking.
    let refusal = fixture.redo(Some(1)).unwrap_err();
    assert_eq!(refusal.errno(), Errno::STALE, "{refusal}");
    for (number, before) in [3, 2, 1].into_iter().zip(states.into_iter().rev()) {
        assert_eq!(fixture.redo(None).unwrap().0, number);
        assert_eq!(snapshot(&fixture.root()), before);
    }
    assert_eq!(fixture.redo(None).unwrap_err().errno(), Errno::RANGE);
    assert_eq!(fixture.undo(3).unwrap().number, 4, "a number is never used again");
}

#[test]
fn redo_refuses_when_the_session_moved_on_and_the_removed_turns_stay_readable() {
    let fixture = Fixture::new();
    fixture.undo(2).unwrap();
    append(&fixture.path("context.jsonl"), "Tz\n");
    let before = snapshot(&fixture.root());
    let refusal = fixture.redo(None).unwrap_err();
    assert_eq!(refusal.errno(), Errno::STALE, "{refusal}");
    assert_eq!(snapshot(&fixture.root()), before);
    assert_eq!(undone(&fixture.state, &fixture.session.key).unwrap()[0].turns.len(), 3);
    assert_eq!(fixture.redo(Some(7)).unwrap_err().errno(), Errno::RANGE);
}

#[test]
fn fork_makes_a_private_session_with_the_kept_bytes_and_leaves_the_source_alone() {
    for n in 0..TURNS {
        let fixture = Fixture::new();
        let before = snapshot(&fixture.root());
        let id = fixture.fork(n).unwrap();
        let mut after = snapshot(&fixture.root());
        let fork = Path::new("group").join(&id);
        let new: Vec<_> = after.iter().filter(|(path, ..)| path.starts_with(&fork)).cloned().collect();
        after.retain(|(path, ..)| !path.starts_with(&fork));
        assert_eq!(after, before);
        for (path, mode, _) in &new {
            assert!(matches!(mode & 0o777, 0o600 | 0o700), "{} has {mode:o}", path.display());
        }
        let wire = std::fs::read_to_string(fixture.root().join(&fork).join("wire.jsonl")).unwrap();
        assert_eq!(wire.matches('T').count() as u32, n + 1);
    }
}

#[test]
fn a_change_since_the_view_is_stale_and_force_accepts_only_growth() {
    let fixture = Fixture::new();
    let seen = fixture.load();
    append(&fixture.path("wire.jsonl"), "Tf\n");
    let before = snapshot(&fixture.root());
    let undo = |force| execute::undo(&Toy, &fixture.state, &fixture.session, &seen, 2, force);
    assert_eq!(undo(false).unwrap_err().errno(), Errno::STALE);
    assert_eq!(snapshot(&fixture.root()), before);
    undo(true).unwrap();
    assert_eq!(fixture.prompts(), ["a", "b"]);
    fixture.redo(None).unwrap();
    assert_eq!(snapshot(&fixture.root()), before, "what had grown comes back too");

    let changed = std::fs::read_to_string(fixture.path("wire.jsonl")).unwrap().replace("x0", "X0");
    std::fs::write(fixture.path("wire.jsonl"), changed).unwrap();
    assert_eq!(undo(true).unwrap_err().errno(), Errno::STALE);
}

#[test]
fn a_last_record_without_newline_gets_one_when_it_is_kept() {
    let fixture = Fixture::new();
    let context = fixture.path("context.jsonl");
    std::fs::write(&context, "h3").unwrap();
    std::fs::write(fixture.path("wire.jsonl"), "H\nTa\nTb\nC\nTc\nTd\nC\nTe\nTf\n").unwrap();
    let before = snapshot(&fixture.root());
    fixture.undo(4).unwrap();
    assert_eq!(std::fs::read_to_string(&context).unwrap(), "h3\n");
    fixture.redo(None).unwrap();
    assert_eq!(snapshot(&fixture.root()), before);
}

#[test]
fn of_many_equal_undos_at_once_one_cuts_and_the_others_are_refused() {
    for _ in 0..10 {
        let fixture = Fixture::new();
        let seen = fixture.load();
        let results: Vec<_> = std::thread::scope(|scope| {
            let undo = || execute::undo(&Toy, &fixture.state, &fixture.session, &seen, 3, true);
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(undo)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
        for refusal in results.into_iter().filter_map(Result::err) {
            assert!(matches!(refusal.errno(), Errno::STALE | Errno::RANGE), "{refusal}");
        }
        assert_eq!(fixture.prompts(), ["a", "b", "c"]);
    }
}

#[test]
fn a_result_that_does_not_read_as_promised_is_put_back() {
    /// Reads one turn less than there is after the cut.
    struct Liar;
    impl crate::agents::AgentStore for Liar {
        fn root(&self) -> &std::sync::Arc<Path> {
            Toy.root()
        }
        fn load_again(&self, session: &Session, _: &mut crate::transcript::Passes) -> Result<History> {
            let mut history = Toy.load(session)?;
            history.turns.pop();
            Ok(history)
        }
        fn undo_refusals(&self, s: &Session, h: &History) -> Result<Vec<Result<()>>> {
            Toy.undo_refusals(s, h)
        }
        fn plan_undo(&self, s: &Session, h: &History, n: u32) -> Result<crate::session::UndoPlan> {
            Toy.plan_undo(s, h, n)
        }
        fn plan_fork(
            &self,
            s: &Session,
            h: &History,
            n: u32,
            project: Option<&Path>,
        ) -> Result<crate::session::ForkPlan> {
            Toy.plan_fork(s, h, n, project)
        }
        fn resume(&self, session: &Session, history: &History) -> Option<Vec<Vec<String>>> {
            Toy.resume(session, history)
        }

        fn writer(
            &self,
            _: &Session,
            _: &History,
            _: &crate::host::processes::Running,
        ) -> Option<crate::session::Writer> {
            None
        }
        fn kind(&self) -> crate::session::AgentKind {
            Toy.kind()
        }
        fn discover(&self) -> Result<std::sync::Arc<crate::agents::Discovery>> {
            Toy.discover()
        }
        fn items(
            &self,
            _: &Session,
            _: &crate::session::Turn,
            _: &[u8],
            _: &mut crate::session::ItemSink<'_>,
        ) -> Result<()> {
            Ok(())
        }
        fn prompt(&self, _: &Session, _: &crate::session::Turn, _: &[u8]) -> Result<String> {
            Ok(String::new())
        }
        fn context(&self, _: &Session, _: &History, _: &mut crate::session::ItemSink<'_>) -> Result<()> {
            Ok(())
        }
        fn subagents(&self, _: &Session) -> Result<Vec<Session>> {
            Ok(Vec::new())
        }
    }
    let fixture = Fixture::new();
    let (before, seen) = (snapshot(&fixture.root()), fixture.load());
    let times = |fixture: &Fixture| {
        ["wire.jsonl", "context.jsonl", "context_2.jsonl"]
            .map(|file| std::fs::metadata(fixture.path(file)).unwrap().modified().unwrap())
    };
    let old_times = times(&fixture);
    for n in 1..TURNS {
        let refusal = execute::undo(&Liar, &fixture.state, &fixture.session, &seen, n, false).unwrap_err();
        assert!(matches!(refusal, Refusal::NotAsPromised { .. }), "{refusal}");
        let refusal =
            fork::fork(&Liar, &fixture.state, &fixture.session, &seen, n, Proof::Turns).unwrap_err();
        assert!(matches!(refusal, Refusal::NotAsPromised { .. }), "{refusal}");
        assert_eq!(snapshot(&fixture.root()), before);
    }
    assert_eq!(times(&fixture), old_times, "nor does it look like activity");
    assert!(undone(&fixture.state, &fixture.session.key).unwrap().is_empty());
    assert!(recover(&fixture.state).unwrap().is_empty(), "nothing is left to do");
}

#[test]
fn a_journal_that_does_not_parse_is_kept_and_reported_at_every_start() {
    let fixture = Fixture::new();
    fixture.undo(4).unwrap();
    let folder = std::fs::read_dir(fixture.state.path().join("sessions")).unwrap().next().unwrap().unwrap();
    std::fs::write(folder.path().join("journal.json"), "{ not JSON").unwrap();
    for _ in 0..2 {
        let told = recover(&fixture.state).unwrap();
        assert!(told.len() == 1 && told[0].contains("journal.bad-"), "{told:?}");
    }
    assert_eq!(undone(&fixture.state, &fixture.session.key).unwrap().len(), 1);
    fixture.redo(None).unwrap();
}

#[test]
fn the_state_is_private_and_a_symlink_in_its_place_is_refused() {
    let fixture = Fixture::new();
    fixture.undo(3).unwrap();
    for (path, mode, _) in snapshot(fixture.state.path()) {
        let private = if mode & 0o170000 == 0o040000 { 0o700 } else { 0o600 };
        assert_eq!(mode & 0o777, private, "{}", path.display());
    }
    let link = fixture.dir.path().join("link");
    std::os::unix::fs::symlink(fixture.state.path(), &link).unwrap();
    assert!(undone(&StateDir::at(&link), &fixture.session.key).is_err());
}

#[test]
fn prune_deletes_old_backups_and_those_of_deleted_sessions_only() {
    let fixture = Fixture::new();
    fixture.undo(4).unwrap();
    fixture.undo(2).unwrap();
    let year = Duration::from_secs(365 * 86_400);
    assert!(prune(&fixture.state, year, false).unwrap().is_empty());
    assert_eq!(prune(&fixture.state, Duration::ZERO, true).unwrap().len(), 2);
    assert_eq!(undone(&fixture.state, &fixture.session.key).unwrap().len(), 2, "a dry run deletes nothing");
    std::fs::remove_dir_all(fixture.path("")).unwrap();
    let pruned = prune(&fixture.state, year, false).unwrap();
    assert_eq!(
        pruned.iter().map(|p| (p.number, p.turns, p.session_gone)).collect::<Vec<_>>(),
        [(1, 1, true), (2, 2, true)]
    );
    assert!(undone(&fixture.state, &fixture.session.key).unwrap().is_empty());
}

#[test]
fn a_client_that_appends_between_crash_and_recovery_keeps_its_records() {
    let fixture = Fixture::new();
    let whole = std::fs::read(fixture.path("wire.jsonl")).unwrap();
    fixture.undo(2).unwrap();
    // As a kill just before the commit would leave it.
    let folder = std::fs::read_dir(fixture.state.path().join("sessions")).unwrap().next().unwrap().unwrap();
    std::fs::rename(folder.path().join("undone/1/undo.json"), folder.path().join("journal.json")).unwrap();
    append(&fixture.path("wire.jsonl"), "Tnew\n");
    let told = recover(&fixture.state).unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    let mut wanted = whole;
    wanted.extend_from_slice(b"Tnew\n");
    assert_eq!(std::fs::read(fixture.path("wire.jsonl")).unwrap(), wanted);
}

#[test]
fn who_reads_a_file_in_the_middle_of_a_cut_waits_for_its_end() {
    use super::lease::{HeldLocks, OnWriter};
    let fixture = Fixture::new();
    let store = super::disk::Tree::open(&fixture.root()).unwrap();
    let wire = fixture.session.files[0].clone();
    let locks = [crate::session::Lock::Lease { file: wire.clone() }];
    let Ok(hands) = HeldLocks::take(&store, &locks, OnWriter::Refuse).unwrap() else {
        panic!("nobody has it")
    };
    let cut = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        drop(hands);
    });
    let reader = crate::transcript::StoreDir::open(&fixture.root()).unwrap().unwrap();
    assert!(reader.file(&wire).unwrap().is_some());
    cut.join().unwrap();
}

fn append(path: &Path, text: &str) {
    use std::io::Write as _;
    let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}
