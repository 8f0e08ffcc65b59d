//! The search through many sessions, on several threads, in their order.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

use super::line::{Shown, shown};
use super::query::Query;
use crate::agents;
use crate::catalog::{Catalog, Listed, View};
use crate::session::{FileView, Refusal, Result, Session, State, Turn};
use crate::transcript::{self, StoreDir};

/// How many sessions the fastest thread may be ahead of what was handed out: bounds what waits in memory.
const AHEAD: usize = 64;
/// How often a session that changes while it is searched is searched again.
const ATTEMPTS: u32 = 3;

/// A turn that was found.
#[derive(Clone, Debug)]
pub struct Hit {
    pub turn: u32,
    /// [`View::turn_version`]: the turn still has the words while it has this version.
    pub version: Option<u64>,
    pub shown: Shown,
}

/// A session, or a sub-agent of one, with turns that were found; the last turn first.
#[derive(Clone, Debug)]
pub struct Matching {
    /// `None`: the session is unplaced.
    pub project: Option<PathBuf>,
    pub listed: Listed,
    /// The sub-agent's session that has the turns; `None`: the session itself.
    pub subagent: Option<Arc<Session>>,
    /// The turns are those before the damage of a damaged session.
    pub salvaged: bool,
    pub hits: Vec<Hit>,
}

/// What came of the search through one session.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The session itself, then its sub-agents.
    pub found: Vec<Matching>,
    /// What could not be searched, by the session's id.
    pub unsearched: Vec<(String, Refusal)>,
}

/// A session to search, and its project (`None`: unplaced).
pub type Searched = (Option<PathBuf>, Listed);

/// How a search reads sessions.
#[derive(Clone, Copy, Debug)]
pub struct Reads {
    /// On how many threads.
    pub threads: usize,
    /// Whether what was read of sessions in which something was found is kept in memory.
    pub keep: bool,
}

/// Searches these sessions, and gives what came of each to `sink`, in their order, as soon as all
/// before it are done; until `sink` breaks off or `stop` is set.
pub fn search(
    catalog: &Catalog,
    query: &Query,
    sessions: &[Searched],
    reads: Reads,
    stop: &AtomicBool,
    mut sink: impl FnMut(Outcome) -> ControlFlow<()>,
) {
    let queue = Queue { next: AtomicUsize::new(0), state: Mutex::default(), changed: Condvar::new() };
    std::thread::scope(|scope| {
        for _ in 0..reads.threads.clamp(1, sessions.len().max(1)) {
            scope.spawn(|| {
                queue.work(sessions, stop, |session| of_session(catalog, query, session, reads, stop))
            });
        }
        for at in 0..sessions.len() {
            let Some(outcome) = queue.take(at, stop) else { break };
            if sink(outcome).is_break() {
                break;
            }
        }
        queue.end();
    });
}

/// What is searched next, and what is done.
struct Queue {
    next: AtomicUsize,
    state: Mutex<Done>,
    changed: Condvar,
}

#[derive(Default)]
struct Done {
    /// By the session's place.
    outcomes: BTreeMap<usize, Outcome>,
    /// How many were handed out.
    taken: usize,
    /// Nothing more is wanted.
    ended: bool,
}

impl Queue {
    /// Searches one session after the other.
    fn work(&self, sessions: &[Searched], stop: &AtomicBool, of: impl Fn(&Searched) -> Outcome) {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(session) = sessions.get(at) else { return };
            {
                let mut state = self.state.lock();
                while !state.ended && at >= state.taken + AHEAD {
                    self.changed.wait(&mut state);
                }
                if state.ended || stop.load(Ordering::Relaxed) {
                    // Whoever waits for this one must not wait for ever.
                    state.ended = true;
                    self.changed.notify_all();
                    return;
                }
            }
            // A bug costs one session, not the search.
            let outcome = catch_unwind(AssertUnwindSafe(|| of(session))).unwrap_or_else(|_| {
                let refusal = Refusal::Internal { what: "the search panicked".into() };
                Outcome { unsearched: vec![(session.1.session.id.clone(), refusal)], ..Outcome::default() }
            });
            self.state.lock().outcomes.insert(at, outcome);
            self.changed.notify_all();
        }
    }

    /// Waits for what came of the session at this place; `None`: the search was stopped.
    fn take(&self, at: usize, stop: &AtomicBool) -> Option<Outcome> {
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = state.outcomes.remove(&at) {
                state.taken = at + 1;
                self.changed.notify_all();
                return (!stop.load(Ordering::Relaxed)).then_some(outcome);
            }
            if state.ended {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }
}

/// Searches a session and its sub-agents.
fn of_session(
    catalog: &Catalog,
    query: &Query,
    (project, listed): &Searched,
    reads: Reads,
    stop: &AtomicBool,
) -> Outcome {
    let mut outcome = Outcome::default();
    let own = [(None, listed.session.clone())];
    let subagents = catalog.subagents(&listed.session).unwrap_or_else(|refusal| {
        outcome.unsearched.push((listed.session.id.clone(), refusal));
        Vec::new()
    });
    let subagents = subagents.into_iter().map(|agent| (Some(agent.clone()), agent));
    for (subagent, session) in own.into_iter().chain(subagents) {
        match steady(|| turns(catalog, query, &session, reads, stop)) {
            Ok((_, hits)) if hits.is_empty() => {}
            Ok((salvaged, hits)) => outcome.found.push(Matching {
                project: project.clone(),
                listed: listed.clone(),
                subagent,
                salvaged,
                hits,
            }),
            // It was deleted meanwhile.
            Err(Refusal::NotFound { .. }) => {}
            Err(refusal) => outcome.unsearched.push((session.id.clone(), refusal)),
        }
    }
    outcome
}

/// Tries again what found its session changed.
fn steady<T>(attempt: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(Refusal::Changed { .. }) => {}
            done => return done,
        }
    }
    attempt()
}

/// The turns of a session that have all of the query, the last one first; and whether they are those before a damage.
fn turns(
    catalog: &Catalog,
    query: &Query,
    session: &Arc<Session>,
    reads: Reads,
    stop: &AtomicBool,
) -> Result<(bool, Vec<Hit>)> {
    if !query.sieve().passes_session(&*catalog.store_of(&session.key)?, session, stop)? {
        return Ok((false, Vec::new()));
    }
    let once = catalog.view_once(session)?;
    let view = once.view.clone();
    let salvaged = view.history.state == State::Damaged;
    let all = match salvaged {
        true => view.history.sound(),
        false => {
            view.history.readable()?;
            &view.history.turns
        }
    };
    let unpacked = Unpacked::of(&view)?;
    let mut hits = Vec::new();
    for turn in all.iter().rev() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let span = match unpacked.holds(turn) {
            true => unpacked.span(turn)?,
            false => catalog.span(&view, turn)?,
        };
        if query.sieve().passes(&span) {
            let text = agents::turn_text(&*view.store, &view.session, turn, &span)?;
            let version = view.turn_version(turn.n);
            hits.extend(shown(query, &text).map(|shown| Hit { turn: turn.n, version, shown }));
        }
    }
    if reads.keep && !hits.is_empty() {
        catalog.keep(once);
    }
    Ok((salvaged, hits))
}

/// The plain content of the compressed files of a session: each turn of it would be unpacked from the file's start.
struct Unpacked(Vec<(PathBuf, File)>);

impl Unpacked {
    /// Unpacks what this view was read from.
    ///
    /// # Errors
    /// [`Refusal::Changed`] if it is something else now; and what prevents unpacking.
    fn of(view: &View) -> Result<Unpacked> {
        let packed = view.history.files.iter().filter(|seen| transcript::is_packed(&seen.file));
        let root = &view.session.key.root;
        let unpack = |seen: &FileView| {
            let changed = || Refusal::Changed { what: seen.file.display().to_string() };
            let store = StoreDir::open(root)?.ok_or_else(changed)?;
            let opened = store.file(&seen.file)?.ok_or_else(changed)?;
            let plain = transcript::plain(opened, &root.join(&seen.file))?;
            // Compared behind it: what was unpacked in between were these bytes, too.
            let same = transcript::hash_in(&store, &seen.file)? == (seen.len, seen.hash);
            if same { Ok((seen.file.clone(), plain)) } else { Err(changed()) }
        };
        Ok(Unpacked(packed.map(unpack).collect::<Result<_>>()?))
    }

    fn file(&self, name: &Path) -> Option<&File> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, file)| file)
    }

    fn holds(&self, turn: &Turn) -> bool {
        turn.ranges().all(|(file, _)| self.file(file).is_some())
    }

    /// The record bytes of a turn.
    fn span(&self, turn: &Turn) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for (name, range) in turn.ranges() {
            let changed = || Refusal::Changed { what: name.display().to_string() };
            let file = self.file(name).ok_or_else(changed)?;
            bytes.extend(transcript::read_span(file, name, range)?.ok_or_else(changed)?);
        }
        Ok(bytes)
    }
}
