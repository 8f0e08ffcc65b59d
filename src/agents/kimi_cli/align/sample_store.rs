//! A plain reader of sample sessions for the tests of the alignment: whole files, `serde_json::Value`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::super::records::{
    ContextFile, ContextLine, ContextRecord, TextKey, WireEvent, WireLine, call_key, slash_command,
};
use super::super::turns::{Walk, Walker};
use super::LIVE;
use crate::session::from_unix_seconds;

/// A session's files, read.
pub struct Loaded {
    pub walk: Walk,
    pub files: Vec<ContextFile>,
}

/// The folders of all samples.
pub fn sample_folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/kimi-cli");
    let mut folders: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("expected.json").exists());
    folders.sort();
    folders
}

/// Reads a session directory, or a flat session file.
pub fn load(path: &Path) -> Loaded {
    if path.is_file() {
        let file = context_file(path, path.file_name().unwrap().to_str().unwrap());
        return Loaded { walk: Walk::default(), files: vec![file] };
    }
    let number = |name: &str| name.strip_prefix("context_")?.strip_suffix(".jsonl")?.parse::<u64>().ok();
    let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| number(name).is_some()).collect();
    names.sort_by_key(|name| number(name));
    if path.join(LIVE).exists() {
        names.push(LIVE.into());
    }
    let files = names.iter().map(|name| context_file(&path.join(name), name)).collect();
    Loaded { walk: walk(&fs::read(path.join("wire.jsonl")).unwrap_or_default()), files }
}

/// Walks the bytes of a wire.
pub fn walk(bytes: &[u8]) -> Walk {
    let mut walker = Walker::new();
    for (index, (start, end, value)) in lines(bytes).into_iter().enumerate() {
        let time = value.as_ref().and_then(|value| from_unix_seconds(value["timestamp"].as_f64()?));
        let event = value.as_ref().map_or(WireEvent::Invalid, wire_event);
        walker.line(&WireLine { line: index as u64 + 1, start, end, time, event });
    }
    walker.finish()
}

/// Reads the bytes of a context file.
pub fn context(name: &str, bytes: &[u8]) -> ContextFile {
    let lines = lines(bytes).into_iter().map(|(start, end, value)| {
        let record = value.as_ref().map_or(ContextRecord::Invalid, context_record);
        ContextLine { start, end, record }
    });
    ContextFile { name: name.into(), lines: Arc::new(lines.collect()) }
}

fn context_file(path: &Path, name: &str) -> ContextFile {
    context(name, &fs::read(path).unwrap())
}

fn lines(bytes: &[u8]) -> Vec<(u64, u64, Option<Value>)> {
    let mut start = 0;
    let lines = bytes.split_inclusive(|&byte| byte == b'\n').map(|line| {
        let begin = start;
        start += line.len() as u64;
        (begin, start, serde_json::from_slice(line).ok())
    });
    lines.collect()
}

fn texts(content: &Value) -> Vec<&str> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => parts.iter().filter_map(text_of_part).collect(),
        _ => Vec::new(),
    }
}

fn text_of_part(part: &Value) -> Option<&str> {
    match part {
        Value::String(text) => Some(text),
        _ if part["type"] == "text" => part["text"].as_str(),
        _ => None,
    }
}

/// The text of a content, as `TextKey` compares it.
pub fn text_of(content: &Value) -> String {
    texts(content).join(" ")
}

fn wire_event(value: &Value) -> WireEvent {
    let Some(kind) = value["message"]["type"].as_str() else {
        return WireEvent::Metadata { ends: value["protocol_version"] != "1.1" };
    };
    let payload = &value["message"]["payload"];
    let text = || key_of(texts(&payload["user_input"]));
    let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match kind {
        "TurnBegin" => WireEvent::TurnBegin {
            text: text(),
            command: slash_command(&text_of(&payload["user_input"])).map(str::to_owned),
        },
        "TurnEnd" => WireEvent::TurnEnd,
        "StepBegin" => WireEvent::StepBegin { n: payload["n"].as_i64().unwrap() },
        "StepInterrupted" => WireEvent::StepInterrupted,
        "CompactionBegin" => WireEvent::CompactionBegin,
        "CompactionEnd" => WireEvent::CompactionEnd,
        "SteerInput" => WireEvent::SteerInput { text: text() },
        "ContentPart" if payload["type"] == "text" => WireEvent::Text { text: string(&payload["text"]) },
        "ContentPart" => WireEvent::OtherPart,
        "ToolCall" => WireEvent::ToolCall {
            id: string(&payload["id"]),
            dmail_checkpoint: dmail_checkpoint(&payload["function"]),
        },
        "ToolResult" => WireEvent::ToolResult {
            id: string(&payload["tool_call_id"]),
            is_error: payload["return_value"]["is_error"] == true,
        },
        "Notification" | "SubagentEvent" | "StatusUpdate" | "StepRetry" | "HookTriggered"
        | "HookResolved" | "MCPLoadingBegin" | "MCPLoadingEnd" => WireEvent::Silent,
        _ => WireEvent::Other,
    }
}

fn dmail_checkpoint(function: &Value) -> Option<i64> {
    let arguments: Value = serde_json::from_str(function["arguments"].as_str()?).ok()?;
    (function["name"] == "SendDMail").then(|| arguments["checkpoint_id"].as_i64())?
}

fn context_record(value: &Value) -> ContextRecord {
    let calls =
        || value["tool_calls"].as_array().into_iter().flatten().filter_map(|call| call["id"].as_str());
    match value["role"].as_str() {
        Some("_system_prompt") => ContextRecord::SystemPrompt,
        Some("_checkpoint") => match value["id"].as_i64() {
            Some(id) => ContextRecord::Checkpoint { id },
            None => ContextRecord::Other,
        },
        Some("_usage") => ContextRecord::Usage,
        Some("user") => ContextRecord::User { text: key_of(texts(&value["content"])) },
        Some("assistant") => {
            let texts = texts(&value["content"]);
            ContextRecord::Assistant {
                text: (!texts.is_empty()).then(|| key_of(texts)),
                tool_calls: calls().map(call_key).collect(),
            }
        }
        Some("tool") => {
            ContextRecord::Tool { call: value["tool_call_id"].as_str().unwrap_or_default().to_owned() }
        }
        Some(_) => ContextRecord::Other,
        None => ContextRecord::Invalid,
    }
}

/// Text parts joined as the client joins them.
fn key_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> TextKey {
    TextKey::of(&texts.into_iter().collect::<Vec<_>>().join(" "))
}
