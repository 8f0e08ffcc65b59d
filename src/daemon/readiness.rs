//! Telling whoever started the daemon how it went: a terminal, `turnfs mount` behind a pipe, systemd.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use super::failure::Failure;
use super::log_file;
use crate::cut::StateDir;

/// To whom a daemon reports.
#[derive(Debug)]
pub enum Report {
    /// `mount -f`: the log is on stderr.
    Foreground,
    /// Started by [`super::background`], which reads one line from our standard output.
    Starter,
}

/// The first word of the line that a daemon writes to its starter; a blank and the rest follow.
pub(super) const READY: &str = "ready";
pub(super) const ALREADY: &str = "already";
pub(super) const FAILED: &str = "failed";

impl Report {
    /// From here on messages go to the log.
    pub(super) fn start_log(&self, state: &StateDir) -> Result<(), Failure> {
        if let Report::Starter = self {
            log_file::begin(state.private_or_made()?)?;
        }
        Ok(())
    }

    /// The mount answers.
    pub(super) fn ready(&mut self, path: &Path) {
        self.tell(READY, &path.display().to_string());
        log::info!("turnfs {} is ready at {}", env!("CARGO_PKG_VERSION"), path.display());
        notify_systemd("READY=1");
    }

    /// There is nothing to do.
    pub(super) fn already_mounted(&mut self, path: &Path) {
        match self {
            Report::Foreground => eprintln!("turnfs: already mounted at {}", path.display()),
            Report::Starter => self.tell(ALREADY, &path.display().to_string()),
        }
        notify_systemd("READY=1");
    }

    /// There is no mount. Only a starter is told here; in the foreground the caller prints the message. Hints
    /// follow the message behind tabs.
    pub fn failed(&mut self, failure: &Failure) {
        let parts = [failure.to_string()].into_iter().chain(failure.hints());
        self.tell(FAILED, &parts.map(|part| part.replace('\t', " ")).collect::<Vec<_>>().join("\t"));
    }

    /// One line, once: afterwards standard output is /dev/null, so that the starter's pipe is closed.
    fn tell(&mut self, word: &str, text: &str) {
        if let Report::Starter = self {
            // If the starter has gone there is nobody to tell.
            let _ = writeln!(io::stdout(), "{word} {}", text.replace('\n', " "));
            if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
                let _ = rustix::stdio::dup2_stdout(null);
            }
        }
    }
}

/// Tells systemd, if it started us (`Type=notify`; the protocol is sd_notify(3)).
pub fn notify_systemd(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else {
        return;
    };
    if let Err(error) = send(socket.as_bytes(), state.as_bytes()) {
        log::warn!("cannot notify systemd through {}: {error}", socket.display());
    }
}

fn send(socket: &[u8], state: &[u8]) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn systemd_is_told_through_both_kinds_of_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("turnfs-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let table = [
            (UnixDatagram::bind(&path).unwrap(), path.as_os_str().as_bytes().to_vec()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}").into_bytes()),
        ];
        for (socket, address) in table {
            send(&address, b"READY=1").unwrap();
            let mut buffer = [0; 32];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
        assert!(send(b"/no/such/socket", b"READY=1").is_err());
    }
}
