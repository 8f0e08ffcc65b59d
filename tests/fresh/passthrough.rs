//! A file system in user space that passes a directory through, read-only: what inotify and stamps of it are
//! worth is the daemon's business, so turnfs must believe neither.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, Request,
};

/// Nothing is remembered by the kernel.
const ASK: Duration = Duration::ZERO;

struct Passthrough {
    paths: Mutex<(Vec<PathBuf>, HashMap<PathBuf, u64>)>,
}

impl Passthrough {
    fn number(&self, path: &Path) -> u64 {
        let mut paths = self.paths.lock().unwrap();
        if let Some(number) = paths.1.get(path) {
            return *number;
        }
        paths.0.push(path.to_owned());
        let number = paths.0.len() as u64;
        paths.1.insert(path.to_owned(), number);
        number
    }

    fn path(&self, ino: INodeNo) -> PathBuf {
        self.paths.lock().unwrap().0[ino.0 as usize - 1].clone()
    }

    /// The attributes with times of which only whole days are told, as if all clocks were coarse.
    fn attr(&self, path: &Path) -> Result<FileAttr, Errno> {
        let found = fs::symlink_metadata(path).map_err(|_| Errno::ENOENT)?;
        let day = SystemTime::UNIX_EPOCH + Duration::from_secs(found.mtime() as u64 / 86_400 * 86_400);
        Ok(FileAttr {
            ino: INodeNo(self.number(path)),
            size: found.len(),
            blocks: found.blocks(),
            atime: day,
            mtime: day,
            ctime: day,
            crtime: day,
            kind: if found.is_dir() { FileType::Directory } else { FileType::RegularFile },
            perm: (found.mode() & 0o7777) as u16,
            nlink: found.nlink() as u32,
            uid: found.uid(),
            gid: found.gid(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Passthrough {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attr(&self.path(parent).join(name)) {
            Ok(attr) => reply.entry(&ASK, &attr, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(&self.path(ino)) {
            Ok(attr) => reply.attr(&ASK, &attr),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        match fs::File::open(self.path(ino)).and_then(|file| file.read_at(&mut bytes, offset)) {
            Ok(read) => reply.data(&bytes[..read]),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let path = self.path(ino);
        let mut names: Vec<_> =
            fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        for (at, name) in names.iter().enumerate().skip(offset as usize) {
            let Ok(attr) = self.attr(&path.join(name)) else { continue };
            if reply.add(attr.ino, at as u64 + 1, attr.kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

/// Mounts `what` at `at`; gone when the session is dropped.
pub fn mount(what: &Path, at: &Path) -> std::io::Result<BackgroundSession> {
    let passthrough = Passthrough { paths: Mutex::default() };
    passthrough.number(what);
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("passthrough".into()), MountOption::RO];
    fuser::spawn_mount(passthrough, at, &config)
}
