//! Which process has a file open for writing, for the sentence that a cut is refused with.

use std::path::Path;

/// The process that has `file` open for writing, where /proc shows it (own processes, or all as root). It
/// only names somebody; whether the file is free is told by its lease.
pub(super) fn of(file: &Path) -> Option<u32> {
    // Compared by path: looking at what a descriptor leads to could wait for a dead network mount.
    let file = file.canonicalize().ok()?;
    let own = std::process::id();
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| *pid != own && writes(*pid, &file))
}

fn writes(pid: u32, file: &Path) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|entry| {
        let is_it = std::fs::read_link(entry.path()).is_ok_and(|target| target == file);
        is_it && {
            let info = Path::new("/proc").join(pid.to_string()).join("fdinfo").join(entry.file_name());
            let info = std::fs::read_to_string(info).unwrap_or_default();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
            let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
            flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_named_and_a_reader_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "x").unwrap();
        let hold = |redirection: &str| {
            let script = format!("exec 3{redirection} '{}'; sleep 60", file.display());
            std::process::Command::new("sh").arg("-c").arg(script).spawn().unwrap()
        };
        let mut reader = hold("<");
        std::thread::sleep(std::time::Duration::from_millis(300));
        let none = of(&file);
        let mut writer = hold(">>");
        let start = std::time::Instant::now();
        while of(&file).is_none() && start.elapsed().as_secs() < 10 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let found = of(&file);
        for child in [&mut reader, &mut writer] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(none, None);
        // The shell's own `sleep` has the descriptor too.
        assert!(found.is_some_and(|pid| pid >= writer.id()), "{found:?}, not {}", writer.id());
    }
}
