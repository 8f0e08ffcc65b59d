//! Text cut to a number of columns.

use unicode_width::UnicodeWidthChar as _;

/// Most characters for each column: marks that take none must not make a line endless.
const PER_COLUMN: usize = 4;

/// The beginning of one line of `text` that is at most `columns` of a terminal wide.
pub fn cut_to_width(text: &str, columns: usize) -> &str {
    let mut width = 0;
    for (count, (at, c)) in text.char_indices().enumerate() {
        width += c.width().unwrap_or(0);
        if width > columns || count >= columns * PER_COLUMN {
            return &text[..at];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_character_takes_two_columns_and_a_mark_none() {
        for (text, columns, expected) in [
            ("abc", 3, "abc"),
            ("abc", 2, "ab"),
            ("修复登", 4, "修复"),
            ("修复登", 5, "修复"),
            ("e\u{301}e\u{301}", 1, "e\u{301}"),
            ("", 0, ""),
            ("a", 0, ""),
        ] {
            assert_eq!(cut_to_width(text, columns), expected, "{text} {columns}");
        }
        assert!(cut_to_width(&"\u{301}".repeat(10_000), 48).len() < 400);
    }
}
