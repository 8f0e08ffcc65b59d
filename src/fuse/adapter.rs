//! fuser's requests to calls of `fs`, and their results to replies.
//!
//! What `fs` may answer or refuse goes through [`Adapter::answer`], which counts it, logs a refusal and turns it
//! into its errno. What is always answered alike is answered in place and counted, but for ioctl, lseek, poll and
//! copy_file_range.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::invalidations::InvalidationQueue;
use super::mounted::Begun;
use crate::fs::{self, Attr, Cache, Fs, Kind, Op};
use crate::session::Refusal;

/// Most bytes of one read, write or directory listing.
const LARGEST_REQUEST: u32 = 1024 * 1024;
const BLOCK: u32 = 4096;
/// The kernel's FILESYSTEM_MAX_STACK_DEPTH.
const MOST_STACKED: u32 = 2;

/// What fuser calls.
pub(super) struct Adapter {
    fs: Arc<Fs>,
    /// Whose files these are.
    owner: (u32, u32),
    notices: InvalidationQueue,
    /// Tells that the kernel has begun; dropped with the adapter, which tells that the session has ended.
    alive: Sender<Begun>,
}

impl Adapter {
    pub fn new(fs: Arc<Fs>, notices: InvalidationQueue, alive: Sender<Begun>) -> Adapter {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Adapter { fs, owner, notices, alive }
    }

    /// Does what a request asks for. A bug costs one answer, not the thread that gives it.
    fn answer<T>(&self, op: Op, what: impl FnOnce(&Fs) -> Result<T, Refusal>) -> Result<T, Errno> {
        fs::count(op);
        let done = catch_unwind(AssertUnwindSafe(|| what(&self.fs)));
        let refusal = match done {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(refusal)) => refusal,
            Err(_) => {
                self.fs.forget_all();
                Refusal::Internal { what: format!("{} panicked", op.name()) }
            }
        };
        if matches!(refusal, Refusal::Internal { .. } | Refusal::NotAsPromised { .. } | Refusal::Io { .. }) {
            self.fs.note_error(op, &refusal);
        }
        match refusal {
            Refusal::Internal { .. } | Refusal::NotAsPromised { .. } => {
                log::error!("{}: {refusal}", op.name())
            }
            // The usual answer to a look.
            Refusal::NotFound { .. } => log::trace!("{}: {refusal}", op.name()),
            _ => log::debug!("{}: {refusal}", op.name()),
        }
        Err(Errno::from_i32(refusal.errno().raw_os_error()))
    }

    /// A request that would change what is not to be changed.
    fn refuse(&self) -> Errno {
        fs::count(Op::Change);
        Errno::from_i32(self.fs.refusal().errno().raw_os_error())
    }

    fn attr(&self, attr: &Attr) -> FileAttr {
        // A time that the system cannot hold is shown as the epoch.
        let mtime = SystemTime::try_from(attr.mtime).unwrap_or(SystemTime::UNIX_EPOCH);
        FileAttr {
            ino: INodeNo(attr.ino),
            size: attr.size,
            blocks: attr.size.div_ceil(512),
            atime: mtime,
            mtime,
            ctime: mtime,
            crtime: mtime,
            kind: file_type(attr.kind),
            perm: attr.mode,
            nlink: attr.links,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        }
    }
}

/// Makes the kernel (6.9 and newer) refuse to use this mount as a layer of an overlay. An overlay copies a control
/// file before it writes into the copy: `echo 3 > undo` would succeed there, and nothing would be undone. Nothing
/// in the requests tells such a copy from `cat undo`. A file system that says it is stacked as deep as the kernel
/// allows cannot be stacked upon; pass-through, with which that comes, is never used.
fn refuse_overlays(config: &mut KernelConfig) {
    if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
        && let Err(nearest) = config.set_max_stack_depth(MOST_STACKED)
    {
        log::info!("this mount can be a layer of an overlay (stacking depth {nearest})");
    }
}

/// The attributes of what is not there.
fn nothing() -> FileAttr {
    let never = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: never,
        mtime: never,
        ctime: never,
        crtime: never,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::File => FileType::RegularFile,
        Kind::Symlink => FileType::Symlink,
    }
}

/// Closing never does anything here: the kernel need not ask.
fn open_flags(cache: Cache) -> FopenFlags {
    FopenFlags::FOPEN_NOFLUSH
        | match cache {
            // Without the second flag the kernel drops the pages that readers of another version still need.
            Cache::Direct => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_KEEP_CACHE,
            Cache::Fresh => FopenFlags::empty(),
            Cache::Keep => FopenFlags::FOPEN_KEEP_CACHE,
        }
}

/// As [`open_flags`], of a directory: a listing that the kernel has costs one request less for each page of it.
fn opendir_flags(cache: Cache) -> FopenFlags {
    match cache {
        Cache::Direct => FopenFlags::FOPEN_KEEP_CACHE,
        Cache::Fresh => FopenFlags::FOPEN_CACHE_DIR,
        Cache::Keep => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            // `echo 3 > undo` is one open and one write, without a truncation between.
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            // A path through `latest` is walked once for each file; the target is asked for once.
            InitFlags::FUSE_CACHE_SYMLINKS,
        ];
        for flag in wanted {
            if let Err(missing) = config.add_capabilities(flag) {
                log::info!("this kernel does without {missing:?}");
            }
        }
        refuse_overlays(config);
        // The answers name the nearest value that is allowed, which then holds.
        if let Err(nearest) = config.set_max_write(LARGEST_REQUEST) {
            let _ = config.set_max_write(nearest);
        }
        // Whoever mounted may have given up waiting.
        let _ = self.alive.send(Begun);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let heard = self.fs.heard();
        match self.answer(Op::Lookup, |fs| fs.lookup(parent.0, name)) {
            Ok(attr) => {
                let fs::Ttl { entry, attributes } = attr.lasting;
                reply.entry_with_ttls(&attributes, &entry, &self.attr(&attr), Generation(0));
            }
            Err(errno) => match self.fs.absence_ttl(parent.0, name, heard) {
                // Number 0 says that there is nothing, for as long.
                Some(lasts) if errno == Errno::ENOENT => {
                    reply.entry_with_ttls(&lasts, &lasts, &nothing(), Generation(0));
                }
                _ => reply.error(errno),
            },
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, lookups: u64) {
        fs::count(Op::Forget);
        self.fs.forget(ino.0, lookups);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.answer(Op::Getattr, |fs| fs.getattr(ino.0, handle.map(|handle| handle.0))) {
            Ok(attr) => reply.attr(&attr.lasting.attributes, &self.attr(&attr)),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let times = atime.is_some() || mtime.is_some();
        let anything_else = mode.is_some() || uid.is_some() || gid.is_some() || !(times || size.is_some());
        match self.answer(Op::Setattr, |fs| fs.setattr(ino.0, size, anything_else)) {
            Ok(attr) => reply.attr(&attr.lasting.attributes, &self.attr(&attr)),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.answer(Op::Readlink, |fs| fs.readlink(ino.0)) {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let access = fs::Access {
            write: flags.acc_mode() != OpenAccMode::O_RDONLY,
            truncate: flags.0 & libc::O_TRUNC != 0,
        };
        match self.answer(Op::Open, |fs| fs.open(ino.0, access)) {
            Ok(opened) => reply.opened(FileHandle(opened.handle), open_flags(opened.cache)),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // The reply goes out while the text is borrowed: no copy of it is made.
        let mut reply = Some(reply);
        let answered = self.answer(Op::Read, |fs| {
            fs.read(handle.0, offset, size, |bytes| {
                if let Some(reply) = reply.take() {
                    reply.data(bytes);
                }
            })
        });
        if let (Err(errno), Some(reply)) = (answered, reply) {
            reply.error(errno);
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut stale = Vec::new();
        let done = self.answer(Op::Write, |fs| fs.write(handle.0, offset, data, &mut stale));
        let written = data.len() as u32;
        let answer = move || match done {
            Ok(()) => reply.written(written),
            Err(errno) => reply.error(errno),
        };
        if stale.is_empty() {
            answer();
        } else {
            self.notices.forget_then(stale, answer);
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        fs::count(Op::Flush);
        reply.ok();
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        fs::count(Op::Release);
        self.fs.release(handle.0);
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        // What a command did was durable before its write returned.
        fs::count(Op::Fsync);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.answer(Op::Opendir, |fs| fs.opendir(ino.0)) {
            Ok(opened) => reply.opened(FileHandle(opened.handle), opendir_flags(opened.cache)),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let filled = self.answer(Op::Readdir, |fs| {
            fs.readdir(handle.0, offset, |entry| {
                reply.add(INodeNo(entry.ino), entry.cookie, file_type(entry.kind), entry.name)
            })
        });
        match filled {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let filled = self.answer(Op::Readdirplus, |fs| {
            fs.readdirplus(handle.0, offset, |entry, attr| {
                // fuser has one time for both kinds of knowledge here.
                let lasts = attr.lasting.entry.min(attr.lasting.attributes);
                let attr = self.attr(&attr);
                reply.add(attr.ino, entry.cookie, entry.name, &lasts, &attr, Generation(0))
            })
        });
        match filled {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        fs::count(Op::Releasedir);
        self.fs.release(handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        fs::count(Op::Fsync);
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        fs::count(Op::Statfs);
        // Nothing can be stored here: no blocks, none free.
        reply.statfs(0, 0, 0, 0, 0, BLOCK, 255, BLOCK);
    }

    fn access(&self, _req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let (write, execute) = (mask.contains(AccessFlags::W_OK), mask.contains(AccessFlags::X_OK));
        match self.answer(Op::Access, |fs| fs.access(ino.0, write, execute)) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    // There are no extended attributes: ENOSYS makes the kernel say so by itself from then on.

    fn getxattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        fs::count(Op::Xattr);
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _req: &Request, _ino: INodeNo, _size: u32, reply: ReplyXattr) {
        fs::count(Op::Xattr);
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: fuser::IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    // With ENOSYS the kernel does these by itself, or says that they are not supported.

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        _handle_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _handle_out: FileHandle,
        _offset_out: u64,
        _len: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _notifier: fuser::PollNotifier,
        _events: fuser::PollEvents,
        _flags: fuser::PollFlags,
        reply: fuser::ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    // Everything below would change the tree.

    fn mknod(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        reply.error(self.refuse());
    }

    fn mkdir(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        reply.error(self.refuse());
    }

    fn unlink(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(self.refuse());
    }

    fn rmdir(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(self.refuse());
    }

    fn symlink(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, _target: &Path, reply: ReplyEntry) {
        reply.error(self.refuse());
    }

    fn rename(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(self.refuse());
    }

    fn link(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        reply.error(self.refuse());
    }

    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(self.refuse());
    }

    fn setxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(self.refuse());
    }

    fn removexattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(self.refuse());
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(self.refuse());
    }
}
