//! A mount that is alive, and how it ends.

use std::io;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use fuser::BackgroundSession;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::Notices;

/// How long an unmount waits for the session to end.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A mounted file system.
///
/// Dropping it neither unmounts nor waits.
pub struct Mounted {
    /// Never dropped: its guard unmounts by path, even after the session has ended and the path is
    /// somebody else's.
    _session: ManuallyDrop<BackgroundSession>,
    mountpoint: PathBuf,
    device: (u32, u32),
    notices: Notices,
    /// Disconnected when the session has ended.
    ended: Receiver<()>,
}

impl Mounted {
    pub(super) fn new(
        session: BackgroundSession,
        mountpoint: PathBuf,
        notices: Notices,
        ended: Receiver<()>,
    ) -> io::Result<Mounted> {
        match device_at(&mountpoint) {
            Ok(device) => {
                Ok(Mounted { _session: ManuallyDrop::new(session), mountpoint, device, notices, ended })
            }
            Err(errno) => {
                // The mount is a moment old and ours: here fuser's own way to end it is right.
                session.umount_and_join()?;
                Err(errno.into())
            }
        }
    }

    /// Major and minor device number, as in /proc/self/mountinfo.
    pub fn mounted_device(&self) -> (u32, u32) {
        self.device
    }

    /// Tells the kernel what to forget.
    pub fn notices(&self) -> Notices {
        self.notices.clone()
    }

    /// Waits until the file system is unmounted, by whomever.
    pub fn join(&self) {
        // Nothing is ever sent: the only news is the end.
        let _ = self.ended.recv();
    }

    /// Waits for the end at most `limit`; whether it came.
    pub fn join_for(&self, limit: Duration) -> bool {
        self.ended.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
    }

    /// Unmounts, if the mount is still ours, and waits at most 5 s for the session to end. A mount in use
    /// is detached: it is gone from the tree at once and ends with its last user.
    ///
    /// # Errors
    /// What unmounting reports.
    pub fn unmount(&self) -> io::Result<()> {
        if self.join_for(Duration::ZERO) || device_at(&self.mountpoint) != Ok(self.device) {
            return Ok(()); // gone already; what is at the path now is not ours
        }
        match unmount(&self.mountpoint, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::BUSY) => unmount(&self.mountpoint, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?,
            // Only root may unmount; fusermount3 does it for the user who mounted.
            Err(Errno::PERM) if fusermount(&self.mountpoint, "-u") => {}
            Err(Errno::PERM) if fusermount(&self.mountpoint, "-uz") => {}
            Err(errno) => return Err(errno.into()),
        }
        self.join_for(END_LIMIT);
        Ok(())
    }
}

/// The device of what is mounted at `path`, without asking the file system itself.
fn device_at(path: &Path) -> Result<(u32, u32), Errno> {
    let cached = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let found = rustix::fs::statx(CWD, path, cached, StatxFlags::TYPE)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

fn fusermount(mountpoint: &Path, how: &str) -> bool {
    let mut command = Command::new("fusermount3");
    command.arg(how).arg("--").arg(mountpoint).stdin(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
