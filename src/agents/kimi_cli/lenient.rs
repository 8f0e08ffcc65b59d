//! JSON that the client's parsers accept and serde_json does not: what the client reads is no damage.
//!
//! Python's `json` and pydantic take NaN and Infinity for numbers; for context lines also unescaped control
//! characters (`strict=False`). Both stop at some depth. Nothing here is asked for a line that reads at once, and
//! nothing is built but a copy of the line. Facts: `docs/stores/kimi-cli.md`, "5. Damage: what the client does".

/// Deepest nesting that the client's parser of wire lines takes; deeper lines are skipped by it.
pub(super) const WIRE_DEPTH: usize = 200;
/// Nesting of a context line that the client was seen to read; of 10,000 levels it crashes at start.
pub(super) const CONTEXT_DEPTH: usize = 5000;

/// Whether unescaped control characters may stand in strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Allowed,
    Refused,
}

/// The text in a form that every parser reads, if it is JSON for the client: NaN and the like as strings, and
/// control characters escaped where they are allowed. `None` if nothing of the kind stands in it.
pub(super) fn plain(bytes: &[u8], control: Control) -> Option<String> {
    let text = simdutf8::basic::from_utf8(bytes).ok()?;
    let mut out = String::new();
    let (mut copied, mut at, mut in_string) = (0, 0, false);
    while at < bytes.len() {
        let rest = &text[at..];
        let word = || ["NaN", "-Infinity", "Infinity"].into_iter().find(|word| rest.starts_with(word));
        let (len, instead) = match bytes[at] {
            b'\\' if in_string => (2, None),
            b'"' => {
                in_string = !in_string;
                (1, None)
            }
            b'N' | b'-' | b'I' if !in_string => match word() {
                Some(word) => (word.len(), Some(format!("\"{word}\""))),
                None => (1, None),
            },
            byte if in_string && byte < b' ' && control == Control::Allowed => {
                (1, Some(format!("\\u{byte:04x}")))
            }
            _ if in_string => {
                let ends = |byte: &u8| *byte < b' ' || matches!(byte, b'"' | b'\\');
                (bytes[at + 1..].iter().position(ends).map_or(rest.len(), |found| found + 1), None)
            }
            _ => (1, None),
        };
        if let Some(instead) = instead {
            out.push_str(&text[copied..at]);
            out.push_str(&instead);
            copied = at + len;
        }
        // What follows a backslash may have several bytes; each is passed by itself.
        at += len;
        while at < bytes.len() && !text.is_char_boundary(at) {
            at += 1;
        }
    }
    if copied == 0 {
        return None;
    }
    out.push_str(&text[copied..]);
    Some(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_python_reads_becomes_plain_json() {
        let cases = [
            (
                r#"{"a": NaN, "b": [-Infinity, Infinity]}"#,
                Some(r#"{"a": "NaN", "b": ["-Infinity", "Infinity"]}"#),
            ),
            (r#"{"a": "NaN \" NaN"}"#, None),
            (r#"{"é\é": [NaN,1], "NaN": -1}"#, Some(r#"{"é\é": ["NaN",1], "NaN": -1}"#)),
            (r#"{"a": Nan}"#, None),
            (r#"{"a": "#, None),
        ];
        for (json, expected) in cases {
            assert_eq!(plain(json.as_bytes(), Control::Refused).as_deref(), expected, "{json}");
        }
        let tab = b"{\"a\": \"x\ty\"}";
        assert_eq!(plain(tab, Control::Refused), None);
        assert_eq!(plain(tab, Control::Allowed).unwrap(), r#"{"a": "x\u0009y"}"#);
    }
}
