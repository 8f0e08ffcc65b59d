//! JSON that the client's parsers accept and serde_json does not: what the client reads is no damage.
//!
//! Python's `json` and pydantic take NaN and Infinity for numbers and the last of two equal keys; for context
//! lines also unescaped control characters (`strict=False`). Both stop at some depth. Nothing here is asked
//! for a line that reads at once. Facts: `docs/stores/kimi-cli.md`, "5. Damage: what the client does".

use serde_json::Value;
use serde_json::value::RawValue;

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

/// The same JSON in a form that every parser reads; `None` if it is none for the client either.
pub(super) fn plain(bytes: &[u8], control: Control) -> Option<String> {
    let text = rewritten(simdutf8::basic::from_utf8(bytes).ok()?, control);
    // A map keeps the last of two equal keys.
    match serde_json::from_str::<Value>(&text) {
        Ok(value) if has_equal_keys(&text) => serde_json::to_string(&value).ok(),
        Ok(_) => Some(text),
        // Too deep for a value, or with a lone surrogate: it may still be read as a record.
        Err(_) => serde_json::from_str::<&RawValue>(&text).is_ok().then_some(text),
    }
}

/// Whether the value of a text is written shorter than the text: some key stands in it twice.
fn has_equal_keys(text: &str) -> bool {
    let keys = |text: &str| text.matches("\":").count() + text.matches("\" :").count();
    serde_json::from_str::<Value>(text).is_ok_and(|value| keys(&value.to_string()) < keys(text))
}

/// With NaN and the like as strings, and control characters escaped where they are allowed.
fn rewritten(text: &str, control: Control) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut in_string = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if in_string && c == '\\' {
            let escape: String = rest.chars().take(2).collect();
            out.push_str(&escape);
            rest = &rest[escape.len()..];
            continue;
        }
        if c == '"' {
            in_string = !in_string;
        }
        let number = ["NaN", "-Infinity", "Infinity"].into_iter().find(|word| rest.starts_with(word));
        match number.filter(|_| !in_string) {
            Some(word) => {
                out.push('"');
                out.push_str(word);
                out.push('"');
                rest = &rest[word.len()..];
                continue;
            }
            None if in_string && c < ' ' && control == Control::Allowed => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            None => out.push(c),
        }
        rest = &rest[c.len_utf8()..];
    }
    out
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
            (r#"{"a": "NaN \" NaN"}"#, Some(r#"{"a": "NaN \" NaN"}"#)),
            (r#"{"a": 1, "a": 2}"#, Some(r#"{"a":2}"#)),
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
