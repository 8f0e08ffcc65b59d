//! A line of a transcript or an archive: one message, read exactly as strictly as the client reads it.
//!
//! The derive is the client's own form, so that what parses here parses there: unknown fields are ignored,
//! content is a string, a lone surrogate is an error.

use std::borrow::Cow;

use serde::Deserialize;

use crate::session::DamageClass;
use crate::transcript::Format;

/// A string of a message, borrowed where nothing in it is escaped.
#[derive(Debug, Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

#[derive(Debug, Deserialize)]
pub(super) struct Message<'a> {
    #[serde(borrow)]
    pub role: Text<'a>,
    #[serde(borrow, default)]
    pub content: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub tool_calls: Option<Vec<ToolCall<'a>>>,
    #[serde(borrow, default)]
    pub tool_call_id: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ToolCall<'a> {
    #[serde(borrow)]
    pub id: Text<'a>,
    #[serde(borrow)]
    pub function: Function<'a>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow)]
    pub name: Text<'a>,
    #[serde(borrow)]
    pub arguments: Text<'a>,
}

/// Who speaks in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    System,
    User,
    Assistant,
    Tool,
    Other,
}

/// A prune's record in the compaction sidecar.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Compaction {
    pub message_count: u64,
    #[serde(default)]
    pub digest: Option<String>,
}

/// User lines that the harness wrote; the client puts them directly before the next prompt.
const NOTES: [&str; 6] = [
    "[context note:",
    "[extension refreeze:",
    "[policy notice: ",
    "[approval activity outside this session:",
    "[settings.json changed on disk.",
    "[settings.json is now INVALID:",
];

/// How a prune ends a tool output that it cut in place.
const CUT: &str = "\n\u{2026}[older tool output truncated]";

impl<'a> Message<'a> {
    /// The message on a line, without its newline.
    ///
    /// # Errors
    /// Why the client does not read it.
    pub fn parse(line: &'a [u8]) -> Result<Message<'a>, String> {
        let text = simdutf8::basic::from_utf8(line).map_err(|error| error.to_string())?;
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    pub fn role(&self) -> Role {
        match self.role.0.as_ref() {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            _ => Role::Other,
        }
    }

    pub fn content(&self) -> &str {
        self.content.as_ref().map_or("", |text| &text.0)
    }

    pub fn calls(&self) -> &[ToolCall<'a>] {
        self.tool_calls.as_deref().unwrap_or(&[])
    }

    pub fn call_id(&self) -> &str {
        self.tool_call_id.as_ref().map_or("", |text| &text.0)
    }

    /// A user line that begins as the harness's own lines do.
    pub fn looks_like_note(&self) -> bool {
        let content = self.content();
        self.role() == Role::User && NOTES.iter().any(|prefix| content.starts_with(prefix))
    }

    /// A user line of the form that a prune leaves in the place of what it dropped.
    pub fn looks_like_digest(&self) -> bool {
        let Some(rest) = self.content().strip_prefix("[context note: ") else { return false };
        let words = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        self.role() == Role::User && words.len() < rest.len() && words.starts_with(" earlier message")
    }

    /// A tool output that a prune cut in place.
    pub fn is_cut(&self) -> bool {
        self.role() == Role::Tool && self.content().ends_with(CUT)
    }
}

fn is_message(line: &[u8]) -> bool {
    Message::parse(line).is_ok()
}

fn is_compaction(line: &[u8]) -> bool {
    serde_json::from_slice::<Compaction>(line).is_ok()
}

/// For damage in transcripts and archives.
pub(super) const MESSAGES: Format = Format { is_record: is_message, agent: what_the_client_does };
/// For damage in compaction sidecars.
pub(super) const COMPACTIONS: Format = Format { is_record: is_compaction, agent: what_the_client_does };

fn what_the_client_does(class: DamageClass) -> &'static str {
    match class {
        DamageClass::TornTail | DamageClass::NulTail => {
            "openmax cuts it off before it appends (older versions glue the next record to it and lose both)"
        }
        DamageClass::NoFinalNewline => "openmax adds the newline before it appends",
        DamageClass::Bom => "openmax refuses the session (older versions replace the line)",
        DamageClass::ArrayForm | DamageClass::NoRecord => {
            "openmax refuses the session (older versions write over the file)"
        }
        DamageClass::InvalidUtf8 => "openmax refuses the session (older versions ignore the whole history)",
        _ => "openmax refuses the session (older versions skip the line and send a history with a hole)",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_message_exactly_where_the_client_reads_one() {
        for (line, good) in [
            (r#"{"role":"user","content":"x"}"#, true),
            (r#"{"role":"user","content":"x","new":{"a":[1]}}"#, true),
            (r#"{"role":"user","content":null}"#, true),
            (r#"["user","x",null,null]"#, true),
            (r#"{"content":"x"}"#, false),
            (r#"{"role":"user","content":[{"type":"text","text":"x"}]}"#, false),
            (r#"{"role":"user","content":"\ud83d"}"#, false),
            (r#"{"role":"user","content":"\ud83d\ude00"}"#, true),
            (r#"[{"role":"user","content":"x"}]"#, false),
            (
                r#"{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"n","arguments":"{}"}}]}"#,
                true,
            ),
            (
                r#"{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"n","arguments":{}}}]}"#,
                false,
            ),
        ] {
            assert_eq!(Message::parse(line.as_bytes()).is_ok(), good, "{line}");
        }
    }

    #[test]
    fn only_a_prunes_own_words_are_a_digest() {
        let user = |text: &str| format!(r#"{{"role":"user","content":"{text}"}}"#);
        for (text, note, digest) in [
            ("[context note: 11 earlier messages were compacted. Summary", true, true),
            ("[context note: is what I typed", true, false),
            ("[policy notice: x", true, false),
            ("about [context note: 11 earlier messages", false, false),
        ] {
            let line = user(text);
            let message = Message::parse(line.as_bytes()).unwrap();
            assert_eq!((message.looks_like_note(), message.looks_like_digest()), (note, digest), "{text}");
        }
    }
}
