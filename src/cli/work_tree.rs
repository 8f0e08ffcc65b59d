//! A mount inside a git work tree: git takes the sessions for untracked files of the project.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::host;

/// The git work tree that a mount point lies in, if git does not ignore the mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkTree {
    pub top: PathBuf,
    /// The line that keeps git out of the mount, and the file it belongs in.
    pub line: String,
    pub exclude: PathBuf,
}

impl WorkTree {
    /// Looks above `mountpoint` (absolute, resolved), never below it. `None` where no work tree is above it, or git
    /// ignores it already.
    pub fn around(mountpoint: &Path) -> Option<WorkTree> {
        let asked = mountpoint.to_owned();
        // A directory above may be on a file system that does not answer.
        host::within(host::PATIENCE, move || around(&asked)).flatten()
    }

    /// The command that makes git ignore the mount.
    pub fn cure(&self) -> String {
        format!("echo {} >> {}", quoted(&self.line), quoted(&self.exclude.to_string_lossy()))
    }
}

fn around(mountpoint: &Path) -> Option<WorkTree> {
    let above = mountpoint.parent()?.ancestors();
    let top = above.into_iter().find(|dir| dir.join(".git").symlink_metadata().is_ok())?.to_owned();
    let line = format!("/{}/", mountpoint.strip_prefix(&top).ok()?.to_string_lossy());
    let exclude = exclude_file(&top)?;
    let lines = std::fs::read_to_string(&exclude).unwrap_or_default();
    if lines.lines().any(|known| known.trim_end() == line) || git_ignores(&top, &line) {
        return None;
    }
    Some(WorkTree { top, line, exclude })
}

/// `info/exclude` of a work tree: `.git` is a directory, or a file that names one (a linked work tree, a submodule).
fn exclude_file(top: &Path) -> Option<PathBuf> {
    let git = top.join(".git");
    if git.is_dir() {
        return Some(git.join("info/exclude"));
    }
    let text = std::fs::read_to_string(&git).ok()?;
    let dir = top.join(text.strip_prefix("gitdir:")?.trim());
    let common = std::fs::read_to_string(dir.join("commondir"));
    let common = common.map_or_else(|_| dir.clone(), |common| dir.join(common.trim()));
    Some(common.join("info/exclude"))
}

/// Whether git, if it is installed, ignores the path for another reason.
fn git_ignores(top: &Path, line: &str) -> bool {
    let mut command = Command::new("git");
    command.arg("-C").arg(top).args(["check-ignore", "--quiet", "--no-index", "--"]);
    command
        .arg(line.trim_start_matches('/'))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@%".contains(c);
    if word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn a_mount_in_a_work_tree_is_seen_until_git_ignores_it() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let mount = top.join("deep/my turns");
        assert_eq!(around(&mount), None, "no work tree");
        std::fs::create_dir_all(top.join(".git/info")).unwrap();
        std::fs::create_dir(top.join("deep")).unwrap();
        let found = around(&mount).unwrap();
        assert_eq!((&found.top, found.line.as_str()), (&top, "/deep/my turns/"));
        assert!(found.cure().starts_with("echo '/deep/my turns/' >> "), "{}", found.cure());
        std::fs::write(&found.exclude, "# comment\n/deep/my turns/\n").unwrap();
        assert_eq!(around(&mount), None, "excluded");
    }

    #[test]
    fn a_linked_work_tree_has_its_exclude_file_in_the_main_one() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let git = base.join("main/.git/worktrees/linked");
        std::fs::create_dir_all(&git).unwrap();
        std::fs::write(git.join("commondir"), "../..\n").unwrap();
        std::fs::create_dir(base.join("linked")).unwrap();
        std::fs::write(base.join("linked/.git"), format!("gitdir: {}\n", git.display())).unwrap();
        let found = exclude_file(&base.join("linked")).unwrap();
        std::fs::create_dir(base.join("main/.git/info")).unwrap();
        assert_eq!(found.parent().unwrap().canonicalize().unwrap(), base.join("main/.git/info"));
    }
}
