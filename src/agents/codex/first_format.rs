//! Rollouts of the first format (August and September 2025, before the record `session_meta`).
//!
//! The first line is `{id, timestamp, instructions, git}`, every other one an item of the model's history as it
//! stands, or `{"record_type":"state"}`. No record has a time, and nothing tells the user's words but the client's
//! marks on its own. No current client reads or resumes such a file, so there is nothing that an undo could be
//! for; a fork writes the kept turns in today's form.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::records::{Line, Meta, Response};

/// Why nothing is cut in place.
pub const NOT_RESUMED: &str = "no current Codex resumes a rollout of the first format (before session_meta), so there is nothing to undo for it";
/// What to do instead.
pub const USE_FORK: &str = "use `fork`, which writes the current format";

/// The first line.
#[derive(Debug, Deserialize)]
pub struct Head {
    id: String,
    pub timestamp: String,
    pub git: Option<Value>,
    #[serde(rename = "type")]
    kind: Option<IgnoredAny>,
    record_type: Option<IgnoredAny>,
    payload: Option<IgnoredAny>,
}

impl Head {
    pub fn parse(bytes: &[u8]) -> Option<Head> {
        let head: Head = serde_json::from_slice(bytes).ok()?;
        let other = head.kind.is_some() || head.record_type.is_some() || head.payload.is_some();
        (!other).then_some(head)
    }
}

/// What the first line tells; `None` if it is not one of this format. The project stands further behind.
pub fn meta(line: &[u8]) -> Option<Meta> {
    let head = Head::parse(line)?;
    let (id, timestamp, git) = (head.id, Some(head.timestamp), head.git);
    Some(Meta { id, timestamp, git, first_format: true, ..Meta::default() })
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
