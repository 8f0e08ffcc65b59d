//! Gathers what `status` and `meta.json` of a session and `.turnfs/status` of all of them say; `text` has the
//! form of the first two.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Fs;
use super::format::{self, Status};
use super::node::SessionRef;
use super::project_state::ProjectState;
use crate::cut;
use crate::render::one_line;
use crate::session::{Damage, Result, State, rfc3339};

/// How long a summary looks at sessions; what is left then is reported as not looked at.
const SUMMARY_LIMIT: Duration = Duration::from_secs(20);

impl Fs {
    /// The text of `status`. With `recent`, the writer may be the one of a second ago.
    pub(super) fn status(&self, session: &SessionRef, recent: bool) -> Result<String> {
        let attrs = self.catalog.session(&session.key)?;
        let view = self.view(&session.key);
        let writer = match &view {
            Ok(view) => self.memory.writer(&session.key, recent, || {
                // Whoever reads it wants to know who is there now; for its size alone a second does not matter.
                let running = if recent { self.catalog.running() } else { Arc::default() };
                view.store.writer(&view.session, &view.history, &running)
            }),
            Err(_) => None,
        };
        let last = self.memory.last(&session.key);
        let history = view.as_ref().map(|view| &view.history).map_err(Clone::clone);
        let listing = self.catalog.last_listing();
        let index_file = self.catalog.store_of(&session.key)?.index_file();
        let index = listing
            .problems
            .iter()
            .find(|(kind, problem)| *kind == session.key.agent && index_file == Some(problem.file.as_str()));
        let index = index.map(|(_, problem)| problem);
        let beside = listing.problems.iter().filter(|(agent, damage)| {
            *agent == session.key.agent && Path::new(&damage.file).starts_with(&session.key.path)
        });
        let problems: Vec<&Damage> = beside.map(|(_, damage)| damage).collect();
        // What cannot be read of turnfs's own state is no reason to tell nothing.
        let undone = match session.is_subagent() {
            true => Vec::new(),
            false => cut::undone(&self.state, &session.key).unwrap_or_default(),
        };
        let (last, undone) = (last.as_deref(), undone.as_slice());
        let resume = view.as_ref().ok().and_then(|view| self.catalog.resume(&attrs, &view.history));
        Ok(Status { session: &attrs, history, problems, writer, index, resume, undone, last }.text())
    }

    /// The text of `meta.json`. With `ask`, the host is asked what is at the project's path now; else the last
    /// answer will do.
    pub(super) fn meta(&self, session: &SessionRef, ask: bool) -> Result<String> {
        let attrs = self.catalog.session(&session.key)?;
        let view = self.view(&session.key);
        let project = attrs.project().map(|path| {
            let found = if ask { self.project_states.ask(path) } else { self.project_states.last(path) };
            ProjectState::of(found, attrs.updated)
        });
        let history = view.as_ref().ok().map(|view| &view.history);
        let facts = self.catalog.facts(&attrs, history);
        Ok(format::meta(&attrs, project.as_ref(), history, facts))
    }

    /// The text of `.turnfs/status`: looks at every session.
    pub(super) fn summary(&self) -> Result<String> {
        let listing = self.catalog.listing();
        let all = listing.all();
        let keys: HashSet<_> = all.iter().map(|(_, listed)| &listed.session.key).collect();
        self.memory.keep_states_of(|key| keys.contains(key));
        let started = Instant::now();
        let mut counts: BTreeMap<State, u64> = BTreeMap::new();
        let (mut unread, mut not_ok) = (0_u64, String::new());
        for (project, listed) in &all {
            if started.elapsed() > SUMMARY_LIMIT {
                unread += 1;
                continue;
            }
            let place = project.map_or(".turnfs/unplaced".into(), |path| path.to_string_lossy());
            let place = format!("{}/{}", place.trim_end_matches('/'), listed.name);
            let (state, why) = match self.view(&listed.session.key) {
                Ok(view) => {
                    let why = view.history.shown_damage().map(Damage::brief);
                    let state = view.history.state;
                    *counts.entry(state).or_default() += 1;
                    (state.name(), why.or_else(|| view.history.notes.first().cloned()))
                }
                Err(refusal) => {
                    let state = State::of_unread(&refusal);
                    *counts.entry(state).or_default() += 1;
                    (state.name(), Some(refusal.to_string()))
                }
            };
            if state != State::Ok.name() && state != State::Empty.name() {
                let line = format!("{state}: {place}: {}", why.unwrap_or_default());
                // Writing into a String cannot fail.
                let _ = writeln!(not_ok, "{}", one_line(&line));
            }
        }
        let mut summary = String::new();
        for (store, watching) in self.catalog.stores().iter().zip(self.catalog.watching()) {
            let agent = store.kind();
            let line = format!("store: {agent} {}", store.root().display());
            let _ = writeln!(summary, "{}", one_line(&line));
            let _ = writeln!(summary, "watch: {agent} {}", one_line(&format::watching(&watching)));
        }
        let _ = writeln!(summary, "watched-directories: {}", self.catalog.watched_directories());
        let waiting = self.notices_waiting.load(Ordering::Relaxed);
        let _ = writeln!(summary, "notices-waiting: {waiting}");
        for (at, error) in self.memory.errors() {
            let _ = writeln!(summary, "error: {} {}", rfc3339(at), one_line(&error));
        }
        for overview in self.overviews_aside() {
            let name = overview.path().display().to_string();
            let line =
                format!("note: a project has the path /{name}, so the overview {name}/ is in .turnfs/ only");
            let _ = writeln!(summary, "{line}");
        }
        for search in self.told_of_searches() {
            let _ = writeln!(summary, "search: {search}");
        }
        let _ = writeln!(summary, "sessions: {}", all.len());
        for (state, sessions) in counts {
            let _ = writeln!(summary, "sessions-{state}: {sessions}");
        }
        if unread > 0 {
            let _ = writeln!(summary, "sessions-unread: {unread}");
        }
        for project in listing.projects.keys().filter(|path| listing.leads_to_project(&path.join("latest"))) {
            let shown = project.display();
            let line =
                format!("note: a project has the name latest, so {shown} has no link to its newest session");
            let _ = writeln!(summary, "{}", one_line(&line));
        }
        for (project, listed, taken) in listing.stepped_aside() {
            let (project, name, taken) = (project.display(), &listed.name, taken.display());
            let line =
                format!("note: {project} shows a session as {name}, because a project has the path {taken}");
            let _ = writeln!(summary, "{}", one_line(&line));
        }
        for (agent, problem) in &listing.problems {
            let line = format!("problem: {agent}: {problem}");
            let _ = writeln!(summary, "{}", one_line(&line));
        }
        summary += &not_ok;
        self.summary_size.store(summary.len() as u64, Ordering::Relaxed);
        Ok(summary)
    }
}
