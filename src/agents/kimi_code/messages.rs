//! Messages of the model's context: who said them, and what is in them.
//! Facts: `docs/stores/kimi-code.md`, "2. Records".

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::values::{number, spelled, string};
use crate::agents::data_url;
use crate::agents::json::each_of;

/// A message of the model's context.
#[derive(Debug)]
pub(super) struct Message {
    pub role: String,
    pub id: Option<String>,
    pub parts: Vec<Part>,
    /// Id, name and arguments.
    pub calls: Vec<(String, String, String)>,
    /// The call that it answers.
    pub answers: Option<String>,
    pub origin: Origin,
}

/// Who put a message there.
#[derive(Debug, Default)]
pub(super) struct Origin {
    /// `None`: nothing says so, then it is the user.
    pub kind: Option<String>,
    pub in_turn: bool,
    pub trigger: Option<String>,
    pub owner: Option<String>,
    /// What kind of injection or trigger.
    pub name: Option<String>,
}

/// A part of a message.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Text(String),
    Thinking(String),
    /// A picture or another blob; its base64 text, where the record holds it.
    Blob {
        media_type: String,
        bytes: u64,
        base64: String,
    },
}

/// Whether messages of this kind are what a turn begins with: in a sub-agent's wire it is its parent that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Session,
    Subagent,
}

impl Message {
    /// Whether a turn begins with it.
    pub fn is_anchor(&self, whose: Whose) -> bool {
        if self.role != "user" || self.origin.in_turn {
            return false;
        }
        match self.origin.kind.as_deref() {
            None | Some("user") => true,
            Some("skill_activation" | "plugin_command") => {
                self.origin.trigger.as_deref() == Some("user-slash")
            }
            Some("system_trigger") => whose == Whose::Subagent,
            Some(_) => false,
        }
    }

    /// Whether the user wrote it, as a prompt or as a steer: what a compaction keeps.
    pub fn is_users(&self, whose: Whose) -> bool {
        let steer = self.origin.in_turn && matches!(self.origin.kind.as_deref(), None | Some("user"));
        self.is_anchor(whose) || (self.role == "user" && steer)
    }

    /// The text of all its parts, in lines.
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Thinking(_) | Part::Blob { .. } => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }
}

pub(super) fn message(raw: &RawValue) -> Result<Message, String> {
    #[derive(Deserialize)]
    struct Said<'a> {
        #[serde(borrow)]
        role: &'a RawValue,
        #[serde(borrow)]
        content: &'a RawValue,
        #[serde(borrow)]
        id: Option<&'a RawValue>,
        #[serde(borrow, rename = "toolCalls")]
        calls: Option<&'a RawValue>,
        #[serde(borrow, rename = "toolCallId")]
        answers: Option<&'a RawValue>,
        #[serde(borrow)]
        origin: Option<&'a RawValue>,
    }
    let said: Said<'_> = serde_json::from_str(raw.get()).map_err(|error| format!("its message: {error}"))?;
    let mut calls = Vec::new();
    if let Some(list) = said.calls.filter(|list| list.get() != "null") {
        each_of(list, |call: &RawValue| calls.extend(self::call(call)))
            .map_err(|error| format!("its tool calls: {error}"))?;
    }
    Ok(Message {
        role: string(said.role).ok_or("its message has no role")?,
        id: said.id.and_then(string),
        parts: parts(said.content)?,
        calls,
        answers: said.answers.and_then(string),
        origin: said.origin.map(origin).unwrap_or_default(),
    })
}

fn origin(raw: &RawValue) -> Origin {
    #[derive(Deserialize)]
    struct Keys<'a> {
        #[serde(borrow)]
        kind: Option<&'a RawValue>,
        #[serde(borrow, rename = "inTurn")]
        in_turn: Option<&'a RawValue>,
        #[serde(borrow)]
        trigger: Option<&'a RawValue>,
        #[serde(borrow, rename = "ownerPromptId")]
        owner: Option<&'a RawValue>,
        #[serde(borrow)]
        variant: Option<&'a RawValue>,
        #[serde(borrow)]
        name: Option<&'a RawValue>,
    }
    let Ok(keys) = serde_json::from_str::<Keys<'_>>(raw.get()) else { return Origin::default() };
    Origin {
        kind: keys.kind.and_then(string),
        in_turn: keys.in_turn.is_some_and(|value| value.get() == "true"),
        trigger: keys.trigger.and_then(string),
        owner: keys.owner.and_then(string),
        name: keys.variant.and_then(string).or_else(|| keys.name.and_then(string)),
    }
}

/// A tool call of a message: id, name, arguments.
fn call(raw: &RawValue) -> Option<(String, String, String)> {
    #[derive(Deserialize)]
    struct Call<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
        #[serde(borrow)]
        name: Option<&'a RawValue>,
        #[serde(borrow)]
        arguments: Option<&'a RawValue>,
        #[serde(borrow)]
        args: Option<&'a RawValue>,
    }
    let call: Call<'_> = serde_json::from_str(raw.get()).ok()?;
    let text = |value: Option<&RawValue>| value.and_then(string).unwrap_or_default();
    Some((text(call.id), text(call.name), call.arguments.or(call.args).map(spelled).unwrap_or_default()))
}

/// What a tool gave back.
#[derive(Debug, Default)]
pub(super) struct Returned {
    pub output: String,
    pub is_error: bool,
    pub duration: Option<SignedDuration>,
}

/// A tool's output, whether it failed, and how long it took.
pub(super) fn result(raw: &RawValue) -> Returned {
    #[derive(Deserialize)]
    struct Result<'a> {
        #[serde(borrow)]
        output: Option<&'a RawValue>,
        #[serde(borrow, rename = "isError")]
        is_error: Option<&'a RawValue>,
        #[serde(borrow, rename = "durationMs")]
        duration: Option<&'a RawValue>,
    }
    let Ok(result) = serde_json::from_str::<Result<'_>>(raw.get()) else {
        return Returned { output: spelled(raw), ..Returned::default() };
    };
    let is_error = result.is_error.is_some_and(|value| value.get() == "true");
    let output = result.output.map(|output| match parts(output) {
        Ok(parts) => {
            let lines = parts.into_iter().map(|part| match part {
                Part::Text(text) | Part::Thinking(text) => text,
                Part::Blob { media_type, bytes, .. } => format!("[{media_type}, {bytes} bytes]"),
            });
            lines.collect::<Vec<_>>().join("\n")
        }
        Err(_) => spelled(output),
    });
    let duration = result.duration.and_then(number).map(SignedDuration::from_millis);
    Returned { output: output.unwrap_or_default(), is_error, duration }
}

fn parts(content: &RawValue) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut wrong = None;
    each_of(content, |raw: &RawValue| match part(raw) {
        Ok(part) => parts.extend(part),
        Err(why) => wrong = Some(why),
    })
    .map_err(|error| format!("its content: {error}"))?;
    match wrong {
        Some(why) => Err(why),
        None => Ok(parts),
    }
}

/// A part of a message's content; `None` of one that says nothing.
pub(super) fn part(raw: &RawValue) -> Result<Option<Part>, String> {
    #[derive(Deserialize)]
    struct Keys<'a> {
        #[serde(borrow, rename = "type")]
        kind: &'a RawValue,
        #[serde(borrow)]
        text: Option<&'a RawValue>,
        #[serde(borrow)]
        think: Option<&'a RawValue>,
    }
    let keys: Keys<'_> =
        serde_json::from_str(raw.get()).map_err(|error| format!("a part of its content: {error}"))?;
    let kind = string(keys.kind).ok_or("a part of its content has no type")?;
    Ok(match (kind.as_str(), keys.text.and_then(string), keys.think.and_then(string)) {
        ("text", Some(text), _) => Some(Part::Text(text)),
        ("think", _, Some(text)) if text.is_empty() => None,
        ("think", _, Some(text)) => Some(Part::Thinking(text)),
        _ => {
            let url = url_in(raw);
            let held = url.as_deref().and_then(data_url::parse);
            let (media_type, bytes) = held
                .map_or((kind, raw.get().len() as u64), |(media_type, bytes)| (media_type.to_owned(), bytes));
            let base64 = data_url::base64_in(url.as_deref().unwrap_or_default()).to_owned();
            Some(Part::Blob { media_type, bytes, base64 })
        }
    })
}

/// The URL of a picture or another blob.
fn url_in(part: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Blob<'a> {
        #[serde(
            borrow,
            alias = "imageUrl",
            alias = "audioUrl",
            alias = "videoUrl",
            alias = "audio_url",
            alias = "video_url"
        )]
        image_url: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Url<'a> {
        #[serde(borrow)]
        url: Option<&'a RawValue>,
    }
    let blob = serde_json::from_str::<Blob<'_>>(part.get()).ok()?.image_url?;
    string(blob).or_else(|| string(serde_json::from_str::<Url<'_>>(blob.get()).ok()?.url?))
}
