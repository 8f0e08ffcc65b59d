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
mod safe_out;
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
use safe_out::SafeOut;

use crate::daemon::{LogWriter, log_line};
use crate::render;

/// Runs the command of this process's arguments.
pub fn run() -> ExitCode {
    ignore_sigio();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too, with exit code 0. A reader that has gone is no error.
            if !error.use_stderr() {
                let _ = error.print();
                return Exit::Done.into();
            }
            // It repeats what was written, which may come from a store: `turnfs show "$id"`.
            let _ = write!(io::stderr(), "{}", render::visible(&error.render().to_string()));
            return Exit::Usage.into();
        }
    };
    start_log(&cli.command);
    say_panics_in_one_line();
    let mut out = SafeOut::new(BufWriter::new(io::stdout().lock()));
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
            output::warn(&failure.to_string());
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
    log.format(|out, record| {
        let (level, target) = (record.level(), record.target());
        writeln!(out, "[{} {level} {target}] {}", crate::session::now(), log_line(&record.args().to_string()))
    });
    // Standard error may be a terminal or a file at any time: a daemon's becomes its log.
    log.write_style(env_logger::WriteStyle::Never);
    log.target(env_logger::Target::Pipe(Box::new(LogWriter))).init();
}

/// A bug ends a command with a sentence; in a daemon it costs one answer, and stands in its log.
fn say_panics_in_one_line() {
    std::panic::set_hook(Box::new(|panic| {
        // With RUST_BACKTRACE there is more; it holds names of functions only.
        let trace = std::backtrace::Backtrace::capture();
        let more = match trace.status() {
            std::backtrace::BacktraceStatus::Captured => format!(": {trace}"),
            _ => String::new(),
        };
        log::error!("internal error: {panic}{more}; please report this");
    }));
}

/// Cuts hold a lease on a transcript; the kernel announces somebody who waits for it by SIGIO, and that
/// kills a process which has not said otherwise.
fn ignore_sigio() {
    crate::host::sys::ignore_sigio();
}
