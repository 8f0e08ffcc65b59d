//! What a walk over a wire finds: turns, and the operations that they made on the context.

use std::ops::Range;

use jiff::Timestamp;

use super::super::records::TextKey;
use crate::session::{TurnDetail, TurnStatus};

/// What a walk over a whole wire found.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    /// In the order of their TurnBegin records; the index is the turn's number.
    pub turns: Vec<WireTurn>,
    /// What the turns did to the context, in order.
    pub ops: Vec<Op>,
    /// What the steps said; [`OpKind::Run`] and [`OpKind::Step`] point here.
    pub steps: Vec<StepFacts>,
    /// Lines walked, valid or not.
    pub lines: u64,
    /// Byte offset behind the last line walked.
    pub end: u64,
    /// Lines that are no valid record.
    pub invalid: u64,
}

/// A turn of the wire.
#[derive(Clone, Debug)]
pub struct WireTurn {
    /// Line of its TurnBegin, counted from 1.
    pub line: u64,
    /// Byte offset of that line.
    pub start: u64,
    /// Its TurnEnd, where it has one.
    pub end: Option<TurnEnd>,
    pub started: Option<Timestamp>,
    /// Of the last record before the next turn's TurnBegin.
    pub last: Option<Timestamp>,
    pub text: TextKey,
    /// The slash command; only of turns that are not nested.
    pub command: Option<String>,
    /// Index of the outermost turn; a cut keeps or drops the whole group.
    pub group: u32,
    /// Begun inside another turn (/init, a flow's node, ralph mode).
    pub nested: bool,
    pub status: TurnStatus,
    /// `command`: a slash command without a model run; `open`: no TurnEnd.
    pub detail: Option<TurnDetail>,
}

/// The record that ends a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnEnd {
    /// Line, counted from 1.
    pub line: u64,
    /// Byte offset behind it.
    pub byte: u64,
    pub time: Option<Timestamp>,
}

/// One thing that a turn did to the context.
#[derive(Clone, Debug)]
pub struct Op {
    /// The turn's group; never decreases along the ops.
    pub group: u32,
    pub kind: OpKind,
}

/// The letters are those of `docs/stores/kimi-cli.md`, "4.2 Wire to turns and operations".
#[derive(Clone, Debug, PartialEq)]
pub enum OpKind {
    /// T: a run begins: one checkpoint and its user record. `text`: where the wire tells it.
    Run { text: Option<TextKey>, steps: Range<usize> },
    /// S: a step: one checkpoint.
    Step { step: usize },
    /// U: a steer: a user record without a checkpoint.
    Steer { text: TextKey },
    /// R, V: the context file was rotated and a new epoch began.
    NewEpoch(NewEpoch),
    /// R, perhaps: the client was killed in a compaction or a /clear, before or after the rotation. Only the
    /// context files tell.
    MaybeEpoch(NewEpoch),
    /// M: a turn that never reached a step; it may have left its checkpoint and user record, or nothing.
    Unanswered { text: TextKey },
    /// A: a command's own user record, without a checkpoint, that begins with this prefix.
    /// `sure`: that it is there was said in the wire.
    SideRecord { prefix: &'static str, sure: bool },
}

/// Why an epoch began; this decides where its checkpoint ids start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewEpoch {
    Compaction,
    Clear,
    /// A D-Mail sent the context back to this checkpoint.
    Revert {
        checkpoint: i64,
    },
}

/// What a step said, comparable with the context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepFacts {
    /// Hash of its text (of the parts joined by one space), as in [`TextKey::hash`]; `None` without text.
    pub text: Option<u128>,
    /// Hashes of its tool calls' ids ([`call_key`]).
    pub calls: Vec<u128>,
}
