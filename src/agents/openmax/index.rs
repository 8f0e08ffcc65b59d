//! The shared index: read strictly, changed entry by entry, every other byte left as it was.
//!
//! Unknown fields of entries are accepted and kept. What does not parse as a whole is refused as a whole,
//! as the client does it; nothing is ever defaulted to empty.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::layout::{INDEX, NO_TITLE};
use crate::agents::json::Object;
use crate::agents::{SharedIndex, json_array};
use crate::session::{self, Damage, DamageClass, EntryEdit, Refusal};

type Result<T, E = Refusal> = std::result::Result<T, E>;

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

    /// When the latest session of the entry's project was worked on, Unix seconds.
    pub fn newest_beside(&self, at: usize) -> u64 {
        let project = self.entries.get(at).map(|entry| Path::new(&entry.project));
        let beside = self.entries.iter().filter(|entry| Some(Path::new(&entry.project)) == project);
        beside.map(|entry| entry.updated_at).max().unwrap_or(0)
    }

    /// What a fork of this session is called: the client can delete sessions by their title, so it is another one
    /// than any in the project.
    fn fork_title(&self, of: &Entry) -> String {
        let beside = self.entries.iter().filter(|entry| is_of(entry, Path::new(&of.project)));
        let taken: HashSet<&str> = beside.map(|entry| entry.title.as_str()).collect();
        let first = format!("Fork: {}", of.title);
        let later = (2u64..).map(|nth| format!("{first} ({nth})"));
        let mut names = std::iter::once(first.clone()).chain(later);
        names.find(|name| !taken.contains(name.as_str())).unwrap_or(first)
    }
}

/// Waits until a time of now is a later one than `newest`, if both are in the same second: of equal ones one version
/// of the client goes on with the first entry, another with the last. At most a second; what is in the future is
/// not waited for.
pub(super) fn wait_until_after(newest: u64) {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if since.as_secs() == newest {
        std::thread::sleep(
            Duration::from_secs(1).saturating_sub(Duration::from_nanos(since.subsec_nanos().into())),
        );
    }
}

/// What a cut does with the index.
pub(super) struct Entries;

impl SharedIndex for Entries {
    fn find(&self, index: &[u8], id: &str) -> Result<Option<session::Entry>> {
        let parsed = Index::parse(index).map_err(refuse)?;
        let at = parsed.only(index, id).map_err(refuse)?;
        at.map(|at| Ok(session::Entry { text: text(index, &parsed.entries[at].span)?.to_owned(), at }))
            .transpose()
    }

    fn edited(&self, index: &[u8], edit: &EntryEdit) -> Result<session::Entry> {
        let parsed = Index::parse(index).map_err(refuse)?;
        let source = match edit {
            EntryEdit::Copy { source, .. } => source.into(),
            other => other.id(),
        };
        let Some(at) = parsed.only(index, &source).map_err(refuse)? else {
            return Err(Refusal::ReadOnlySession { what: format!("the index has no entry for {source}") });
        };
        let old = &parsed.entries[at];
        let now = now();
        let mut fields = Object::parse(text(index, &old.span)?).map_err(internal)?;
        match edit {
            EntryEdit::Cut { messages, rewritten, empty, .. } => {
                let points = old.resume_points.iter().filter(|point| !rewritten && *point <= messages);
                fields.set("updated_at", now.to_string());
                if *empty {
                    // The client names a session after its next prompt only then.
                    fields.set("title", Value::from(NO_TITLE).to_string());
                }
                set_points(&mut fields, &points.copied().collect::<Vec<u64>>());
                // Moved to the end, where a newer entry stands.
                Ok(session::Entry { text: written(&fields), at: parsed.entries.len() - 1 })
            }
            EntryEdit::Project { .. } => {
                Err(Refusal::Internal { what: "openmax lists sessions, not projects".into() })
            }
            EntryEdit::Copy { id, project, .. } => {
                fields.set("id", Value::from(id.as_str()).to_string());
                match project {
                    // The same history at another path. A time of its own would say that all of them were worked
                    // on now, and one in the future that a session which is begun after it is older.
                    Some(project) => {
                        fields.set("project", Value::from(project.to_string_lossy()).to_string());
                        fields.set("created_at", old.created_at.min(now).to_string());
                        fields.set("updated_at", old.updated_at.min(now).to_string());
                    }
                    None => {
                        fields.set("title", Value::from(parsed.fork_title(old)).to_string());
                        fields.set("created_at", now.to_string());
                        fields.set("updated_at", now.to_string());
                    }
                }
                set_points(&mut fields, &[]);
                // What else stands in an entry is the source's own.
                fields.keep_only(&["id", "project", "title", "created_at", "updated_at"]);
                Ok(session::Entry { text: written(&fields), at: parsed.entries.len() })
            }
        }
    }

    fn put(&self, index: &[u8], id: &str, entry: Option<&session::Entry>) -> Result<Vec<u8>> {
        let parsed = Index::parse(index).map_err(refuse)?;
        let old = parsed.only(index, id).map_err(refuse)?;
        let spans: Vec<_> = parsed.entries.iter().map(|known| known.span.clone()).collect();
        let insert = entry.map(|entry| (entry.at, entry.text.as_str()));
        Ok(json_array::splice(text(index, &(0..index.len()))?, &spans, old, insert, "  ").into_bytes())
    }

    fn same(&self, one: &session::Entry, other: &session::Entry) -> bool {
        let parse = |entry: &session::Entry| serde_json::from_str::<Entry>(&entry.text).ok();
        // The client drops what it does not know and writes the rest anew.
        one.text == other.text || (parse(one).is_some() && parse(one) == parse(other))
    }
}

/// The client leaves the field out where there are none.
fn set_points(entry: &mut Object, points: &[u64]) {
    let lines: Vec<String> = points.iter().map(|point| format!("      {point}")).collect();
    match points {
        [] => entry.remove("resume_points"),
        _ => entry.set("resume_points", format!("[\n{}\n    ]", lines.join(",\n"))),
    }
}

/// The entry as the client writes it.
fn written(entry: &Object) -> String {
    let fields = entry.fields().map(|(key, value)| format!("    {}: {value}", Value::from(key)));
    format!("{{\n{}\n  }}", fields.collect::<Vec<_>>().join(",\n"))
}

fn internal(error: serde_json::Error) -> Refusal {
    Refusal::Internal { what: format!("an index entry that was read cannot be written: {error}") }
}

pub(super) fn refuse(damage: Damage) -> Refusal {
    Refusal::Damaged { damage }
}

fn text<'a>(index: &'a [u8], span: &Range<usize>) -> Result<&'a str> {
    let bytes = index.get(span.clone()).unwrap_or_default();
    simdutf8::basic::from_utf8(bytes)
        .map_err(|_| Refusal::Internal { what: "an index that was read is not UTF-8".into() })
}

/// Paths are equal by their components.
fn is_of(entry: &Entry, project: &Path) -> bool {
    Path::new(&entry.project) == project
}

/// Unix seconds.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
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

/// A damage of the index as a whole, or of what it says.
pub(super) fn damage_of_all(what: &str) -> Damage {
    Damage::of_whole(INDEX, DamageClass::Sidecar, format!("{what}; {ADVICE}"))
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
