//! `turnfs adopt`.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::args::AdoptArgs;
use super::exit::{Exit, Failure};
use super::{output, selection, session_arg, stores};
use crate::catalog::{Catalog, Listed, Listing};
use crate::cut::{self, Adopted, StateDir};
use crate::session::{AgentKind, Errno, Refusal, Session};

/// Longest title in a dry run, characters.
const TITLE: usize = 60;

pub fn run(args: &AdoptArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let catalog = stores::open(&args.stores)?;
    let listing = catalog.listing();
    let old = selection::recorded_spellings(&args.old)?;
    let new = target(&args.new)?;
    if old.contains(&new) {
        return Err(Failure::SamePlace { path: output::path(&new) });
    }
    if !args.force {
        still_there(&old)?;
    }
    let chosen = choose(&catalog, &listing, &old, args)?;
    let state = if args.dry_run { stores::state()? } else { stores::recovered_state()? };
    let task = Task { catalog: &catalog, state: &state, new: &new };
    let mut refused = 0;
    // The newest last: agents go on with what was made last.
    for listed in chosen.iter().rev() {
        let done = if args.dry_run { task.tell(listed, out) } else { task.copy(listed, out) };
        if let Err(failure) = done {
            let Failure::Refused(refusal) = failure else { return Err(failure) };
            output::refused(&listed.session.id, &refusal);
            refused += 1;
        }
    }
    mention_projects_below(&listing, &old);
    Ok(if refused == 0 { Exit::Done } else { Exit::Failed })
}

struct Task<'a> {
    catalog: &'a Catalog,
    state: &'a StateDir,
    new: &'a Path,
}

impl Task<'_> {
    /// Copies a session, and prints the new id.
    fn copy(&self, listed: &Listed, out: &mut dyn Write) -> Result<(), Failure> {
        let view = self.catalog.view(&listed.session.key)?;
        let session = &view.session;
        let is_there = |id: &str| self.has(session.key.agent, id);
        match cut::adopt(&*view.store, self.state, session, &view.history, self.new, &is_there)? {
            Adopted::Now { id } => writeln!(out, "{}", crate::render::one_line(&id))?,
            Adopted::Before { id } => output::warn(&copied_before(session, &id)),
        }
        Ok(())
    }

    /// Says what would be done with a session.
    fn tell(&self, listed: &Listed, out: &mut dyn Write) -> Result<(), Failure> {
        let view = self.catalog.view(&listed.session.key)?;
        let (session, history) = (&view.session, &view.history);
        let agent = session.key.agent;
        if let Some(id) = cut::adopted_before(self.state, session, self.new, &|id| self.has(agent, id))? {
            output::warn(&copied_before(session, &id));
            return Ok(());
        }
        let last = history.last_finished()?;
        view.store.plan_fork(session, history, last, Some(self.new))?;
        let title = crate::session::title(session, Some(history));
        let title = output::headline(title.as_deref().unwrap_or_default(), TITLE);
        let turns = crate::session::turns(last + 1);
        writeln!(out, "{}  {agent}  {turns}  {title}", crate::render::one_line(&session.id))?;
        Ok(())
    }

    /// Whether the new project has a session of this id.
    fn has(&self, agent: AgentKind, id: &str) -> bool {
        // As it is now: another process may copy the same sessions.
        let listing = self.catalog.listing();
        let mut there = listing.of(Some(self.new)).iter().map(|listed| &listed.session);
        there.any(|session| session.key.agent == agent && session.id == id)
    }
}

fn copied_before(session: &Session, id: &str) -> String {
    format!("{} was copied there before, as {id}; it is not copied again", session.id)
}

/// The sessions to copy, newest first.
fn choose(
    catalog: &Catalog,
    listing: &Listing,
    old: &[PathBuf],
    args: &AdoptArgs,
) -> Result<Vec<Listed>, Failure> {
    let mut all: Vec<&Listed> = old.iter().flat_map(|project| listing.of(Some(project))).collect();
    all.sort_by(|a, b| a.session.newest_first(&b.session));
    let shown = output::path(&args.old);
    if all.is_empty() {
        return Err(Failure::NothingToAdopt { dir: shown });
    }
    let mut wanted = BTreeSet::new();
    for text in &args.sessions {
        let meant = session_arg::find(catalog, text)?;
        if !meant.project.as_ref().is_some_and(|project| old.contains(project)) {
            return Err(Failure::NotOfProject { text: text.clone(), dir: shown });
        }
        wanted.insert(meant.session("adopt")?.key.clone());
    }
    let is_wanted = |listed: &&Listed| wanted.is_empty() || wanted.contains(&listed.session.key);
    Ok(all.into_iter().filter(is_wanted).cloned().collect())
}

/// The directory that the copies belong to, as an agent started there calls it.
fn target(new: &Path) -> Result<PathBuf, Failure> {
    let refused = |action, errno: Errno| Refusal::Io { action, path: new.to_owned(), errno };
    let resolved = new.canonicalize().map_err(|error| Refusal::io("cannot copy sessions to", new, error))?;
    let facts = resolved.metadata().map_err(|error| Refusal::io("cannot copy sessions to", new, error))?;
    if !facts.is_dir() {
        return Err(refused("cannot copy sessions to", Errno::NOTDIR).into());
    }
    if facts.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused("will not copy sessions to another user's directory", Errno::PERM).into());
    }
    if session_arg::inside_mount(&resolved).is_some() {
        return Err(refused("cannot copy sessions to a place in a turnfs mount", Errno::INVAL).into());
    }
    if resolved.to_str().is_none() {
        let what = format!("{} is not valid UTF-8, so no agent can record it", new.display());
        return Err(Refusal::CannotCut { what, hint: None }.into());
    }
    Ok(resolved)
}

/// Refuses if the old project is still where it was.
fn still_there(old: &[PathBuf]) -> Result<(), Failure> {
    for path in old {
        // A symlink is not a directory, whatever it leads to.
        let above = path.parent().and_then(selection::resolved);
        let own = above.and_then(|above| Some(above.join(path.file_name()?)));
        let there = selection::resolved(path);
        if there.is_some() && there == own && there.is_some_and(|there| there.is_dir()) {
            return Err(Failure::OldIsThere { path: output::path(path) });
        }
    }
    Ok(())
}

/// Warns about projects below a moved directory: they moved along, but each is a project of its own.
fn mention_projects_below(listing: &Listing, old: &[PathBuf]) {
    for old in old {
        let below = listing.projects.range(old.clone()..).map(|(project, _)| project);
        for project in below.take_while(|project| project.starts_with(old)).filter(|project| *project != old)
        {
            output::warn(&format!(
                "{} is a project of its own; its sessions are not copied",
                output::path(project)
            ));
        }
    }
}
