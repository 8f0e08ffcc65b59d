//! A turn's lines as items.
//!
//! Both families of lines say the same twice: `response_item` is what the model gets, the events beside it
//! are what the client shows (`user_message` in legacy files, `item_completed` in paginated ones). What
//! stands in both is shown once, so that both history modes give the same text.

use std::borrow::Cow;
use std::ops::Range;

use jiff::Timestamp;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_128;

use super::records::{
    Compacted, CompletedItem, Event, Line, Part, Response, Voice, readable, string_or_json, text_of,
};
use crate::session::{Item, ItemSink};
use crate::transcript::scan_bytes;

/// What kind of text stands in both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    User,
    Assistant,
    Thinking,
    Call,
}

/// Something that an event said and no response item has said yet.
#[derive(Clone)]
struct Pending {
    time: Option<Timestamp>,
    said: Said,
    key: u128,
    text: String,
}

/// Turns the lines of one turn into items, in order.
#[derive(Clone, Default)]
pub struct Reader {
    users: u32,
    /// Told by response items, not yet repeated by an event.
    told: Vec<(Said, u128)>,
    pending: Vec<Pending>,
}

impl Reader {
    /// The items of the next line. What only an event says waits for [`Reader::finish`]: a later line may say it, too.
    pub fn line(&mut self, line: &Line<'_>, sink: &mut ItemSink<'_>) {
        let time = line.time();
        let payload = readable(line.payload.get());
        match &*line.kind {
            "response_item" => match serde_json::from_str::<Response<'_>>(&payload) {
                Ok(response) => self.response(time, &response, &payload, sink),
                Err(_) => unknown(time, &line.kind, &payload, sink),
            },
            "event_msg" => match serde_json::from_str::<Event<'_>>(&payload) {
                Ok(event) => self.event(time, &event, &payload, sink),
                Err(_) => unknown(time, &line.kind, &payload, sink),
            },
            "compacted" => {
                let message = serde_json::from_str::<Compacted<'_>>(&payload).ok().and_then(|c| c.message);
                sink(time, Item::Compaction { text: message.unwrap_or_default() });
            }
            "session_meta" | "turn_context" | "world_state" | "token_usage_record" => {}
            other => unknown(time, other, &payload, sink),
        }
    }

    /// What only events said, at the turn's end.
    pub fn finish(&mut self, sink: &mut ItemSink<'_>) {
        for Pending { time, said, text, .. } in std::mem::take(&mut self.pending) {
            self.say(time, said, &text, sink);
        }
        self.told.clear();
    }

    fn say(&mut self, time: Option<Timestamp>, said: Said, text: &str, sink: &mut ItemSink<'_>) {
        let text = Cow::Borrowed(text);
        sink(
            time,
            match said {
                Said::User => {
                    self.users += 1;
                    if self.users == 1 { Item::User { text } } else { Item::Steer { text } }
                }
                Said::Assistant => Item::Assistant { text },
                Said::Thinking => Item::Thinking { text },
                Said::Call => Item::Notice { kind: "command".into(), text },
            },
        );
    }

    /// A response item says it: it is shown here, and its event is not.
    fn told(&mut self, said: Said, text: &str) {
        let key = xxh3_128(text.as_bytes());
        match self.pending.iter().position(|pending| (pending.said, pending.key) == (said, key)) {
            Some(at) => drop(self.pending.remove(at)),
            None => self.told.push((said, key)),
        }
    }

    /// An event says it: shown at the turn's end, unless a response item says the same.
    fn heard(&mut self, time: Option<Timestamp>, said: Said, identity: &str, text: &str) {
        let key = xxh3_128(identity.as_bytes());
        match self.told.iter().position(|told| *told == (said, key)) {
            Some(at) => drop(self.told.swap_remove(at)),
            None if text.is_empty() => {}
            None => self.pending.push(Pending { time, said, key, text: text.to_owned() }),
        }
    }

    fn response(
        &mut self,
        time: Option<Timestamp>,
        response: &Response<'_>,
        json: &str,
        sink: &mut ItemSink<'_>,
    ) {
        match &*response.kind {
            "message" => match response.voice() {
                Voice::User => {
                    let text = text_of(&response.content);
                    self.told(Said::User, &text);
                    self.say(time, Said::User, &text, sink);
                    blobs(time, &response.content, sink);
                }
                Voice::Assistant => {
                    let text = text_of(&response.content);
                    self.told(Said::Assistant, &text);
                    self.say(time, Said::Assistant, &text, sink);
                }
                Voice::Told => told_by_client(time, response, sink),
                // The client's instructions are the same in every session; `context.md` has them.
                Voice::Injected => {}
            },
            "reasoning" => {
                for part in response.summary.iter().chain(&response.content) {
                    let text = part.text.as_deref().unwrap_or("");
                    self.told(Said::Thinking, text);
                    self.say(time, Said::Thinking, text, sink);
                }
            }
            _ => {
                if let Some(id) = response.call_id.as_deref().or(response.id.as_deref()) {
                    self.told(Said::Call, id);
                }
                tool(time, response, json, sink);
            }
        }
    }

    fn event(&mut self, time: Option<Timestamp>, event: &Event<'_>, json: &str, sink: &mut ItemSink<'_>) {
        match &*event.kind {
            "user_message" => {
                let text = event.message.as_deref().unwrap_or("");
                self.heard(time, Said::User, text, text);
            }
            "agent_message" => {
                let text = event.message.as_deref().unwrap_or("");
                self.heard(time, Said::Assistant, text, text);
            }
            "agent_reasoning" | "agent_reasoning_raw_content" => {
                let text = event.text.as_deref().unwrap_or("");
                self.heard(time, Said::Thinking, text, text);
            }
            "item_completed" => {
                let item = event.item.map(RawValue::get).unwrap_or("null");
                match serde_json::from_str::<CompletedItem<'_>>(item) {
                    Ok(completed) => self.completed(time, &completed, item, sink),
                    Err(_) => unknown(time, &event.kind, json, sink),
                }
            }
            "task_complete" => {
                if let Some(error) = event.error.filter(|_| event.failed()) {
                    sink(time, Item::Notice { kind: "error".into(), text: error_text(error) });
                }
            }
            "turn_aborted" => {
                let text = event.reason.clone().unwrap_or_default();
                sink(time, Item::Notice { kind: "aborted".into(), text });
            }
            "error" | "stream_error" | "warning" => {
                let text = event.message.clone().unwrap_or_default();
                sink(time, Item::Notice { kind: event.kind.clone(), text });
            }
            // Said by other lines, or counters.
            "task_started"
            | "turn_started"
            | "turn_complete"
            | "thread_settings_applied"
            | "token_count"
            | "context_compacted"
            | "thread_rolled_back"
            | "item_started" => {}
            other => unknown(time, other, json, sink),
        }
    }

    fn completed(
        &mut self,
        time: Option<Timestamp>,
        item: &CompletedItem<'_>,
        json: &str,
        sink: &mut ItemSink<'_>,
    ) {
        let id = item.id.as_deref().unwrap_or("");
        match &*item.kind {
            "UserMessage" => {
                let text = text_of(&item.content);
                self.heard(time, Said::User, &text, &text);
            }
            "AgentMessage" => {
                let text = text_of(&item.content);
                self.heard(time, Said::Assistant, &text, &text);
            }
            "Reasoning" => {
                for text in item.summary_text.iter().chain(&item.raw_content) {
                    self.heard(time, Said::Thinking, text, text);
                }
            }
            // A command of the user's own (`!ls`) has no call; one of the model's has.
            "CommandExecution" => {
                let command = item.command.map(RawValue::get).unwrap_or("");
                let output = item.aggregated_output.as_deref().unwrap_or("");
                self.heard(time, Said::Call, id, &format!("{command}\n{output}"));
            }
            "ContextCompaction" => {}
            // Their calls and results are response items.
            "CollabAgentToolCall"
            | "FileChange"
            | "McpToolCall"
            | "WebSearch"
            | "ImageView"
            | "ImageGeneration"
            | "DynamicToolCall" => {}
            other => unknown(time, other, json, sink),
        }
    }
}

fn unknown(time: Option<Timestamp>, kind: &str, json: &str, sink: &mut ItemSink<'_>) {
    sink(time, Item::Unknown { kind: kind.into(), json: json.into() });
}

fn told_by_client(time: Option<Timestamp>, response: &Response<'_>, sink: &mut ItemSink<'_>) {
    let kind = response.content_kinds().and_then(|kinds| kinds.first()).map_or("client", |kind| kind);
    // `generic.turn_aborted`, `compaction.summary`: for people to read.
    let kind = kind.strip_prefix("generic.").unwrap_or(kind).replace(['.', '_'], " ");
    sink(time, Item::Notice { kind: kind.into(), text: text_of(&response.content) });
}

fn blobs(time: Option<Timestamp>, parts: &[Part<'_>], sink: &mut ItemSink<'_>) {
    for url in parts.iter().filter_map(|part| part.image_url.as_deref()) {
        let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(','));
        let item = match data {
            Some((head, data)) => {
                let media_type = head.split(';').next().unwrap_or("image");
                let bytes = if head.ends_with("base64") {
                    let padding = data.bytes().rev().take_while(|byte| *byte == b'=').count();
                    (data.len() / 4 * 3).saturating_sub(padding)
                } else {
                    data.len()
                };
                Item::Blob { media_type: media_type.into(), bytes: bytes as u64 }
            }
            None => Item::Notice { kind: "image".into(), text: url.into() },
        };
        sink(time, item);
    }
}

/// Calls and their results.
fn tool(time: Option<Timestamp>, response: &Response<'_>, json: &str, sink: &mut ItemSink<'_>) {
    let id: Cow<'_, str> = response.call_id.as_deref().or(response.id.as_deref()).unwrap_or("").into();
    let text = |raw: Option<&'_ RawValue>| raw.map(|raw| string_or_json(raw).into_owned());
    match &*response.kind {
        "function_call" | "custom_tool_call" | "local_shell_call" | "web_search_call"
        | "tool_search_call" => {
            let name = response.name.as_deref().unwrap_or(&response.kind).into();
            let arguments = text(response.arguments.or(response.input).or(response.action));
            sink(time, Item::ToolCall { name, id, arguments: arguments.unwrap_or_default().into() });
        }
        "function_call_output" | "custom_tool_call_output" | "tool_search_output" => {
            let (output, is_error) = response.output.map_or((String::new(), false), output_of);
            sink(time, Item::ToolResult { id, output: output.into(), is_error });
            if let Some(Ok(parts)) =
                response.output.map(|raw| serde_json::from_str::<Vec<Part<'_>>>(raw.get()))
            {
                blobs(time, &parts, sink);
            }
        }
        "ghost_snapshot" => {}
        other => unknown(time, other, json, sink),
    }
}

/// A result is a text, a list of parts, or `{content, success}`.
fn output_of(raw: &RawValue) -> (String, bool) {
    #[derive(serde::Deserialize)]
    struct Output<'a> {
        #[serde(borrow)]
        content: &'a RawValue,
        #[serde(default)]
        success: Option<bool>,
    }
    if let Ok(parts) = serde_json::from_str::<Vec<Part<'_>>>(raw.get()) {
        return (text_of(&parts).into_owned(), false);
    }
    match serde_json::from_str::<Output<'_>>(raw.get()) {
        Ok(output) => (string_or_json(output.content).into_owned(), output.success == Some(false)),
        Err(_) => (string_or_json(raw).into_owned(), false),
    }
}

fn error_text(error: &RawValue) -> Cow<'_, str> {
    #[derive(serde::Deserialize)]
    struct Error<'a> {
        #[serde(borrow)]
        message: Cow<'a, str>,
    }
    match serde_json::from_str::<Error<'_>>(error.get()) {
        Ok(Error { message }) => message,
        Err(_) => Cow::Borrowed(error.get()),
    }
}

/// One entry of the model's history, with what the client put in.
pub fn model_item(time: Option<Timestamp>, payload: &str, sink: &mut ItemSink<'_>) {
    let json = readable(payload);
    let Ok(response) = serde_json::from_str::<Response<'_>>(&json) else {
        return unknown(time, "response_item", &json, sink);
    };
    match (&*response.kind, response.voice()) {
        ("message", Voice::User) => {
            sink(time, Item::User { text: text_of(&response.content) });
            blobs(time, &response.content, sink);
        }
        ("message", Voice::Assistant) => sink(time, Item::Assistant { text: text_of(&response.content) }),
        ("message", Voice::Told) => told_by_client(time, &response, sink),
        ("message", Voice::Injected) => {
            let role = response.role.clone().unwrap_or_default();
            let kind = match role.as_ref() {
                "user" => Cow::Borrowed("context"),
                _ => role,
            };
            sink(time, Item::Notice { kind, text: text_of(&response.content) });
        }
        ("reasoning", _) => {
            for part in response.summary.iter().chain(&response.content) {
                sink(time, Item::Thinking { text: part.text.clone().unwrap_or_default() });
            }
        }
        _ => tool(time, &response, &json, sink),
    }
}

/// What a line is for `thread_rolled_back`, which counts user messages, not turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Start,
    User,
    RolledBack(u64),
    Nothing,
}

impl Mark {
    pub fn of(line: &Line<'_>) -> Mark {
        match &*line.kind {
            "event_msg" => match line.payload::<Event<'_>>() {
                Some(event) if event.kind == "task_started" => Mark::Start,
                Some(event) if event.kind == "thread_rolled_back" => {
                    Mark::RolledBack(event.num_turns.unwrap_or(0))
                }
                _ => Mark::Nothing,
            },
            "response_item" => {
                let payload = readable(line.payload.get());
                match serde_json::from_str::<Response<'_>>(&payload) {
                    Ok(response) if response.kind == "message" && response.voice() == Voice::User => {
                        Mark::User
                    }
                    _ => Mark::Nothing,
                }
            }
            _ => Mark::Nothing,
        }
    }
}

/// The parts of a turn's bytes that a later rollback in the same bytes took back.
fn taken_back(span: &[u8]) -> Vec<Range<u64>> {
    if memchr::memmem::find(span, b"\"thread_rolled_back\"").is_none() {
        return Vec::new();
    }
    // Where each user message's part begins: the turn's start for the first one of a turn.
    let (mut users, mut taken, mut start) = (Vec::new(), Vec::new(), Some(0));
    scan_bytes(span, 1, 0, |line| {
        let Some(record) = Line::parse(line.bytes) else { return };
        match Mark::of(&record) {
            Mark::Start => start = Some(line.start),
            Mark::User => users.push(start.take().unwrap_or(line.start)),
            Mark::RolledBack(count) => {
                let keep = users.len().saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
                if let Some(from) = users.get(keep) {
                    taken.push(*from..line.end);
                }
                users.truncate(keep);
                start = Some(line.end);
            }
            Mark::Nothing => {}
        }
    });
    taken
}

/// Gives every record line of a turn that still counts to `each`.
pub fn lines_of(span: &[u8], mut each: impl FnMut(&Line<'_>)) {
    let taken = taken_back(span);
    scan_bytes(span, 1, 0, |line| {
        if taken.iter().any(|range| range.contains(&line.start)) {
            return;
        }
        if let Some(record) = Line::parse(line.bytes) {
            each(&record);
        }
    });
}
