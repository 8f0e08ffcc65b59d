//! Why a mount cannot be made or taken away: one sentence each, and hints that say what to do.

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
    #[error("{} does not exist, and only the last directory of a mount point is made", .parent.display())]
    NoParent { parent: PathBuf },
    #[error("{} lies inside the store {}", .path.display(), .store.display())]
    InsideStore { path: PathBuf, store: PathBuf },
    #[error("the store {} would be hidden below {}", .store.display(), .path.display())]
    StoreInside { path: PathBuf, store: PathBuf },
    #[error("{} lies inside the turnfs mount {}", .path.display(), .mount.display())]
    InsideMount { path: PathBuf, mount: PathBuf },
    #[error("{} is the mount point of another file system ({fs_type})", .path.display())]
    Foreign { path: PathBuf, fs_type: String },
    #[error("{} is a turnfs mount of the user with the id {user}", .path.display())]
    OtherUser { path: PathBuf, user: u32 },
    #[error("the turnfs mount at {} does not answer", .path.display())]
    Silent { path: PathBuf },
    #[error("another turnfs is busy with the mount point {}", .path.display())]
    Claimed { path: PathBuf },
    #[error("{} is not mounted", .path.display())]
    NotMounted { path: PathBuf },
    #[error("{} is a {fs_type} mount, not turnfs; turnfs leaves it alone", .path.display())]
    NotOurs { path: PathBuf, fs_type: String },
    #[error("/dev/fuse does not exist")]
    NoDevice,
    #[error("this user may not open /dev/fuse")]
    DeviceClosed,
    #[error("fusermount3 is not installed")]
    NoFusermount,
    #[error("--allow-root needs the line `user_allow_other` in /etc/fuse.conf")]
    AllowRoot,
    /// `differences`: clauses whose subject is the mount.
    #[error("already mounted at {}, but with other options: {differences}", .path.display())]
    OtherOptions { path: PathBuf, differences: String },
    #[error("there is no store to show, because HOME is not set")]
    NoStore,
    #[error("cannot mount at {}: {why}", .path.display())]
    Mount { path: PathBuf, why: String },
    #[error("cannot unmount {}: {why}", .path.display())]
    Unmount { path: PathBuf, why: String },
    #[error("the mount at {} did not answer within {seconds} s", .path.display())]
    NotReady { path: PathBuf, seconds: u64, log: PathBuf },
    #[error("the daemon ended before it was ready")]
    EndedEarly { log: PathBuf },
    /// The daemon's own message and hints, passed back to the process that started it.
    #[error("{message}")]
    Reported { message: String, hints: Vec<String> },
    #[error("{action} {}: {error}", .path.display())]
    Io { action: &'static str, path: PathBuf, error: io::Error },
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Failure {
    pub fn io(action: &'static str, path: &Path, error: io::Error) -> Failure {
        Failure::Io { action, path: path.to_owned(), error }
    }

    /// What to do next, as [`Refusal::hints`].
    pub fn hints(&self) -> Vec<String> {
        let without_fuse = |first: &str| {
            vec![first.into(), "`turnfs ls`, `show`, `undo`, `redo` and `fork` work without a mount".into()]
        };
        let one = match self {
            Failure::NoParent { .. } => "make it first".into(),
            Failure::InsideStore { .. }
            | Failure::StoreInside { .. }
            | Failure::InsideMount { .. }
            | Failure::Foreign { .. }
            | Failure::OtherUser { .. } => "choose another mount point".into(),
            Failure::Silent { path } => format!("take it away with `turnfs umount {}`", path.display()),
            Failure::Claimed { .. } => "try again".into(),
            Failure::NoDevice => {
                return without_fuse(
                    "load the module with `sudo modprobe fuse` (a container is started with `--device /dev/fuse --cap-add SYS_ADMIN`)",
                );
            }
            Failure::DeviceClosed => {
                return without_fuse("`sudo chmod 666 /dev/fuse` lets every user open it");
            }
            Failure::NoFusermount => {
                return without_fuse("install the package fuse3 (`sudo apt install fuse3`)");
            }
            Failure::OtherOptions { path, .. } => {
                format!("to change that, run `turnfs umount {}` first", path.display())
            }
            Failure::NoStore => "set HOME, or name a store with --store AGENT=DIR".into(),
            Failure::NotReady { log, .. } | Failure::EndedEarly { log } => format!("see {}", log.display()),
            Failure::Reported { hints, .. } => return hints.clone(),
            Failure::Refused(refusal) => return refusal.hints(),
            Failure::NotADirectory { .. }
            | Failure::NotEmpty { .. }
            | Failure::NotMounted { .. }
            | Failure::NotOurs { .. }
            | Failure::AllowRoot
            | Failure::Mount { .. }
            | Failure::Unmount { .. }
            | Failure::Io { .. } => return Vec::new(),
        };
        vec![one]
    }
}
