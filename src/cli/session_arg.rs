//! The SESSION argument: an id, a part of one, a directory name, or a path inside a mount.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::exit::Failure;
use super::selection::as_given;
use crate::catalog::{Catalog, Listed, Listing};
use crate::host::mountinfo;
use crate::session::Refusal;

/// The session that was meant.
#[derive(Debug)]
pub struct Meant {
    pub project: Option<PathBuf>,
    pub listed: Listed,
    /// For a path: what follows the session's directory (`turns/003`).
    pub rest: PathBuf,
}

/// Finds the session that `text` means.
///
/// # Errors
/// When it means none, or more than one.
pub fn find(catalog: &Catalog, text: &str) -> Result<Meant, Failure> {
    let path = Path::new(text);
    if text.contains('/') || text == "." || text == ".." {
        return by_path(catalog, path);
    }
    match catalog.find(text) {
        Ok((project, listed)) => Ok(Meant { project, listed, rest: PathBuf::new() }),
        // `latest`, said in a project's directory of a mount.
        Err(Refusal::NotFound { .. }) if path.symlink_metadata().is_ok() => by_path(catalog, path),
        Err(refusal) => Err(refusal.into()),
    }
}

fn by_path(catalog: &Catalog, path: &Path) -> Result<Meant, Failure> {
    let shown = || path.display().to_string();
    // Resolving follows `latest` and the names by full id; the mount itself answers.
    let resolved =
        as_given(Some(path))?.canonicalize().map_err(|error| Refusal::io("cannot find", path, error))?;
    let inside = inside_mount(&resolved).ok_or_else(|| Failure::NotInAMount { path: shown() })?;
    match split(&*catalog.listing()?, &inside) {
        Some(meant) => Ok(meant),
        None => by_name_only(catalog, &inside, &shown()),
    }
}

/// The mount shows one project at its root, or a store that this command does not look at: then only the
/// name counts.
fn by_name_only(catalog: &Catalog, inside: &Path, shown: &str) -> Result<Meant, Failure> {
    let mut components = inside.components();
    let name = components.next().map(|first| first.as_os_str().to_string_lossy().into_owned());
    let rest = components.as_path().to_owned();
    match name.map(|name| catalog.find(&name)) {
        Some(Ok((project, listed))) => Ok(Meant { project, listed, rest }),
        Some(Err(Refusal::NotFound { .. })) | None => Err(Failure::NotASession { path: shown.into() }),
        Some(Err(refusal)) => Err(refusal.into()),
    }
}

/// The part of a resolved path that lies inside a turnfs mount.
pub fn inside_mount(resolved: &Path) -> Option<PathBuf> {
    let mounts = mountinfo::read().unwrap_or_default();
    let mount = mountinfo::containing(&mounts, resolved).filter(|mount| mount.is_turnfs())?;
    Some(resolved.strip_prefix(&mount.mount_point).ok()?.to_owned())
}

/// Finds the session that a path in an all-projects mount goes through. A project can lie inside another
/// one, so the deepest project with such a session counts.
fn split(listing: &Listing, inside: &Path) -> Option<Meant> {
    inside.ancestors().find_map(|session_dir| {
        let name = session_dir.file_name().and_then(OsStr::to_str)?;
        let place = session_dir.parent()?;
        let project = (place != Path::new(".turnfs/unplaced")).then(|| Path::new("/").join(place));
        let listed = listing.named(project.as_deref(), name)?.clone();
        let rest = inside.strip_prefix(session_dir).ok()?.to_owned();
        Some(Meant { project, listed, rest })
    })
}
