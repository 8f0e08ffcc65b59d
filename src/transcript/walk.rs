//! Where a path in a store leads: the one place that follows links, for reading as well as for cutting.
//!
//! People move parts of a store to another disk and leave a link. Such a link is followed if it and what it leads
//! to belong to the store's owner, and it leads to a directory or a regular file; never into a mount of turnfs, and
//! never more than [`MOST_LINKS`] of them for one path. The way is walked component by component from handles, so
//! that nobody can exchange a component between the look at it and its use.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use crate::host::mountinfo::{self, Device};

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

/// Whose links are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Those of this user, or of the process's own where it is not root.
    User(u32),
    /// Anybody's; only for comparing what is there with what was there.
    Any,
    /// No link is followed: the first one is ELOOP.
    Nobody,
}

impl Owner {
    /// The owner of a store's root.
    pub fn of(root: impl AsFd) -> Owner {
        match rustix::fs::fstat(root) {
            Ok(found) => Owner::User(found.st_uid),
            Err(_) => Owner::User(rustix::process::geteuid().as_raw()),
        }
    }

    fn owns(self, uid: u32) -> bool {
        match self {
            Owner::Any => true,
            Owner::Nobody => false,
            Owner::User(owner) => {
                let own = rustix::process::geteuid();
                uid == owner || (!own.is_root() && uid == own.as_raw())
            }
        }
    }
}

/// Whether a link that is the path's last component is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    Followed,
    AsItIs,
}

/// A directory and the name in it to which a path leads. The name is none of a link, unless that was asked for; it
/// need not be there. A path that leads to a directory without a name of its own (`/`, `..`) has the name `.`.
#[derive(Debug)]
pub struct Place {
    pub dir: OwnedFd,
    pub name: OsString,
    /// The links on the way, in their order.
    pub links: Vec<Link>,
}

/// A link that was followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its path as it was asked for, relative to the root; of a link behind a link the first one's.
    pub path: PathBuf,
    /// What it says.
    pub text: PathBuf,
    /// The inode that it leads to; 0 where nothing is there.
    pub inode: u64,
}

/// Why a path leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    Failed(Errno),
    /// This link is not followed.
    Link {
        path: PathBuf,
        why: &'static str,
    },
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Failed(errno)
    }
}

/// A name still to be walked.
enum Step {
    Name(OsString),
    Up,
    Root,
    /// Here the link with this number has led to its end.
    End(usize),
}

/// Walks from `root` along `path` (relative, plain names only).
///
/// # Errors
/// [`Stop::Link`] for a link that is not followed, or that leads nowhere before the path's end; EINVAL for a path
/// that is no plain one; and what the system reports.
pub fn locate(root: BorrowedFd<'_>, owner: Owner, path: &Path, last: Last) -> Result<Place, Stop> {
    let mut way = Walk {
        owner,
        at: root.try_clone_to_owned().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?,
        device: None,
        steps: VecDeque::new(),
        links: Vec::new(),
        walked: PathBuf::new(),
    };
    for component in path.components() {
        match component {
            Component::Normal(name) => way.steps.push_back(Step::Name(name.to_owned())),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(Errno::INVAL.into());
            }
        }
    }
    way.walk(last)
}

/// As [`locate`] with links of anybody, from an absolute path.
///
/// # Errors
/// As [`locate`].
pub fn locate_absolute(path: &Path) -> Result<Place, Stop> {
    let root = rustix::fs::openat(CWD, "/", DIRECTORY, Mode::empty())?;
    let relative = path.strip_prefix("/").map_err(|_| Errno::INVAL)?;
    locate(root.as_fd(), Owner::Any, relative, Last::Followed)
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

struct Walk {
    owner: Owner,
    at: OwnedFd,
    /// The file system of `at`, once that is known.
    device: Option<Device>,
    steps: VecDeque<Step>,
    links: Vec<Link>,
    /// The part of the asked path that was walked.
    walked: PathBuf,
}

impl Walk {
    fn walk(mut self, last: Last) -> Result<Place, Stop> {
        while let Some(step) = self.steps.pop_front() {
            let name = match step {
                Step::Name(name) => name,
                Step::Up | Step::Root => {
                    let to = if matches!(step, Step::Up) { ".." } else { "/" };
                    self.at = rustix::fs::openat(&self.at, to, DIRECTORY, Mode::empty())?;
                    self.device = None;
                    continue;
                }
                Step::End(link) => {
                    self.end(link, &look(&self.at)?)?;
                    continue;
                }
            };
            let is_last = !self.steps.iter().any(|step| !matches!(step, Step::End(_)));
            if !self.is_in_a_link() {
                self.walked.push(&name);
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = match rustix::fs::openat(&self.at, &name, flags, Mode::empty()) {
                Ok(opened) => opened,
                Err(Errno::NOENT) if is_last && !self.is_in_a_link() => {
                    return Ok(Place { dir: self.at, name, links: self.links });
                }
                Err(Errno::NOENT | Errno::NOTDIR) if self.is_in_a_link() => {
                    return Err(self.stop("it leads nowhere"));
                }
                Err(Errno::ACCESS) if self.is_in_a_link() => {
                    return Err(self.stop("what it leads to cannot be reached (permission denied)"));
                }
                Err(errno) => return Err(errno.into()),
            };
            let found = look(&opened)?;
            match FileType::from_raw_mode(found.stx_mode.into()) {
                FileType::Symlink if is_last && last == Last::AsItIs && !self.is_in_a_link() => {
                    return Ok(Place { dir: self.at, name, links: self.links });
                }
                FileType::Symlink => self.follow(&opened, &found)?,
                _ if is_last => {
                    while let Some(Step::End(link)) = self.steps.pop_front() {
                        self.end(link, &found)?;
                    }
                    return Ok(Place { dir: self.at, name, links: self.links });
                }
                FileType::Directory => {
                    self.enter(&found)?;
                    self.at = opened;
                }
                _ if self.is_in_a_link() => return Err(self.stop("it leads nowhere")),
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        // The last link led to a directory by `..` or `/`.
        Ok(Place { dir: self.at, name: ".".into(), links: self.links })
    }

    /// Puts what a link says in front of what is still to be walked.
    fn follow(&mut self, link: &OwnedFd, found: &Statx) -> Result<(), Stop> {
        if self.owner == Owner::Nobody {
            return Err(Errno::LOOP.into());
        }
        if self.links.len() == MOST_LINKS {
            return Err(self.stop("it leads in a circle"));
        }
        let text = rustix::fs::readlinkat(link, "", Vec::new())?;
        let text = PathBuf::from(OsString::from_vec(text.into_bytes()));
        let number = self.links.len();
        self.links.push(Link { path: self.walked.clone(), text: text.clone(), inode: 0 });
        // Links on the way that a link leads may also be root's: they are the system's.
        let is_systems = self.is_in_a_link() && found.stx_uid == 0;
        if !(self.owner.owns(found.stx_uid) || is_systems) {
            return Err(self.stop("it belongs to another user"));
        }
        self.steps.push_front(Step::End(number));
        for component in text.components().rev() {
            self.steps.push_front(match component {
                Component::Normal(name) => Step::Name(name.to_owned()),
                Component::ParentDir => Step::Up,
                Component::RootDir | Component::Prefix(_) => Step::Root,
                Component::CurDir => continue,
            });
        }
        Ok(())
    }

    /// Notes where a link has led to, if that is allowed.
    fn end(&mut self, link: usize, found: &Statx) -> Result<(), Stop> {
        match FileType::from_raw_mode(found.stx_mode.into()) {
            FileType::Directory | FileType::RegularFile => {}
            _ => return Err(self.stop("it leads to no directory or regular file")),
        }
        if !self.owner.owns(found.stx_uid) {
            return Err(self.stop("what it leads to belongs to another user"));
        }
        self.enter(found)?;
        if let Some(link) = self.links.get_mut(link) {
            link.inode = found.stx_ino;
        }
        Ok(())
    }

    /// Refuses to go into a mount of turnfs: whoever looks there would wait for himself.
    fn enter(&mut self, found: &Statx) -> Result<(), Stop> {
        let device = Device { major: found.stx_dev_major, minor: found.stx_dev_minor };
        if self.links.is_empty() || self.device == Some(device) {
            return Ok(());
        }
        let is_turnfs = |mount: &mountinfo::MountEntry| mount.device == device && mount.is_turnfs();
        // Every FUSE mount has an anonymous device.
        if device.major == 0 && mountinfo::read().unwrap_or_default().iter().any(is_turnfs) {
            return Err(self.stop("it leads into a mount of turnfs"));
        }
        self.device = Some(device);
        Ok(())
    }

    /// Whether a link has led on and its end is not reached yet: what is walked is not the store's.
    fn is_in_a_link(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::End(_)))
    }

    fn stop(&self, why: &'static str) -> Stop {
        let path = self.links.last().map_or_else(|| self.walked.clone(), |link| link.path.clone());
        Stop::Link { path, why }
    }
}

/// Facts of what a handle leads to, without asking its file system: that may be our own mount.
fn look(handle: &OwnedFd) -> Result<Statx, Errno> {
    let wanted = StatxFlags::TYPE | StatxFlags::UID | StatxFlags::INO;
    rustix::fs::statx(handle, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, wanted)
}

/// Where a handle leads, as the kernel spells it: without links.
pub fn path_of(handle: BorrowedFd<'_>) -> Option<PathBuf> {
    use std::os::fd::AsRawFd as _;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", handle.as_raw_fd())).ok()?;
    let is_gone = path.as_os_str().as_bytes().ends_with(b" (deleted)");
    (path.is_absolute() && !is_gone).then_some(path)
}

impl Place {
    /// The place as a path without links.
    pub fn path(&self) -> Option<PathBuf> {
        let dir = path_of(self.dir.as_fd())?;
        Some(if self.name == OsStr::new(".") { dir } else { dir.join(&self.name) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn at(root: &Path, path: &str) -> Result<PathBuf, Stop> {
        let dir = rustix::fs::openat(CWD, root, DIRECTORY, Mode::empty()).unwrap();
        locate(dir.as_fd(), Owner::of(&dir), Path::new(path), Last::Followed)
            .map(|place| place.path().unwrap())
    }

    fn why(found: Result<PathBuf, Stop>) -> &'static str {
        match found {
            Err(Stop::Link { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn links_of_the_owner_lead_on_and_all_others_say_why_not() {
        let top = tempfile::tempdir().unwrap();
        let real = top.path().canonicalize().unwrap();
        let (root, big) = (real.join("store"), real.join("big"));
        std::fs::create_dir_all(root.join("in/side")).unwrap();
        std::fs::create_dir_all(big.join("2026")).unwrap();
        std::fs::write(big.join("2026/f"), "x").unwrap();
        symlink(&big, root.join("absolute")).unwrap();
        symlink("../../big/./2026", root.join("in/relative")).unwrap();
        symlink("absolute", root.join("twice")).unwrap();
        symlink(big.join("2026/f"), root.join("file")).unwrap();
        symlink("gone", root.join("dangling")).unwrap();
        symlink(big.join("gone/f"), root.join("nowhere")).unwrap();
        symlink("round", root.join("round")).unwrap();
        symlink("/dev/null", root.join("device")).unwrap();
        symlink("..", root.join("in/up")).unwrap();
        assert_eq!(at(&root, "absolute/2026/f").unwrap(), big.join("2026/f"));
        assert_eq!(at(&root, "in/relative/f").unwrap(), big.join("2026/f"));
        assert_eq!(at(&root, "twice/2026").unwrap(), big.join("2026"));
        assert_eq!(at(&root, "file").unwrap(), big.join("2026/f"));
        assert_eq!(at(&root, "absolute/new").unwrap(), big.join("new"), "what is not there yet has a place");
        assert_eq!(at(&root, "in/up").unwrap(), root);
        assert_eq!(at(&root, "in/up/in/relative/f").unwrap(), big.join("2026/f"));
        assert_eq!(at(&root, "new").unwrap(), root.join("new"));
        assert_eq!(at(&root, "none/new").unwrap_err(), Stop::Failed(Errno::NOENT));
        assert_eq!(why(at(&root, "dangling")), "it leads nowhere");
        assert_eq!(why(at(&root, "nowhere")), "it leads nowhere");
        assert_eq!(why(at(&root, "round")), "it leads in a circle");
        assert!(matches!(at(&root, "device"), Err(Stop::Link { .. })));
        for odd in ["../big", "/dev", "in/../in"] {
            assert_eq!(at(&root, odd).unwrap_err(), Stop::Failed(Errno::INVAL), "{odd}");
        }
        let as_it_is = |path: &str| {
            let dir = rustix::fs::openat(CWD, &root, DIRECTORY, Mode::empty()).unwrap();
            let place = locate(dir.as_fd(), Owner::of(&dir), Path::new(path), Last::AsItIs).unwrap();
            place.path().unwrap()
        };
        assert_eq!(as_it_is("dangling"), root.join("dangling"));
        assert_eq!(as_it_is("absolute/2026/f"), big.join("2026/f"));
        let dir = rustix::fs::openat(CWD, &root, DIRECTORY, Mode::empty()).unwrap();
        let nobodys = |path| locate(dir.as_fd(), Owner::Nobody, Path::new(path), Last::AsItIs);
        assert!(nobodys("in/side").is_ok() && nobodys("dangling").is_ok());
        assert_eq!(nobodys("absolute/2026").unwrap_err(), Stop::Failed(Errno::LOOP));
    }

    #[test]
    fn nothing_of_another_user_is_followed() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        use std::os::unix::fs::{chown, lchown};
        let top = tempfile::tempdir().unwrap();
        let (root, own, foreign) =
            (top.path().join("store"), top.path().join("own"), top.path().join("root"));
        for dir in [&root, &own, &foreign] {
            std::fs::create_dir(dir).unwrap();
        }
        for path in [&root, &own] {
            chown(path, Some(1234), None).unwrap();
        }
        symlink(&own, root.join("good")).unwrap();
        symlink(&own, root.join("planted")).unwrap();
        symlink(&foreign, root.join("away")).unwrap();
        for link in ["good", "away"] {
            lchown(root.join(link), Some(1234), None).unwrap();
        }
        assert!(at(&root, "good").is_ok());
        assert_eq!(why(at(&root, "planted")), "it belongs to another user");
        // Root looks at a user's store: root's own files are none of the user's.
        assert_eq!(why(at(&root, "away")), "what it leads to belongs to another user");
        assert_eq!(why(at(&root, "away/below")), "what it leads to belongs to another user");
    }
}
