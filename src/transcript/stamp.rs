//! What tells that a file is still the one that was read: identity, length and times, with the rules for
//! when equal stamps may be believed. The one place that knows them; used for every file of every store.
//!
//! Limits (what follows from them: `docs/FRESHNESS.md`): a replacement by rename in one clock tick keeps
//! length, mtime and ctime, so the inode and its birth belong to the stamp; two changes in one tick of a
//! coarse clock keep everything, so a young stamp never vouches. A stamp never licenses a cut.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use jiff::Timestamp;
use rustix::fs::{AtFlags, CWD, FileType, StatFs, Statx, StatxFlags};
use rustix::io::Errno;

use super::open::{EntryKind, kind};
use super::racy::racy_window;
use super::walk;
use crate::host::mountinfo::Device;
use crate::host::sys;
use crate::session::FileHash;

/// Times of a file as (seconds, nanoseconds) since 1970.
type Time = (i64, u32);

/// File systems on which missed edits were counted. On every other one (network, FUSE) equal stamps prove
/// nothing.
const TESTED: [u64; 4] = [
    0xEF53,      // ext4
    0x0102_1994, // tmpfs
    0x794C_7630, // overlayfs
    0x8584_58F6, // ramfs
];

/// Where the tests may run besides. Without the cargo feature `faults` there is none.
#[cfg(any(test, feature = "faults"))]
const TESTED_ALSO: [u64; 2] = [
    0x9123_683E, // btrfs
    0x5846_5342, // xfs
];
#[cfg(not(any(test, feature = "faults")))]
const TESTED_ALSO: [u64; 0] = [];

/// Facts of a file or directory of a store at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub kind: EntryKind,
    device: Device,
    inode: u64,
    birth: Birth,
    /// Bytes.
    pub len: u64,
    modified: Time,
    changed: Time,
    /// Whether the file system is one of [`TESTED`].
    tested: bool,
}

/// What tells files apart that had the same inode number one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Birth {
    At(Time),
    /// The file system records no birth times: hash of the file handle, which holds the inode's generation.
    Generation(FileHash),
    Unknown,
}

/// The file system of a directory, asked once for many files.
#[derive(Clone, Copy, Debug)]
pub struct FsTrust {
    device: Option<Device>,
    tested: bool,
}

impl FsTrust {
    pub(super) fn of(dir: impl AsFd) -> FsTrust {
        FsTrust { device: None, tested: false }.below(dir)
    }

    /// Of a directory that was reached from this ground.
    pub(super) fn below(&self, dir: impl AsFd) -> FsTrust {
        let found = rustix::fs::statx(&dir, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
        match found.ok().map(|found| device_of(&found)) {
            device if device.is_some() && device == self.device => *self,
            device => FsTrust { device, tested: is_tested(rustix::fs::fstatfs(&dir)) },
        }
    }

    /// Of what is called so now; nothing is believed of what is not there.
    pub fn at(dir: &Path) -> FsTrust {
        let found = rustix::fs::statx(CWD, dir, AtFlags::empty(), StatxFlags::TYPE);
        let device = found.ok().map(|found| device_of(&found));
        FsTrust { device, tested: file_system_is_tested(dir) }
    }

    /// The stamp of `path`, which is on this ground or below it; of a link what it leads to, as far as it can be
    /// followed. `None` if nothing is there. Good for comparing only, as symlinks on the way are; unlike a look through
    /// [`super::StoreDir`] it opens nothing, so that those who watch the directories hear nothing of it.
    ///
    /// # Errors
    /// What statx reports, except that nothing is there.
    pub fn stamp(&self, path: &Path) -> Result<Option<Stamp>, Errno> {
        super::metrics::count_stats(1);
        let found = match rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, Stamp::WANTED) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            found => found?,
        };
        if FileType::from_raw_mode(found.stx_mode.into()) == FileType::Symlink
            && let Ok(place) = walk::locate_absolute(path)
            && let Ok(led_to) = Stamp::at(&place.dir, Path::new(&place.name), &FsTrust::of(&place.dir))
        {
            return Ok(Some(led_to));
        }
        let tested = self.is_tested_for(&found, || is_tested(rustix::fs::statfs(path)));
        Ok(Some(Stamp::from(&found, || generation(CWD, path, 0), tested)))
    }

    fn is_tested_for(&self, found: &Statx, other: impl FnOnce() -> bool) -> bool {
        match self.device {
            Some(device) if device == device_of(found) => self.tested,
            // Another file system is mounted here.
            _ => other(),
        }
    }
}

fn device_of(found: &Statx) -> Device {
    Device { major: found.stx_dev_major, minor: found.stx_dev_minor }
}

impl Stamp {
    const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

    /// Of an open file: what is to be believed of the bytes that are read from it.
    ///
    /// # Errors
    /// What statx reports.
    pub fn of(file: impl AsFd) -> std::io::Result<Stamp> {
        let found = rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, Stamp::WANTED)?;
        let birth = || generation(&file, Path::new(""), libc::AT_EMPTY_PATH);
        Ok(Stamp::from(&found, birth, is_tested(rustix::fs::fstatfs(&file))))
    }

    /// Of what is called `name` in `dir`, which is on `ground` or below it. A symlink as the last part is
    /// not followed.
    pub(super) fn at(dir: impl AsFd, name: &Path, ground: &FsTrust) -> Result<Stamp, Errno> {
        let found = rustix::fs::statx(&dir, name, AtFlags::SYMLINK_NOFOLLOW, Stamp::WANTED)?;
        let tested = ground.is_tested_for(&found, || is_tested(rustix::fs::fstatfs(&dir)));
        Ok(Stamp::from(&found, || generation(&dir, name, 0), tested))
    }

    fn from(found: &Statx, generation: impl FnOnce() -> Option<FileHash>, tested: bool) -> Stamp {
        let birth = match found.stx_mask & StatxFlags::BTIME.bits() != 0 {
            true => Birth::At((found.stx_btime.tv_sec, found.stx_btime.tv_nsec)),
            false => generation().map_or(Birth::Unknown, Birth::Generation),
        };
        Stamp {
            kind: kind(FileType::from_raw_mode(found.stx_mode.into())),
            device: device_of(found),
            inode: found.stx_ino,
            birth,
            len: found.stx_size,
            modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            changed: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
            tested,
        }
    }

    /// Last modification.
    pub fn modified(&self) -> Timestamp {
        timestamp(self.modified)
    }

    /// Last change of content or attributes.
    pub fn changed(&self) -> Timestamp {
        timestamp(self.changed)
    }

    /// Creation, where the file system records it.
    pub fn born(&self) -> Option<Timestamp> {
        match self.birth {
            Birth::At(time) => Some(timestamp(time)),
            Birth::Generation(_) | Birth::Unknown => None,
        }
    }

    /// Device and inode.
    pub fn identity(&self) -> (Device, u64) {
        (self.device, self.inode)
    }

    /// Whether both are the same file (which may have changed in between).
    pub fn same_file(&self, other: &Stamp) -> bool {
        (self.device, self.inode, self.birth) == (other.device, other.inode, other.birth)
    }

    /// Whether an equal stamp at a later look means unchanged bytes, if the bytes were read after `read_at`.
    /// A change in the same step of a coarse clock (2 s at worst) leaves the same times, a time in the
    /// future means that some clock is wrong, and of an untested file system nothing is known.
    ///
    /// `read_at`: from [`clock`], before the bytes were read.
    pub fn vouches(&self, read_at: Timestamp) -> bool {
        // Nobody sets a ctime by hand, so a fraction in it is the file system's own.
        let racy = racy_window(self.changed.1 != 0);
        self.tested && read_at.duration_since(self.modified().max(self.changed())) > racy
    }

    /// Whether equal stamps of this file ever prove anything.
    pub fn is_tested(&self) -> bool {
        self.tested
    }

    /// Whether nothing but appends may have happened since `before`: the same file, and longer. That nothing
    /// else did, no stamp can tell.
    pub fn may_have_grown_from(&self, before: &Stamp) -> bool {
        self.tested && self.same_file(before) && self.len > before.len
    }
}

/// The time as files get it: the kernel's coarse clock, which may be a tick behind the one that programs
/// usually ask, and much more on a machine that lends out its processors. A file that is changed after this
/// was asked gets no earlier time.
pub fn clock() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    timestamp((now.tv_sec, now.tv_nsec as u32))
}

/// Whether stamps of files on the file system of `path` may be believed at all.
pub fn file_system_is_tested(path: &Path) -> bool {
    is_tested(rustix::fs::statfs(path))
}

fn is_tested(found: rustix::io::Result<StatFs>) -> bool {
    // f_type's width and sign differ between platforms; the magic numbers fit in 32 bits.
    let magic = found.map(|fs| fs.f_type as u64 & 0xFFFF_FFFF);
    magic.is_ok_and(|magic| TESTED.contains(&magic) || TESTED_ALSO.contains(&magic))
}

/// Hash of a file's handle; `None` where the file system has none.
fn generation(dir: impl AsFd, name: &Path, flags: i32) -> Option<FileHash> {
    let name = CString::new(name.as_os_str().as_bytes()).ok()?;
    sys::file_handle(dir, &name, flags).map(|handle| FileHash::of(&handle))
}

fn timestamp((seconds, nanoseconds): Time) -> Timestamp {
    Timestamp::new(seconds, nanoseconds.min(999_999_999) as i32).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use jiff::SignedDuration;

    use super::super::{StoreDir, set_racy_window};
    use super::*;

    fn stamp(dir: &Path, name: &str) -> Option<Stamp> {
        StoreDir::open(dir).unwrap().unwrap().stat(Path::new(name)).unwrap()
    }

    #[test]
    fn a_fresh_file_never_vouches_and_a_settled_one_does() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "x").unwrap();
        let stamp = stamp(dir.path(), "f").unwrap();
        // Wherever the temporary directory is.
        let (seconds, _) = stamp.changed;
        let stamp = Stamp { tested: true, modified: (seconds, 0), changed: (seconds, 0), ..stamp };
        let changed = stamp.changed();
        let after = |milliseconds| changed + SignedDuration::from_millis(milliseconds);
        let fine = Stamp { changed: (seconds, 1), ..stamp };
        assert!(!fine.vouches(after(40)) && fine.vouches(after(60)), "within steps of the kernel's clock");
        assert!(!stamp.vouches(changed));
        assert!(!stamp.vouches(after(2000)), "within two steps of the coarsest clock");
        assert!(stamp.vouches(after(3000)));
        assert!(!stamp.vouches(after(-60_000)), "a time in the future must not vouch");
        assert!(!Stamp { tested: false, ..stamp }.vouches(after(3000)));
        set_racy_window(std::time::Duration::from_millis(20));
        assert!(!stamp.vouches(after(20)) && stamp.vouches(after(21)));
    }

    #[test]
    fn a_name_and_the_open_file_have_the_same_stamp() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "x").unwrap();
        let open = std::fs::File::open(dir.path().join("f")).unwrap();
        assert_eq!(stamp(dir.path(), "f").unwrap(), Stamp::of(&open).unwrap());
        let by_name = generation(std::fs::File::open(dir.path()).unwrap(), Path::new("f"), 0);
        assert_eq!(by_name, generation(&open, Path::new(""), libc::AT_EMPTY_PATH));
    }

    #[test]
    fn a_rename_over_with_equal_length_and_time_is_another_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("f"), dir.path().join("g"));
        std::fs::write(&file, "one").unwrap();
        let before = stamp(dir.path(), "f").unwrap();
        std::fs::write(&other, "two").unwrap();
        let times =
            std::fs::FileTimes::new().set_modified(std::fs::metadata(&file).unwrap().modified().unwrap());
        std::fs::File::options().write(true).open(&other).unwrap().set_times(times).unwrap();
        std::fs::rename(&other, &file).unwrap();
        let after = stamp(dir.path(), "f").unwrap();
        assert_ne!(after, before);
        assert!(!after.same_file(&before));
    }

    #[test]
    fn what_is_not_there_has_no_stamp_and_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(stamp(dir.path(), "none"), None);
        std::os::unix::fs::symlink("none", dir.path().join("link")).unwrap();
        assert_eq!(stamp(dir.path(), "link").unwrap().kind, EntryKind::Symlink, "it leads nowhere");
    }
}
