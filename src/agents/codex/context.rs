//! What the model gets on resume: the last compaction's replacement history and the response items after it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::items::{Mark, model_item};
use super::layout::Rollout;
use super::lineage::Lineage;
use super::records::{Compacted, Line, Response, Voice, readable};
use crate::session::{History, ItemSink, Refusal, Result, Session};
use crate::transcript::{self, StoreDir};

/// Where one entry of the model's history stands.
struct Entry {
    file: Arc<Path>,
    line: Range<u64>,
    /// Which entry of a replacement history; `None`: the line itself.
    replaced: Option<usize>,
    user: bool,
}

/// Gives the model's history to `sink`, in order.
///
/// # Errors
/// What prevents reading.
pub fn context(session: &Session, history: &History, sink: &mut ItemSink<'_>) -> Result<()> {
    history.readable()?;
    let root = &*session.key.root;
    let gone = || Refusal::Changed { what: session.key.absolute().display().to_string() };
    let store = StoreDir::open(root)?.ok_or_else(gone)?;
    let current = session.files.first().and_then(|file| Rollout::named(file)).ok_or_else(gone)?;
    let mut entries: Vec<Entry> = Vec::new();
    for segment in Lineage::of(&store, current)?.segments {
        let file = segment.rollout.file;
        let opened = transcript::plain(&store, &file)?.ok_or_else(gone)?;
        let until = segment.end.map_or(u64::MAX, |base| base.end_byte_offset);
        let earlier = std::mem::take(&mut entries);
        // The entries before this file are put in front once the file is read to its end.
        let start = || (Vec::new(), false, 0usize);
        let ((found, compacted, beyond), _) =
            transcript::scan(&opened, &root.join(&file), start, |(found, compacted, beyond), line| {
                if line.start >= until {
                    return;
                }
                let Some(record) = Line::parse(line.bytes) else { return };
                let range = line.start..line.start + line.bytes.len() as u64;
                if record.kind == "compacted" {
                    *compacted = true;
                    *beyond = 0;
                    *found = replacement(&record, &file, &range);
                    return;
                }
                match Mark::of(&record) {
                    Mark::RolledBack(count) => *beyond += take_back(found, count),
                    mark if record.kind == "response_item" => {
                        let user = mark == Mark::User;
                        found.push(Entry { file: file.clone(), line: range, replaced: None, user });
                    }
                    _ => {}
                }
            })?;
        if !compacted {
            entries = earlier;
            take_back(&mut entries, beyond as u64);
        }
        entries.extend(found);
    }
    for entry in entries {
        let bytes = transcript::read_range(root, &entry.file, entry.line)?;
        let Some(record) = Line::parse(&bytes) else { return Err(gone()) };
        let time = record.time();
        match entry.replaced {
            None => model_item(time, record.payload.get(), sink),
            Some(at) => {
                let compacted: Compacted<'_> = record.payload().ok_or_else(gone)?;
                let history = compacted.replacement_history.unwrap_or_default();
                model_item(time, history.get(at).ok_or_else(gone)?.get(), sink);
            }
        }
    }
    Ok(())
}

/// Takes back the last `count` user messages and what follows each; returns how many were not found.
fn take_back(entries: &mut Vec<Entry>, count: u64) -> usize {
    let mut left = count;
    while left > 0 {
        let Some(at) = entries.iter().rposition(|entry| entry.user) else { break };
        entries.truncate(at);
        left -= 1;
    }
    usize::try_from(left).unwrap_or(usize::MAX)
}

fn replacement(record: &Line<'_>, file: &Arc<Path>, line: &Range<u64>) -> Vec<Entry> {
    let compacted = record.payload::<Compacted<'_>>();
    let history = compacted.and_then(|compacted| compacted.replacement_history).unwrap_or_default();
    let entry = |(at, item): (usize, &&serde_json::value::RawValue)| {
        let json = readable(item.get());
        let user = serde_json::from_str::<Response<'_>>(&json)
            .is_ok_and(|response| response.kind == "message" && response.voice() == Voice::User);
        Entry { file: file.clone(), line: line.clone(), replaced: Some(at), user }
    };
    history.iter().enumerate().map(entry).collect()
}
