//! Taking a mount away: as root by the system call, else through fusermount3. Never another file system
//! than the one that is meant, and never for ever: a busy mount is detached lazily.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::failure::Failure;
use crate::host::mountinfo::{self, Device};

/// How a mount went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    Cleanly,
    /// It was in use: it is out of the tree, and ends when the last program closes its files.
    Lazily,
    /// It was not there any more.
    GoneAlready,
}

/// Takes away the mount with this device at `path`; lazily if it is in use.
///
/// # Errors
/// When the mount is still there.
pub fn detach(path: &Path, device: Device) -> Result<Detached, Failure> {
    if !is_there(path, device)? {
        return Ok(Detached::GoneAlready);
    }
    if take_away(path, false).is_ok() && !is_there(path, device)? {
        return Ok(Detached::Cleanly);
    }
    detach_lazily(path, device)
}

/// Takes away the mount with this device at `path` at once, whoever uses it.
///
/// # Errors
/// When the mount is still there.
pub fn detach_lazily(path: &Path, device: Device) -> Result<Detached, Failure> {
    // Between any two steps somebody else may have unmounted ours and mounted his own file system here.
    if !is_there(path, device)? {
        return Ok(Detached::GoneAlready);
    }
    let tried = take_away(path, true);
    match tried {
        _ if !is_there(path, device)? => Ok(Detached::Lazily),
        Ok(()) => Err(Failure::Unmount { path: path.into(), why: "it is still mounted".into() }),
        Err(why) => Err(Failure::Unmount { path: path.into(), why }),
    }
}

/// Ends the connection of a mount whose daemon does not answer: whoever waits for an answer gets an error instead. Where
/// this user may not, they go on waiting.
pub fn abort(path: &Path, device: Device) {
    // Named by the device's number; there where fusectl is mounted, and the user's own.
    let control = format!("/sys/fs/fuse/connections/{}/abort", device.minor);
    if std::fs::write(control, "1").is_err() {
        let _ = unmount(path, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    }
}

/// Whether what is seen at `path` is the turnfs mount with this device.
fn is_there(path: &Path, device: Device) -> Result<bool, Failure> {
    let mounts = mountinfo::read()
        .map_err(|error| Failure::io("cannot read", Path::new("/proc/self/mountinfo"), error))?;
    Ok(mountinfo::top_at(&mounts, path).is_some_and(|top| top.is_turnfs() && top.device == device))
}

fn take_away(path: &Path, lazily: bool) -> Result<(), String> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        // An ordinary user must ask the helper that is setuid root.
        Err(Errno::PERM) => by_fusermount(path, lazily),
        Err(errno) => Err(std::io::Error::from(errno).to_string()),
    }
}

fn by_fusermount(path: &Path, lazily: bool) -> Result<(), String> {
    let program = fusermount().ok_or("fusermount3 is not installed; it is in the package fuse3")?;
    let flags = if lazily { "-uz" } else { "-u" };
    let mut command = Command::new(program);
    command.arg(flags).arg("--").arg(path).env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("fusermount3: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// The program that mounts and unmounts for ordinary users, if it is installed.
pub fn fusermount() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).chain(usual).collect();
    // fuser takes the older name too.
    let candidates = ["fusermount3", "fusermount"].into_iter();
    candidates.flat_map(|name| dirs.iter().map(move |dir| dir.join(name))).find(|program| {
        program.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}
