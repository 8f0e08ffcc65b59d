//! A line to a record: what stands in a wire line and in a context line, borrowed from the line.
//!
//! One parse per line proves that it is JSON and finds the few values that somebody needs; what is opaque
//! (and large) is validated and skipped. Facts: `docs/stores/kimi-cli.md`, "2. Records" and "5. Damage: what
//! the client does".

mod context;

use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::json::{
    CONTEXT_DEPTH, Content, Control, JsonStr, Part, WIRE_DEPTH, objects, parse_lenient, plain,
};
use super::records::{TextKey, WireEvent, slash_command};
use crate::session::{DamageClass, Tokens, from_unix_seconds, sum_of};
use crate::transcript::{Format, Line, is_deeper, is_json};
pub(super) use context::{Context, context};

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

/// The protocol of clients before 1.6, which wrote no TurnEnd; the first of them wrote no header either.
const LEGACY: &str = "1.1";

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

#[derive(Debug)]
pub(super) struct ToolResult<'a> {
    pub is_error: bool,
    pub output: &'a RawValue,
    pub message: Option<JsonStr<'a>>,
}

/// A tool call of an assistant's message.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub id: JsonStr<'a>,
    pub name: JsonStr<'a>,
    pub arguments: Option<JsonStr<'a>>,
}

objects! {
    struct WireFields<'a> {
        kind: &'a RawValue = "type",
        protocol_version: &'a RawValue = "protocol_version",
        timestamp: Option<f64> = "timestamp",
        message: Option<Message<'a>> = "message",
    }
    struct Input<'a> {
        user_input: &'a RawValue = "user_input",
    }
    struct Step {
        n: i64 = "n",
    }
    struct CallFields<'a> {
        id: JsonStr<'a> = "id",
        function: FunctionFields<'a> = "function",
    }
    struct FunctionFields<'a> {
        name: JsonStr<'a> = "name",
        arguments: Option<JsonStr<'a>> = "arguments",
    }
    struct OutcomeFields<'a> {
        tool_call_id: JsonStr<'a> = "tool_call_id",
        return_value: ReturnFields<'a> = "return_value",
    }
    struct ReturnFields<'a> {
        is_error: bool = "is_error",
        output: &'a RawValue = "output",
        message: Option<JsonStr<'a>> = "message",
    }
    /// A D-Mail's.
    struct Arguments {
        checkpoint_id: i64 = "checkpoint_id",
    }
    struct StatusFields<'a> {
        token_usage: &'a RawValue = "token_usage",
    }
    struct UsageFields {
        other: u64 = "input_other",
        cache_read: u64 = "input_cache_read",
        cache_creation: u64 = "input_cache_creation",
        output: u64 = "output",
    }
    struct ContextFields<'a> {
        role: JsonStr<'a> = "role",
        // `null` is there: the client crashes on a message without content and accepts one whose content is null.
        content: &'a RawValue = "content",
        id: &'a RawValue = "id",
        token_count: &'a RawValue = "token_count",
        tool_calls: &'a RawValue = "tool_calls",
        tool_call_id: Option<JsonStr<'a>> = "tool_call_id",
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Call<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Call<'a>, D::Error> {
        let CallFields { id, function } = CallFields::deserialize(from)?;
        let FunctionFields { name, arguments } = there(function, "function")?;
        Ok(Call { id: there(id, "id")?, name: there(name, "name")?, arguments: arguments.flatten() })
    }
}

fn there<T, E: Error>(field: Option<T>, name: &'static str) -> Result<T, E> {
    field.ok_or_else(|| E::missing_field(name))
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
        while let Some(key) = map.next_key::<JsonStr<'de>>()? {
            match (&*key.text(), kind) {
                // What was read as another type is not kept for this one.
                ("type", _) if message.is_some() => {
                    return Err(A::Error::custom("a second type behind the payload"));
                }
                ("type", _) => kind = Some(map.next_value()?),
                ("payload", Some(kind)) => message = Some(map.next_value_seed(Payload(kind))?),
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
            let content = Content::of(there(input.user_input, "user_input")?);
            content.ok_or_else(|| D::Error::custom("a user input that is neither text nor a list"))
        };
        Ok(match &*self.0.text() {
            "ContentPart" => Message::Part(Part::deserialize(from)?),
            "ToolCall" => {
                let Call { id, name, arguments } = Call::deserialize(from)?;
                Message::ToolCall { id, name, arguments }
            }
            "ToolResult" => {
                let OutcomeFields { tool_call_id, return_value } = OutcomeFields::deserialize(from)?;
                let ReturnFields { is_error, output, message } = there(return_value, "return_value")?;
                let result = ToolResult {
                    is_error: there(is_error, "is_error")?,
                    output: there(output, "output")?,
                    message: message.flatten(),
                };
                Message::ToolResult { id: there(tool_call_id, "tool_call_id")?, result }
            }
            "TurnBegin" => Message::TurnBegin(content(Input::deserialize(from)?)?),
            "SteerInput" => Message::SteerInput(content(Input::deserialize(from)?)?),
            "StepBegin" => Message::StepBegin(there(Step::deserialize(from)?.n, "n")?),
            other => {
                let payload = <&'de RawValue>::deserialize(from)?;
                if !payload.get().starts_with('{') {
                    return Err(D::Error::custom("a message whose payload is not an object"));
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
    let says_metadata =
        fields.kind.map(|kind| JsonStr::of(kind).is_some_and(|kind| kind.text() == "metadata"));
    let protocol = fields.protocol_version.and_then(JsonStr::of);
    match (says_metadata, protocol, fields.message.flatten(), fields.timestamp.flatten()) {
        (None | Some(true), Some(protocol), None, _) | (Some(true), Some(protocol), Some(_), _) => {
            Ok(Wire::Metadata { protocol })
        }
        // The client's own readers do not agree whether this is a header or a message.
        (None, Some(_), Some(_), _) | (Some(true), None, Some(_), _) => {
            Err(Bad::NotRecord("the record is a header and a message at once".into()))
        }
        (_, _, Some(message), Some(seconds)) => {
            Ok(Wire::Message { time: from_unix_seconds(seconds), message })
        }
        (_, _, Some(_), None) => Err(Bad::NotRecord("the record has no timestamp".into())),
        (_, _, None, _) => Err(Bad::NotRecord("the record has no message".into())),
    }
}

impl Wire<'_> {
    /// What the record means for turns and boundaries.
    pub fn event(&self) -> WireEvent {
        let message = match self {
            Wire::Message { message, .. } => message,
            Wire::Metadata { protocol } => return WireEvent::Metadata { ends: protocol.text() != LEGACY },
        };
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
                dmail_checkpoint: match &*name.text() {
                    "SendDMail" => arguments.and_then(dmail_checkpoint),
                    _ => None,
                },
            },
            Message::ToolResult { id, result } => {
                WireEvent::ToolResult { id: id.text().into_owned(), is_error: result.is_error }
            }
            Message::Other { kind, .. } => match &*kind.text() {
                "Notification" | "SubagentEvent" | "StatusUpdate" | "StepRetry" => WireEvent::Silent,
                kind if kind.starts_with("Hook") || kind.starts_with("MCPLoading") => WireEvent::Silent,
                _ => WireEvent::Other,
            },
        }
    }
}

impl Message<'_> {
    /// What a step took: the client says so once, when the step's answer is there.
    pub fn tokens(&self) -> Option<Tokens> {
        let Message::Other { kind, payload } = self else { return None };
        if &*kind.text() != "StatusUpdate" {
            return None;
        }
        let status: StatusFields<'_> = serde_json::from_str(payload.get()).ok()?;
        let usage: UsageFields = serde_json::from_str(status.token_usage?.get()).ok()?;
        Some(Tokens {
            input: sum_of([usage.other, usage.cache_read, usage.cache_creation]),
            cached: usage.cache_read,
            output: usage.output,
            reasoning: None,
        })
    }
}

/// The client reads a call's arguments as it reads a context line.
fn dmail_checkpoint(arguments: JsonStr<'_>) -> Option<i64> {
    let text = arguments.text();
    let read = |bytes: &[u8]| serde_json::from_slice::<Arguments>(bytes);
    parse_lenient(text.as_bytes(), Control::Allowed, read).ok()?.checkpoint_id
}

/// One strict parse of a line: valid UTF-8, valid JSON, and the fields of `T`.
fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, Bad> {
    let text = simdutf8::basic::from_utf8(line).map_err(|_| Bad::NotJson)?;
    serde_json::from_str(text).map_err(|error| {
        if !is_json(line) {
            return Bad::NotJson;
        }
        Bad::NotRecord(format!("JSON, but not a record: {}", reason(&error)))
    })
}

/// What is wrong, without the place in the line.
fn reason(error: &serde_json::Error) -> String {
    let what = error.to_string();
    what.split(" at line ").next().unwrap_or_default().to_owned()
}

/// How damage in wire.jsonl is told.
pub(super) const WIRE: Format = Format {
    is_record: |bytes| wire(bytes).is_ok(),
    agent: |class| match class {
        DamageClass::InvalidUtf8 => {
            "kimi-cli stops reading the file there, and cannot list this directory's sessions if it is near the start"
        }
        _ => client_reaction(class),
    },
};

/// How damage in a context file is told.
pub(super) const CONTEXT: Format = Format {
    is_record: |bytes| context(bytes).is_ok(),
    agent: |class| match class {
        DamageClass::InvalidUtf8 => "kimi-cli reads it with replacement characters",
        DamageClass::BadRecord => "kimi-cli skips the line, or crashes at start if a message has no content",
        _ => client_reaction(class),
    },
};

/// What the client does with damage in either file.
fn client_reaction(class: DamageClass) -> &'static str {
    match class {
        DamageClass::TornTail | DamageClass::NulTail | DamageClass::NoFinalNewline => {
            "kimi-cli glues the next record to it and then loses both"
        }
        DamageClass::SplitRecord => "kimi-cli skips all of these lines without a word",
        _ => "kimi-cli skips the line without a word",
    }
}

/// Reads a scanned line of wire.jsonl as the client does. `buffer` holds the record where it had to be
/// written plainly first.
pub(super) fn wire_line<'a>(line: &Line<'a>, buffer: &'a mut String) -> Result<Wire<'a>, Bad> {
    scanned(line, buffer, WIRE_DEPTH, Control::Refused, wire)
}

/// Reads a scanned line of a context file, as [`wire_line`].
pub(super) fn context_line<'a>(line: &Line<'a>, buffer: &'a mut String) -> Result<Context<'a>, Bad> {
    scanned(line, buffer, CONTEXT_DEPTH, Control::Allowed, context)
}

/// Reads a scanned line, unless it has NULs at its start or is nested more than `depth` times.
fn scanned<'a, T>(
    line: &Line<'a>,
    buffer: &'a mut String,
    depth: usize,
    control: Control,
    read: impl Fn(&'a [u8]) -> Result<T, Bad>,
) -> Result<T, Bad> {
    if line.nuls > 0 {
        return Err(Bad::NotJson);
    }
    if is_deeper(line.bytes, depth) {
        return Err(Bad::NotRecord(format!("JSON nested more than {depth} times")));
    }
    read(line.bytes).or_else(|bad| {
        *buffer = plain(line.bytes, control).ok_or(bad)?;
        read(buffer.as_bytes())
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::records::{ContextRecord, call_key};
    use super::*;

    #[test]
    fn a_wire_line_is_what_it_says() {
        let key = TextKey::of;
        let cases = [
            (r#"{"type": "metadata", "protocol_version": "1.10"}"#, WireEvent::Metadata { ends: true }),
            (r#"{"type": "metadata", "protocol_version": "1.1"}"#, WireEvent::Metadata { ends: false }),
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
                ContextRecord::Assistant { text: None, tool_calls: vec![call_key("c")] },
            ),
            (r#"{"role":"observer","content":{}}"#, ContextRecord::Other),
        ];
        for (line, expected) in cases {
            assert_eq!(context(line.as_bytes()).unwrap().record(), expected, "{line}");
        }
    }
}
