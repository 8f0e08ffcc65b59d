//! Whether somebody else is at work in a session that is about to be cut.

use std::path::Path;
use std::time::Duration;

use super::disk::Tree;
use super::lease::{HeldByWriter, HeldLocks, OnWriter};
use super::state::Locked;
use super::undone;
use crate::agents::AgentStore;
use crate::host::processes;
use crate::session::{History, Lock, Refusal, Result, Session, Writer};

/// Time between two looks at a file that somebody may be writing.
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

/// Takes a plan's locks; with `force` also where an agent has the files open.
///
/// # Errors
/// [`Refusal::Live`] or [`Refusal::Locked`] with who has them.
pub(super) fn take_hands(
    agent: &dyn AgentStore,
    store: &Tree,
    locks: &[Lock],
    force: bool,
    asked: &str,
) -> Result<HeldLocks> {
    let on_writer = if force { OnWriter::GoOn } else { OnWriter::Refuse };
    HeldLocks::take(store, locks, on_writer)?.map_err(|held| {
        let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (file, evidence) = match &held {
            HeldByWriter::Open(file) => (file, format!("has {} open for writing", name(file))),
            HeldByWriter::OpenAndLinked(file) => {
                (file, format!("has {} open for writing, which has several hard links", name(file)))
            }
            HeldByWriter::Lock { file, .. } => (file, format!("holds {}", name(file))),
        };
        let pid = processes::writer_of(&store.path().join(file));
        match held {
            HeldByWriter::Lock { forcible: false, .. } | HeldByWriter::OpenAndLinked(_) => {
                Refusal::Locked { writer: Writer { agent: agent.kind(), pid, evidence } }
            }
            _ => live(agent, pid, evidence, asked),
        }
    })
}

fn live(agent: &dyn AgentStore, pid: Option<u32>, evidence: String, asked: &str) -> Refusal {
    Refusal::Live { writer: Writer { agent: agent.kind(), pid, evidence }, asked: asked.to_owned() }
}

/// Refuses if the agent seems to be at work in the session, or a file grows between two looks.
pub(super) fn look_for_writer(
    agent: &dyn AgentStore,
    store: &Tree,
    locked: &Locked,
    session: &Session,
    seen: &History,
    asked: &str,
) -> Result<()> {
    if let Some(writer) = agent.writer(session, seen, &processes::Running::default()) {
        // Without a process the evidence is that the files are young; an undo makes them so.
        let is_process = writer.pid.is_some();
        if is_process || !is_as_an_undo_left_it(locked, seen)? {
            return Err(Refusal::Live { writer, asked: asked.to_owned() });
        }
    }
    let lengths = || -> Result<Vec<Option<u64>>> {
        let files = seen.files.iter();
        files.map(|view| Ok(store.stat(&view.file)?.map(|facts| facts.st_size as u64))).collect()
    };
    let first = lengths()?;
    // A session that has grown since it was seen may be growing still: it is watched for longer, so that
    // a writer is told from a change that is over.
    let grown = seen.files.iter().zip(&first).any(|(view, len)| *len > view.len);
    for _ in 0..if grown { 4 } else { 1 } {
        std::thread::sleep(BETWEEN_LOOKS);
        if lengths()? != first {
            let files = seen.files.iter().map(|view| store.path().join(&view.file));
            let pid = files.into_iter().find_map(|file| processes::writer_of(&file));
            return Err(live(agent, pid, "is writing to it right now".into(), asked));
        }
    }
    Ok(())
}

/// Whether nobody wrote to the session since its latest undo.
fn is_as_an_undo_left_it(locked: &Locked, seen: &History) -> Result<bool> {
    let Some(number) = undone::counting_numbers(&locked.folder)?.last().copied() else { return Ok(false) };
    let left = undone::record(&locked.folder, number)?.leaves;
    let there = |len: &Option<u64>| len.is_some();
    let count = seen.files.iter().filter(|view| there(&view.len)).count();
    let same = seen.files.iter().filter(|view| there(&view.len)).all(|view| {
        left.iter().any(|left| *left.file == *view.file && left.len == view.len && left.hash == view.hash)
    });
    Ok(same && left.iter().filter(|left| there(&left.len)).count() == count)
}
