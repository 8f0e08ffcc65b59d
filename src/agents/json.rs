//! JSON of the stores: objects that keep their order and spelling, and strings that serde_json refuses.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The text of a JSON string, in which a lone surrogate becomes U+FFFD; `None` of everything else.
pub(super) fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    let json = value.get();
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    // Nearly no text has a lone surrogate, so it is not searched for one before.
    serde_json::from_str(json).or_else(|_| serde_json::from_str(&readable(json))).ok().map(Cow::Owned)
}

/// The fields of a JSON object, in their order, as they are spelled.
///
/// # Errors
/// Why `json` is not an object.
pub(super) fn borrowed_fields(json: &str) -> Result<Vec<(Cow<'_, str>, &RawValue)>, serde_json::Error> {
    struct Key<'a>(Cow<'a, str>);
    impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Key<'a>, D::Error> {
            struct Name;
            impl<'de> Visitor<'de> for Name {
                type Value = Key<'de>;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a name")
                }
                fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Key<'de>, E> {
                    Ok(Key(Cow::Borrowed(name)))
                }
                fn visit_str<E>(self, name: &str) -> Result<Key<'de>, E> {
                    Ok(Key(Cow::Owned(name.to_owned())))
                }
            }
            from.deserialize_str(Name)
        }
    }
    struct Fields;
    impl<'de> Visitor<'de> for Fields {
        type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut fields = Vec::new();
            while let Some((Key(key), value)) = map.next_entry()? {
                fields.push((key, value));
            }
            Ok(fields)
        }
    }
    let mut parser = serde_json::Deserializer::from_str(json);
    let fields = parser.deserialize_map(Fields)?;
    parser.end().map(|()| fields)
}

/// A JSON object whose values stay as they are spelled and whose order stays; of equal keys the first counts.
pub(super) struct Object(Vec<(String, String)>);

impl Object {
    /// # Errors
    /// Why `json` is not an object.
    pub fn parse(json: &str) -> Result<Object, serde_json::Error> {
        let fields = borrowed_fields(json)?.into_iter();
        Ok(Object(fields.map(|(key, value)| (key.into_owned(), value.get().to_owned())).collect()))
    }

    /// Keys, and values as JSON.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// A value as JSON.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.fields().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Sets a value, given as JSON, at its place or at the end.
    pub fn set(&mut self, key: &str, json: String) {
        match self.0.iter_mut().find(|(name, _)| name == key) {
            Some((_, value)) => *value = json,
            None => self.0.push((key.to_owned(), json)),
        }
    }

    pub fn remove(&mut self, key: &str) {
        self.0.retain(|(name, _)| name != key);
    }

    /// Removes all other keys.
    pub fn keep_only(&mut self, keys: &[&str]) {
        self.0.retain(|(name, _)| keys.contains(&name.as_str()));
    }

    /// Without blanks.
    pub fn to_json(&self) -> String {
        let fields = self.fields().map(|(key, value)| format!("{}:{value}", serde_json::Value::from(key)));
        format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
    }
}

/// Gives the elements of a list to `each`, one at a time.
///
/// # Errors
/// Why it is no list, or an element no `T`; those before it were given.
pub(super) fn each_of<'a, T: Deserialize<'a>>(
    list: &'a RawValue,
    each: impl FnMut(T),
) -> Result<(), serde_json::Error> {
    struct Elements<T, F>(F, PhantomData<T>);
    impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for Elements<T, F> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }
        fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
            while let Some(element) = list.next_element()? {
                (self.0)(element);
            }
            Ok(())
        }
    }
    serde_json::Deserializer::from_str(list.get()).deserialize_seq(Elements(each, PhantomData))
}

/// JSON whose strings serde_json reads as text: an escaped lone surrogate, which no text can hold, becomes U+FFFD.
/// The clients write them, and the record is valid all the same.
pub(super) fn readable(json: &str) -> Cow<'_, str> {
    let bytes = json.as_bytes();
    let mut out = String::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        let escape = at + found;
        let Some(unit) = code_unit(bytes, escape) else {
            at = escape + 2;
            continue;
        };
        let paired = (0xD800..0xDC00).contains(&unit)
            && code_unit(bytes, escape + 6).is_some_and(|low| (0xDC00..0xE000).contains(&low));
        at = escape + if paired { 12 } else { 6 };
        if (0xD800..0xE000).contains(&unit) && !paired {
            out.push_str(&json[copied..escape]);
            out.push_str("\\ufffd");
            copied = at;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    out.push_str(&json[copied..]);
    Cow::Owned(out)
}

/// The UTF-16 unit that an escape at `at` stands for; `None` if there is no `\u` escape.
fn code_unit(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_surrogate_becomes_a_replacement_character_and_nothing_else_changes() {
        for (json, text) in [
            (r#""a\ud800b""#, "a\u{fffd}b"),
            (r#""\ud83d\ude00 \udc00""#, "\u{1f600} \u{fffd}"),
            (r#""\\ud800 \\""#, r"\ud800 \"),
            (r#""\n\u00e9""#, "\né"),
        ] {
            assert_eq!(serde_json::from_str::<String>(&readable(json)).unwrap(), text, "{json}");
        }
    }

    #[test]
    fn an_object_keeps_order_and_spelling() {
        let mut object = Object::parse(r#"{"b": 1.0, "a" :[ 2 ],"c":null}"#).unwrap();
        object.set("a", "3".into());
        object.set("d", "\"\"".into());
        object.remove("c");
        assert_eq!(object.to_json(), r#"{"b":1.0,"a":3,"d":""}"#);
        assert!(Object::parse("[]").is_err() && Object::parse("{} x").is_err());
    }
}
