//! One line of a wire as a record: what of it decides branches, turns and texts. Everything else stays untouched
//! bytes. Facts: `docs/stores/kimi-code.md`, "2. Records".

use std::borrow::Cow;

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::kinds::BOOKKEEPING;
use super::messages::{Message, Part, Returned, message, part, result};
use super::values::{number, spelled, string};
use crate::session::{DamageClass, Tokens, sum_of};
use crate::transcript::Format;

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
        /// Where a command is to run.
        directory: Option<String>,
    },
    Result {
        id: String,
        output: String,
        is_error: bool,
        duration: Option<SignedDuration>,
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
    /// What a request took.
    Usage {
        model: Option<String>,
        tokens: Tokens,
    },
    Bookkeeping,
    Unknown,
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
    model_alias: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
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
        "profile.bind" | "config.update" => Body::Bind { model: text(keys.model_alias), workspace: false },
        "runtime.set_binding" => Body::Bind { model: None, workspace: true },
        "usage.record" => {
            Body::Usage { model: text(keys.model), tokens: keys.usage.and_then(tokens).unwrap_or_default() }
        }
        kind if kind.starts_with("file_history.") => Body::FileHistory,
        kind if BOOKKEEPING.binary_search(&kind).is_ok() => Body::Bookkeeping,
        _ => Body::Unknown,
    })
}

/// What the client counts, all in numbers of their own: nothing is in two of them.
fn tokens(usage: &RawValue) -> Option<Tokens> {
    #[derive(Deserialize)]
    struct Usage<'a> {
        #[serde(borrow, rename = "inputOther")]
        other: Option<&'a RawValue>,
        #[serde(borrow, rename = "inputCacheRead")]
        cache_read: Option<&'a RawValue>,
        #[serde(borrow, rename = "inputCacheCreation")]
        cache_creation: Option<&'a RawValue>,
        #[serde(borrow)]
        output: Option<&'a RawValue>,
    }
    let usage: Usage<'_> = serde_json::from_str(usage.get()).ok()?;
    let count = |value: Option<&RawValue>| value.and_then(number).and_then(|n| u64::try_from(n).ok());
    Some(Tokens {
        input: sum_of([usage.other, usage.cache_read, usage.cache_creation].map(count)),
        cached: count(usage.cache_read),
        output: count(usage.output),
        reasoning: None,
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
        display: Option<&'a RawValue>,
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
            directory: event.display.and_then(directory),
        },
        Some("tool.result") => {
            let Returned { output, is_error, duration } = event.result.map(result).unwrap_or_default();
            Body::Result { id: text(event.call), output, is_error, duration }
        }
        Some("step.begin" | "step.end") => Body::Bookkeeping,
        Some(_) => Body::Unknown,
        None => return Err("its event's type is not a text".into()),
    })
}

/// The directory that the client shows beside a command.
fn directory(display: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Display<'a> {
        #[serde(borrow)]
        kind: &'a RawValue,
        #[serde(borrow)]
        cwd: &'a RawValue,
    }
    let display: Display<'_> = serde_json::from_str(display.get()).ok()?;
    string(display.cwd).filter(|_| display.kind.get() == "\"command\"")
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
    use super::super::messages::Whose;
    use super::*;

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
