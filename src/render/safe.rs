//! Text that a terminal cannot be tricked with.

use std::borrow::Cow;

/// Makes control and bidi characters visible; newline and tab stay. A carriage return before a newline is
/// dropped from sight like an editor does: shown as `␍`.
pub fn visible(text: &str) -> Cow<'_, str> {
    replace(text, |b| (b != b'\n') & (b != b'\t'), show)
}

/// As [`visible`], on one line.
pub fn one_line(text: &str) -> Cow<'_, str> {
    replace(text, |_| true, show)
}

/// JSON text of the same value in which no string holds an unsafe character as such. (Newlines between tokens stay.)
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    let escape = |c: char, escaped: &mut String| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            escaped.push_str(&format!("\\u{unit:04x}"));
        }
    };
    replace(json, |b| b != b'\n', escape)
}

/// Puts what `show` writes in the place of what is unsafe, as far as `counts` does not except the (ASCII) byte.
fn replace(text: &str, counts: impl Fn(u8) -> bool + Copy, show: impl Fn(char, &mut String)) -> Cow<'_, str> {
    // Most text is clean: find the first bad character before copying anything.
    let Some(first) = find_unsafe(text, counts) else { return Cow::Borrowed(text) };
    let mut shown = String::with_capacity(text.len() + 16);
    let (mut rest, mut next) = (text, Some(first));
    while let Some((at, c)) = next {
        shown.push_str(&rest[..at]);
        show(c, &mut shown);
        rest = &rest[at + c.len_utf8()..];
        next = find_unsafe(rest, counts);
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// The first unsafe character and where it is. Every turn's text goes through here when its size is counted,
/// so whole blocks are passed over in which no pair of bytes begins one.
fn find_unsafe(text: &str, counts: impl Fn(u8) -> bool + Copy) -> Option<(usize, char)> {
    const BLOCK: usize = 64;
    // Without branches: this is what the compiler makes vector code of.
    let may_begin = |b: u8, next: u8| {
        ((b < 0x20) & counts(b))
            | (b == 0x7f)
            | ((b == 0xc2) & (next < 0xa0))
            | ((b == 0xd8) & (next == 0x9c))
            | ((b == 0xe2) & ((next == 0x80) | (next == 0x81)))
    };
    let bytes = text.as_bytes();
    let (last, body) = bytes.split_last()?;
    for (block, nexts, at) in body
        .chunks(BLOCK)
        .zip(bytes[1..].chunks(BLOCK))
        .enumerate()
        .map(|(n, (b, next))| (b, next, n * BLOCK))
    {
        let pairs = || block.iter().zip(nexts);
        if !pairs().fold(false, |any, (b, next)| any | may_begin(*b, *next)) {
            continue;
        }
        for (i, _) in pairs().enumerate().filter(|(_, (b, next))| may_begin(**b, **next)) {
            if let Some(c) = text[at + i..].chars().next().filter(|c| is_unsafe(*c)) {
                return Some((at + i, c));
            }
        }
    }
    may_begin(*last, 0).then_some((body.len(), char::from(*last)))
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
    fn every_unsafe_character_is_found_wherever_it_stands() {
        let all = (0..=0xffff).filter_map(char::from_u32).filter(|c| is_unsafe(*c));
        for c in all {
            for before in [0, 1, 63, 64, 200] {
                let text = format!("{}{c}→", "é".repeat(before));
                assert!(!one_line(&text).contains(c), "{c:?} behind {before} letters");
                assert_eq!(
                    visible(&text).contains(c),
                    c == '\n' || c == '\t',
                    "{c:?} behind {before} letters"
                );
                assert!(visible(&text).ends_with('→'));
            }
        }
    }

    #[test]
    fn json_with_escapes_is_the_same_value() {
        let value = serde_json::json!({ "a\u{9b}": "b\u{1b}\u{202e}\u{7f}\n" });
        let text = serde_json::to_string_pretty(&value).unwrap_or_default();
        let safe = escaped_json(&text);
        assert!(!safe.chars().any(|c| c != '\n' && is_unsafe(c)), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).ok(), Some(value));
        assert!(matches!(escaped_json("{\n  \"a\": \"ü\"\n}"), Cow::Borrowed(_)));
    }

    #[test]
    fn what_is_dangerous_is_shown() {
        assert_eq!(visible("a\u{1b}b\u{7f}c\u{9b}d\u{202e}e\r\n"), "a␛b␡c\\u{009b}d\\u{202e}e␍\n");
        assert_eq!(one_line("a\nb\tc"), "a␊b␉c");
    }
}
