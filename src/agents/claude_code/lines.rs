//! The records of a transcript, one a line: what turns, cuts and sizes need to know of each.

use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;

use super::items::{self, As};
use super::records::{Key, Kind, Raw, Record, key, text};
use crate::render::{self, Length};
use crate::session::{Tokens, Turn};
use crate::transcript;

/// A line of a transcript that holds a record.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Byte range: the line, and blank lines behind it.
    pub start: u64,
    pub end: u64,
    /// From 1.
    pub line: u64,
    pub time: Option<Timestamp>,
    /// Where the values of `uuid`, `sessionId` and `cwd` stand, bytes from `start`, without their quotes.
    pub uuid_at: Option<Range<u32>>,
    pub session_at: Option<Range<u32>>,
    pub cwd_at: Option<Range<u32>>,
    pub what: What,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    /// It has a uuid, so that others can follow it.
    Node(Node),
    /// The client's note of where the conversation ends. `explicit`: there, whatever follows that record.
    LastPrompt { leaf: Option<Key>, explicit: bool },
    /// It stands before a prompt and belongs to it: any prompt, or the one with this key.
    Lead(Option<Key>),
    /// The worktree that this very session is in: a fork is not in it.
    Worktree,
    /// The client's note that it moved the session to another project.
    Relocated,
    /// Only its place in the file counts.
    Other,
}

/// A record that others can follow.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub key: Key,
    pub parent: Option<Key>,
    /// What came before, where a compaction begins anew.
    pub logical: Option<Key>,
    pub kind: Kind,
    pub sidechain: bool,
    /// The client's own words to the model.
    pub meta: bool,
    pub may_begin_turn: bool,
    pub is_command: bool,
    pub is_boundary: bool,
    pub is_interrupt: bool,
    /// The client's note that the turn has ended.
    pub ends_turn: bool,
    /// It holds results of tools, or calls of them.
    pub has_results: bool,
    pub has_calls: bool,
    /// The reply that it is a piece of.
    pub reply: Option<Box<Reply>>,
    /// Of a boundary.
    pub preserved: Preserved,
    /// The beginning of its text, of what may begin a turn.
    pub prompt: Option<Box<str>>,
    /// Size of its text, bytes, shown as what it is in the middle of a turn and as a prompt.
    pub text_len: u64,
    pub prompt_len: u64,
}

/// A reply of the model's, as one of its pieces tells it.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    /// The same in all pieces.
    pub key: Option<Key>,
    pub model: Option<Arc<str>>,
    /// What it took up to this piece.
    pub tokens: Option<Tokens>,
}

impl Node {
    /// What the pieces of one reply have in common.
    pub fn reply_key(&self) -> Option<Key> {
        self.reply.as_ref()?.key
    }
}

/// The records before a compaction that the model is still sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Preserved {
    /// What they are sent behind: the summary, or the boundary itself, where the summary stands for what comes after them.
    pub anchor: Option<Key>,
    /// The last of them.
    pub tail: Option<Key>,
    pub records: Box<[Key]>,
}

impl Line {
    pub fn node(&self) -> Option<&Node> {
        match &self.what {
            What::Node(node) => Some(node),
            _ => None,
        }
    }

    pub fn of(line: &transcript::Line<'_>, record: &Record<'_>) -> Line {
        let place = |value: Raw<'_>| {
            let json = value?.get();
            let inner = json.strip_prefix('"')?.strip_suffix('"').filter(|inner| !inner.contains('\\'))?;
            let at = (inner.as_ptr() as usize).checked_sub(line.bytes.as_ptr() as usize)?;
            Some(u32::try_from(at).ok()?..u32::try_from(at + inner.len()).ok()?)
        };
        Line {
            start: line.start,
            end: line.end,
            line: line.number,
            time: record.time(),
            uuid_at: place(record.uuid),
            session_at: place(record.session_id),
            cwd_at: place(record.cwd),
            what: what(record, line.bytes),
        }
    }

    /// It begins at this byte, before the one where its record does.
    pub fn begin_at(&mut self, start: u64) {
        let more = u32::try_from(self.start - start);
        for place in [&mut self.uuid_at, &mut self.session_at, &mut self.cwd_at] {
            let moved = |at: Range<u32>| {
                let more = more.ok()?;
                Some(at.start.checked_add(more)?..at.end.checked_add(more)?)
            };
            *place = place.take().and_then(moved);
        }
        self.start = start;
    }

    /// Its reply shares the name of this model, if it is of that.
    pub fn share(&mut self, model: Option<&Arc<str>>) {
        if let What::Node(Node { reply: Some(reply), .. }) = &mut self.what
            && reply.model.as_ref() == model
        {
            reply.model = model.cloned();
        }
    }
}

fn what(record: &Record<'_>, line: &[u8]) -> What {
    let key_of = |value| text(value).map(|uuid| key(&uuid));
    if let Some(key) = key_of(record.uuid) {
        return What::Node(node(record, line, key));
    }
    match &*record.type_name() {
        "last-prompt" => What::LastPrompt { leaf: key_of(record.leaf_uuid), explicit: record.is_explicit() },
        "queue-operation" | "mode" | "permission-mode" => What::Lead(None),
        "worktree-state" => What::Worktree,
        "relocated" => What::Relocated,
        "file-history-snapshot" => key_of(record.message_id).map_or(What::Other, |key| What::Lead(Some(key))),
        _ => What::Other,
    }
}

fn node(record: &Record<'_>, line: &[u8], uuid: Key) -> Node {
    let key_of = |value| text(value).map(|uuid| key(&uuid));
    let length = |what| {
        let mut length = Length::default();
        items::of(record, line, what, &mut |item| render::item(&item, &mut length));
        length.0
    };
    let kind = record.kind();
    let (mut has_results, mut has_calls, mut is_interrupt) = (false, false, false);
    if matches!(kind, Kind::User | Kind::Assistant) {
        record.blocks.iter().for_each(|block| {
            match text(block.kind).as_deref() {
                Some("tool_result") => has_results = true,
                Some("tool_use") => has_calls = true,
                _ => {}
            }
            is_interrupt |= kind == Kind::User
                && text(block.text).is_some_and(|text| text.starts_with("[Request interrupted by user"));
        });
    }
    let may_begin_turn = record.may_begin_turn();
    let is_boundary = record.is_boundary();
    let text_len = length(As::Said);
    let prompt = |_| record.prompt().chars().take(Turn::PROMPT_CHARS).collect::<String>().into();
    Node {
        key: uuid,
        parent: key_of(record.parent_uuid),
        logical: key_of(record.logical_parent_uuid),
        kind,
        sidechain: record.is_sidechain(),
        meta: record.is_meta(),
        may_begin_turn,
        is_command: may_begin_turn && record.is_command(),
        is_boundary,
        is_interrupt,
        ends_turn: kind == Kind::System && text(record.subtype).as_deref() == Some("turn_duration"),
        has_results,
        has_calls,
        reply: (kind == Kind::Assistant).then(|| Box::new(reply(record))),
        preserved: if is_boundary { record.preserved() } else { Preserved::default() },
        prompt: may_begin_turn.then_some(()).map(prompt),
        text_len,
        prompt_len: if may_begin_turn { length(As::Prompt) } else { text_len },
    }
}

fn reply(record: &Record<'_>) -> Reply {
    Reply {
        key: text(record.said.id).map(|id| key(&id)),
        model: record.model().map(|named| Arc::from(&*named)),
        tokens: record.tokens(),
    }
}
