//! From what was heard to what changed: which sessions, and whether the list of them is another one.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::listing::Snapshot;
use super::watch::PendingEvents;
use super::{Catalog, Watching};
use crate::agents::AgentStore;
use crate::session::{AgentKind, Session, SessionKey};

/// How often the directories of a look are watched and looked at again while new ones appear.
const ROUNDS: u32 = 8;
/// How many names up from a file its session is looked for; the file's own is the first.
const DEEPEST: usize = 4;
/// Longest pause after a look at whole stores.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// What is not as it was.
#[derive(Debug, Default)]
pub struct Changed {
    /// These may show something else, or be gone.
    pub sessions: HashSet<SessionKey>,
    /// The list of sessions, their order or their times.
    pub listing: bool,
    /// Anything may have changed: events were lost.
    pub everything: bool,
}

impl Changed {
    /// One session.
    pub fn of(key: SessionKey) -> Changed {
        Changed { sessions: HashSet::from([key]), ..Changed::default() }
    }

    fn is_nothing(&self) -> bool {
        self.sessions.is_empty() && !self.listing && !self.everything
    }
}

impl Catalog {
    /// Begins to watch the stores. `tell` is called with each change, on a thread of its own and with no
    /// lock held; from then on the list of sessions is believed for as long as nothing is heard.
    ///
    /// # Errors
    /// Where the system cannot do it: everything is right without, but looked at each time.
    pub fn watch(self: &Arc<Self>, tell: impl Fn(Changed) + Send + 'static) -> io::Result<()> {
        self.watch.begin().map_err(io::Error::other)?;
        if let Err(error) = self.watch.begin_with_mounts() {
            log::warn!("what is mounted at a store from now on is seen late: {error}");
        }
        let catalog = self.clone();
        let listen = move || {
            loop {
                let news = catalog.watch.next(catalog.has_to_poll(), catalog.views.any_believed());
                let began = Instant::now();
                let (changed, looked) = catalog.take_in(news);
                let took = began.elapsed();
                if !changed.is_nothing() {
                    tell(changed);
                }
                if looked {
                    // What is written to all the time must not keep a processor busy.
                    std::thread::sleep(took.min(LONGEST_PAUSE));
                }
            }
        };
        std::thread::Builder::new().name("changes".into()).spawn(listen).map(drop)
    }

    /// Says that this session was changed by ourselves, and what that changed. Until the event comes, and
    /// every directory is known to be watched again, nothing is believed.
    pub fn changed_by_us(&self, key: &SessionKey) -> Changed {
        self.watch.tell_of(key.absolute());
        self.forget(key);
        Changed { listing: true, ..Changed::of(key.clone()) }
    }

    /// Counts what was heard: equal before and after something means that nothing changed meanwhile, as far
    /// as is known.
    pub fn heard(&self) -> u64 {
        self.watch.events()
    }

    /// Whether every change of this session will be told.
    pub fn is_pushed(&self, key: &SessionKey) -> bool {
        let store = self.stores().iter().position(|store| store.holds(key));
        store.is_some_and(|store| self.watch.covers(store))
    }

    /// Whether every change of the list of sessions will be told (of a store that is not there, within a
    /// second).
    pub fn listing_is_pushed(&self) -> bool {
        self.everything_is_heard(&self.seen.read())
    }

    /// How the changes of each store are noticed, in the order of [`Catalog::stores`].
    pub fn watching(&self) -> Vec<Watching> {
        (0..self.stores().len()).map(|store| self.watch.state(store)).collect()
    }

    /// How many directories are watched.
    pub fn watched_directories(&self) -> usize {
        self.watch.len()
    }

    fn has_to_poll(&self) -> bool {
        let seen = self.seen.read();
        (0..self.stores().len()).any(|store| match self.watch.state(store) {
            Watching::Polled(_) => true,
            Watching::Looked | Watching::Pushed => seen.is_absent(store),
        })
    }

    /// What the news mean, and whether a whole store was looked at for it.
    fn take_in(&self, news: PendingEvents) -> (Changed, bool) {
        let before = self.seen.read().clone();
        let mut changed = Changed { everything: news.everything, ..Changed::default() };
        if news.quiet {
            changed.sessions.extend(self.views.prove_the_believed(|view| self.prove(view)));
            if !news.poll {
                return (changed, false);
            }
        }
        let mut look = news.everything || news.poll || news.unsettled;
        for path in &news.paths {
            look |= !before.concerned_by(path, &self.stores(), &mut changed.sessions);
        }
        if news.poll {
            // What nobody tells of may have changed.
            changed.sessions.extend(self.polled_sessions(&before));
        }
        self.views.doubt(&changed.sessions);
        let after = if look { None } else { self.look_at(&changed.sessions, &news.heard) };
        let looked = after.is_none();
        if looked {
            self.look_and_watch();
        }
        let untold = std::mem::take(&mut *self.untold.lock());
        changed.sessions.extend(untold.sessions);
        changed.listing |= untold.listing;
        (changed, looked)
    }

    fn polled_sessions(&self, seen: &Snapshot) -> Vec<SessionKey> {
        let stores = self.stores();
        let states = stores.iter().zip(self.watching());
        let polled: Vec<_> = states.filter(|(_, state)| matches!(state, Watching::Polled(_))).collect();
        let is_polled = |key: &&SessionKey| polled.iter().any(|(store, _)| store.holds(key));
        seen.by_key.keys().filter(is_polled).cloned().collect()
    }

    /// Looks at every store, and watches all that was found in it.
    fn look_and_watch(&self) {
        self.watch_until_nothing_is_new();
        give_memory_back();
    }

    fn watch_until_nothing_is_new(&self) {
        for _ in 0..ROUNDS {
            let seen = self.look();
            let mut any_new = false;
            for store in 0..self.stores().len() {
                let (found, heard) = seen.found(store);
                any_new |= self.watch.cover(store, &found, heard);
            }
            if !any_new {
                return;
            }
            // What happened in a new directory before it was watched was not heard.
            seen.distrust();
        }
    }

    /// Takes a new look for the true one, and notes how it differs from the last.
    pub(super) fn see(&self, seen: &Arc<Snapshot>) {
        let before = std::mem::replace(&mut *self.seen.write(), seen.clone());
        if self.watch.is_on() {
            let mut untold = self.untold.lock();
            untold.listing = true;
            before.differing(seen, &mut untold.sessions);
        }
    }
}

/// A look at very many sessions frees as much as it keeps, in pieces that the allocator would not return: twice
/// the memory would stay taken for as long as the mount lives.
fn give_memory_back() {
    crate::host::sys::release_free_memory();
}

impl Snapshot {
    /// Finds whose file this is; false if that does not tell all that may have changed.
    fn concerned_by(
        &self,
        path: &Path,
        stores: &[Arc<dyn AgentStore>],
        sessions: &mut HashSet<SessionKey>,
    ) -> bool {
        let mut all_told = true;
        for store in stores.iter().filter(|store| path.starts_with(store.root())) {
            let Ok(within) = path.strip_prefix(store.root()) else { continue };
            let of = |path: &Path| SessionKey {
                agent: store.kind(),
                root: store.root().clone(),
                path: path.into(),
            };
            // A session is a directory with its files in it, or deeper below it, or named by its main file.
            let near = within.ancestors().take(DEEPEST);
            let own = near.filter_map(|path| self.by_key.get(&of(path))).next();
            let told = match own {
                Some(session) => {
                    sessions.insert(session.key.clone());
                    session.files.iter().any(|file| file == within)
                }
                None => false,
            };
            all_told &= told;
            // Others may hold it, too: a fork shows the files that it goes on from. Compared by bytes, for there may
            // be very many.
            let has = |session: &&Arc<Session>| {
                session
                    .files
                    .iter()
                    .chain(&session.sidecars)
                    .any(|file| file.as_os_str() == within.as_os_str())
                    && session.key.root == *store.root()
            };
            sessions.extend(self.by_key.values().filter(has).map(|session| session.key.clone()));
        }
        all_told
    }

    /// The sessions that are not in both, not equal in both, or named otherwise.
    fn differing(&self, other: &Snapshot, sessions: &mut HashSet<SessionKey>) {
        for (key, session) in &self.by_key {
            if other.by_key.get(key).is_none_or(|now| now != session) {
                sessions.insert(key.clone());
            }
        }
        sessions.extend(other.by_key.keys().filter(|key| !self.by_key.contains_key(key)).cloned());
        // What a session says of its forks.
        let of = |key| [self.by_key.get(key), other.by_key.get(key)];
        let forks = sessions.iter().flat_map(of).flatten();
        let sources: HashSet<(AgentKind, &str)> =
            forks.filter_map(|fork| Some((fork.key.agent, fork.forked_from.as_deref()?))).collect();
        let is_source = |session: &&Arc<Session>| sources.contains(&(session.key.agent, &*session.id));
        let sources: Vec<SessionKey> =
            other.by_key.values().filter(is_source).map(|source| source.key.clone()).collect();
        sessions.extend(sources);
        let names = |seen: &Snapshot| -> HashSet<(SessionKey, String)> {
            let all = seen.listing.all();
            all.into_iter().map(|(_, listed)| (listed.session.key.clone(), listed.name.clone())).collect()
        };
        let (before, after) = (names(self), names(other));
        sessions.extend(before.symmetric_difference(&after).map(|(key, _)| key.clone()));
    }
}
