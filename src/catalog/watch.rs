//! Hears of changes in the stores' directories while they happen (inotify), and when it would not.
//!
//! Events only push: they say when to look again and what the kernel must forget. That nothing was heard is
//! believed for one thing alone, the list of sessions: only while every directory that the list came from is
//! watched, and after all events that were under way have come in. A history is compared with the disk at
//! each look, whatever was heard.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use notify::event::{EventKind, ModifyKind, RenameMode};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::{Condvar, Mutex};

use crate::agents::{AgentStore, Discovery};
use crate::host::mountinfo::{self, MountEntry};
use crate::transcript::metrics::count_event;
use crate::transcript::{StoreDir, file_system_is_tested};

/// How long further events are waited for after the first one: a client writes a record in several steps.
const GATHER: Duration = Duration::from_millis(2);
/// How long the events that wait to be heard are waited for, before a look goes to the stores instead.
const LONGEST_QUEUE: Duration = Duration::from_secs(2);
/// How often a directory is looked at that cannot be watched.
const POLL: Duration = Duration::from_secs(1);

/// What was heard since the last time.
#[derive(Default)]
pub(super) struct PendingEvents {
    /// Absolute; directories as well as files.
    pub paths: HashSet<PathBuf>,
    /// Directories that are not watched any more, because they went away.
    gone: Vec<PathBuf>,
    /// Events were lost, or nothing is known yet: anything may have changed.
    pub everything: bool,
    /// A second has passed and some directory has to be polled.
    pub poll: bool,
    /// A second has passed in which nothing was heard.
    pub quiet: bool,
    /// There may be a directory that nobody watches.
    pub unsettled: bool,
    /// How much each store had been heard of by then.
    pub heard: Vec<u64>,
}

impl PendingEvents {
    fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.gone.is_empty() && !self.everything
    }
}

/// The watches on all stores.
pub(super) struct Watch {
    ears: Arc<EventSink>,
    /// Made by [`Watch::begin`]; without it nothing is heard and nothing believed.
    watcher: Mutex<Option<RecommendedWatcher>>,
    watched: Mutex<HashSet<PathBuf>>,
    /// A file of our own that is watched, too. One question at a time.
    mark: Mutex<Option<File>>,
}

/// What the thread that reads the events shares with everybody.
struct EventSink {
    stores: Vec<Heard>,
    news: Mutex<PendingEvents>,
    arrived: Condvar,
    /// The path of [`Watch::mark`], and how often it was heard of.
    mark: Mutex<(PathBuf, u64)>,
    mark_heard: Condvar,
}

/// What was heard of one store.
struct Heard {
    root: Arc<Path>,
    /// Events so far.
    events: AtomicU64,
    /// `events` at the last one that may have made a directory that nobody watches yet.
    unsettled: AtomicU64,
    /// `events` at the beginning of the last look whose directories all are watched, plus one; 0 before.
    covered: AtomicU64,
    /// What cannot be watched, and why.
    polled: Mutex<BTreeMap<PathBuf, String>>,
    /// The directory that stood at the root's path when it was watched.
    place: Mutex<Option<Identity>>,
    /// Links to directories in the store, relative to the root, and what they led to then.
    links: Mutex<Vec<(PathBuf, Option<Identity>)>>,
}

/// Device and inode.
type Identity = (u64, u64);

/// How the changes of one store are noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watching {
    /// Every directory is watched.
    Pushed,
    /// Nothing is believed without a look, or not yet.
    Looked,
    /// These directories cannot be watched, for these reasons, and are looked at once a second.
    Polled(BTreeMap<PathBuf, String>),
}

impl Watch {
    pub fn new(stores: &[Arc<dyn AgentStore>]) -> Watch {
        let heard = |store: &Arc<dyn AgentStore>| Heard {
            root: store.root().clone(),
            events: AtomicU64::new(0),
            unsettled: AtomicU64::new(0),
            covered: AtomicU64::new(0),
            polled: Mutex::default(),
            place: Mutex::default(),
            links: Mutex::default(),
        };
        let ears = EventSink {
            stores: stores.iter().map(heard).collect(),
            news: Mutex::default(),
            arrived: Condvar::new(),
            mark: Mutex::default(),
            mark_heard: Condvar::new(),
        };
        let (watcher, watched, mark) = (Mutex::default(), Mutex::default(), Mutex::default());
        Watch { ears: Arc::new(ears), watcher, watched, mark }
    }

    /// Begins to listen; nothing is watched yet.
    ///
    /// # Errors
    /// Where the system has no inotify instance left.
    pub fn begin(&self) -> notify::Result<()> {
        let ears = self.ears.clone();
        let mut watcher = notify::recommended_watcher(move |event| ears.hear(event))?;
        *self.mark.lock() = Some(self.ears.new_mark(&mut watcher)?);
        *self.watcher.lock() = Some(watcher);
        self.ears.news.lock().everything = true;
        Ok(())
    }

    /// Waits until everything has been heard that happened before this call: the queue of events is in order, so
    /// it is empty up to here once a touch of our own file was heard. False if that cannot be told: then what was
    /// not heard must not be believed.
    pub fn catch_up(&self) -> bool {
        let mut mark = self.mark.lock();
        let Some(file) = mark.as_ref() else { return false };
        let mut heard = self.ears.mark.lock();
        let before = heard.1;
        let end = Instant::now() + LONGEST_QUEUE;
        let touched = file.set_modified(SystemTime::now());
        while touched.is_ok() && heard.1 == before {
            if self.ears.mark_heard.wait_until(&mut heard, end).timed_out() {
                break;
            }
        }
        if heard.1 > before {
            return true;
        }
        drop(heard);
        log::warn!(
            "events of the stores are not heard in time (very many of them?); they are looked at instead"
        );
        // A late answer about the old file must not be taken for one about a later question. The new file is
        // made while the old one is still open, so it has another name.
        let mut watcher = self.watcher.lock();
        let new = watcher.as_mut().map(|watcher| self.ears.new_mark(watcher));
        *mark = new.and_then(|new| new.inspect_err(|error| log::warn!("no more marks: {error}")).ok());
        false
    }

    /// Whether anything is listened to at all.
    pub fn is_on(&self) -> bool {
        self.watcher.lock().is_some()
    }

    /// How much each store has been heard of.
    pub fn heard(&self) -> Vec<u64> {
        self.ears.stores.iter().map(|store| store.events.load(Ordering::SeqCst)).collect()
    }

    /// All events together: equal before and after something means that nothing was heard meanwhile.
    pub fn events(&self) -> u64 {
        self.ears.stores.iter().map(|store| store.events.load(Ordering::SeqCst)).sum()
    }

    /// Whether whatever changes in this store will be heard.
    pub fn covers(&self, store: usize) -> bool {
        self.ears.stores.get(store).is_some_and(Heard::is_covered)
    }

    /// How changes of this store become known now.
    pub fn state(&self, store: usize) -> Watching {
        let Some(heard) = self.ears.stores.get(store) else { return Watching::Looked };
        let polled = heard.polled.lock();
        match (polled.is_empty(), heard.is_covered()) {
            (false, _) => Watching::Polled(polled.clone()),
            (true, true) => Watching::Pushed,
            (true, false) => Watching::Looked,
        }
    }

    /// A watch stays with the directory that was watched. Where another one stands at a store's path now (a link
    /// or a directory above it was replaced, something was mounted), nothing is heard of that one: all is lost.
    pub fn follow_moved_stores(&self) {
        let moved = |store: &&Heard| {
            let noted = *store.place.lock();
            noted.is_some() && store.is_covered() && (noted != store.identity() || store.a_link_moved())
        };
        if let Some(moved) = self.ears.stores.iter().find(moved) {
            self.ears.lose(&format!("another directory stands at {}", moved.root.display()));
        }
    }

    /// Watches what is mounted at, above or in the stores, on a thread of its own.
    ///
    /// # Errors
    /// When /proc or a thread is not to be had.
    pub fn begin_with_mounts(&self) -> std::io::Result<()> {
        let changes = mountinfo::Changes::open()?;
        let ears = self.ears.clone();
        let watch = move || {
            let mut before = ears.mounts();
            while changes.wait().is_ok() {
                let now = ears.mounts();
                if now != before {
                    ears.lose("something was mounted or unmounted at a store");
                    before = now;
                }
            }
        };
        std::thread::Builder::new().name("mounts".into()).spawn(watch).map(drop)
    }

    /// An own change, which is known before its event comes.
    pub fn tell_of(&self, path: PathBuf) {
        self.ears.note(path, true, false);
    }

    /// Waits for news; at most a second where something has to be polled, or is to be done once nothing is
    /// heard any more.
    pub fn next(&self, poll: bool, when_quiet: bool) -> PendingEvents {
        let mut news = self.ears.news.lock();
        let end = Instant::now() + POLL;
        while news.is_empty() {
            if !poll && !when_quiet {
                self.ears.arrived.wait(&mut news);
            } else if self.ears.arrived.wait_until(&mut news, end).timed_out() {
                let heard = self.heard();
                return PendingEvents { poll, quiet: when_quiet, heard, ..PendingEvents::default() };
            }
        }
        drop(news);
        std::thread::sleep(GATHER);
        let mut news = self.ears.news.lock();
        let heard = self.heard();
        let news = PendingEvents { heard, ..std::mem::take(&mut *news) };
        let mut watched = self.watched.lock();
        if news.everything {
            // A directory may have been replaced without our hearing it: every watch is set again.
            watched.clear();
        }
        for gone in &news.gone {
            watched.remove(gone);
        }
        news
    }

    /// Watches the directories that a look at a store found, and no others; `at`: how much of it had
    /// been heard when the look began that found them. Whether any was new: then what happened in it before
    /// is not known, and the look must be repeated.
    pub fn cover(&self, store: usize, found: &Discovery, at: u64) -> bool {
        let directories = &found.directories;
        let mut watcher = self.watcher.lock();
        let (Some(heard), Some(watcher)) = (self.ears.stores.get(store), watcher.as_mut()) else {
            return false;
        };
        if directories.is_empty() {
            // Nothing is heard of a store that is not there: it is looked at now and then.
            heard.polled.lock().clear();
            return false;
        }
        if !file_system_is_tested(&heard.root) {
            return false;
        }
        let wanted: HashSet<PathBuf> = directories
            .iter()
            .map(|dir| match dir.as_os_str().is_empty() {
                true => heard.root.to_path_buf(),
                false => heard.root.join(dir),
            })
            .collect();
        // Before anything in it is watched: what takes its place meanwhile has another identity.
        *heard.place.lock() = heard.identity();
        let link = |link: &PathBuf| (link.clone(), heard.led_to(link));
        let links: Vec<_> = found.links.iter().map(link).collect();
        let before = std::mem::replace(&mut *heard.links.lock(), links.clone());
        let mut watched = self.watched.lock();
        // A watch stays with what a link led to when it was set.
        for (link, _) in links.iter().filter(|link| !before.contains(link)) {
            let below = heard.root.join(link);
            unwatch(watcher, &mut watched, |dir| dir.starts_with(&below));
        }
        let unheard: HashSet<PathBuf> = found.unheard.iter().map(|file| heard.root.join(file)).collect();
        unwatch(watcher, &mut watched, |dir| {
            dir.starts_with(&heard.root) && !wanted.contains(dir) && !unheard.contains(dir)
        });
        let mut polled = BTreeMap::new();
        let mut any_new = false;
        for dir in wanted {
            if watched.contains(&dir) {
                continue;
            }
            match watcher.watch(&dir, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    watched.insert(dir);
                    any_new = true;
                }
                // It went away again; that was heard.
                Err(error) if matches!(error.kind, notify::ErrorKind::PathNotFound) => any_new = true,
                Err(error) => {
                    polled.insert(dir, reason(&error));
                }
            }
        }
        // A file may be replaced where nobody watches; what is behind the link itself is heard, though.
        for file in found.unheard.iter().map(|file| heard.root.join(file)) {
            if watched.contains(&file) || watcher.watch(&file, RecursiveMode::NonRecursive).is_ok() {
                watched.insert(file.clone());
            }
            polled.insert(file, "it is, or holds, a link to a file".into());
        }
        for link in found.links.iter().map(|link| heard.root.join(link)) {
            if !file_system_is_tested(&link) {
                polled.insert(link, "it leads to a file system whose changes are not all heard".into());
            }
        }
        let all = polled.is_empty();
        let mut known = heard.polled.lock();
        if let (Some((dir, why)), true) = (polled.iter().next(), known.is_empty()) {
            log::warn!(
                "{} directories of {} are looked at once a second ({}: {why})",
                polled.len(),
                heard.root.display(),
                dir.display()
            );
        }
        *known = polled;
        if !any_new && all {
            heard.covered.fetch_max(at.saturating_add(1), Ordering::SeqCst);
        }
        any_new
    }

    /// How many directories are watched.
    pub fn len(&self) -> usize {
        self.watched.lock().len()
    }
}

/// Stops watching these directories.
fn unwatch(
    watcher: &mut RecommendedWatcher,
    watched: &mut HashSet<PathBuf>,
    which: impl Fn(&PathBuf) -> bool,
) {
    for dir in watched.extract_if(which) {
        // It may have gone by itself.
        if let Err(error) = watcher.unwatch(&dir) {
            log::debug!("not watched any more: {}: {error}", dir.display());
        }
    }
}

fn reason(error: &notify::Error) -> String {
    match error.kind {
        notify::ErrorKind::MaxFilesWatch => {
            "no inotify watches are left; raise /proc/sys/fs/inotify/max_user_watches".into()
        }
        _ => error.to_string(),
    }
}

impl Heard {
    /// Of what stands at the root's path now.
    fn identity(&self) -> Option<Identity> {
        use std::os::unix::fs::MetadataExt as _;
        let facts = std::fs::metadata(&self.root).ok()?;
        Some((facts.dev(), facts.ino()))
    }

    /// Of what a link leads to now, as a store's links are followed.
    fn led_to(&self, link: &Path) -> Option<Identity> {
        let (device, inode) = StoreDir::open(&self.root).ok()??.led_to(link).ok()?.identity();
        Some((rustix::fs::makedev(device.major, device.minor), inode))
    }

    fn a_link_moved(&self) -> bool {
        let links = self.links.lock().clone();
        links.iter().any(|(link, led_to)| self.led_to(link) != *led_to)
    }

    fn is_covered(&self) -> bool {
        let covered = self.covered.load(Ordering::SeqCst);
        covered > self.unsettled.load(Ordering::SeqCst)
    }

    /// Counts an event; one that `unsettles` may have made a directory that nobody watches yet.
    fn count(&self, unsettles: bool) {
        let event = self.events.fetch_add(1, Ordering::SeqCst) + 1;
        if unsettles {
            self.unsettled.fetch_max(event, Ordering::SeqCst);
        }
    }
}

impl EventSink {
    /// A file to touch, watched; it has no name of its own, so nothing is left of it.
    fn new_mark(&self, watcher: &mut RecommendedWatcher) -> notify::Result<File> {
        let mark = tempfile::tempfile().map_err(notify::Error::io)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", mark.as_raw_fd()));
        watcher.watch(&path, RecursiveMode::NonRecursive)?;
        self.mark.lock().0 = path;
        Ok(mark)
    }

    /// Called on notify's thread for each event, in order.
    fn hear(&self, event: notify::Result<notify::Event>) {
        count_event();
        let event = match event {
            Ok(event) if event.need_rescan() => return self.lose("events were lost"),
            Ok(event) => event,
            Err(error) => return self.lose(&error.to_string()),
        };
        let (settled, gone) = match event.kind {
            // Ours too, and nothing changes by it.
            EventKind::Access(_) => return,
            EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Metadata(_)) => (true, false),
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)) => (false, true),
            _ => (false, false),
        };
        let mut mark = self.mark.lock();
        if event.paths.contains(&mark.0) {
            mark.1 += 1;
            self.mark_heard.notify_all();
            return;
        }
        drop(mark);
        for path in event.paths {
            self.note(path, !settled, gone);
        }
    }

    fn note(&self, path: PathBuf, unsettles: bool, gone: bool) {
        let mut news = self.news.lock();
        for store in self.stores.iter().filter(|store| path.starts_with(&store.root)) {
            store.count(unsettles);
        }
        if gone {
            news.gone.push(path.clone());
        }
        news.unsettled |= unsettles;
        news.paths.insert(path);
        self.arrived.notify_one();
    }

    /// What is mounted at, above or in the stores.
    fn mounts(&self) -> Vec<MountEntry> {
        let roots: Vec<PathBuf> =
            self.stores.iter().filter_map(|store| store.root.canonicalize().ok()).collect();
        let concerns = |mount: &MountEntry| {
            let at = &mount.mount_point;
            !mount.is_turnfs() && roots.iter().any(|root| root.starts_with(at) || at.starts_with(root))
        };
        let mut mounts = mountinfo::read().unwrap_or_default();
        mounts.retain(concerns);
        mounts
    }

    fn lose(&self, what: &str) {
        log::warn!("{what}; every store is looked at again");
        let mut news = self.news.lock();
        for store in &self.stores {
            store.count(true);
        }
        news.everything = true;
        self.arrived.notify_one();
    }
}
