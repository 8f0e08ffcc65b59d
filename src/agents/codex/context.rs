//! What the model gets on resume: the last compaction's replacement history and the response items after it.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::first_format;
use super::items::model_item;
use super::layout::Rollout;
use super::line::{self as lines, Content};
use super::lineage::Lineage;
use super::records::{Body, Compacted, Line, Response, readable};
use super::voice::{self, Author, Words};
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
    beyond: usize,
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
    let mut entries: Vec<Entry> = Vec::new();
    let (mut heard, mut answered, mut said) = (false, false, HashSet::new());
    for segment in Lineage::of(&store, current)?.segments {
        answered |= segment.head.meta.as_ref().is_ok_and(|meta| meta.first_format);
        let file = segment.rollout.file;
        let opened = transcript::plain(&store, &file)?.ok_or_else(gone)?;
        let until = segment.end.map_or(u64::MAX, |base| base.end_byte_offset);
        let earlier = std::mem::take(&mut entries);
        // The entries before this file are put in front once the file is read to its end.
        let start = || Model { heard, answered, said: said.clone(), ..Model::default() };
        let (model, _) = transcript::scan(&opened, &root.join(&file), start, |model, line| {
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
            entries = earlier;
            let beyond = model.beyond as u64;
            model.take_back(&mut entries, beyond);
        }
        (heard, answered, said) = (model.heard, model.answered, model.said);
        entries.extend(model.entries);
    }
    for entry in entries.into_iter().filter(|entry| !matches!(entry.of, Of::Told(_))) {
        let bytes = transcript::read_range(root, &entry.file, entry.line.clone())?;
        let record = Line::parse(&bytes).or_else(|| first_format::record(&bytes));
        let Some(record) = record else { return Err(gone()) };
        let time = record.time();
        let users = entry.is_users(heard || !answered);
        let compacted = || record.payload::<Compacted<'_>>().ok_or_else(gone);
        match entry.of {
            Of::Line => model_item(time, record.payload.get(), users, sink),
            Of::Replaced(at) => {
                let history = compacted()?.replacement_history.unwrap_or_default();
                model_item(time, history.get(at).ok_or_else(gone)?.get(), users, sink);
            }
            Of::Told(_) => {}
            Of::Summary => sink(time, Item::User { text: compacted()?.message.unwrap_or_default() }),
        }
    }
    Ok(())
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
                let mut entries = std::mem::take(&mut self.entries);
                self.beyond += self.take_back(&mut entries, event.num_turns.unwrap_or(0));
                self.entries = entries;
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

    /// Takes back the last `count` user messages and what follows each; returns how many were not found.
    fn take_back(&self, entries: &mut Vec<Entry>, count: u64) -> usize {
        let mut left = count;
        while left > 0 {
            let is_users = |entry: &Entry| entry.is_users(self.heard || !self.answered);
            let Some(at) = entries.iter().rposition(is_users) else { break };
            entries.truncate(at);
            left -= 1;
        }
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// What a compaction puts in the place of everything before it. Where it lists nothing (old clients), that is
    /// the user's messages and its summary.
    fn replacement(&self, compacted: &Compacted<'_>, file: &Arc<Path>, line: &Range<u64>) -> Vec<Entry> {
        let Some(history) = &compacted.replacement_history else {
            let users = |entry: &&Entry| {
                entry.is_users(self.heard || !self.answered) && !matches!(entry.of, Of::Told(_))
            };
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
