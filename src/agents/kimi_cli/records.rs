//! The records of a wire and of a context file, reduced to what decides turns and boundaries.
//!
//! Texts are reduced to [`TextKey`]s, so that a session of any size can be aligned in bounded memory.

use std::sync::Arc;

use jiff::Timestamp;
use xxhash_rust::xxh3::xxh3_128;

/// A text, comparable without being kept: a hash of the whole and its first characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct TextKey {
    /// xxh3 (128 bits) of the whole text.
    pub hash: u128,
    /// The first [`TextKey::HEAD_CHARS`] characters, for the prefixes that the client itself writes.
    pub head: String,
}

impl TextKey {
    /// Longer than every prefix that the client writes (`docs/stores/kimi-cli.md`, "2.1 context.jsonl").
    pub const HEAD_CHARS: usize = 160;

    /// The key of a whole text.
    pub fn of(text: &str) -> TextKey {
        let head = match text.char_indices().nth(TextKey::HEAD_CHARS) {
            Some((end, _)) => &text[..end],
            None => text,
        };
        TextKey { hash: xxh3_128(text.as_bytes()), head: head.to_owned() }
    }

    /// Whether the text begins with a prefix that the client writes (at most `HEAD_CHARS` characters).
    pub fn starts_with(&self, prefix: &str) -> bool {
        self.head.starts_with(prefix)
    }

    pub fn is_empty(&self) -> bool {
        self.head.is_empty()
    }
}

/// A tool call's id, comparable without being kept.
pub fn call_key(id: &str) -> u128 {
    xxh3_128(id.as_bytes())
}

/// The name of the slash command that a user text calls: `/name` or `/a:b` at the start of the stripped
/// text, followed by a blank or the end. Letters, digits, `_` and `-` make a name; so `/etc/hosts is odd`
/// calls nothing.
pub fn slash_command(text: &str) -> Option<&str> {
    // The client strips as Python does, which also takes the four separators U+001C..U+001F for blanks.
    let blank = |c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c);
    let rest = text.trim_matches(blank).strip_prefix('/')?;
    let name = &rest[..rest.find(blank).unwrap_or(rest.len())];
    let is_name = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    };
    name.split(':').all(is_name).then_some(name)
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

/// What a wire line says. Facts: `docs/stores/kimi-cli.md`, "2.2 wire.jsonl" and "4.2 Wire to turns and
/// operations".
#[derive(Clone, Debug, PartialEq)]
pub enum WireEvent {
    /// The first line, or another one without a message. `ends`: in this protocol turns have a TurnEnd (1.2 and
    /// later).
    Metadata {
        ends: bool,
    },
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
    /// Any other type, known or not: says nothing about steps either (a question asked by the way can come
    /// between a step's begin and its compaction).
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

/// What a context line says. Facts: `docs/stores/kimi-cli.md`, "2.1 context.jsonl".
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
    /// `text`: of its text parts; `None` if it has none. `tool_calls`: the ids ([`call_key`]).
    Assistant {
        text: Option<TextKey>,
        tool_calls: Vec<u128>,
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
    pub lines: Arc<Vec<ContextLine>>,
}

impl ContextFile {
    /// The first valid record at line index `from` or behind it: its line index and the record.
    pub fn record_from(&self, from: usize) -> Option<(usize, &ContextRecord)> {
        let lines = self.lines.iter().enumerate().skip(from);
        lines.map(|(at, line)| (at, &line.record)).find(|(_, record)| **record != ContextRecord::Invalid)
    }

    /// The user record at line index `from` or behind it, if the first valid record there is one.
    pub fn user_from(&self, from: usize) -> Option<(usize, &TextKey)> {
        match self.record_from(from)? {
            (at, ContextRecord::User { text }) => Some((at, text)),
            _ => None,
        }
    }

    /// The checkpoints in file order: line index and id.
    pub fn checkpoints(&self) -> Vec<(usize, i64)> {
        let lines = self.lines.iter().enumerate();
        lines
            .filter_map(|(at, line)| match line.record {
                ContextRecord::Checkpoint { id } => Some((at, id)),
                _ => None,
            })
            .collect()
    }

    /// The line index behind the first `_usage` record: in an epoch that a compaction began, everything
    /// before it is the summary and copies of older messages.
    pub fn behind_first_usage(&self) -> Option<usize> {
        Some(self.lines.iter().position(|line| line.record == ContextRecord::Usage)? + 1)
    }

    /// The byte offset where line index `at` starts; the file's end (as far as it was read) if there is
    /// no such line.
    pub fn byte_of(&self, at: usize) -> u64 {
        match self.lines.get(at) {
            Some(line) => line.start,
            None => self.lines.last().map_or(0, |line| line.end),
        }
    }
}

/// The text that agents with the SendDMail tool write as a user record behind each checkpoint.
pub fn checkpoint_marker(id: i64) -> TextKey {
    TextKey::of(&format!("<system>CHECKPOINT {id}</system>"))
}

/// First part of the user record that begins an epoch after a compaction.
pub const COMPACTION_SUMMARY: &str = "<system>Previous context has been compacted";

/// User records that the client itself writes behind a step's checkpoint: never what a user typed as a
/// turn, unless the wire says so (print mode).
pub const INJECTED: [&str; 2] = ["<notification ", "<system-reminder>"];

/// Whether the client wrote this user record in the course of a step ([`INJECTED`]).
pub fn is_injected(text: &TextKey) -> bool {
    INJECTED.iter().any(|prefix| text.starts_with(prefix))
}

/// Other user records that the client writes and that are no turns, wherever they stand.
const NO_TURNS: [&str; 6] = [
    COMPACTION_SUMMARY,
    "<system>The user has added an additional directory",
    "<system>The user just ran `/init`",
    "<system>The user has imported context from",
    "<system>You just got a D-Mail",
    "<system>CHECKPOINT ",
];

/// Whether the client wrote this user record itself. Without a wire only the text tells.
pub fn is_the_clients_own(text: &TextKey) -> bool {
    is_injected(text) || NO_TURNS.iter().any(|prefix| text.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn a_slash_command_is_a_name_at_the_start_followed_by_a_blank_or_the_end() {
        let cases = [
            ("/clear", Some("clear")),
            ("  /compact now \n", Some("compact")),
            ("/skill:greet bob", Some("skill:greet")),
            ("/flow:a:b", Some("flow:a:b")),
            ("/add-dir\t/x", Some("add-dir")),
            ("/", None),
            ("/ clear", None),
            ("/etc/hosts is odd", None),
            ("/skill: x", None),
            ("/clear!", None),
            ("say /clear", None),
            ("", None),
        ];
        for (text, command) in cases {
            assert_eq!(slash_command(text), command, "{text:?}");
        }
    }

    #[test]
    fn long_texts_that_differ_only_at_their_end_have_different_keys() {
        let long = "é".repeat(TextKey::HEAD_CHARS);
        let (a, b) = (TextKey::of(&format!("{long}a")), TextKey::of(&format!("{long}b")));
        assert_eq!(a.head, b.head);
        assert_ne!(a, b);
    }
}
