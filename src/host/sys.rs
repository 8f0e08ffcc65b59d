//! System calls and calls into C libraries that no crate here offers safely: all of the program's unsafe code.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Gives memory that was freed back to the kernel, where the C library keeps it otherwise.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time by any thread; it moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Ignores SIGIO from now on, in programs that this process starts, too.
pub fn ignore_sigio() {
    // SAFETY: sets a signal's disposition to a constant; no handler is called.
    unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
    }
}

/// The child will lead a session of its own, and get no open file besides its standard ones.
pub fn detach(command: &mut Command) {
    // SAFETY: both calls are single system calls that allocate nothing and take no lock.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            // Files that the caller left open for its children (a pipe, a lock) are not the child's.
            // A kernel without close_range keeps them open: no harm beyond that.
            // By its number: musl has no function for it.
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
}

/// Longest file handle that the kernel gives, bytes (MAX_HANDLE_SZ).
const LONGEST_HANDLE: usize = 128;

/// A `struct file_handle` with room for its bytes.
#[repr(C)]
struct FileHandle {
    handle_bytes: u32,
    handle_type: i32,
    bytes: [u8; LONGEST_HANDLE],
}

/// Type and bytes of a file's handle, as `name_to_handle_at(2)` gives it; `None` where the file system has none.
/// `flags`: `AT_EMPTY_PATH` or 0.
pub fn file_handle(dir: impl AsFd, name: &CStr, flags: libc::c_int) -> Option<Vec<u8>> {
    let mut handle =
        FileHandle { handle_bytes: LONGEST_HANDLE as u32, handle_type: 0, bytes: [0; LONGEST_HANDLE] };
    let mut mount = 0i32;
    const { assert!(size_of::<FileHandle>() == offset_of!(FileHandle, bytes) + LONGEST_HANDLE) };
    // SAFETY: the handle has room for as many bytes as it says, the name ends with NUL, and neither pointer
    // is kept by the kernel.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_fd().as_raw_fd(),
            name.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            flags,
        )
    };
    if done != 0 {
        return None;
    }
    let mut whole = handle.handle_type.to_ne_bytes().to_vec();
    whole.extend_from_slice(handle.bytes.get(..usize::try_from(handle.handle_bytes).ok()?)?);
    Some(whole)
}

/// A command of fcntl(2) whose argument is an integer.
#[derive(Clone, Copy)]
pub enum Fcntl {
    /// `F_SETSIG`: which signal announces a lease break.
    SetSignal(libc::c_int),
    /// `F_SETLEASE`: `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    SetLease(libc::c_int),
}

/// fcntl(2); not among libc's constants for every target.
const F_SETSIG: libc::c_int = 10;

/// Does it to an open file.
///
/// # Errors
/// What fcntl(2) reports.
pub fn fcntl(file: impl AsFd, what: Fcntl) -> io::Result<()> {
    let (command, argument) = match what {
        Fcntl::SetSignal(signal) => (F_SETSIG, signal),
        Fcntl::SetLease(kind) => (libc::F_SETLEASE, kind),
    };
    // SAFETY: fcntl with integer arguments on a descriptor that the caller keeps open.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// fcntl(2); not among libc's constants for every target.
const F_GETLEASE: libc::c_int = 1025;

/// The lease on an open file: `F_RDLCK`, `F_WRLCK` or `F_UNLCK`; of one that is being broken what it will be.
///
/// # Errors
/// What fcntl(2) reports.
pub fn lease(file: impl AsFd) -> io::Result<libc::c_int> {
    // SAFETY: fcntl without an argument on a descriptor that the caller keeps open.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), F_GETLEASE) } {
        -1 => Err(io::Error::last_os_error()),
        held => Ok(held),
    }
}

/// The errno of SQLite's system call that failed last; 0 if none did.
pub fn sqlite_system_errno(db: &rusqlite::Connection) -> i32 {
    // SAFETY: the handle is that of an open database, which is only asked.
    unsafe { rusqlite::ffi::sqlite3_system_errno(db.handle()) }
}
