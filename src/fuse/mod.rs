//! Thin adapter between fuser and `fs`: mounting, replies, open flags, errno. No policy, no parsing.
//!
//! `adapter` answers the kernel, `invalidations` tells it what to forget, `mounted` is the mount while it lives. The
//! session of fuser is never dropped: 0.18 takes a dead session for a mounted one, so dropping its guard after
//! somebody else unmounted can unmount *another* file system at that path. `daemon` takes mounts away itself.

mod adapter;
mod invalidations;
mod mounted;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;

use fuser::{Config, MountOption, SessionACL};

use crate::fs::Fs;
pub use invalidations::InvalidationQueue;
pub use mounted::Mounted;

/// Threads that answer requests: one slow request must not stop the others.
const THREADS: usize = 4;

/// How the mount is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountOptions {
    /// Root may look too (fuse.conf must allow it); other users are refused as the modes say.
    pub allow_root: bool,
    pub read_only: bool,
}

/// Mounts `fs` at `mountpoint` and answers requests on threads of its own until it is unmounted.
///
/// # Errors
/// What mounting reports; nothing is mounted then.
pub fn mount(fs: Arc<Fs>, mountpoint: &Path, options: MountOptions) -> io::Result<Mounted> {
    let mountpoint = mountpoint.canonicalize()?;
    // The adapter is dropped when the session has ended, by whomever: that closes this channel.
    let (alive, begun) = mpsc::channel();
    let (notices, queue) = invalidations::queue(fs.notices_waiting());
    let adapter = adapter::Adapter::new(fs, notices.clone(), alive);
    let session = fuser::spawn_mount(adapter, &mountpoint, &config(options))?;
    queue.run(session.notifier())?;
    Mounted::new(session, &mountpoint, notices, begun)
}

fn config(options: MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        // Constant: a comma in it would inject options.
        MountOption::FSName("turnfs".into()),
        // fuser passes its own `Subtype` on to fusermount only; as a kernel option it works for root too.
        MountOption::CUSTOM("subtype=turnfs".into()),
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        if options.read_only { MountOption::RO } else { MountOption::RW },
    ];
    config.acl = if options.allow_root { SessionACL::RootAndOwner } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    config
}
