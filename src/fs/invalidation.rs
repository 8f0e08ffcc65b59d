//! How long the kernel may answer from its own memory, and what it must forget when something changed.
//!
//! Asked by `daemon` after each change that the catalog hears of, and by [`Fs::write`] after an own one;
//! `fuse` passes the answer on. What changes only by an event that we hear lasts until then; all else is
//! asked for each time. What was told of a node is noted with it, so that a change takes back exactly what is
//! not true any more.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Duration;

use super::Fs;
use super::kernel_view::{A_SECOND, Attrs, Ttl};
use super::node::{Branch, Dot, Node, Part, SessionRef};
use crate::catalog::{Changed, View};
use crate::session::{Refusal, SessionKey};

/// Until it is taken back.
const LASTING: Duration = Duration::from_secs(365 * 24 * 3600);
/// Something that the kernel must forget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Invalidation {
    /// What a name in a directory leads to, or that it leads nowhere.
    Entry { parent: u64, name: OsString },
    /// A node's attributes.
    Attributes { ino: u64 },
    /// A file's attributes and all of its bytes.
    Content { ino: u64 },
}

impl Invalidation {
    /// The values of the label `kind` of the metric.
    pub(super) const KINDS: [&str; 3] = ["entry", "attributes", "content"];

    /// Its place in [`Invalidation::KINDS`].
    pub(super) fn kind(&self) -> usize {
        match self {
            Invalidation::Entry { .. } => 0,
            Invalidation::Attributes { .. } => 1,
            Invalidation::Content { .. } => 2,
        }
    }
}

impl Fs {
    /// How long an answer about a node may be remembered. `heard`: how much had been heard before the answer
    /// was made; if there is news since then it may be wrong already.
    pub(super) fn ttl(&self, ino: u64, node: &Node, attrs: &Attrs, heard: u64) -> Ttl {
        if heard != self.catalog.heard() {
            return Ttl::NOT;
        }
        let lasting = match node {
            Node::Dot(
                Dot::Dir | Dot::Version | Dot::Readme | Dot::Options | Dot::GitIgnore | Dot::Ignore,
            ) => Ttl::both(LASTING),
            Node::Dot(Dot::Status | Dot::Metrics) => Ttl { entry: LASTING, attributes: Duration::ZERO },
            // Whoever looks at the root of a mount whose daemon is dead must be told so.
            Node::Root => Ttl::NOT,
            // Symlinks of the host, and what only leads to them, change without our hearing of it.
            Node::HostLink(..) => Ttl::NOT,
            // As many as the sessions, or what a search finds: cheaper to ask for than to take back.
            Node::Overview(..) | Node::OverviewLink(..) => Ttl::NOT,
            Node::Host(path) if !self.catalog.last_listing().leads_to_project(path) => Ttl::NOT,
            Node::Host(_) | Node::Latest(..) | Node::Alias(..) | Node::Dot(Dot::Unplaced) => {
                match self.catalog.listing_is_pushed() {
                    true => Ttl::both(LASTING),
                    false => Ttl::NOT,
                }
            }
            Node::Session(session, part) => self.session_lasts(session, part),
        };
        let attributes = match attrs.lasts {
            // Handles that use the page cache hold another version than this one: its size must not become
            // the one that bounds their reads for longer than for this answer.
            _ if self.is_between_versions(ino, attrs) => Duration::ZERO,
            Some(limit) => lasting.attributes.min(limit),
            None => lasting.attributes,
        };
        Ttl { attributes, ..lasting }
    }

    fn session_lasts(&self, session: &SessionRef, part: &Part) -> Ttl {
        if session.is_subagent() || !self.catalog.is_pushed(&session.key) {
            return Ttl::NOT;
        }
        match part {
            // Other processes prune; sub-agents have directories of their own.
            Part::Undone
            | Part::UndoneLink(_)
            | Part::Abandoned
            | Part::BranchDir(_)
            | Part::BranchStatus(_)
            | Part::BranchFork(_)
            | Part::BranchTurns(_)
            | Part::BranchTurn(..)
            | Part::Agents => Ttl::NOT,
            // What they say of others changes with these.
            Part::Status | Part::Meta => Ttl { entry: LASTING, attributes: A_SECOND },
            _ => Ttl::both(LASTING),
        }
    }

    fn is_between_versions(&self, ino: u64, attrs: &Attrs) -> bool {
        attrs.version.is_some()
            && self
                .kernel
                .told(ino, |told| told.cached.handles > 0 && told.cached.version != attrs.version)
                .unwrap_or(false)
    }

    /// How long the kernel may remember that there is no such name, which is noted with the directory;
    /// `None`: not at all.
    pub(super) fn absence_ttl(&self, parent: u64, name: &OsStr, heard: u64) -> Option<Duration> {
        let Node::Session(session, part) = self.kernel.node(parent)? else { return None };
        let of_the_state = shows_state(&part) || name == "undone" || name == "agents";
        if of_the_state || self.session_lasts(&session, &part) == Ttl::NOT {
            return None;
        }
        // Noted first, for the same reason as attributes are.
        let noted = self.kernel.remember_absent(parent, name);
        (noted && heard == self.catalog.heard()).then_some(LASTING)
    }

    /// What the kernel must forget after a change: what it was told and is not true any more. What was told
    /// stays noted until something else is, so that two threads which find out the same both say so: whoever
    /// answers next must be sure that it was said before.
    pub fn stale(&self, changed: &Changed) -> Vec<Invalidation> {
        let concerns = |node: &Node| match node {
            Node::Session(session, _) => changed.everything || changed.sessions.contains(&session.key),
            // Not remembered by the kernel.
            Node::Overview(..) | Node::OverviewLink(..) => false,
            _ => changed.everything || changed.listing,
        };
        let mut stale = Vec::new();
        let mut views: HashMap<SessionKey, Option<Arc<View>>> = HashMap::new();
        for ino in self.kernel.concerned(concerns) {
            let Some(node) = self.kernel.node(ino) else { continue };
            for name in self.kernel.absent(ino) {
                let there = self.child(&node, &name).and_then(|child| self.attrs(&child));
                if !matches!(there, Err(Refusal::NotFound { .. })) {
                    stale.push(Invalidation::Entry { parent: ino, name });
                }
            }
            self.compare(ino, &node, &mut views, &mut stale);
        }
        stale
    }

    /// Compares what was told of a node with what is true now.
    fn compare(
        &self,
        ino: u64,
        node: &Node,
        views: &mut HashMap<SessionKey, Option<Arc<View>>>,
        stale: &mut Vec<Invalidation>,
    ) {
        let Some(before) = self.kernel.told(ino, |told| told.attrs).flatten() else { return };
        let now = match node {
            Node::Session(
                session,
                part @ (Part::Turn(_) | Part::Prompt(_) | Part::Blob(..) | Part::Context),
            ) => {
                let view = views.entry(session.key.clone()).or_insert_with(|| self.view(&session.key).ok());
                match (view, part) {
                    (None, _) => None,
                    (Some(view), Part::Turn(n)) => self.facts_of_turn(view, *n).ok(),
                    // Not made again only to be compared: another version is another text.
                    (Some(view), part) => match super::content::version_of(view, part) {
                        Ok(version) if version == before.version => Some(before),
                        Ok(_) => Some(Attrs { version: None, ..before }),
                        Err(_) => None,
                    },
                }
            }
            Node::Session(_, Part::Dir) | Node::Latest(..) | Node::Alias(..) if self.is_gone(node) => None,
            Node::Host(path) if !self.catalog.last_listing().leads_to_project(path) => None,
            _ => self.attrs(node).ok(),
        };
        if now == Some(before) {
            return;
        }
        let readers = self.kernel.told(ino, |told| told.cached.handles);
        match now {
            // Whoever has it open goes on with the pages of the version that was opened.
            Some(now) if now.version != before.version && readers == Some(0) => {
                stale.push(Invalidation::Content { ino });
            }
            Some(_) => stale.push(Invalidation::Attributes { ino }),
            None => {
                stale.push(Invalidation::Attributes { ino });
                let parent = self.kernel.number(&node.parent());
                let names = self.kernel.names(ino);
                stale.extend(names.into_iter().map(|name| Invalidation::Entry { parent, name }));
            }
        }
    }

    /// Whether a session's directory, or a symlink to one, is not what its name leads to any more.
    fn is_gone(&self, node: &Node) -> bool {
        let ino = self.kernel.number(node);
        let parent = node.parent();
        self.kernel.names(ino).iter().any(|name| match self.child(&parent, name) {
            Ok(there) => there != *node,
            Err(_) => true,
        })
    }
}

/// Whether a directory shows turnfs's own state, which other processes change too.
fn shows_state(part: &Part) -> bool {
    matches!(part, Part::Undone | Part::BranchDir(Branch::Undone(_)) | Part::BranchTurns(Branch::Undone(_)))
}
