//! `turnfs doctor`: what a mount needs, what is there, and what mends what is wrong.
//!
//! What it looks at beside the stores is in `mounts` (those that are there) and `around` (other programs of the host).

mod around;
mod mounts;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::args::DoctorArgs;
use super::exit::{Exit, Failure};
use super::mount::default_mount_point;
use super::{output, stores};
use crate::catalog::{Catalog, Listing};
use crate::cut::{self, Leftover, StateDir};
use crate::daemon;
use crate::host::work_tree::WorkTree;
use crate::host::{Environment, mountinfo};
use crate::render;
use crate::session::{AgentKind, Refusal, counted};

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Ok,
    Warn,
    /// No mount is possible.
    Fail,
}

/// One line of the report, with what mends it.
#[derive(Debug)]
struct Finding {
    health: Health,
    what: String,
    cure: Option<String>,
    mend: Option<Mend>,
}

/// What `--fix` does by itself: nothing that could lose anything, and nothing outside of this user's own.
#[derive(Debug)]
enum Mend {
    /// Take a dead mount away.
    Umount(PathBuf),
    KeepGitOut(WorkTree),
    /// Put in order what a crash left half done.
    Recover(StateDir),
}

impl Mend {
    /// # Errors
    /// Why it is as it was.
    fn carry_out(&self) -> Result<(), Failure> {
        match self {
            Mend::Umount(path) => {
                daemon::umount(stores::state().ok().as_ref(), path)?;
            }
            Mend::KeepGitOut(tree) => tree
                .keep_git_out()
                .map_err(|error| Failure::NotWritten { path: tree.file.display().to_string(), error })?,
            Mend::Recover(state) => {
                cut::recover(state)?.iter().for_each(|sentence| output::warn(sentence));
            }
        }
        Ok(())
    }
}

impl Finding {
    fn mended_by(mut self, mend: Mend) -> Finding {
        self.mend = Some(mend);
        self
    }
}

fn ok(what: impl Into<String>) -> Finding {
    Finding { health: Health::Ok, what: what.into(), cure: None, mend: None }
}

fn warn(what: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { health: Health::Warn, what: what.into(), cure: Some(cure.into()), mend: None }
}

fn fail(what: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { health: Health::Fail, what: what.into(), cure: Some(cure.into()), mend: None }
}

pub fn run(args: &DoctorArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    args.stores.must_exist()?;
    let env = Environment::of_process();
    let mut findings = vec![device(), helper(), fuse_conf()];
    findings.extend(found_stores(&Catalog::new(&env, &args.stores.options())));
    findings.extend(state(&env));
    findings.extend(mounts::all(&env));
    findings.push(mount_point(&env));
    findings.extend(around::locate());
    findings.push(around::backups(&env));
    let mut possible = true;
    for finding in &findings {
        let word = match finding.health {
            Health::Ok => "ok",
            Health::Warn => "warn",
            Health::Fail => "fail",
        };
        writeln!(out, "{word:4}  {}", render::one_line(&finding.what))?;
        if let Some(cure) = &finding.cure {
            writeln!(out, "      -> {}", render::one_line(cure))?;
        }
        possible &= finding.health != Health::Fail;
        if let Some(mend) = finding.mend.as_ref().filter(|_| args.fix) {
            match mend.carry_out() {
                Ok(()) => writeln!(out, "      -> done")?,
                Err(failure) => {
                    writeln!(out, "      -> not done: {}", render::one_line(&failure.to_string()))?
                }
            }
        }
    }
    Ok(if possible { Exit::Done } else { Exit::Failed })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn device() -> Finding {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => ok("/dev/fuse can be opened"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fail(
            "/dev/fuse is not there",
            "sudo modprobe fuse   (in a container: start it with --device /dev/fuse --cap-add SYS_ADMIN)",
        ),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            fail("/dev/fuse is not open to this user", "sudo chmod 666 /dev/fuse")
        }
        Err(error) => fail(format!("/dev/fuse cannot be opened: {error}"), "sudo modprobe fuse"),
    }
}

fn helper() -> Finding {
    let install = "sudo apt install fuse3   (the package that has fusermount3)";
    match daemon::fusermount() {
        None if is_root() => warn("fusermount3 is not installed; root can mount without it", install),
        None => fail("fusermount3 is not installed", install),
        Some(program) => {
            let mode = program.metadata().map(|meta| meta.permissions().mode()).unwrap_or_default();
            let shown = program.display();
            if mode & 0o4000 == 0 && !is_root() {
                fail(
                    format!("{shown} is not setuid root, so it cannot mount"),
                    format!("sudo chmod u+s {shown}"),
                )
            } else {
                ok(format!("{shown} is installed"))
            }
        }
    }
}

fn fuse_conf() -> Finding {
    match daemon::fuse_conf_allows_other() {
        true => ok("/etc/fuse.conf allows --allow-root"),
        false => ok("/etc/fuse.conf does not allow --allow-root (only needed to let root look in)"),
    }
}

fn found_stores(catalog: &Catalog) -> Vec<Finding> {
    if catalog.stores().is_empty() {
        return vec![fail(
            "no place to look for sessions: HOME is not set",
            "export HOME, or use --store AGENT=DIR",
        )];
    }
    let mut findings = Vec::new();
    let mut closed = Vec::new();
    for store in catalog.stores().iter() {
        let named = format!("{}: {}", store.kind(), store.root().display());
        match std::fs::read_dir(store.root()) {
            Ok(_) => findings.push(ok(named)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => findings.push(warn(
                format!("{named} is not there"),
                format!("fine if {} was never used; else name its place with --store", store.kind()),
            )),
            Err(error) => {
                closed.push(store.kind());
                let cure = format!("sudo chown -R $USER {}", store.root().display());
                findings.push(fail(format!("{named} cannot be read: {error}"), cure));
            }
        }
    }
    let listing = catalog.listing();
    let count = |agent| listing.all().iter().filter(|(_, of)| of.session.key.agent == agent).count();
    for store in catalog.stores().iter() {
        let agent = store.kind();
        findings.push(ok(format!("{agent}: {}", counted(count(agent) as u64, "session"))));
        findings.extend(unreadable(agent, &listing));
    }
    // Of a store that cannot be opened at all it is said above.
    for (agent, problem) in listing.problems.iter().filter(|(agent, _)| !closed.contains(agent)) {
        findings.push(warn(format!("{agent}: {problem}"), "turnfs check --all"));
    }
    findings
}

/// The sessions with files that this user may not read (those of `sudo codex`, for example); told by stats only.
fn unreadable(agent: AgentKind, listing: &Listing) -> Option<Finding> {
    let is_unreadable = |file: &Path| {
        rustix::fs::access(file, Access::READ_OK).is_err_and(|errno| errno == rustix::io::Errno::ACCESS)
    };
    let mut files =
        listing.all().into_iter().filter(|(_, of)| of.session.key.agent == agent).filter_map(|(_, of)| {
            let all = of.session.files.iter().map(|file| of.session.key.root.join(file));
            all.into_iter().find(|file| is_unreadable(file))
        });
    let first = files.next()?;
    let what =
        format!("{agent}: {} cannot be read by this user", counted(1 + files.count() as u64, "session"));
    Some(warn(what, format!("sudo chown $USER {}", first.display())))
}

fn state(env: &Environment) -> Vec<Finding> {
    let state = match StateDir::of(env) {
        Ok(state) => state,
        Err(refusal) => return vec![fail(refusal.to_string(), "export HOME or XDG_STATE_HOME")],
    };
    let dir = state.path();
    // It is made when first needed, in the nearest directory that is there.
    let there = dir.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
    let mut findings =
        vec![match rustix::fs::access(there, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) => ok(format!("state directory {}", dir.display())),
            Err(errno) => fail(
                format!("state directory {} cannot be written: {}", dir.display(), io::Error::from(errno)),
                format!("sudo chown -R $USER {}", there.display()),
            ),
        }];
    match cut::leftovers(&state) {
        Ok(leftovers) => findings.extend(leftovers.into_iter().map(|one| leftover(one, &state))),
        Err(refusal @ Refusal::NotPrivate { .. }) => {
            findings.push(fail(refusal.to_string(), refusal.hints().join("; ")));
        }
        Err(refusal) => findings.push(warn(refusal.to_string(), format!("ls -lR {}", dir.display()))),
    }
    findings
}

fn leftover(leftover: Leftover, state: &StateDir) -> Finding {
    match leftover {
        Leftover::Unfinished { what } => warn(
            what,
            "nothing is lost: a mount, or the next command that shows or changes sessions, puts the session in order",
        )
        .mended_by(Mend::Recover(state.clone())),
        Leftover::Unusable { what } => {
            warn(what, "compare the session's turns with the backups beside that file, then remove the file")
        }
    }
}

fn mount_point(env: &Environment) -> Finding {
    let Some(path) = default_mount_point(env) else {
        return warn("no default mount point: HOME is not set", "name one: turnfs mount DIR");
    };
    let shown = path.display();
    match std::fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            ok(format!("{shown} will be made when it is mounted"))
        }
        Ok(mut entries) => {
            let mounted = mountinfo::read().is_ok_and(|mounts| mountinfo::top_at(&mounts, &path).is_some());
            if mounted || entries.next().is_none() {
                ok(format!("{shown} is the default mount point"))
            } else {
                warn(
                    format!("{shown} is not empty, so nothing can be mounted there"),
                    "turnfs mount OTHER_DIR",
                )
            }
        }
        Err(error) => warn(format!("{shown}: {error}"), format!("turnfs umount {shown}")),
    }
}
