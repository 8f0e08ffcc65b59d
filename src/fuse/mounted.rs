//! A mount that is alive, until it ends by whomever. Taking it away is `daemon`'s (`daemon/detach.rs`), which
//! can do so for a mount of another process, too.

use std::io;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use fuser::BackgroundSession;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;

use super::InvalidationQueue;
use crate::host::mountinfo::Device;

/// The kernel's first request has come: all that follow are answered.
#[derive(Debug)]
pub(super) struct Begun;

/// A mounted file system.
///
/// Dropping it neither unmounts nor waits.
pub struct Mounted {
    /// Never dropped: its guard unmounts by path, even after the session has ended and the path is
    /// somebody else's.
    _session: ManuallyDrop<BackgroundSession>,
    device: Device,
    notices: InvalidationQueue,
    /// Tells when the kernel has begun, and is disconnected when the session has ended.
    alive: Receiver<Begun>,
}

impl Mounted {
    pub(super) fn new(
        session: BackgroundSession,
        mountpoint: &Path,
        notices: InvalidationQueue,
        alive: Receiver<Begun>,
    ) -> io::Result<Mounted> {
        match device_at(mountpoint) {
            Ok(device) => Ok(Mounted { _session: ManuallyDrop::new(session), device, notices, alive }),
            Err(errno) => {
                // The mount is a moment old and ours: here fuser's own way to end it is right.
                session.umount_and_join()?;
                Err(errno.into())
            }
        }
    }

    /// What tells this mount from others at the same place.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Tells the kernel what to forget.
    pub fn notices(&self) -> InvalidationQueue {
        self.notices.clone()
    }

    /// Waits until the kernel has begun to ask; whether it did so within `limit`. To be called once.
    pub fn answers(&self, limit: Duration) -> bool {
        self.alive.recv_timeout(limit).is_ok()
    }

    /// Waits until the file system is unmounted, by whomever.
    pub fn join(&self) {
        while let Ok(Begun) = self.alive.recv() {}
    }
}

/// The device of what is mounted at `path`, without asking the file system itself.
fn device_at(path: &Path) -> Result<Device, Errno> {
    let cached = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let found = rustix::fs::statx(CWD, path, cached, StatxFlags::TYPE)?;
    Ok(Device { major: found.stx_dev_major, minor: found.stx_dev_minor })
}
