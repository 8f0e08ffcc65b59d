//! Text that a terminal cannot be tricked with.

use std::borrow::Cow;

/// Makes control and bidi characters visible; newline and tab stay. A carriage return before a newline is
/// dropped from sight like an editor does: shown as `␍`.
pub fn visible(text: &str) -> Cow<'_, str> {
    replace(text, |c| c != '\n' && c != '\t' && is_unsafe(c))
}

/// As [`visible`], on one line.
pub fn one_line(text: &str) -> Cow<'_, str> {
    replace(text, is_unsafe)
}

fn replace(text: &str, bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    // Most text is clean: find the first bad character before copying anything.
    let Some(first) = text.find(&bad) else { return Cow::Borrowed(text) };
    let mut shown = String::with_capacity(text.len() + 16);
    shown.push_str(&text[..first]);
    for c in text[first..].chars() {
        if bad(c) { show(c, &mut shown) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// Control characters, and characters that change the direction of text.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

fn show(c: char, out: &mut String) {
    match c as u32 {
        // The control pictures block has a sign for each C0 character and for DEL.
        code @ 0..0x20 => out.extend(char::from_u32(0x2400 + code)),
        0x7f => out.push('\u{2421}'),
        code => out.push_str(&format!("\\u{{{code:04x}}}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_harmless_is_not_copied() {
        assert!(matches!(visible("plain\n\ttext äöü 你"), Cow::Borrowed(_)));
    }

    #[test]
    fn what_is_dangerous_is_shown() {
        assert_eq!(visible("a\u{1b}b\u{7f}c\u{9b}d\u{202e}e\r\n"), "a␛b␡c\\u{009b}d\\u{202e}e␍\n");
        assert_eq!(one_line("a\nb\tc"), "a␊b␉c");
    }
}
