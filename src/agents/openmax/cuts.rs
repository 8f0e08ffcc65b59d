//! Cuts of this store as steps. Facts: `docs/stores/openmax.md`, "4. Locks" to "6. Undo N in place".
//!
//! The client's own locks are taken in its order. A fork copies the files and appends an entry; an undo
//! changes the entry first, then the transcript, and moves the sidecars away last.

use std::path::{Path, PathBuf};

use super::history::{Keep, Loaded};
use super::index::{self, Index};
use super::layout::{Files, INDEX, INDEX_LOCK, read_whole};
use super::records::Message;
use super::writer;
use crate::agents::Companion;
use crate::host::processes::Running;
use crate::session::{
    Changes, Content, EntryEdit, ForkPlan, History, IndexEdit, Lock, NewFiles, Part, Piece, Place, Plan,
    Postcondition, Refusal, Result, Session, State, Step, TurnStatus, UndoPlan,
};
use crate::transcript::{self, StoreDir};

/// The session without turn `n` and everything after it.
pub(super) fn plan_undo(session: &Session, history: &History, n: u32) -> Result<UndoPlan> {
    let files = Files::of(&session.key);
    require_entry(session, history, &files)?;
    require_turns(history)?;
    // It also refuses what the boundary refuses; where to cut is told by the messages, read once more below.
    history.undo_point(n)?;
    let loaded = as_seen(session, history, &files)?;
    let keep = loaded.keep(&files, n as usize)?;
    let edit = EntryEdit::Cut {
        id: session.id.clone(),
        messages: loaded.messages_kept(n as usize, &keep),
        rewritten: matches!(keep, Keep::Full { .. }),
        empty: n == 0,
    };
    let mut locks = vec![
        Lock::Flock { file: INDEX_LOCK.into(), create: true },
        // Nobody can take it while the index's lock is held, so it need not be there.
        Lock::Claim { file: files.lock.clone() },
    ];
    let mut steps = Vec::new();
    match keep {
        Keep::Prefix { bytes } => {
            locks.push(Lock::Lease { file: files.messages.clone() });
            steps.push(Step::KeepPrefix { file: files.messages.clone(), bytes });
            for (view, pieces) in loaded.beside(&files) {
                let file = view.file.clone();
                steps.extend(match pieces {
                    None => None,
                    Some(pieces) if pieces.is_empty() => Some(Step::MoveAside { file }),
                    Some(pieces) => Some(Step::Replace { file, content: of_pieces(pieces) }),
                });
            }
        }
        Keep::Full { pieces } => {
            steps.push(Step::Replace { file: files.messages.clone(), content: of_pieces(pieces) });
            // They hold what was undone, and would give it to the next digest.
            let sidecars =
                loaded.sidecars.iter().map(|(view, _)| Step::MoveAside { file: view.file.clone() });
            steps.extend(sidecars);
        }
    }
    let promise = Postcondition::of(session, files.messages, n);
    Ok(Plan {
        made: Changes { steps, rows: None },
        entry: Some(IndexEdit { index: INDEX.into(), edit }),
        locks,
        based_on: history.files.clone(),
        promise,
    })
}

/// Why no turn of such a session can be left out alone.
pub(super) fn pruned() -> Refusal {
    let what = "this session was pruned, and what a prune left is about all turns before it";
    Refusal::cannot_cut(what, "fork up to the turn before the one that you would leave out")
}

/// The index and the session's other files.
pub(super) fn companions(session: &Session, _: &[PathBuf]) -> Result<Vec<Companion>> {
    let Some(store) = StoreDir::open(&session.key.root)? else { return Ok(Vec::new()) };
    Companion::of(&store, [PathBuf::from(INDEX)].into_iter().chain(session.sidecars.iter().cloned()))
}

/// What the last look at the index says; a cut asks the index itself, which may be large.
pub(super) fn undo_refusals(session: &Session, history: &History) -> Result<Vec<Result<()>>> {
    require_turns(history)?;
    match (&session.title, &session.place) {
        // Only the index gives titles.
        (None, Place::Unplaced { reason }) => Err(Refusal::ReadOnlySession { what: reason.clone() }),
        _ => Ok(vec![Ok(()); history.turns.len()]),
    }
}

/// The new session that keeps the turns up to and including `n`; of `project` where one is given, else of the
/// source's own.
pub(super) fn plan_fork(
    session: &Session,
    history: &History,
    n: u32,
    project: Option<&Path>,
) -> Result<ForkPlan> {
    let files = Files::of(&session.key);
    let newest = require_entry(session, history, &files)?;
    require_turns(history)?;
    let turn = history.turn(n)?;
    history.cut_before(n + 1)?;
    let last = n as usize + 1 == history.turns.len();
    if last && turn.status != TurnStatus::Complete && writer::writer(session, &Running::default()).is_some() {
        return Err(Refusal::StillRunning { asked: n, last_finished: n.checked_sub(1) });
    }
    let loaded = as_seen(session, history, &files)?;
    let id = uuid::Uuid::new_v4().to_string();
    let new = Files::of_id(&id);
    let mut created = Vec::new();
    let mut create = |file: PathBuf, content| created.push((file, content));
    let keep = match (&history.left_out, loaded.keep(&files, n as usize + 1)?) {
        (Some(left_out), _) => {
            // It is one of the session's turns, which has its number.
            let pieces = loaded.without(&files, n as usize + 2, left_out.n as usize);
            Keep::Full { pieces: pieces.ok_or_else(pruned)? }
        }
        // The note of a prune that only shortened would tell of outputs that the fork does not have.
        (None, Keep::Prefix { bytes }) if loaded.shortened() && !loaded.has_cut_output(bytes) => {
            Keep::Full { pieces: loaded.full(&files, n as usize + 1)? }
        }
        (None, keep) => keep,
    };
    match keep {
        Keep::Prefix { bytes } => match as_is(session, &loaded, &files, bytes, &id)? {
            Some(parts) => {
                create(new.messages.clone(), Content::Parts(parts));
                for (view, pieces) in loaded.beside(&files) {
                    let file = if view.file == files.archive { &new.archive } else { &new.compaction };
                    match pieces {
                        None => create(file.clone(), Content::Whole { file: view.file.clone() }),
                        Some(pieces) if pieces.is_empty() => {}
                        Some(pieces) => create(file.clone(), of_pieces(pieces)),
                    }
                }
            }
            None => {
                let content = match loaded.without_blanks(&files, bytes) {
                    Some(pieces) => of_pieces(pieces),
                    None => Content::Prefix { file: files.messages.clone(), bytes },
                };
                create(new.messages.clone(), content);
            }
        },
        Keep::Full { pieces } => create(new.messages.clone(), of_pieces(pieces)),
    }
    let mut based_on = history.files.clone();
    let root = &session.key.root;
    // In another project the client shall freeze its system prompt anew: the old one names the old path.
    if project.is_none()
        && let (len @ Some(_), hash) = transcript::hash(root, &files.manifest)?
    {
        create(new.manifest.clone(), Content::Whole { file: files.manifest.clone() });
        based_on.push(crate::session::FileView { file: files.manifest.clone(), len, hash });
    }
    if project.is_none() {
        index::wait_until_after(newest);
    }
    let edit =
        EntryEdit::Copy { source: session.id.clone(), id: id.clone(), project: project.map(Path::to_owned) };
    Ok(Plan {
        made: NewFiles::Beside { files: created, rows: None },
        entry: Some(IndexEdit { index: INDEX.into(), edit }),
        locks: vec![Lock::Flock { file: INDEX_LOCK.into(), create: true }],
        based_on,
        promise: Postcondition { session: new.messages.clone(), id, transcript: new.messages, turns: n + 1 },
    })
}

fn of_pieces(pieces: Vec<Piece>) -> Content {
    Content::Parts(pieces.into_iter().map(Part::Piece).collect())
}

/// The parts of a fork that keeps what prunes left: the live lines, with the new session's id in the path to the
/// archive that their note names. `None` where no prune left anything.
fn as_is(
    session: &Session,
    loaded: &Loaded,
    files: &Files,
    bytes: u64,
    id: &str,
) -> Result<Option<Vec<Part>>> {
    let root = &session.key.root;
    let piece = |span| Part::Piece(Piece { file: files.live.clone(), span });
    let note = loaded.whole.as_ref().and_then(|whole| whole.digest.or(whole.shortened));
    let Some(note) = note.and_then(|at| loaded.live.found.get(at)).filter(|note| note.start < bytes) else {
        // A prune that only cut tool outputs left the originals in the archive, and not always a note.
        let archived = loaded.sidecars.iter().any(|(view, _)| view.file == files.archive);
        return Ok((loaded.has_cut_output(bytes) && archived).then(|| vec![piece(0..bytes)]));
    };
    let line = transcript::read_range(root, &files.messages, note.start..note.end)?;
    let renamed = replaced(&line, &session.id, id)
        .ok_or_else(|| Refusal::Changed { what: files.messages.display().to_string() })?;
    Ok(Some(vec![piece(0..note.start), Part::Bytes(renamed), piece(note.end..bytes)]))
}

/// The line with one id instead of another; `None` if it is no message then.
fn replaced(line: &[u8], old: &str, new: &str) -> Option<Vec<u8>> {
    let text = simdutf8::basic::from_utf8(line).ok()?;
    let text = if old.is_empty() { text.to_owned() } else { text.replace(old, new) };
    Message::parse(text.as_bytes()).ok()?;
    Some(text.into_bytes())
}

/// The session read again: the plan needs more of it than its history tells.
///
/// # Errors
/// [`Refusal::Changed`] if it is not what `history` was made from.
fn as_seen(session: &Session, history: &History, files: &Files) -> Result<Loaded> {
    let loaded = Loaded::read(&session.key.root, files)?;
    let same = |file: &Path| {
        let view = |history: &History| history.files.iter().find(|view| view.file == *file).cloned();
        view(history) == view(&loaded.history)
    };
    match [&files.messages, &files.archive, &files.compaction].into_iter().find(|file| !same(file)) {
        None => Ok(loaded),
        Some(file) => Err(Refusal::Changed { what: file.display().to_string() }),
    }
}

fn require_turns(history: &History) -> Result<()> {
    history.readable()?;
    match (history.state, history.cuts.first()) {
        // There is a file, and no complete record in it: that is damage to every cut.
        (State::Empty, Some(Err(refusal))) => Err(refusal.clone()),
        _ => Ok(()),
    }
}

/// The index decides whether a session may be cut; it is asked at every cut, so that a refusal ends as soon
/// as the index is repaired. When the latest session of the same project was worked on, Unix seconds.
fn require_entry(session: &Session, history: &History, files: &Files) -> Result<u64> {
    let root = &session.key.root;
    let had_transcript = history.files.first().is_some_and(|view| view.len.is_some());
    if had_transcript
        && !StoreDir::open(root)?.is_some_and(|s| s.stat(&files.messages).is_ok_and(|s| s.is_some()))
    {
        // Its client deleted it: nothing may bring it back, and the index need not be asked.
        return Err(Refusal::NotFound { what: format!("the session {}", session.id) });
    }
    let unlisted = |what: &str| Refusal::ReadOnlySession {
        what: format!("{what}, so openmax does not find this session"),
    };
    let store = StoreDir::open(root)?.ok_or_else(|| unlisted("the store is not there"))?;
    let bytes = read_whole(&store, Path::new(INDEX))?.ok_or_else(|| unlisted("the index is not there"))?;
    let parsed = Index::parse(&bytes).map_err(index::refuse)?;
    match parsed.only(&bytes, &session.id).map_err(index::refuse)? {
        Some(at) => Ok(parsed.newest_beside(at)),
        None => Err(unlisted("the index has no entry for it")),
    }
}
