//! A line of a context file.

use serde_json::value::RawValue;

use super::super::json::{Content, JsonStr};
use super::super::records::{ContextRecord, TextKey, call_key};
use super::{Bad, Call, ContextFields, parse, reason};
use crate::agents::json::each_of;

/// A line of a context file, as far as its values are needed.
#[derive(Debug)]
pub(in super::super) struct Context<'a> {
    pub role: JsonStr<'a>,
    /// Of messages and of the system prompt.
    pub content: Content<'a>,
    /// Of checkpoints.
    pub id: Option<i64>,
    pub tool_calls: Calls<'a>,
    pub tool_call_id: Option<JsonStr<'a>>,
}

/// The tool that a steer is a call of, with the user's text as its result (clients 1.14 to 1.20).
const STEER: &str = "_steer";

/// The tool calls of a message. A line may hold very many, so they are never held as a list.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Calls<'a>(Option<&'a RawValue>);

impl<'a> Calls<'a> {
    fn of(list: Option<&'a RawValue>) -> Result<Calls<'a>, serde_json::Error> {
        let list = list.filter(|list| list.get() != "null");
        if let Some(list) = list {
            each_of(list, |_: Call<'a>| {})?;
        }
        Ok(Calls(list))
    }

    /// Gives the calls to `each`, in order.
    pub fn each(self, each: impl FnMut(Call<'a>)) {
        // They were read before.
        if let Some(list) = self.0 {
            let _ = each_of(list, each);
        }
    }

    /// The ids of the calls, comparable without being kept; without those of steers, which no step made.
    fn keys(self) -> Vec<u128> {
        let mut keys = Vec::new();
        self.each(|call| {
            if call.name.text() != STEER {
                keys.push(call_key(&call.id.text()));
            }
        });
        keys
    }
}

/// Reads a line of a context file.
pub(in super::super) fn context(line: &[u8]) -> Result<Context<'_>, Bad> {
    let fields: ContextFields<'_> = parse(line)?;
    let bad = |what: &str| Err(Bad::NotRecord(what.into()));
    let integer = |raw: Option<&RawValue>| raw.and_then(|raw| raw.get().parse::<i64>().ok());
    let Some(role) = fields.role else { return bad("a record without a role") };
    let mut record = Context {
        role,
        content: Content::Nothing,
        id: None,
        tool_calls: Calls::of(fields.tool_calls)
            .map_err(|error| Bad::NotRecord(format!("a tool call that is none: {}", reason(&error))))?,
        tool_call_id: fields.tool_call_id.flatten(),
    };
    match (&*role.text(), fields.content) {
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
        match (&*self.role.text(), self.id) {
            ("_checkpoint", Some(id)) => ContextRecord::Checkpoint { id },
            ("_usage", _) => ContextRecord::Usage,
            ("_system_prompt", _) => ContextRecord::SystemPrompt,
            ("user", _) => {
                ContextRecord::User { text: TextKey::of(&self.content.text().unwrap_or_default()) }
            }
            ("assistant", _) => ContextRecord::Assistant {
                text: self.content.text().map(|text| TextKey::of(&text)),
                tool_calls: self.tool_calls.keys(),
            },
            ("tool", _) => ContextRecord::Tool {
                call: self.tool_call_id.map(|id| id.text().into_owned()).unwrap_or_default(),
            },
            _ => ContextRecord::Other,
        }
    }
}
