//! One file per command: arguments to exit code. Prints; asks no questions about formats.
//!
//! `args` has the definitions that help, man page and completions come from. `session_arg` and
//! `selection` turn what the user wrote into sessions.

mod adopt;
mod args;
mod check;
mod completions;
mod doctor;
mod exit;
mod fork;
mod ls;
mod man;
mod mount;
mod output;
mod prune;
mod redo;
mod rescue;
mod selection;
mod session_arg;
mod show;
mod stores;
mod umount;
mod undo;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::Parser as _;

use args::{Cli, Command};
use exit::{Exit, Failure};

/// Runs the command of this process's arguments.
pub fn run() -> ExitCode {
    ignore_sigio();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too, with exit code 0. A reader that has gone is no error.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() };
        }
    };
    start_log(&cli.command);
    let mut out = BufWriter::new(io::stdout().lock());
    let result = dispatch(&cli.command, &mut out).and_then(|exit| {
        out.flush()?;
        Ok(exit)
    });
    match result {
        Ok(exit) => exit.into(),
        // `turnfs ls | head -1` is not an error.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done.into(),
        Err(failure) => {
            // What was printed before the failure still counts.
            let _ = out.flush();
            output::complain(&failure.to_string());
            match cli.command {
                Command::Check(_) => Exit::CouldNotRun.into(),
                _ => Exit::Failed.into(),
            }
        }
    }
}

fn dispatch(command: &Command, out: &mut dyn Write) -> Result<Exit, Failure> {
    match command {
        Command::Mount(args) => mount::run(args, out),
        Command::Umount(args) => umount::run(args),
        Command::Ls(args) => ls::run(args, out),
        Command::Show(args) => show::run(args, out),
        Command::Undo(args) => undo::run(args, out),
        Command::Redo(args) => redo::run(args, out),
        Command::Fork(args) => fork::run(args, out),
        Command::Adopt(args) => adopt::run(args, out),
        Command::Check(args) => check::run(args, out),
        Command::Rescue(args) => rescue::run(args, out),
        Command::Prune(args) => prune::run(args, out),
        Command::Doctor(args) => doctor::run(args, out),
        Command::Completions(args) => completions::run(args, out),
        Command::Man(args) => man::run(args, out),
    }
}

/// A daemon tells what it does; a command only what goes wrong. `RUST_LOG` says otherwise.
fn start_log(command: &Command) {
    let usual =
        if matches!(command, Command::Mount(_)) { "info,fuser=warn,notify::inotify=off" } else { "warn" };
    let mut log = env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(usual));
    // Standard error may be a terminal or a file at any time: a daemon's becomes its log.
    log.write_style(env_logger::WriteStyle::Never);
    // What a store's names and texts hold must not reach a terminal as it is.
    log.format(|out, record| {
        let message = record.args().to_string();
        let (time, level, target) = (out.timestamp(), record.level(), record.target());
        writeln!(out, "[{time} {level:5} {target}] {}", crate::render::one_line(&message))
    });
    log.init();
}

/// Cuts hold a lease on a transcript; the kernel announces somebody who waits for it by SIGIO, and that
/// kills a process which has not said otherwise.
fn ignore_sigio() {
    crate::host::sys::ignore_sigio();
}
