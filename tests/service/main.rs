//! `turnfs service`, with a stand-in for systemctl that really runs the unit (no systemd runs where tests do), and
//! what systemd itself says of the unit.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::skipped::skipped;
use support::{Ran, TestStore, copy_tree, detach, is_mounted, run, samples_of};

/// A HOME whose user has a systemd.
struct Place {
    store: TestStore,
    fake: PathBuf,
    /// The default mount point.
    turns: PathBuf,
    unit: PathBuf,
}

impl Place {
    fn new() -> Place {
        let store = TestStore::from_sample("c-compact");
        let fake = store.home.parent().unwrap().join("systemd");
        fs::create_dir(&fake).unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/service/systemctl");
        for name in ["systemctl", "journalctl"] {
            fs::copy(&program, fake.join(name)).unwrap();
            fs::set_permissions(fake.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let turns = store.home.join("turns");
        let unit = store.home.join(".config/systemd/user/turnfs.service");
        Place { store, fake, turns, unit }
    }

    fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = self.store.command(&["service"]);
        let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", self.fake.display());
        command.args(args).env("PATH", path).env("FAKE", &self.fake).env("FAKE_HOME", &self.store.home);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    fn service<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        run(self.command(args))
    }

    /// What was asked of systemctl since the last call that would change anything.
    fn changes(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.fake.join("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.fake.join("calls"));
        let is_question = |call: &&str| call.starts_with("show");
        calls.lines().filter(|call| !is_question(call)).map(str::to_owned).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        detach(&self.turns);
        detach(&self.store.home.join("other"));
    }
}

const STARTED: [&str; 2] = ["reset-failed turnfs.service", "restart turnfs.service"];

#[test]
fn install_status_and_remove_do_what_they_say() {
    let place = Place::new();
    let status = place.service(&["status"]);
    assert_eq!(status.code, 1);
    assert!(status.stdout.contains("installed: no") && status.stdout.contains("running:   no"), "{status:?}");

    let said = place.service(&["install"]).ok();
    let unit = place.unit.display().to_string();
    assert!(said.contains(&format!("wrote {unit}")) && said.contains("started turnfs.service"), "{said}");
    assert!(said.contains("XDG_STATE_HOME"), "what of the environment is in the unit: {said}");
    let made = [&["daemon-reload", "enable turnfs.service"][..], &STARTED].concat();
    assert_eq!(place.changes(), made);
    let project = place.turns.join("home/dev/projects/work/c-compact");
    assert!(fs::read_to_string(project.join("latest/turns/000")).unwrap().contains("turn one"));

    let status = place.service(&["status"]).ok();
    for line in [
        &format!("installed: yes, {unit}"),
        "enabled:   yes",
        "running:   yes, since Thu 2026-12-03 10:00:00 UTC, process ",
        &format!("mounted:   yes, at {}", place.turns.display()),
        "is ready at ",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }

    place.changes();
    let again = place.service(&["install"]).ok();
    assert!(again.contains("is as it should be") && again.contains("runs already"), "{again}");
    assert_eq!(place.changes(), [""; 0], "nothing was left to do");

    let said = place.service(&["remove"]).ok();
    assert!(said.contains("stopped and disabled") && said.contains(&unit), "{said}");
    assert_eq!(
        place.changes(),
        ["disable --now turnfs.service", "daemon-reload", "reset-failed turnfs.service"]
    );
    assert!(!place.unit.exists() && !is_mounted(&place.turns) && !place.turns.exists());
    assert!(place.service(&["remove"]).ok().contains("nothing to remove"));
    assert_eq!(place.changes(), [""; 0]);
}

#[test]
fn another_mount_point_and_other_options_take_the_place_of_the_first_ones() {
    let place = Place::new();
    place.service(&["install"]).ok();
    place.changes();
    let other = place.store.home.join("other");
    place.service(&["install", "--read-only", "other"]).ok();
    assert_eq!(place.changes(), [&["daemon-reload"][..], &STARTED].concat());
    assert!(!is_mounted(&place.turns) && is_mounted(&other));
    let project = other.join("home/dev/projects/work/c-compact");
    let refused = place.store.sh(&format!("echo 1 > {}/latest/undo", project.display()));
    assert_ne!(refused.code, 0);
    assert!(place.service(&["status"]).ok().contains(&format!("yes, at {}", other.display())));
    place.service(&["remove"]).ok();
    assert!(!is_mounted(&other));
}

#[test]
fn a_store_that_only_the_shell_knows_is_shown_by_the_service() {
    let place = Place::new();
    let elsewhere = place.store.home.join("a \"b\" 100%");
    copy_tree(&samples_of("codex").join("a_plain4/store"), &elsewhere);
    let mut command = place.command(&["install"]);
    command.env("CODEX_HOME", &elsewhere).env("TZ", "Asia/Tokyo");
    let said = run(command).ok();
    assert!(said.contains("CODEX_HOME") && said.contains("TZ"), "{said}");
    let shown = fs::read_to_string(place.turns.join(".turnfs/options.json")).unwrap();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let codex = shown["stores"].as_array().unwrap().iter().find(|store| store["agent"] == "codex").unwrap();
    assert_eq!(codex["root"], elsewhere.to_str().unwrap());
    place.service(&["remove"]).ok();
}

#[test]
fn a_mount_made_by_hand_is_taken_over_and_a_killed_service_is_started_again() {
    let place = Place::new();
    place.store.run(&["mount"]).ok();
    let said = place.service(&["install"]).ok();
    assert!(said.contains("ended the mount that was at"), "{said}");
    let pid = || -> u32 { fs::read_to_string(place.fake.join("pid")).unwrap().trim().parse().unwrap() };
    let before = pid();
    support::signal(before, rustix::process::Signal::KILL);
    let start = std::time::Instant::now();
    while fs::metadata(&place.turns).is_ok() && start.elapsed().as_secs() < 20 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let status = place.service(&["status"]);
    assert!(status.code == 1 && status.stdout.contains("a dead mount at"), "{status:?}");
    let said = place.service(&["install"]).ok();
    assert!(said.contains("is as it should be") && said.contains("started"), "{said}");
    assert_ne!(pid(), before);
    assert!(place.turns.join("home").exists());
    place.service(&["remove"]).ok();
}

#[test]
fn a_unit_of_somebody_else_is_left_alone() {
    let place = Place::new();
    fs::create_dir_all(place.unit.parent().unwrap()).unwrap();
    let text = "[Service]\nExecStart=/bin/true\n";
    fs::write(&place.unit, text).unwrap();
    for verb in ["install", "remove"] {
        let said = place.service(&[verb]).refused();
        assert!(said.contains("was not written by") && said.contains("hint: move it away"), "{said}");
    }
    assert_eq!(fs::read_to_string(&place.unit).unwrap(), text);
    assert_eq!(place.changes(), [""; 0]);
    assert!(place.service(&["status"]).stdout.contains("not by `turnfs service install`"));
    // Masked.
    fs::remove_file(&place.unit).unwrap();
    std::os::unix::fs::symlink("/dev/null", &place.unit).unwrap();
    place.service(&["install"]).refused();
    assert_eq!(fs::read_link(&place.unit).unwrap(), Path::new("/dev/null"));
}

#[test]
fn a_service_that_cannot_start_says_why() {
    let place = Place::new();
    fs::create_dir(&place.turns).unwrap();
    fs::write(place.turns.join("file"), "").unwrap();
    let said = place.service(&["install"]).refused();
    assert!(said.contains("is not empty"), "{said}");
    assert!(said.contains("hint: ") && said.contains("turnfs service status"), "{said}");
    fs::remove_file(place.turns.join("file")).unwrap();
    assert!(place.service(&["install"]).ok().contains("started"));
    place.service(&["remove"]).ok();
    assert!(place.turns.exists(), "the user's own directory stays");
}

#[test]
fn without_a_systemd_it_says_what_to_do_instead_and_writes_nothing() {
    let place = Place::new();
    fs::write(place.fake.join("silent"), "").unwrap();
    let silent = place.service(&["install"]).refused();
    let mut command = place.command(&["install"]);
    command.env("PATH", "/nonexistent");
    let absent = run(command).refused();
    for said in [silent, absent] {
        let line = format!("mount {} >/dev/null` to ~/.profile", place.turns.display());
        assert!(said.contains(&line), "{said}");
    }
    assert!(!place.store.home.join(".config").exists() && !is_mounted(&place.turns));
    let status = place.service(&["status"]);
    assert!(status.code == 1 && status.stdout.contains("running:   cannot tell"), "{status:?}");
    assert!(place.service(&["remove"]).ok().contains("nothing to remove"));
    // What the hint says works, as often as one logs in.
    for _ in 0..2 {
        let line = format!("{} mount {} >/dev/null", env!("CARGO_BIN_EXE_turnfs"), place.turns.display());
        assert_eq!(place.store.sh(&line).ok(), "");
        assert!(is_mounted(&place.turns));
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    let place = Place::new();
    place.service(&["install", "--show-all", "--agents", "kimi-cli"]).ok();
    place.service(&["status"]).ok();
    let units = [place.unit.clone(), Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/turnfs.service")];
    for unit in units {
        let mut verify = place.store.program("systemd-analyze");
        verify.args(["verify", "--user", "--man=no"]).arg(&unit);
        verify.env("XDG_RUNTIME_DIR", place.store.dir.path());
        if Command::new("systemd-analyze").arg("--version").output().is_err() {
            return skipped("systemd-analyze is not installed");
        }
        let said = run(verify);
        // Of this unit only: whatever else is installed here is not ours to mend.
        let about: Vec<&str> = said.stderr.lines().filter(|line| line.contains("turnfs")).collect();
        let expected = |line: &&str| line.contains("/.cargo/bin/turnfs is not executable");
        assert!(about.iter().all(expected), "{}: {about:?}", unit.display());
    }
    place.service(&["remove"]).ok();
}
