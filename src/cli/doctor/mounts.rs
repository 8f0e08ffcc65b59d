//! The mounts that are there: whether they answer, what they show, and whether that is what this environment expects.

use std::path::Path;

use super::super::mount::in_work_tree;
use super::super::output;
use super::{Finding, Mend, ok, warn};
use crate::catalog::{Catalog, StoreOptions};
use crate::cut::StateDir;
use crate::daemon::{self, Answer, Running};
use crate::host::mountinfo::{self, MountEntry};
use crate::host::{Environment, processes, work_tree};

/// All turnfs mounts, and what lies over them.
pub(super) fn all(env: &Environment) -> Vec<Finding> {
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
            Answer::Dead => findings.push(
                warn(format!("dead mount at {path}: its daemon has gone"), cure)
                    .mended_by(Mend::Umount(mount.mount_point.clone())),
            ),
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
    let daemon = environment(&running);
    let again = match daemon.as_ref().is_some_and(|daemon| daemon.value("NOTIFY_SOCKET").is_some()) {
        true => "turnfs service install   (tells the service what this environment names)".to_owned(),
        false => format!("turnfs umount {path} && turnfs mount {path}   (shows what this environment names)"),
    };
    let why = daemon.map(|daemon| variables(env, &daemon)).unwrap_or_default();
    for difference in running.store_differences(&here) {
        if !difference.on_purpose {
            let what = format!(
                "the mount at {path} does not show what this environment names: {}{why}",
                difference.what
            );
            findings.push(warn(what, again.clone()));
        }
    }
    if let Some(state) = StateDir::of(env).ok().filter(|state| !running.keeps_its_own_in(state)) {
        let (there, here) = (running.state.display(), state.path().display());
        let what =
            format!("the mount at {path} keeps its backups in {there}, and commands here in {here}{why}");
        findings.push(warn(what, again));
    }
    if let Some(tree) = work_tree::around(mount) {
        let finding = warn(in_work_tree(mount, &tree), tree.exclude.clone());
        findings.push(finding.mended_by(Mend::KeepGitOut(tree)));
    }
    findings
}

/// The environment that the daemon of a mount was started in; `None` where it runs out of sight.
fn environment(running: &Running) -> Option<Environment> {
    // In a container's mount the number means another process.
    let process = processes::process(running.pid)?;
    let is_turnfs = process.arguments.first().is_some_and(|program| Path::new(program).ends_with("turnfs"));
    (is_turnfs && process.arguments.iter().any(|argument| argument == "mount"))
        .then(|| Environment::of_pid(running.pid))?
}

/// The variables that differ, in parentheses; nothing if none does.
fn variables(here: &Environment, daemon: &Environment) -> String {
    let names = daemon::running::variables().into_iter().chain(["HOME"]);
    let differ = names.filter_map(|name| {
        let (of_daemon, here) = (daemon.value(name), here.value(name));
        if of_daemon == here {
            return None;
        }
        let shown = |value: Option<&std::ffi::OsStr>| {
            value.map_or("not set".to_owned(), |value| format!("{:?}", value.to_string_lossy()))
        };
        Some(format!("{name} is {} for the daemon and {} here", shown(of_daemon), shown(here)))
    });
    let differ: Vec<String> = differ.collect();
    if differ.is_empty() { String::new() } else { format!(" ({})", differ.join(", ")) }
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
