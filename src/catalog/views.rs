//! Histories in memory, and when they may be shown: only after the stamps of every file that they came
//! from were compared with the disk.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashlink::LruCache;
use jiff::Timestamp;
use parking_lot::Mutex;

use super::stamps::{Names, are_true, stamps};
use super::{Stamps, View};
use crate::agents::AgentStore;
use crate::host::processes::Running;
use crate::render;
use crate::session::{History, Refusal, Result, Session, SessionKey, State, Turn, TurnStatus};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{self, Evidence, FsTrust, Passes, Stamp};

/// How many histories are kept; the one not used for the longest time goes.
const KEPT: usize = 512;
/// Of how many sessions the passes are kept, so that an append is read alone: those that changed last.
const GROWING: usize = 32;
/// How long the answer to "who has it open" is good for, where the last turn has no end.
const WRITER_GOOD_FOR: Duration = Duration::from_secs(1);
/// The longest transcript, bytes, that is hashed at each look while its stamps prove nothing.
const HASHED_AT_EACH_LOOK: u64 = 1 << 20;
/// How often a session is read again that changes while it is being read.
const ATTEMPTS: u32 = 3;

pub(super) struct Views {
    slots: Mutex<LruCache<SessionKey, Arc<Slot>>>,
    /// The sessions whose passes are kept.
    growing: Mutex<LruCache<SessionKey, Arc<Slot>>>,
}

impl Default for Views {
    fn default() -> Views {
        // One more than are kept while the last one goes.
        let growing = LruCache::new(GROWING + 1);
        Views { slots: Mutex::new(LruCache::new(KEPT)), growing: Mutex::new(growing) }
    }
}

/// A view that was made for a single look.
pub struct Once {
    pub view: Arc<View>,
    /// What is known of the session besides; `None`: it is kept already.
    slot: Option<Arc<Slot>>,
}

/// One session's place in memory. Its lock is held while the session is read, so that it is read once.
#[derive(Default)]
struct Slot {
    /// How often something was heard of the session.
    doubts: AtomicU64,
    known: Mutex<Option<Known>>,
    passes: Mutex<Passes>,
}

struct Known {
    view: Arc<View>,
    stamps: Stamps,
    names: Names,
    /// What stamps on the store's file system are worth. Whatever is mounted there later has other stamps.
    ground: FsTrust,
    /// Before the bytes were read.
    read_at: Timestamp,
    /// [`Slot::doubts`] before that.
    doubts: u64,
    /// What is believed was compared once since then, or cannot be.
    left_believed: bool,
    writer_asked: Instant,
    /// The last turn's status as it was read.
    last_status: Option<TurnStatus>,
}

impl Views {
    /// The view of `key`, true to the disk. `session` tells what is to be read; it is asked only when
    /// something has to be. `running`: who runs now; asked only where the last turn has no end.
    pub fn view(
        &self,
        store: &Arc<dyn AgentStore>,
        key: &SessionKey,
        session: impl Fn() -> Result<Arc<Session>>,
        running: &dyn Fn() -> Arc<Running>,
    ) -> Result<Arc<View>> {
        let slot = self.slot(key);
        let (view, fresh) = slot.view(store, key, session, running)?;
        if fresh {
            self.touch(key, slot);
        }
        Ok(view)
    }

    /// As [`Views::view`], but what was not known before is only kept if [`Views::keep`] is told to.
    pub fn view_once(
        &self,
        store: &Arc<dyn AgentStore>,
        key: &SessionKey,
        session: impl Fn() -> Result<Arc<Session>>,
        running: &dyn Fn() -> Arc<Running>,
    ) -> Result<Once> {
        if self.slots.lock().peek(key).is_some() {
            return Ok(Once { view: self.view(store, key, session, running)?, slot: None });
        }
        let slot = Arc::<Slot>::default();
        let (view, _) = slot.view(store, key, session, running)?;
        Ok(Once { view, slot: Some(slot) })
    }

    /// Keeps what was read for a single look, unless somebody else read the session meanwhile.
    pub fn keep(&self, once: Once) {
        let Some(slot) = once.slot else { return };
        let key = &once.view.session.key;
        let mut slots = self.slots.lock();
        if slots.peek(key).is_none() {
            slots.insert(key.clone(), slot.clone());
            drop(slots);
            self.touch(key, slot);
        }
    }

    pub fn forget(&self, key: &SessionKey) {
        self.slots.lock().remove(key);
    }

    pub fn forget_all(&self) {
        self.slots.lock().clear();
        self.growing.lock().clear();
    }

    /// Something was heard of these sessions: no stamp that was taken before vouches for them any more. (A write
    /// gets its time before its bytes are there, so a stamp may be older than what it stands for.)
    pub fn doubt(&self, sessions: &HashSet<SessionKey>) {
        let slots = self.slots.lock();
        for slot in sessions.iter().filter_map(|key| slots.peek(key)) {
            slot.doubts.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether there is a view of which something is believed and could be proven.
    pub fn any_believed(&self) -> bool {
        let believed = |slot: &Arc<Slot>| {
            slot.known.try_lock().is_some_and(|known| {
                known.as_ref().is_some_and(|known| !known.view.is_refuted() && known.believes())
            })
        };
        self.growing.lock().iter().any(|(_, slot)| believed(slot))
    }

    /// Compares what is believed with what is on disk, and returns the sessions of which that is wrong.
    pub fn prove_the_believed(&self, prove: impl Fn(&View) -> Result<()>) -> Vec<SessionKey> {
        let slots: Vec<Arc<Slot>> = self.growing.lock().iter().map(|(_, slot)| slot.clone()).collect();
        let mut wrong = Vec::new();
        for slot in slots {
            let view = match slot.known.try_lock().as_deref_mut() {
                Some(Some(known)) if known.believes() => {
                    match known.vouching_stamps() {
                        Some(true) => {}
                        // Too young: in a second.
                        Some(false) => continue,
                        // Another file than was read: for whoever looks at the session next.
                        None => {
                            known.left_believed = true;
                            continue;
                        }
                    }
                    known.left_believed = true;
                    known.view.clone()
                }
                _ => continue,
            };
            // Another reason than changed bytes is for whoever looks at the session to meet.
            if let Err(Refusal::Changed { .. }) = prove(&view) {
                wrong.push(view.session.key.clone());
            }
        }
        wrong
    }

    /// This session was read: it may well grow next. Of the one that was read least lately the passes go.
    fn touch(&self, key: &SessionKey, slot: Arc<Slot>) {
        let mut growing = self.growing.lock();
        growing.insert(key.clone(), slot);
        if growing.len() > GROWING
            && let Some((_, oldest)) = growing.remove_lru()
        {
            // One that is read just now comes back when that is done.
            if let Some(mut passes) = oldest.passes.try_lock() {
                *passes = Passes::default();
            }
        }
    }

    fn slot(&self, key: &SessionKey) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(key) {
            return slot.clone();
        }
        let slot = Arc::<Slot>::default();
        slots.insert(key.clone(), slot.clone());
        slot
    }
}

impl Slot {
    /// The view, true to the disk, and whether the session was read for it.
    fn view(
        &self,
        store: &Arc<dyn AgentStore>,
        key: &SessionKey,
        session: impl Fn() -> Result<Arc<Session>>,
        running: &dyn Fn() -> Arc<Running>,
    ) -> Result<(Arc<View>, bool)> {
        let doubts = self.doubts.load(Ordering::Acquire);
        let mut known = self.known.lock();
        if let Some(known) = known.as_mut()
            && known.is_true(key, doubts)?
        {
            known.ask_for_writer(running);
            return Ok((known.view.clone(), false));
        }
        let previous = known.take().map(|known| known.view);
        if previous.as_ref().is_some_and(|view| view.is_refuted()) {
            // What was believed is not so: nothing of it may be gone on from.
            *self.passes.lock() = Passes::default();
        }
        for _ in 0..ATTEMPTS {
            let mut passes = self.passes.lock();
            let read = Known::read(store, session()?, previous.as_deref(), &mut passes, doubts, running)?;
            if let Some(fresh) = read {
                drop(passes);
                let view = fresh.view.clone();
                *known = Some(fresh);
                return Ok((view, true));
            }
        }
        Err(Refusal::NeverRests { what: key.absolute().display().to_string() })
    }
}

impl Known {
    /// Reads the session; `None` if it changed meanwhile. `previous`: the last view of it, since which
    /// `passes` were not settled.
    fn read(
        store: &Arc<dyn AgentStore>,
        session: Arc<Session>,
        previous: Option<&View>,
        passes: &mut Passes,
        doubts: u64,
        running: &dyn Fn() -> Arc<Running>,
    ) -> Result<Option<Known>> {
        let read_at = transcript::clock();
        let mut files = session.files.clone();
        let ground = FsTrust::at(&session.key.root);
        let before = stamps(&session.key, &ground, &files)?;
        let mut names = Names::read(&session.key, &ground)?;
        passes.begin();
        let history = match store.load_again(&session, passes) {
            // A file that was listed was gone when it was to be read: a cut by another process.
            Err(Refusal::Changed { .. }) => return Ok(None),
            loaded => loaded?,
        };
        files.extend(
            history.files.iter().map(|view| view.file.clone()).filter(|file| !session.files.contains(file)),
        );
        if history.state == State::Unsupported {
            // Nothing was read, and what is in the way may have come after the list was made: whatever is there
            // counts, or the verdict would stay.
            let there = names.files(&session.key).chain(session.sidecars.iter().cloned());
            let new: Vec<PathBuf> = there.filter(|file| !files.contains(file)).collect();
            files.extend(new);
        }
        let stamps = stamps(&session.key, &ground, &files)?;
        let unchanged = stamps[..before.len()] == before[..] && names.are_true(&session.key, &ground)?;
        // What was read is what is there under that name.
        let was_read = |(file, stamp): &(PathBuf, Option<Stamp>)| match passes.stamp(file) {
            Some(read) => Some(read) == *stamp,
            None => true,
        };
        let lengths_agree = history.files.iter().all(|view| {
            let stamp = stamps.iter().find(|(file, _)| *file == view.file);
            stamp.is_none_or(|(_, stamp)| stamp.map(|stamp| stamp.len) == view.len)
        });
        if !unchanged || !lengths_agree || !stamps.iter().all(was_read) {
            return Ok(None);
        }
        let last_status = history.turns.last().map(|turn| turn.status);
        let turn_versions = turn_versions(&history, previous, passes);
        let evidence = Arc::new(passes.evidence());
        passes.settle();
        let view = View {
            store: store.clone(),
            session,
            history,
            writer: None,
            version: next_version(),
            turn_versions,
            last_change: stamps.iter().filter_map(|(_, stamp)| Some((*stamp)?.changed())).max(),
            evidence,
            settled: AtomicBool::new(false),
        };
        let mut known = Known {
            view: Arc::new(view),
            stamps,
            names,
            ground,
            read_at,
            doubts,
            left_believed: false,
            writer_asked: Instant::now() - WRITER_GOOD_FOR,
            last_status,
        };
        known.ask_for_writer(running);
        known.is_proven();
        Ok(Some(known))
    }

    /// Whether the view is what is on disk now. Equal stamps that prove nothing (too young, untested file
    /// system) are settled by the content's hash. Of a long transcript that is left to whoever shows a part of
    /// it: `ls -l` of very many turns would read it once for each.
    fn is_true(&mut self, key: &SessionKey, doubts: u64) -> Result<bool> {
        if doubts != self.doubts {
            (self.doubts, self.left_believed) = (doubts, false);
            self.view.evidence.iter().for_each(Evidence::doubt);
            self.read_at = Timestamp::UNIX_EPOCH;
        }
        let now = transcript::clock();
        if self.view.is_refuted() {
            return Ok(false);
        }
        if !self.names.are_true(key, &self.ground)? || !are_true(&self.stamps, key, &self.ground)? {
            return Ok(false);
        }
        if !self.view.store.is_current(&self.view.session)? {
            return Ok(false);
        }
        if self.is_proven() {
            return Ok(true);
        }
        for view in &self.view.history.files {
            let evidence = self.view.evidence_of(&view.file);
            if evidence.is_some_and(|evidence| evidence.len() > HASHED_AT_EACH_LOOK || evidence.proves_all())
            {
                continue;
            }
            let (len, hash) = transcript::hash(&key.root, &view.file)?;
            count_bytes(key.agent, ReadKind::Check, len.unwrap_or(0));
            if (len, hash) != (view.len, view.hash) {
                return Ok(false);
            }
            if let Some(evidence) = evidence {
                evidence.compared(now);
            }
        }
        self.read_at = now;
        // From now on stamps may do.
        self.is_proven();
        Ok(true)
    }

    /// Whether equal stamps prove that the files are the ones that were read.
    fn is_proven(&self) -> bool {
        let vouches = |(file, stamp): &(PathBuf, Option<Stamp>)| {
            self.view.evidence_of(file).is_some() || stamp.is_none_or(|stamp| stamp.vouches(self.read_at))
        };
        self.view.settled.store(self.stamps.iter().all(vouches), Ordering::Relaxed);
        self.view.is_proven()
    }

    /// Whether a part of a transcript is believed to be what was read, and a look at all of it could prove that.
    fn believes(&self) -> bool {
        !self.left_believed && self.view.evidence.iter().any(|evidence| !evidence.proves_all())
    }

    /// Whether equal stamps would prove what is read now; `None`: the stamps are not equal.
    fn vouching_stamps(&self) -> Option<bool> {
        let key = &self.view.session.key;
        let now = transcript::clock();
        let same = are_true(&self.stamps, key, &self.ground).is_ok_and(|same| same);
        same.then(|| self.stamps.iter().all(|(_, stamp)| stamp.is_none_or(|stamp| stamp.vouches(now))))
    }

    /// Where the last turn has no end: is somebody at it?
    fn ask_for_writer(&mut self, running: &dyn Fn() -> Arc<Running>) {
        if self.writer_asked.elapsed() < WRITER_GOOD_FOR {
            return;
        }
        self.writer_asked = Instant::now();
        let open = !self.view.history.open_end().is_empty();
        let readable = matches!(self.view.history.state, State::Ok | State::Torn);
        if !open || !readable {
            return;
        }
        let View { store, session, history, writer: before, .. } = &*self.view;
        let writer = store.writer(session, history, &running());
        if writer == *before {
            return;
        }
        let mut history = history.clone();
        let mut turn_versions = self.view.turn_versions.clone();
        if let Some(version) = turn_versions.last_mut() {
            *version = next_version();
        }
        if let Some(turn) = history.turns.last_mut() {
            let body = turn.text_len.saturating_sub(render::heading_len(turn));
            let as_read = self.last_status.unwrap_or(turn.status);
            turn.status = if writer.is_some() { TurnStatus::Running } else { as_read };
            turn.text_len = body + render::heading_len(turn);
        }
        self.view = Arc::new(View {
            store: store.clone(),
            session: session.clone(),
            history,
            writer,
            version: next_version(),
            turn_versions,
            last_change: self.view.last_change,
            evidence: self.view.evidence.clone(),
            settled: AtomicBool::new(self.view.settled.load(Ordering::Relaxed)),
        });
    }
}

/// A number that was never given before.
fn next_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// The versions of a history's turns: those of the previous view where the turn's bytes are proven to be
/// the same, new ones elsewhere.
fn turn_versions(history: &History, previous: Option<&View>, passes: &Passes) -> Vec<u64> {
    let inherited = |turn: &Turn| {
        let previous = previous?;
        let at = turn.n as usize;
        let same_bytes = || turn.ranges().all(|(file, span)| span.end <= passes.same(file));
        (previous.history.turns.get(at) == Some(turn) && same_bytes())
            .then(|| previous.turn_versions.get(at).copied())?
    };
    history.turns.iter().map(|turn| inherited(turn).unwrap_or_else(next_version)).collect()
}
