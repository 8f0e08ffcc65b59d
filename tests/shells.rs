//! What people type at the control files: every shell and tool acts once and tells the truth, and nothing
//! else that a program may try changes anything.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use support::{Mount, Ran, TestStore};

/// A mount of b-tools (four turns) with its session's directory.
struct Case {
    mount: Mount,
    store: TestStore,
    dir: PathBuf,
}

impl Case {
    fn new() -> Case {
        Case::with(&[])
    }

    fn with(options: &[&str]) -> Case {
        let store = TestStore::from_sample("b-tools");
        let mount = store.mount(options);
        let dir = mount.session(&store, None);
        Case { mount, store, dir }
    }

    /// Runs a script in the session's directory.
    fn run(&self, shell: &str, script: &str) -> Ran {
        let script = format!("cd '{}' || exit 99\n{script}", self.dir.display());
        support::run(self.store.shell(shell, &script))
    }

    fn turns(&self) -> usize {
        fs::read_dir(self.dir.join("turns")).unwrap().count()
    }

    fn snapshot(&self) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
        self.store.snapshot()
    }

    fn sessions(&self) -> usize {
        self.store.run(&["ls", "--all", "--json"]).json().as_array().unwrap().len()
    }

    fn last(&self) -> String {
        let status = fs::read_to_string(self.dir.join("status")).unwrap();
        status.lines().last().unwrap_or_default().to_owned()
    }
}

#[test]
fn every_way_of_writing_a_number_cuts_once() {
    for (shell, script) in [
        ("bash", "echo 2 > undo"),
        ("dash", "echo 2 > undo"),
        ("zsh", "echo 2 > undo"),
        ("sh", "printf 2 > undo"),
        ("sh", "printf ' 002 \\n' > undo"),
        ("bash", "echo 2 >> undo"),
        ("zsh", "echo 2 >> undo"),
        ("sh", "echo 2 | tee undo"),
        ("sh", "echo 2 | tee -a undo"),
        ("sh", "echo 2 | dd of=undo status=none"),
        ("sh", "echo 2 | dd of=undo conv=notrunc status=none"),
        ("sh", "echo 2 > \"$HOME/n\"; cp \"$HOME/n\" undo"),
        ("sh", "echo 2 > \"$HOME/n\"; cat \"$HOME/n\" > undo"),
        ("sh", "python3 -c 'open(\"undo\",\"w\").write(\"2\\n\")'"),
        ("bash", "exec 3<>undo; echo 2 >&3"),
        ("sh", "echo force 2 > undo"),
    ] {
        let case = Case::new();
        let ran = case.run(shell, script);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{shell}: {script}");
        assert_eq!(case.turns(), 2, "{shell}: {script}");
        assert_eq!(case.run(shell, "echo last > redo").code, 0, "{shell}");
        assert_eq!(case.turns(), 4, "{shell}: {script}");
    }
}

#[test]
fn every_way_of_writing_a_number_forks_once() {
    for (shell, script) in [
        ("bash", "echo 1 > fork"),
        ("dash", "echo 1 > fork"),
        ("zsh", "echo 1 > fork"),
        ("sh", "echo 1 | tee fork > /dev/null"),
        ("sh", "echo 1 | dd of=fork status=none"),
        ("sh", "python3 -c 'open(\"fork\",\"w\").write(\"1\")'"),
    ] {
        let case = Case::new();
        let ran = case.run(shell, script);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{shell}: {script}");
        assert_eq!(case.sessions(), 2, "{shell}: {script}");
        let id = case.run(shell, "cat fork").ok();
        let new = case.mount.session(&case.store, Some(id.trim()));
        assert_eq!(fs::read_dir(new.join("turns")).unwrap().count(), 2, "{shell}: {script}");
        assert_eq!(case.turns(), 4);
    }
}

#[test]
fn a_handle_opened_for_both_reads_the_id_that_it_made() {
    for shell in ["bash", "zsh"] {
        let case = Case::new();
        let id = case.run(shell, "exec 3<>fork; echo 1 >&3; cat <&3").ok();
        assert_eq!(id.trim().len(), 36, "{shell}: {id:?}");
        assert_eq!(id, case.run(shell, "cat fork").ok());
    }
}

#[test]
fn what_is_no_command_says_so_and_does_nothing() {
    let case = Case::new();
    let before = case.snapshot();
    for (script, message) in [
        ("echo 99 > undo", "Numerical result out of range"),
        ("echo 4 > undo", "Numerical result out of range"),
        ("echo 99 > fork", "Numerical result out of range"),
        ("echo last > redo", "Numerical result out of range"),
        ("echo x > undo", "Invalid argument"),
        ("echo -1 > undo", "Invalid argument"),
        ("echo 1.5 > undo", "Invalid argument"),
        ("echo '1 2' > undo", "Invalid argument"),
        ("echo force > undo", "Invalid argument"),
        ("echo force 1 > fork", "Invalid argument"),
        ("printf '1\\n2\\n' > undo", "Invalid argument"),
        ("printf '99999999999999999999' > undo", "Numerical result out of range"),
        (
            "head -c 5000 /dev/zero | tr '\\0' ' ' | dd of=undo bs=5000 iflag=fullblock status=none",
            "Invalid argument",
        ),
    ] {
        // bash writes several lines one by one, so each is a command of its own there; see below.
        let several_lines = script.contains("\\n2");
        let ran = case.run(if several_lines { "dash" } else { "bash" }, script);
        assert_ne!(ran.code, 0, "{script}");
        assert!(several_lines || ran.stderr.contains(message), "{script}: {}", ran.stderr);
        assert!(case.snapshot() == before, "{script} changed the store");
        assert!(case.last().starts_with("last: "), "{script}: {}", case.last());
    }
    // The second command on one handle is refused.
    let ran = case.run("bash", "exec 3>undo; echo 3 >&3 && echo 2 >&3");
    assert!(ran.stderr.contains("Invalid argument"), "{}", ran.stderr);
    assert_eq!(case.turns(), 3);
}

#[test]
fn opening_truncating_and_touching_never_act() {
    let case = Case::new();
    let before = case.snapshot();
    for script in [
        ": > undo",
        ": >> undo",
        "touch undo fork redo",
        "truncate -s0 undo",
        "printf '' > undo",
        "printf '\\n' > undo",
        "echo > fork",
        "cat undo > /dev/null",
        "cat fork",
        "exec 3<>undo; exec 3>&-",
    ] {
        for shell in ["bash", "dash"] {
            let ran = case.run(shell, script);
            assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{shell}: {script}");
            assert!(case.snapshot() == before, "{shell}: {script} changed the store");
        }
    }
}

#[test]
fn nothing_else_can_change_anything() {
    let case = Case::new();
    let before = case.snapshot();
    let top = case.mount.path.display();
    for script in [
        format!("rm -rf {top}/*"),
        "rm -f turns/000".into(),
        "rm -rf turns".into(),
        "mkdir new".into(),
        "rmdir turns".into(),
        "mv turns/000 turns/009".into(),
        "mv turns/000 \"$HOME/x\"".into(),
        "ln turns/000 hard".into(),
        "ln -s turns soft".into(),
        "echo x > new".into(),
        "echo x > turns/000".into(),
        "echo x >> turns/000".into(),
        "chmod 600 turns/000".into(),
        "chmod 777 undo".into(),
        "truncate -s0 turns/000".into(),
        "truncate -s10 undo".into(),
        "touch -d 2001-01-01 turns/000".into(),
        "mknod pipe p".into(),
        "dd if=/dev/zero of=meta.json count=1".into(),
        "echo x > status".into(),
        "vi -es -c 'normal ix' -c 'wq!' turns/000 < /dev/null".into(),
    ] {
        let ran = case.run("bash", &script);
        assert_ne!(ran.code, 0, "{script} succeeded");
        assert_ne!(ran.code, 99);
        assert!(case.snapshot() == before, "{script} changed the store");
        assert_eq!(case.turns(), 4, "{script}");
    }
}

#[test]
fn a_read_only_mount_refuses_the_open_and_shows_everything() {
    let case = Case::with(&["--read-only"]);
    let before = case.snapshot();
    for (shell, script) in [("bash", "echo 1 > undo"), ("dash", "echo 1 > fork"), ("zsh", "echo last > redo")]
    {
        let ran = case.run(shell, script);
        assert_ne!(ran.code, 0, "{script}");
        assert!(ran.stderr.to_lowercase().contains("read-only"), "{script}: {}", ran.stderr);
    }
    assert!(case.run("sh", "cat undo").ok().contains("exact"));
    assert_eq!(case.turns(), 4);
    assert!(case.snapshot() == before);
}

#[test]
fn undos_stack_and_what_they_removed_stays_readable() {
    let case = Case::new();
    let before = case.snapshot();
    let third = case.run("sh", "cat turns/003").ok();
    case.run("sh", "echo 3 > undo").ok();
    case.run("sh", "echo 1 > undo").ok();
    assert_eq!(case.turns(), 1);
    assert_eq!(case.run("sh", "ls undone/1/turns").ok(), "003\n");
    assert_eq!(case.run("sh", "ls undone/2/turns").ok(), "001\n002\n");
    assert_eq!(case.run("sh", "cat undone/1/turns/003").ok(), third);
    // The older one cannot come back before the newer one.
    assert!(case.run("bash", "echo 1 > redo").stderr.contains("Stale file handle"));
    case.run("sh", "echo last > redo").ok();
    case.run("sh", "echo 1 > redo").ok();
    assert!(case.snapshot() == before);
    assert_eq!(case.run("sh", "ls undone 2>/dev/null | wc -l").ok().trim(), "0");
}
