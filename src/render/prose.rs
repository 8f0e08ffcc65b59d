//! What users and the model said: Markdown of their own, which must not reach beyond its section.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag};

use super::blocks::{fenced, lines};
use super::{Output, TITLES, visible};

/// The text as it is. A block of it that is never closed (a code fence, a comment) is closed behind it, and a line that
/// looks like a heading of a turn or of its sections gets a backslash.
pub fn prose(text: &str, out: &mut impl Output) {
    // A longer one stands between fences, for it would have to be parsed.
    const LONGEST: usize = 1 << 20;
    if text.is_empty() {
        return;
    }
    let may_be_open = may_be_open(text);
    if may_be_open && text.len() > LONGEST {
        return fenced("", text, out);
    }
    out.put("\n");
    if !may_be_open {
        return without_headings(text, out);
    }
    let mut body = String::with_capacity(text.len() + 1);
    without_headings(text, &mut body);
    out.put(&body);
    if let Some(end) = open_end(&body) {
        out.put(&end);
        out.put("\n");
    }
}

/// The text, in which no line looks like a part of the turn's own structure.
fn without_headings(text: &str, out: &mut impl Output) {
    let mut rest = text;
    while let Some(at) = looks_like_heading(rest) {
        out.put(&visible(&rest[..at]));
        out.put("\\#");
        rest = &rest[at + 1..];
    }
    lines(rest, out);
}

/// Where the first line begins that a reader of the turn would take for a part of its structure.
fn looks_like_heading(text: &str) -> Option<usize> {
    static MARK: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\n#"));
    let is_title = |line: &str| {
        let behind = TITLES.iter().find_map(|title| line.strip_prefix(title));
        behind.is_some_and(|behind| !behind.starts_with(char::is_alphanumeric))
    };
    let first = text.starts_with('#').then_some(0);
    first.into_iter().chain(MARK.find_iter(text.as_bytes()).map(|at| at + 1)).find(|at| {
        let line = &text[*at..];
        let turn = line.strip_prefix("# Turn ");
        line.strip_prefix("## ").is_some_and(is_title)
            || turn.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// What begins HTML that goes on over empty lines, and what ends it; the longer ones first.
const HTML: [(&str, &str); 8] = [
    ("<!--", "-->"),
    ("<![CDATA[", "]]>"),
    ("<!", ">"),
    ("<?", "?>"),
    ("<pre", "</pre>"),
    ("<script", "</script>"),
    ("<style", "</style>"),
    ("<textarea", "</textarea>"),
];

/// Whether a block of the text could be open at its end: nearly no text has what such a block begins with.
fn may_be_open(text: &str) -> bool {
    static FENCES: LazyLock<[Finder<'static>; 2]> =
        LazyLock::new(|| [Finder::new("```"), Finder::new("~~~")]);
    let bytes = text.as_bytes();
    let begins_html = |at: usize| {
        let behind = &bytes[at + 1..];
        let named = |name: &[u8]| behind.get(..name.len()).is_some_and(|it| it.eq_ignore_ascii_case(name));
        HTML.iter().any(|(begin, _)| named(&begin.as_bytes()[1..]))
    };
    FENCES.iter().any(|fence| fence.find(bytes).is_some())
        || memchr::memchr_iter(b'<', bytes).any(begins_html)
}

/// What closes the block that the text (which ends with a newline) leaves open, if there is one: such a block would swallow all that follows.
fn open_end(text: &str) -> Option<String> {
    let whole = format!("{text}\n# x\n");
    let behind = text.len() + 1;
    for (event, range) in Parser::new(&whole).into_offset_iter() {
        if range.end <= behind {
            continue;
        }
        let start = || whole[range.start..].trim_start();
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))) => {
                let mark = start().chars().next()?;
                return Some(start().chars().take_while(|c| *c == mark).collect());
            }
            Event::Start(Tag::HtmlBlock) => {
                let block = start().to_ascii_lowercase();
                let by_place = |(begin, _): &(&str, &str)| block.find(&begin.to_ascii_lowercase());
                let opening = HTML.into_iter().filter(|html| by_place(html).is_some()).min_by_key(by_place);
                return opening.map(|(_, end)| end.to_owned());
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pulldown_cmark::TagEnd;

    use super::*;

    fn shown(text: &str) -> String {
        let mut out = String::new();
        prose(text, &mut out);
        out
    }

    /// The headings of the whole, as a reader of Markdown finds them at its top level.
    fn headings(text: &str) -> Vec<String> {
        let (mut depth, mut found) = (0, Vec::new());
        for (event, range) in Parser::new(text).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { .. }) if depth == 0 => {
                    found.push(text[range].trim().to_owned());
                    depth += 1;
                }
                Event::Start(_) => depth += 1,
                Event::End(TagEnd::Heading(_)) => depth -= 1,
                Event::End(_) => depth -= 1,
                _ => {}
            }
        }
        found
    }

    #[test]
    fn what_is_left_open_is_closed_and_what_is_closed_stays() {
        for (text, expected) in [
            ("hello", "\nhello\n"),
            ("hello\n", "\nhello\n"),
            ("```rust\nfn a() {}\n```\nbye", "\n```rust\nfn a() {}\n```\nbye\n"),
            ("```rust\nfn a() {}", "\n```rust\nfn a() {}\n```\n"),
            ("~~~~\n~~~\n```\n", "\n~~~~\n~~~\n```\n~~~~\n"),
            ("  ```\n  x\n", "\n  ```\n  x\n```\n"),
            ("- ```\n  x\n  ```\n\nbye", "\n- ```\n  x\n  ```\n\nbye\n"),
            ("- ```\n  x", "\n- ```\n  x\n"),
            ("a ``` b", "\na ``` b\n"),
            ("<!-- note", "\n<!-- note\n-->\n"),
            ("<PRE>\na", "\n<PRE>\na\n</pre>\n"),
            ("<script>\na</pre>", "\n<script>\na</pre>\n</script>\n"),
            ("see <details>", "\nsee <details>\n"),
        ] {
            assert_eq!(shown(text), expected, "{text:?}");
        }
    }

    #[test]
    fn no_line_of_a_text_looks_like_a_section() {
        for (text, expected) in [
            ("## User", "\n\\## User\n"),
            ("a\n## Tool call: x\n## Summary\n### User", "\na\n\\## Tool call: x\n## Summary\n### User\n"),
            ("# Turn 3 · x\n# Turning", "\n\\# Turn 3 · x\n# Turning\n"),
            ("## Users\n##User", "\n## Users\n##User\n"),
        ] {
            assert_eq!(shown(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_very_long_text_that_may_be_open_stands_between_fences() {
        let text = format!("```\n{}", "x\n".repeat(1 << 20));
        assert_eq!(shown(&text), format!("\n````\n{text}````\n"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn the_next_section_is_one_whatever_was_said(lines in proptest::collection::vec(prop_oneof![
            Just("```"), Just("````rs"), Just("~~~"), Just("  ```"), Just("   ~~~~"), Just("    ```"), Just("- ```"),
            Just("  - ```"), Just("1. ```"), Just("> ```"), Just("> > ~~~"), Just("- a"), Just("  b"), Just(""), Just("text"),
            Just("<!-- c"), Just("-->"), Just("<pre>"), Just("</pre>"), Just("<script>"), Just("<?x"), Just("<!A"), Just("<div>"),
            Just("<![CDATA["), Just("## User"), Just("[a]: <b"), Just("\t```"), Just("``` `"), Just("| a |\n|-|"),
        ], 0..12), newline in any::<bool>()) {
            let text = lines.join("\n") + if newline { "\n" } else { "" };
            let whole = format!("## Before\n{}\n## Behind\n", shown(&text));
            let found = headings(&whole);
            prop_assert_eq!(found.first().map(String::as_str), Some("## Before"));
            prop_assert_eq!(found.last().map(String::as_str), Some("## Behind"), "{}", whole);
            prop_assert!(!whole.contains("\n## User"));
        }
    }
}
