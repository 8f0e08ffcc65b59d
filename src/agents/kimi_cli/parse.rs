//! A line to a record: what stands in a wire line and in a context line, borrowed from the line.
//!
//! One parse per line proves that it is JSON and finds the few values that somebody needs; what is opaque
//! (and large) is validated and skipped. Facts: `docs/stores/kimi-cli.md`, "2. Records" and "5. Damage: what
//! the client does".

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::json::{Content, JsonStr, Part};
use super::lenient::{self, Control};
use super::records::{ContextRecord, TextKey, WireEvent, slash_command};
use crate::session::{DamageClass, from_unix_seconds};
use crate::transcript::{Format, Line, is_deeper, is_json};

/// Why a line is no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// Not JSON.
    NotJson,
    /// JSON, but not a record; the sentence says what is missing.
    NotRecord(String),
}

impl Bad {
    /// For [`crate::transcript::Inspector::no_record`].
    pub fn what(&self) -> Option<&str> {
        match self {
            Bad::NotJson => None,
            Bad::NotRecord(what) => Some(what),
        }
    }
}

/// A line of wire.jsonl.
#[derive(Debug)]
pub(super) enum Wire<'a> {
    /// The header, with the protocol version.
    Metadata {
        protocol: JsonStr<'a>,
    },
    Message {
        time: Option<Timestamp>,
        message: Message<'a>,
    },
}

/// What happened. Names as in the file, except that everything without an own meaning is `Other`.
#[derive(Debug)]
pub(super) enum Message<'a> {
    TurnBegin(Content<'a>),
    SteerInput(Content<'a>),
    TurnEnd,
    StepBegin(i64),
    StepInterrupted,
    CompactionBegin,
    CompactionEnd,
    Part(Part<'a>),
    ToolCall { id: JsonStr<'a>, name: JsonStr<'a>, arguments: Option<JsonStr<'a>> },
    ToolResult { id: JsonStr<'a>, result: ToolResult<'a> },
    Other { kind: JsonStr<'a>, payload: &'a RawValue },
}

#[derive(Debug, Deserialize)]
pub(super) struct ToolResult<'a> {
    pub is_error: bool,
    #[serde(borrow)]
    pub output: &'a RawValue,
    #[serde(borrow, default)]
    pub message: Option<JsonStr<'a>>,
}

#[derive(Deserialize)]
struct WireFields<'a> {
    #[serde(borrow, default)]
    protocol_version: Option<JsonStr<'a>>,
    timestamp: Option<f64>,
    #[serde(borrow, default)]
    message: Option<Message<'a>>,
}

#[derive(Deserialize)]
struct Input<'a> {
    #[serde(borrow)]
    user_input: &'a RawValue,
}

#[derive(Deserialize)]
struct Step {
    n: i64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Call<'a> {
    #[serde(borrow)]
    pub id: JsonStr<'a>,
    #[serde(borrow)]
    pub function: Function<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow)]
    pub name: JsonStr<'a>,
    #[serde(borrow, default)]
    pub arguments: Option<JsonStr<'a>>,
}

#[derive(Deserialize)]
struct Outcome<'a> {
    #[serde(borrow)]
    tool_call_id: JsonStr<'a>,
    #[serde(borrow)]
    return_value: ToolResult<'a>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Message<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MessageVisitor)
    }
}

struct MessageVisitor;

impl<'de> Visitor<'de> for MessageVisitor {
    type Value = Message<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message with type and payload")
    }

    // The client writes the type before the payload, so that the payload can be read as what it is at
    // once; the other order costs a second parse.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Message<'de>, A::Error> {
        let mut kind: Option<JsonStr<'de>> = None;
        let mut early: Option<&'de RawValue> = None;
        let mut message = None;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match (&*key, kind) {
                ("type", None) => kind = Some(map.next_value()?),
                ("payload", Some(kind)) if message.is_none() => {
                    message = Some(map.next_value_seed(Payload(kind))?);
                }
                ("payload", None) => early = Some(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match (message, kind, early) {
            (Some(message), ..) => Ok(message),
            (None, Some(kind), Some(raw)) => {
                let mut source = serde_json::Deserializer::from_str(raw.get());
                Payload(kind).deserialize(&mut source).map_err(A::Error::custom)
            }
            (None, None, _) => Err(A::Error::custom("a message without a type")),
            (None, Some(_), None) => Err(A::Error::custom("a message without a payload")),
        }
    }
}

/// A payload of this type.
struct Payload<'de>(JsonStr<'de>);

impl<'de> DeserializeSeed<'de> for Payload<'de> {
    type Value = Message<'de>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Message<'de>, D::Error> {
        let content = |input: Input<'de>| {
            let content = Content::of(input.user_input);
            content.ok_or_else(|| D::Error::custom("a user input that is neither text nor a list"))
        };
        Ok(match self.0.plain() {
            "ContentPart" => Message::Part(Part::deserialize(from)?),
            "ToolCall" => {
                let Call { id, function } = Call::deserialize(from)?;
                Message::ToolCall { id, name: function.name, arguments: function.arguments }
            }
            "ToolResult" => {
                let Outcome { tool_call_id, return_value } = Outcome::deserialize(from)?;
                Message::ToolResult { id: tool_call_id, result: return_value }
            }
            "TurnBegin" => Message::TurnBegin(content(Input::deserialize(from)?)?),
            "SteerInput" => Message::SteerInput(content(Input::deserialize(from)?)?),
            "StepBegin" => Message::StepBegin(Step::deserialize(from)?.n),
            other => {
                let payload = <&'de RawValue>::deserialize(from)?;
                if !payload.get().starts_with('{') {
                    return Err(D::Error::custom("a message whose payload is no object"));
                }
                match other {
                    "TurnEnd" => Message::TurnEnd,
                    "StepInterrupted" => Message::StepInterrupted,
                    "CompactionBegin" => Message::CompactionBegin,
                    "CompactionEnd" => Message::CompactionEnd,
                    _ => Message::Other { kind: self.0, payload },
                }
            }
        })
    }
}

/// Reads a line of wire.jsonl.
pub(super) fn wire(line: &[u8]) -> Result<Wire<'_>, Bad> {
    let fields: WireFields<'_> = parse(line)?;
    match (fields.message, fields.timestamp, fields.protocol_version) {
        (_, _, Some(protocol)) => Ok(Wire::Metadata { protocol }),
        (Some(message), Some(seconds), None) => {
            Ok(Wire::Message { time: from_unix_seconds(seconds), message })
        }
        (Some(_), None, None) => Err(Bad::NotRecord("the record has no timestamp".into())),
        (None, ..) => Err(Bad::NotRecord("the record has no message".into())),
    }
}

impl Wire<'_> {
    /// What the record means for turns and boundaries.
    pub fn event(&self) -> WireEvent {
        let Wire::Message { message, .. } = self else { return WireEvent::Metadata };
        match message {
            Message::TurnBegin(input) => {
                let text = input.text().unwrap_or_default();
                let command = slash_command(&text).map(str::to_owned);
                WireEvent::TurnBegin { text: TextKey::of(&text), command }
            }
            Message::SteerInput(input) => {
                WireEvent::SteerInput { text: TextKey::of(&input.text().unwrap_or_default()) }
            }
            Message::TurnEnd => WireEvent::TurnEnd,
            Message::StepBegin(n) => WireEvent::StepBegin { n: *n },
            Message::StepInterrupted => WireEvent::StepInterrupted,
            Message::CompactionBegin => WireEvent::CompactionBegin,
            Message::CompactionEnd => WireEvent::CompactionEnd,
            Message::Part(Part::Text(text)) => WireEvent::Text { text: text.text().into_owned() },
            Message::Part(_) => WireEvent::OtherPart,
            Message::ToolCall { id, name, arguments } => WireEvent::ToolCall {
                id: id.text().into_owned(),
                dmail_checkpoint: match name.plain() {
                    "SendDMail" => arguments.and_then(dmail_checkpoint),
                    _ => None,
                },
            },
            Message::ToolResult { id, result } => {
                WireEvent::ToolResult { id: id.text().into_owned(), is_error: result.is_error }
            }
            Message::Other { kind, .. } => match kind.plain() {
                "Notification" | "SubagentEvent" | "StatusUpdate" | "StepRetry" => WireEvent::Silent,
                kind if kind.starts_with("Hook") || kind.starts_with("MCPLoading") => WireEvent::Silent,
                _ => WireEvent::Other,
            },
        }
    }
}

fn dmail_checkpoint(arguments: JsonStr<'_>) -> Option<i64> {
    #[derive(Deserialize)]
    struct Arguments {
        checkpoint_id: i64,
    }
    let arguments: Arguments = serde_json::from_str(&arguments.text()).ok()?;
    Some(arguments.checkpoint_id)
}

/// A line of a context file, as far as its values are needed.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub role: JsonStr<'a>,
    /// Of messages and of the system prompt.
    pub content: Content<'a>,
    /// Of checkpoints.
    pub id: Option<i64>,
    pub tool_calls: Vec<Call<'a>>,
    pub tool_call_id: Option<JsonStr<'a>>,
}

#[derive(Deserialize)]
struct ContextFields<'a> {
    #[serde(borrow)]
    role: JsonStr<'a>,
    #[serde(borrow, default, deserialize_with = "present")]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    token_count: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<Call<'a>>>,
    #[serde(borrow, default)]
    tool_call_id: Option<JsonStr<'a>>,
}

/// A value that is there, `null` included: the client crashes on a message without content and accepts
/// one whose content is null.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&'a RawValue>::deserialize(from).map(Some)
}

/// Reads a line of a context file.
pub(super) fn context(line: &[u8]) -> Result<Context<'_>, Bad> {
    let fields: ContextFields<'_> = parse(line)?;
    let bad = |what: &str| Err(Bad::NotRecord(what.into()));
    let integer = |raw: Option<&RawValue>| raw.and_then(|raw| raw.get().parse::<i64>().ok());
    let mut record = Context {
        role: fields.role,
        content: Content::Nothing,
        id: None,
        tool_calls: fields.tool_calls.unwrap_or_default(),
        tool_call_id: fields.tool_call_id,
    };
    match (fields.role.plain(), fields.content) {
        ("_checkpoint", _) => match integer(fields.id) {
            Some(id) => record.id = Some(id),
            None => return bad("a checkpoint without a number"),
        },
        ("_usage", _) => {
            if integer(fields.token_count).is_none() {
                return bad("a usage record without a token count");
            }
        }
        ("_system_prompt", content) => match content.and_then(JsonStr::of) {
            Some(text) => record.content = Content::Text(text),
            None => return bad("a system prompt without a text"),
        },
        ("user" | "assistant" | "tool" | "system", Some(content)) => match Content::of(content) {
            Some(content) => record.content = content,
            None => return bad("a message whose content is neither text nor a list"),
        },
        ("user" | "assistant" | "tool" | "system", None) => return bad("a message without content"),
        (_, content) => {
            record.content = content.and_then(Content::of).unwrap_or(Content::Nothing);
        }
    }
    Ok(record)
}

impl Context<'_> {
    /// What the record means for boundaries.
    pub fn record(&self) -> ContextRecord {
        match (self.role.plain(), self.id) {
            ("_checkpoint", Some(id)) => ContextRecord::Checkpoint { id },
            ("_usage", _) => ContextRecord::Usage,
            ("_system_prompt", _) => ContextRecord::SystemPrompt,
            ("user", _) => {
                ContextRecord::User { text: TextKey::of(&self.content.text().unwrap_or_default()) }
            }
            ("assistant", _) => ContextRecord::Assistant {
                text: self.content.text().map(|text| TextKey::of(&text)),
                tool_calls: self.tool_calls.iter().map(|call| call.id.text().into_owned()).collect(),
            },
            ("tool", _) => ContextRecord::Tool {
                call: self.tool_call_id.map(|id| id.text().into_owned()).unwrap_or_default(),
            },
            _ => ContextRecord::Other,
        }
    }
}

/// One strict parse of a line: valid UTF-8, valid JSON, and the fields of `T`.
fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, Bad> {
    let text = simdutf8::basic::from_utf8(line).map_err(|_| Bad::NotJson)?;
    serde_json::from_str(text).map_err(|error| {
        if !is_json(line) {
            return Bad::NotJson;
        }
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or_default();
        Bad::NotRecord(format!("JSON, but not a record: {what}"))
    })
}

/// How damage in wire.jsonl is told.
pub(super) const WIRE: Format = Format {
    is_record: |bytes| wire(bytes).is_ok(),
    agent: |class| match class {
        DamageClass::InvalidUtf8 => {
            "kimi-cli stops reading the file there, and cannot list this directory's sessions if it is near the start"
        }
        DamageClass::TornTail | DamageClass::NulTail | DamageClass::NoFinalNewline => {
            "kimi-cli glues the next record to it and then loses both"
        }
        DamageClass::SplitRecord => "kimi-cli skips all of these lines without a word",
        _ => "kimi-cli skips the line without a word",
    },
};

/// How damage in a context file is told.
pub(super) const CONTEXT: Format = Format {
    is_record: |bytes| context(bytes).is_ok(),
    agent: |class| match class {
        DamageClass::InvalidUtf8 => "kimi-cli reads it with replacement characters",
        DamageClass::TornTail | DamageClass::NulTail | DamageClass::NoFinalNewline => {
            "kimi-cli glues the next record to it and then loses both"
        }
        DamageClass::SplitRecord => "kimi-cli skips all of these lines without a word",
        DamageClass::BadRecord => "kimi-cli skips the line, or crashes at start if a message has no content",
        _ => "kimi-cli skips the line without a word",
    },
};

/// Reads a scanned line of wire.jsonl as the client does. `buffer` holds the record where it had to be
/// written plainly first.
pub(super) fn wire_line<'a>(line: &Line<'a>, buffer: &'a mut String) -> Result<Wire<'a>, Bad> {
    if let Some(bad) = unreadable(line, lenient::WIRE_DEPTH) {
        return Err(bad);
    }
    wire(line.bytes).or_else(|bad| {
        *buffer = lenient::plain(line.bytes, Control::Refused).ok_or(bad)?;
        wire(buffer.as_bytes())
    })
}

/// Reads a scanned line of a context file, as [`wire_line`].
pub(super) fn context_line<'a>(line: &Line<'a>, buffer: &'a mut String) -> Result<Context<'a>, Bad> {
    if let Some(bad) = unreadable(line, lenient::CONTEXT_DEPTH) {
        return Err(bad);
    }
    context(line.bytes).or_else(|bad| {
        *buffer = lenient::plain(line.bytes, Control::Allowed).ok_or(bad)?;
        context(buffer.as_bytes())
    })
}

/// A line that is too strange to be read: with NULs at its start, or nested too deeply.
fn unreadable(line: &Line<'_>, depth: usize) -> Option<Bad> {
    if line.nuls > 0 {
        return Some(Bad::NotJson);
    }
    let what = || Bad::NotRecord(format!("JSON nested more than {depth} times"));
    is_deeper(line.bytes, depth).then(what)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_line_is_what_it_says() {
        let key = TextKey::of;
        let cases = [
            (r#"{"type": "metadata", "protocol_version": "1.10"}"#, WireEvent::Metadata),
            (
                r#"{"timestamp": 1.5, "message": {"type": "TurnBegin", "payload": {"user_input": "/a:b c"}}}"#,
                WireEvent::TurnBegin { text: key("/a:b c"), command: Some("a:b".into()) },
            ),
            (
                r#"{"message": {"payload": {"user_input": [{"type":"text","text":"x"}]}, "type": "SteerInput"}, "timestamp": 1}"#,
                WireEvent::SteerInput { text: key("x") },
            ),
            (
                r#"{"timestamp": 1, "message": {"type": "StepBegin", "payload": {"n": 2}}}"#,
                WireEvent::StepBegin { n: 2 },
            ),
            (
                r#"{"timestamp": 1, "message": {"type": "ContentPart", "payload": {"type": "text", "text": "\ud800"}}}"#,
                WireEvent::Text { text: "\u{fffd}".into() },
            ),
            (
                r#"{"timestamp": 1, "message": {"type": "ContentPart", "payload": {"type": "think", "think": "t"}}}"#,
                WireEvent::OtherPart,
            ),
            (
                r#"{"timestamp": 1, "message": {"type": "ToolCall", "payload": {"id": "c", "function": {"name": "SendDMail", "arguments": "{\"checkpoint_id\": 3}"}}}}"#,
                WireEvent::ToolCall { id: "c".into(), dmail_checkpoint: Some(3) },
            ),
            (r#"{"timestamp": 1, "message": {"type": "StatusUpdate", "payload": {}}}"#, WireEvent::Silent),
            (r#"{"timestamp": 1, "message": {"type": "Whatever", "payload": {}}}"#, WireEvent::Other),
        ];
        for (line, expected) in cases {
            assert_eq!(wire(line.as_bytes()).unwrap().event(), expected, "{line}");
        }
    }

    #[test]
    fn what_is_json_but_no_record_says_what_is_missing() {
        let wires = [
            r#"[1]"#,
            r#"{"timestamp": 1}"#,
            r#"{"message": {"type": "TurnEnd", "payload": {}}}"#,
            r#"{"timestamp": 1, "message": {"type": "TurnEnd"}}"#,
            r#"{"timestamp": 1, "message": {"type": "TurnEnd", "payload": 5}}"#,
            r#"{"timestamp": 1, "message": {"type": "TurnBegin", "payload": {}}}"#,
            r#"{"timestamp": 1, "message": {"type": "StepBegin", "payload": {"n": "x"}}}"#,
        ];
        for line in wires {
            assert!(matches!(wire(line.as_bytes()), Err(Bad::NotRecord(_))), "{line}");
        }
        let contexts = [
            r#"5"#,
            r#"{"content":"x"}"#,
            r#"{"role":5}"#,
            r#"{"role":"user"}"#,
            r#"{"role":"user","content":5}"#,
            r#"{"role":"_checkpoint","id":"1"}"#,
            r#"{"role":"_usage"}"#,
            r#"{"role":"_system_prompt","content":null}"#,
        ];
        for line in contexts {
            assert!(matches!(context(line.as_bytes()), Err(Bad::NotRecord(_))), "{line}");
        }
        for line in [r#"{"role":"user","content":"#, "{\"role\":\"user\",\"content\":\"a\tb\"}", ""] {
            assert_eq!(context(line.as_bytes()).err(), Some(Bad::NotJson), "{line}");
        }
    }

    #[test]
    fn a_context_line_is_what_it_says() {
        let key = TextKey::of;
        let cases = [
            (r#"{"role": "_checkpoint", "id": 3}"#, ContextRecord::Checkpoint { id: 3 }),
            (r#"{"role": "_usage", "token_count": 3}"#, ContextRecord::Usage),
            (r#"{"role":"user","content":null}"#, ContextRecord::User { text: key("") }),
            (r#"{"role":"tool","content":"x","tool_call_id":"c"}"#, ContextRecord::Tool { call: "c".into() }),
            (
                r#"{"role":"assistant","content":[{"type":"think","think":"x"}],"tool_calls":[{"type":"function","id":"c","function":{"name":"f","arguments":"{}"}}]}"#,
                ContextRecord::Assistant { text: None, tool_calls: vec!["c".into()] },
            ),
            (r#"{"role":"observer","content":{}}"#, ContextRecord::Other),
        ];
        for (line, expected) in cases {
            assert_eq!(context(line.as_bytes()).unwrap().record(), expected, "{line}");
        }
    }
}
