//! The command line, in one place: help, man pages and completions are made from these definitions.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use super::exit::Failure;
use crate::catalog::StoreOptions;
use crate::session::AgentKind;

/// Browse, undo and fork the conversations of coding agents as directories and files.
///
/// Every session is a directory, every turn a file. Turns are numbered from 0: `fork N` keeps the turns
/// up to and including N, `undo N` removes N and everything after it.
#[derive(Debug, Parser)]
#[command(name = "turnfs", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  turnfs mount                    all sessions of all projects at ~/turns
  ls ~/turns$PWD                  the sessions of this project
  cat ~/turns$PWD/latest/undo     what each cut would do, before doing it
  turnfs ls                       the same without a mount
  turnfs fork 1234abcd 3          a new session with the turns 0 to 3; prints its id

Exit codes: 0 done, 1 refused or failed (the reason is on stderr), 2 usage.";

#[derive(Debug, Subcommand)]
pub enum Command {
    Mount(MountArgs),
    Umount(UmountArgs),
    Ls(LsArgs),
    Show(ShowArgs),
    Search(SearchArgs),
    Undo(UndoArgs),
    Redo(RedoArgs),
    Fork(ForkArgs),
    Adopt(AdoptArgs),
    Check(CheckArgs),
    Rescue(RescueArgs),
    Prune(PruneArgs),
    Doctor(DoctorArgs),
    Service(ServiceArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Which stores to look at.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Stores")]
pub struct StoreArgs {
    /// Look for this agent's sessions in DIR instead of its usual place; repeatable, also for one agent
    #[arg(long = "store", value_name = "AGENT=DIR")]
    places: Vec<Place>,
    #[arg(long, alias = "agent", value_name = "LIST", value_delimiter = ',', help = agents_help())]
    agents: Vec<AgentKind>,
}

fn agents_help() -> String {
    format!(
        "Limit to these agents (comma-separated) [known: {}]",
        AgentKind::ALL.map(AgentKind::name).join(", ")
    )
}

impl StoreArgs {
    /// Refuses a named place that is not a directory: a search there would silently find nothing.
    ///
    /// # Errors
    /// Which one.
    pub fn must_exist(&self) -> Result<(), Failure> {
        for Place { agent, dir } in &self.places {
            let real = |dir: &Path| dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
            let same = |other: &&Place| other.agent == *agent && real(&other.dir) == real(dir);
            if self.places.iter().filter(same).count() > 1 {
                return Err(Failure::StoreTwice { agent: *agent, dir: dir.display().to_string() });
            }
            if !self.agents.is_empty() && !self.agents.contains(agent) {
                return Err(Failure::StoreNotWanted { agent: *agent });
            }
            if !dir.is_dir() {
                return Err(Failure::NoStoreAt { agent: *agent, dir: dir.display().to_string() });
            }
        }
        Ok(())
    }

    pub fn options(&self) -> StoreOptions {
        let places = self.places.iter().map(|place| (place.agent, place.dir.clone())).collect();
        StoreOptions { places, only: self.agents.clone() }
    }
}

impl StoreArgs {
    /// The same arguments again, in words that do not depend on the working directory.
    ///
    /// # Errors
    /// When there is no working directory, and a place is relative to it.
    pub fn words(&self) -> io::Result<Vec<OsString>> {
        let mut words = Vec::new();
        for Place { agent, dir } in &self.places {
            let mut place = OsString::from(format!("{agent}="));
            place.push(std::path::absolute(dir)?);
            words.extend(["--store".into(), place]);
        }
        if !self.agents.is_empty() {
            let names: Vec<&str> = self.agents.iter().map(|agent| agent.name()).collect();
            words.extend(["--agents".into(), names.join(",").into()]);
        }
        Ok(words)
    }
}

/// `AGENT=DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    agent: AgentKind,
    dir: PathBuf,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let (agent, dir) = text.split_once('=').ok_or("write AGENT=DIR, for example kimi-cli=/srv/kimi")?;
        if dir.is_empty() {
            return Err("the directory is missing after `=`".into());
        }
        Ok(Place { agent: agent.parse()?, dir: without_tilde(dir, std::env::home_dir().as_deref()) })
    }
}

/// Expands a tilde, which no shell does after `=`.
fn without_tilde(dir: &str, home: Option<&Path>) -> PathBuf {
    match (dir.strip_prefix('~'), home) {
        (Some(""), Some(home)) => home.into(),
        (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => dir.into(),
    }
}

/// A turn's number, or `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    Last,
    This(u32),
}

impl FromStr for Number {
    type Err = String;

    fn from_str(text: &str) -> Result<Number, String> {
        match text.trim() {
            "last" => Ok(Number::Last),
            digits if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map(Number::This).map_err(|_| "number too large".into())
            }
            _ => Err("write a number, or `last`".into()),
        }
    }
}

/// Show all sessions as directories
///
/// Returns when the mount answers; the daemon keeps running in the background. If turnfs is already mounted there with
/// the same options, prints a notice and exits 0; with other options, says which ones and exits 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  turnfs mount                         all projects at ~/turns
  turnfs mount --project . /mnt/app    the sessions of one project at /mnt/app
  turnfs mount -f --read-only /mnt/t   in the foreground; nothing can be changed")]
pub struct MountArgs {
    /// An empty directory; made if it is missing [default: ~/turns]
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: Option<PathBuf>,
    /// Only the sessions of this project, at the root of the mount
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub project: Option<PathBuf>,
    /// Stay in the foreground and log to stderr (RUST_LOG sets the level)
    #[arg(short, long)]
    pub foreground: bool,
    /// Refuse every undo, redo and fork through this mount
    #[arg(long)]
    pub read_only: bool,
    /// Let root access the mount too (needs `user_allow_other` in /etc/fuse.conf)
    #[arg(long, alias = "allow-other")]
    pub allow_root: bool,
    /// List prompts/, records/, raw/ and context.md too (they can always be reached by name)
    #[arg(long)]
    pub show_all: bool,
    #[command(flatten)]
    pub stores: StoreArgs,
    /// Report the start-up result on stdout (for the background start)
    #[arg(long, hide = true)]
    pub report: bool,
}

/// Unmount a turnfs mount, including a dead one ("Transport endpoint is not connected")
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  turnfs umount ~/turns")]
pub struct UmountArgs {
    /// The directory where turnfs is mounted
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
}

/// List the sessions of a project, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  turnfs ls                   the project in the working directory
  turnfs ls flaky login       the sessions of all projects with both words in their title
  turnfs ls --all --json      every session, for programs")]
pub struct LsArgs {
    /// The project's directory, or words that the titles of sessions of any project have [default: the working directory]
    #[arg(value_name = "DIR|WORD", value_hint = ValueHint::DirPath, conflicts_with = "all")]
    pub what: Vec<PathBuf>,
    /// The sessions of all projects
    #[arg(long)]
    pub all: bool,
    /// Print JSON: an array of {id, agent, project, name, title, created, updated, turns, state, writer, path}, and `archived` of Codex threads
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub stores: StoreArgs,
}

const SESSION_HELP: &str = "Full id, unique beginning or end of it (8 or more characters), directory name, words of its \
    title, `latest` (the newest session here), a sub-agent's id, or a path inside a mount";

const SHOW_HELP: &str = "Full id, unique beginning or end of it (8 or more characters), directory name, words of its \
    title, `latest`, a sub-agent's id, or a path inside a mount [default: latest]";

/// Show a turn, or the list of turns
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  turnfs show                               the turns of the newest session here
  turnfs show 1234abcd                      the list of turns
  turnfs show latest 3                      turn 3 of the newest session here
  turnfs show 'uploader retries'            the session with these words in its title
  turnfs show 1234abcd 3                    turn 3
  turnfs show ~/turns$PWD/latest last       the last turn of the newest session here
  turnfs show 1234abcd --undone 1           the turns that undo 1 removed
  turnfs show 1234abcd --abandoned 1        the turns of the first abandoned branch")]
pub struct ShowArgs {
    #[arg(help = SHOW_HELP)]
    pub session: Option<String>,
    /// The turn: a number from 0, or `last`
    pub n: Option<Number>,
    /// Show what this undo removed
    #[arg(long, value_name = "K")]
    pub undone: Option<u32>,
    /// Show this abandoned branch
    #[arg(long, value_name = "K", conflicts_with = "undone")]
    pub abandoned: Option<u32>,
    /// Print JSON: {id, agent, project, state, damage, turns}
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Find turns by words in their text
///
/// A turn is found if all words stand in it, and is shown with the line that has the most of them; the newest sessions
/// come first, in each the last turns. "..." is a phrase, whose blanks also stand for line ends. Upper and lower case only
/// differ if the query has an upper case letter. Searched is what `turnfs show` prints, with sub-agents and of
/// damaged sessions the turns before the damage; what was undone or abandoned is not.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  turnfs search flaky test                      turns with both words
  turnfs search '\"flaky test\" login'           a phrase and a word
  turnfs search --project . --json retry        of the project here, for programs
  turnfs search -- -x                           a word that begins with a dash

Exit codes: 0 found, 1 nothing found, 2 could not run, or found nothing and could not search everything.")]
pub struct SearchArgs {
    /// Words, and phrases in double quotes (which the shell must leave: '\"flaky test\"')
    #[arg(required = true, value_name = "QUERY")]
    pub query: Vec<String>,
    /// Only the sessions of this project
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub project: Option<PathBuf>,
    /// Print JSON: an array of {id, agent, project, turn, line, text}, and `parent` of a sub-agent's turns
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Remove turn N and everything after it
///
/// What is removed can be brought back with `turnfs redo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  turnfs undo 1234abcd 3 --dry-run    what would stay of each file
  turnfs undo 1234abcd 3              keeps the turns 0 to 2
  turnfs undo 1234abcd last           removes the last turn")]
pub struct UndoArgs {
    #[arg(help = SESSION_HELP)]
    pub session: String,
    /// The first turn to remove: a number from 0, or `last`
    pub n: Number,
    /// Change nothing; show what would be kept
    #[arg(long)]
    pub dry_run: bool,
    /// With --dry-run, print JSON: {n, keeps, drops, boundary, files}
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// Proceed even if an agent may have the session open
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Bring back what an undo removed, byte for byte
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  turnfs redo 1234abcd")]
pub struct RedoArgs {
    #[arg(help = SESSION_HELP)]
    pub session: String,
    /// The undo's number, or `last`
    #[arg(value_name = "K", default_value = "last")]
    pub number: Number,
    /// Proceed even if an agent may have the session open
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Make a new session with the turns 0 to N, and print its id
///
/// The session itself is not changed, and may be in use.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  turnfs fork 1234abcd 3                              prints the new id
  turnfs fork 1234abcd 3 --without 1                  the turns 0, 2 and 3
  turnfs fork 1234abcd --undone 1                     a session of what undo 1 removed
  turnfs fork 1234abcd --abandoned 1                  a session of an abandoned branch
  kimi --session $(turnfs fork 1234abcd last)         continues in a copy")]
pub struct ForkArgs {
    #[arg(help = SESSION_HELP)]
    pub session: String,
    /// The last turn to keep: a number from 0, or `last` (the last finished one)
    #[arg(required_unless_present_any = ["undone", "abandoned"])]
    pub n: Option<Number>,
    /// Fork the session as it was before this undo; N is one of the turns that it removed [default: the last finished one]
    #[arg(long, value_name = "K")]
    pub undone: Option<u32>,
    /// Fork this abandoned branch; N is one of its turns [default: its last one]
    #[arg(long, value_name = "K", conflicts_with = "undone")]
    pub abandoned: Option<u32>,
    /// Leave out this turn, as if it had never been; refused where what follows depends on it
    #[arg(long, value_name = "M", conflicts_with_all = ["undone", "abandoned"])]
    pub without: Option<u32>,
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Copy a moved project's sessions to its new path, and print the new ids
///
/// Each copy holds the whole session, and the agent finds it when it is started in NEW_DIR. The sessions of
/// OLD_DIR are not changed, and may be in use. A session that was copied there before is not copied again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  turnfs adopt ~/old/app ~/new/app --dry-run             what would be copied
  turnfs adopt ~/old/app ~/new/app                       all sessions; prints the new ids
  turnfs adopt ~/old/app ~/new/app --session 1234abcd    only this one

Refused if NEW_DIR is not a directory or belongs to another user, and if OLD_DIR still exists (--force).")]
pub struct AdoptArgs {
    /// The project's path as its sessions record it; it need not exist any more
    #[arg(value_name = "OLD_DIR", value_hint = ValueHint::DirPath)]
    pub old: PathBuf,
    /// Where the project is now
    #[arg(value_name = "NEW_DIR", value_hint = ValueHint::DirPath)]
    pub new: PathBuf,
    /// Only this session of OLD_DIR; repeatable
    #[arg(long = "session", value_name = "SESSION")]
    pub sessions: Vec<String>,
    /// Change nothing; show what would be copied
    #[arg(long)]
    pub dry_run: bool,
    /// Copy even if OLD_DIR still exists
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Read everything and report damage by file and line
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  turnfs check               the project in the working directory
  turnfs check 1234abcd      one session
  turnfs check --all --json  everything, for programs

Exit codes: 0 clean, 1 damage found, 2 could not run, or could not read everything.")]
pub struct CheckArgs {
    /// The project's directory, or a session as in `turnfs show` [default: the working directory]
    #[arg(value_name = "DIR|SESSION", value_hint = ValueHint::DirPath, conflicts_with = "all")]
    pub what: Option<PathBuf>,
    /// The sessions of all projects
    #[arg(long)]
    pub all: bool,
    /// Print JSON: an array of {id, agent, project, state, file, line, byte, class, message}
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Make a new session of a damaged one's turns before the damage, and print its id
///
/// The damaged session is not changed. Refused if no turn ends before the first damaged line.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  turnfs check                                   what is damaged, and where
  turnfs rescue 1234abcd                         prints the new id
  kimi --session $(turnfs rescue 1234abcd)       continues with what was rescued")]
pub struct RescueArgs {
    #[arg(help = SESSION_HELP)]
    pub session: String,
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Delete what old undos removed, so that it can no longer be read or redone
///
/// Also deletes, at any age, backups of sessions that their agent has since deleted. Archived sessions are kept.
/// Nothing else deletes these backups.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  turnfs prune --dry-run             what would go
  turnfs prune --older-than 30d")]
pub struct PruneArgs {
    /// Delete what is older than this: a number and a unit (s, min, h, d, w)
    #[arg(long, value_name = "AGE", default_value = "90d")]
    pub older_than: Age,
    /// Delete nothing; show what would go
    #[arg(long)]
    pub dry_run: bool,
}

/// A span of time, as `90d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age(pub Duration);

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Age, String> {
        let unreadable = |_| "write a number and a unit, for example 90d".to_owned();
        let span: jiff::Span = text.parse().map_err(unreadable)?;
        // Months and years have no fixed length.
        let days = jiff::SpanRelativeTo::days_are_24_hours();
        let duration = span.to_duration(days).map_err(unreadable)?;
        Ok(Age(Duration::try_from(duration).map_err(|_| "an age is not negative")?))
    }
}

/// Check this machine's setup and print a fix for each problem
///
/// Exit code 0 if a mount is possible, else 1.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Do what can be done without a risk: clear dead mounts, finish cuts that a crash left half done, and keep git out
    /// of mounts in its work trees
    #[arg(long)]
    pub fix: bool,
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Have all sessions mounted from login on, by systemd
#[derive(Debug, Args)]
pub struct ServiceArgs {
    #[command(subcommand)]
    pub command: ServiceCommand,
}

#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    Install(ServiceInstallArgs),
    /// Say whether the service is installed, runs and has mounted, and show the end of its log
    ///
    /// Exit code 0 if all is well, else 1.
    Status,
    /// Stop the service and delete its unit; nothing else is deleted
    Remove,
}

/// Write a systemd user unit, enable it, and start it
///
/// The unit is ~/.config/systemd/user/turnfs.service. Variables of this shell that say where stores are (CODEX_HOME,
/// CLAUDE_CONFIG_DIR and the like) are written into it, because systemd does not know them. If it is installed already,
/// only what differs is changed. Exit code 1 where there is no systemd, with a line for the shell's profile instead.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  turnfs service install                      all sessions at ~/turns
  turnfs service install --read-only ~/t      nothing can be changed through it
  turnfs service status
  turnfs service remove")]
pub struct ServiceInstallArgs {
    /// An empty directory; made if it is missing [default: ~/turns]
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: Option<PathBuf>,
    /// Only the sessions of this project, at the root of the mount
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub project: Option<PathBuf>,
    /// Refuse every undo, redo and fork through this mount
    #[arg(long)]
    pub read_only: bool,
    /// Let root access the mount too (needs `user_allow_other` in /etc/fuse.conf)
    #[arg(long)]
    pub allow_root: bool,
    /// List prompts/, records/, raw/ and context.md too (they can always be reached by name)
    #[arg(long)]
    pub show_all: bool,
    #[command(flatten)]
    pub stores: StoreArgs,
}

/// Print the completions for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  turnfs completions bash > ~/.local/share/bash-completion/completions/turnfs
  turnfs completions fish > ~/.config/fish/completions/turnfs.fish
  turnfs completions zsh > ~/.zfunc/_turnfs        (with ~/.zfunc in fpath)")]
pub struct CompletionsArgs {
    pub shell: Shell,
}

/// Print the manual page
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  turnfs man | man -l -\n  turnfs man mount | man -l -\n  turnfs man service install | man -l -"
)]
pub struct ManArgs {
    /// The command whose page to print
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[cfg(test)]
mod tests;
