//! fuser's requests to calls of `fs`, and their results to replies.
//!
//! What `fs` may answer or refuse goes through [`Adapter::answer`], which counts it, logs a refusal and turns it
//! into its errno. What is always answered alike stands in one table at the end.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags,
    PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::invalidations::InvalidationQueue;
use super::mounted::Begun;
use crate::fs::{self, Attr, Cache, Fs, Kind, Lookup, Op, Ttl};
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

    /// The errno of a request that would change the tree.
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

/// Requests that are always answered alike: the types of the arguments and of the reply, the answer (`done`,
/// `refused` or an errno), and what it is counted as.
macro_rules! always {
    ($($name:ident($($argument:ty),*) -> $reply:ty: $($answer:ident)+;)*) => {$(
        fn $name(&self, _req: &Request, $(_: $argument,)* reply: $reply) {
            always!(@ self reply $($answer)+);
        }
    )*};
    (@ $adapter:ident $reply:ident done $op:ident) => { fs::count(Op::$op); $reply.ok() };
    (@ $adapter:ident $reply:ident refused) => { $reply.error($adapter.refuse()) };
    (@ $adapter:ident $reply:ident $errno:ident $op:ident) => { fs::count(Op::$op); $reply.error(Errno::$errno) };
    (@ $adapter:ident $reply:ident $errno:ident) => { $reply.error(Errno::$errno) };
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
        match self.answer(Op::Lookup, |fs| fs.lookup(parent.0, name)) {
            Ok(Lookup::Found(attr)) => {
                let Ttl { entry, attributes } = attr.ttl;
                reply.entry_with_ttls(&attributes, &entry, &self.attr(&attr), Generation(0));
            }
            // Number 0 says that there is nothing, for as long; no other attribute is looked at.
            Ok(Lookup::Absent { ttl }) => {
                reply.entry_with_ttls(&ttl, &ttl, &self.attr(&Attr::NOTHING), Generation(0));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, lookups: u64) {
        fs::count(Op::Forget);
        self.fs.forget(ino.0, lookups);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.answer(Op::Getattr, |fs| fs.getattr(ino.0, handle.map(|handle| handle.0))) {
            Ok(attr) => reply.attr(&attr.ttl.attributes, &self.attr(&attr)),
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
            Ok(attr) => reply.attr(&attr.ttl.attributes, &self.attr(&attr)),
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
                let lasts = attr.ttl.entry.min(attr.ttl.attributes);
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

    always! {
        // What a command did was durable before its write returned.
        flush(INodeNo, FileHandle, LockOwner) -> ReplyEmpty: done Flush;
        fsync(INodeNo, FileHandle, bool) -> ReplyEmpty: done Fsync;
        fsyncdir(INodeNo, FileHandle, bool) -> ReplyEmpty: done Fsync;
        // There are no extended attributes: ENOSYS makes the kernel say so by itself from then on.
        getxattr(INodeNo, &OsStr, u32) -> ReplyXattr: ENOSYS Xattr;
        listxattr(INodeNo, u32) -> ReplyXattr: ENOSYS Xattr;
        // With ENOSYS the kernel does these by itself, or says that they are not supported. (By default fuser
        // would log each of them as a warning.)
        ioctl(INodeNo, FileHandle, IoctlFlags, u32, &[u8], u32) -> ReplyIoctl: ENOTTY;
        lseek(INodeNo, FileHandle, i64, i32) -> ReplyLseek: ENOSYS;
        copy_file_range(INodeNo, FileHandle, u64, INodeNo, FileHandle, u64, u64, CopyFileRangeFlags) -> ReplyWrite: ENOSYS;
        poll(INodeNo, FileHandle, PollNotifier, PollEvents, PollFlags) -> ReplyPoll: ENOSYS;
        // Everything below would change the tree.
        mknod(INodeNo, &OsStr, u32, u32, u32) -> ReplyEntry: refused;
        mkdir(INodeNo, &OsStr, u32, u32) -> ReplyEntry: refused;
        unlink(INodeNo, &OsStr) -> ReplyEmpty: refused;
        rmdir(INodeNo, &OsStr) -> ReplyEmpty: refused;
        symlink(INodeNo, &OsStr, &Path) -> ReplyEntry: refused;
        rename(INodeNo, &OsStr, INodeNo, &OsStr, RenameFlags) -> ReplyEmpty: refused;
        link(INodeNo, INodeNo, &OsStr) -> ReplyEntry: refused;
        create(INodeNo, &OsStr, u32, u32, i32) -> ReplyCreate: refused;
        setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> ReplyEmpty: refused;
        removexattr(INodeNo, &OsStr) -> ReplyEmpty: refused;
        fallocate(INodeNo, FileHandle, u64, u64, i32) -> ReplyEmpty: refused;
    }
}
