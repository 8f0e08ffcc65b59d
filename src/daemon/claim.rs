//! One daemon per mount point: a lock file in the state directory, held for the daemon's life.
//!
//! The lock also tells `turnfs umount` when the daemon has really gone. It is the kernel's (flock), so it
//! is free again however the daemon ends.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::failure::Failure;
use super::running::Running;
use crate::host::own::{self, For};

/// The right to be the daemon of a mount point, until dropped.
#[derive(Debug)]
pub struct Claim {
    file: File,
    path: PathBuf,
}

impl Claim {
    /// Claims the mount point of `running` (resolved); `None` when another daemon has it. `state` is turnfs's
    /// state directory, which is there.
    ///
    /// # Errors
    /// When the state directory cannot be written, or holds what is not ours.
    pub fn take(state: &Path, running: &Running) -> Result<Option<Claim>, Failure> {
        let path = lock_file(state, &running.mountpoint);
        let dir = path.parent().unwrap_or(state);
        let failed = |error| Failure::io("cannot write", &path, error);
        own::directory(dir).map_err(|error| Failure::io("cannot use", dir, error))?;
        loop {
            let file = own::file(&path, For::Writing).map_err(failed)?;
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
            let claim = Claim { file, path };
            claim.sign(running).map_err(|error| Failure::io("cannot write", &claim.path, error))?;
            return Ok(Some(claim));
        }
    }

    /// Who has it, and for what.
    fn sign(&self, running: &Running) -> io::Result<()> {
        let text = serde_json::to_string_pretty(running)?;
        self.file.set_len(0)?;
        writeln!(&self.file, "{text}")
    }
}

/// What the daemon of `mount_point` was started with; `None` if that is not known (no daemon, or one of an older
/// version).
pub fn running(state: &Path, mount_point: &Path) -> Option<Running> {
    /// Longest lock file, bytes.
    const MOST: u64 = 1 << 20;
    let mut text = String::new();
    own::file(&lock_file(state, mount_point), For::Reading)
        .ok()?
        .take(MOST)
        .read_to_string(&mut text)
        .ok()?;
    serde_json::from_str(&text).ok().filter(|running: &Running| running.mountpoint == mount_point)
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Waits until no daemon has `mount_point`; whether that came true within `limit`.
pub fn wait_until_free(state: &Path, mount_point: &Path, limit: Duration) -> bool {
    let start = Instant::now();
    loop {
        let Ok(file) = own::file(&lock_file(state, mount_point), For::Reading) else { return true };
        if file.try_lock_shared().is_ok() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn lock_file(state: &Path, mount_point: &Path) -> PathBuf {
    noted(state, mount_point, "lock")
}

/// A file in the state directory about one mount point.
pub(super) fn noted(state: &Path, mount_point: &Path, what: &str) -> PathBuf {
    let name = xxhash_rust::xxh3::xxh3_64(mount_point.as_os_str().as_bytes());
    state.join("mounts").join(format!("{name:016x}.{what}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn a_mount_point_has_one_daemon_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path();
        let at = |mountpoint: &str| Running {
            version: "0".into(),
            pid: 1,
            mountpoint: mountpoint.into(),
            read_only: true,
            allow_root: false,
            show_all: false,
            project: None,
            stores: Vec::new(),
        };
        let (here, there) = (at("/mnt/a"), at("/mnt/b"));
        let place = here.mountpoint.as_path();
        assert!(wait_until_free(state, place, Duration::ZERO));
        let claim = Claim::take(state, &here).unwrap().expect("free");
        assert_eq!(running(state, place), Some(here.clone()));
        assert!(Claim::take(state, &here).unwrap().is_none());
        assert!(!wait_until_free(state, place, Duration::from_millis(20)));
        assert!(Claim::take(state, &there).unwrap().is_some(), "another mount point is another claim");
        drop(claim);
        assert!(wait_until_free(state, place, Duration::ZERO));
        assert_eq!(running(state, place), None);
        assert!(Claim::take(state, &here).unwrap().is_some());
    }
}
