//! One line of a transcript. Facts: `docs/stores/claude-code.md`, "2. Records".
//!
//! Fields stay as they are spelled until somebody asks: of most lines only a few short ones are ever decoded. A field
//! of another type than the client writes counts as not there, as it does for the client.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::agents::json::{self, each_of};
use crate::session::{DamageClass, FileHash, Tokens, sum_of};
use crate::transcript::Format;

/// What the damage of a transcript says of the client.
pub(super) const TRANSCRIPT: Format =
    Format { is_record: |bytes| Record::parse(bytes).is_ok(), agent: client };

fn client(class: DamageClass) -> &'static str {
    match class {
        DamageClass::MissingNewline => "claude takes the first record only; a newline between them mends it",
        DamageClass::BadRecord => "claude skips it, or refuses the session",
        DamageClass::InvalidUtf8 => "claude shows U+FFFD there",
        DamageClass::NoFinalNewline | DamageClass::TornTail | DamageClass::NulTail => {
            "claude's next record would stand on the same line and be lost"
        }
        DamageClass::Bom => "claude reads it all the same",
        _ => "claude skips it, and loses all that came before if it was part of the conversation",
    }
}

/// What identifies a record: a hash of its uuid, which is any string.
pub(super) type Key = u128;

pub(super) fn key(uuid: &str) -> Key {
    FileHash::of(uuid.as_bytes()).0
}

/// A map of records. Their keys are hashes already: hashing them again took most of the time of building the tree.
pub(super) type KeyMap<V> = HashMap<Key, V, BuildHasherDefault<KeyHasher>>;

/// Takes a [`Key`] as its own hash.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A JSON value as it is spelled; an absent one and `null` are the same.
pub(super) type Raw<'a> = Option<&'a RawValue>;

/// The text of a JSON string; `None` of everything else.
pub(super) fn text<'a>(value: Raw<'a>) -> Option<Cow<'a, str>> {
    json::text(value?)
}

fn number(value: Raw<'_>) -> Option<u64> {
    value?.get().parse().ok()
}

fn flag(value: Raw<'_>) -> bool {
    value.is_some_and(|value| value.get() == "true")
}

/// A record.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record<'a> {
    #[serde(borrow, rename = "type")]
    kind: Raw<'a>,
    #[serde(borrow)]
    pub uuid: Raw<'a>,
    #[serde(borrow)]
    pub parent_uuid: Raw<'a>,
    #[serde(borrow)]
    pub logical_parent_uuid: Raw<'a>,
    #[serde(borrow)]
    is_sidechain: Raw<'a>,
    #[serde(borrow)]
    is_meta: Raw<'a>,
    #[serde(borrow)]
    is_compact_summary: Raw<'a>,
    #[serde(borrow)]
    is_visible_in_transcript_only: Raw<'a>,
    #[serde(borrow)]
    pub session_id: Raw<'a>,
    #[serde(borrow)]
    timestamp: Raw<'a>,
    #[serde(borrow)]
    pub cwd: Raw<'a>,
    #[serde(borrow)]
    pub git_branch: Raw<'a>,
    #[serde(borrow)]
    message: Raw<'a>,
    /// What is in `message`, and the blocks of its content.
    #[serde(skip)]
    pub said: Block<'a>,
    #[serde(skip)]
    pub blocks: Vec<Block<'a>>,
    #[serde(borrow)]
    tool_use_result: Raw<'a>,
    #[serde(borrow)]
    pub leaf_uuid: Raw<'a>,
    #[serde(borrow)]
    explicit: Raw<'a>,
    #[serde(borrow)]
    pub message_id: Raw<'a>,
    #[serde(borrow)]
    pub subtype: Raw<'a>,
    #[serde(borrow)]
    pub content: Raw<'a>,
    #[serde(borrow)]
    pub compact_metadata: Raw<'a>,
    #[serde(borrow)]
    pub attachment: Raw<'a>,
    #[serde(borrow)]
    pub custom_title: Raw<'a>,
    #[serde(borrow)]
    pub ai_title: Raw<'a>,
    #[serde(borrow)]
    pub summary: Raw<'a>,
    #[serde(borrow)]
    pub relocated_cwd: Raw<'a>,
    #[serde(borrow)]
    origin: Raw<'a>,
}

/// The message of a user or assistant record, or a block of its content.
#[derive(Clone, Copy, Deserialize, Default)]
pub(super) struct Block<'a> {
    #[serde(borrow, rename = "type")]
    pub kind: Raw<'a>,
    #[serde(borrow)]
    pub id: Raw<'a>,
    #[serde(borrow)]
    pub content: Raw<'a>,
    #[serde(borrow)]
    pub model: Raw<'a>,
    #[serde(borrow)]
    usage: Raw<'a>,
    #[serde(borrow)]
    pub text: Raw<'a>,
    #[serde(borrow)]
    pub thinking: Raw<'a>,
    #[serde(borrow)]
    pub name: Raw<'a>,
    #[serde(borrow)]
    pub input: Raw<'a>,
    #[serde(borrow)]
    pub tool_use_id: Raw<'a>,
    #[serde(borrow)]
    pub is_error: Raw<'a>,
    #[serde(borrow)]
    pub source: Raw<'a>,
}

/// Parts of an object.
macro_rules! objects {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident = $key:literal,)* })*) => { $(
        $(#[$doc])*
        #[derive(Deserialize, Default)]
        pub(super) struct $name<'a> { $(#[serde(borrow, rename = $key)] pub $field: Raw<'a>,)* }
    )* };
}

objects! {
    /// What a block shows that is no text.
    struct Source { kind = "type", media_type = "media_type", data = "data", }
    /// What an attachment adds to the conversation.
    struct Attachment {
        kind = "type", prompt = "prompt", mode = "commandMode", content = "content", error = "blockingError",
    }
    /// What is sent again out of the cache, or put into it, is not in `input`.
    struct Usage {
        input = "input_tokens", cache_creation = "cache_creation_input_tokens", cache_read = "cache_read_input_tokens",
        output = "output_tokens", details = "output_tokens_details",
    }
    struct OutputDetails { thinking = "thinking_tokens", }
    struct Origin { kind = "kind", }
    struct CompactMetadata { preserved = "preservedMessages", segment = "preservedSegment", }
    struct Preserved { anchor = "anchorUuid", uuids = "uuids", all = "allUuids", }
    struct Segment { tail = "tailUuid", }
}

/// The object that a value is, or one without fields.
pub(super) fn object<'a, T: Deserialize<'a> + Default>(value: Raw<'a>) -> T {
    value.and_then(|value| serde_json::from_str(value.get()).ok()).unwrap_or_default()
}

/// Which kind of record it is, as far as the conversation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    User,
    Assistant,
    Attachment,
    System,
    /// Older versions' `progress`, and types that turnfs does not know: a link of the chain at most.
    Link,
}

impl<'a> Record<'a> {
    /// # Errors
    /// What it is instead, as the end of a sentence; `None` of what is no JSON.
    pub fn parse(line: &'a [u8]) -> Result<Record<'a>, Option<&'static str>> {
        let json = simdutf8::basic::from_utf8(line).map_err(|_| None)?;
        let mut record: Record<'a> = serde_json::from_str(json).map_err(|error| {
            let data = error.classify() == serde_json::error::Category::Data;
            data.then_some("not an object")
        })?;
        let Some(kind) = text(record.kind) else { return Err(Some("a record without a type")) };
        let said = matches!(&*kind, "user" | "assistant");
        if said {
            if !record.message.is_some_and(|message| message.get().starts_with('{')) {
                return Err(Some("a record without its message"));
            }
            record.said = object(record.message);
            record.blocks = blocks(record.said.content);
        }
        Ok(record)
    }

    pub fn type_name(&self) -> Cow<'a, str> {
        text(self.kind).unwrap_or_default()
    }

    pub fn kind(&self) -> Kind {
        match &*self.type_name() {
            "user" => Kind::User,
            "assistant" => Kind::Assistant,
            "attachment" => Kind::Attachment,
            "system" => Kind::System,
            _ => Kind::Link,
        }
    }

    pub fn time(&self) -> Option<Timestamp> {
        text(self.timestamp)?.parse().ok()
    }

    pub fn is_sidechain(&self) -> bool {
        flag(self.is_sidechain)
    }

    pub fn is_meta(&self) -> bool {
        flag(self.is_meta)
    }

    pub fn is_summary(&self) -> bool {
        flag(self.is_compact_summary)
    }

    /// Whether a `last-prompt` names where the conversation ends, not only a record of the branch.
    pub fn is_explicit(&self) -> bool {
        flag(self.explicit)
    }

    pub fn is_boundary(&self) -> bool {
        self.kind() == Kind::System && text(self.subtype).as_deref() == Some("compact_boundary")
    }

    /// The model that answered; the client's own answers name none.
    pub fn model(&self) -> Option<Cow<'a, str>> {
        text(self.said.model).filter(|model| !model.starts_with('<'))
    }

    /// What the reply that this is a piece of took so far; of the client's own answers nothing.
    pub fn tokens(&self) -> Option<Tokens> {
        self.model()?;
        let usage: Usage<'_> = object(self.said.usage);
        let details: OutputDetails<'_> = object(usage.details);
        let sent = [usage.input, usage.cache_creation, usage.cache_read].map(number);
        let tokens = Tokens {
            input: sum_of(sent),
            cached: number(usage.cache_read),
            output: number(usage.output),
            reasoning: number(details.thinking),
        };
        Some(tokens).filter(|tokens| !tokens.is_empty())
    }

    /// Whether it looks like the beginning of a turn. A slash command is one only if the record behind it is
    /// the text that it was expanded to ([`Record::is_command`]).
    pub fn may_begin_turn(&self) -> bool {
        const NO_PROMPTS: [&str; 7] = [
            "[Request interrupted by user",
            "<local-command-stdout>",
            "<local-command-stderr>",
            "<local-command-caveat>",
            "<bash-stdout>",
            "<bash-stderr>",
            "<task-notification>",
        ];
        if self.kind() != Kind::User
            || self.is_meta()
            || self.is_summary()
            || flag(self.is_visible_in_transcript_only)
            || self.tool_use_result.is_some()
        {
            return false;
        }
        // What the client itself put in says so; older versions say nothing.
        let origin: Origin<'_> = object(self.origin);
        if text(origin.kind).is_some_and(|kind| kind != "human") {
            return false;
        }
        let (mut results, mut own) = (false, true);
        let mut first = true;
        self.blocks.iter().for_each(|block| {
            results |= text(block.kind).as_deref() == Some("tool_result");
            if let Some(text) = text(block.text)
                && std::mem::take(&mut first)
            {
                own = !NO_PROMPTS.iter().any(|mark| text.starts_with(mark));
            }
        });
        own && !results
    }

    /// Whether its text is a slash command.
    pub fn is_command(&self) -> bool {
        let text = self.prompt();
        text.starts_with("<command-name>") || text.starts_with("<command-message>")
    }

    /// The text of a user record: of several parts all of them, one below the other.
    pub fn prompt(&self) -> String {
        let mut all = String::new();
        self.blocks.iter().for_each(|block| {
            if let Some(text) = text(block.text) {
                if !all.is_empty() {
                    all.push('\n');
                }
                all.push_str(&text);
            }
        });
        all
    }

    /// The records before a boundary that the model is still sent.
    pub fn preserved(&self) -> super::lines::Preserved {
        let metadata: CompactMetadata<'_> = object(self.compact_metadata);
        let preserved: Preserved<'_> = object(metadata.preserved);
        let segment: Segment<'_> = object(metadata.segment);
        let key_of = |value| text(value).map(|uuid| key(&uuid));
        let mut uuids = Vec::new();
        if let Some(list) = preserved.uuids.or(preserved.all) {
            // What is no list preserves nothing.
            let _ = each_of(list, |uuid: &RawValue| uuids.extend(text(Some(uuid)).map(|uuid| key(&uuid))));
        }
        super::lines::Preserved {
            anchor: key_of(preserved.anchor),
            tail: key_of(segment.tail),
            records: uuids.into(),
        }
    }
}

/// The blocks of a content: a text, or a list. Content of another form is shown nowhere; the record stays what it is.
pub(super) fn blocks<'a>(content: Raw<'a>) -> Vec<Block<'a>> {
    let Some(content) = content else { return Vec::new() };
    if content.get().starts_with('"') {
        return vec![Block { text: Some(content), ..Block::default() }];
    }
    let mut blocks = Vec::new();
    if each_of(content, |block: Block<'a>| blocks.push(block)).is_err() {
        // Some are no objects, as nobody writes them.
        blocks.clear();
        let _ = each_of(content, |block: &'a RawValue| blocks.push(object(Some(block))));
    }
    blocks
}
