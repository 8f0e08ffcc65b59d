//! What the model gets on resume: the last compaction's replacement history and the response items after it.

use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::first_format;
use super::items::model_item;
use super::layout::Rollout;
use super::line::{self as lines, Content};
use super::lineage::Lineage;
use super::records::{Body, Compacted, Line, Response};
use super::voice::{self, Author, Words};
use crate::agents::json::readable;
use crate::session::{History, Item, ItemSink, Refusal, Result, Session};
use crate::transcript::{self, StoreDir};

/// How far back a message may stand of which an event tells that it is the user's.
const BACK: usize = 64;

/// Where one entry of the model's history stands.
#[derive(Clone)]
struct Entry {
    file: Arc<Path>,
    line: Range<u64>,
    of: Of,
    /// Recorded as the user's, and the user's if only marks tell.
    users: bool,
    by_marks: bool,
    /// An event told of it.
    told: bool,
    words: Words,
}

impl Entry {
    fn new(file: &Arc<Path>, line: Range<u64>, of: Of) -> Entry {
        let words = Words::default();
        Entry { file: file.clone(), line, of, users: false, told: false, by_marks: false, words }
    }

    fn is_users(&self, by_records: bool) -> bool {
        if by_records { self.users } else { self.by_marks }
    }

    /// With what a message tells of itself.
    fn saying(self, response: &Response<'_>) -> Entry {
        if !voice::may_be_users(response) {
            return self;
        }
        Entry {
            users: voice::author(response) == Author::User,
            by_marks: voice::is_users_by_marks(response),
            words: Words::of(response),
            ..self
        }
    }
}

/// What of its line an entry is.
#[derive(Clone, Copy)]
enum Of {
    Line,
    /// An entry of a compaction's replacement history.
    Replaced(usize),
    /// The summary of a compaction that lists nothing.
    Summary,
    /// The user's words as an event tells them, of which there is no message (so far).
    Told(u128),
}

/// The model's history while the lines of a file pass by.
#[derive(Default, Clone)]
struct Model {
    entries: Vec<Entry>,
    /// A compaction replaced all that came before the file.
    compacted: bool,
    /// User messages that were taken back and are not in this file.
    beyond: u64,
    /// Records tell whose words are whose.
    heard: bool,
    /// The model said something (or the file is of the format in which only marks tell).
    answered: bool,
    /// What the user said so far.
    said: HashSet<u128>,
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
    let mut model = Model::default();
    for segment in Lineage::of(&store, current)?.segments {
        let mut before = std::mem::take(&mut model);
        before.answered |= segment.head.meta.as_ref().is_ok_and(|meta| meta.first_format);
        let file = segment.rollout.file;
        let opened = store.file(&file)?.ok_or_else(gone)?;
        let until = segment.end.map_or(u64::MAX, |base| base.end_byte_offset);
        // The entries before this file are put in front once the file is read to its end.
        let start = || {
            let Model { heard, answered, ref said, .. } = before;
            Model { heard, answered, said: said.clone(), ..Model::default() }
        };
        (model, _) = transcript::scan(&opened, &root.join(&file), start, |model, line| {
            if line.start < until {
                let range = line.start..line.start + line.bytes.len() as u64;
                lines::read(line.bytes, |content| {
                    if let Some(content) = content {
                        model.add(&file, range, content);
                    }
                });
            }
        })?;
        if !model.compacted {
            take_back(&mut before.entries, model.by_records(), model.beyond);
            model.entries.splice(0..0, before.entries);
        }
    }
    let by_records = model.by_records();
    model.entries.retain(|entry| !matches!(entry.of, Of::Told(_)));
    for entries in model.entries.chunk_by(|one, next| one.file == next.file) {
        shown(&store, entries, by_records, sink)?;
    }
    Ok(())
}

/// Gives the entries of one file to `sink`: its lines are read once more, in order, and only one at a time is held.
/// `by_records`: records tell whose words are whose.
fn shown(store: &StoreDir, entries: &[Entry], by_records: bool, sink: &mut ItemSink<'_>) -> Result<()> {
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
        if let Some(record) = Line::parse(line.bytes).or_else(|| first_format::record(line.bytes))
            && given(&record, here, by_records, sink)
        {
            *left = behind;
        }
    })?;
    if left.is_empty() && starts.get() == 1 { Ok(()) } else { Err(changed()) }
}

/// Gives the entries of one line to `sink`; `false` if it is not the line that they were found in.
fn given(record: &Line<'_>, entries: &[Entry], by_records: bool, sink: &mut ItemSink<'_>) -> bool {
    let time = record.time();
    let compacted: Option<Compacted<'_>> = match entries[0].of {
        Of::Line | Of::Told(_) => {
            model_item(time, record.payload.get(), entries[0].is_users(by_records), sink);
            return true;
        }
        Of::Replaced(_) | Of::Summary => record.payload(),
    };
    let Some(Compacted { message, replacement_history, .. }) = compacted else { return false };
    let history = replacement_history.unwrap_or_default();
    entries.iter().all(|entry| match entry.of {
        Of::Replaced(at) => history.get(at).is_some_and(|item| {
            model_item(time, item.get(), entry.is_users(by_records), sink);
            true
        }),
        Of::Summary => {
            sink(time, Item::User { text: message.clone().unwrap_or_default() });
            true
        }
        Of::Line | Of::Told(_) => false,
    })
}

impl Model {
    fn add(&mut self, file: &Arc<Path>, line: Range<u64>, content: Content<'_>) {
        match content.body {
            Body::Compacted(compacted) => {
                self.compacted = true;
                self.beyond = 0;
                self.entries = self.replacement(compacted, file, &line);
            }
            Body::Event(event, _) if event.kind == "thread_rolled_back" => {
                let (by_records, count) = (self.by_records(), event.num_turns.unwrap_or(0));
                self.beyond += take_back(&mut self.entries, by_records, count);
            }
            Body::Event(event, item) => {
                self.heard |= voice::tells_words(event);
                let Some(text) = voice::said(event, item.as_ref()) else { return };
                let key = voice::key(&text);
                self.said.insert(key);
                let recent = self.entries.iter_mut().rev().take(BACK);
                match recent.rev().find(|entry| !entry.told && entry.words.say(key)) {
                    Some(entry) => (entry.users, entry.told) = (true, true),
                    None => {
                        let told = Entry { users: true, told: true, ..Entry::new(file, line, Of::Told(key)) };
                        self.entries.push(told);
                    }
                }
            }
            Body::Response(response) => {
                self.answered |= voice::author(response) == Author::Assistant;
                let mut entry = Entry::new(file, line, Of::Line).saying(response);
                self.heard |= entry.users;
                let from = self.entries.len().saturating_sub(BACK);
                let told = self.entries[from..].iter().position(|told| match told.of {
                    Of::Told(key) => entry.words.say(key),
                    _ => false,
                });
                if let Some(told) = told {
                    self.entries.remove(from + told);
                    (entry.users, entry.told) = (true, true);
                }
                self.entries.push(entry);
            }
            _ if content.record.kind == "response_item" => {
                self.entries.push(Entry::new(file, line, Of::Line));
            }
            _ => {}
        }
    }

    /// Whether records tell whose words are whose, not marks.
    fn by_records(&self) -> bool {
        self.heard || !self.answered
    }

    /// What a compaction puts in the place of everything before it. Where it lists nothing (old clients), that is
    /// the user's messages and its summary.
    fn replacement(&self, compacted: &Compacted<'_>, file: &Arc<Path>, line: &Range<u64>) -> Vec<Entry> {
        let Some(history) = &compacted.replacement_history else {
            let users =
                |entry: &&Entry| entry.is_users(self.by_records()) && !matches!(entry.of, Of::Told(_));
            let mut kept: Vec<Entry> = self.entries.iter().filter(users).cloned().collect();
            kept.push(Entry::new(file, line.clone(), Of::Summary));
            return kept;
        };
        let entry = |(at, item): (usize, &&serde_json::value::RawValue)| {
            let json = readable(item.get());
            let entry = Entry::new(file, line.clone(), Of::Replaced(at));
            let Ok(response) = serde_json::from_str::<Response<'_>>(&json) else { return entry };
            let entry = entry.saying(&response);
            Entry { users: entry.users || entry.words.any_of(&self.said), told: true, ..entry }
        };
        history.iter().enumerate().map(entry).collect()
    }
}

/// Takes back the last `count` user messages and what follows each; returns how many were not found.
fn take_back(entries: &mut Vec<Entry>, by_records: bool, mut count: u64) -> u64 {
    while count > 0
        && let Some(at) = entries.iter().rposition(|entry| entry.is_users(by_records))
    {
        entries.truncate(at);
        count -= 1;
    }
    count
}
