//! A line of a transcript or an archive: one message, read exactly as strictly as the client reads it.
//!
//! The derive is the client's own form, so that what parses here parses there: unknown fields are ignored,
//! content is a string, a lone surrogate is an error.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;
use xxhash_rust::xxh3::Xxh3;

use super::layout::ARCHIVE;
use crate::session::{DamageClass, FileHash};
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
    /// Its line's bytes in the sidecar.
    #[serde(skip)]
    pub span: Range<u64>,
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
/// What stands before the kept part of a cut output if that is not its beginning.
const LEAD: &str = "\u{2026}";
/// A longer output is never one that a prune cut: the next prune would cut it again. Bytes.
const CUT_AT: usize = 600;

/// What a prune left behind the transcript's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PruneNote {
    /// The digest of messages that were dropped.
    Dropped,
    /// Nothing was dropped; only older tool outputs were cut in place.
    Shortened,
}

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

    /// A user line of the form that a prune leaves behind the transcript's head.
    pub fn prune_note(&self) -> Option<PruneNote> {
        let rest = self.content().strip_prefix("[context note: ").filter(|_| self.role() == Role::User)?;
        let words = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        match words {
            _ if words.len() == rest.len() => None,
            _ if words.starts_with(" earlier message") => Some(PruneNote::Dropped),
            _ if words.starts_with(" older tool output") => Some(PruneNote::Shortened),
            _ => None,
        }
    }

    /// A tool output that a prune cut in place.
    pub fn is_cut(&self) -> bool {
        self.role() == Role::Tool && self.content().len() <= CUT_AT && self.content().ends_with(CUT)
    }

    /// Of everything that the message says, and not of how its line is written. Of a prune's note without the
    /// session's id in the archive's path, which a fork's note has another one in.
    pub fn hash(&self) -> FileHash {
        if self.prune_note().is_some() {
            return digest_hash(self.content());
        }
        if self.calls().is_empty() {
            return FileHash::of(self.content().as_bytes());
        }
        let mut hash = Xxh3::new();
        hash.update(self.content().as_bytes());
        for call in self.calls() {
            for part in [&call.id, &call.function.name, &call.function.arguments] {
                hash.update(&[0]);
                hash.update(part.0.as_bytes());
            }
        }
        FileHash(hash.digest128())
    }
}

/// As [`Message::hash`], of the text of a prune's note.
pub(super) fn digest_hash(text: &str) -> FileHash {
    let Some(name_end) = text.rfind(ARCHIVE) else { return FileHash::of(text.as_bytes()) };
    let name = text[..name_end].rfind('/').map_or(0, |slash| slash + 1);
    let mut hash = Xxh3::new();
    hash.update(&text.as_bytes()[..name]);
    hash.update(&text.as_bytes()[name_end..]);
    FileHash(hash.digest128())
}

/// Whether the text of a prune's note says where the archive is. The client leaves that out if it could not
/// write all of it.
pub(super) fn names_archive(text: &str) -> bool {
    text.contains(ARCHIVE)
}

/// Whether a cut output is a part of this whole one.
pub(super) fn is_part_of(cut: &str, whole: &str) -> bool {
    let kept = cut.strip_suffix(CUT).unwrap_or(cut);
    match kept.strip_prefix(LEAD) {
        Some(inner) => whole.contains(inner) || whole.starts_with(kept),
        None => whole.starts_with(kept),
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
    fn only_a_prunes_own_words_are_its_note() {
        let user = |text: &str| format!(r#"{{"role":"user","content":"{text}"}}"#);
        for (text, note, of_prune) in [
            ("[context note: 11 earlier messages were compacted. Summary", true, Some(PruneNote::Dropped)),
            (
                "[context note: 3 older tool outputs were shortened in place; each",
                true,
                Some(PruneNote::Shortened),
            ),
            ("[context note: is what I typed", true, None),
            ("[context note: earlier messages", true, None),
            ("[policy notice: x", true, None),
            ("about [context note: 11 earlier messages", false, None),
        ] {
            let line = user(text);
            let message = Message::parse(line.as_bytes()).unwrap();
            assert_eq!((message.looks_like_note(), message.prune_note()), (note, of_prune), "{text}");
        }
    }

    #[test]
    fn notes_of_prunes_are_the_same_whatever_session_their_path_names() {
        let note =
            |id: &str| format!("[context note: 3 earlier messages. Full: /h/{id}.archive.jsonl (bash).");
        assert_eq!(digest_hash(&note("a")), digest_hash(&note("b")));
        assert_ne!(digest_hash(&note("a")), digest_hash(&note("a").replace('3', "4")));
        assert!(names_archive(&note("a")) && !names_archive("[context note: 3 earlier messages."));
    }

    #[test]
    fn a_cut_output_is_a_part_of_the_one_that_it_was_cut_from() {
        let whole = "one\ntwo\nthree\n";
        for (cut, part) in [
            ("one\n\n\u{2026}[older tool output truncated]", true),
            ("\u{2026}two\nth\n\u{2026}[older tool output truncated]", true),
            ("two\nth\n\u{2026}[older tool output truncated]", false),
            ("\u{2026}four\n\u{2026}[older tool output truncated]", false),
        ] {
            assert_eq!(is_part_of(cut, whole), part, "{cut}");
        }
    }
}
