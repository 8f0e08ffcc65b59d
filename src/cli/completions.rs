//! `turnfs completions`.

use std::io::Write;

use clap::CommandFactory as _;

use super::args::{Cli, CompletionsArgs};
use super::exit::{Exit, Failure};

pub fn run(args: &CompletionsArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    // The generator panics when it cannot write, so it writes into memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "turnfs", &mut script);
    out.write_all(&script)?;
    Ok(Exit::Done)
}
