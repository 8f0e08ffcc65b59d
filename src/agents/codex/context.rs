//! What the model gets on resume: the last compaction's replacement history and the response items after it.

use std::cell::Cell;
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
        let opened = store.file(&file)?.ok_or_else(gone)?;
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
    for entries in entries.chunk_by(|one, next| one.file == next.file) {
        shown(&store, entries, sink)?;
    }
    Ok(())
}

/// Gives the entries of one file to `sink`: its lines are read once more, in order, and only one at a time is held.
fn shown(store: &StoreDir, entries: &[Entry], sink: &mut ItemSink<'_>) -> Result<()> {
    let Some(file) = entries.first().map(|entry| &entry.file) else { return Ok(()) };
    let changed = || Refusal::Changed { what: file.display().to_string() };
    let opened = store.file(file)?.ok_or_else(changed)?;
    let starts = Cell::new(0);
    let start = || {
        starts.set(starts.get() + 1);
        entries
    };
    let (left, _) = transcript::scan(&opened, &store.path().join(file), start, |left, line| {
        let is_here = |entry: &Entry| {
            entry.line.start == line.start && entry.line.end - line.start == line.bytes.len() as u64
        };
        let count = left.iter().take_while(|entry| is_here(entry)).count();
        // What was given out cannot be taken back: a file that changed under the pass is not read again.
        if count == 0 || starts.get() > 1 {
            return;
        }
        let (here, behind) = left.split_at(count);
        if let Some(record) = Line::parse(line.bytes)
            && given(&record, here, sink)
        {
            *left = behind;
        }
    })?;
    if left.is_empty() && starts.get() == 1 { Ok(()) } else { Err(changed()) }
}

/// Gives the entries of one line to `sink`; `false` if it is not the line that they were found in.
fn given(record: &Line<'_>, entries: &[Entry], sink: &mut ItemSink<'_>) -> bool {
    let time = record.time();
    let compacted: Option<Compacted<'_>> = match entries[0].replaced {
        None => {
            model_item(time, record.payload.get(), sink);
            return true;
        }
        Some(_) => record.payload(),
    };
    let history = compacted.and_then(|compacted| compacted.replacement_history).unwrap_or_default();
    entries.iter().all(|entry| match entry.replaced.and_then(|at| history.get(at)) {
        Some(item) => {
            model_item(time, item.get(), sink);
            true
        }
        None => false,
    })
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
