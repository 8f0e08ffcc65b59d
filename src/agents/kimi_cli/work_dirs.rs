//! kimi.json, the index of projects: read to place sessions, changed entry by entry. The client rewrites it as a whole at its start
//! and end, by temp and rename and without a lock. Facts: `docs/stores/kimi-cli.md`, "1. Layout".

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::json::{Control, objects, parse_lenient};
use crate::agents::{SharedIndex, json_array};
use crate::session::{AgentKind, Damage, DamageClass, Entry, EntryEdit, Place, Refusal, Result};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{StoreDir, read_small};

pub(super) const INDEX: &str = "kimi.json";
/// Where a work directory is on this machine.
const LOCAL: &str = "local";
/// Longest index that is read, bytes. Real ones have kilobytes.
pub(super) const LONGEST_INDEX: u64 = 64 << 20;

/// What a cut does with kimi.json; the entries are those of work directories, by their path.
pub(super) struct WorkDirs;

/// One entry. The client drops fields that it does not know.
#[derive(Debug, Deserialize, PartialEq, Eq)]
struct WorkDir {
    path: String,
    #[serde(default = "local")]
    kaos: String,
    #[serde(default)]
    last_session_id: Option<String>,
}

/// An entry in the client's order of fields.
#[derive(Serialize)]
struct New<'a> {
    path: &'a str,
    kaos: &'a str,
    last_session_id: Option<&'a str>,
}

fn local() -> String {
    LOCAL.to_owned()
}

/// The file, with its entries.
struct Parsed<'a> {
    text: &'a str,
    /// Where the array of entries stands in `text`.
    array: Range<usize>,
    /// Where each entry stands in the array.
    spans: Vec<Range<usize>>,
    entries: Vec<WorkDir>,
}

#[derive(Deserialize)]
struct Top<'a> {
    #[serde(borrow)]
    work_dirs: &'a RawValue,
}

impl<'a> Parsed<'a> {
    fn of(index: &'a [u8]) -> Result<Parsed<'a>> {
        let text = simdutf8::basic::from_utf8(index).map_err(|_| damaged("it is not valid UTF-8"))?;
        let wrong = |error: serde_json::Error| damaged(&error.to_string());
        let top: Top<'_> = serde_json::from_str(text).map_err(wrong)?;
        let array = top.work_dirs.get();
        let start = array.as_ptr() as usize - text.as_ptr() as usize;
        let spans = json_array::spans(array).map_err(wrong)?;
        let entries = spans.iter().map(|span| serde_json::from_str(&array[span.clone()]).map_err(wrong));
        let entries = entries.collect::<Result<_>>()?;
        Ok(Parsed { text, array: start..start + array.len(), spans, entries })
    }

    fn array(&self) -> &'a str {
        &self.text[self.array.clone()]
    }

    /// The first entry of a path on this machine is the one that counts.
    fn position(&self, path: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.path == path && entry.kaos == LOCAL)
    }

    fn entry(&self, at: usize) -> Entry {
        Entry { text: self.array()[self.spans[at].clone()].to_owned(), at }
    }
}

impl SharedIndex for WorkDirs {
    fn find(&self, index: &[u8], id: &str) -> Result<Option<Entry>> {
        let parsed = Parsed::of(index)?;
        Ok(parsed.position(id).map(|at| parsed.entry(at)))
    }

    fn edited(&self, index: &[u8], edit: &EntryEdit) -> Result<Entry> {
        let EntryEdit::Project { path, last } = edit else {
            return Err(Refusal::Internal { what: "kimi.json lists projects, not sessions".into() });
        };
        let parsed = Parsed::of(index)?;
        let path = path.to_string_lossy();
        let at = match parsed.position(&path) {
            // What the client would go on with there is the user's own choice.
            Some(at) if last.is_none() || parsed.entries[at].last_session_id.is_some() => {
                return Ok(parsed.entry(at));
            }
            Some(at) => at,
            None => parsed.entries.len(),
        };
        let new = New { path: &path, kaos: LOCAL, last_session_id: last.as_deref() };
        let text = serde_json::to_string_pretty(&new)
            .map_err(|error| Refusal::Internal { what: format!("writing an entry of kimi.json: {error}") })?;
        // As deep as the client indents it.
        Ok(Entry { text: text.replace('\n', "\n    "), at })
    }

    fn put(&self, index: &[u8], id: &str, entry: Option<&Entry>) -> Result<Vec<u8>> {
        let parsed = Parsed::of(index)?;
        let insert = entry.map(|entry| (entry.at, entry.text.as_str()));
        let array = json_array::splice(parsed.array(), &parsed.spans, parsed.position(id), insert, "    ");
        let (before, after) = (&parsed.text[..parsed.array.start], &parsed.text[parsed.array.end..]);
        Ok([before, &array, after].concat().into_bytes())
    }

    fn same(&self, one: &Entry, other: &Entry) -> bool {
        let parse = |entry: &Entry| serde_json::from_str::<WorkDir>(&entry.text).ok();
        one.text == other.text || (parse(one).is_some() && parse(one) == parse(other))
    }
}

/// The session that the client goes on with in a work directory, by the name of its folder.
pub(super) fn last_session(index: &[u8], is_folder: impl Fn(&Path) -> bool) -> Result<Option<String>> {
    let entries = Parsed::of(index)?.entries.into_iter();
    let mut own = entries.filter(|entry| entry.kaos == LOCAL && is_folder(Path::new(&entry.path)));
    Ok(own.next().and_then(|entry| entry.last_session_id))
}

fn damaged(what: &str) -> Refusal {
    let message = format!("{what}; kimi-cli does not start with it, and turnfs never replaces it");
    let damage = Damage::of_whole(INDEX, DamageClass::Sidecar, message);
    Refusal::Damaged { damage }
}

objects! {
    /// kimi.json, as far as it tells where sessions belong.
    struct Listed {
        work_dirs: Vec<ListedDir> = "work_dirs",
    }
    struct ListedDir {
        path: String = "path",
        kaos: String = "kaos",
    }
}

/// The projects that kimi.json lists, by the name of their directory under sessions/.
pub(super) struct Projects {
    /// The places of the directories, or what is wrong with kimi.json.
    pub listed: Result<HashMap<String, Place>, Damage>,
}

impl Projects {
    pub fn read(store: &StoreDir) -> Projects {
        let broken = |what: String| Damage::of_whole(INDEX, DamageClass::Sidecar, what);
        let listed = match read_small(store, Path::new(INDEX), LONGEST_INDEX) {
            Ok(Some(bytes)) => {
                count_bytes(AgentKind::KimiCli, ReadKind::Index, bytes.len() as u64);
                let index =
                    parse_lenient(&bytes, Control::Refused, |bytes| serde_json::from_slice::<Listed>(bytes));
                let places = index.map_err(|error| error.to_string()).and_then(Listed::places);
                places.map_err(|what| {
                    broken(format!("{what}; kimi-cli does not start, and no project can be told"))
                })
            }
            Ok(None) => Err(broken("it is not there, so no project can be told".into())),
            Err(refusal) => Err(Damage::unread(INDEX, &refusal)),
        };
        Projects { listed }
    }

    /// Where the sessions in this directory under sessions/ belong.
    pub fn place(&self, directory: &str) -> Place {
        let reason = match &self.listed {
            Ok(listed) => match listed.get(directory) {
                Some(place) => return place.clone(),
                None => "kimi.json lists no work directory for it".to_owned(),
            },
            Err(damage) => format!("kimi.json: {}", damage.message),
        };
        Place::Unplaced { reason }
    }
}

/// The name of a local work directory's folder under sessions/.
pub(super) fn folder(path: &str) -> String {
    Md5::digest(path.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Listed {
    /// Places by directory under sessions/. The client takes a file without a list for one with an empty list.
    fn places(self) -> Result<HashMap<String, Place>, String> {
        self.work_dirs.unwrap_or_default().into_iter().map(ListedDir::place).collect()
    }
}

impl ListedDir {
    /// The directory's name under sessions/, and the place of its sessions.
    fn place(self) -> Result<(String, Place), String> {
        let path = self.path.ok_or("a work directory without a path")?;
        let kaos = self.kaos.as_deref().unwrap_or(LOCAL);
        let hash = folder(&path);
        if kaos != LOCAL {
            let reason = format!("its work directory {path} is on {kaos}, not on this machine");
            return Ok((format!("{kaos}_{hash}"), Place::Unplaced { reason }));
        }
        Ok((hash, Place::recorded(&path)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const FILE: &str = "{\n  \"work_dirs\": [\n    {\n      \"path\": \"/a\",\n      \"kaos\": \"local\",\n      \"last_session_id\": null\n    }\n  ],\n  \"more\": [1]\n}";

    fn edit(path: &str, last: Option<&str>) -> EntryEdit {
        EntryEdit::Project { path: path.into(), last: last.map(str::to_owned) }
    }

    #[test]
    fn a_project_is_added_as_the_client_writes_it_and_taken_out_without_a_trace() {
        let entry = WorkDirs.edited(FILE.as_bytes(), &edit("/b", Some("x"))).unwrap();
        let with = WorkDirs.put(FILE.as_bytes(), "/b", Some(&entry)).unwrap();
        let text = String::from_utf8(with.clone()).unwrap();
        assert!(text.contains("null\n    },\n    {\n      \"path\": \"/b\",\n      \"kaos\": \"local\",\n      \"last_session_id\": \"x\"\n    }\n  ],\n  \"more\""), "{text}");
        assert_eq!(WorkDirs.put(&with, "/b", None).unwrap(), FILE.as_bytes());
    }

    #[test]
    fn a_project_that_is_listed_keeps_the_session_that_the_client_would_go_on_with() {
        let with = |last: Option<&str>| {
            let entry = WorkDirs.edited(FILE.as_bytes(), &edit("/a", last)).unwrap();
            WorkDirs.put(FILE.as_bytes(), "/a", Some(&entry)).unwrap()
        };
        assert_eq!(with(None), FILE.as_bytes());
        let named = with(Some("x"));
        let again = WorkDirs.edited(&named, &edit("/a", Some("y"))).unwrap();
        assert!(again.text.contains("\"x\""), "{}", again.text);
    }

    #[test]
    fn what_is_no_index_is_refused_and_an_empty_list_is_one() {
        for bad in ["", "{", "[]", "{\"work_dirs\": {}}", "{\"work_dirs\": [{\"kaos\": \"local\"}]}"] {
            assert!(WorkDirs.find(bad.as_bytes(), "/a").is_err(), "{bad}");
        }
        let entry = WorkDirs.edited(b"{\"work_dirs\": []}", &edit("/a", None)).unwrap();
        let made = WorkDirs.put(b"{\"work_dirs\": []}", "/a", Some(&entry)).unwrap();
        assert!(WorkDirs.find(&made, "/a").unwrap().is_some());
    }
}
