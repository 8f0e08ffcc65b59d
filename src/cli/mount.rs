//! `turnfs mount`.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::args::MountArgs;
use super::exit::{Exit, Failure};
use super::{output, selection};
use crate::catalog::Catalog;
use crate::cut::StateDir;
use crate::daemon::background::{self, Started};
use crate::daemon::{self, Report, Request};
use crate::host::work_tree::{self, WorkTree};
use crate::host::{self, Environment};

pub fn run(args: &MountArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let env = Environment::of_process();
    let given = args.mountpoint.clone().or_else(|| default_mount_point(&env));
    let mountpoint = given.ok_or(Failure::NoDefaultMountPoint)?;
    args.stores.must_exist()?;
    project_must_be_known(args, &env)?;
    if args.report {
        let mut report = Report::Starter;
        let served =
            request(args, mountpoint).and_then(|request| Ok(daemon::serve(&env, request, &mut report)?));
        if let Err(Failure::Mount(failure)) = &served {
            report.failed(failure);
        }
        return served.map(|()| Exit::Done);
    }
    if args.foreground {
        mention_work_tree(&mountpoint);
        daemon::serve(&env, request(args, mountpoint)?, &mut Report::Foreground)?;
        return Ok(Exit::Done);
    }
    let state = StateDir::of(&env)?;
    match background::start(&daemon_args(), state.path(), &mountpoint)? {
        Started::Ready { mountpoint } => {
            writeln!(out, "mounted at {mountpoint}; `turnfs umount {mountpoint}` takes it away")?;
        }
        Started::AlreadyMounted { mountpoint } => writeln!(out, "already mounted at {mountpoint}")?,
    }
    mention_work_tree(&mountpoint);
    Ok(Exit::Done)
}

/// Warns if the mount point is in a git work tree.
fn mention_work_tree(mountpoint: &Path) {
    let tree = daemon::resolve(mountpoint).ok().and_then(|path| Some((work_tree::around(&path)?, path)));
    if let Some((tree, path)) = tree {
        output::warn(&in_work_tree(&path, &tree));
        output::warn(&format!("to keep git out of it altogether: {}", tree.exclude));
    }
}

/// The warning for a mount in a git work tree.
pub fn in_work_tree(mountpoint: &Path, tree: &WorkTree) -> String {
    format!(
        "{} lies in the git work tree {}: git ignores what is shown there, but `git add -f`, `git stash -a` and `git clean -x` do not",
        mountpoint.display(),
        tree.top.display()
    )
}

/// Refuses a project that is neither a directory nor recorded by any session, since the mount would silently stay
/// empty. A project that is gone from this machine keeps its sessions, and a new one will get some.
fn project_must_be_known(args: &MountArgs, env: &Environment) -> Result<(), Failure> {
    let Some(dir) = &args.project else { return Ok(()) };
    let given = selection::as_given(Some(dir))?;
    let recorded = !Catalog::new(env, &args.stores.options()).listing().of(Some(&given)).is_empty();
    let looked_at = given.clone();
    // If a file system does not answer, the directory may be there.
    if recorded || host::within(host::PATIENCE, move || looked_at.is_dir()).unwrap_or(true) {
        return Ok(());
    }
    Err(Failure::NoSuchProject { dir: given.display().to_string() })
}

fn request(args: &MountArgs, mountpoint: PathBuf) -> Result<Request, Failure> {
    let project = args.project.as_deref().map(|dir| selection::as_given(Some(dir))).transpose()?;
    Ok(Request {
        mountpoint,
        project,
        stores: args.stores.options(),
        read_only: args.read_only,
        allow_root: args.allow_root,
        show_all: args.show_all,
    })
}

/// What we were called with, and whether to report the start-up result.
fn daemon_args() -> Vec<OsString> {
    // The command's name comes first: no option stands before it.
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    args.insert(1.min(args.len()), "--report".into());
    args
}

/// `~/turns`.
pub fn default_mount_point(env: &Environment) -> Option<PathBuf> {
    Some(env.home.as_ref()?.join("turns"))
}
