//! A turn's items as readable text (Markdown), exact and whole.
//!
//! The text is a pure function of the turn's facts and its record bytes, so its size is known as soon as
//! the turn is indexed: sizes are counted by the same code that writes the text.
//!
//! What users and the model said stands as it is (`prose`); all else stands between fences or is quoted (`blocks`), so
//! that nothing in it can be taken for a part of the turn's own structure.

mod action;
mod blocks;
mod diff;
mod heading;
mod prose;
mod safe;
mod shell;
mod width;

use std::borrow::Cow;

use crate::session::Item;
use blocks::{fenced, quoted, title};
pub use heading::{heading, heading_len};
use prose::prose;
pub use safe::{escaped_json, one_line, visible};
pub use shell::{shell_path, shell_word};
pub use width::cut_to_width;

/// Where text goes: a buffer, or only its length.
pub trait Output {
    fn put(&mut self, text: &str);
}

impl Output for String {
    fn put(&mut self, text: &str) {
        self.push_str(text);
    }
}

/// Counts bytes instead of keeping them.
#[derive(Debug, Default, Clone, Copy)]
pub struct Length(pub u64);

impl Output for Length {
    fn put(&mut self, text: &str) {
        self.0 += text.len() as u64;
    }
}

/// How many bytes `write` writes.
pub fn len_of(write: impl FnOnce(&mut Length)) -> u64 {
    let mut length = Length::default();
    write(&mut length);
    length.0
}

/// Of a record of a kind that turnfs does not know: how much is shown, in characters.
const UNKNOWN_CHARS: usize = 200;

/// One item, marked, with control characters made visible. Starts with an empty line and ends with a
/// newline. Nothing is cut off, except records of unknown kinds: `records/` has them whole.
pub fn item(item: &Item<'_>, out: &mut impl Output) {
    match item {
        Item::User { text } => said("User", text, out),
        Item::Steer { text } => said("Steer", text, out),
        Item::Assistant { text } => said("Assistant", text, out),
        Item::Thinking { text } => aside("Thinking", None, text, out),
        Item::ToolCall { name, id, asked } => action::call(name, id, asked, out),
        Item::ToolResult { id, output, outcome } => action::result(id, output, outcome, out),
        Item::Compaction { text } => {
            out.put(RULE);
            aside("Compaction", None, text, out);
        }
        Item::Interrupted { text } => {
            out.put(RULE);
            aside("Interrupted", None, text, out);
        }
        Item::Notice { kind, text } => aside("Notice", Some(kind), text, out),
        Item::Blob { media_type, bytes, .. } => {
            title("Attachment", None, out);
            out.put(&format!("\n[{}, {bytes} bytes]\n", one_line(media_type)));
        }
        Item::Unknown { kind, json } => unknown(kind, json, out),
    }
}

/// What parts a turn in two: above the heading of such an item.
const RULE: &str = "\n---\n";

/// All titles of sections. (`prose` takes care that no line of a text looks like one.)
const TITLES: [&str; 12] = [
    "User",
    "Steer",
    "Assistant",
    "Thinking",
    "Tool call",
    "Tool result",
    "Tool error",
    "Compaction",
    "Interrupted",
    "Notice",
    "Attachment",
    "Record",
];

/// What a user or the model said.
fn said(section: &str, text: &str, out: &mut impl Output) {
    title(section, None, out);
    prose(text, out);
}

/// What is no part of what user and model said to each other.
fn aside(section: &str, subject: Option<&str>, text: &str, out: &mut impl Output) {
    title(section, subject, out);
    quoted(text, out);
}

/// A record of an unknown kind: its kind, its size, its beginning.
fn unknown(kind: &str, json: &str, out: &mut impl Output) {
    let json = json.trim_end_matches('\n');
    let end = json.char_indices().nth(UNKNOWN_CHARS).map_or(json.len(), |(at, _)| at);
    let (shown, more) = match end < json.len() {
        true => (Cow::from(format!("{}…", &json[..end])), ", its beginning; `records/` has all"),
        false => (Cow::from(json), ""),
    };
    title("Record", Some(&format!("{kind} ({} bytes{more})", json.len())), out);
    fenced("", &shown, out);
}

/// Whether a line of a turn's text is no more than the title of a part of it: it says nothing of the session.
pub fn is_bare_title(line: &str) -> bool {
    line == RULE.trim() || line.strip_prefix("## ").is_some_and(|title| TITLES.contains(&title))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Asked, Outcome};

    fn text(what: Item<'_>) -> String {
        let mut out = String::new();
        item(&what, &mut out);
        let mut length = Length::default();
        item(&what, &mut length);
        assert_eq!(length.0, out.len() as u64);
        out
    }

    #[test]
    fn each_item_is_marked_and_ends_with_a_newline() {
        assert_eq!(text(Item::User { text: "hello".into() }), "\n## User\n\nhello\n");
        assert_eq!(
            text(Item::Blob { media_type: "image/png".into(), bytes: 7, base64: "".into() }),
            "\n## Attachment\n\n[image/png, 7 bytes]\n"
        );
        assert_eq!(
            text(Item::ToolCall {
                name: "Shell".into(),
                id: "c1".into(),
                asked: Asked::other("{\"command\":\"ls\"}")
            }),
            "\n## Tool call: Shell (c1)\n\n```json\n{\"command\":\"ls\"}\n```\n"
        );
        assert_eq!(
            text(Item::ToolResult { id: "c1".into(), output: "".into(), outcome: Outcome::of(true) }),
            "\n## Tool error: c1\n\n```\n```\n"
        );
    }

    #[test]
    fn a_record_of_an_unknown_kind_is_shown_with_its_size_and_its_beginning() {
        let short = text(Item::Unknown { kind: "new".into(), json: r#"{"type":"new"}"#.into() });
        assert_eq!(short, "\n## Record: new (14 bytes)\n\n```\n{\"type\":\"new\"}\n```\n");
        let long = "ä".repeat(300);
        let shown = text(Item::Unknown { kind: "new".into(), json: long.as_str().into() });
        let beginning = "ä".repeat(200);
        assert_eq!(
            shown,
            format!(
                "\n## Record: new (600 bytes, its beginning; `records/` has all)\n\n```\n{beginning}…\n```\n"
            )
        );
        let exact = "x".repeat(200);
        let shown = text(Item::Unknown { kind: "\u{1b}[2J".into(), json: exact.as_str().into() });
        assert_eq!(shown, format!("\n## Record: ␛[2J (200 bytes)\n\n```\n{exact}\n```\n"));
        let unsafe_ = Item::Unknown { kind: "k".into(), json: "a\u{9b}\u{202e}`\r".into() };
        assert!(!text(unsafe_).chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'));
    }

    #[test]
    fn a_fence_is_longer_than_any_in_the_text() {
        assert!(
            text(Item::ToolResult { id: "".into(), output: "a ```` b".into(), outcome: Outcome::default() })
                .contains("`````\n")
        );
    }

    #[test]
    fn control_characters_cannot_reach_a_terminal() {
        let shown = text(Item::Assistant { text: "\u{1b}[31mred\u{7}\u{202e}\r\nnext\ttab".into() });
        assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{shown:?}");
        assert!(!shown.contains('\u{202e}'));
        assert!(shown.contains("next\ttab\n"));
    }

    #[test]
    fn numbers_in_arguments_are_never_rewritten() {
        let arguments = r#"{"a":12345678901234567890123,"b":1.0}"#;
        assert!(
            text(Item::ToolCall { name: "T".into(), id: "".into(), asked: Asked::other(arguments) })
                .contains("12345678901234567890123")
        );
    }
}
