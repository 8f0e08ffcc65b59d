//! When a rollout file was last written to by its client: the time of its last whole record, read from the file's end.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;

use crate::session::{AgentKind, Refusal, Result};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{EntryKind, Stamp, StoreDir, is_packed, plain_stream, read_full};

/// How much of a file's end is read first, bytes. Most records are shorter.
const FIRST: u64 = 4 * 1024;
/// How much more is read each time that no record with a time begins in it.
const GROWTH: u64 = 8;
/// Longest stretch that is searched, bytes; of a compressed file, of its plain bytes.
const LONGEST: u64 = 16 << 20;
/// How many records without a time are passed over. The clients of today write none.
const WITHOUT_TIME: usize = 256;

/// The time of the last whole record of a file with this stamp that has one. A file that cannot be read has none.
pub fn last(store: &StoreDir, file: &Path, stamp: &Stamp) -> Option<Timestamp> {
    if stamp.kind == EntryKind::File { read(store, file).ok().flatten() } else { None }
}

fn read(store: &StoreDir, file: &Path) -> Result<Option<Timestamp>> {
    let cannot = |error| Refusal::io("cannot read", &store.path().join(file), error);
    let Some(opened) = store.file(file)? else { return Ok(None) };
    let found = if is_packed(file) { of_packed(opened, file) } else { of_plain(&opened) };
    found.map_err(cannot)
}

/// Of a file that is as it is written: from the end backwards.
fn of_plain(file: &File) -> std::io::Result<Option<Timestamp>> {
    let len = file.metadata()?.len();
    let mut stretch = FIRST;
    loop {
        let start = len.saturating_sub(stretch);
        let mut bytes = vec![0; (len - start) as usize];
        let got = read_full(file, &mut bytes, start)?;
        bytes.truncate(got);
        count_bytes(AgentKind::Codex, ReadKind::Transcript, got as u64);
        match last_time(&bytes, start == 0) {
            Some(found) => return Ok(found),
            None if start == 0 || stretch >= LONGEST => return Ok(None),
            None => stretch = (stretch * GROWTH).min(LONGEST),
        }
    }
}

/// Of a compressed file, which can only be read from its beginning.
fn of_packed(file: File, name: &Path) -> std::io::Result<Option<Timestamp>> {
    let mut bytes = Vec::new();
    let read = plain_stream(file, name)?.take(LONGEST + 1).read_to_end(&mut bytes);
    count_bytes(AgentKind::Codex, ReadKind::Transcript, bytes.len() as u64);
    read?;
    // Of a longer one the last record is not known.
    let whole = bytes.len() as u64 <= LONGEST;
    Ok(if whole { of_whole(&bytes) } else { None })
}

/// The time of the last whole record with one in a file of these bytes.
pub fn of_whole(bytes: &[u8]) -> Option<Timestamp> {
    last_time(bytes, true).flatten()
}

/// The time of the last whole record with one in `bytes`, which end where the file does; `None`: it may stand before
/// them. What follows the last newline is not whole; what comes before the first one only if the bytes begin where
/// the file does.
fn last_time(bytes: &[u8], from_start: bool) -> Option<Option<Timestamp>> {
    let mut end = memchr::memrchr(b'\n', bytes)?;
    for _ in 0..WITHOUT_TIME {
        let start = match memchr::memrchr(b'\n', &bytes[..end]) {
            Some(newline) => newline + 1,
            None if from_start => 0,
            None => return None,
        };
        let time = time_of(&bytes[start..end]);
        if time.is_some() || start == 0 {
            return Some(time);
        }
        end = start - 1;
    }
    Some(None)
}

fn time_of(line: &[u8]) -> Option<Timestamp> {
    #[derive(Deserialize)]
    struct Timed<'a> {
        #[serde(borrow)]
        timestamp: std::borrow::Cow<'a, str>,
    }
    let timed: Timed<'_> = serde_json::from_slice(line).ok()?;
    timed.timestamp.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const EARLY: &str = r#"{"timestamp":"2026-11-30T10:00:00.000Z","type":"a","payload":{}}"#;
    const LATE: &str = r#"{"timestamp":"2026-11-30T11:00:00.000Z","type":"b","payload":{}}"#;

    fn last(content: &[u8], name: &str) -> (Option<String>, u64) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::write(root.join(name), content).unwrap();
        let store = StoreDir::open(&root).unwrap().unwrap();
        let stamp = store.stat(Path::new(name)).unwrap().unwrap();
        let time = super::last(&store, Path::new(name), &stamp);
        (time.map(|time| time.to_string()), content.len() as u64)
    }

    #[test]
    fn the_last_whole_record_with_a_time_counts() {
        let long = format!(
            r#"{{"timestamp":"2026-11-30T12:00:00.000Z","type":"c","payload":"{}"}}"#,
            "x".repeat(3 << 20)
        );
        let without = r#"{"type":"message"}"#;
        for (content, expected) in [
            (format!("{EARLY}\n{LATE}\n"), Some("2026-11-30T11:00:00Z")),
            // A torn last line, NULs behind it, a line that is no record, one without a time.
            (format!("{EARLY}\n{}", &LATE[..40]), Some("2026-11-30T10:00:00Z")),
            (format!("{EARLY}\n\0\0\0"), Some("2026-11-30T10:00:00Z")),
            (format!("{EARLY}\nnothing\n{without}\n\n"), Some("2026-11-30T10:00:00Z")),
            // Longer than what is read first.
            (format!("{EARLY}\n{long}\n"), Some("2026-11-30T12:00:00Z")),
            (format!("{EARLY}\n{}", &long[..long.len() / 2]), Some("2026-11-30T10:00:00Z")),
            (format!("{without}\n{without}\n"), None),
            (EARLY.to_owned(), None),
            (String::new(), None),
        ] {
            let name = "rollout.jsonl";
            let shown = &content[..content.len().min(120)];
            assert_eq!(last(content.as_bytes(), name).0.as_deref(), expected, "{shown}");
        }
    }

    #[test]
    fn a_compressed_file_is_read_too() {
        let packed = zstd::encode_all(format!("{EARLY}\n{LATE}\n").as_bytes(), 1).unwrap();
        assert_eq!(last(&packed, "r.jsonl.zst").0.as_deref(), Some("2026-11-30T11:00:00Z"));
        assert_eq!(last(&packed[..packed.len() / 2], "r.jsonl.zst").0, None);
    }
}
