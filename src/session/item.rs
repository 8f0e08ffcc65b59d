//! What a turn consists of, for rendering.

use std::borrow::Cow;

use jiff::Timestamp;

use super::action::{Asked, Outcome};

/// One thing that happened in a turn, borrowed from the record it stands in.
#[derive(Clone, Debug, PartialEq)]
pub enum Item<'a> {
    /// The prompt (or a nested prompt, for flows).
    User {
        text: Cow<'a, str>,
    },
    /// Text that the user sent while the turn was running.
    Steer {
        text: Cow<'a, str>,
    },
    Assistant {
        text: Cow<'a, str>,
    },
    Thinking {
        text: Cow<'a, str>,
    },
    ToolCall {
        name: Cow<'a, str>,
        id: Cow<'a, str>,
        asked: Asked<'a>,
    },
    ToolResult {
        id: Cow<'a, str>,
        output: Cow<'a, str>,
        outcome: Outcome<'a>,
    },
    /// Somebody stopped the model here; with what is said about it.
    Interrupted {
        text: Cow<'a, str>,
    },
    /// The history was compacted here; the summary where it is known.
    Compaction {
        text: Cow<'a, str>,
    },
    /// Something the harness or the agent said: a notification, a hook, a retry, an error.
    Notice {
        kind: Cow<'a, str>,
        text: Cow<'a, str>,
    },
    /// An image or another blob, shown as one line.
    Blob {
        media_type: Cow<'a, str>,
        bytes: u64,
        /// Its content where the record holds that; empty where it does not.
        base64: Cow<'a, str>,
    },
    /// A record of a type that turnfs does not know, kept and shown as such.
    Unknown {
        kind: Cow<'a, str>,
        json: Cow<'a, str>,
    },
}

/// Where a record's items go, with the time of the record where it has one.
pub type ItemSink<'s> = dyn FnMut(Option<Timestamp>, Item<'_>) + 's;
