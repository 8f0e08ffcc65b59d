//! One rollout file, line by line: what its turns are (`walk.rs` knows), and what is wrong with its lines.

use std::path::Path;
use std::sync::Arc;

use super::first_format;
use super::line::{At, Content};
use super::lineage::Segment;
use super::open_turn::{End, Rules, TurnAt};
use super::records::{Body, Line as Record, Mode, ThreadName, TurnContext, Usage};
use super::voice::Evidence;
use super::walk::Walk;
use crate::agents::json::readable;
use crate::session::{Damage, DamageClass, open_calls};
use crate::transcript::{Format, Inspector, Line, is_deeper, is_json};

/// Deepest nesting that the client reads; it skips deeper lines.
const DEPTH: usize = 127;
/// Damages of ordinals that are told, of one file.
const MOST_ORDINALS: usize = 100;

/// How much of a file belongs to the history.
#[derive(Clone)]
pub struct Part {
    pub file: Arc<Path>,
    /// Complete lines.
    pub lines: u64,
    /// Up to the end of the last complete line.
    pub bytes: u64,
    /// The number that the next line would get.
    pub next_ordinal: Option<u64>,
}

/// What was found in one file, or in several of a history.
#[derive(Clone, Default)]
pub struct Found {
    pub turns: Vec<TurnAt>,
    pub parts: Vec<Part>,
    pub damages: Vec<Damage>,
    /// How many of `turns` end before the first damage, if there is one.
    pub sound: Option<u32>,
    /// Where they end, if that is not where the next turn begins.
    pub sound_end: Option<End>,
    pub notes: Vec<String>,
    pub model: Option<String>,
    /// The last name that was given.
    pub name: Option<ThreadName>,
    pub last_ordinal: Option<u64>,
    /// What the thread took in all, as it was told last.
    total: Option<Usage>,
}

impl Found {
    /// Adds what the next file of the thread's history holds.
    pub fn add(&mut self, next: Found, thread: &str) {
        if let (None, Some(sound)) = (self.sound, next.sound) {
            self.sound = Some(self.turns.len() as u32 + sound);
            self.sound_end = next.sound_end.filter(|_| sound > 0);
        }
        self.turns.extend(next.turns);
        self.parts.extend(next.parts);
        self.damages.extend(next.damages);
        self.notes.extend(next.notes);
        self.model = next.model.or(self.model.take());
        self.name = next.name.filter(|given| given.is_of(thread)).or(self.name.take());
        self.last_ordinal = next.last_ordinal;
        self.total = next.total.or(self.total);
    }
}

/// What decides, besides a file's bytes, what is found in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Basis {
    part_number: usize,
    first_turn: u32,
    /// Bytes of the file that belong to the history.
    until: u64,
    paginated: bool,
    first_format: bool,
    /// Of the files before.
    last_ordinal: Option<u64>,
    total: Option<Usage>,
}

impl Basis {
    /// `before`: what the files before it hold.
    pub fn of(segment: &Segment, before: &Found) -> Basis {
        let is = |mode: Mode| segment.head.meta.as_ref().is_ok_and(|meta| meta.mode() == mode);
        Basis {
            part_number: before.parts.len(),
            first_turn: before.turns.len() as u32,
            until: segment.end.as_ref().map_or(u64::MAX, |base| base.end_byte_offset),
            paginated: is(Mode::Paginated),
            first_format: is(Mode::First),
            last_ordinal: before.last_ordinal,
            total: before.total,
        }
    }
}

#[derive(Clone)]
pub struct Pass {
    basis: Basis,
    inspector: Inspector,
    /// What is found where records tell the user's words, and, for as long as none did, where only marks tell.
    by_records: Walk,
    by_marks: Option<Walk>,
    part: Part,
    /// What is found besides turns; of damages those of ordinals.
    found: Found,
    /// The last line with an ordinal, and the last record's line if it has none.
    numbered: u64,
    unnumbered: Option<u64>,
}

impl Pass {
    pub fn new(file: &Arc<Path>, basis: Basis) -> Pass {
        let is_record = match basis.first_format {
            true => |bytes: &[u8]| first_format::record(bytes).is_some(),
            false => |bytes: &[u8]| Record::parse(bytes).is_some(),
        };
        let walk = |evidence| {
            let rules = Rules { evidence, paginated: basis.paginated, measure: true };
            let mut walk = Walk::new(rules, file, basis.part_number, basis.first_turn);
            walk.total = basis.total;
            walk
        };
        Pass {
            inspector: Inspector::new(file.display().to_string(), Format { is_record, agent: client }),
            basis,
            by_records: walk(Evidence::Records),
            by_marks: Some(walk(Evidence::Marks)),
            part: Part { file: file.clone(), lines: 0, bytes: 0, next_ordinal: None },
            found: Found { last_ordinal: basis.last_ordinal, ..Found::default() },
            numbered: 0,
            unnumbered: None,
        }
    }

    pub fn line(&mut self, line: &Line<'_>) {
        if line.start >= self.basis.until {
            return;
        }
        let ordinal = self.part.next_ordinal;
        let deep = is_deeper(line.bytes, DEPTH);
        let record = match self.basis.first_format {
            _ if line.nuls > 0 || deep => None,
            true => first_format::record(line.bytes),
            false => Record::parse(line.bytes),
        };
        let json = record.as_ref().map(|record| readable(record.payload.get()));
        let parsed = record.as_ref().zip(json.as_deref());
        let body = parsed.map(|(record, json)| Body::parse(&record.kind, json));
        let twice = matches!(body, Some(Err(_)));
        let body = body.and_then(Result::ok);
        let content = parsed.zip(body.as_ref()).map(|((record, json), body)| Content { record, json, body });
        match content {
            Some(_) => self.inspector.record(line),
            None => {
                let what = match (deep, twice) {
                    (true, _) => Some("the line is nested more deeply than Codex reads it"),
                    (_, true) => Some("the line gives a key twice"),
                    _ => is_json(line.bytes).then_some("the line is not a record of a rollout"),
                };
                self.inspector.no_record(line, what);
            }
        }
        if let Some(content) = &content {
            self.check_ordinal(line, content.record);
        }
        let is_damaged = self.inspector.first_line().is_some() || !self.found.damages.is_empty();
        if is_damaged && self.by_records.sound.is_none() {
            let (part, lines, bytes) = (self.basis.part_number, line.number - 1, line.start);
            for walk in [Some(&mut self.by_records), self.by_marks.as_mut()].into_iter().flatten() {
                walk.damage_begins(End { part, lines, bytes, ordinal });
            }
        }
        if let Some(Content { body: Body::Context(TurnContext { model: Some(model) }), .. }) = content {
            self.found.model = Some(model.clone().into_owned());
        }
        if let Some(Content { record, body: Body::Event(event, _), .. }) = &content
            && event.kind == "thread_name_updated"
        {
            self.found.name = record.payload().or(self.found.name.take());
        }
        // A last line without a newline counts if it is a whole record.
        if line.terminated || content.is_some() {
            self.part.lines += 1;
            self.part.bytes = line.end;
            let at = At { number: line.number, start: line.start, end: line.end, bytes: line.bytes };
            // Copied forks hold the first lines of the files that they were copied from; only the own counts.
            let content = content.filter(|content| content.record.kind != "session_meta");
            self.by_records.line(&at, content);
            match &mut self.by_marks {
                Some(_) if self.by_records.heard => self.by_marks = None,
                Some(walk) => walk.line(&at, content),
                None => {}
            }
        }
    }

    /// Numbers must be there and grow, in paginated files; gaps are fine, legacy files have none.
    fn check_ordinal(&mut self, line: &Line<'_>, record: &Record<'_>) {
        if !self.basis.paginated {
            return;
        }
        let (last, numbered) = (self.found.last_ordinal, self.numbered);
        let what = match (record.ordinal, last) {
            (None, _) if numbered == 0 => Some("the line has no ordinal".to_owned()),
            (None, _) => Some(format!("the line has no ordinal, line {numbered} before it has one")),
            (Some(ordinal), Some(last)) if ordinal <= last && self.part.lines > 0 => Some(match numbered {
                0 => format!("ordinal {ordinal} does not follow {last} of the rollout before it"),
                _ => format!("ordinal {ordinal} does not follow {last} of line {numbered}"),
            }),
            _ => None,
        };
        // A file that restarts its numbers has one bad place, not thousands.
        if let Some(what) = what.filter(|_| self.found.damages.len() < MOST_ORDINALS) {
            let message = format!("{what}; Codex's turn list silently loses such turns");
            let (file, class) = (self.part.file.display().to_string(), DamageClass::Ordinal);
            self.found.damages.push(Damage { file, line: line.number, byte: line.start, class, message });
        }
        self.unnumbered = record.ordinal.is_none().then_some(line.number);
        if let Some(ordinal) = record.ordinal {
            (self.found.last_ordinal, self.numbered) = (Some(ordinal), line.number);
            self.part.next_ordinal = Some(ordinal + 1);
        }
    }

    /// What was found, and the file as a part of the history.
    pub fn finish(mut self) -> (Found, Part) {
        if let Some(line) = self.unnumbered
            && let Some(damage) = self.found.damages.iter_mut().find(|damage| damage.line == line)
        {
            damage.message = "the last line has no ordinal; Codex refuses to resume such a thread".into();
        }
        // Every client that wrote such files has events of what the model says: without an answer, nobody knows yet.
        let none_told = self.by_records.answered && !self.by_records.heard;
        let by_marks = self.by_marks.filter(|walk| self.basis.first_format || none_told && walk.has_users());
        let mut walk = by_marks.unwrap_or(self.by_records);
        walk.finish();
        let mut notes = Vec::new();
        if walk.idle_rollback {
            notes.push("an old rollback record changes what the model gets, not the turns".into());
        }
        if walk.apart {
            notes.push(
                "a rollback took back more or less than whole turns with a prompt: Codex's own list of turns differs \
                 from what its model gets, and the turns here are what the model gets"
                    .into(),
            );
        }
        let does = "Codex sends it to the model as it is";
        let unanswered = walk.turns.iter().filter(|open| !open.calls.is_empty());
        notes.extend(unanswered.map(|open| open_calls(open.at.turn.n, does)));
        let mut damages = self.inspector.finish();
        damages.append(&mut self.found.damages);
        damages.sort_by_key(|damage| damage.line);
        let turns = walk.turns.into_iter().map(|open| open.at).collect();
        let found = Found {
            turns,
            damages,
            sound: walk.sound,
            sound_end: walk.sound_end,
            notes,
            total: walk.total,
            ..self.found
        };
        (found, self.part)
    }
}

/// What the client does with such a line.
fn client(class: DamageClass) -> &'static str {
    match class {
        DamageClass::TornTail | DamageClass::NulTail => "Codex appends behind it and skips it",
        DamageClass::NoFinalNewline => "Codex puts the newline there first",
        DamageClass::InvalidUtf8 => "Codex may refuse to resume this thread",
        _ => "Codex skips the line and goes on with a history that lacks it",
    }
}
