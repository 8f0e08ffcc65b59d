//! A rollout's lines, reduced to what decides turns, texts and lineage; the rest stays untouched bytes.
//!
//! Facts: `docs/stores/codex.md`, "2. A line". Every struct borrows from the line; unknown keys are ignored
//! and unknown types are kept as such, as the client does.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::agents::json::each_of;
use crate::session::Tokens;

/// One line.
#[derive(Debug, Deserialize)]
pub struct Line<'a> {
    #[serde(borrow)]
    pub timestamp: Option<Cow<'a, str>>,
    pub ordinal: Option<u64>,
    #[serde(borrow, rename = "type")]
    pub kind: Cow<'a, str>,
    #[serde(borrow)]
    pub payload: &'a RawValue,
}

impl<'a> Line<'a> {
    /// `None` if the bytes are not exactly one record.
    pub fn parse(bytes: &'a [u8]) -> Option<Line<'a>> {
        let text = simdutf8::basic::from_utf8(bytes).ok()?;
        let line: Line<'a> = serde_json::from_str(text).ok()?;
        line.payload.get().starts_with('{').then_some(line)
    }

    pub fn time(&self) -> Option<Timestamp> {
        self.timestamp.as_ref()?.parse().ok()
    }

    /// The payload as `T`; `None` if it is not one.
    pub fn payload<T: Deserialize<'a>>(&self) -> Option<T> {
        serde_json::from_str(self.payload.get()).ok()
    }
}

/// A key that decides something is given twice. The client takes the last one, or skips the line; which of
/// both depends on its version, so such a line is damage.
#[derive(Debug)]
pub struct Twice;

/// A payload, parsed once for everybody who looks at the line.
#[derive(Debug)]
pub enum Body<'p> {
    Response(Response<'p>),
    /// With the item of `item_completed`.
    Event(Event<'p>, Option<CompletedItem<'p>>),
    Compacted(Compacted<'p>),
    Context(TurnContext<'p>),
    /// A kind of line that has nothing to look into, or a payload that is not what its line's kind says.
    Other,
}

impl<'p> Body<'p> {
    /// What `payload`, made readable, is in a line of this kind.
    ///
    /// # Errors
    /// [`Twice`].
    pub fn parse(kind: &str, payload: &'p str) -> Result<Body<'p>, Twice> {
        fn read<'p, T: Deserialize<'p>>(payload: &'p str) -> Result<Option<T>, Twice> {
            match serde_json::from_str(payload) {
                Ok(read) => Ok(Some(read)),
                Err(error) if is_twice(&error) => Err(Twice),
                Err(_) => Ok(None),
            }
        }
        Ok(match kind {
            "response_item" => read(payload)?.map(Body::Response),
            "event_msg" => match read::<Event<'p>>(payload)? {
                Some(event) => {
                    let item = event.item.filter(|_| event.kind == "item_completed");
                    let item = item.map(|item| read(item.get())).transpose()?.flatten();
                    Some(Body::Event(event, item))
                }
                None => None,
            },
            "compacted" => read(payload)?.map(Body::Compacted),
            "turn_context" => read(payload)?.map(Body::Context),
            _ => None,
        }
        .unwrap_or(Body::Other))
    }
}

fn is_twice(error: &serde_json::Error) -> bool {
    error.is_data() && error.to_string().starts_with("duplicate field")
}

/// The payload of `session_meta`.
#[derive(Debug, Default, Deserialize)]
pub struct Meta {
    pub id: String,
    pub forked_from_id: Option<String>,
    pub parent_thread_id: Option<String>,
    pub timestamp: Option<String>,
    pub cwd: Option<String>,
    pub git: Option<Value>,
    pub source: Option<Value>,
    pub agent_nickname: Option<String>,
    /// `null` is a value here, and not a known one.
    #[serde(default, deserialize_with = "present")]
    pub history_mode: Option<Value>,
    pub history_base: Option<HistoryBase>,
    /// Not in any file: it is a rollout of the first format, which has no such record.
    #[serde(skip)]
    pub first_format: bool,
}

/// Where a file's history begins: in another file, up to a byte and an ordinal.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct HistoryBase {
    /// The other file's rollout id (not its thread's).
    pub thread_id: String,
    #[serde(default)]
    pub end_ordinal_exclusive: u64,
    /// Bytes of the uncompressed file.
    pub end_byte_offset: u64,
}

/// How a thread's history is kept. Anything but the known two is not guessed at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    Legacy,
    Paginated,
    /// Of before there were modes: `first_format.rs`.
    First,
    Unknown(String),
}

impl Meta {
    pub fn mode(&self) -> Mode {
        match &self.history_mode {
            _ if self.first_format => Mode::First,
            None => Mode::Legacy,
            Some(Value::String(mode)) if mode == "legacy" => Mode::Legacy,
            Some(Value::String(mode)) if mode == "paginated" => Mode::Paginated,
            Some(Value::String(mode)) => Mode::Unknown(mode.clone()),
            Some(other) => Mode::Unknown(other.to_string()),
        }
    }

    /// The thread that started this one as a sub-agent.
    pub fn spawned_by(&self) -> Option<&str> {
        let subagent = self.source.as_ref()?.get("subagent")?;
        let spawn = subagent.get("thread_spawn").and_then(|spawn| spawn.get("parent_thread_id"));
        spawn.and_then(Value::as_str).or(self.parent_thread_id.as_deref())
    }

    pub fn created(&self) -> Option<Timestamp> {
        self.timestamp.as_ref()?.parse().ok()
    }
}

impl Mode {
    /// As the client writes it, where it does.
    pub fn name(&self) -> &str {
        match self {
            Mode::Legacy => "legacy",
            Mode::Paginated => "paginated",
            Mode::First => "first-format",
            Mode::Unknown(mode) => mode,
        }
    }
}

/// The payload of `event_msg`.
#[derive(Debug, Deserialize)]
pub struct Event<'a> {
    #[serde(borrow, rename = "type")]
    pub kind: Cow<'a, str>,
    #[serde(borrow)]
    pub message: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub error: Option<&'a RawValue>,
    pub num_turns: Option<u64>,
    #[serde(borrow)]
    pub turn_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub call_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub item: Option<&'a RawValue>,
    #[serde(borrow)]
    info: Option<&'a RawValue>,
}

/// `info` of a `token_count`: what the thread took in all and what its last request took.
#[derive(Deserialize)]
struct Counted {
    total_token_usage: Usage,
    last_token_usage: Usage,
}

/// What requests took. `cached_input_tokens` are among the `input_tokens`, `reasoning_output_tokens` among the
/// `output_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Usage {
    input_tokens: Option<u64>,
    cached_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    reasoning_output_tokens: Option<u64>,
    total_tokens: Option<u64>,
}

impl Usage {
    pub fn tokens(self) -> Tokens {
        Tokens {
            input: self.input_tokens,
            cached: self.cached_input_tokens,
            output: self.output_tokens,
            reasoning: self.reasoning_output_tokens,
        }
    }
}

impl Event<'_> {
    /// Of a `token_count`: what the thread took in all, and what its last request took.
    pub fn counted(&self) -> Option<(Usage, Usage)> {
        let info = self.info.filter(|_| self.kind == "token_count")?;
        let Counted { total_token_usage: total, last_token_usage: last } =
            serde_json::from_str(info.get()).ok()?;
        Some((total, last))
    }

    /// What the model said, in the events that tell that.
    pub fn words(&self) -> Option<&str> {
        self.message.as_deref().or(self.text.as_deref())
    }

    /// A turn that ended with an error says so in its end record.
    pub fn failed(&self) -> bool {
        self.error.is_some_and(|error| error.get() != "null")
    }
}

/// The item of `item_completed`.
#[derive(Debug, Deserialize)]
pub struct CompletedItem<'a> {
    #[serde(borrow, rename = "type")]
    pub kind: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "parts")]
    pub content: Vec<Part<'a>>,
    #[serde(borrow, default)]
    pub summary_text: Vec<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub raw_content: Vec<Cow<'a, str>>,
}

/// The payload of `response_item`, and an entry of a compaction's replacement history.
#[derive(Debug, Deserialize)]
pub struct Response<'a> {
    #[serde(borrow, rename = "type")]
    pub kind: Cow<'a, str>,
    #[serde(borrow)]
    pub role: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "parts")]
    pub content: Vec<Part<'a>>,
    #[serde(borrow, default, deserialize_with = "parts")]
    pub summary: Vec<Part<'a>>,
    #[serde(borrow)]
    pub name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub call_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    pub input: Option<&'a RawValue>,
    #[serde(borrow)]
    pub action: Option<&'a RawValue>,
    #[serde(borrow)]
    pub output: Option<&'a RawValue>,
    /// Where a called tool comes from.
    #[serde(borrow)]
    pub namespace: Option<Cow<'a, str>>,
    /// What a search for tools found.
    #[serde(borrow)]
    pub tools: Option<&'a RawValue>,
    #[serde(borrow)]
    internal_chat_message_metadata_passthrough: Option<Passthrough<'a>>,
}

#[derive(Debug, Deserialize)]
struct Passthrough<'a> {
    #[serde(borrow)]
    content_item_kinds: Option<Vec<Cow<'a, str>>>,
}

/// A piece of a message.
#[derive(Debug, Default, Deserialize)]
pub struct Part<'a> {
    #[serde(borrow)]
    pub text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub image_url: Option<Cow<'a, str>>,
}

/// The payload of `compacted`.
#[derive(Debug, Deserialize)]
pub struct Compacted<'a> {
    #[serde(borrow)]
    pub message: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub replacement_history: Option<Vec<&'a RawValue>>,
}

/// The payload of `turn_context`.
#[derive(Debug, Deserialize)]
pub struct TurnContext<'a> {
    #[serde(borrow)]
    pub model: Option<Cow<'a, str>>,
}

/// The payload of `thread_name_updated`; without a name it was taken away.
#[derive(Clone, Debug, Deserialize)]
pub struct ThreadName {
    thread_id: Option<String>,
    pub thread_name: Option<String>,
}

impl ThreadName {
    /// Whether it is this thread's: a fork that copied its history holds the names of the thread that it was made of.
    pub fn is_of(&self, thread: &str) -> bool {
        let other = |id: &str| id != thread && uuid::Uuid::try_parse(id).is_ok();
        !self.thread_id.as_deref().is_some_and(other)
    }
}

impl Response<'_> {
    /// The texts of what the model thought.
    pub fn thoughts(&self) -> impl Iterator<Item = &str> {
        self.summary.iter().chain(&self.content).map(|part| part.text.as_deref().unwrap_or(""))
    }

    /// What each part of the content is, where it is recorded.
    pub fn content_kinds(&self) -> Option<&[Cow<'_, str>]> {
        self.internal_chat_message_metadata_passthrough.as_ref()?.content_item_kinds.as_deref()
    }
}

impl Part<'_> {
    /// Its text without the blanks before it.
    pub fn trimmed(&self) -> &str {
        self.text.as_deref().unwrap_or("").trim_start()
    }
}

/// The text of all parts.
pub fn text_of<'p>(parts: &'p [Part<'_>]) -> Cow<'p, str> {
    joined(parts.iter().filter_map(|part| part.text.as_deref()))
}

/// These texts as one.
pub fn joined<'t>(texts: impl Iterator<Item = &'t str>) -> Cow<'t, str> {
    let texts: Vec<&str> = texts.collect();
    match texts[..] {
        [only] => Cow::Borrowed(only),
        _ => Cow::Owned(texts.concat()),
    }
}

/// A JSON string's value, or any other JSON as it stands.
pub fn string_or_json<'a>(raw: &'a RawValue) -> Cow<'a, str> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    if !raw.get().starts_with('"') {
        return Cow::Borrowed(raw.get());
    }
    match serde_json::from_str::<Text<'a>>(raw.get()) {
        Ok(Text(text)) => text,
        // A lone surrogate cannot be told as text; the record's own spelling is shown.
        Err(_) => Cow::Borrowed(raw.get()),
    }
}

/// Parts with nothing in them are kept up to this number: no client writes them, and a line may hold millions.
const EMPTY_PARTS: usize = 4096;

/// A list of parts, or nothing for null and for any other form.
fn parts<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Part<'a>>, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?;
    // To try a list on a long text costs as much as reading it, and fails.
    if !raw.get().starts_with('[') {
        return Ok(Vec::new());
    }
    let mut parts = Vec::new();
    let read = each_of(raw, |part: Part<'a>| {
        if part.text.is_some() || part.image_url.is_some() || parts.len() < EMPTY_PARTS {
            parts.push(part);
        }
    });
    match read {
        Ok(()) => Ok(parts),
        Err(error) if is_twice(&error) => Err(serde::de::Error::custom(error)),
        Err(_) => Ok(Vec::new()),
    }
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// A thread and the name that the client gave it, by a line of `session_index.jsonl`; a bad line names nothing.
pub fn name_of(line: &[u8]) -> Option<(String, String)> {
    #[derive(Deserialize)]
    struct Named {
        id: String,
        thread_name: Option<String>,
    }
    let Named { id, thread_name } = serde_json::from_slice(line).ok()?;
    Some((id, thread_name?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_history_mode_is_known_or_it_is_not() {
        let mode = |json: &str| serde_json::from_str::<Meta>(json).unwrap().mode();
        assert_eq!(mode(r#"{"id":"a"}"#), Mode::Legacy);
        assert_eq!(mode(r#"{"id":"a","history_mode":"legacy"}"#), Mode::Legacy);
        assert_eq!(mode(r#"{"id":"a","history_mode":"paginated"}"#), Mode::Paginated);
        assert_eq!(mode(r#"{"id":"a","history_mode":"Legacy"}"#), Mode::Unknown("Legacy".into()));
        assert_eq!(mode(r#"{"id":"a","history_mode":7}"#), Mode::Unknown("7".into()));
    }

    #[test]
    fn the_last_name_of_a_thread_counts_and_a_bad_line_names_nothing() {
        let content =
            b"{\"id\":\"a\",\"thread_name\":\"one\"}\n{\"id\":\nx\n{\"id\":\"a\",\"thread_name\":\"two\"}\n";
        let names: HashMap<_, _> = content.split(|byte| *byte == b'\n').filter_map(name_of).collect();
        assert_eq!(names.get("a").map(String::as_str), Some("two"));
    }
}
