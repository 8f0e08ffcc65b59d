//! What one pass over a session's files finds out.

use std::fmt;
use std::num::ParseIntError;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Confidence, Damage, Refusal, Tokens, Turn, TurnStatus};

/// The condition of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    Ok,
    /// A tail left by a crash or an append in progress; everything before it is readable.
    Torn,
    Damaged,
    Unsupported,
    /// The files are there and hold no turn.
    Empty,
    /// The session is known, its transcript is not there.
    NoTranscript,
    /// This user may not read it. Whether it is sound is not known.
    Unreadable,
}

impl State {
    /// What a session with these damages is: [`State::Ok`], [`State::Torn`] or [`State::Damaged`].
    pub fn of(damages: &[Damage]) -> State {
        match damages {
            [] => State::Ok,
            damages if damages.iter().all(|damage| damage.class.is_torn()) => State::Torn,
            _ => State::Damaged,
        }
    }

    /// What a session is whose files cannot be read for this reason.
    pub fn of_unread(why: &Refusal) -> State {
        match why {
            Refusal::NotFound { .. } => State::NoTranscript,
            why if why.is_unreadable() => State::Unreadable,
            Refusal::Unsupported { .. } | Refusal::NotFollowed { .. } => State::Unsupported,
            Refusal::Io { errno, .. } if Refusal::is_no_regular_file(*errno) => State::Unsupported,
            _ => State::Damaged,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Torn => "torn",
            State::Damaged => "damaged",
            State::Unsupported => "unsupported",
            State::Empty => "empty",
            State::NoTranscript => "no-transcript",
            State::Unreadable => "unreadable",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// xxh3 with 128 bits over a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FileHash(pub u128);

impl FileHash {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> FileHash {
        FileHash(xxhash_rust::xxh3::xxh3_128(bytes))
    }
}

impl From<FileHash> for String {
    fn from(hash: FileHash) -> String {
        hash.to_string()
    }
}

impl TryFrom<String> for FileHash {
    type Error = ParseIntError;

    fn try_from(text: String) -> Result<FileHash, ParseIntError> {
        u128::from_str_radix(&text, 16).map(FileHash)
    }
}

impl fmt::Display for FileHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A file as it was when the session was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileView {
    /// Relative to the store's root.
    pub file: PathBuf,
    /// Length, bytes; `None`: the file was not there, and that counted.
    pub len: Option<u64>,
    /// Of exactly `len` bytes; of no bytes where the file was not there.
    pub hash: FileHash,
}

/// What a file must hold after a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The file's name after the cut, relative to the store's root. For a fork the session's own part
    /// of the path is replaced by the new session's.
    pub file: PathBuf,
    /// The file that the bytes come from; equal to `file` unless an earlier one takes its place.
    pub source: PathBuf,
    /// Lines kept.
    pub lines: u64,
    /// Bytes kept: from the start of `source`, unless `rebuilt`.
    pub bytes: u64,
    /// The bytes are put together from pieces of `source` and of `file`.
    pub rebuilt: bool,
}

/// A true turn boundary: how to keep exactly the turns before it, in every file that the agent reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutPoint {
    pub confidence: Confidence,
    /// Every file that stays; the session's other history files go. Main transcript last.
    pub kept: Vec<Kept>,
    /// The first record that goes, where a store refers to it by number; `None` where it does not.
    pub at: Option<CutAt>,
}

/// The first record that a cut drops (or the end), as stores with numbered records refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutAt {
    /// The file that holds it, relative to the store's root.
    pub file: PathBuf,
    /// That file's id in the store.
    pub id: String,
    /// Byte offset in that file (uncompressed).
    pub byte: u64,
    /// The record's number, where the store has numbers.
    pub ordinal: Option<u64>,
}

/// The result of the one pass over a session's files. Listing, reading, plan, undo, fork and errors
/// all use this and never look at records themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    pub state: State,
    /// Everything found, torn tails too; the one that is shown is [`History::shown_damage`].
    pub damages: Vec<Damage>,
    /// The turns; of a damaged session those that can be told when bad lines are skipped.
    pub turns: Vec<Turn>,
    /// How many turns, from 0, end before the first damage; all of them in a sound session.
    pub sound_turns: u32,
    /// Cut points: entry `i` keeps the turns before turn `i` (and the rest of turn `i - 1`'s group);
    /// entry `turns.len()` keeps all. So `undo n` is entry `n`, `fork n` entry `n + 1`. The error says
    /// why that cut is refused. In a damaged session those that keep only sound turns are there too, for
    /// [`History::salvaged`].
    pub cuts: Vec<Result<CutPoint, Refusal>>,
    /// Facts for the user that are no damage ("2 rotated context files are missing").
    pub notes: Vec<String>,
    /// Every file that was read, main transcript first.
    pub files: Vec<FileView>,
    /// The bytes of the main transcript before turn 0.
    pub head_bytes: u64,
    /// The model named last in the transcript.
    pub model: Option<String>,
    /// The name given last in the transcript, where it records names.
    pub name: Option<String>,
    /// What the store still holds of turns that were left behind when the user went on from an earlier one; oldest first.
    pub branches: Vec<Branch>,
    /// Which of them this history is, if it is one ([`History::abandoned`]).
    pub branch: Option<u32>,
    /// The turn, with its number in the session, that this history is without, if it is one of those
    /// ([`History::without`]).
    pub left_out: Option<Box<Turn>>,
}

/// Turns that were left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// How many of the session's turns lead to it.
    pub shared: u32,
    /// Its own turns, numbered on from those.
    pub turns: Vec<Turn>,
}

impl History {
    /// The history of a session whose files are none that turnfs reads; `what` says why.
    pub fn unsupported(what: String, files: Vec<FileView>) -> History {
        History { notes: vec![what], ..History::without_turns(State::Unsupported, files) }
    }

    /// A history in which nothing was found yet.
    pub fn without_turns(state: State, files: Vec<FileView>) -> History {
        History {
            state,
            damages: Vec::new(),
            turns: Vec::new(),
            sound_turns: 0,
            cuts: Vec::new(),
            notes: Vec::new(),
            files,
            head_bytes: 0,
            model: None,
            name: None,
            branches: Vec::new(),
            branch: None,
            left_out: None,
        }
    }

    /// This history without turn `n`, to be forked: the turns behind it have numbers that are one less.
    ///
    /// # Errors
    /// [`Refusal::CannotCut`] if the turn belongs to a group; and as [`History::turn`].
    pub fn without(&self, n: u32) -> Result<History, Refusal> {
        let left_out = self.turn(n)?;
        if self.turns.iter().filter(|turn| turn.group == left_out.group).count() > 1 {
            let what = format!("turn {n} belongs to a group of turns, which stays or goes as a whole");
            return Err(Refusal::CannotCut { what, hint: None });
        }
        let one_less = |number: u32| if number > n { number - 1 } else { number };
        let others = self.turns.iter().filter(|turn| turn.n != n);
        let renumbered =
            |turn: &Turn| Turn { n: one_less(turn.n), group: one_less(turn.group), ..turn.clone() };
        // What keeps all up to the turn is not asked for.
        let cuts = self.cuts.iter().enumerate().filter(|(at, _)| *at != n as usize + 1);
        let cuts = cuts.map(|(_, cut)| cut.clone()).collect();
        Ok(History {
            turns: others.map(renumbered).collect(),
            sound_turns: one_less(self.sound_turns),
            cuts,
            left_out: Some(Box::new(left_out.clone())),
            ..self.clone()
        })
    }

    /// An abandoned branch (from 1) as a history that can be forked: the turns that lead to it, and its own.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] if there is no such branch; and as [`History::readable`].
    pub fn abandoned(&self, number: u32) -> Result<History, Refusal> {
        let branch = self.abandoned_turns(number)?;
        let shared = self.turns.iter().take(branch.shared as usize);
        let turns: Vec<Turn> = shared.chain(&branch.turns).cloned().collect();
        let point = CutPoint { confidence: Confidence::Exact, kept: Vec::new(), at: None };
        Ok(History {
            sound_turns: turns.len() as u32,
            cuts: vec![Ok(point); turns.len() + 1],
            turns,
            branch: number.checked_sub(1),
            ..self.clone()
        })
    }

    /// An abandoned branch (from 1).
    ///
    /// # Errors
    /// As [`History::abandoned`].
    pub fn abandoned_turns(&self, number: u32) -> Result<&Branch, Refusal> {
        self.readable()?;
        let branch = number.checked_sub(1).and_then(|index| self.branches.get(index as usize));
        branch.ok_or_else(|| Refusal::NotFound { what: format!("the branch abandoned/{number}") })
    }

    /// The turns of a damaged session that end before the first damage, as a history that can be forked: what
    /// `rescue` makes a session of. Undoing in it is not possible, for its files are the damaged ones.
    ///
    /// # Errors
    /// [`Refusal::NothingToRescue`] where nothing is damaged, or no turn ends before the damage; and as
    /// [`History::readable`] where the format is not known.
    pub fn salvaged(&self) -> Result<History, Refusal> {
        let damage = match self.readable() {
            Err(Refusal::Damaged { damage }) => damage,
            Err(other) => return Err(other),
            Ok(()) => {
                let why = "this session is not damaged".into();
                return Err(Refusal::NothingToRescue { why, hint: Some("use `fork`".into()) });
            }
        };
        let sound = self.sound();
        if sound.is_empty() {
            let why =
                format!("no turn ends before the damage ({}), so there is nothing to rescue", damage.brief());
            return Err(Refusal::NothingToRescue { why, hint: Some(damage.class.remedy().into()) });
        }
        Ok(History {
            state: State::Ok,
            damages: Vec::new(),
            turns: sound.to_vec(),
            cuts: self.cuts.get(..=sound.len()).unwrap_or(&self.cuts).to_vec(),
            ..self.clone()
        })
    }

    /// The turns that end before the first damage.
    pub fn sound(&self) -> &[Turn] {
        &self.turns[..(self.sound_turns as usize).min(self.turns.len())]
    }

    /// The damage to name where one is named: what refuses the turns, else a torn tail.
    pub fn shown_damage(&self) -> Option<&Damage> {
        self.decisive_damage().or_else(|| self.damages.first())
    }

    fn decisive_damage(&self) -> Option<&Damage> {
        self.damages.iter().find(|damage| !damage.class.is_torn())
    }

    /// Refuses if the turns must not be shown.
    ///
    /// # Errors
    /// [`Refusal::Damaged`] or [`Refusal::Unsupported`].
    pub fn readable(&self) -> Result<(), Refusal> {
        match self.state {
            State::Damaged => Err(match self.decisive_damage() {
                Some(damage) => Refusal::Damaged { damage: damage.clone() },
                None => Refusal::Internal { what: "a damaged session without a damage".into() },
            }),
            State::Unsupported => Err(Refusal::Unsupported {
                what: self.notes.first().cloned().unwrap_or_else(|| "its format".into()),
            }),
            State::Ok | State::Torn | State::Empty | State::NoTranscript | State::Unreadable => Ok(()),
        }
    }

    /// The models that answered in its turns, each once, in the order of their first answers.
    pub fn models(&self) -> Vec<&str> {
        let mut models: Vec<&str> = Vec::new();
        for model in self.turns.iter().filter_map(|turn| turn.model.as_deref()) {
            if !models.contains(&model) {
                models.push(model);
            }
        }
        models
    }

    /// What all turns took; `None` where no turn tells.
    pub fn tokens(&self) -> Option<Tokens> {
        let mut sum = None;
        self.turns.iter().filter_map(|turn| turn.tokens.as_ref()).for_each(|tokens| tokens.add_to(&mut sum));
        sum.map(|sum| *sum)
    }

    /// The turn `n`.
    ///
    /// # Errors
    /// [`Refusal::NoSuchTurn`]; and as [`History::readable`].
    pub fn turn(&self, n: u32) -> Result<&Turn, Refusal> {
        self.readable()?;
        self.turns.get(n as usize).ok_or(Refusal::NoSuchTurn { asked: n, turns: self.turns.len() as u32 })
    }

    /// The cut point that keeps exactly the turns before `n` (`n` may be the number of turns).
    ///
    /// # Errors
    /// Why such a cut is refused.
    pub fn cut_before(&self, n: u32) -> Result<&CutPoint, Refusal> {
        self.readable()?;
        match self.cuts.get(n as usize) {
            Some(Ok(point)) => Ok(point),
            Some(Err(refusal)) => Err(refusal.clone()),
            None => Err(Refusal::NoSuchTurn { asked: n, turns: self.turns.len() as u32 }),
        }
    }

    /// The cut point of `undo n`.
    ///
    /// # Errors
    /// As [`History::cut_before`]; and where `n` is in the middle of the last group, which stays as a whole.
    pub fn undo_point(&self, n: u32) -> Result<&CutPoint, Refusal> {
        let group = self.turn(n)?.group;
        let point = self.cut_before(n)?;
        if self.turns_kept(n) as usize >= self.turns.len() {
            return Err(Refusal::InsideGroup { asked: n, group });
        }
        Ok(point)
    }

    /// How sure the boundary before turn `n` is, where `undo n` would cut. A cut that is refused for
    /// another reason than its boundary (a group, a running turn) has a sure one.
    pub fn boundary(&self, n: u32) -> Confidence {
        match self.cuts.get(n as usize) {
            Some(Ok(point)) => point.confidence,
            Some(Err(Refusal::Ambiguous { .. })) => Confidence::Ambiguous,
            Some(Err(Refusal::Lost { .. })) | None => Confidence::Lost,
            Some(Err(_)) => Confidence::Exact,
        }
    }

    /// The turns of the last group, if it has no end: somebody is at them now, or was killed in them. A
    /// group runs as a whole.
    pub fn open_end(&self) -> &[Turn] {
        let group = self.turns.last().map_or(0, |turn| turn.group);
        let from = self.turns.iter().position(|turn| turn.group == group).unwrap_or(0);
        let last = &self.turns[from..];
        if last.iter().any(Turn::is_open) { last } else { &[] }
    }

    /// Whether exactly these bytes were read from a file.
    pub fn has(&self, file: &Path, len: u64, hash: FileHash) -> bool {
        self.files.iter().any(|view| view.file == file && view.len == Some(len) && view.hash == hash)
    }

    /// The last turn that is not running: where a fork `last` is made.
    ///
    /// # Errors
    /// [`Refusal::StillRunning`] when there is none before the running one; [`Refusal::NoSuchTurn`] when
    /// there is none at all; and as [`History::readable`].
    pub fn last_finished(&self) -> Result<u32, Refusal> {
        self.readable()?;
        let open = self.open_end();
        let running = open.iter().any(|turn| turn.status == TurnStatus::Running);
        let finished = self.turns.len() - if running { open.len() } else { 0 };
        match (finished.checked_sub(1), open.first()) {
            (Some(last), _) => Ok(last as u32),
            (None, Some(turn)) => Err(Refusal::StillRunning { asked: turn.n, last_finished: None }),
            (None, None) => Err(Refusal::NoSuchTurn { asked: 0, turns: 0 }),
        }
    }

    /// A sentence for a cut before turn `n` that lies inside a group: which turns stay, and why; empty where
    /// `n` is a boundary of its own.
    pub fn what_stays(&self, n: u32) -> String {
        let kept = self.turns_kept(n);
        match self.turns.get(n as usize) {
            Some(turn) if kept == n + 1 => format!("turn {n} belongs to turn {} and stays", turn.group),
            Some(turn) if kept > n => {
                format!("turns {n} to {} belong to turn {} and stay", kept - 1, turn.group)
            }
            _ => String::new(),
        }
    }

    /// How many turns the cut point before turn `n` really keeps: `n`, or more where `n` lies inside a
    /// group, which is only kept or dropped as a whole.
    pub fn turns_kept(&self, n: u32) -> u32 {
        let n = n.min(self.turns.len() as u32);
        let Some(last_kept) = n.checked_sub(1).and_then(|last| self.turns.get(last as usize)) else {
            return 0;
        };
        let later = self.turns[n as usize..].iter();
        n + later.take_while(|turn| turn.group == last_kept.group).count() as u32
    }
}
