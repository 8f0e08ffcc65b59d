//! Rollouts of the first format (August and September 2025, before the record `session_meta`).
//!
//! The first line is `{id, timestamp, instructions, git}`, every other one an item of the model's history as it
//! stands, or `{"record_type":"state"}`. No record has a time, and nothing tells the user's words but the client's
//! marks on its own. No current client reads or resumes such a file, so there is nothing that an undo could be
//! for; a fork writes the kept turns in today's form.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::line as lines;
use super::records::{Body, Line, Meta, Part, Response};
use super::voice;
use crate::session::{Turn, rfc3339};

/// Why nothing is cut in place.
pub const NOT_RESUMED: &str = "no current Codex resumes a rollout of the first format (before session_meta), so there is nothing to undo for it";
/// What to do instead.
pub const USE_FORK: &str = "use `fork`, which writes the current format";

/// The first line.
#[derive(Debug, Deserialize)]
struct Head {
    id: String,
    timestamp: String,
    git: Option<Value>,
    #[serde(rename = "type")]
    kind: Option<IgnoredAny>,
    record_type: Option<IgnoredAny>,
    payload: Option<IgnoredAny>,
}

impl Head {
    fn parse(bytes: &[u8]) -> Option<Head> {
        let head: Head = serde_json::from_slice(bytes).ok()?;
        let other = head.kind.is_some() || head.record_type.is_some() || head.payload.is_some();
        (!other).then_some(head)
    }
}

/// What the first line tells; `None` if it is not one of this format. The project stands further behind.
pub fn meta(line: &[u8]) -> Option<Meta> {
    let head = Head::parse(line)?;
    Some(Meta { id: head.id, timestamp: Some(head.timestamp), first_format: true, ..Meta::default() })
}

/// The project that the client told the model of, in the message that describes the environment.
pub fn project(response: &Response<'_>) -> Option<String> {
    const BEFORE: &str = "Current working directory:";
    let mut texts = response.content.iter().filter_map(|part| part.text.as_deref());
    texts.find_map(|text| {
        let text = text.trim_start().strip_prefix("<environment_context>")?;
        let path = match text.split_once("<cwd>") {
            Some((_, rest)) => rest.split_once("</cwd>")?.0,
            None => text.split_once(BEFORE)?.1.lines().next()?,
        };
        Some(path.trim().to_owned()).filter(|path| !path.is_empty())
    })
}

/// A line of this format as a record of today's; `None` if it is none.
pub fn record(bytes: &[u8]) -> Option<Line<'_>> {
    #[derive(Deserialize)]
    struct Bare<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<Cow<'a, str>>,
        #[serde(borrow)]
        record_type: Option<Cow<'a, str>>,
        payload: Option<IgnoredAny>,
    }
    let text = simdutf8::basic::from_utf8(bytes).ok()?;
    let payload: &RawValue = serde_json::from_str(text).ok()?;
    if !payload.get().starts_with('{') {
        return None;
    }
    let bare: Bare<'_> = serde_json::from_str(text).ok()?;
    let kind = match bare {
        Bare { kind: Some(_), record_type: None, payload: None } => "response_item",
        Bare { kind: None, record_type: Some(_), .. } => "state",
        Bare { kind: None, record_type: None, payload: None } if Head::parse(bytes).is_some() => {
            "session_meta"
        }
        _ => return None,
    };
    Some(Line { timestamp: None, ordinal: None, kind: kind.into(), payload })
}

/// The lines of `bytes`, which are the file's first ones, in today's form: explicit turns, each item in its
/// envelope and byte for byte, and beside it the event by which the client shows it. `meta` is the payload of the
/// first line, without what this file tells.
///
/// The format records one time, that of its beginning; it stands in every line but the first.
pub fn in_todays_form(bytes: &[u8], turns: &[Turn], mut meta: Value, now: Timestamp) -> Option<Vec<u8>> {
    let first = bytes.split(|byte| *byte == b'\n').next()?;
    let head = Head::parse(first)?;
    if let Some(git) = head.git.filter(Value::is_object) {
        meta["git"] = git;
    }
    let mut out = Today { out: Vec::with_capacity(bytes.len() * 2), time: head.timestamp };
    out.line(&rfc3339(now), "session_meta", &meta.to_string());
    let mut turns = turns.iter().peekable();
    let mut open: Option<String> = None;
    let mut at = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let start = at as u64;
        at += line.len();
        if turns.next_if(|turn| turn.span.start == start).is_some() {
            out.end(open.take());
            let id = uuid::Uuid::now_v7().to_string();
            out.event(&json!({"type": "task_started", "turn_id": id, "model_context_window": null}));
            open = Some(id);
        }
        lines::read(line, |content| {
            let Some(content) = content.filter(|content| content.record.kind == "response_item") else {
                return;
            };
            out.item(content.record.payload.get());
            if let Body::Response(response) = content.body {
                out.events_of(response, open.is_some());
            }
        });
    }
    out.end(open.take());
    Some(out.out)
}

struct Today {
    out: Vec<u8>,
    time: String,
}

impl Today {
    fn line(&mut self, time: &str, kind: &str, payload: &str) {
        let time = Value::from(time);
        let line = format!("{{\"timestamp\":{time},\"type\":\"{kind}\",\"payload\":{payload}}}\n");
        self.out.extend_from_slice(line.as_bytes());
    }

    fn item(&mut self, payload: &str) {
        let time = self.time.clone();
        self.line(&time, "response_item", payload);
    }

    fn event(&mut self, payload: &Value) {
        let time = self.time.clone();
        self.line(&time, "event_msg", &payload.to_string());
    }

    fn end(&mut self, turn: Option<String>) {
        if let Some(id) = turn {
            self.event(&json!({"type": "task_complete", "turn_id": id, "last_agent_message": null}));
        }
    }

    /// What the client shows of an item.
    fn events_of(&mut self, response: &Response<'_>, in_turn: bool) {
        let text = |part: &Part<'_>| part.text.as_deref().unwrap_or("").to_owned();
        match (&*response.kind, response.role.as_deref()) {
            ("message", Some("user")) if in_turn && voice::is_users_by_marks(response) => {
                let images: Vec<&str> =
                    response.content.iter().filter_map(|part| part.image_url.as_deref()).collect();
                self.event(&json!({
                    "type": "user_message", "message": voice::own_text(response), "images": images,
                    "local_images": [], "text_elements": [],
                }));
            }
            ("message", Some("assistant")) => {
                let message: String = response.content.iter().map(text).collect();
                self.event(&json!({"type": "agent_message", "message": message}));
            }
            ("reasoning", _) => {
                for part in response.summary.iter() {
                    self.event(&json!({"type": "agent_reasoning", "text": text(part)}));
                }
                for part in response.content.iter() {
                    self.event(&json!({"type": "agent_reasoning_raw_content", "text": text(part)}));
                }
            }
            _ => {}
        }
    }
}
