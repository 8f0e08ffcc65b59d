//! `turnfs man`.

use std::io::Write;

use clap::CommandFactory as _;

use super::args::{Cli, ManArgs};
use super::exit::{Exit, Failure};

pub fn run(args: &ManArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut cli = Cli::command();
    cli.build();
    let page = match &args.command {
        None => cli,
        Some(name) => match cli.find_subcommand(name) {
            Some(command) => command.clone(),
            None => return Err(Failure::UnknownCommand { name: name.clone() }),
        },
    };
    clap_mangen::Man::new(page).render(out)?;
    Ok(Exit::Done)
}
