//! One line of a wire as a record: what of it decides branches, turns and texts. Everything else stays untouched
//! bytes. Facts: `docs/stores/kimi-code.md`, "2. Records".

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::agents::data_url;
use crate::agents::json::{self, each_of};
use crate::session::DamageClass;
use crate::transcript::Format;

/// The records that are bookkeeping of the client: kept, and not shown. (What they tell of a turn is told by others.)
const BOOKKEEPING: [&str; 75] = [
    "agent.message.appended",
    "agent.status.updated",
    "agent.turn.ended",
    "agent.turn.started",
    "compaction.blocked",
    "compaction.cancelled",
    "compaction.completed",
    "compaction.started",
    "config.update",
    "context.spliced",
    "cron.add",
    "cron.cursor",
    "cron.delete",
    "cron.fired",
    "file_history.checkpoint",
    "file_history.tracked",
    "forked",
    "full_compaction.begin",
    "full_compaction.cancel",
    "full_compaction.complete",
    "goal.clear",
    "goal.create",
    "goal.update",
    "goal.updated",
    "interaction.request",
    "interaction.resolved",
    "interruptionReminder.recorded",
    "llm.request",
    "llm.tools_snapshot",
    "mcp.server.status",
    "mcp.tools_discovered",
    "permission.approval.requested",
    "permission.approval.resolved",
    "permission.record_approval_result",
    "permission.rules.add",
    "permission.set_mode",
    "plan.revision",
    "plan_mode.cancel",
    "plan_mode.enter",
    "plan_mode.exit",
    "plugin.session_start",
    "plugin_command.activated",
    "profile.bind",
    "prompt.aborted",
    "prompt.completed",
    "prompt.queued",
    "prompt.started",
    "prompt.steered",
    "prompt.submitted",
    "runtime.set_binding",
    "skill.activated",
    "subagent.cancelled",
    "subagent.completed",
    "subagent.failed",
    "subagent.spawned",
    "subagent.started",
    "subagent.suspended",
    "task.notified",
    "task.started",
    "task.terminated",
    "task.waitDelivered",
    "token_counting.measured",
    "token_counting.rebased",
    "token_counting.truncated",
    "token_counting.turn_recorded",
    "tools.register_user_tool",
    "tools.reset_active_tools",
    "tools.set_active_tools",
    "tools.unregister_user_tool",
    "tools.update_store",
    "turn.cancel",
    "turn.prompt",
    "turn.steer",
    "turn.step.interrupted",
    "usage.record",
];

/// A record of a wire.
#[derive(Debug)]
pub(super) struct Record {
    pub kind: String,
    /// Milliseconds since 1970.
    pub time: Option<i64>,
    pub body: Body,
}

/// What a record says.
#[derive(Debug)]
pub(super) enum Body {
    Metadata {
        protocol: Option<String>,
        created: Option<i64>,
    },
    Message(Message),
    Part(Part),
    Call {
        id: String,
        name: String,
        arguments: String,
    },
    Result {
        id: String,
        output: String,
        is_error: bool,
    },
    /// `kept` and `head`: how many of the user's messages before it the model is still sent, and how many of these
    /// are the first ones.
    Compaction {
        summary: String,
        kept: Option<u64>,
        head: Option<u64>,
    },
    Clear,
    Switched(Edge),
    Undo {
        count: u64,
    },
    Undone,
    Prompt {
        id: Option<String>,
        turn: Option<i64>,
    },
    /// Another record of the prompt with this id.
    Owned {
        prompt: String,
    },
    Ended {
        reason: String,
        error: Option<String>,
    },
    Bind {
        model: Option<String>,
        workspace: bool,
    },
    FileHistory,
    Bookkeeping,
    Unknown,
}

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
    Blob { media_type: String, bytes: u64 },
}

/// A new branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub branch: String,
    pub base: String,
    /// From 1, counted in records.
    pub line: u64,
    /// The line of the `context.undo` that belongs to it.
    pub undo_line: Option<u64>,
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

/// The keys of a record that are looked at; the values only where its type needs them.
#[derive(Deserialize)]
struct Keys<'a> {
    #[serde(borrow, rename = "type")]
    kind: &'a RawValue,
    #[serde(borrow)]
    time: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    event: Option<&'a RawValue>,
    #[serde(borrow)]
    base: Option<&'a RawValue>,
    #[serde(borrow)]
    branch: Option<&'a RawValue>,
    #[serde(borrow, rename = "legacyUndoLine")]
    undo_line: Option<&'a RawValue>,
    #[serde(borrow)]
    count: Option<&'a RawValue>,
    #[serde(borrow, rename = "promptId")]
    prompt_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "turnId")]
    turn_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "queueItemId")]
    queue_item: Option<&'a RawValue>,
    #[serde(borrow)]
    reason: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    protocol_version: Option<&'a RawValue>,
    #[serde(borrow)]
    created_at: Option<&'a RawValue>,
    #[serde(borrow, rename = "modelAlias")]
    model: Option<&'a RawValue>,
    #[serde(borrow, rename = "contextSummary")]
    context_summary: Option<&'a RawValue>,
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
    #[serde(borrow, rename = "keptUserMessageCount")]
    kept: Option<&'a RawValue>,
    #[serde(borrow, rename = "keptHeadUserMessageCount")]
    head: Option<&'a RawValue>,
}

/// A record.
///
/// # Errors
/// Why the line is not one, in words.
pub(super) fn parse(line: &[u8]) -> Result<Record, String> {
    let text = simdutf8::basic::from_utf8(line).map_err(|_| "it is not valid UTF-8".to_owned())?;
    let keys: Keys<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let kind = string(keys.kind).ok_or("its type is not a text")?;
    let time = keys.time.and_then(number);
    let body = body(&kind, &keys)?;
    Ok(Record { kind, time, body })
}

/// The time of a record, milliseconds since 1970.
pub(super) fn time(line: &[u8]) -> Option<i64> {
    #[derive(Deserialize)]
    struct Timed<'a> {
        #[serde(borrow, rename = "type")]
        _kind: &'a RawValue,
        #[serde(borrow)]
        time: Option<&'a RawValue>,
    }
    number(serde_json::from_slice::<Timed<'_>>(line).ok()?.time?)
}

fn body(kind: &str, keys: &Keys<'_>) -> Result<Body, String> {
    let text = |value: Option<&RawValue>| value.and_then(string);
    Ok(match kind {
        "metadata" => Body::Metadata {
            protocol: text(keys.protocol_version),
            created: keys.created_at.and_then(number),
        },
        "context.append_message" => {
            let message = keys.message.ok_or("a message is missing")?;
            Body::Message(self::message(message)?)
        }
        "context.append_loop_event" => event(keys.event.ok_or("an event is missing")?)?,
        "context.apply_compaction" => {
            let old = || keys.summary.and_then(|raw| message(raw).ok()).map(|message| message.text());
            let summary = text(keys.context_summary).or_else(|| text(keys.summary)).or_else(old);
            let count = |value: Option<&RawValue>| value.and_then(number).and_then(|n| u64::try_from(n).ok());
            let summary = summary.ok_or("a summary is missing")?;
            Body::Compaction { summary, kept: count(keys.kept), head: count(keys.head) }
        }
        "context.clear" => Body::Clear,
        "agent.switched" => Body::Switched(edge(keys).ok_or("a branch or its base is missing")?),
        "context.undo" => {
            let count = keys.count.and_then(number).and_then(|count| u64::try_from(count).ok());
            Body::Undo { count: count.filter(|count| *count > 0).ok_or("the number of turns is missing")? }
        }
        "context.undone" => Body::Undone,
        "turn.prompt" => Body::Prompt { id: text(keys.prompt_id), turn: keys.turn_id.and_then(number) },
        "prompt.completed" => text(keys.prompt_id).map_or(Body::Bookkeeping, |prompt| Body::Owned { prompt }),
        "agent.turn.started" => {
            text(keys.queue_item).map_or(Body::Bookkeeping, |prompt| Body::Owned { prompt })
        }
        "agent.message.appended" => {
            owner(keys.message).map_or(Body::Bookkeeping, |prompt| Body::Owned { prompt })
        }
        "turn.ended" => Body::Ended {
            reason: text(keys.reason).ok_or("the reason is missing")?,
            error: keys.error.and_then(said),
        },
        "profile.bind" | "config.update" => Body::Bind { model: text(keys.model), workspace: false },
        "runtime.set_binding" => Body::Bind { model: None, workspace: true },
        kind if kind.starts_with("file_history.") => Body::FileHistory,
        kind if BOOKKEEPING.binary_search(&kind).is_ok() => Body::Bookkeeping,
        _ => Body::Unknown,
    })
}

fn edge(keys: &Keys<'_>) -> Option<Edge> {
    #[derive(Deserialize)]
    struct Base<'a> {
        #[serde(borrow)]
        branch: &'a RawValue,
        #[serde(borrow)]
        line: &'a RawValue,
    }
    let base: Base<'_> = serde_json::from_str(keys.base?.get()).ok()?;
    Some(Edge {
        branch: string(keys.branch?)?,
        base: string(base.branch)?,
        line: u64::try_from(number(base.line)?).ok()?,
        undo_line: keys.undo_line.and_then(number).and_then(|line| u64::try_from(line).ok()),
    })
}

/// Of the second family of message records: the prompt that it belongs to.
fn owner(message: Option<&RawValue>) -> Option<String> {
    #[derive(Deserialize)]
    struct Appended<'a> {
        #[serde(borrow)]
        meta: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(borrow, rename = "promptId")]
        prompt: Option<&'a RawValue>,
    }
    let appended: Appended<'_> = serde_json::from_str(message?.get()).ok()?;
    let meta: Meta<'_> = serde_json::from_str(appended.meta?.get()).ok()?;
    string(meta.prompt?)
}

/// The sentence of an error.
fn said(error: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Said<'a> {
        #[serde(borrow)]
        message: Option<&'a RawValue>,
    }
    string(error).or_else(|| string(serde_json::from_str::<Said<'_>>(error.get()).ok()?.message?))
}

fn message(raw: &RawValue) -> Result<Message, String> {
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

/// What a loop event says.
fn event(raw: &RawValue) -> Result<Body, String> {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow, rename = "type")]
        kind: &'a RawValue,
        #[serde(borrow)]
        part: Option<&'a RawValue>,
        #[serde(borrow, rename = "toolCallId")]
        call: Option<&'a RawValue>,
        #[serde(borrow)]
        name: Option<&'a RawValue>,
        #[serde(borrow)]
        args: Option<&'a RawValue>,
        #[serde(borrow)]
        result: Option<&'a RawValue>,
    }
    let event: Event<'_> = serde_json::from_str(raw.get()).map_err(|error| format!("its event: {error}"))?;
    let text = |value: Option<&RawValue>| value.and_then(string).unwrap_or_default();
    Ok(match string(event.kind).as_deref() {
        Some("content.part") => match event.part.map(part) {
            Some(Ok(Some(part))) => Body::Part(part),
            Some(Err(why)) => return Err(why),
            _ => Body::Bookkeeping,
        },
        Some("tool.call") => Body::Call {
            id: text(event.call),
            name: text(event.name),
            arguments: event.args.map(spelled).unwrap_or_default(),
        },
        Some("tool.result") => {
            let (output, is_error) = event.result.map(result).unwrap_or_default();
            Body::Result { id: text(event.call), output, is_error }
        }
        Some("step.begin" | "step.end") => Body::Bookkeeping,
        Some(_) => Body::Unknown,
        None => return Err("its event's type is not a text".into()),
    })
}

/// A tool's output, and whether it failed.
fn result(raw: &RawValue) -> (String, bool) {
    #[derive(Deserialize)]
    struct Result<'a> {
        #[serde(borrow)]
        output: Option<&'a RawValue>,
        #[serde(borrow, rename = "isError")]
        is_error: Option<&'a RawValue>,
    }
    let Ok(result) = serde_json::from_str::<Result<'_>>(raw.get()) else { return (spelled(raw), false) };
    let is_error = result.is_error.is_some_and(|value| value.get() == "true");
    let output = result.output.map(|output| match parts(output) {
        Ok(parts) => {
            let lines = parts.into_iter().map(|part| match part {
                Part::Text(text) | Part::Thinking(text) => text,
                Part::Blob { media_type, bytes } => format!("[{media_type}, {bytes} bytes]"),
            });
            lines.collect::<Vec<_>>().join("\n")
        }
        Err(_) => spelled(output),
    });
    (output.unwrap_or_default(), is_error)
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
fn part(raw: &RawValue) -> Result<Option<Part>, String> {
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
            Some(Part::Blob { media_type, bytes })
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

/// A JSON string's text; a lone surrogate, which the client writes and reads, becomes U+FFFD.
pub(super) fn string(raw: &RawValue) -> Option<String> {
    let json = raw.get();
    if !json.starts_with('"') {
        return None;
    }
    match serde_json::from_str(json) {
        Ok(text) => Some(text),
        Err(_) => serde_json::from_str(&json::readable(json)).ok(),
    }
}

/// A whole number, also where it is written with a fraction.
pub(super) fn number(raw: &RawValue) -> Option<i64> {
    let json = raw.get();
    json.parse().ok().or_else(|| json.parse::<f64>().ok().filter(|n| n.is_finite()).map(|n| n as i64))
}

/// A text as it is, anything else as JSON.
fn spelled(raw: &RawValue) -> String {
    string(raw).unwrap_or_else(|| raw.get().to_owned())
}

/// For unknown records: the line as text.
pub(super) fn lossy(line: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(line)
}

fn is_record(line: &[u8]) -> bool {
    parse(line).is_ok()
}

/// For damage in wires.
pub(super) const RECORDS: Format = Format { is_record, agent: what_the_client_does };

/// Facts: "6. Damage: what the client does".
fn what_the_client_does(class: DamageClass) -> &'static str {
    match class {
        DamageClass::TornTail | DamageClass::NulTail => {
            "kimi-code cuts it off when it opens the session and keeps the file as wire.jsonl.bak"
        }
        DamageClass::NoFinalNewline => {
            "kimi-code reads it, glues its next record to it, and then loses both and all that follows"
        }
        DamageClass::BadRecord | DamageClass::ArrayForm => "kimi-code passes over it",
        _ => "kimi-code cuts off this line and all that follows, and keeps the file as wire.jsonl.bak",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_bookkeeping_is_sorted() {
        assert!(BOOKKEEPING.is_sorted());
    }

    #[test]
    fn a_turn_begins_with_what_the_user_asked_and_with_nothing_else() {
        let line = |origin: &str| {
            format!(
                r#"{{"type":"context.append_message","message":{{"role":"user","content":[],"toolCalls":[]{origin}}}}}"#
            )
        };
        for (origin, of_session, of_subagent) in [
            ("", true, true),
            (r#","origin":{"kind":"user"}"#, true, true),
            (r#","origin":{"kind":"user","inTurn":true}"#, false, false),
            (r#","origin":{"kind":"skill_activation","trigger":"user-slash"}"#, true, true),
            (r#","origin":{"kind":"skill_activation","trigger":"model"}"#, false, false),
            (r#","origin":{"kind":"plugin_command","trigger":"user-slash"}"#, true, true),
            (r#","origin":{"kind":"injection","ownerPromptId":"p"}"#, false, false),
            (r#","origin":{"kind":"task"}"#, false, false),
            (r#","origin":{"kind":"system_trigger"}"#, false, true),
        ] {
            let Body::Message(message) = parse(line(origin).as_bytes()).unwrap().body else { panic!() };
            assert_eq!(message.is_anchor(Whose::Session), of_session, "{origin}");
            assert_eq!(message.is_anchor(Whose::Subagent), of_subagent, "{origin}");
        }
    }

    #[test]
    fn a_line_is_a_record_where_it_says_what_it_is_and_has_what_that_needs() {
        for (line, good) in [
            (r#"{"type":"from.the.future","x":[1]}"#, true),
            (r#"{"type":"context.append_message"}"#, false),
            (r#"{"type":"context.append_message","message":{"role":"user","content":"x"}}"#, false),
            (
                r#"{"type":"context.append_message","message":{"role":"user","content":[{"type":"text","text":"\ud800"}]}}"#,
                true,
            ),
            (r#"{"type":"agent.switched","branch":"b1"}"#, false),
            (r#"{"type":"agent.switched","branch":"b1","base":{"branch":"main","line":3}}"#, true),
            (r#"{"type":"context.undo","count":0}"#, false),
            (r#"{"time":1}"#, false),
            (r#"[1]"#, false),
            ("7", false),
        ] {
            assert_eq!(parse(line.as_bytes()).is_ok(), good, "{line}");
        }
    }
}
