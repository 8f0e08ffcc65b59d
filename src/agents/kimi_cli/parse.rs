//! A line to a record: what stands in a wire line and in a context line, borrowed from the line.
//!
//! One parse per line proves that it is JSON and finds the few values that somebody needs; what is opaque
//! (and large) is validated and skipped. Source: kimi-cli.md, section 2; what the client refuses, section 5.

use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::json::{Content, JsonStr, Part};
use super::records::{ContextRecord, TextKey, WireEvent, slash_command};
use crate::session::{DamageClass, from_unix_seconds};
use crate::transcript::{Format, Line};

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
    Metadata { protocol: JsonStr<'a> },
    Message { time: Option<Timestamp>, message: Message<'a> },
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

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: JsonStr<'a>,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    name: JsonStr<'a>,
    #[serde(borrow, default)]
    arguments: Option<JsonStr<'a>>,
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
        while let Some(key) = map.next_key::<JsonStr<'de>>()? {
            match (key.plain(), kind) {
                ("type", None) => kind = Some(map.next_value()?),
                ("payload", Some(kind)) if message.is_none() => message = Some(payload(kind, &mut map)?),
                ("payload", None) => early = Some(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match (message, kind, early) {
            (Some(message), ..) => Ok(message),
            (None, Some(kind), Some(raw)) => {
                let mut source = serde_json::Deserializer::from_str(raw.get());
                let message = payload_of(kind, |want| want.read(&mut source));
                message.map_err(A::Error::custom)
            }
            (None, None, _) => Err(A::Error::custom("a message without a type")),
            (None, ..) => Err(A::Error::custom("a message without a payload")),
        }
    }
}

fn payload<'de, A: MapAccess<'de>>(kind: JsonStr<'de>, map: &mut A) -> Result<Message<'de>, A::Error> {
    match kind.plain() {
        "ContentPart" => map.next_value().map(Message::Part),
        "ToolCall" => map.next_value().map(Call::message),
        "ToolResult" => map.next_value().map(Outcome::message),
        "TurnBegin" => map.next_value::<Input<'de>>()?.content().map(Message::TurnBegin),
        "SteerInput" => map.next_value::<Input<'de>>()?.content().map(Message::SteerInput),
        "StepBegin" => map.next_value().map(|Step { n }| Message::StepBegin(n)),
        _ => {
            let payload: &'de RawValue = map.next_value()?;
            if !payload.get().starts_with('{') {
                return Err(A::Error::custom("a message whose payload is no object"));
            }
            Ok(match kind.plain() {
                "TurnEnd" => Message::TurnEnd,
                "StepInterrupted" => Message::StepInterrupted,
                "CompactionBegin" => Message::CompactionBegin,
                "CompactionEnd" => Message::CompactionEnd,
                _ => Message::Other { kind, payload },
            })
        }
    }
}
