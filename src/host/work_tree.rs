//! The git work tree that a directory lies in, and how git is kept out of the directory.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{PATIENCE, within};
use crate::render::shell_word;

/// A git work tree around a directory that git does not ignore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkTree {
    pub top: PathBuf,
    /// A shell command that makes git ignore the directory, for this clone only.
    pub exclude: String,
    /// The file that this command adds a line to.
    pub file: PathBuf,
    pattern: String,
}

impl WorkTree {
    /// Does what the command would do.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep_git_out(&self) -> io::Result<()> {
        let before = match fs::read(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            before => before?,
        };
        fs::create_dir_all(self.file.parent().unwrap_or(Path::new("/")))?;
        let mut file = fs::File::options().append(true).create(true).open(&self.file)?;
        let end = if before.is_empty() || before.ends_with(b"\n") { "" } else { "\n" };
        file.write_all(format!("{end}{}\n", self.pattern).as_bytes())
    }
}

/// The work tree that the (absolute, resolved) `dir` lies in; `None` if it lies in none, if git ignores it already,
/// or if that cannot be told in time. What is in `dir` is not looked at.
pub fn around(dir: &Path) -> Option<WorkTree> {
    let dir = dir.to_owned();
    within(PATIENCE, move || look(&dir)).flatten()
}

fn look(dir: &Path) -> Option<WorkTree> {
    let (top, git_dir) = dir.ancestors().skip(1).find_map(|top| Some((top, git_dir(top)?)))?;
    let below = dir.strip_prefix(top).ok()?;
    let (pattern, file) = (pattern(below), git_dir.join("info/exclude"));
    if is_ignored(top, below).unwrap_or_else(|| has_line(&file, &pattern)) {
        return None;
    }
    let exclude = format!("echo {} >> {}", shell_word(OsStr::new(&pattern)), shell_word(file.as_os_str()));
    Some(WorkTree { top: top.to_owned(), exclude, file, pattern })
}

/// Where git keeps what all work trees of the repository share, if `top` is the top of one of them.
fn git_dir(top: &Path) -> Option<PathBuf> {
    let place = top.join(".git");
    let own = match place.symlink_metadata().ok()? {
        facts if facts.is_file() => {
            // Of a linked work tree, or of a submodule.
            let text = std::fs::read_to_string(&place).ok()?;
            top.join(text.strip_prefix("gitdir:")?.trim())
        }
        _ => place,
    };
    if own.join("HEAD").symlink_metadata().is_err() {
        return None;
    }
    match std::fs::read_to_string(own.join("commondir")) {
        Ok(common) => own.join(common.trim()).canonicalize().ok(),
        Err(_) => Some(own),
    }
}

/// Whether git ignores `below`; `None` if it cannot be asked.
fn is_ignored(top: &Path, below: &Path) -> Option<bool> {
    let mut git = Command::new("git");
    // What the caller's environment says of another repository does not count here.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"GIT_")) {
        git.env_remove(name);
    }
    git.args(["-c", "core.fsmonitor=false", "-C"]).arg(top).args(["check-ignore", "-q", "--"]).arg(below);
    git.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match git.status().ok()?.code()? {
        0 => Some(true),
        1 => Some(false),
        _ => None,
    }
}

fn has_line(file: &Path, line: &str) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.lines().any(|other| other == line))
}

/// The gitignore(5) pattern of exactly this directory.
fn pattern(below: &Path) -> String {
    let mut pattern = String::from("/");
    for c in below.to_string_lossy().chars() {
        match c {
            '\\' | '*' | '?' | '[' => pattern.extend(['\\', c]),
            // No pattern can have one in it.
            '\n' | char::REPLACEMENT_CHARACTER => pattern.push('?'),
            _ => pattern.push(c),
        }
    }
    pattern + "/"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_escaped() {
        for (below, expected) in [("m", "/m/"), ("a b/m", "/a b/m/"), (r"a*[b]\", r"/a\*\[b]\\/")] {
            assert_eq!(pattern(Path::new(below)), expected);
        }
    }
}
