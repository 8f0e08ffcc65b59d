//! What is mounted where: `/proc/self/mountinfo` as values. Parsing is a pure function of the text.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// The file system type of all our mounts.
pub const FS_TYPE: &str = "fuse.turnfs";

/// A device as mountinfo names it; unique to a mount for as long as the mount lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// One line of mountinfo, as far as we need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    pub device: Device,
    /// Where it is mounted, resolved.
    pub mount_point: PathBuf,
    /// For FUSE with its subtype: `fuse.turnfs`.
    pub fs_type: String,
    /// The user who mounted a FUSE file system (`user_id=`).
    pub user: Option<u32>,
    /// Nothing can be written through it.
    pub read_only: bool,
    /// The directories that an overlay is made of (`lowerdir=`, escaped as the kernel does).
    pub lower: Option<OsString>,
}

impl MountEntry {
    pub fn is_turnfs(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// All mounts of this mount namespace, lower ones first.
///
/// # Errors
/// When /proc is not there.
pub fn read() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Tells when something is mounted or unmounted, and what then is mounted, by one open file for good: also where no
/// other can be opened any more.
pub struct Changes(File);

impl Changes {
    /// # Errors
    /// When /proc is not there.
    pub fn open() -> io::Result<Changes> {
        File::open("/proc/self/mountinfo").map(Changes)
    }

    /// All mounts as they are now.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn mounts(&mut self) -> io::Result<Vec<MountEntry>> {
        let mut text = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut text)?;
        Ok(parse(&text))
    }

    /// Waits for the next change since the last wait (or since it was opened).
    ///
    /// # Errors
    /// When there will be no more news.
    pub fn wait(&self) -> io::Result<()> {
        // The kernel reports a changed mount table as an exceptional condition of the open file.
        let mut fds = [PollFd::new(&self.0, PollFlags::PRI)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The mount that is seen at exactly `path`: of several on one place, the last one covers the others.
pub fn top_at<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    mounts.iter().rev().find(|mount| mount.mount_point == path)
}

/// The mount that the (resolved) `path` lies in.
pub fn containing<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    path.ancestors().find_map(|ancestor| top_at(mounts, ancestor))
}

/// Parses mountinfo (proc_pid_mountinfo(5)); lines that do not have its form are left out.
pub fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    // 36 35 98:0 /root /mount/point rw,noatime master:1 - type source super-options
    let mut fields = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let device = Device { major: major.parse().ok()?, minor: minor.parse().ok()? };
    let mount_point = PathBuf::from(unescape(fields.nth(1)?));
    let read_only = fields.next()?.split(|byte| *byte == b',').any(|option| option == b"ro");
    // Mount options, then optional fields up to the hyphen.
    fields.find(|field| *field == b"-")?;
    let fs_type = unescape(fields.next()?).into_string().ok()?;
    let super_options = fields.nth(1).unwrap_or_default();
    let user = super_options
        .split(|byte| *byte == b',')
        .find_map(|option| std::str::from_utf8(option.strip_prefix(b"user_id=")?).ok()?.parse().ok());
    let lower = super_options.split(|byte| *byte == b',').filter_map(|option| {
        // One option each (`lowerdir+=`), or all in one.
        option.strip_prefix(b"lowerdir+=").or_else(|| option.strip_prefix(b"lowerdir="))
    });
    let lower: Vec<OsString> = lower.map(unescape).collect();
    let lower = (!lower.is_empty()).then(|| lower.join(OsStr::new(":")));
    Some(MountEntry { device, mount_point, fs_type, user, read_only, lower })
}

/// The kernel writes blank, tab, newline, backslash (and `#`) as `\ooo`.
fn unescape(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = |digit: u8| (b'0'..=b'7').contains(&digit).then(|| u32::from(digit - b'0'));
        let escaped = match after {
            [a, b, c, ..] if byte == b'\\' => match (octal(*a), octal(*b), octal(*c)) {
                (Some(a), Some(b), Some(c)) => u8::try_from(a * 64 + b * 8 + c).ok(),
                _ => None,
            },
            _ => None,
        };
        match escaped {
            Some(value) => {
                plain.push(value);
                rest = &after[3..];
            }
            None => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(plain)
}

/// Whether a path is the same as, or below, another one, by components.
pub fn is_within(path: &Path, dir: &Path) -> bool {
    !dir.as_os_str().as_bytes().is_empty() && path.starts_with(dir)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    fn entry(device: (u32, u32), at: &str, fs_type: &str, user: Option<u32>) -> MountEntry {
        let device = Device { major: device.0, minor: device.1 };
        MountEntry {
            device,
            mount_point: at.into(),
            fs_type: fs_type.into(),
            user,
            read_only: false,
            lower: None,
        }
    }

    #[test]
    fn lines_of_every_form_are_read() {
        let table = [
            (
                "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
                Some(entry((98, 0), "/mnt2", "ext3", None)),
            ),
            (
                "90 29 0:47 / /home/ana/turns rw,nosuid,nodev,noexec,relatime - fuse.turnfs turnfs rw,user_id=1000,group_id=1000",
                Some(entry((0, 47), "/home/ana/turns", "fuse.turnfs", Some(1000))),
            ),
            // No optional field, several, an empty source.
            (
                "21 1 0:20 / /proc rw shared:5 master:2 propagate_from:3 - proc proc rw",
                Some(entry((0, 20), "/proc", "proc", None)),
            ),
            ("21 1 0:20 / /x rw -  proc rw", Some(entry((0, 20), "/x", "", None))),
            // Blank, tab, newline and backslash in a name; bytes that are not octal stay.
            (
                r"50 1 0:9 / /a\040b\011c\012d\134e\9 rw - tmpfs tmpfs rw",
                Some(entry((0, 9), "/a b\tc\nd\\e\\9", "tmpfs", None)),
            ),
            (r"50 1 0:9 / /a\777b\04 rw - tmpfs t rw", Some(entry((0, 9), r"/a\777b\04", "tmpfs", None))),
            // A hyphen in a name is no separator.
            ("50 1 0:9 / /- rw - tmpfs t rw", Some(entry((0, 9), "/-", "tmpfs", None))),
            ("50 1 0:9 / /no-separator rw tmpfs t rw", None),
            ("50 1 x:9 / /bad-device rw - tmpfs t rw", None),
            ("", None),
        ];
        for (line, expected) in table {
            assert_eq!(parse(line.as_bytes()).into_iter().next(), expected, "{line}");
        }
    }

    #[test]
    fn names_that_are_not_utf8_are_kept() {
        let parsed = parse(b"50 1 0:9 / /a\xff\\040b rw - tmpfs t rw\n");
        assert_eq!(parsed[0].mount_point.as_os_str().as_bytes(), b"/a\xff b");
    }

    #[test]
    fn the_last_mount_on_a_place_covers_the_others() {
        let mounts = parse(
            b"1 0 8:1 / / rw - ext4 a rw\n2 1 0:5 / /m rw - tmpfs t rw\n3 2 0:6 / /m rw - fuse.turnfs turnfs rw,user_id=0\n",
        );
        assert_eq!(top_at(&mounts, Path::new("/m")).unwrap().device, Device { major: 0, minor: 6 });
        assert_eq!(top_at(&mounts, Path::new("/m/x")), None);
        assert!(containing(&mounts, Path::new("/m/x/y")).unwrap().is_turnfs());
        assert_eq!(containing(&mounts, Path::new("/mx")).unwrap().fs_type, "ext4");
    }
}
