//! `turnfs service`.

use std::ffi::OsString;
use std::io::Write;

use super::args::{ServiceArgs, ServiceCommand, ServiceInstallArgs};
use super::exit::{Exit, Failure};
use super::mount::default_mount_point;
use super::{output, selection};
use crate::daemon::Answer;
use crate::host::Environment;
use crate::service::{Installed, Removed, Service, Status, UnitFile, Wanted};
use crate::session::counted;

pub fn run(args: &ServiceArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let env = Environment::of_process();
    let service = Service::of(&env)?;
    match &args.command {
        ServiceCommand::Install(args) => {
            let wanted = wanted(args, &env)?;
            say_installed(&service.install(&env, &wanted)?, out)?;
            Ok(Exit::Done)
        }
        ServiceCommand::Status => {
            let status = service.status(&env)?;
            say_status(&status, out)?;
            Ok(if status.is_well() { Exit::Done } else { Exit::Failed })
        }
        ServiceCommand::Remove => {
            match service.remove()? {
                Removed::Removed { unit } => {
                    writeln!(out, "stopped and disabled turnfs.service; removed {}", output::path(&unit))?;
                }
                Removed::NotInstalled => writeln!(out, "the service is not installed; nothing to remove")?,
            }
            Ok(Exit::Done)
        }
    }
}

fn wanted(args: &ServiceInstallArgs, env: &Environment) -> Result<Wanted, Failure> {
    args.stores.must_exist()?;
    let given = args.mountpoint.clone().or_else(|| default_mount_point(env));
    let mount_point = given.ok_or(Failure::NoDefaultMountPoint)?;
    let program = std::env::current_exe().map_err(Failure::NoProgram)?;
    let flags =
        [(args.read_only, "--read-only"), (args.allow_root, "--allow-root"), (args.show_all, "--show-all")];
    let mut options: Vec<OsString> =
        flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.into()).collect();
    if let Some(dir) = &args.project {
        options.extend(["--project".into(), selection::as_given(Some(dir))?.into()]);
    }
    options.extend(args.stores.words().map_err(Failure::NoWorkingDirectory)?);
    Ok(Wanted { program, mount_point, options })
}

fn say_installed(done: &Installed, out: &mut dyn Write) -> Result<(), Failure> {
    let path = output::path(&done.mount_point);
    match done.written {
        true => writeln!(out, "wrote {}", output::path(&done.unit))?,
        false => writeln!(out, "{} is as it should be", output::path(&done.unit))?,
    }
    if !done.variables.is_empty() {
        writeln!(out, "set in it as they are here: {}", done.variables.join(", "))?;
    }
    if done.enabled {
        writeln!(out, "enabled turnfs.service: it starts when you log in")?;
    }
    if done.took_over {
        writeln!(out, "ended the mount that was at {path}, which the service takes over")?;
    }
    match done.started {
        true => writeln!(out, "started turnfs.service: mounted at {path}")?,
        false => writeln!(out, "turnfs.service runs already: mounted at {path}")?,
    }
    if done.enabled {
        writeln!(out, "to have it from boot on, without a login: loginctl enable-linger")?;
    }
    Ok(())
}

fn say_status(status: &Status, out: &mut dyn Write) -> Result<(), Failure> {
    let unit = output::path(&status.place);
    let installed = match (&status.file, &status.state) {
        (UnitFile::Ours { .. }, _) => format!("yes, {unit}"),
        (UnitFile::Foreign, _) => format!("yes, {unit}, not by `turnfs service install`"),
        (UnitFile::Absent, Ok(state)) if !state.file.is_empty() => {
            format!("not by this command; systemd has {}", state.file)
        }
        (UnitFile::Absent, _) => "no; `turnfs service install` does it".into(),
    };
    writeln!(out, "installed: {installed}")?;
    match &status.state {
        Ok(state) => {
            let enabled = if state.is_enabled() { "yes, starts at login" } else { "no" };
            writeln!(out, "enabled:   {enabled}")?;
            let mut running = match state.active.as_str() {
                "active" => format!("yes, since {}", state.since),
                "" | "inactive" => "no".into(),
                other => format!("no, {other}"),
            };
            if let Some(pid) = state.pid {
                running.push_str(&format!(", process {pid}"));
            }
            if state.restarts > 0 {
                let times = counted(u64::from(state.restarts), "time");
                running.push_str(&format!(", restarted {times} after failures"));
            }
            writeln!(out, "running:   {running}")?;
        }
        Err(failure) => writeln!(out, "running:   cannot tell: {failure}")?,
    }
    if let Some(mount_point) = &status.mount_point {
        let path = output::path(mount_point);
        let mounted = match status.answer {
            Some(Answer::Alive) => format!("yes, at {path}"),
            Some(Answer::Dead) => format!("a dead mount at {path}; `turnfs umount {path}` clears it"),
            Some(Answer::Silent) => format!("at {path}, but it does not answer"),
            Some(Answer::NotForUs) => format!("at {path}, by another user"),
            None => format!("no, nothing at {path}"),
        };
        writeln!(out, "mounted:   {mounted}")?;
    }
    if !status.log.is_empty() {
        writeln!(out, "log:")?;
        for line in &status.log {
            writeln!(out, "  {}", crate::render::one_line(line))?;
        }
    }
    Ok(())
}
