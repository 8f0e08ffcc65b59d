//! The life of a mount: mount point, background start, readiness, signals, end, stale mounts.
//!
//! [`serve`] is the daemon itself, in the foreground; [`background`] starts it detached and waits for its
//! word. Knows nothing of what the mount shows: that is `fs`, mounted by `fuse`.

pub mod background;
mod claim;
mod descriptors;
mod detach;
mod events;
mod failure;
mod log_file;
mod made;
mod mountpoint;
mod readiness;
pub mod running;

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::fs::Mode;

use crate::catalog::{Catalog, StoreOptions};
use crate::cut::{self, PrivateDir, StateDir};
use crate::fs::{Fs, Options};
use crate::fuse::{self, MountOptions};
use crate::session::Refusal;

use crate::host::Environment;
use crate::host::mountinfo::{self, Device};
use claim::Claim;
use descriptors::Spare;
pub use detach::{Detached, fusermount};
use events::Event;
pub use failure::Failure;
pub use log_file::{LogWriter, line as log_line};
use made::Notes;
pub use mountpoint::{Answer, ask, resolve};
use mountpoint::{MountPoint, MountTarget};
pub use readiness::Report;
pub use running::Running;

/// How long another daemon that is just starting or ending at the same place is waited for.
const CLAIM_LIMIT: Duration = Duration::from_secs(4);

/// How long the kernel may take to begin with a new mount.
const FIRST_ANSWER_LIMIT: Duration = Duration::from_secs(4);

/// How long the session is waited for after its mount was taken away.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How long a command that is being carried out may take to end; what is left undone then is put right
/// from its journal by the next recovery.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// How long the answer of a finished command may take to reach the kernel.
const ANSWER_LIMIT: Duration = Duration::from_millis(100);

/// How long `turnfs umount` waits for the daemon to be gone.
const UMOUNT_LIMIT: Duration = Duration::from_secs(10);

/// What to mount, and where. Paths may be relative to the working directory.
#[derive(Clone, Debug)]
pub struct Request {
    pub mountpoint: PathBuf,
    pub project: Option<PathBuf>,
    pub stores: StoreOptions,
    pub read_only: bool,
    pub allow_root: bool,
    pub show_all: bool,
}

/// Mounts and serves until the mount is taken away or a signal asks to stop. Returns at once when the
/// mount point is a turnfs mount with these options already.
///
/// # Errors
/// Why there is no mount, or that the one that is there has other options. No store was changed then.
pub fn serve(env: &Environment, request: Request, report: &mut Report) -> Result<(), Failure> {
    check_prerequisites(&request)?;
    let path = resolve(&request.mountpoint)?;
    let project = request.project.as_deref().map(std::path::absolute).transpose();
    let project = project.map_err(|error| Failure::io("cannot find", Path::new("."), error))?;
    let state = StateDir::of(env)?;
    let catalog = Arc::new(Catalog::new(env, &request.stores));
    check_stores(&catalog)?;
    let running = Running::new(&request, project.as_deref(), &catalog, &state);
    let mounts = claim::of_mounts(&state)?;
    let Some(claim) = claim(&mounts, &path)? else {
        return already_mounted(report, &path, &running);
    };
    let notes = Notes::in_dir(mounts);
    let mut hidden: Vec<PathBuf> = catalog.stores().iter().map(|store| store.root().to_path_buf()).collect();
    hidden.push(state.path().to_owned());
    let spot = match MountPoint::prepare(&path, &hidden, &notes)? {
        MountTarget::Free(spot) => spot,
        MountTarget::AlreadyMounted => return already_mounted(report, &path, &running),
    };
    report.start_log(&state)?;
    // Whatever is the working directory cannot be unmounted; what we make is for the owner only.
    rustix::process::chdir("/").map_err(|errno| Failure::io("cannot enter", Path::new("/"), errno.into()))?;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    descriptors::raise_limit();
    let spare = Spare::keep();
    let mut told = Told::default();
    recover(&state, &mut told);
    recover_now_and_then(state.clone(), told);
    let (sender, news) = std::sync::mpsc::channel();
    events::watch_signals(sender.clone())
        .map_err(|error| Failure::io("cannot catch signals in", &path, error))?;

    let options = Options {
        project,
        read_only: request.read_only,
        show_all: request.show_all,
        mountpoint: path.clone(),
        running: running.text(),
    };
    let fs = Arc::new(Fs::new(catalog.clone(), state, options));
    let how = MountOptions { allow_root: request.allow_root, read_only: request.read_only };
    let mounted = fuse::mount(fs.clone(), spot.path(), how)
        .map_err(|error| Failure::Mount { path: path.clone(), why: error.to_string().trim().into() })?;
    let device = mounted.device();
    push_changes(&catalog, &fs, mounted.notices());
    // The mount itself is not looked at from here: a thread that waits for an answer of its own process would
    // keep that process alive after kill -9, and with it the mount, for ever.
    let answers = mounted.answers(FIRST_ANSWER_LIMIT);
    let watched = events::watch_session(sender.clone(), mounted)
        .and_then(|()| events::watch_mountinfo(sender, path.clone(), device));
    let wrong = match watched {
        Err(error) => Some(format!("no thread can be started: {error}")),
        Ok(()) if !answers => Some("the kernel does not begin to use it".into()),
        Ok(()) => None,
    };
    if let Some(why) = wrong {
        detach::detach_lazily(&path, device)?;
        return Err(Failure::Mount { path, why });
    }
    report.ready(&path);
    log::info!("mounted at {} (device {device})", path.display());
    wait_for_the_end(&news, &path, device, &fs, spare);
    readiness::notify_systemd("STOPPING=1");
    drop(spot);
    drop(claim);
    log::info!("the mount at {} has ended", path.display());
    Ok(())
}

/// Says that there is nothing to do, if the mount at `path` is what was asked for.
fn already_mounted(report: &mut Report, path: &Path, wanted: &Running) -> Result<(), Failure> {
    let differences = match Running::ask(path) {
        Some(running) => running.differences(wanted),
        // Of another version: only the kernel tells something.
        None => {
            let mounts = mountinfo::read().unwrap_or_default();
            let read_only = mountinfo::top_at(&mounts, path).is_some_and(|mount| mount.read_only);
            match (read_only, wanted.read_only) {
                (true, false) => vec!["it has --read-only".into()],
                (false, true) => vec!["it does not have --read-only".into()],
                _ => Vec::new(),
            }
        }
    };
    if !differences.is_empty() {
        return Err(Failure::OtherOptions { path: path.into(), differences: differences.join("; ") });
    }
    report.already_mounted(path);
    Ok(())
}

/// Makes the kernel forget what changes outside, as soon as it does.
fn push_changes(catalog: &Arc<Catalog>, fs: &Arc<Fs>, notices: fuse::InvalidationQueue) {
    let fs = fs.clone();
    let begun = catalog.watch(move |changed| notices.forget(fs.stale(&changed)));
    if let Err(error) = begun {
        log::warn!("the stores cannot be watched ({error}): they are looked at for each answer");
    }
}

/// Waits for a reason to end, and then for the end: at most for [`END_LIMIT`], because a program that
/// keeps a file open must not keep the daemon. A command that is being carried out may take longer.
fn wait_for_the_end(news: &Receiver<Event>, path: &Path, device: Device, fs: &Fs, spare: Spare) {
    let first = news.recv();
    drop(spare);
    match first {
        Ok(Event::SessionEnded) | Err(_) => return,
        Ok(Event::MountGone) => log::info!("{} was unmounted", path.display()),
        Ok(Event::Stop(signal)) => {
            log::info!("asked to stop (signal {signal})");
            match detach::detach(path, device) {
                Ok(Detached::Lazily) => log::info!("{} is in use; detached", path.display()),
                Ok(Detached::Cleanly | Detached::GoneAlready) => {}
                Err(failure) => log::error!("{failure}"),
            }
        }
    }
    let end = Instant::now() + END_LIMIT;
    while let Ok(next) = news.recv_timeout(end.saturating_duration_since(Instant::now())) {
        if matches!(next, Event::SessionEnded) {
            return;
        }
    }
    log::warn!("a program still has files of {} open; ending all the same", path.display());
    if !fs.finish_commands(COMMAND_LIMIT) {
        log::error!(
            "a command is still being carried out; if it does not finish, the next mount or command puts it right"
        );
    }
    // Its answer is on the way.
    let _ = news.recv_timeout(ANSWER_LIMIT);
}

/// Takes away the turnfs mount at `path`, alive or dead, waits until its daemon has gone, and removes the mount
/// point if turnfs made it.
///
/// # Errors
/// When there is no turnfs mount, or it cannot be taken away.
pub fn umount(state: Option<&StateDir>, path: &Path) -> Result<Detached, Failure> {
    let path = resolve(path)?;
    // A state directory that cannot be used must not keep a mount.
    let locks = state.and_then(|state| claim::existing_mounts(state).ok().flatten()).map(Arc::new);
    let notes = locks.clone().map(Notes::in_dir);
    let mounts = mountinfo::read()
        .map_err(|error| Failure::io("cannot read", Path::new("/proc/self/mountinfo"), error))?;
    let Some(top) = mountinfo::top_at(&mounts, &path) else {
        // Somebody else took a dead mount away, or the machine was restarted.
        return match notes.is_some_and(|notes| notes.remove_directory(&path)) {
            true => Ok(Detached::GoneAlready),
            false => Err(Failure::NotMounted { path }),
        };
    };
    if !top.is_turnfs() {
        return Err(Failure::NotOurs { path, fs_type: top.fs_type.clone() });
    }
    // Whoever waits for it would wait for ever: also a thread of a daemon that was killed while it told the kernel what
    // to forget, and with it that daemon, and its claim.
    let is_ours = top.user.is_none_or(|user| user == rustix::process::geteuid().as_raw());
    if is_ours && ask(&path) == Answer::Silent {
        detach::abort(&path, top.device);
    }
    let how = detach::detach(&path, top.device)?;
    if let (Some(locks), Some(notes)) = (locks, notes) {
        match claim::wait_until_free(&locks, &path, UMOUNT_LIMIT) {
            // A daemon that ends by itself has removed it already.
            true => drop(notes.remove_directory(&path)),
            false => log::warn!("the daemon of {} has not ended yet", path.display()),
        }
    }
    Ok(how)
}

/// Claims the mount point; `None` when a daemon has it whose mount answers.
fn claim(locks: &Arc<PrivateDir>, path: &Path) -> Result<Option<Claim>, Failure> {
    let start = Instant::now();
    loop {
        if let Some(claim) = Claim::take(locks, path)? {
            return Ok(Some(claim));
        }
        let mounts = mountinfo::read().unwrap_or_default();
        if let Some(top) = mountinfo::top_at(&mounts, path).filter(|top| top.is_turnfs()) {
            match ask(path) {
                Answer::Alive => return Ok(None),
                Answer::Silent if claim::is_of_the_dead(locks, path) => {
                    log::warn!(
                        "the daemon of {} was killed, but does not end: its mount is aborted",
                        path.display()
                    );
                    detach::abort(path, top.device);
                }
                Answer::Silent => return Err(Failure::Silent { path: path.into() }),
                Answer::Dead | Answer::NotForUs => {}
            }
        }
        if start.elapsed() > CLAIM_LIMIT {
            return Err(Failure::Claimed { path: path.into() });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn check_prerequisites(request: &Request) -> Result<(), Failure> {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Failure::NoDevice),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(Failure::DeviceClosed),
        // Anything else: mounting will tell.
        Ok(_) | Err(_) => {}
    }
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    if fusermount().is_none() {
        return Err(Failure::NoFusermount);
    }
    if request.allow_root && !fuse_conf_allows_other() {
        return Err(Failure::AllowRoot);
    }
    Ok(())
}

/// Whether ordinary users may let others into their mounts.
pub fn fuse_conf_allows_other() -> bool {
    std::fs::read_to_string("/etc/fuse.conf").is_ok_and(|text| allows_other(&text))
}

fn allows_other(fuse_conf: &str) -> bool {
    fuse_conf.lines().any(|line| line.trim() == "user_allow_other")
}

/// A store that cannot be read at all would be a mount that shows nothing and does not say why. One that
/// is not there (yet) is no error.
fn check_stores(catalog: &Catalog) -> Result<(), Failure> {
    if catalog.stores().is_empty() {
        return Err(Failure::NoStore);
    }
    for store in catalog.stores().iter() {
        match std::fs::read_dir(store.root()) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Refusal::io("cannot read", store.root(), error).into()),
        }
    }
    Ok(())
}

/// Puts in order what a crash left half done, and says so.
fn recover(state: &StateDir, told: &mut Told) {
    told.tell(match cut::recover(state) {
        Ok(sentences) => sentences,
        Err(refusal) => vec![format!("could not look for cuts that a crash left half done: {refusal}")],
    });
}

/// What the last look found: what stays as it is, is said once.
#[derive(Default)]
struct Told(HashSet<String>);

impl Told {
    fn tell(&mut self, sentences: Vec<String>) {
        let new = |sentence: &&String| !self.0.contains(*sentence);
        sentences.iter().filter(new).for_each(|sentence| log::warn!("{sentence}"));
        self.0 = sentences.into_iter().collect();
    }
}

/// A command that crashes while this mount lives must not leave half a cut to be shown as a session.
fn recover_now_and_then(state: StateDir, mut told: Told) {
    const EVERY: Duration = Duration::from_secs(2);
    let look = move || {
        loop {
            std::thread::sleep(EVERY);
            recover(&state, &mut told);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("recover".into()).spawn(look) {
        log::warn!(
            "cuts that a crash leaves half done are put in order by the next command or mount only: {error}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_uncommented_line_of_fuse_conf_allows_others() {
        let table = [
            ("user_allow_other\n", true),
            ("# comment\n  user_allow_other  \n", true),
            ("#user_allow_other\n", false),
            ("mount_max = 1000\n", false),
            ("", false),
        ];
        for (text, expected) in table {
            assert_eq!(allows_other(text), expected, "{text:?}");
        }
    }
}
