//! Faults at a chosen durable operation, for tests. Without the cargo feature `faults` this is nothing.
//!
//! Every operation of `disk` that changes something on disk, and those of `row`, pass here first and are
//! counted, from 1, for the life of the process. `TURNFS_FAULT` says what happens: `count:FILE` appends one
//! line per operation to FILE; `abort:K` kills the process before operation K; `errno:NAME:K` makes operation
//! K fail with that errno (a write first writes half of its bytes).

#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(super) fn inject(_: &'static str) -> std::io::Result<()> {
    Ok(())
}

#[cfg(feature = "faults")]
pub(super) use armed::inject;

#[cfg(feature = "faults")]
mod armed {
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

    /// Passes an operation that is about to be done; the error that it is to fail with, if any.
    pub(in super::super) fn inject(operation: &'static str) -> io::Result<()> {
        let at = COUNT.fetch_add(1, Ordering::SeqCst) + 1;
        match FAULT.get_or_init(|| parse(&std::env::var("TURNFS_FAULT").unwrap_or_default())) {
            Fault::None => Ok(()),
            Fault::Count(file) => {
                let line = std::fs::OpenOptions::new().create(true).append(true).open(file);
                if let Ok(mut file) = line {
                    // A count that cannot be written shows as a test that finds too few operations.
                    let _ = writeln!(file, "{operation}");
                }
                Ok(())
            }
            Fault::Abort(k) if *k == at => std::process::abort(),
            Fault::Errno(errno, k) if *k == at => Err(io::Error::from_raw_os_error(*errno)),
            Fault::Abort(_) | Fault::Errno(..) => Ok(()),
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
