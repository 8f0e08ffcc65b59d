//! The shared index: read strictly, changed entry by entry, every other byte left as it was.
//!
//! Unknown fields of entries are accepted and kept. What does not parse as a whole is refused as a whole,
//! as the client does it; nothing is ever defaulted to empty.

use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::layout::INDEX;
use crate::session::{Damage, DamageClass};

/// What the user is to do about a damaged index, as the client says it.
pub(super) const ADVICE: &str = "close every openmax, then move the file aside (openmax --check)";

/// The index as it was read.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub entries: Vec<Entry>,
}

/// One session's entry.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(super) struct Entry {
    pub id: String,
    /// As recorded.
    pub project: String,
    pub title: String,
    /// Unix seconds.
    pub created_at: u64,
    pub updated_at: u64,
    #[serde(default)]
    pub resume_points: Vec<u64>,
    /// The entry's bytes in the index.
    #[serde(skip)]
    pub span: Range<usize>,
}

impl Index {
    /// The entries in `bytes`.
    ///
    /// # Errors
    /// Where and why it is no index.
    pub fn parse(bytes: &[u8]) -> Result<Index, Damage> {
        let text = simdutf8::compat::from_utf8(bytes)
            .map_err(|error| damage(bytes, error.valid_up_to(), "it is not valid UTF-8"))?;
        if text.trim().is_empty() {
            return Err(damage(bytes, 0, "the file is empty"));
        }
        let raws: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| {
            damage(bytes, offset(bytes, error.line(), error.column()), &error.to_string())
        })?;
        let entries = raws.into_iter().map(|raw| {
            // Each raw value is a part of `text`.
            let start = raw.get().as_ptr() as usize - text.as_ptr() as usize;
            let entry: Entry = serde_json::from_str(raw.get())
                .map_err(|error| damage(bytes, start, &format!("an entry is not a session: {error}")))?;
            Ok(Entry { span: start..start + raw.get().len(), ..entry })
        });
        Ok(Index { entries: entries.collect::<Result<_, _>>()? })
    }

    /// The only entry of `id`: its place. An id that stands there twice has none that is sure.
    ///
    /// # Errors
    /// The damage that two entries of one id are.
    pub fn only(&self, bytes: &[u8], id: &str) -> Result<Option<usize>, Damage> {
        let mut places =
            self.entries.iter().enumerate().filter(|(_, entry)| entry.id == id).map(|(at, _)| at);
        match (places.next(), places.next()) {
            (_, Some(second)) => {
                let what = format!("the id {id} stands in the index twice; openmax takes the first");
                Err(damage(bytes, self.entries[second].span.start, &what))
            }
            (first, None) => Ok(first),
        }
    }
}

/// A damage of the index at this byte.
pub(super) fn damage(bytes: &[u8], byte: usize, what: &str) -> Damage {
    let before = &bytes[..byte.min(bytes.len())];
    Damage {
        file: INDEX.to_owned(),
        line: memchr::memchr_iter(b'\n', before).count() as u64 + 1,
        byte: byte as u64,
        class: DamageClass::Sidecar,
        message: format!("{what}; {ADVICE}"),
    }
}

/// The byte of a parser's line and column, both from 1.
fn offset(bytes: &[u8], line: usize, column: usize) -> usize {
    let start = match line.checked_sub(2) {
        Some(newline) => memchr::memchr_iter(b'\n', bytes).nth(newline).map_or(bytes.len(), |at| at + 1),
        None => 0,
    };
    (start + column.saturating_sub(1)).min(bytes.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_index_names_its_place_and_the_advice() {
        let entry = r#"{"id":"a","project":"/p","title":"t","created_at":1,"updated_at":2}"#;
        for (bytes, line) in [
            (String::new(), 1),
            ("\n\n".into(), 1),
            ("{}".into(), 1),
            (format!("[{entry},\n{{\"id\":5}}]"), 2),
            (format!("[\n{entry},\n{{\"id\":\"b\",\n"), 4),
            (format!("[\n{entry}]\nx"), 3),
        ] {
            let damage = Index::parse(bytes.as_bytes()).expect_err(&bytes);
            assert_eq!(damage.line, line, "{bytes}: {}", damage.message);
            assert!(damage.message.contains("close every openmax"), "{}", damage.message);
        }
        assert_eq!(Index::parse(b"[]").unwrap().entries, []);
        let index = format!("[ {entry} , {entry}]");
        let parsed = Index::parse(index.as_bytes()).unwrap();
        assert_eq!(&index[parsed.entries[1].span.clone()], entry);
        assert!(parsed.only(index.as_bytes(), "a").is_err());
        assert_eq!(parsed.only(index.as_bytes(), "b").unwrap(), None);
    }
}
