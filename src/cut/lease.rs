//! The store's locks for the length of a cut: kernel leases, and lock files where a store has them.
//!
//! A write lease on a file is granted only while nobody else has it open, and whoever opens it then waits
//! until the lease is gone. So between the last look at a transcript and its truncation no record can
//! come in. A file under our own lease must be read through the leased descriptor: a second `open`, even
//! our own, would wait. The kernel breaks a lease after `/proc/sys/fs/lease-break-time` (45 s); a cut is
//! done with it in milliseconds.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::disk::{Open, Tree};
use super::several_names::Old;
use crate::host::sys::{self, Fcntl};
use crate::session::{Lock, Refusal, Result};

/// How long a lock is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How long somebody who only reads is waited for: a reader loses nothing by a cut.
const READER_PATIENCE: Duration = Duration::from_millis(250);

/// The locks of a cut and the files that they hold open. Dropping it lets go of everything, of what was taken last first.
#[derive(Debug, Default)]
pub(super) struct HeldLocks {
    files: HashMap<PathBuf, Hold>,
    /// Inodes that had the name of one of `files` before: `several_names`.
    old: Vec<Old>,
    /// Files to whose old inode a client was about to write when it was let go of.
    awaited: HashSet<PathBuf>,
    flocks: Vec<Flock>,
    gated: Vec<Gated>,
}

/// A session's lock as a client holds it; leaving it removes the file, under the gate again.
#[derive(Debug)]
struct Gated {
    store: Tree,
    gate: PathBuf,
    file: PathBuf,
    /// Whether there was no gate, and no directory for it, before.
    made: (bool, bool),
    _held: Flock,
}

impl Gated {
    /// `None` if somebody has the lock.
    fn take(store: &Tree, gate: &Path, file: &Path) -> Result<Option<Gated>> {
        let made_dir = match gate.parent() {
            Some(dir) => store.ensure_dir(dir)?,
            None => false,
        };
        let made_gate = store.stat(gate)?.is_none();
        let _gate = Gated::enter(store, gate)?;
        let Some(held) = Flock::within(store.open_or_create(file)?, Duration::ZERO)? else {
            return Ok(None);
        };
        let store = store.sub(Path::new(""))?;
        let (gate, file) = (gate.to_owned(), file.to_owned());
        Ok(Some(Gated { store, gate, file, made: (made_gate, made_dir), _held: held }))
    }

    fn enter(store: &Tree, gate: &Path) -> Result<Flock> {
        let held = Flock::within(store.open_or_create(gate)?, PATIENCE)?;
        held.ok_or_else(|| Refusal::StoreLocked { what: gate.display().to_string() })
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        let leave = || -> Result<()> {
            let _gate = Gated::enter(&self.store, &self.gate)?;
            self.store.unlink(&self.file)?;
            let (made_gate, made_dir) = self.made;
            if made_gate {
                self.store.unlink(&self.gate)?;
            }
            if made_dir && let Some(dir) = self.gate.parent() {
                self.store.remove_if_empty(dir)?;
            }
            Ok(())
        };
        // The lock itself goes with its descriptor; an unlocked file that stays harms nobody.
        if let Err(refusal) = leave() {
            log::warn!("the lock file {} stays: {refusal}", self.file.display());
        }
    }
}

/// A file held open.
#[derive(Debug)]
pub(super) struct Hold {
    pub open: Open,
    pub leased: bool,
}

impl Hold {
    /// With a lease, if nobody else has the file open.
    pub fn leased_if_possible(open: Open) -> Hold {
        let leased = set_lease(&open, libc::F_WRLCK).is_ok();
        Hold { open, leased }
    }

    /// Whether a program waits to open the file for writing, or no longer had to wait.
    pub fn writer_waits(&self) -> bool {
        self.leased && sys::lease(&self.open.file).is_ok_and(|held| held == libc::F_UNLCK)
    }
}

impl Open {
    /// Whether another program has the file open for writing, as far as leases can tell.
    pub fn is_written(&self) -> bool {
        match set_lease(self, libc::F_WRLCK) {
            Ok(()) => {
                let _ = sys::fcntl(&self.file, Fcntl::SetLease(libc::F_UNLCK));
                false
            }
            Err(error) => error.raw_os_error() == Some(libc::EAGAIN),
        }
    }
}

/// Why a lease was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Denied {
    /// Somebody has the file open for writing.
    Writer,
    /// Somebody has the file open, for reading only.
    Reader,
    /// This file system, or this user, has no leases.
    Unsupported,
}

/// What is to be done when a writer has the file open for the whole of [`PATIENCE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnWriter {
    Refuse,
    /// Go on without the lease: check, cut, check.
    GoOn,
}

/// Who is in the way.
pub(super) enum HeldByWriter {
    /// The file is open for writing somewhere else.
    Open(PathBuf),
    /// The file has several hard links and is open for writing somewhere else: never cut.
    OpenAndLinked(PathBuf),
    /// Somebody holds the lock that stands for having the session open; whether it can be overridden.
    Lock { file: PathBuf, forcible: bool },
}

// In reverse: a client that gets the lock of an index takes its session's lock next, without waiting for it.
impl Drop for HeldLocks {
    fn drop(&mut self) {
        self.files.clear();
        while self.flocks.pop().is_some() {}
    }
}

impl HeldLocks {
    /// Takes the locks in their order.
    pub fn take(
        store: &Tree,
        locks: &[Lock],
        on_writer: OnWriter,
    ) -> Result<std::result::Result<HeldLocks, HeldByWriter>> {
        let mut hands = HeldLocks::default();
        for lock in locks {
            match lock {
                Lock::Lease { file } => {
                    if let Err(held) = hands.lease(store, file, on_writer)? {
                        return Ok(Err(held));
                    }
                }
                Lock::Flock { file, create } => hands.flock(store, file, *create)?,
                Lock::Claim { file } => {
                    let Some(open) = store.write(file)? else { continue };
                    let Some(claim) = Flock::within(open, Duration::ZERO)? else {
                        return Ok(Err(HeldByWriter::Lock { file: file.clone(), forcible: false }));
                    };
                    hands.flocks.push(claim);
                }
                Lock::Gated { gate, file } => match Gated::take(store, gate, file)? {
                    Some(gated) => hands.gated.push(gated),
                    None if on_writer == OnWriter::GoOn => {}
                    None => return Ok(Err(HeldByWriter::Lock { file: file.clone(), forcible: true })),
                },
            }
        }
        Ok(Ok(hands))
    }

    fn lease(
        &mut self,
        store: &Tree,
        file: &Path,
        on_writer: OnWriter,
    ) -> Result<std::result::Result<(), HeldByWriter>> {
        let start = Instant::now();
        loop {
            let denied = match unleased(store.write(file))? {
                Some(None) => return Ok(Ok(())),
                // Another program's lease, which it must give back soon.
                None => Denied::Writer,
                Some(Some(open)) => match set_lease(&open, libc::F_WRLCK) {
                    Ok(()) => {
                        self.files.insert(file.to_owned(), Hold { open, leased: true });
                        return Ok(Ok(()));
                    }
                    Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {
                        drop(open);
                        who_has_it(store, file)?
                    }
                    Err(_) => Denied::Unsupported,
                },
            };
            let waited = start.elapsed();
            let enough = match denied {
                Denied::Unsupported => true,
                Denied::Reader => waited >= READER_PATIENCE,
                Denied::Writer => waited >= PATIENCE,
            };
            if enough && denied == Denied::Writer && on_writer == OnWriter::Refuse {
                return Ok(Err(HeldByWriter::Open(file.to_owned())));
            }
            if enough {
                let Some(open) = store.write(file)? else { return Ok(Ok(())) };
                // It would go on writing to the inode that the store no longer names.
                if denied == Denied::Writer && open.has_several_links()? {
                    return Ok(Err(HeldByWriter::OpenAndLinked(file.to_owned())));
                }
                self.files.insert(file.to_owned(), Hold { open, leased: false });
                return Ok(Ok(()));
            }
            // A client that appends holds the file open for some microseconds.
            std::thread::sleep(Duration::from_micros(150));
        }
    }

    fn flock(&mut self, store: &Tree, file: &Path, create: bool) -> Result<()> {
        let open = match store.write(file)? {
            Some(open) => open,
            None if create => store.create(file)?,
            None => return Ok(()),
        };
        let flock = Flock::within(open, PATIENCE)?;
        self.flocks.push(flock.ok_or_else(|| Refusal::StoreLocked { what: file.display().to_string() })?);
        Ok(())
    }

    /// Holds a file; what was held under this name before.
    pub fn hold(&mut self, file: &Path, hold: Hold) -> Option<Hold> {
        self.files.insert(file.to_owned(), hold)
    }

    pub fn keep_old(&mut self, old: Old) {
        self.old.push(old);
    }

    pub fn old(&self) -> &[Old] {
        &self.old
    }

    /// Lets go of the old inodes, so that whoever waits for one goes on, and notes which they were.
    pub fn let_go_of_old(&mut self) {
        for old in std::mem::take(&mut self.old) {
            self.awaited.extend(old.awaited());
        }
    }

    /// Takes over what other hands noted of clients that were about to write to old inodes.
    pub fn await_too(&mut self, other: &HeldLocks) {
        self.awaited.extend(other.awaited.iter().cloned());
    }

    pub fn is_awaited(&self, file: &Path) -> bool {
        self.awaited.contains(file)
    }

    /// Lets go of the files, so that they can be opened again, and keeps the store's lock files.
    pub fn let_go_of_files(&mut self) {
        self.files.clear();
    }

    /// The file as these hands hold it.
    pub fn file(&self, file: &Path) -> Option<&Open> {
        self.files.get(file).map(|hold| &hold.open)
    }

    /// Lets `act` read a file of the store: as these hands hold it, for a leased file cannot be opened twice. `None` if
    /// it is not there.
    pub fn read<T>(
        &self,
        store: &Tree,
        file: &Path,
        act: impl FnOnce(&Open) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.file(file) {
            Some(open) => act(open).map(Some),
            None => store.read(file)?.as_ref().map(act).transpose(),
        }
    }

    /// Whether a program waits to write to a file that these hands hold with a lease.
    pub fn writer_waits(&self, file: &Path) -> bool {
        self.files.get(file).is_some_and(Hold::writer_waits)
    }
}

// Locks and leases are given back by name, not by closing: a process that another thread is just starting
// has copies of all descriptors until it runs its program, and would hold them for that long.
impl Drop for Hold {
    fn drop(&mut self) {
        if self.leased {
            let _ = sys::fcntl(&self.open.file, Fcntl::SetLease(libc::F_UNLCK));
        }
    }
}

/// A file with flock(LOCK_EX) held on it.
#[derive(Debug)]
pub(super) struct Flock(Open);

impl Flock {
    /// Tries for at most `patience`; `None` if it was not free.
    pub fn within(open: Open, patience: Duration) -> Result<Option<Flock>> {
        let start = Instant::now();
        loop {
            match rustix::fs::flock(&open.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Flock(open))),
                Err(Errno::AGAIN) if start.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(e) => return Err(open.error("cannot lock", e.into())),
            }
        }
    }

    /// Whether nobody holds it now.
    pub fn is_free(open: &Open) -> Result<bool> {
        match rustix::fs::flock(&open.file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                let _ = rustix::fs::flock(&open.file, FlockOperation::Unlock);
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(e) => Err(open.error("cannot lock", e.into())),
        }
    }
}

impl Drop for Flock {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0.file, FlockOperation::Unlock);
    }
}

fn who_has_it(store: &Tree, file: &Path) -> Result<Denied> {
    // A read lease is given while nobody has the file open for writing.
    let open = match unleased(store.read(file))? {
        Some(Some(open)) => open,
        Some(None) => return Ok(Denied::Reader),
        None => return Ok(Denied::Writer),
    };
    Ok(match set_lease(&open, libc::F_RDLCK) {
        Ok(()) => Denied::Reader,
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Denied::Writer,
        Err(_) => Denied::Unsupported,
    })
}

/// `None` where the file cannot be opened now because another program has a lease on it.
fn unleased(opened: Result<Option<Open>>) -> Result<Option<Option<Open>>> {
    match opened {
        Err(Refusal::Io { errno: Errno::AGAIN, .. }) => Ok(None),
        other => other.map(Some),
    }
}

fn set_lease(open: &Open, kind: libc::c_int) -> io::Result<()> {
    // The kernel tells the holder with SIGIO that somebody waits; SIGIO kills by default. SIGURG is
    // ignored by default, and a cut is over soon whoever waits.
    sys::fcntl(&open.file, Fcntl::SetSignal(libc::SIGURG))?;
    sys::fcntl(&open.file, Fcntl::SetLease(kind))
}
