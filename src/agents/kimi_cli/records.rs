//! The records of a wire and of a context file, reduced to what decides turns and boundaries.
//!
//! Texts are reduced to [`TextKey`]s, so that a session of any size can be aligned in bounded memory.

use jiff::Timestamp;

/// A text, comparable without being kept: a hash of the whole and its first characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct TextKey {
    /// xxh3 (128 bits) of the whole text.
    pub hash: u128,
    /// The first [`TextKey::HEAD_CHARS`] characters, for the prefixes that the client itself writes.
    pub head: String,
}

impl TextKey {
    /// Longer than every prefix that the client writes (`kimi-cli.md`, section 2.1).
    pub const HEAD_CHARS: usize = 160;
}

/// A line of wire.jsonl.
#[derive(Clone, Debug)]
pub struct WireLine {
    /// Line, counted from 1.
    pub line: u64,
    /// Byte offset of the line's start.
    pub start: u64,
    /// Byte offset behind its newline.
    pub end: u64,
    pub time: Option<Timestamp>,
    pub event: WireEvent,
}

/// What a wire line says. Source: stores/kimi-cli.md, sections 2.2 and 4.2.
#[derive(Clone, Debug, PartialEq)]
pub enum WireEvent {
    /// The first line, or another one without a message.
    Metadata,
    /// `text`: the extracted text; `command`: the slash command's name if the stripped text begins with one.
    TurnBegin {
        text: TextKey,
        command: Option<String>,
    },
    TurnEnd,
    StepBegin {
        n: i64,
    },
    StepInterrupted,
    CompactionBegin,
    CompactionEnd,
    SteerInput {
        text: TextKey,
    },
    /// A text part of the reply. The text itself is needed only to be joined with its neighbours.
    Text {
        text: String,
    },
    /// A part that is not text (thinking, image).
    OtherPart,
    ToolCall {
        id: String,
        dmail_checkpoint: Option<i64>,
    },
    ToolResult {
        id: String,
        is_error: bool,
    },
    /// Notification, SubagentEvent, StatusUpdate, StepRetry, Hook*, MCPLoading*: no effect on steps.
    Silent,
    /// Any other type, known or not: ends the pending step's wait.
    Other,
    /// Not a valid record; skipped.
    Invalid,
}

/// A line of a context file.
#[derive(Clone, Debug)]
pub struct ContextLine {
    pub start: u64,
    pub end: u64,
    pub record: ContextRecord,
}

/// What a context line says. Source: stores/kimi-cli.md, section 2.1.
#[derive(Clone, Debug, PartialEq)]
pub enum ContextRecord {
    SystemPrompt,
    Checkpoint {
        id: i64,
    },
    Usage,
    User {
        text: TextKey,
    },
    /// `text`: of its text parts; `None` if it has none.
    Assistant {
        text: Option<TextKey>,
        tool_calls: Vec<String>,
    },
    Tool {
        call: String,
    },
    /// A role that turnfs does not know.
    Other,
    /// Not a valid record; skipped.
    Invalid,
}

/// A context file, in the order of the epochs: context_1.jsonl, ..., context.jsonl.
#[derive(Clone, Debug)]
pub struct ContextFile {
    /// File name in the session's directory.
    pub name: String,
    pub lines: Vec<ContextLine>,
}
