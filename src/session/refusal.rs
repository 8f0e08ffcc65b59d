//! Why something is refused: a sentence and hints for the user, an errno for the caller.

use std::path::{Path, PathBuf};

use super::{Damage, Writer};

pub use rustix::io::Errno;

/// The result of everything that can be refused.
pub type Result<T, E = Refusal> = std::result::Result<T, E>;

/// Why a read or a cut is refused. The message and the hints go to `status` and to stderr, the errno to the caller.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refusal {
    /// `what`: what is wrong with what was written to a control file.
    #[error("not a command: {what}")]
    NotACommand { what: String },
    /// `turns`: how many there are.
    #[error("{}", no_such_turn(*.asked, *.turns))]
    NoSuchTurn { asked: u32, turns: u32 },
    /// An undo of it would remove nothing: the turn belongs to those that begin with turn `group`.
    #[error(
        "turn {asked} is part of turn {group} and nothing follows them, so they can only be removed together"
    )]
    InsideGroup { asked: u32, group: u32 },
    /// `asked`: the undo's number, where one was named.
    #[error("nothing to redo: {}", match .asked { Some(n) => no_such_undo(*n), None => "no undo of this session is recorded".into() })]
    NothingToRedo { asked: Option<u32> },
    /// There is no such undo to fork from.
    #[error("{}", no_such_undo(*.asked))]
    NoSuchUndo { asked: u32 },
    /// A turn that an undo did not remove.
    #[error("undo {undo} did not remove turn {asked}")]
    NotInBranch { asked: u32, undo: u32, first: u32, last: u32 },
    /// A turn that is not one of an abandoned branch.
    #[error("the branch abandoned/{number} has the turns {first} to {last}, not turn {asked}")]
    NotAbandoned { asked: u32, number: u32, first: u32, last: u32 },
    /// An agent has the session open. `asked`: the turn, as it was written.
    #[error("{writer} has this session open")]
    Live { writer: Writer, asked: String },
    /// What `force` does not override.
    #[error("{writer} has this session open")]
    Locked { writer: Writer },
    /// Another session goes on from what would be cut off.
    #[error("{by} continues {file} behind this cut, so cutting it would break that session")]
    Needed { file: String, by: String },
    /// A fork would hold half a turn.
    #[error("turn {asked} is still running")]
    StillRunning { asked: u32, last_finished: Option<u32> },
    /// The store's own lock, or turnfs's for the session, was not free in time.
    #[error("{what} is locked by another program")]
    StoreLocked { what: String },
    /// What is read changes faster than it can be read.
    #[error("{what} changes too fast to be read")]
    NeverRests { what: String },
    /// Something else is there than what the caller decided on.
    #[error("{what} changed since this was opened")]
    Changed { what: String },
    /// As [`Refusal::Changed`], for a redo: the agent went on after undo `number`.
    #[error(
        "the session has gone on since undo {number} ({what} changed), so redo would lose what came after"
    )]
    MovedOn { what: String, number: u32 },
    /// A file of the store is not what its client writes.
    #[error("{damage}")]
    Damaged { damage: Damage },
    /// A form of a store that is not read.
    #[error("this version of turnfs does not support {what}, so the history is neither shown nor changed")]
    Unsupported { what: String },
    /// What can be read but not be cut. `what` and `hint` are whole sentences.
    #[error("{what}")]
    CannotCut { what: String, hint: Option<String> },
    /// More than one cut fits equally well.
    #[error(
        "the boundary after turn {asked} is ambiguous: {options}; nothing on disk tells which of them is right"
    )]
    Ambiguous { asked: String, options: String },
    /// The client has thrown away what the cut needs.
    #[error("cannot cut here: {what} is no longer on disk")]
    Lost { what: String, hint: Option<String> },
    /// A rescue would have no turns, or is not needed. `why` and `hint` are whole sentences.
    #[error("{why}")]
    NothingToRescue { why: String, hint: Option<String> },
    /// A session that its client does not know, or would not go on with.
    #[error("{what}, so this session is shown but cannot be changed")]
    ReadOnlySession { what: String },
    /// A write to a mount that was made read-only.
    #[error("this mount is read-only (mounted with --read-only)")]
    ReadOnlyMount,
    /// Every other change of the tree: names, modes, lengths.
    #[error("turnfs files cannot be changed this way")]
    NotPermitted,
    /// No session goes by `text`. `near`: what may have been meant, in whole sentences.
    #[error("no session matches {text:?}")]
    NoSuchSession { text: String, near: Vec<String> },
    /// Several sessions go by `text`. `which`: some of them; `give`: what tells them apart.
    #[error("{text:?} matches {count} sessions: {which}")]
    AmbiguousSession { text: String, count: usize, which: String, give: &'static str },
    /// There is no such session, file or name (any more).
    #[error("{what} does not exist")]
    NotFound { what: String },
    /// A system call failed; the caller gets its errno.
    #[error("{action} {}: {}", .path.display(), describe(*.errno))]
    Io { action: &'static str, path: PathBuf, errno: Errno },
    /// A compressed file of which no more is unpacked. `largest`: bytes.
    #[error(
        "{} unpacks to more than {ratio} times its size, or to more than {} GiB, so it is not read",
        .path.display(), .largest >> 30
    )]
    UnpacksTooLarge { path: PathBuf, ratio: u64, largest: u64 },
    /// A link in a store that leads where turnfs does not go. `why`: the end of a sentence that begins with "it".
    #[error("{} is a link that is not followed: {why}", .path.display())]
    NotFollowed { path: PathBuf, why: &'static str },
    /// Something of turnfs's own that another user may have put there, or that leads elsewhere. `why`: a predicate;
    /// `cure`: what to do, a whole sentence.
    #[error("{} {why}, so turnfs does not use it", .path.display())]
    NotPrivate { path: PathBuf, why: &'static str, cure: String },
    /// What was read after a cut is not what its plan said. A bug, here or in what is known of the store.
    #[error("after the cut, {what} was not what the plan promised; everything was put back")]
    NotAsPromised { what: String },
    /// A cut failed and taking it back did, too; its journal stays.
    #[error("{why}; putting everything back failed, too ({rolling_back})")]
    NotPutBack { why: Box<Refusal>, rolling_back: Box<Refusal> },
    /// A bug.
    #[error("internal error: {what}")]
    Internal { what: String },
}

impl Refusal {
    /// The errno that the caller of the system call sees.
    pub fn errno(&self) -> Errno {
        match self {
            Refusal::NotACommand { .. } => Errno::INVAL,
            Refusal::NoSuchTurn { .. }
            | Refusal::InsideGroup { .. }
            | Refusal::NothingToRedo { .. }
            | Refusal::NoSuchUndo { .. }
            | Refusal::NotInBranch { .. }
            | Refusal::NotAbandoned { .. } => Errno::RANGE,
            Refusal::Live { .. }
            | Refusal::Locked { .. }
            | Refusal::StillRunning { .. }
            | Refusal::Needed { .. } => Errno::BUSY,
            Refusal::StoreLocked { .. } | Refusal::NeverRests { .. } => Errno::AGAIN,
            Refusal::Changed { .. } | Refusal::MovedOn { .. } => Errno::STALE,
            Refusal::Damaged { .. } => Errno::UCLEAN,
            Refusal::Unsupported { .. } | Refusal::CannotCut { .. } => Errno::OPNOTSUPP,
            Refusal::NothingToRescue { .. } => Errno::NODATA,
            Refusal::Ambiguous { .. } => Errno::NOTUNIQ,
            Refusal::Lost { .. } => Errno::NODATA,
            Refusal::ReadOnlyMount | Refusal::ReadOnlySession { .. } => Errno::ROFS,
            Refusal::NotPermitted => Errno::PERM,
            Refusal::NotFound { .. } | Refusal::NoSuchSession { .. } => Errno::NOENT,
            Refusal::AmbiguousSession { .. } => Errno::NOTUNIQ,
            Refusal::UnpacksTooLarge { .. } => Errno::FBIG,
            Refusal::NotFollowed { .. } => Errno::LOOP,
            Refusal::NotPrivate { .. } => Errno::ACCESS,
            Refusal::Io { errno, .. } => *errno,
            Refusal::NotAsPromised { .. } | Refusal::NotPutBack { .. } | Refusal::Internal { .. } => {
                Errno::IO
            }
        }
    }

    /// What to do next: whole sentences, the most useful one first. Empty if the message says it all.
    pub fn hints(&self) -> Vec<String> {
        let one = |hint: &str| vec![hint.to_owned()];
        match self {
            Refusal::NotACommand { .. } => one("write one turn number, `last`, or (to undo) `force N`"),
            Refusal::InsideGroup { group, .. } => vec![format!("write {group}")],
            Refusal::NotInBranch { first, last, .. } => vec![format!(
                "write one of the turns that it removed, {first} to {last}; a fork keeps all turns before it, too"
            )],
            Refusal::NotAbandoned { .. } => one("use the session's own `fork` to keep fewer turns"),
            Refusal::Live { asked, .. } => vec![
                "close it first, or use `fork`".into(),
                format!("`force {asked}` (the option --force of the command) cuts all the same"),
            ],
            Refusal::Locked { .. } => one("close it first, or use `fork`"),
            Refusal::Needed { .. } => one("use `fork`"),
            Refusal::StillRunning { last_finished: Some(n), .. } => {
                vec![format!("fork at turn {n} or before, or wait until it has ended")]
            }
            Refusal::StillRunning { last_finished: None, .. } => one("wait until it has ended"),
            Refusal::StoreLocked { .. } => one("try again"),
            Refusal::NeverRests { .. } => one("try again when its agent is idle"),
            Refusal::Changed { .. } => one("look at the turns again and repeat the command"),
            Refusal::MovedOn { number, .. } => vec![
                format!("the removed turns can be read under undone/{number}/"),
                format!(
                    "make a session of them with `echo last > undone/{number}/fork` or `turnfs fork SESSION --undone {number}`"
                ),
            ],
            Refusal::Damaged { damage } => vec![
                damage.class.remedy().to_owned(),
                format!("raw/{} shows the file as it is", raw_name(damage)),
            ],
            Refusal::Ambiguous { .. } => one("choose another turn"),
            Refusal::CannotCut { hint, .. }
            | Refusal::Lost { hint, .. }
            | Refusal::NothingToRescue { hint, .. } => hint.iter().cloned().collect(),
            Refusal::NotPermitted => one("write a turn number to undo, redo or fork"),
            Refusal::NoSuchSession { near, .. } => {
                let give = "give an id, 8 or more characters of its start or end, a directory name, or words of its title (see `turnfs ls --all`)";
                near.iter().cloned().chain([give.to_owned()]).collect()
            }
            Refusal::AmbiguousSession { give, .. } => vec![format!("give {give}")],
            Refusal::NotPrivate { cure, .. } => vec![cure.clone()],
            Refusal::NotPutBack { .. } => one("the next command or mount of turnfs tries again"),
            Refusal::Internal { .. } => one("please report this"),
            Refusal::NoSuchTurn { .. }
            | Refusal::NothingToRedo { .. }
            | Refusal::NoSuchUndo { .. }
            | Refusal::Unsupported { .. }
            | Refusal::ReadOnlySession { .. }
            | Refusal::ReadOnlyMount
            | Refusal::NotFound { .. }
            | Refusal::Io { .. }
            | Refusal::UnpacksTooLarge { .. }
            | Refusal::NotFollowed { .. }
            | Refusal::NotAsPromised { .. } => Vec::new(),
        }
    }

    /// The message and the hints, in one line.
    pub fn in_one_line(&self) -> String {
        match self.hints().as_slice() {
            [] => self.to_string(),
            hints => format!("{self} (hint: {})", hints.join("; ")),
        }
    }

    /// What can be read but not be cut, and what to do instead: whole sentences.
    pub fn cannot_cut(what: impl Into<String>, hint: impl Into<String>) -> Refusal {
        Refusal::CannotCut { what: what.into(), hint: Some(hint.into()) }
    }

    /// Whether a file that could not be opened is there and is a link, a FIFO or the like, which turnfs does not open.
    pub fn is_no_regular_file(errno: Errno) -> bool {
        matches!(errno, Errno::LOOP | Errno::INVAL | Errno::ISDIR)
    }

    /// Whether this user may not read what is there.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Refusal::Io { errno: Errno::ACCESS | Errno::PERM, .. })
    }

    /// A failed system call on a file of the store or of turnfs's own state.
    pub fn io(action: &'static str, path: &Path, error: std::io::Error) -> Refusal {
        // io errors without an errno come from std itself (short writes, bad UTF-8): EIO is what they are.
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Refusal::Io { action, path: path.to_owned(), errno }
    }
}

fn no_such_turn(asked: u32, turns: u32) -> String {
    match turns.checked_sub(1) {
        Some(last) => format!("turn {asked} does not exist; the last turn is {last}"),
        None => format!("turn {asked} does not exist; this session has no turns"),
    }
}

fn no_such_undo(number: u32) -> String {
    format!("no undo of this session is recorded under the number {number}")
}

fn raw_name(damage: &Damage) -> &str {
    damage.file.rsplit('/').next().unwrap_or(&damage.file)
}

fn describe(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}
