//! JSON as the records hold it: strings that are unescaped only when somebody wants to see them, objects of which
//! the last of two equal keys counts, and message contents.
//!
//! serde_json refuses a lone surrogate escape in a string, Python writes them; the record is valid all the
//! same. So strings stay raw while a record is read (which proves that they are well formed) and are
//! unescaped here, where a lone surrogate becomes U+FFFD.
//!
//! Python's `json` and pydantic also take NaN and Infinity for numbers and, in context lines (`strict=False`),
//! unescaped control characters in strings. [`plain`] rewrites only a line that does not parse as it is. Facts:
//! `docs/stores/kimi-cli.md`, "5. Damage: what the client does".

use std::borrow::Cow;

use serde::de::{Deserialize, Deserializer, Error};
use serde_json::value::RawValue;

use crate::agents::json::each_of;
use crate::agents::{data_url, json};

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

/// What `parse` makes of JSON that the client reads: of the bytes as they are, or else of the same in plain JSON.
///
/// # Errors
/// What `parse` says of the bytes as they are if there is no other form of them, else of the plain form.
pub(super) fn parse_lenient<T, E>(
    bytes: &[u8],
    control: Control,
    parse: impl Fn(&[u8]) -> Result<T, E>,
) -> Result<T, E> {
    parse(bytes).or_else(|error| parse(plain(bytes, control).ok_or(error)?.as_bytes()))
}

/// A JSON string as it stands in a record, with its quotes, not unescaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JsonStr<'a>(&'a str);

impl<'a> JsonStr<'a> {
    /// The raw value, if it is a string.
    pub fn of(raw: &'a RawValue) -> Option<JsonStr<'a>> {
        raw.get().starts_with('"').then_some(JsonStr(raw.get()))
    }

    /// The text.
    pub fn text(self) -> Cow<'a, str> {
        let plain = self.0.trim_matches('"');
        if memchr::memchr(b'\\', plain.as_bytes()).is_none() {
            return Cow::Borrowed(plain);
        }
        // Nearly no text has a lone surrogate, so it is not searched for one before.
        serde_json::from_str(self.0)
            .or_else(|_| serde_json::from_str(&json::readable(self.0)))
            .map_or(Cow::Borrowed(plain), Cow::Owned)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonStr<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&'a RawValue>::deserialize(deserializer)?;
        JsonStr::of(raw).ok_or_else(|| D::Error::custom("a string is expected"))
    }
}

/// Objects read as the client's parsers read them, Python's `json` as well as pydantic: escapes in keys count for
/// what they stand for, and of equal keys the last. Every field is an [`Option`]: `None` where the key is not there.
macro_rules! objects {
    ($($(#[$about:meta])* struct $name:ident $(<$a:lifetime>)? { $($field:ident: $type:ty = $key:literal,)* })*) => {$(
        $(#[$about])*
        #[derive(Debug, Default)]
        pub(super) struct $name $(<$a>)? {
            $(pub $field: Option<$type>,)*
        }

        impl<'de $(: $a, $a)?> serde::Deserialize<'de> for $name $(<$a>)? {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Wanted<T>(std::marker::PhantomData<T>);
                impl<'de $(: $a, $a)?> serde::de::Visitor<'de> for Wanted<$name $(<$a>)?> {
                    type Value = $name $(<$a>)?;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                        let mut found = <$name $(<$a>)?>::default();
                        while let Some(key) = map.next_key::<$crate::agents::kimi_cli::json::JsonStr<'de>>()? {
                            match &*key.text() {
                                $($key => found.$field = Some(map.next_value()?),)*
                                _ => drop(map.next_value::<serde::de::IgnoredAny>()?),
                            }
                        }
                        Ok(found)
                    }
                }
                from.deserialize_map(Wanted(std::marker::PhantomData))
            }
        }
    )*};
}
pub(super) use objects;

/// The content of a message or a prompt: a string, or a list of parts (`docs/stores/kimi-cli.md`,
/// "2.1 context.jsonl").
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    Text(JsonStr<'a>),
    Parts(&'a RawValue),
    /// `null`, which the client takes for no content.
    Nothing,
}

/// A part of a content.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part<'a> {
    Text(JsonStr<'a>),
    Thinking(JsonStr<'a>),
    /// `kind`: image, audio, video.
    Url {
        kind: &'static str,
        url: JsonStr<'a>,
    },
    /// `json` is empty where the part is a record's whole payload.
    Unknown {
        kind: JsonStr<'a>,
        json: &'a str,
    },
}

impl<'a> Content<'a> {
    /// `None` if it is none of what the client writes.
    pub fn of(raw: &'a RawValue) -> Option<Content<'a>> {
        match raw.get().as_bytes().first()? {
            b'"' => JsonStr::of(raw).map(Content::Text),
            b'[' => Some(Content::Parts(raw)),
            b'n' => Some(Content::Nothing),
            _ => None,
        }
    }

    /// Gives the parts to `each`, in order.
    pub fn each_part(self, mut each: impl FnMut(Part<'a>)) {
        match self {
            Content::Text(text) => each(Part::Text(text)),
            Content::Nothing => {}
            // Any element is a raw value, so nothing can be wrong with one.
            Content::Parts(list) => drop(each_of(list, |part| each(Part::of(part)))),
        }
    }

    /// The text as the client extracts it: texts of parts joined by one space, other parts ignored.
    /// `None` if there is no text part.
    pub fn text(self) -> Option<Cow<'a, str>> {
        self.text_joined(|joined| joined.push(' '))
    }

    /// The texts of the parts, with what `between` adds between them.
    pub fn text_joined(self, between: impl Fn(&mut String)) -> Option<Cow<'a, str>> {
        let mut joined: Option<Cow<'a, str>> = None;
        self.each_part(|part| {
            let Part::Text(text) = part else { return };
            match &mut joined {
                Some(joined) => {
                    let joined = joined.to_mut();
                    between(joined);
                    joined.push_str(&text.text());
                }
                None => joined = Some(text.text()),
            }
        });
        joined
    }
}

impl<'a> Part<'a> {
    /// A part as it stands in a list.
    pub fn of(raw: &'a RawValue) -> Part<'a> {
        if let Some(text) = JsonStr::of(raw) {
            return Part::Text(text);
        }
        match serde_json::from_str(raw.get()) {
            Ok(Part::Unknown { kind, .. }) => Part::Unknown { kind, json: raw.get() },
            Ok(part) => part,
            Err(_) => Part::Unknown { kind: JsonStr("\"part\""), json: raw.get() },
        }
    }

    /// What a URL part holds: media type and size in bytes of a `data:` URL; `None` for another URL.
    pub fn blob(kind: &str, url: &str) -> Option<(String, u64)> {
        let (media_type, bytes) = data_url::parse(url)?;
        let media_type = if media_type.is_empty() { format!("{kind}/*") } else { media_type.to_owned() };
        Some((media_type, bytes))
    }
}

objects! {
    struct Url<'a> {
        url: JsonStr<'a> = "url",
    }
    struct PartFields<'a> {
        kind: &'a RawValue = "type",
        text: &'a RawValue = "text",
        think: &'a RawValue = "think",
        image_url: &'a RawValue = "image_url",
        audio_url: &'a RawValue = "audio_url",
        video_url: &'a RawValue = "video_url",
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Part<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = PartFields::deserialize(deserializer)?;
        let wants = |what| D::Error::custom(what);
        let url = |kind, raw: Option<&'a RawValue>| {
            let parsed = raw.map(|raw| serde_json::from_str::<Url<'a>>(raw.get()));
            match parsed {
                Some(Ok(Url { url: Some(url) })) => Ok(Part::Url { kind, url }),
                _ => Err(wants("a url part without a url")),
            }
        };
        let kind = fields.kind.and_then(JsonStr::of).ok_or_else(|| wants("no type"))?;
        match &*kind.text() {
            "text" => fields.text.and_then(JsonStr::of).map(Part::Text).ok_or_else(|| wants("no text")),
            "think" => {
                fields.think.and_then(JsonStr::of).map(Part::Thinking).ok_or_else(|| wants("no thinking"))
            }
            "image_url" => url("image", fields.image_url),
            "audio_url" => url("audio", fields.audio_url),
            "video_url" => url("video", fields.video_url),
            _ => Ok(Part::Unknown { kind, json: "" }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn text(json: &str) -> String {
        serde_json::from_str::<JsonStr<'_>>(json).unwrap().text().into_owned()
    }

    #[test]
    fn strings_are_unescaped_and_lone_surrogates_become_replacement_characters() {
        let cases = [
            (r#""plain \u2028 é""#, "plain \u{2028} é"),
            (r#""a\n\t\"\\\/\b\f\r""#, "a\n\t\"\\/\u{8}\u{c}\r"),
            (r#""\ud83d\ude00!""#, "\u{1f600}!"),
            (r#""\ud83d!""#, "\u{fffd}!"),
            (r#""\ud83d\n""#, "\u{fffd}\n"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}\u{1f600}"),
            (r#""\ude00""#, "\u{fffd}"),
            (r#""\ud83d""#, "\u{fffd}"),
            (r#""""#, ""),
        ];
        for (json, expected) in cases {
            assert_eq!(text(json), expected, "{json}");
        }
        assert!(serde_json::from_str::<JsonStr<'_>>("5").is_err());
        assert!(serde_json::from_str::<JsonStr<'_>>(r#""\x""#).is_err());
    }

    #[test]
    fn a_content_gives_its_text_as_the_client_extracts_it() {
        let cases = [
            (r#""one""#, Some("one")),
            (r#"[]"#, None),
            (r#"null"#, None),
            (r#"[{"type":"text","text":"a"},{"type":"think","think":"x"},"b"]"#, Some("a b")),
            (r#"[{"type":"image_url","image_url":{"url":"data:,x"}}]"#, None),
        ];
        for (json, expected) in cases {
            let raw: &RawValue = serde_json::from_str(json).unwrap();
            assert_eq!(Content::of(raw).unwrap().text().as_deref(), expected, "{json}");
        }
        let number: &RawValue = serde_json::from_str("5").unwrap();
        assert!(Content::of(number).is_none());
    }

    #[test]
    fn a_data_url_tells_type_and_decoded_size() {
        assert_eq!(Part::blob("image", "data:image/png;base64,QUJD"), Some(("image/png".into(), 3)));
        assert_eq!(Part::blob("image", "data:image/png;base64,QUI="), Some(("image/png".into(), 2)));
        assert_eq!(Part::blob("audio", "data:,abcd"), Some(("audio/*".into(), 4)));
        assert_eq!(Part::blob("image", "https://example.com/x.png"), None);
    }

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
