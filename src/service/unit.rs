//! The text of the unit (systemd.unit(5), systemd.service(5)).

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use crate::daemon;
use crate::host::Environment;
use crate::render::shell_word;

/// The first line of a unit of ours.
const MARK: &str = "# Written by `turnfs service install`; `turnfs service remove` deletes it.";
/// systemd leaves sections alone whose name begins so.
const OWN_SECTION: &str = "[X-Turnfs]\nMountPoint=";

/// What the service is to do.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The program that it runs; absolute.
    pub program: PathBuf,
    /// May be relative to the working directory.
    pub mount_point: PathBuf,
    /// Options of `turnfs mount`; paths in them are absolute.
    pub options: Vec<OsString>,
}

/// The unit. `mount_point`: absolute.
///
/// # Errors
/// When a word of it cannot stand in a unit.
pub(super) fn text(
    wanted: &Wanted,
    mount_point: &Path,
    variables: &[(&'static str, OsString)],
) -> Result<String, Failure> {
    let shown = plain(mount_point.as_os_str())?;
    let mut environment = String::new();
    for (name, value) in variables {
        let _ = writeln!(environment, "Environment=\"{name}={}\"", escaped(value)?);
    }
    // The colon: no `$` in it is replaced.
    let mut command = format!(":\"{}\" mount --foreground", escaped(wanted.program.as_os_str())?);
    for option in &wanted.options {
        let _ = write!(command, " \"{}\"", escaped(option)?);
    }
    let _ = write!(command, " -- \"{}\"", escaped(mount_point.as_os_str())?);
    Ok(format!(
        "\
{MARK}
# To add to it: systemctl --user edit turnfs

[Unit]
Description=Sessions of coding agents as files at {description}
# Five failures within a minute, and it stays down.
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
{environment}ExecStart={command}
# Asked to stop, it finishes the running command, unmounts and exits with 0.
TimeoutStartSec=30
TimeoutStopSec=75
Restart=on-failure
RestartSec=2
# fusermount3 is setuid root: NoNewPrivileges and what implies it must stay off.

[Install]
WantedBy=default.target

{OWN_SECTION}{shown}
",
        description = shown.replace('%', "%%"),
    ))
}

/// Whether this unit was written here.
pub(super) fn is_ours(text: &str) -> bool {
    text.lines().next() == Some(MARK)
}

/// Where a unit of ours mounts.
pub(super) fn mount_point(text: &str) -> Option<PathBuf> {
    let (_, rest) = text.split_once(OWN_SECTION)?;
    rest.lines().next().map(PathBuf::from)
}

/// What of `env` decides what is shown, so that the service is to have it too: systemd does not know what is set in a
/// shell's profile. `manager`: the environment that systemd gives its services.
pub(super) fn variables(
    env: &Environment,
    manager: &HashMap<String, String>,
) -> Vec<(&'static str, OsString)> {
    let set = daemon::running::variables().into_iter().chain(["HOME"]);
    let set = set.filter_map(|name| Some((name, env.value(name)?.to_owned())));
    // Of HOME only another one than systemd's is worth a line.
    let is_known = |name: &str, value: &OsStr| {
        name == "HOME" && manager.get(name).is_some_and(|known| OsStr::new(known) == value)
    };
    set.filter(|(name, value)| !is_known(name, value)).collect()
}

/// The line of a shell's profile that does nearly the same.
pub(super) fn login_line(mount_point: &Path) -> String {
    let program = std::env::current_exe().unwrap_or_else(|_| "turnfs".into());
    format!("{} mount {} >/dev/null", shell_word(program.as_os_str()), shell_word(mount_point.as_os_str()))
}

/// Text that a unit can hold at all.
fn plain(word: &OsStr) -> Result<&str, Failure> {
    let text = word.to_str().filter(|text| !text.chars().any(char::is_control));
    text.ok_or_else(|| Failure::NotForAUnit { what: word.to_string_lossy().into_owned() })
}

/// As it stands between double quotes.
fn escaped(word: &OsStr) -> Result<String, Failure> {
    Ok(plain(word)?.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_unit_tells_where_it_mounts_and_keeps_every_character_of_a_path() {
        let odd = Path::new(r#"/home/a b/100%h $HOME "q" \x"#);
        let wanted = Wanted {
            program: "/opt/turn fs/turnfs".into(),
            mount_point: odd.into(),
            options: vec!["--store".into(), "codex=/a$b".into()],
        };
        let text = text(&wanted, odd, &[("CODEX_HOME", "/c\"d%".into())]).unwrap();
        assert!(is_ours(&text));
        assert_eq!(mount_point(&text).unwrap(), odd);
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
        assert_eq!(
            line("ExecStart="),
            r#"ExecStart=:"/opt/turn fs/turnfs" mount --foreground "--store" "codex=/a$b" -- "/home/a b/100%%h $HOME \"q\" \\x""#
        );
        assert_eq!(line("Environment="), r#"Environment="CODEX_HOME=/c\"d%%""#);
    }

    #[test]
    fn what_no_unit_can_hold_is_refused() {
        use std::os::unix::ffi::OsStrExt as _;
        for word in [&b"/a\nb"[..], b"/a\xff"] {
            assert!(matches!(escaped(OsStr::from_bytes(word)), Err(Failure::NotForAUnit { .. })));
        }
    }
}
