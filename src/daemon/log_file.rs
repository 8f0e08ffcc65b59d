//! Where a daemon in the background logs: a file of bounded size in the state directory, shared by the daemons
//! of all mount points. One that has grown large is put aside as `turnfs.log.old`, also while daemons run.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::cut::PrivateDir;
use crate::render;
use crate::session::Refusal;

/// Size at which the log is put aside, bytes; it and the one before it together are about twice as large.
const LARGEST: u64 = 1 << 20;
const NAME: &str = "turnfs.log";
const OLD: &str = "turnfs.log.old";
/// Longest line, bytes; the rest of a message is left out.
const LONGEST_LINE: usize = 4096;

/// The directory of the log that standard error is, once it is one.
static LOG: OnceLock<Mutex<PrivateDir>> = OnceLock::new();

/// The log's path, below the state directory.
pub fn path(state: &Path) -> PathBuf {
    state.join(NAME)
}

/// From here on standard error is the log in `dir`.
///
/// # Errors
/// When the log cannot be written, or is not this user's own.
pub(super) fn begin(dir: PrivateDir) -> Result<(), Refusal> {
    rotate_if_large(&dir)?;
    LOG.get_or_init(|| Mutex::new(dir));
    Ok(())
}

/// Makes standard error the log's file as it is now, after putting a large one aside.
fn rotate_if_large(dir: &PrivateDir) -> Result<(), Refusal> {
    let mut log = dir.append(NAME)?;
    let failed = |error| Refusal::io("cannot write", &dir.path().join(NAME), error);
    if log.metadata().map_err(failed)?.len() > LARGEST {
        // One daemon at a time; who waited finds that it was done.
        log.lock().map_err(failed)?;
        let same = dir.inode(NAME) == Some(inode(&log).map_err(failed)?);
        if same && dir.rename(NAME, OLD).is_err() {
            // Better no old lines than a log without bound.
            log.set_len(0).map_err(failed)?;
        } else {
            log = dir.append(NAME)?;
        }
    }
    rustix::stdio::dup2_stderr(&log).map_err(|errno| failed(errno.into()))
}

fn inode(file: &File) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(file.metadata()?.ino())
}

/// Whether standard error is not, or should no longer be, the file that it is.
fn is_outdated(dir: &PrivateDir) -> bool {
    let facts = rustix::fs::fstat(io::stderr().as_fd());
    facts.is_ok_and(|facts| facts.st_size as u64 > LARGEST || dir.inode(NAME) != Some(facts.st_ino))
}

/// Standard error, kept within bounds where it is a log file. The logger writes one record at a time to it.
#[derive(Debug, Default)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        // Held until the record is written, so that no other thread changes the file in between.
        let dir = LOG.get().map(Mutex::lock);
        if let Some(dir) = dir.as_deref().filter(|dir| is_outdated(dir)) {
            // If not: better a line in the old file than none.
            let _ = rotate_if_large(dir);
        }
        io::stderr().write_all(record)?;
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A message as one line of bounded length that no terminal obeys: it may hold what stores say.
pub fn line(message: &str) -> String {
    let mut line = render::one_line(message).into_owned();
    if line.len() > LONGEST_LINE {
        let fits = |end: &usize| line.is_char_boundary(*end);
        line.truncate((0..=LONGEST_LINE).rev().find(fits).unwrap_or(0));
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_is_one_safe_line_of_bounded_length() {
        assert_eq!(line("a\nb\u{1b}c"), "a␊b␛c");
        let long = line(&"ä".repeat(10_000));
        assert!(long.len() <= LONGEST_LINE + '…'.len_utf8() && long.ends_with('…'));
    }
}
