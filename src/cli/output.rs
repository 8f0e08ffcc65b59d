//! What reaches the terminal: text made safe, JSON, tables, numbers and ages in words.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

use jiff::Timestamp;
use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;

use super::exit::Failure;
use crate::render;
use crate::session::Refusal;

/// A sentence on stderr. An error is ignored: the reader may have gone.
pub fn warn(sentence: &str) {
    let _ = writeln!(io::stderr(), "turnfs: {}", render::one_line(sentence));
}

/// What to do next, on stderr.
pub fn hint(sentence: &str) {
    let _ = writeln!(io::stderr(), "hint: {}", render::one_line(sentence));
}

/// A `key: value` line beside a command's answer, on stderr.
pub fn fact(key: &str, value: &str) {
    let _ = writeln!(io::stderr(), "{key}: {}", render::one_line(value));
}

/// Why something could not be done with a session, and what to do next, on stderr.
pub fn refused(id: &str, refusal: &Refusal) {
    warn(&format!("{id}: {refusal}"));
    refusal.hints().iter().for_each(|sentence| hint(sentence));
}

/// One value as JSON. Characters that a terminal would obey are written as escapes; the value is the same.
///
/// # Errors
/// When standard output cannot be written.
pub fn json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)?;
    writeln!(out, "{}", render::escaped_json(&text))?;
    Ok(())
}

/// A path in one safe line.
pub fn path(path: &Path) -> String {
    render::one_line(&path.to_string_lossy()).into_owned()
}

/// The first line of a prompt or title, at most `limit` columns of a terminal wide.
pub fn headline(text: &str, limit: usize) -> String {
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let safe = render::one_line(first);
    let cut = render::cut_to_width(&safe, limit);
    let more = if cut.len() < safe.len() { "…" } else { "" };
    format!("{cut}{more}")
}

/// How long ago, in the largest unit that fits.
pub fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Rows in columns, each as wide as its widest cell; the last one is not padded.
///
/// # Errors
/// When standard output cannot be written.
pub fn table(out: &mut dyn Write, rows: &[Vec<String>]) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell}{:1$}  ", "", width.saturating_sub(cell.width()));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn json_has_nothing_that_a_terminal_obeys_and_the_same_value() {
        let value = serde_json::json!({"title": "a\u{1b}[31m\u{9b}\u{202e}\u{7f}ü\n"});
        let mut out = Vec::new();
        json(&mut out, &value).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert!(!text.contains('\u{202e}') && text.contains('ü'));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn headlines_are_one_safe_line() {
        assert_eq!(headline("\n  first line  \nsecond", 40), "first line");
        assert_eq!(headline("abcdef", 3), "abc…");
        assert_eq!(headline("", 3), "");
        assert!(!headline("a\u{1b}[0mb", 40).contains('\u{1b}'));
    }

    #[test]
    fn ages_use_one_unit() {
        let now = Timestamp::from_second(10_000_000).unwrap();
        for (seconds, expected) in
            [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7_199, "1 h"), (86_400, "1 d"), (-5, "0 s")]
        {
            assert_eq!(age(Timestamp::from_second(10_000_000 - seconds).unwrap(), now), expected);
        }
    }

    #[test]
    fn columns_are_aligned_and_lines_end_with_their_text() {
        let rows = [vec!["a".into(), "bbb".into()], vec!["cc".into(), "".into()]];
        let mut out = Vec::new();
        table(&mut out, &rows).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a   bbb\ncc\n");
    }

    #[test]
    fn columns_are_aligned_also_with_wide_and_combined_characters() {
        let cells = ["ab", "修复", "👩‍💻", "e\u{301}", "ﾊ"];
        let rows: Vec<Vec<String>> = cells.iter().map(|cell| vec![(*cell).into(), "|".into()]).collect();
        let mut out = Vec::new();
        table(&mut out, &rows).unwrap();
        for line in String::from_utf8(out).unwrap().lines() {
            assert_eq!(line[..line.len() - 1].width(), 6, "{line}");
        }
        assert_eq!(headline("修复登录竞争", 5), "修复…");
        assert_eq!(headline("修复登录竞争", 12), "修复登录竞争");
    }
}
