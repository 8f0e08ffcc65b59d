//! The searches that are asked for by `search/QUERY/`: each on a thread of its own, while the requests that look at it wait for a
//! second at most and show what was found so far.
//!
//! What was found is remembered for a while, and a turn is only shown if its text is still the one in which it was
//! found. After anything was heard of a store the next look begins anew. All is bounded: searches that run, searches
//! that are remembered, turns of each, requests that wait.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Fs;
use super::node::{Node, turn_name};
use super::overview::{Overview, Top};
use super::tree::{Entries, absent};
use crate::catalog::Catalog;
use crate::render::one_line;
use crate::search::{Matching, Outcome, Query, Reads, search};
use crate::session::{Refusal, Result, SessionKey, State, counted};

/// How many turns a search shows: the newest ones. Their numbers have two digits.
const MOST_TURNS: usize = 100;
/// How long a request waits for a search to end.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many requests wait at once: others of the threads that answer must be free.
const MOST_WAITING: usize = 2;
/// How many searches run at once; a further one ends the one that was not looked at for the longest time.
const MOST_RUNNING: usize = 2;
/// How many searches are remembered, and for how long after somebody looked.
const MOST_KNOWN: usize = 8;
const REMEMBERED: Duration = Duration::from_secs(300);
/// How long a search is good for where changes are not heard.
const UNHEARD: Duration = Duration::from_secs(2);
/// Longest name of a link, bytes.
const LONGEST_NAME: usize = 255;

/// All searches of the mount. Shared by all threads.
pub(super) struct Searches {
    catalog: Arc<Catalog>,
    /// The one that was looked at last is at the end.
    known: Mutex<Vec<Known>>,
    waiting: AtomicUsize,
}

/// A query that was looked at.
struct Known {
    query: Arc<str>,
    run: Arc<Run>,
    /// What an earlier run found: somebody may be at its links.
    before: Option<Arc<Run>>,
    looked: Instant,
}

/// One search, on its thread or done.
struct Run {
    /// How much had been heard before it began.
    heard: u64,
    stop: AtomicBool,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    found: Vec<FoundTurn>,
    /// Sessions.
    searched: usize,
    all: usize,
    unsearched: usize,
    /// More turns may have the words than are shown.
    is_full: bool,
    ended: Option<Instant>,
}

/// A turn that was found.
#[derive(Clone, Debug)]
struct FoundTurn {
    name: String,
    /// Below the mount's root.
    place: PathBuf,
    session: SessionKey,
    turn: u32,
    version: Option<u64>,
    salvaged: bool,
}

impl Searches {
    pub fn new(catalog: Arc<Catalog>) -> Searches {
        Searches { catalog, known: Mutex::default(), waiting: AtomicUsize::new(0) }
    }

    /// The turns that have the query, as far as they are found by now; waits a second for the rest.
    ///
    /// # Errors
    /// If there is no thread to search on.
    fn look(&self, query: &Arc<str>) -> Result<Vec<FoundTurn>> {
        // Takes in what was heard.
        self.catalog.listing();
        let run = self.run(query)?;
        if self.waiting.fetch_add(1, Ordering::Relaxed) < MOST_WAITING {
            run.wait(Instant::now() + PATIENCE);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let found = run.progress.lock().found.clone();
        Ok(found.into_iter().filter(|found| found.is_true(&self.catalog)).collect())
    }

    /// The turn that a look showed under this name, if that is still true.
    fn turn(&self, query: &Arc<str>, name: &str) -> Result<Option<FoundTurn>> {
        let runs = self.known.lock().iter().find(|known| known.query == *query).map(|known| {
            let before = known.before.iter().cloned();
            before.chain([known.run.clone()]).collect::<Vec<_>>()
        });
        let named = |found: &FoundTurn| found.name == name;
        let found = match runs {
            Some(runs) => {
                runs.iter().rev().find_map(|run| run.progress.lock().found.iter().find(|f| named(f)).cloned())
            }
            None => self.look(query)?.into_iter().find(named),
        };
        Ok(found.filter(|found| found.is_true(&self.catalog)))
    }

    /// The run that answers a look now: the one that is known if it is good, else a new one.
    fn run(&self, query: &Arc<str>) -> Result<Arc<Run>> {
        let mut known = self.known.lock();
        known.retain(|known| known.looked.elapsed() < REMEMBERED || !known.run.stopped());
        let own = known.iter().position(|known| known.query == *query).map(|at| known.remove(at));
        let (run, before) = match own {
            Some(own) if own.run.is_good(&self.catalog) => (own.run.clone(), own.before.clone()),
            own => {
                let mut running: Vec<&Known> = known.iter().filter(|known| !known.run.has_ended()).collect();
                // The first one was not looked at for the longest time.
                while running.len() >= MOST_RUNNING {
                    running.remove(0).run.end();
                }
                (Run::begin(&self.catalog, query)?, own.map(|own| own.run.clone()))
            }
        };
        known.push(Known { query: query.clone(), run: run.clone(), before, looked: Instant::now() });
        if known.len() > MOST_KNOWN {
            known.remove(0).run.end();
        }
        Ok(run)
    }

    /// What each search came to, a sentence each.
    pub fn told(&self) -> Vec<String> {
        let told = |known: &Known| {
            let progress = known.run.progress.lock();
            let mut sentence = format!(
                "{:?}: {} found, {} of {} searched",
                &*known.query,
                counted(progress.found.len() as u64, "turn"),
                progress.searched,
                counted(progress.all as u64, "session")
            );
            if progress.unsearched > 0 {
                sentence += &format!(", {} could not be", progress.unsearched);
            }
            match progress.ended {
                None => sentence += "; it goes on, look again for the rest",
                Some(_) if progress.is_full => {
                    sentence += "; only the newest turns are shown, `turnfs search` shows all";
                }
                Some(_) if progress.searched < progress.all => {
                    sentence += "; ended for other searches, look again for the rest";
                }
                Some(_) => {}
            }
            sentence
        };
        self.known.lock().iter().map(told).collect()
    }
}

impl Run {
    fn begin(catalog: &Arc<Catalog>, name: &str) -> Result<Arc<Run>> {
        let run = Arc::new(Run {
            heard: catalog.heard(),
            stop: AtomicBool::new(false),
            progress: Mutex::default(),
            changed: Condvar::new(),
        });
        let (own, catalog, query) = (run.clone(), catalog.clone(), query_of(name)?);
        let thread = std::thread::Builder::new().name("search".into()).spawn(move || {
            own.search(&catalog, &query);
            own.progress.lock().ended = Some(Instant::now());
            own.changed.notify_all();
        });
        match thread {
            Ok(_) => Ok(run),
            Err(error) => Err(Refusal::io("cannot begin to search", Path::new(name), error)),
        }
    }

    fn search(&self, catalog: &Catalog, query: &Query) {
        let listing = catalog.listing();
        let sessions: Vec<_> = listing
            .all()
            .into_iter()
            .map(|(project, listed)| (project.map(ToOwned::to_owned), listed.clone()))
            .collect();
        self.progress.lock().all = sessions.len();
        // Half of the processors are left to whoever works on this machine.
        let threads = std::thread::available_parallelism().map_or(1, |all| all.get() / 2);
        search(catalog, query, &sessions, Reads { threads, keep: true }, &self.stop, |outcome| {
            let more = self.take(outcome);
            self.changed.notify_all();
            if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
    }

    /// Notes what came of a session; whether there is room for more.
    fn take(&self, outcome: Outcome) -> bool {
        let mut progress = self.progress.lock();
        progress.searched += 1;
        progress.unsearched += outcome.unsearched.len();
        for matching in outcome.found {
            for (turn, version) in matching.hits.iter().map(|hit| (hit.turn, hit.version)) {
                let number = progress.found.len();
                if number == MOST_TURNS {
                    progress.is_full = true;
                    return false;
                }
                progress.found.push(FoundTurn::new(&matching, number, turn, version));
            }
        }
        true
    }

    fn wait(&self, until: Instant) {
        let mut progress = self.progress.lock();
        while progress.ended.is_none() {
            if self.changed.wait_until(&mut progress, until).timed_out() {
                return;
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.progress.lock().ended.is_some()
    }

    /// Whether nobody is to look at it any more.
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.has_ended()
    }

    fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether another look may show what it finds: it goes on, or nothing has changed since it began.
    fn is_good(&self, catalog: &Catalog) -> bool {
        let was_cut_off = self.stop.load(Ordering::Relaxed);
        match self.progress.lock().ended {
            _ if was_cut_off => false,
            None => true,
            Some(_) if catalog.listing_is_pushed() => catalog.heard() == self.heard,
            Some(ended) => ended.elapsed() < UNHEARD,
        }
    }
}

impl FoundTurn {
    fn new(matching: &Matching, number: usize, turn: u32, version: Option<u64>) -> FoundTurn {
        let mut place = matching.listed.path_in_mount(matching.project.as_deref());
        let agent = matching.subagent.as_deref().and_then(|agent| agent.subagent.as_deref());
        if let Some(agent) = agent {
            place.extend(["agents", agent]);
        }
        place.push(if matching.salvaged { "salvage" } else { "turns" });
        place.push(turn_name(turn));
        let end = match agent {
            Some(agent) => format!("-{agent}-{}", turn_name(turn)),
            None => format!("-{}", turn_name(turn)),
        };
        let mut name = format!("{number:02}-{}", matching.listed.name);
        while name.len() + end.len() > LONGEST_NAME && name.pop().is_some() {}
        let session = matching.subagent.as_ref().unwrap_or(&matching.listed.session).key.clone();
        FoundTurn { name: name + &end, place, session, turn, version, salvaged: matching.salvaged }
    }

    /// Whether the turn still is the one that was found.
    fn is_true(&self, catalog: &Catalog) -> bool {
        catalog.view(&self.session).is_ok_and(|view| {
            let same_place = self.salvaged == (view.history.state == State::Damaged);
            same_place && self.version.is_some() && view.turn_version(self.turn) == self.version
        })
    }
}

/// The query that a name stands for: no name has a `/`, so `%2F` does. (Names that begin with a dot are what programs look for in
/// any directory; a blank in front makes a query of one.)
fn query_of(name: &str) -> Result<Query> {
    let none = || absent(name.as_ref());
    if name.starts_with('.') {
        return Err(none());
    }
    Query::parse(&name.replace("%2F", "/").replace("%2f", "/")).map_err(|_| none())
}

/// Whether a name can be one of a link in `search/QUERY/`: others begin no search.
fn is_numbered(name: &str) -> bool {
    let number = name.split_once('-').map(|(number, _)| number);
    number.is_some_and(|number| number.len() == 2 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

impl Fs {
    /// `search/NAME`.
    pub(super) fn query(&self, top: Top, name: &str) -> Result<Node> {
        query_of(name).map(|_| Node::Overview(top, Overview::Query(name.into())))
    }

    /// What `search/QUERY` lists.
    pub(super) fn found_turns(&self, top: Top, query: &Arc<str>) -> Result<Entries> {
        let link = |found: FoundTurn| {
            let node = Overview::Query(query.clone()).link(top, &found.name, &found.place);
            (found.name.into(), node)
        };
        Ok(self.searches.look(query)?.into_iter().map(link).collect())
    }

    /// `search/QUERY/NAME`.
    pub(super) fn found_turn(&self, top: Top, query: &Arc<str>, name: &str) -> Result<Node> {
        let found = if is_numbered(name) { self.searches.turn(query, name)? } else { None };
        let link = |found: FoundTurn| Overview::Query(query.clone()).link(top, name, &found.place);
        found.map(link).ok_or_else(|| absent(name.as_ref()))
    }

    /// What each search came to, for `.turnfs/status`.
    pub(super) fn told_of_searches(&self) -> Vec<String> {
        self.searches.told().iter().map(|sentence| one_line(sentence).into_owned()).collect()
    }
}
