//! `turnfs doctor`.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::Access;

use super::args::DoctorArgs;
use super::exit::{Exit, Failure};
use super::mount::{default_mount_point, in_work_tree};
use super::output;
use crate::catalog::{Catalog, Listing, StoreOptions};
use crate::cut::{self, Leftover, StateDir};
use crate::daemon::{self, Answer, Running};
use crate::host::mountinfo::MountEntry;
use crate::host::{Environment, mountinfo, work_tree};
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
}

fn ok(what: impl Into<String>) -> Finding {
    Finding { health: Health::Ok, what: what.into(), cure: None }
}

fn warn(what: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { health: Health::Warn, what: what.into(), cure: Some(cure.into()) }
}

fn fail(what: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { health: Health::Fail, what: what.into(), cure: Some(cure.into()) }
}

pub fn run(args: &DoctorArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    args.stores.must_exist()?;
    let env = Environment::of_process();
    let mut findings = vec![device(), helper(), fuse_conf()];
    findings.extend(stores(&Catalog::new(&env, &args.stores.options())));
    findings.extend(state(&env));
    findings.extend(mounts(&env));
    findings.push(mount_point(&env));
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
    }
    let possible = findings.iter().all(|finding| finding.health != Health::Fail);
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

fn stores(catalog: &Catalog) -> Vec<Finding> {
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
        Ok(leftovers) => findings.extend(leftovers.into_iter().map(leftover)),
        Err(refusal @ Refusal::NotPrivate { .. }) => {
            findings.push(fail(refusal.to_string(), refusal.hints().join("; ")));
        }
        Err(refusal) => findings.push(warn(refusal.to_string(), format!("ls -lR {}", dir.display()))),
    }
    findings
}

fn leftover(leftover: Leftover) -> Finding {
    match leftover {
        Leftover::Unfinished { what } => warn(
            what,
            "nothing is lost: a mount, or the next command that shows or changes sessions, puts the session in order",
        ),
        Leftover::Unusable { what } => {
            warn(what, "compare the session's turns with the backups beside that file, then remove the file")
        }
    }
}

fn mounts(env: &Environment) -> Vec<Finding> {
    let mounts = mountinfo::read().unwrap_or_default();
    let ours: Vec<&MountEntry> = mounts.iter().filter(|mount| mount.is_turnfs()).collect();
    let mut findings = Vec::new();
    for mount in &ours {
        let path = output::path(&mount.mount_point);
        let cure = format!("turnfs umount {path}");
        let user = rustix::process::geteuid().as_raw();
        let answer = match mount.user.is_none_or(|owner| owner == user) {
            true => daemon::ask(&mount.mount_point),
            false => Answer::NotForUs,
        };
        match answer {
            Answer::Alive => findings.extend(alive(env, &mount.mount_point)),
            Answer::Dead => findings.push(warn(format!("dead mount at {path}: its daemon has gone"), cure)),
            Answer::Silent => findings.push(warn(format!("the mount at {path} does not answer"), cure)),
            Answer::NotForUs => findings.push(ok(format!("another user's mount at {path}"))),
        }
    }
    findings.extend(mounts.iter().filter_map(|mount| overlay(mount, &ours)));
    findings
}

/// A mount that answers: what it shows, and whether that is what this environment expects.
fn alive(env: &Environment, mount: &Path) -> Vec<Finding> {
    let path = output::path(mount);
    let Some(running) = Running::ask(mount) else {
        return vec![ok(format!("mounted at {path}, by another version of turnfs"))];
    };
    let stores: Vec<String> =
        running.stores.iter().map(|store| format!("{} {}", store.agent, store.root.display())).collect();
    let project = running.project.as_ref().map(|project| format!(", the project {} only", project.display()));
    let read_only = if running.read_only { ", read-only" } else { "" };
    let shows = format!("{}{}{read_only}", stores.join(", "), project.unwrap_or_default());
    let mut findings = vec![ok(format!("mounted at {path}: {shows}"))];
    let options = StoreOptions::default();
    let here = daemon::running::stores(&Catalog::new(env, &options), &options);
    let again = format!("turnfs umount {path} && turnfs mount {path}   (shows what this environment names)");
    for difference in running.store_differences(&here) {
        if !difference.on_purpose {
            let what =
                format!("the mount at {path} does not show what this environment names: {}", difference.what);
            findings.push(warn(what, again.clone()));
        }
    }
    if let Some(tree) = work_tree::around(mount) {
        findings.push(warn(in_work_tree(mount, &tree), tree.exclude));
    }
    findings
}

/// An overlay copies a control file before it writes into the copy, and turnfs never hears of it. Newer kernels refuse
/// to make one.
fn overlay(mount: &MountEntry, ours: &[&MountEntry]) -> Option<Finding> {
    let lower = mount.lower.as_ref()?.to_string_lossy();
    let is_below = |turnfs: &&&MountEntry| {
        lower.split(':').any(|layer| Path::new(layer).starts_with(&turnfs.mount_point))
    };
    let turnfs = output::path(&ours.iter().find(is_below)?.mount_point);
    let path = output::path(&mount.mount_point);
    Some(warn(
        format!(
            "the overlay at {path} lies over the turnfs mount {turnfs}: what is written to undo, redo or fork there changes a copy and nothing else"
        ),
        format!(
            "use {turnfs} itself, read-only: `mount --bind -o ro`; in podman `-v {turnfs}:DIR:ro` without `:O`"
        ),
    ))
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
