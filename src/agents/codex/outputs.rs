//! What calls gave: in every form that clients have written, as the text that it stands for.

use std::borrow::Cow;
use std::fmt::Write as _;

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::records::{Part, Response, string_or_json, text_of};
use super::shown::{Out, after, base64, blob, first, pictures, text, tool_result, type_of};
use crate::session::{Item, Outcome};

/// Shows the result of a call. It is a text, a list of parts, or `{content, success}` around one of these;
/// a search for tools has its result in `tools`.
/// `verbatim`: the text as the model is sent it.
pub fn result(id: Cow<'_, str>, response: &Response<'_>, verbatim: bool, out: &mut Out<'_, '_>) {
    let Some(raw) = response.output else {
        let output = response.tools.map(tools).unwrap_or_default();
        return out.put(Item::ToolResult { id, output: output.into(), outcome: Outcome::default() });
    };
    let is_object = raw.get().starts_with('{');
    let wrapped = is_object.then(|| serde_json::from_str::<Wrapped<'_>>(raw.get()).ok()).flatten();
    let (raw, is_error) =
        wrapped.map_or((raw, false), |wrapped| (wrapped.content, wrapped.success == Some(false)));
    let mut parts = Vec::new();
    let mut outcome = Outcome::of(is_error);
    let output = match raw.get().as_bytes() {
        [b'"', ..] => string_or_json(raw),
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
    let output = if verbatim { output } else { told(output, &mut outcome) };
    out.put(Item::ToolResult { id, output, outcome });
    out.put_all(pictures(&parts));
}

#[derive(Deserialize)]
struct Wrapped<'a> {
    #[serde(borrow)]
    content: &'a RawValue,
    success: Option<bool>,
}

/// The output itself, out of a text in one of the forms of the client; what stands around it goes to `outcome`.
fn told<'t>(text: Cow<'t, str>, outcome: &mut Outcome<'_>) -> Cow<'t, str> {
    if let Some(output) = readable(&text, outcome) {
        return output.into();
    }
    let Some(start) = header(&text, outcome) else { return text };
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[start..]),
        Cow::Owned(text) => Cow::Owned(text[start..].to_owned()),
    }
}

/// Where the output begins behind the lines that the client puts before it; `None` if these are not there.
fn header(text: &str, outcome: &mut Outcome<'_>) -> Option<usize> {
    if !["Exit code: ", "Wall time: ", "Chunk ID: "].iter().any(|start| text.starts_with(start)) {
        return None;
    }
    let mut found = Outcome::of(outcome.is_error);
    let mut at = 0;
    // There are never more than these.
    for line in text.split_inclusive('\n').take(8) {
        at += line.len();
        let line = line.trim_end_matches('\n');
        if line == "Output:" {
            *outcome = found;
            return Some(at);
        }
        let code = line.strip_prefix("Exit code: ").or(line.strip_prefix("Process exited with code "));
        let seconds = line.strip_prefix("Wall time: ").and_then(|time| time.strip_suffix(" seconds"));
        if let Some(code) = code {
            found.exit_code = Some(code.parse().ok()?);
        } else if let Some(seconds) = seconds {
            found.duration = Some(SignedDuration::try_from_secs_f64(seconds.parse().ok()?).ok()?);
        } else {
            let running = "Process running with session ID";
            let (name, value) =
                line.split_once(": ").or(line.strip_prefix(running).map(|id| (running, id)))?;
            found.more.push((name.to_owned().into(), value.trim().to_owned().into()));
        }
    }
    None
}

/// What a text holds that is JSON of a known form and nothing else; `None`: it is shown as it is.
fn readable(text: &str, outcome: &mut Outcome<'_>) -> Option<String> {
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
        if let Some(Metadata { exit_code, duration_seconds }) = metadata {
            outcome.exit_code = Some(exit_code);
            outcome.duration =
                duration_seconds.and_then(|seconds| SignedDuration::try_from_secs_f64(seconds).ok());
        }
        return Some(output.into_owned());
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
        return vec![tool_result(value, output, Outcome::of(is_error))];
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
    let mut items = vec![tool_result(value, said.join("\n"), Outcome::of(is_error))];
    items.append(&mut others);
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> (String, String) {
        let mut outcome = Outcome::default();
        let output = told(text.into(), &mut outcome).into_owned();
        let more = outcome.more.iter().map(|(name, value)| format!(" {name}={value}")).collect::<String>();
        let duration = outcome.duration.map(|it| it.as_millis());
        (output, format!("{:?} {duration:?}{more}", outcome.exit_code))
    }

    #[test]
    fn only_what_has_a_known_form_is_unpacked() {
        for (text, output, outcome) in [
            (
                r#"{"output":"a\nb\n","metadata":{"exit_code":1,"duration_seconds":0.2}}"#,
                "a\nb\n",
                "Some(1) Some(200)",
            ),
            (r#"{"output":"Success"}"#, "Success", "None None"),
            (r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#, "a\nb", "None None"),
            ("Exit code: 1\nWall time: 2 seconds\nOutput:\na\n", "a\n", "Some(1) Some(2000)"),
            (
                "Chunk ID: f5\nWall time: 0.2320 seconds\nProcess exited with code 0\nOriginal token count: 3\nOutput:\na",
                "a",
                "Some(0) Some(232) Chunk ID=f5 Original token count=3",
            ),
            (
                "Wall time: 10.0 seconds\nProcess running with session ID 7\nOutput:\n",
                "",
                "None Some(10000) Process running with session ID=7",
            ),
        ] {
            assert_eq!(shown(text), (output.to_owned(), outcome.to_owned()), "{text}");
        }
        for text in [
            r#"{"output":"a","metadata":{"exit_code":1},"more":1}"#,
            r#"{"output":"a"} and more"#,
            r#"[{"type":"text","text":"a"},{"type":"image","data":""}]"#,
            "Exit code: many\nOutput:\n",
            "Exit code: 1\nsomething else\nOutput:\n",
            "Exit code: 1\n",
            "plain\nOutput:\n",
            "",
        ] {
            assert_eq!(shown(text), (text.to_owned(), "None None".to_owned()));
        }
    }
}
