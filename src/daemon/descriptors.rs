//! Open files: as many as this user may have, and a few that are kept for the end, so that a daemon that has run out
//! of them can still take its mount away.

use std::fs::File;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What unmounting needs at once: the table of mounts, and the pipes to fusermount3; and as many again, because the
/// threads that answer the kernel take some as soon as they can.
const NEEDED: usize = 16;

/// Open files that are kept until they are needed.
#[derive(Debug)]
pub(super) struct Spare {
    _files: Vec<File>,
}

impl Spare {
    /// As many as there may be; fewer are no error.
    pub fn keep() -> Spare {
        let files = (0..NEEDED).map_while(|_| File::open("/dev/null").ok());
        Spare { _files: files.collect() }
    }
}

/// Lets this process open as many files as the user's hard limit allows.
pub(super) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Err(errno) = raised {
        log::warn!("not more than {:?} files can be open at once: {errno}", limit.current);
    }
}
