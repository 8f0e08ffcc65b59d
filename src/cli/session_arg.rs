//! The SESSION argument: an id, a part of one, a directory name, words of a title, `latest`, or a path inside a
//! mount. Such a path means what it shows: the session, a sub-agent below `agents/`, what an undo removed below
//! `undone/`, or a branch below `abandoned/`.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::args::Number;
use super::exit::Failure;
use super::output;
use super::selection::{self, Chosen, as_given};
use crate::catalog::{Catalog, Found, Listed, Listing};
use crate::host::{PATIENCE, mountinfo, within};
use crate::session::{Refusal, Session};

/// The name of the newest session.
pub const LATEST: &str = "latest";
/// Largest `meta.json` that is read, bytes.
const LARGEST_META: u64 = 16 << 20;

/// What was meant.
#[derive(Clone, Debug)]
pub enum Target {
    Session(Listed),
    /// A sub-agent of `parent`.
    Subagent {
        parent: Listed,
        agent: Arc<Session>,
    },
    /// What undo `number` of the session removed.
    Undone {
        session: Listed,
        number: u32,
    },
    /// The branch of the session that was abandoned.
    Abandoned {
        session: Listed,
        number: u32,
    },
}

/// What a SESSION argument means.
#[derive(Debug)]
pub struct Meant {
    pub project: Option<PathBuf>,
    pub target: Target,
    /// For a path: what follows the target's directory (`turns/003`).
    pub rest: PathBuf,
}

impl Meant {
    fn of(found: Found, rest: PathBuf) -> Meant {
        let target = match found.subagent {
            Some(agent) => Target::Subagent { parent: found.listed, agent },
            None => Target::Session(found.listed),
        };
        Meant { project: found.project, target, rest }
    }

    /// The session, for what is only done to a session as a whole. `verb`: what is to be done.
    ///
    /// # Errors
    /// [`Refusal::CannotCut`] where a sub-agent or a removed branch was meant: never its session instead.
    pub fn session(self, verb: &str) -> Result<Arc<Session>, Failure> {
        match self.target {
            Target::Session(listed) => Ok(listed.session),
            Target::Subagent { parent, agent } => Err(of_subagent(verb, &agent, &parent.session)),
            Target::Undone { session, number } => Err(of_undone(verb, &session.session, number)),
            Target::Abandoned { session, number } => Err(of_abandoned(verb, &session.session, number)),
        }
    }
}

fn of_subagent(verb: &str, agent: &Session, parent: &Session) -> Failure {
    let what = format!("{} is a sub-agent of {}, and {verb} is for whole sessions", agent.id, parent.id);
    let hint = "name the session itself, or look at the sub-agent with `turnfs show`";
    Refusal::cannot_cut(what, hint).into()
}

/// Why that cannot be done to what an undo removed.
pub fn of_undone(verb: &str, session: &Session, number: u32) -> Failure {
    let id = &session.id;
    let what = format!("that is what undo {number} of {id} removed, and {verb} is for whole sessions");
    let hint = format!(
        "bring it back with `turnfs redo {id} {number}`, or look at it with `turnfs show {id} --undone {number}`"
    );
    Refusal::cannot_cut(what, hint).into()
}

/// Why that cannot be done to an abandoned branch.
pub fn of_abandoned(verb: &str, session: &Session, number: u32) -> Failure {
    let id = &session.id;
    let what = format!("that is an abandoned branch of {id}, and {verb} is for whole sessions");
    let hint = format!("make a session of it first: `turnfs fork {id} --abandoned {number}`");
    Refusal::cannot_cut(what, hint).into()
}

/// Finds what `text` means.
///
/// # Errors
/// When it means nothing, or more than one thing.
pub fn find(catalog: &Catalog, text: &str) -> Result<Meant, Failure> {
    let path = Path::new(text);
    if text == LATEST {
        return latest(catalog);
    }
    if text.contains('/') || text == "." || text == ".." {
        return match by_path(catalog, path) {
            // A title may have a slash.
            Err(Failure::Refused(Refusal::Io { path, errno, action }))
                if errno == crate::session::Errno::NOENT =>
            {
                let refusal = Refusal::Io { path, errno, action };
                catalog.find(text).map(|found| Meant::of(found, PathBuf::new())).map_err(|_| refusal.into())
            }
            other => other,
        };
    }
    match catalog.find(text) {
        Ok(found) => Ok(Meant::of(found, PathBuf::new())),
        // What stands in a directory of a mount: an id's link.
        Err(Refusal::NoSuchSession { .. }) if is_in_a_mount(path) => by_path(catalog, path),
        Err(Refusal::NoSuchSession { text, mut near }) if text.parse::<Number>().is_ok() => {
            near.push(format!("`turnfs show latest {text}` shows turn {text} of the newest session here"));
            Err(Refusal::NoSuchSession { near, text }.into())
        }
        Err(refusal) => Err(refusal.into()),
    }
}

/// Whether something of this name is in the working directory, and that in a mount.
fn is_in_a_mount(path: &Path) -> bool {
    let here = std::env::current_dir().ok().and_then(|here| inside_mount(&here));
    let there = path.to_owned();
    here.is_some() && within(PATIENCE, move || there.symlink_metadata().is_ok()).unwrap_or(false)
}

/// The newest session of the project at the working directory; in a mount, what `latest` there leads to.
fn latest(catalog: &Catalog) -> Result<Meant, Failure> {
    if is_in_a_mount(Path::new(LATEST)) {
        return by_path(catalog, Path::new(LATEST));
    }
    let listing = catalog.listing();
    let newest = selection::choose(&listing, None, false)?.into_iter().next();
    let Some((project, listed)): Option<Chosen> = newest else {
        let dir = as_given(None)?;
        let above = dir.ancestors().skip(1).find(|above| !listing.of(Some(above)).is_empty());
        let hint = match above {
            Some(above) => {
                format!("the project {} above it has some: go there, or name a session", output::path(above))
            }
            None => "`turnfs ls --all` lists the sessions of all projects".into(),
        };
        return Err(Failure::NoSessionHere { dir: output::path(&dir), hint });
    };
    Ok(Meant { project, target: Target::Session(listed), rest: PathBuf::new() })
}

fn by_path(catalog: &Catalog, path: &Path) -> Result<Meant, Failure> {
    let shown = || output::path(path);
    // Resolving follows `latest` and the names by full id; the mount itself answers.
    let resolved = resolve(&as_given(Some(path))?)?;
    let (mount, inside) = mount_of(&resolved).ok_or_else(|| Failure::NotInAMount { path: shown() })?;
    let listing = catalog.listing();
    let found = match split(&listing, &inside) {
        Some(found) => Some(found),
        None => told_by_mount(&listing, &mount, &inside).or(by_name_only(catalog, &inside)?),
    };
    let Some((project, listed, rest)) = found else { return Err(Failure::NotASession { path: shown() }) };
    below(catalog, project, listed, &rest, &shown)
}

type Place = (Option<PathBuf>, Listed, PathBuf);

/// What the rest of a path behind a session's directory means.
fn below(
    catalog: &Catalog,
    project: Option<PathBuf>,
    listed: Listed,
    rest: &Path,
    shown: &dyn Fn() -> String,
) -> Result<Meant, Failure> {
    let mut names = rest.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        _ => None,
    });
    let (dir, name) = (names.next(), names.next());
    let own = rest.components().skip(2).collect::<PathBuf>();
    let (target, rest) = match (dir.as_deref(), name) {
        (Some("agents"), Some(name)) => {
            let agents = catalog.subagents(&listed.session)?;
            let agent = agents.into_iter().find(|agent| agent.subagent.as_deref() == Some(name.as_str()));
            let what = || format!("the sub-agent {name} of {}", listed.session.id);
            let agent = agent.ok_or_else(|| Refusal::NotFound { what: what() })?;
            (Target::Subagent { parent: listed, agent }, own)
        }
        (Some("undone"), Some(number)) => {
            let what = || format!("the undo {number} of {}", listed.session.id);
            let number = number.parse().map_err(|_| Refusal::NotFound { what: what() })?;
            (Target::Undone { session: listed, number }, own)
        }
        (Some("abandoned"), Some(number)) => {
            let what = || format!("the branch abandoned/{number} of {}", listed.session.id);
            let number = number.parse().map_err(|_| Refusal::NotFound { what: what() })?;
            (Target::Abandoned { session: listed, number }, own)
        }
        (Some("agents" | "undone" | "abandoned"), _) => {
            return Err(Failure::NotASession { path: shown() });
        }
        _ => (Target::Session(listed), rest.to_owned()),
    };
    Ok(Meant { project, target, rest })
}

/// A path resolved, or why it is not; within the time that a command waits.
///
/// # Errors
/// When nothing is there, and when a mount on the way does not answer.
pub fn resolve(given: &Path) -> Result<PathBuf, Failure> {
    let asked = given.to_owned();
    match within(PATIENCE, move || asked.canonicalize()) {
        Some(Ok(resolved)) => Ok(resolved),
        Some(Err(error)) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            Err(Failure::DeadMount { path: output::path(&mount_point(given)) })
        }
        Some(Err(error)) => Err(Refusal::io("cannot find", given, error).into()),
        None => Err(Failure::SilentMount { path: output::path(&mount_point(given)) }),
    }
}

/// Where the mount is that a path leads into, as far as its spelling tells.
fn mount_point(given: &Path) -> PathBuf {
    let mounts = mountinfo::read().unwrap_or_default();
    let mount = mountinfo::containing(&mounts, given).filter(|mount| mount.is_turnfs());
    mount.map_or_else(|| given.to_owned(), |mount| mount.mount_point.clone())
}

/// The mount asked: a session's `meta.json` says which one it is, whatever its directory is called there.
fn told_by_mount(listing: &Listing, mount: &Path, inside: &Path) -> Option<Place> {
    #[derive(Deserialize)]
    struct Meta {
        id: String,
        agent: String,
    }
    let dirs: Vec<PathBuf> = inside.ancestors().map(Path::to_owned).collect();
    let mount = mount.to_owned();
    // The topmost directory with such a file is the session's; a sub-agent's lies below.
    let (dir, meta) = within(PATIENCE, move || {
        dirs.into_iter().rev().find_map(|dir| {
            let file = std::fs::File::open(mount.join(&dir).join("meta.json")).ok()?;
            let mut text = String::new();
            std::io::Read::read_to_string(&mut std::io::Read::take(file, LARGEST_META), &mut text).ok()?;
            Some((dir, serde_json::from_str::<Meta>(&text).ok()?))
        })
    })
    .flatten()?;
    let rest = inside.strip_prefix(&dir).ok()?.to_owned();
    let all = listing.all();
    let mut fitting = all.iter().filter(|(_, listed)| {
        let session = &listed.session;
        session.id == meta.id && session.key.agent.name() == meta.agent
    });
    let (project, listed) = fitting.next()?;
    let only = fitting.next().is_none();
    only.then(|| (project.map(Path::to_path_buf), (*listed).clone(), rest))
}

/// The mount shows one project at its root, or a store that this command does not look at: then only the
/// name counts.
fn by_name_only(catalog: &Catalog, inside: &Path) -> Result<Option<Place>, Failure> {
    let mut components = inside.components();
    let Some(name) = components.next() else { return Ok(None) };
    let rest = components.as_path().to_owned();
    match catalog.find(&name.as_os_str().to_string_lossy()) {
        Ok(Found { project, listed, subagent: None }) => Ok(Some((project, listed, rest))),
        Ok(_) | Err(Refusal::NoSuchSession { .. }) => Ok(None),
        Err(refusal) => Err(refusal.into()),
    }
}

/// The part of a resolved path that lies inside a turnfs mount.
pub fn inside_mount(resolved: &Path) -> Option<PathBuf> {
    mount_of(resolved).map(|(_, inside)| inside)
}

/// The turnfs mount that a resolved path lies in, and the path within.
fn mount_of(resolved: &Path) -> Option<(PathBuf, PathBuf)> {
    let mounts = mountinfo::read().unwrap_or_default();
    let mount = mountinfo::containing(&mounts, resolved).filter(|mount| mount.is_turnfs())?;
    let inside = resolved.strip_prefix(&mount.mount_point).ok()?.to_owned();
    Some((mount.mount_point.clone(), inside))
}

/// Finds the session that a path in an all-projects mount goes through. A project can lie inside another
/// one, so the deepest project with such a session counts.
fn split(listing: &Listing, inside: &Path) -> Option<Place> {
    inside.ancestors().find_map(|session_dir| {
        let name = session_dir.file_name()?.to_str()?;
        let place = session_dir.parent()?;
        let project = (place != Path::new(".turnfs/unplaced")).then(|| Path::new("/").join(place));
        let listed = listing.meant(project.as_deref(), name)?.clone();
        let rest = inside.strip_prefix(session_dir).ok()?.to_owned();
        Some((project, listed, rest))
    })
}
