//! Tells the kernel what to forget, on a thread of its own.
//!
//! Never from a handler and with no lock held: the kernel waits in these calls for directories and pages that
//! a request holds, and that request may wait for us. An answer that must come after them (`echo 3 > undo`)
//! is given by this thread, too, so that no handler waits for it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};

use crate::fs::Invalidation;

/// When a notice is given again if an answer that was made before the change may have been on its way into the
/// kernel's memory when it was given first. The answer for a long directory is on its way for longest.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

enum Notice {
    Forget(Vec<Invalidation>),
    Then(Box<dyn FnOnce() + Send>),
}

/// Hands notices to the thread that gives them.
#[derive(Clone)]
pub struct InvalidationQueue {
    queue: Sender<Notice>,
    waiting: Arc<AtomicUsize>,
}

/// The other end of [`InvalidationQueue`], until the mount is there.
pub(super) struct Queue {
    queue: Receiver<Notice>,
    waiting: Arc<AtomicUsize>,
}

/// A queue that nobody empties yet; `waiting` counts what is in it.
pub(super) fn queue(waiting: Arc<AtomicUsize>) -> (InvalidationQueue, Queue) {
    let (sender, receiver) = channel();
    (InvalidationQueue { queue: sender, waiting: waiting.clone() }, Queue { queue: receiver, waiting })
}

impl InvalidationQueue {
    /// The kernel forgets this soon.
    pub fn forget(&self, stale: Vec<Invalidation>) {
        if !stale.is_empty() {
            self.send(Notice::Forget(stale));
        }
    }

    /// The kernel forgets this, and then `answer` is called.
    pub fn forget_then(&self, stale: Vec<Invalidation>, answer: impl FnOnce() + Send + 'static) {
        self.forget(stale);
        self.send(Notice::Then(Box::new(answer)));
    }

    fn send(&self, notice: Notice) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Nobody listens any more once the mount has ended.
        let _ = self.queue.send(notice);
    }
}

impl Queue {
    /// Gives notices until the mount ends.
    pub fn run(self, notifier: Notifier) -> std::io::Result<()> {
        let give = move || {
            let mut later: BTreeMap<Instant, HashSet<Invalidation>> = BTreeMap::new();
            loop {
                let next = match later.first_key_value() {
                    Some((due, _)) => self.queue.recv_timeout(due.saturating_duration_since(Instant::now())),
                    None => self.queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                };
                match next {
                    Ok(first) => {
                        let given = self.give(&notifier, first);
                        if !given.is_empty() {
                            let now = Instant::now();
                            later.extend(AGAIN.map(|again| (now + again, given.clone())));
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        let now = Instant::now();
                        let mut due = HashSet::new();
                        while let Some(first) = later.first_entry().filter(|first| *first.key() <= now) {
                            due.extend(first.remove());
                        }
                        for stale in &due {
                            tell(&notifier, stale);
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        };
        std::thread::Builder::new().name("invalidations".into()).spawn(give).map(drop)
    }

    /// Gives this notice and all that wait behind it, each once; which of them must be given again.
    fn give(&self, notifier: &Notifier, first: Notice) -> HashSet<Invalidation> {
        let (mut given, mut again) = (HashSet::new(), HashSet::new());
        let mut next = Some(first);
        while let Some(notice) = next.take() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            match notice {
                Notice::Forget(all) => {
                    for stale in all {
                        if !given.contains(&stale) {
                            if tell(notifier, &stale) == Told::PerhapsTooEarly {
                                again.insert(stale.clone());
                            }
                            given.insert(stale);
                        }
                    }
                }
                Notice::Then(answer) => {
                    answer();
                    // What comes now is about what happened after the answer.
                    break;
                }
            }
            next = self.queue.try_recv().ok();
        }
        again
    }
}

/// What a notice did.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// The kernel has forgotten, and will not believe an answer that it asked for before (Linux 5.8 and newer).
    ForGood,
    /// An answer that the kernel asked for before may still arrive.
    PerhapsTooEarly,
}

/// Gives one notice. It is not repeated without need: the kernel drops an answer about attributes that crosses a
/// notice, and goes on with the size of before if that happens twice to one reader.
fn tell(notifier: &Notifier, stale: &Invalidation) -> Told {
    crate::fs::count_invalidation(stale);
    let told = match stale {
        Invalidation::Entry { parent, name } => notifier.inval_entry(INodeNo(*parent), name),
        // A negative offset: no page.
        Invalidation::Attributes { ino } => notifier.inval_inode(INodeNo(*ino), -1, 0),
        // From the first byte to the last.
        Invalidation::Content { ino } => notifier.inval_inode(INodeNo(*ino), 0, 0),
    };
    if let Err(error) = &told {
        // What the kernel does not know is no error; a mount that has ended tells it by itself.
        log::debug!("{stale:?}: {error}");
    }
    match (stale, told) {
        (Invalidation::Attributes { .. } | Invalidation::Content { .. }, Ok(())) => Told::ForGood,
        _ => Told::PerhapsTooEarly,
    }
}
