//! One daemon per mount point: a lock file in the state directory, held for the daemon's life.
//!
//! The lock also tells `turnfs umount` when the daemon has really gone. It is the kernel's (flock), so it
//! is free again however the daemon ends.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::failure::Failure;
use crate::cut::{PrivateDir, StateDir};
use crate::host::processes;

const MOUNTS: &str = "mounts";

/// The right to be the daemon of a mount point, until dropped.
#[derive(Debug)]
pub struct Claim {
    file: File,
    mounts: Arc<PrivateDir>,
    name: String,
}

impl Claim {
    /// Claims `mount_point` (resolved); `None` when another daemon has it. `mounts`: [`of_mounts`].
    ///
    /// # Errors
    /// When the lock cannot be written, or is not this user's own.
    pub fn take(mounts: &Arc<PrivateDir>, mount_point: &Path) -> Result<Option<Claim>, Failure> {
        let name = lock_name(mount_point);
        let failed = |error| Failure::io("cannot write", &mounts.path().join(&name), error);
        loop {
            let file = mounts.append(&name)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // Its last owner removed the file while we opened it: a lock on a file without a name keeps
            // nobody out.
            if file.metadata().map_err(failed)?.nlink() == 0 {
                continue;
            }
            let claim = Claim { file, mounts: mounts.clone(), name: name.clone() };
            claim.sign(mount_point).map_err(failed)?;
            return Ok(Some(claim));
        }
    }

    /// Who has it, for a human who looks into the file.
    fn sign(&self, mount_point: &Path) -> io::Result<()> {
        self.file.set_len(0)?;
        writeln!(&self.file, "{}\n{}", std::process::id(), mount_point.display())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = self.mounts.remove(&self.name);
    }
}

/// Waits until no daemon has `mount_point`; whether that came true within `limit`.
pub fn wait_until_free(mounts: &PrivateDir, mount_point: &Path, limit: Duration) -> bool {
    let start = Instant::now();
    loop {
        let Ok(Some(file)) = mounts.read(&lock_name(mount_point)) else { return true };
        if file.try_lock_shared().is_ok() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the daemon that has `mount_point` was killed and only waits for its own mount: nothing but a thread of it that
/// cannot be killed is left.
pub fn is_of_the_dead(mounts: &PrivateDir, mount_point: &Path) -> bool {
    let signed = mounts.content(&lock_name(mount_point)).ok().flatten().unwrap_or_default();
    let signed = String::from_utf8_lossy(&signed);
    let pid = signed.lines().next().and_then(|line| line.parse::<u32>().ok());
    pid.is_some_and(processes::is_zombie)
}

/// Where the locks and notes of mount points are, in the state directory; made if it is missing.
///
/// # Errors
/// When it, or the state directory, is not this user's own or cannot be made.
pub fn of_mounts(state: &StateDir) -> Result<Arc<PrivateDir>, Failure> {
    Ok(Arc::new(state.private_or_made()?.below_or_made(MOUNTS)?))
}

/// As [`of_mounts`], without making anything; `None` where no daemon ever was.
///
/// # Errors
/// As [`of_mounts`].
pub fn existing_mounts(state: &StateDir) -> Result<Option<PrivateDir>, Failure> {
    let Some(state) = state.private()? else { return Ok(None) };
    Ok(state.below(MOUNTS)?)
}

/// The name of a mount point's files there, without what follows the dot.
pub(super) fn stem(mount_point: &Path) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(mount_point.as_os_str().as_bytes()))
}

fn lock_name(mount_point: &Path) -> String {
    format!("{}.lock", stem(mount_point))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn a_mount_point_has_one_daemon_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let state = of_mounts(&StateDir::at(&dir.path().join("deep/state"))).unwrap();
        let (here, there) = (Path::new("/mnt/a"), Path::new("/mnt/b"));
        assert!(wait_until_free(&state, here, Duration::ZERO));
        let claim = Claim::take(&state, here).unwrap().expect("free");
        assert!(Claim::take(&state, here).unwrap().is_none());
        assert!(!wait_until_free(&state, here, Duration::from_millis(20)));
        assert!(Claim::take(&state, there).unwrap().is_some(), "another mount point is another claim");
        drop(claim);
        assert!(wait_until_free(&state, here, Duration::ZERO));
        assert!(Claim::take(&state, here).unwrap().is_some());
    }
}
