//! The commands, each from its arguments to its exit code: the small ones in `commands`, each other in a file of its
//! own. `args` defines help, man page and completions; `session_arg` and `selection` turn what the user wrote into
//! sessions.

mod adopt;
mod args;
mod check;
mod commands;
mod doctor;
mod exit;
mod ls;
mod mount;
mod output;
mod safe_out;
mod search;
mod selection;
mod service;
mod session_arg;
mod show;
mod stores;
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
    // Cuts hold a lease on a transcript. The kernel sends SIGIO when a program waits for it, which would end this one.
    crate::host::sys::ignore_sigio();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way too, with exit code 0. It is not an error if the reader has gone.
            if !error.use_stderr() {
                let _ = error.print();
                return Exit::Done.into();
            }
            // It repeats what was written, which may come from a store: `turnfs show "$id"`.
            let _ = write!(io::stderr(), "{}", render::visible(&error.render().to_string()));
            return Exit::NotRun.into();
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
            failure.hints().iter().for_each(|hint| output::hint(hint));
            // Of these two, 1 says what was found.
            let tells = matches!(cli.command, Command::Check(_) | Command::Search(_));
            if tells { Exit::NotRun.into() } else { Exit::Failed.into() }
        }
    }
}

fn dispatch<W: Write>(command: &Command, out: &mut SafeOut<W>) -> Result<Exit, Failure> {
    match command {
        Command::Mount(args) => mount::run(args, out),
        Command::Umount(args) => commands::umount(args),
        Command::Ls(args) => ls::run(args, out),
        Command::Show(args) => show::run(args, out),
        Command::Search(args) => search::run(args, out),
        Command::Undo(args) => undo::run(args, out),
        Command::Redo(args) => commands::redo(args, out),
        Command::Fork(args) => commands::fork(args, out),
        Command::Adopt(args) => adopt::run(args, out),
        Command::Check(args) => check::run(args, out),
        Command::Rescue(args) => commands::rescue(args, out),
        Command::Prune(args) => commands::prune(args, out),
        Command::Doctor(args) => doctor::run(args, out),
        Command::Service(args) => service::run(args, out),
        Command::Completions(args) => commands::completions(args, out),
        Command::Man(args) => commands::man(args, out),
    }
}

/// A daemon logs what it does, a command only what goes wrong, unless `RUST_LOG` sets another level.
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

/// A panic is one line in the log. It ends a command, and costs a daemon one answer.
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
