//! Records to items: what a wire line, or a context line where there is no wire, shows to a reader.
//!
//! The same functions serve the pass that counts sizes and the reads that render, so that sizes are
//! right by construction. Each line's items depend on that line alone.

use std::borrow::Cow;
use std::fmt::Write as _;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::json::{Content, JsonStr, Part, objects};
use super::parse::{Context, Message, ToolResult, Wire};
use super::tools;
use crate::agents::data_url;
use crate::agents::json::{Object, readable};
use crate::session::{Item, ItemSink, Outcome};

/// The items of a wire line; `line` is its text.
pub(super) fn of_wire(wire: &Wire<'_>, line: &[u8], sink: &mut ItemSink<'_>) {
    let Wire::Message { time, message } = wire else { return };
    let sink = &mut |item: Item<'_>| sink(*time, item);
    match message {
        Message::TurnBegin(input) => prompt(*input, |text| Item::User { text }, sink),
        Message::SteerInput(input) => prompt(*input, |text| Item::Steer { text }, sink),
        Message::TurnEnd | Message::StepBegin(_) => {}
        Message::StepInterrupted => sink(Item::Interrupted { text: "".into() }),
        Message::CompactionBegin => notice("compaction", "begins".into(), sink),
        Message::CompactionEnd => sink(Item::Compaction { text: "".into() }),
        Message::Part(Part::Unknown { kind, json: "" }) => {
            let kind = format!("ContentPart {}", kind.text());
            sink(Item::Unknown { kind: kind.into(), json: String::from_utf8_lossy(line) });
        }
        Message::Part(part) => reply_part(part, sink),
        Message::ToolCall { id, name, arguments } => call(*id, *name, *arguments, sink),
        Message::ToolResult { id, result } => wire_result(*id, result, sink),
        Message::Other { kind, payload } => other(&kind.text(), payload, sink),
    }
}

/// The items of a context line; `line` is its text.
pub(super) fn of_context(record: &Context<'_>, line: &[u8], sink: &mut ItemSink<'_>) {
    let sink = &mut |item: Item<'_>| sink(None::<Timestamp>, item);
    match &*record.role.text() {
        "_checkpoint" | "_usage" => {}
        "_system_prompt" | "system" => {
            notice("system prompt", record.content.text().unwrap_or_default(), sink);
        }
        "user" => prompt(record.content, |text| Item::User { text }, sink),
        "assistant" => {
            record.content.each_part(|part| reply_part(&part, sink));
            record.tool_calls.each(|each| call(each.id, each.name, each.arguments, sink));
        }
        "tool" => {
            let output = output(record.content);
            let outcome = Outcome::of(output.starts_with("<system>ERROR"));
            let id = record.tool_call_id.map(JsonStr::text).unwrap_or_default();
            sink(Item::ToolResult { id, output, outcome });
            other_parts(record.content, sink);
        }
        role => sink(Item::Unknown { kind: role.to_owned().into(), json: String::from_utf8_lossy(line) }),
    }
}

type Sink<'s> = dyn FnMut(Item<'_>) + 's;

/// A user's text, as the client joins it, then what else the input holds.
fn prompt(content: Content<'_>, item: impl Fn(Cow<'_, str>) -> Item<'_>, sink: &mut Sink<'_>) {
    match content.text() {
        Some(text) => sink(item(text)),
        None => {
            let mut is_empty = true;
            content.each_part(|_| is_empty = false);
            if is_empty {
                sink(item("".into()));
            }
        }
    }
    other_parts(content, sink);
}

/// What a content holds besides text.
fn other_parts(content: Content<'_>, sink: &mut Sink<'_>) {
    if let Content::Parts(_) = content {
        content.each_part(|part| {
            if !matches!(part, Part::Text(_)) {
                reply_part(&part, sink);
            }
        });
    }
}

fn reply_part(part: &Part<'_>, sink: &mut Sink<'_>) {
    match part {
        Part::Text(text) => sink(Item::Assistant { text: text.text() }),
        Part::Thinking(text) => sink(Item::Thinking { text: text.text() }),
        Part::Url { kind, url } => {
            let url = url.text();
            match Part::blob(kind, &url) {
                Some((media_type, bytes)) => {
                    let base64 = data_url::base64_in(&url).into();
                    sink(Item::Blob { media_type: media_type.into(), bytes, base64 });
                }
                None => notice(kind, url, sink),
            }
        }
        Part::Unknown { kind, json } => sink(Item::Unknown { kind: kind.text(), json: (*json).into() }),
    }
}

fn call(id: JsonStr<'_>, name: JsonStr<'_>, arguments: Option<JsonStr<'_>>, sink: &mut Sink<'_>) {
    let arguments = arguments.map(JsonStr::text).unwrap_or_default();
    let name = name.text();
    sink(Item::ToolCall { asked: tools::asked(&name, &arguments), id: id.text(), name });
}

/// A tool's output, and its message for the model where it is something else.
fn wire_result(id: JsonStr<'_>, result: &ToolResult<'_>, sink: &mut Sink<'_>) {
    let id = id.text();
    let content = Content::of(result.output);
    let text = content.map_or_else(|| result.output.get().into(), output);
    let message = result.message.map(JsonStr::text).unwrap_or_default();
    let exit_code = tools::exit_code(&message);
    let outcome = Outcome { exit_code, ..Outcome::of(result.is_error) };
    if exit_code.is_some() {
        // The message says nothing else.
        sink(Item::ToolResult { id, output: text, outcome });
    } else if text.is_empty() {
        sink(Item::ToolResult { id, output: message, outcome });
    } else {
        sink(Item::ToolResult { id, output: text, outcome });
        if !message.is_empty() {
            notice("tool", message, sink);
        }
    }
    if let Some(content) = content {
        other_parts(content, sink);
    }
}

/// The text of an output, one part per line.
fn output(content: Content<'_>) -> Cow<'_, str> {
    let line = |joined: &mut String| {
        if !joined.is_empty() && !joined.ends_with('\n') {
            joined.push('\n');
        }
    };
    content.text_joined(line).unwrap_or_default()
}

fn notice(kind: &str, text: Cow<'_, str>, sink: &mut Sink<'_>) {
    sink(Item::Notice { kind: kind.into(), text });
}

objects! {
    /// The fields of payloads that become notices. Everything is optional: a payload of another shape is
    /// shown as it is. Facts: `docs/stores/kimi-cli.md`, "2.2 wire.jsonl".
    struct Fields<'a> {
        title: &'a RawValue = "title",
        body: &'a RawValue = "body",
        event: &'a RawValue = "event",
        target: &'a RawValue = "target",
        action: &'a RawValue = "action",
        reason: &'a RawValue = "reason",
        sender: &'a RawValue = "sender",
        description: &'a RawValue = "description",
        response: &'a RawValue = "response",
        feedback: &'a RawValue = "feedback",
        questions: &'a RawValue = "questions",
        answers: &'a RawValue = "answers",
        content: &'a RawValue = "content",
        file_path: &'a RawValue = "file_path",
        question: &'a RawValue = "question",
        error: &'a RawValue = "error",
        error_type: &'a RawValue = "error_type",
        status_code: &'a RawValue = "status_code",
        next_attempt: &'a RawValue = "next_attempt",
        max_attempts: &'a RawValue = "max_attempts",
        wait_s: &'a RawValue = "wait_s",
        agent_id: &'a RawValue = "agent_id",
        subagent_type: &'a RawValue = "subagent_type",
        task_tool_call_id: &'a RawValue = "task_tool_call_id",
    }
    struct Event<'a> {
        kind: JsonStr<'a> = "type",
    }
}

fn other(kind: &str, payload: &RawValue, sink: &mut Sink<'_>) {
    if matches!(kind, "StatusUpdate" | "MCPLoadingBegin" | "MCPLoadingEnd") {
        return;
    }
    let fields: Fields<'_> = serde_json::from_str(payload.get()).unwrap_or_default();
    let f = &fields;
    let said = match kind {
        "Notification" => ("notification", lines(&[f.title, f.body])),
        "StepRetry" => ("retry", retry(f)),
        "HookTriggered" => ("hook", words(&[f.event, f.target])),
        "HookResolved" => ("hook", lines_of(&[words(&[f.event, f.target, f.action]), words(&[f.reason])])),
        "ApprovalRequest" => {
            ("approval request", lines_of(&[words(&[f.sender, f.action]), words(&[f.description])]))
        }
        "ApprovalResponse" => ("approval", lines(&[f.response, f.feedback])),
        "QuestionRequest" => ("question", questions(f.questions)),
        "QuestionResponse" => ("answer", answers(f.answers)),
        "PlanDisplay" => ("plan", lines(&[f.file_path, f.content])),
        "BtwBegin" => ("side question", words(&[f.question])),
        "BtwEnd" => ("side answer", lines(&[f.response, f.error])),
        "SubagentEvent" => ("sub-agent", subagent(f)),
        _ => {
            return sink(Item::Unknown { kind: kind.into(), json: payload.get().into() });
        }
    };
    if said.1.is_empty() {
        sink(Item::Unknown { kind: kind.into(), json: payload.get().into() });
    } else {
        notice(said.0, said.1.into(), sink);
    }
}

/// A value as text: a string's text, `null` as nothing, anything else as JSON.
fn shown<'a>(raw: Option<&'a RawValue>) -> Cow<'a, str> {
    match raw {
        None => "".into(),
        Some(raw) => match JsonStr::of(raw) {
            Some(text) => text.text(),
            None if raw.get() == "null" => "".into(),
            None => raw.get().into(),
        },
    }
}

fn joined(values: &[Option<&RawValue>], between: &str) -> String {
    let texts: Vec<_> = values.iter().map(|raw| shown(*raw)).filter(|text| !text.is_empty()).collect();
    texts.join(between)
}

fn words(values: &[Option<&RawValue>]) -> String {
    joined(values, " ")
}

fn lines(values: &[Option<&RawValue>]) -> String {
    joined(values, "\n")
}

fn lines_of(values: &[String]) -> String {
    let texts: Vec<&str> = values.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    texts.join("\n")
}

fn retry(f: &Fields<'_>) -> String {
    let (attempt, of) = (shown(f.next_attempt), shown(f.max_attempts));
    let mut text = format!("attempt {attempt} of {of}");
    let why = words(&[f.error_type, f.status_code]);
    // Writing into a String cannot fail.
    if !why.is_empty() {
        let _ = write!(text, " after {why}");
    }
    let wait = shown(f.wait_s);
    if !wait.is_empty() {
        let _ = write!(text, ", in {wait} s");
    }
    text
}

fn subagent(f: &Fields<'_>) -> String {
    let event = f.event.and_then(|raw| serde_json::from_str::<Event<'_>>(raw.get()).ok()?.kind);
    let event = event.map_or("an event".into(), JsonStr::text);
    // Clients before 1.25 say only which call the sub-agent works for.
    let who = f.agent_id.or(f.task_tool_call_id);
    format!("{}: {event}", words(&[f.subagent_type, who]))
}

fn questions(raw: Option<&RawValue>) -> String {
    #[derive(Deserialize)]
    struct Question<'a> {
        #[serde(borrow)]
        question: JsonStr<'a>,
        #[serde(borrow, default)]
        body: Option<JsonStr<'a>>,
        #[serde(borrow, default)]
        options: Vec<Choice<'a>>,
    }
    #[derive(Deserialize)]
    struct Choice<'a> {
        #[serde(borrow)]
        label: JsonStr<'a>,
        #[serde(borrow, default)]
        description: Option<JsonStr<'a>>,
    }
    let Some(list) = raw else { return String::new() };
    let Ok(list) = serde_json::from_str::<Vec<Question<'_>>>(list.get()) else {
        return list.get().to_owned();
    };
    let mut text = String::new();
    for each in list {
        let _ = writeln!(text, "{}", each.question.text());
        if let Some(body) = each.body.map(JsonStr::text).filter(|body| !body.is_empty()) {
            let _ = writeln!(text, "{body}");
        }
        for choice in each.options {
            let _ = write!(text, "- {}", choice.label.text());
            match choice.description.map(JsonStr::text).filter(|description| !description.is_empty()) {
                Some(description) => {
                    let _ = writeln!(text, ": {description}");
                }
                None => text.push('\n'),
            }
        }
    }
    text
}

fn answers(raw: Option<&RawValue>) -> String {
    let Some(list) = raw else { return String::new() };
    // A map in the file's order.
    let answers = || -> Result<Vec<String>, serde_json::Error> {
        let map = Object::parse(&readable(list.get()))?;
        map.fields()
            .map(|(question, answer)| Ok(format!("{question}: {}", serde_json::from_str::<String>(answer)?)))
            .collect()
    };
    answers().map_or_else(|_| list.get().to_owned(), |lines| lines.join("\n"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::parse;
    use super::*;
    use crate::render;

    fn shown(message: &str) -> String {
        let line = format!(r#"{{"timestamp": 1796045259.5, "message": {message}}}"#);
        let mut text = String::new();
        of_wire(&parse::wire(line.as_bytes()).unwrap(), line.as_bytes(), &mut |time, item| {
            assert!(time.is_some());
            render::item(&item, &mut text);
        });
        text
    }

    #[test]
    fn every_record_type_is_shown_or_known_to_be_silent() {
        let cases = [
            (r#"{"type": "TurnBegin", "payload": {"user_input": "hi \ud800"}}"#, "## User\n\nhi \u{fffd}"),
            (
                r#"{"type": "SteerInput", "payload": {"user_input": [{"type":"text","text":"a"},{"type":"text","text":"b"}]}}"#,
                "## Steer\n\na b",
            ),
            (
                r#"{"type": "TurnBegin", "payload": {"user_input": [{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:image/png;base64,QUJD"}}]}}"#,
                "[image/png, 3 bytes]",
            ),
            (
                r#"{"type": "ContentPart", "payload": {"type":"think","think":"hm","encrypted":null}}"#,
                "## Thinking\n\nhm",
            ),
            (r#"{"type": "ContentPart", "payload": {"type":"hologram","x":1}}"#, "\"hologram\",\"x\":1"),
            (
                r#"{"type": "ToolCall", "payload": {"id":"c1","function":{"name":"Shell","arguments":"{\"command\":\"ls\"}"},"extras":null}}"#,
                "Shell (c1)",
            ),
            (
                r#"{"type": "ToolResult", "payload": {"tool_call_id":"c1","return_value":{"is_error":false,"output":"out\n","message":"Done.","display":[]}}}"#,
                "out\n",
            ),
            (
                r#"{"type": "ToolResult", "payload": {"tool_call_id":"c1","return_value":{"is_error":true,"output":"","message":"No such file"}}}"#,
                "No such file",
            ),
            (
                r#"{"type": "ToolResult", "payload": {"tool_call_id":"c1","return_value":{"is_error":false,"output":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"message":""}}}"#,
                "a\nb",
            ),
            (r#"{"type": "StepInterrupted", "payload": {}}"#, "## Interrupted"),
            (
                r#"{"type": "StepRetry", "payload": {"n":1,"next_attempt":2,"max_attempts":3,"wait_s":0.5,"error_type":"APIError","status_code":500}}"#,
                "attempt 2 of 3 after APIError 500, in 0.5 s",
            ),
            (r#"{"type": "CompactionEnd", "payload": {}}"#, "## Compaction"),
            (r#"{"type": "Notification", "payload": {"title":"T","body":"B"}}"#, "T\nB"),
            (
                r#"{"type": "HookResolved", "payload": {"event":"Stop","target":"x","action":"block","reason":"no"}}"#,
                "Stop x block\nno",
            ),
            (
                r#"{"type": "ApprovalRequest", "payload": {"sender":"Shell","action":"run","description":"rm x"}}"#,
                "Shell run\nrm x",
            ),
            (r#"{"type": "ApprovalResponse", "payload": {"response":"approve","feedback":""}}"#, "approve"),
            (
                r#"{"type": "QuestionRequest", "payload": {"questions":[{"question":"Q?","options":[{"label":"A","description":"d"}]}]}}"#,
                "Q?\n- A: d",
            ),
            (r#"{"type": "QuestionResponse", "payload": {"answers":{"Q?":"A"}}}"#, "Q?: A"),
            (r#"{"type": "PlanDisplay", "payload": {"content":"do it","file_path":"/p"}}"#, "/p\ndo it"),
            (r#"{"type": "BtwEnd", "payload": {"id":"1","response":"yes"}}"#, "yes"),
            (
                r#"{"type": "SubagentEvent", "payload": {"agent_id":"a1","subagent_type":"explore","event":{"type":"TurnEnd","payload":{}}}}"#,
                "explore a1: TurnEnd",
            ),
            (r#"{"type": "NewThing", "payload": {"x": 1}}"#, "{\"x\": 1}"),
        ];
        for (message, expected) in cases {
            // Notices are quoted.
            let text = shown(message).replace("\n> ", "\n");
            assert!(text.contains(expected), "{message} is shown as {text}");
        }
        for silent in ["StatusUpdate", "TurnEnd", "MCPLoadingBegin"] {
            assert_eq!(shown(&format!(r#"{{"type": "{silent}", "payload": {{}}}}"#)), "");
        }
        assert_eq!(shown(r#"{"type": "StepBegin", "payload": {"n": 1}}"#), "");
    }
}
