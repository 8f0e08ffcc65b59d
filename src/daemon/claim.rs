//! One daemon per mount point: a lock file in the state directory, held for the daemon's life.
//!
//! The lock also tells `turnfs umount` when the daemon has really gone. It is the kernel's (flock), so it
//! is free again however the daemon ends.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::failure::Failure;

/// The right to be the daemon of a mount point, until dropped.
#[derive(Debug)]
pub struct Claim {
    file: File,
    path: PathBuf,
}

impl Claim {
    /// Claims `mount_point` (resolved); `None` when another daemon has it. `state` is turnfs's state
    /// directory; it is made if it is missing.
    ///
    /// # Errors
    /// When the state directory cannot be written.
    pub fn take(state: &Path, mount_point: &Path) -> Result<Option<Claim>, Failure> {
        let path = lock_file(state, mount_point);
        let dir = path.parent().unwrap_or(state);
        let failed = |error| Failure::io("cannot write", &path, error);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        loop {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(&path)
                .map_err(failed)?;
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
            claim.sign(mount_point).map_err(|error| Failure::io("cannot write", &claim.path, error))?;
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
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Waits until no daemon has `mount_point`; whether that came true within `limit`.
pub fn wait_until_free(state: &Path, mount_point: &Path, limit: Duration) -> bool {
    let start = Instant::now();
    loop {
        let Ok(file) = File::open(lock_file(state, mount_point)) else { return true };
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
    let name = xxhash_rust::xxh3::xxh3_64(mount_point.as_os_str().as_bytes());
    state.join("mounts").join(format!("{name:016x}.lock"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn a_mount_point_has_one_daemon_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("deep/state");
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
