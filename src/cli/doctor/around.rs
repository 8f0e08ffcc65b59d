//! Other programs of the host that walk over everything that is mounted.

use super::super::mount::default_mount_point;
use super::super::output;
use super::{Finding, ok, warn};
use crate::host::Environment;
use crate::host::mountinfo::FS_TYPE;

/// The settings of locate's updatedb.
const UPDATEDB: &str = "/etc/updatedb.conf";

/// Whether `locate` leaves turnfs mounts out; nothing where there is no updatedb.
pub(super) fn locate() -> Option<Finding> {
    let settings = std::fs::read_to_string(UPDATEDB).ok()?;
    Some(match prunes(&settings) {
        true => ok(format!("{UPDATEDB} leaves {FS_TYPE} out")),
        false => warn(
            format!(
                "PRUNEFS in {UPDATEDB} does not name {FS_TYPE}: updatedb (locate) tries to walk over mounts"
            ),
            format!("sudo sed -i 's/^PRUNEFS *= *\"/&{FS_TYPE} /' {UPDATEDB}"),
        ),
    })
}

/// Whether settings in the form of updatedb.conf(5) leave file systems of our type out.
fn prunes(settings: &str) -> bool {
    let value =
        |line: &str| Some(line.trim().strip_prefix("PRUNEFS")?.trim_start().strip_prefix('=')?.to_owned());
    // Of several the last one counts.
    let names = settings.lines().rev().find_map(value).unwrap_or_default();
    let names = names.trim().trim_matches('"');
    names.split_whitespace().any(|name| name.eq_ignore_ascii_case(FS_TYPE))
}

/// What a backup should leave out: what it would copy is in the stores already.
pub(super) fn backups(env: &Environment) -> Finding {
    let place = default_mount_point(env).map_or("the mount".to_owned(), |place| output::path(&place));
    ok(format!(
        "backups: leave {place} out, by --one-file-system (restic, borg, tar; rsync -x) or an exclude; the sessions are in the stores"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_that_counts_leaves_mounts_out() {
        for (settings, expected) in [
            ("PRUNEFS=\"NFS fuse.turnfs proc\"\n", true),
            ("PRUNE_BIND_MOUNTS=\"yes\"\nPRUNEFS = \"FUSE.TURNFS\"\n", true),
            ("# PRUNEFS=\"fuse.turnfs\"\n", false),
            ("PRUNEFS=\"fuse.turnfs2 fuse\"\n", false),
            ("PRUNEFS=\"fuse.turnfs\"\nPRUNEFS=\"NFS\"\n", false),
            ("PRUNEPATHS=\"fuse.turnfs\"\n", false),
            ("", false),
        ] {
            assert_eq!(prunes(settings), expected, "{settings}");
        }
    }
}
