//! The sessions of the project that a directory names, as given and as resolved.

use std::path::{Path, PathBuf};

use super::exit::Failure;
use super::{output, session_arg};
use crate::catalog::{Listed, Listing};
use crate::host::{self, Host, lexically_normal};
use crate::session::{Errno, Refusal};

/// A session and its project (`None`: unplaced).
pub type Chosen = (Option<PathBuf>, Listed);

/// The sessions of a project (`None`: the working directory), or all sessions; newest activity first.
///
/// # Errors
/// When there is no working directory.
pub fn choose(listing: &Listing, dir: Option<&Path>, all: bool) -> Result<Vec<Chosen>, Failure> {
    let mut chosen: Vec<Chosen> = if all {
        let everything = listing.all().into_iter();
        everything.map(|(project, listed)| (project.map(Path::to_owned), listed.clone())).collect()
    } else {
        let spellings = spellings(&as_given(dir)?);
        let of = |project: PathBuf| {
            let sessions = listing.of(Some(&project)).to_vec();
            sessions.into_iter().map(move |listed| (Some(project.clone()), listed))
        };
        spellings.into_iter().flat_map(of).collect()
    };
    chosen.sort_by(|(_, a), (_, b)| a.session.newest_first(&b.session));
    Ok(chosen)
}

/// The directory that these arguments name (`Some(None)`: the working directory); `None`: they are words of titles, for no
/// project has such a path, and nothing is there.
///
/// # Errors
/// When there is no working directory.
pub fn directory<'a>(listing: &Listing, what: &'a [PathBuf]) -> Result<Option<Option<&'a Path>>, Failure> {
    match what {
        [] => Ok(Some(None)),
        [dir] => {
            let is_path = dir.components().count() > 1
                || dir.to_string_lossy().contains('/')
                || dir == Path::new("..")
                || !choose(listing, Some(dir), false)?.is_empty()
                || resolved(&as_given(Some(dir))?).is_some_and(|there| there.is_dir());
            Ok(is_path.then_some(Some(dir)))
        }
        _ => Ok(None),
    }
}

/// The sessions of all projects with these words in their titles, newest activity first.
///
/// # Errors
/// When there is none.
pub fn titled(listing: &Listing, words: &[PathBuf]) -> Result<Vec<Chosen>, Failure> {
    let text = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let found = listing.titled(&text);
    if !found.is_empty() {
        let chosen =
            |(project, listed): (Option<&Path>, &Listed)| (project.map(Path::to_owned), listed.clone());
        return Ok(found.into_iter().map(chosen).collect());
    }
    let near = listing.nearly_titled(&text);
    let project = match words {
        [word] => nearest(listing, &as_given(Some(word))?).map(output::path),
        _ => None,
    };
    let hint = match (near.is_empty(), project) {
        (false, _) => format!("did you mean {}?", near.join(" or ")),
        (true, Some(project)) => format!("did you mean {project}?"),
        (true, None) => {
            format!("`turnfs search {text}` looks into the turns, `turnfs ls --all` lists all sessions")
        }
    };
    let no_directory = match words {
        [word] => format!(", and there is no directory {}", output::path(word)),
        _ => String::new(),
    };
    Err(Failure::NoSuchTitle { text, no_directory, hint })
}

/// The absolute path of a directory as the user spelled it: not resolved. The working directory is
/// spelled as the shell has it, symbolic links kept.
///
/// # Errors
/// When there is no working directory.
pub fn as_given(dir: Option<&Path>) -> Result<PathBuf, Failure> {
    let given = dir.unwrap_or(Path::new("."));
    if given.is_absolute() {
        return Ok(lexically_normal(given));
    }
    let here = std::env::current_dir().map_err(Failure::NoWorkingDirectory)?;
    let pwd = std::env::var_os("PWD").map(PathBuf::from).filter(|pwd| pwd.is_absolute());
    let shell = pwd.filter(|pwd| *pwd == here || resolved(pwd).is_some_and(|resolved| resolved == here));
    Ok(lexically_normal(&shell.unwrap_or(here).join(given)))
}

/// The project paths that a directory can stand for if it may be gone, or be a link to where the project is now: as
/// given, with its parent resolved, and, for a directory in a mount, the one that it shows. The directory itself is
/// not resolved. Each path once.
///
/// # Errors
/// When there is no working directory.
pub fn recorded_spellings(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let given = as_given(Some(dir))?;
    if let Some(inside) = resolved(&given).as_deref().and_then(session_arg::inside_mount) {
        return Ok(vec![Path::new("/").join(inside)]);
    }
    let above = given.parent().and_then(resolved);
    let own = above.and_then(|above| Some(above.join(given.file_name()?)));
    Ok(host::spellings(&given, [own]))
}

/// The project paths that a directory can stand for: as given, as resolved on the host, and, for a
/// directory in a mount, the one that it shows. Each once.
fn spellings(given: &Path) -> Vec<PathBuf> {
    let resolved = resolved(given);
    let shown =
        resolved.as_deref().and_then(session_arg::inside_mount).map(|inside| Path::new("/").join(inside));
    host::spellings(given, [resolved, shown])
}

/// Why a project has no sessions: `Ok` if its directory is there.
///
/// # Errors
/// When nothing is there, or a mount on the way does not answer.
pub fn is_there(listing: &Listing, dir: Option<&Path>) -> Result<(), Failure> {
    let given = as_given(dir)?;
    match session_arg::resolve(&given) {
        Ok(_) => Ok(()),
        Err(Failure::Refused(Refusal::Io { errno: Errno::NOENT | Errno::NOTDIR, .. })) => {
            let hint = match nearest(listing, &given) {
                Some(project) => format!("did you mean {}?", output::path(project)),
                None => "`turnfs ls --all` lists the sessions of all projects".into(),
            };
            Err(Failure::NoSuchDirectory { dir: output::path(&given), hint })
        }
        Err(failure) => Err(failure),
    }
}

/// How alike two paths have to be for one to be suggested for the other, from 0 to 1.
const ALIKE: f64 = 0.8;

/// The project that a path may have been meant for: one above it, or one that is spelled nearly so.
fn nearest<'l>(listing: &'l Listing, given: &Path) -> Option<&'l Path> {
    let above = given.ancestors().skip(1).find_map(|above| listing.projects.get_key_value(above));
    if let Some((project, _)) = above {
        return Some(project);
    }
    let given = given.to_string_lossy();
    let scored = listing
        .projects
        .keys()
        .map(|project| (strsim::normalized_damerau_levenshtein(&given, &project.to_string_lossy()), project));
    let best = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 >= ALIKE).then_some(best.1)
}

/// What is there, with its path resolved. A place that does not answer counts as not there.
pub fn resolved(path: &Path) -> Option<PathBuf> {
    Host::of_process().resolved(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn a_directory_is_taken_as_given_and_as_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("real")).unwrap();
        std::os::unix::fs::symlink("real", base.join("link")).unwrap();
        assert_eq!(spellings(&base.join("link")), [base.join("link"), base.join("real")]);
        assert_eq!(spellings(&base.join("real")), [base.join("real")]);
        assert_eq!(spellings(Path::new("/no/longer/there")), [Path::new("/no/longer/there")]);
    }

    #[test]
    fn given_paths_are_normal_but_not_resolved() {
        for (given, expected) in [("/a/./b/", "/a/b"), ("/a/../b", "/b"), ("/../a", "/a"), ("/", "/")] {
            assert_eq!(as_given(Some(Path::new(given))).unwrap(), Path::new(expected), "{given}");
        }
    }
}
