//! A turn: one prompt and everything up to the next.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;

use super::Tokens;

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnStatus {
    Complete,
    Interrupted,
    Failed,
    Running,
}

impl TurnStatus {
    /// As in texts and machine output.
    pub fn name(self) -> &'static str {
        match self {
            TurnStatus::Complete => "complete",
            TurnStatus::Interrupted => "interrupted",
            TurnStatus::Failed => "failed",
            TurnStatus::Running => "running",
        }
    }
}

impl fmt::Display for TurnStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Finer than [`TurnStatus`] where the store tells more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnDetail {
    /// A command of the client's own, without a model run.
    Command,
    /// The record that ends a turn is not there.
    Open,
    /// A tool call has no result.
    OpenCalls,
    /// All tool calls have results, and the model's answer to them is not there.
    EndedInTool,
    /// Nothing stands behind the prompt.
    NoReply,
    /// Some of its records are no longer on disk.
    Lost,
}

impl TurnDetail {
    /// All of them.
    pub const ALL: [TurnDetail; 6] = [
        TurnDetail::Command,
        TurnDetail::Open,
        TurnDetail::OpenCalls,
        TurnDetail::EndedInTool,
        TurnDetail::NoReply,
        TurnDetail::Lost,
    ];

    /// As in texts and machine output.
    pub fn name(self) -> &'static str {
        match self {
            TurnDetail::Command => "command",
            TurnDetail::Open => "open",
            TurnDetail::OpenCalls => "open-calls",
            TurnDetail::EndedInTool => "ended-in-tool",
            TurnDetail::NoReply => "no-reply",
            TurnDetail::Lost => "lost",
        }
    }

    /// Whether it says that the turn's end is not there, though more could be written.
    fn is_open(self) -> bool {
        match self {
            TurnDetail::Open | TurnDetail::OpenCalls | TurnDetail::EndedInTool | TurnDetail::NoReply => true,
            TurnDetail::Command | TurnDetail::Lost => false,
        }
    }
}

impl fmt::Display for TurnDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How sure it is which records of every file belong to the turns before a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Confidence {
    /// Proved by counters on disk.
    Exact,
    /// Only one position fits best.
    Aligned,
    /// More than one position fits equally well: cuts refuse.
    Ambiguous,
    /// The records needed are no longer on disk: cuts refuse.
    Lost,
}

impl Confidence {
    /// As in texts and machine output.
    pub fn name(self) -> &'static str {
        match self {
            Confidence::Exact => "exact",
            Confidence::Aligned => "aligned",
            Confidence::Ambiguous => "ambiguous",
            Confidence::Lost => "lost",
        }
    }
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One turn of a session, as found in the one pass over its transcript.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Number in the whole history, from 0.
    pub n: u32,
    /// The user's text, where the turn has one; at most [`Turn::PROMPT_CHARS`] characters. The exact
    /// text comes from [`crate::agents::AgentStore::prompt`].
    pub prompt: Option<String>,
    pub status: TurnStatus,
    pub detail: Option<TurnDetail>,
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    /// The last record's time; the turn file's mtime.
    pub last: Option<Timestamp>,
    /// The transcript that holds the turn's records, relative to the store's root; the same for all
    /// turns where a store keeps a session in one file.
    pub file: Arc<Path>,
    /// The turn's bytes in `file`. Spans of neighbours in one file touch; the first starts where
    /// `head.jsonl` ends, the last ends with the file's last complete line.
    pub span: Range<u64>,
    /// Where the turn's bytes are not the one range `span` of `file` (which is empty then): all its ranges,
    /// in order. Else empty.
    pub pieces: Vec<Piece>,
    /// First line of the span, counted from 1.
    pub line: u64,
    /// The first turn of the group that a cut can only keep or drop as a whole; `n` if it stands alone.
    pub group: u32,
    /// The model that answered, the last one if there were several; as the store names it.
    pub model: Option<Arc<str>>,
    /// What its answers took, where the store tells that turn by turn.
    pub tokens: Option<Box<Tokens>>,
    /// Size of the rendered text, bytes.
    pub text_len: u64,
}

/// A range of bytes of one of a session's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Relative to the store's root.
    pub file: Arc<Path>,
    pub span: Range<u64>,
}

impl Turn {
    /// Whether the store holds no end of this turn: somebody is at it now, or was killed in it.
    pub fn is_open(&self) -> bool {
        self.detail.is_some_and(TurnDetail::is_open) || self.status == TurnStatus::Running
    }

    /// Longest prompt kept in memory, in characters.
    pub const PROMPT_CHARS: usize = 4096;

    /// Size of the turn's records, bytes.
    pub fn record_bytes(&self) -> u64 {
        self.ranges().map(|(_, span)| span.end - span.start).sum()
    }

    /// The ranges of bytes that, one behind the other, are the turn's records.
    pub fn ranges(&self) -> impl Iterator<Item = (&Path, Range<u64>)> {
        let whole = self.pieces.is_empty().then(|| (&*self.file, self.span.clone()));
        whole.into_iter().chain(self.pieces.iter().map(|piece| (&*piece.file, piece.span.clone())))
    }
}
