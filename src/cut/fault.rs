//! Faults at a chosen durable operation, for tests. Without the cargo feature `faults` this is nothing.
//!
//! Every operation of `disk` that changes something on disk, and those of `row`, pass here first and are
//! counted, from 1, for the life of the process. `TURNFS_FAULT` says what happens: `count:FILE` appends one
//! line per operation to FILE; `abort:K` kills the process before operation K; `errno:NAME:K` makes operation
//! K fail with that errno (a write first writes half of its bytes).

use std::io;

/// What an operation should do.
pub(super) enum Verdict {
    Go,
    #[cfg_attr(not(feature = "faults"), expect(dead_code, reason = "only a fault constructs it"))]
    Fail(io::Error),
}

#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(super) fn point(_: &'static str) -> Verdict {
    Verdict::Go
}

#[cfg(feature = "faults")]
pub(super) use armed::point;

#[cfg(feature = "faults")]
mod armed {
    use super::Verdict;
    use std::io::{self, Write as _};
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    enum Fault {
        None,
        Count(PathBuf),
        Abort(u64),
        Errno(i32, u64),
    }

    static FAULT: OnceLock<Fault> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);

    pub(in super::super) fn point(operation: &'static str) -> Verdict {
        let at = COUNT.fetch_add(1, Ordering::SeqCst) + 1;
        match FAULT.get_or_init(|| parse(&std::env::var("TURNFS_FAULT").unwrap_or_default())) {
            Fault::None => Verdict::Go,
            Fault::Count(file) => {
                let line = std::fs::OpenOptions::new().create(true).append(true).open(file);
                if let Ok(mut file) = line {
                    // A count that cannot be written shows as a test that finds too few operations.
                    let _ = writeln!(file, "{operation}");
                }
                Verdict::Go
            }
            Fault::Abort(k) if *k == at => std::process::abort(),
            Fault::Errno(errno, k) if *k == at => Verdict::Fail(io::Error::from_raw_os_error(*errno)),
            Fault::Abort(_) | Fault::Errno(..) => Verdict::Go,
        }
    }

    fn parse(text: &str) -> Fault {
        let mut parts = text.splitn(3, ':');
        let (kind, first, second) = (parts.next(), parts.next(), parts.next());
        match (kind, first, second) {
            (Some("count"), Some(file), None) => Fault::Count(PathBuf::from(file)),
            (Some("abort"), Some(k), None) => k.parse().map_or(Fault::None, Fault::Abort),
            (Some("errno"), Some(name), Some(k)) => match (errno(name), k.parse()) {
                (Some(errno), Ok(k)) => Fault::Errno(errno, k),
                _ => Fault::None,
            },
            _ => Fault::None,
        }
    }

    fn errno(name: &str) -> Option<i32> {
        Some(match name {
            "EIO" => libc::EIO,
            "ENOSPC" => libc::ENOSPC,
            "EDQUOT" => libc::EDQUOT,
            "EACCES" => libc::EACCES,
            "EROFS" => libc::EROFS,
            _ => return None,
        })
    }
}
