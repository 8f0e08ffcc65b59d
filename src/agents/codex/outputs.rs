//! What calls gave: in every form that clients have written, as the text that it stands for.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::records::{Part, Response, string_or_json, text_of};
use super::shown::{Out, after, base64, blob, first, pictures, text, tool_result, type_of};
use crate::session::Item;

/// Shows the result of a call. It is a text, a list of parts, or `{content, success}` around one of these;
/// a search for tools has its result in `tools`.
pub fn result(id: Cow<'_, str>, response: &Response<'_>, out: &mut Out<'_, '_>) {
    let Some(raw) = response.output else {
        let output = response.tools.map(tools).unwrap_or_default();
        return out.put(Item::ToolResult { id, output: output.into(), is_error: false });
    };
    let is_object = raw.get().starts_with('{');
    let wrapped = is_object.then(|| serde_json::from_str::<Wrapped<'_>>(raw.get()).ok()).flatten();
    let (raw, is_error) =
        wrapped.map_or((raw, false), |wrapped| (wrapped.content, wrapped.success == Some(false)));
    let mut parts = Vec::new();
    let output = match raw.get().as_bytes() {
        [b'"', ..] => {
            let text = string_or_json(raw);
            readable(&text).map_or(text, Cow::Owned)
        }
        [b'[', ..] => match serde_json::from_str::<Vec<Part<'_>>>(raw.get()) {
            Ok(list) => {
                parts = list;
                text_of(&parts)
            }
            Err(_) => raw.get().into(),
        },
        b"null" => "".into(),
        _ => raw.get().into(),
    };
    out.put(Item::ToolResult { id, output, is_error });
    out.put_all(pictures(&parts));
}

#[derive(Deserialize)]
struct Wrapped<'a> {
    #[serde(borrow)]
    content: &'a RawValue,
    success: Option<bool>,
}

/// A text that is JSON of a known form and nothing else, as what it holds; `None`: it is shown as it is.
fn readable(text: &str) -> Option<String> {
    // Clients up to 2025 wrote the result of a command so.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Executed<'a> {
        #[serde(borrow)]
        output: Cow<'a, str>,
        metadata: Option<Metadata>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Metadata {
        exit_code: i64,
        duration_seconds: Option<f64>,
    }
    // And those of MCP tools so.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Block<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
        #[serde(borrow)]
        text: Cow<'a, str>,
    }
    // The first bytes decide: a large text is not parsed in vain.
    if text.starts_with("{\"output\":") {
        let Executed { output, metadata } = serde_json::from_str(text).ok()?;
        let Some(Metadata { exit_code, duration_seconds }) = metadata else {
            return Some(output.into_owned());
        };
        // As later clients write it themselves.
        let time =
            duration_seconds.map(|seconds| format!("Wall time: {seconds} seconds\n")).unwrap_or_default();
        return Some(format!("Exit code: {exit_code}\n{time}Output:\n{output}"));
    }
    if text.starts_with("[{\"type\":\"text\"") || text.starts_with("[{\"text\":") {
        let blocks: Vec<Block<'_>> = serde_json::from_str(text).ok()?;
        let texts = blocks.iter().map(|block| (block.kind == "text").then_some(&*block.text));
        return Some(texts.collect::<Option<Vec<_>>>()?.join("\n"));
    }
    None
}

/// Tools that a search found: a line for each, with what they are for.
fn tools(raw: &RawValue) -> String {
    fn list(tools: &Value, depth: usize, out: &mut String) -> Option<()> {
        for tool in tools.as_array()? {
            let indent = "  ".repeat(depth);
            let name = tool["name"].as_str().or(tool["type"].as_str())?;
            let about = text(tool, "description").trim().replace('\n', &format!("\n{indent}  "));
            // Writing into a String cannot fail.
            let _ = writeln!(out, "{indent}- {name}{}", after(": ", &about));
            if depth == 0 && !tool["tools"].is_null() {
                list(&tool["tools"], depth + 1, out)?;
            }
        }
        Some(())
    }
    let mut out = String::new();
    let found = serde_json::from_str(raw.get()).ok().and_then(|tools| list(&tools, 0, &mut out));
    // In another form: as it stands.
    found.map_or_else(|| raw.get().to_owned(), |()| out)
}

/// The result of an MCP or dynamic tool: its text, and a line for each other block.
pub fn content(value: &Value, blocks: &Value, is_error: bool) -> Vec<Item<'static>> {
    let Some(blocks) = blocks.as_array() else {
        let output = if blocks.is_null() { String::new() } else { blocks.to_string() };
        return vec![tool_result(value, output, is_error)];
    };
    let mut said: Vec<String> = Vec::new();
    let mut others = Vec::new();
    for block in blocks {
        let (data, url) = (text(block, "data"), first(block, &["image_url", "imageUrl"]));
        if let Some(text) = block["text"].as_str() {
            said.push(text.to_owned());
        } else if !data.is_empty() {
            let media = first(block, &["mimeType", "mime_type"]);
            others.push(base64(if media.is_empty() { type_of(data) } else { media }, data));
        } else if !url.is_empty() {
            others.push(blob(url));
        } else {
            said.push(block.to_string());
        }
    }
    let mut items = vec![tool_result(value, said.join("\n"), is_error)];
    items.append(&mut others);
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_of_a_known_form_is_unpacked() {
        for (text, shown) in [
            (
                r#"{"output":"a\nb\n","metadata":{"exit_code":1,"duration_seconds":0.2}}"#,
                Some("Exit code: 1\nWall time: 0.2 seconds\nOutput:\na\nb\n"),
            ),
            (r#"{"output":"Success"}"#, Some("Success")),
            (r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#, Some("a\nb")),
            (r#"{"output":"a","metadata":{"exit_code":1},"more":1}"#, None),
            (r#"{"output":"a"} and more"#, None),
            (r#"[{"type":"text","text":"a"},{"type":"image","data":""}]"#, None),
            ("plain", None),
            ("", None),
        ] {
            assert_eq!(readable(text).as_deref(), shown, "{text}");
        }
    }
}
