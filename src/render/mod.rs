//! A turn's items as readable text (Markdown), exact and whole.
//!
//! The text is a pure function of the turn's facts and its record bytes, so its size is known as soon as
//! the turn is indexed: sizes are counted by the same code that writes the text.

mod safe;
mod shell;
mod width;

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::session::{Item, Turn, TurnDetail, TurnStatus, rfc3339};
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

/// The length of [`heading`], bytes.
pub fn heading_len(turn: &Turn) -> u64 {
    len_of(|out| heading(turn, out))
}

/// The heading line of a turn: number, time, duration, outcome. Depends only on the turn's facts.
pub fn heading(turn: &Turn, out: &mut impl Output) {
    let mut line = format!("# Turn {}", turn.n);
    // Writing into a String cannot fail.
    if let Some(started) = turn.started {
        let _ = write!(line, " · {}", rfc3339(started));
    }
    if let (Some(started), Some(ended)) = (turn.started, turn.ended) {
        let _ = write!(line, " · {}", duration(ended.duration_since(started)));
    }
    let _ = write!(line, " · {}", turn.status);
    match turn.detail {
        // A turn without an end that somebody is at is simply running.
        Some(TurnDetail::Open) if turn.status == TurnStatus::Running => {}
        Some(detail) => {
            let _ = write!(line, " ({detail})");
        }
        None => {}
    }
    line.push('\n');
    out.put(&line);
}

/// Of a record of a kind that turnfs does not know: how much is shown, in characters.
const UNKNOWN_CHARS: usize = 200;

/// One item, marked, with control characters made visible. Starts with an empty line and ends with a
/// newline. Nothing is cut off, except records of unknown kinds: `records/` has them whole.
pub fn item(item: &Item<'_>, out: &mut impl Output) {
    match item {
        Item::User { text } => section("User", None, text, out),
        Item::Steer { text } => section("Steer", None, text, out),
        Item::Assistant { text } => section("Assistant", None, text, out),
        Item::Thinking { text } => section("Thinking", None, text, out),
        Item::ToolCall { name, id, arguments } => {
            fenced("Tool call", &named(name, id), &pretty(arguments), out);
        }
        Item::ToolResult { id, output, is_error } => {
            let title = if *is_error { "Tool error" } else { "Tool result" };
            fenced(title, id, output, out);
        }
        Item::Compaction { text } => section("Compaction", None, text, out),
        Item::Notice { kind, text } => section("Notice", Some(kind), text, out),
        Item::Blob { media_type, bytes } => {
            section("Attachment", None, &format!("[{media_type}, {bytes} bytes]"), out);
        }
        Item::Unknown { kind, json } => unknown(kind, json, out),
    }
}

/// A record of an unknown kind: its kind, its size, its beginning.
fn unknown(kind: &str, json: &str, out: &mut impl Output) {
    let json = json.trim_end_matches('\n');
    let end = json.char_indices().nth(UNKNOWN_CHARS).map_or(json.len(), |(at, _)| at);
    let (shown, more) = match end < json.len() {
        true => (Cow::from(format!("{}…", &json[..end])), ", its beginning; `records/` has all"),
        false => (Cow::from(json), ""),
    };
    fenced("Record", &format!("{kind} ({} bytes{more})", json.len()), &shown, out);
}

fn section(title: &str, subject: Option<&str>, body: &str, out: &mut impl Output) {
    self::title(title, subject, out);
    if body.is_empty() {
        return;
    }
    out.put("\n");
    out.put(&visible(body));
    if !body.ends_with('\n') {
        out.put("\n");
    }
}

/// A section whose text stands between fences that are longer than any run of backticks inside.
fn fenced(title: &str, subject: &str, text: &str, out: &mut impl Output) {
    self::title(title, Some(subject), out);
    let fence = "`".repeat(longest_run_of_backticks(text).max(2) + 1);
    out.put("\n");
    out.put(&fence);
    out.put("\n");
    out.put(&visible(text));
    if !text.is_empty() && !text.ends_with('\n') {
        out.put("\n");
    }
    out.put(&fence);
    out.put("\n");
}

fn title(title: &str, subject: Option<&str>, out: &mut impl Output) {
    out.put("\n## ");
    out.put(title);
    if let Some(subject) = subject.filter(|subject| !subject.is_empty()) {
        out.put(": ");
        out.put(&one_line(subject));
    }
    out.put("\n");
}

/// Whether a line of a turn's text is no more than the title of a part of it: it says nothing of the session.
pub fn is_bare_title(line: &str) -> bool {
    const TITLES: [&str; 10] = [
        "User",
        "Steer",
        "Assistant",
        "Thinking",
        "Tool call",
        "Tool result",
        "Tool error",
        "Compaction",
        "Attachment",
        "Record",
    ];
    line.strip_prefix("## ").is_some_and(|title| TITLES.contains(&title))
}

fn longest_run_of_backticks(text: &str) -> usize {
    let (mut longest, mut run, mut next) = (0, 0, None);
    for at in memchr::memchr_iter(b'`', text.as_bytes()) {
        run = if next == Some(at) { run + 1 } else { 1 };
        longest = longest.max(run);
        next = Some(at + 1);
    }
    longest
}

fn named<'a>(name: &'a str, id: &str) -> Cow<'a, str> {
    if id.is_empty() { name.into() } else { format!("{name} ({id})").into() }
}

/// JSON arguments, indented where they are an object; anything else as it is.
fn pretty(arguments: &str) -> Cow<'_, str> {
    // Re-indenting a large document costs more than it helps.
    const LARGEST: usize = 64 * 1024;
    if arguments.len() > LARGEST || !arguments.trim_start().starts_with('{') {
        return arguments.into();
    }
    let Ok(value) = serde_json::from_str::<serde_json::Value>(arguments) else {
        return arguments.into();
    };
    match value.as_object().map(serde_json::Map::len) {
        // Numbers with more digits than a double holds would come out changed: leave such text alone.
        Some(2..)
            if serde_json::to_string(&value).is_ok_and(|same| squeezed(&same) == squeezed(arguments)) =>
        {
            serde_json::to_string_pretty(&value).map_or_else(|_| arguments.into(), Cow::from)
        }
        _ => arguments.into(),
    }
}

/// The text without blanks: equal before and after re-indenting if nothing else changed.
fn squeezed(json: &str) -> String {
    json.chars().filter(|c| !c.is_ascii_whitespace()).collect()
}

fn duration(span: jiff::SignedDuration) -> String {
    let millis = span.as_millis().max(0);
    match millis {
        0..60_000 => format!("{}.{} s", millis / 1000, millis % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", millis / 60_000, millis % 60_000 / 1000),
        _ => format!("{} h {} min", millis / 3_600_000, millis % 3_600_000 / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            text(Item::Blob { media_type: "image/png".into(), bytes: 7 }),
            "\n## Attachment\n\n[image/png, 7 bytes]\n"
        );
        assert_eq!(
            text(Item::ToolCall {
                name: "Shell".into(),
                id: "c1".into(),
                arguments: "{\"command\":\"ls\"}".into()
            }),
            "\n## Tool call: Shell (c1)\n\n```\n{\"command\":\"ls\"}\n```\n"
        );
        assert_eq!(
            text(Item::ToolResult { id: "c1".into(), output: "".into(), is_error: true }),
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
            text(Item::ToolResult { id: "".into(), output: "a ```` b".into(), is_error: false })
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
            text(Item::ToolCall { name: "T".into(), id: "".into(), arguments: arguments.into() })
                .contains("12345678901234567890123")
        );
    }

    #[test]
    fn durations_read_well() {
        for (millis, expected) in
            [(0, "0.0 s"), (1234, "1.2 s"), (61_000, "1 min 1 s"), (3_700_000, "1 h 1 min"), (-5, "0.0 s")]
        {
            assert_eq!(duration(jiff::SignedDuration::from_millis(millis)), expected);
        }
    }
}
