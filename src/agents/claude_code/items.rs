//! Records as items: what a turn's text consists of, and what the model is sent.

use serde_json::value::RawValue;

use super::records::{Attachment, Block, Kind, Raw, Record, Source, blocks, object, text};
use super::tools;
use crate::agents::data_url;
use crate::session::{Item, ItemSink, Outcome, Refusal, Result};
use crate::transcript::scan_bytes;

/// What a user record is: the same record begins a turn, or stands in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum As {
    Prompt,
    Said,
}

/// The items of a record; `line` is how it is spelled.
pub(super) fn of(record: &Record<'_>, line: &[u8], what: As, sink: &mut dyn FnMut(Item<'_>)) {
    match record.kind() {
        Kind::User => of_user(record, what, sink),
        Kind::Assistant => record.blocks.iter().for_each(|block| of_block(block, sink)),
        Kind::Attachment => of_attachment(object(record.attachment), sink),
        Kind::System => of_system(record, sink),
        // Without a uuid it is something that the client notes for itself.
        Kind::Link if record.uuid.is_some() && record.type_name() != "progress" => {
            sink(Item::Unknown { kind: record.type_name(), json: String::from_utf8_lossy(line) });
        }
        Kind::Link => {}
    }
}

fn of_user(record: &Record<'_>, what: As, sink: &mut dyn FnMut(Item<'_>)) {
    if what == As::Prompt {
        return record.blocks.iter().for_each(|block| match text(block.text) {
            Some(text) => sink(Item::User { text }),
            None => of_block(block, sink),
        });
    }
    record.blocks.iter().for_each(|block| {
        let Some(text) = text(block.text) else { return of_block(block, sink) };
        let kind = match &*text {
            _ if record.is_summary() => return sink(Item::Compaction { text }),
            said if said.starts_with("[Request interrupted by user") => {
                return sink(Item::Interrupted { text });
            }
            said if said.starts_with("<task-notification>") => "task",
            said if said.starts_with("<local-command-") || said.starts_with("<command-") => "command",
            said if said.starts_with("<bash-") => "bash",
            _ => "claude",
        };
        sink(Item::Notice { kind: kind.into(), text });
    });
}

fn of_block(block: &Block<'_>, sink: &mut dyn FnMut(Item<'_>)) {
    let kind =
        text(block.kind).unwrap_or_else(|| if block.text.is_some() { "text".into() } else { "".into() });
    match &*kind {
        "text" => {
            if let Some(text) = text(block.text).filter(|text| !text.is_empty()) {
                sink(Item::Assistant { text });
            }
        }
        "thinking" => {
            if let Some(text) = text(block.thinking).filter(|text| !text.is_empty()) {
                sink(Item::Thinking { text });
            }
        }
        // What was thought is not readable.
        "redacted_thinking" => {}
        "tool_use" | "server_tool_use" => {
            let name = text(block.name).unwrap_or_default();
            let asked = tools::asked(&name, block.input.map_or("", RawValue::get));
            sink(Item::ToolCall { id: text(block.id).unwrap_or_default(), asked, name });
        }
        "tool_result" => of_result(block, sink),
        "image" | "document" => of_source(block, sink),
        _ => sink(Item::Unknown { kind, json: "".into() }),
    }
}

/// A tool's output is text, or parts of which some are no text.
fn of_result(block: &Block<'_>, sink: &mut dyn FnMut(Item<'_>)) {
    let mut output = String::new();
    let mut blobs = Vec::new();
    blocks(block.content).iter().for_each(|part| match text(part.text) {
        Some(text) => {
            if !output.is_empty() {
                output.push('\n');
            }
            output.push_str(&text);
        }
        None => blobs.push(*part),
    });
    let is_error = block.is_error.is_some_and(|value| value.get() == "true");
    let id = text(block.tool_use_id).unwrap_or_default();
    let (exit_code, output) = tools::exit_code(is_error, &output);
    let outcome = Outcome { exit_code, ..Outcome::of(is_error) };
    sink(Item::ToolResult { id, output: output.into(), outcome });
    blobs.iter().filter(|part| part.source.is_some()).for_each(|part| of_source(part, sink));
}

fn of_source(block: &Block<'_>, sink: &mut dyn FnMut(Item<'_>)) {
    let source: Source<'_> = object(block.source);
    let media_type = text(source.media_type).or_else(|| text(source.kind)).unwrap_or_else(|| "file".into());
    let data = text(source.data).unwrap_or_default();
    let (bytes, base64) = match text(source.kind).as_deref() {
        // A document that is text.
        Some("text") => (data.len() as u64, "".into()),
        _ => (data_url::base64_len(&data), data),
    };
    sink(Item::Blob { media_type, bytes, base64 });
}

fn of_attachment(attachment: Attachment<'_>, sink: &mut dyn FnMut(Item<'_>)) {
    let kind = text(attachment.kind).unwrap_or_default();
    match &*kind {
        "queued_command" => {
            let by_user = text(attachment.mode).is_none_or(|mode| mode != "task-notification");
            blocks(attachment.prompt).iter().for_each(|block| match text(block.text) {
                Some(text) if by_user => sink(Item::Steer { text }),
                Some(text) => sink(Item::Notice { kind: "task".into(), text }),
                None => of_block(block, sink),
            });
        }
        // What a hook said to the model; the rest of what is attached is the client's own context.
        "hook_success" | "hook_additional_context" | "hook_blocking_error" => {
            let says = said_by_hook(attachment.content).or_else(|| said_by_hook(attachment.error));
            if let Some(text) = says.filter(|text| !text.is_empty()) {
                sink(Item::Notice { kind: "hook".into(), text: text.into() });
            }
        }
        _ => {}
    }
}

/// The strings in what a hook said: one, a list of them, or the one that an object holds by that name.
fn said_by_hook(content: Raw<'_>) -> Option<String> {
    let json = content?.get();
    let value: serde_json::Value = serde_json::from_str(&crate::agents::json::readable(json)).ok()?;
    let lines: Vec<&str> = match &value {
        serde_json::Value::String(line) => vec![line],
        serde_json::Value::Array(lines) => lines.iter().filter_map(|line| line.as_str()).collect(),
        other => other.get("blockingError").and_then(|line| line.as_str()).into_iter().collect(),
    };
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn of_system(record: &Record<'_>, sink: &mut dyn FnMut(Item<'_>)) {
    let subtype = text(record.subtype).unwrap_or_default();
    let kind = match &*subtype {
        // The summary behind a boundary tells of it.
        "compact_boundary" => return,
        "local_command" => "command".into(),
        _ => subtype,
    };
    if let Some(text) = text(record.content).filter(|text| !text.is_empty()) {
        sink(Item::Notice { kind, text });
    }
}

/// The items of a turn, out of its bytes: the first user record is its prompt.
pub(super) fn of_turn(bytes: &[u8], sink: &mut ItemSink<'_>) -> Result<()> {
    let mut prompt = true;
    each_record(bytes, |record, line| {
        let is_prompt = record.kind() == Kind::User && std::mem::take(&mut prompt);
        let what = if is_prompt { As::Prompt } else { As::Said };
        let time = record.time();
        of(record, line, what, &mut |item| sink(time, item));
    })
}

/// The exact text of a turn's prompt.
pub(super) fn prompt(bytes: &[u8]) -> Result<String> {
    let mut prompt = None;
    each_record(bytes, |record, _| {
        if prompt.is_none() && record.kind() == Kind::User {
            prompt = Some(record.prompt());
        }
    })?;
    Ok(prompt.unwrap_or_default())
}

/// Gives the records of these lines to `with`; lines of sub-agents that older versions wrote among them are left out.
///
/// # Errors
/// [`Refusal::Changed`] if a line is no record; those around it were given.
fn each_record(bytes: &[u8], mut with: impl FnMut(&Record<'_>, &[u8])) -> Result<()> {
    let (mut failed, mut sidechain) = (false, None);
    scan_bytes(bytes, 1, 0, |line| match Record::parse(line.bytes) {
        Ok(record) => {
            // A sub-agent's own file holds nothing else.
            let side = record.is_sidechain();
            if record.uuid.is_none() || *sidechain.get_or_insert(side) == side {
                with(&record, line.bytes);
            }
        }
        Err(_) => failed |= !line.is_blank(),
    });
    if failed { Err(Refusal::Changed { what: "the transcript".into() }) } else { Ok(()) }
}
