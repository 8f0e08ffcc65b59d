//! Why a mount cannot be made or taken away: one sentence each, with what to do.

use std::io;
use std::path::{Path, PathBuf};

use crate::session::Refusal;

/// Why a mount cannot be made or taken away.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{} is not a directory; a mount point must be an empty directory", .path.display())]
    NotADirectory { path: PathBuf },
    #[error("{} is not empty; a mount point must be an empty directory", .path.display())]
    NotEmpty { path: PathBuf },
    #[error("{} does not exist; make it first (only the last directory of a mount point is made)", .parent.display())]
    NoParent { parent: PathBuf },
    #[error("{} lies inside the store {}; choose another mount point", .path.display(), .store.display())]
    InsideStore { path: PathBuf, store: PathBuf },
    #[error("the store {} would be hidden below {}; choose another mount point", .store.display(), .path.display())]
    StoreInside { path: PathBuf, store: PathBuf },
    #[error("{} lies inside the turnfs mount {}; choose another mount point", .path.display(), .mount.display())]
    InsideMount { path: PathBuf, mount: PathBuf },
    #[error("{} is the mount point of another file system ({fs_type}); choose another one", .path.display())]
    Foreign { path: PathBuf, fs_type: String },
    #[error("{} is a turnfs mount of the user with the id {user}; choose another mount point", .path.display())]
    OtherUser { path: PathBuf, user: u32 },
    #[error("the turnfs mount at {} does not answer; take it away with `turnfs umount {}`", .path.display(), .path.display())]
    Silent { path: PathBuf },
    #[error("another turnfs is busy with the mount point {}; try again", .path.display())]
    Claimed { path: PathBuf },
    #[error("{} is not mounted", .path.display())]
    NotMounted { path: PathBuf },
    #[error("{} is a {fs_type} mount, not turnfs; turnfs leaves it alone", .path.display())]
    NotOurs { path: PathBuf, fs_type: String },
    #[error(
        "/dev/fuse is not there; load the module with `modprobe fuse` (in a container: start it with `--device /dev/fuse --cap-add SYS_ADMIN`). `turnfs ls`, `show`, `undo`, `redo` and `fork` work without a mount"
    )]
    NoDevice,
    #[error(
        "/dev/fuse is not open to this user; `sudo chmod 666 /dev/fuse` opens it. `turnfs ls`, `show`, `undo`, `redo` and `fork` work without a mount"
    )]
    DeviceClosed,
    #[error(
        "fusermount3 is not installed; it is in the package fuse3 (`sudo apt install fuse3`). `turnfs ls`, `show`, `undo`, `redo` and `fork` work without a mount"
    )]
    NoFusermount,
    #[error("--allow-root needs the line `user_allow_other` in /etc/fuse.conf")]
    AllowRoot,
    /// `differences`: clauses whose subject is the mount.
    #[error(
        "already mounted at {}, but with other options: {differences}; to change that, run `turnfs umount {}` first", .path.display(), .path.display()
    )]
    OtherOptions { path: PathBuf, differences: String },
    #[error("no store to show: HOME is not set; set it, or name a store with --store AGENT=DIR")]
    NoStore,
    #[error("cannot mount at {}: {why}", .path.display())]
    Mount { path: PathBuf, why: String },
    #[error("cannot unmount {}: {why}", .path.display())]
    Unmount { path: PathBuf, why: String },
    #[error("the mount at {} did not answer within {seconds} s; see {}", .path.display(), .log.display())]
    NotReady { path: PathBuf, seconds: u64, log: PathBuf },
    #[error("the daemon ended before it was ready; see {}", .log.display())]
    EndedEarly { log: PathBuf },
    /// The daemon's own sentence, passed back to the one who started it.
    #[error("{sentence}")]
    Reported { sentence: String },
    #[error("{action} {}: {error}", .path.display())]
    Io { action: &'static str, path: PathBuf, error: io::Error },
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Failure {
    pub fn io(action: &'static str, path: &Path, error: io::Error) -> Failure {
        Failure::Io { action, path: path.to_owned(), error }
    }
}
