//! One rollout file, line by line: where its turns begin and end, and what is wrong with its lines.
//!
//! A turn begins with `task_started` and with nothing else: `turn_context` and `world_state` occur several
//! times in a turn. What stands between two turns belongs to the one before.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::items::Reader;
use super::lineage::Segment;
use super::records::{Call, Event, Line as Record, Mode, Response, TurnContext, Voice, readable, text_of};
use crate::render;
use crate::session::{Damage, DamageClass, Item, Turn, TurnDetail, TurnStatus, open_calls};
use crate::transcript::{Format, Inspector, Line, is_deeper, is_json};

/// Deepest nesting that the client reads; it skips deeper lines.
const DEPTH: usize = 127;

/// A turn with its place.
#[derive(Clone)]
pub struct TurnAt {
    /// `text_len` is that of the items, without the heading.
    pub turn: Turn,
    /// Which of the history's files it is in, counted from the oldest.
    pub part: usize,
    /// Of its first line.
    pub ordinal: Option<u64>,
}

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

/// A place in a history: what is kept of a part when it is cut there.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub part: usize,
    pub lines: u64,
    pub bytes: u64,
    pub ordinal: Option<u64>,
}

/// What a pass has found.
pub struct Found {
    pub turns: Vec<TurnAt>,
    pub part: Part,
    pub damages: Vec<Damage>,
    /// How many of `turns` end before the first damage, if there is one.
    pub sound: Option<u32>,
    /// Where they end, if that is not where the next turn begins.
    pub sound_end: Option<End>,
    pub notes: Vec<String>,
    pub model: Option<String>,
    pub last_ordinal: Option<u64>,
}

/// A turn while its lines pass by.
#[derive(Clone)]
struct Open {
    at: TurnAt,
    reader: Reader,
    /// `text_len` before each user message.
    users: Vec<u64>,
    /// Tool calls without a result so far.
    calls: HashSet<String>,
    ended: bool,
}

/// What decides, besides a file's bytes, what is found in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Basis {
    part_number: usize,
    first_turn: u32,
    /// Bytes of the file that belong to the history.
    until: u64,
    paginated: bool,
    /// Of the files before.
    last_ordinal: Option<u64>,
}

impl Basis {
    pub fn of(segment: &Segment, part_number: usize, first_turn: u32, last_ordinal: Option<u64>) -> Basis {
        let paginated = segment.head.meta.as_ref().is_ok_and(|meta| meta.mode() == Mode::Paginated);
        let until = segment.end.as_ref().map_or(u64::MAX, |base| base.end_byte_offset);
        Basis { part_number, first_turn, until, paginated, last_ordinal }
    }
}

#[derive(Clone)]
pub struct Pass {
    name: String,
    basis: Basis,
    inspector: Inspector,
    turns: Vec<Open>,
    part: Part,
    ordinal_damages: Vec<Damage>,
    sound: Option<u32>,
    sound_end: Option<End>,
    /// The last turn takes no more lines: it ended before a damage.
    closed: bool,
    notes: Vec<String>,
    model: Option<String>,
    /// The number that the line being read should have.
    ordinal_before: Option<u64>,
    /// Number and line of the last numbered line.
    last_ordinal: Option<u64>,
    last_numbered: u64,
    /// The last record has no number: line and byte.
    unnumbered: Option<(u64, u64)>,
}

impl Pass {
    pub fn new(file: &Arc<Path>, basis: Basis) -> Pass {
        let name = file.display().to_string();
        let format = Format { is_record: |bytes| Record::parse(bytes).is_some(), agent: client };
        Pass {
            inspector: Inspector::new(name.clone(), format),
            name,
            basis,
            turns: Vec::new(),
            part: Part { file: file.clone(), lines: 0, bytes: 0, next_ordinal: None },
            ordinal_damages: Vec::new(),
            sound: None,
            sound_end: None,
            closed: false,
            notes: Vec::new(),
            model: None,
            ordinal_before: None,
            last_ordinal: basis.last_ordinal,
            last_numbered: 0,
            unnumbered: None,
        }
    }

    pub fn line(&mut self, line: &Line<'_>) {
        if line.start >= self.basis.until {
            return;
        }
        self.ordinal_before = self.part.next_ordinal;
        let deep = is_deeper(line.bytes, DEPTH);
        let record = if line.nuls == 0 && !deep { Record::parse(line.bytes) } else { None };
        match &record {
            Some(_) => self.inspector.record(line),
            None => {
                let what = match deep {
                    true => Some("the line is nested more deeply than Codex reads it"),
                    false => is_json(line.bytes).then_some("the line is not a record of a rollout"),
                };
                self.inspector.no_record(line, what);
            }
        }
        if let Some(record) = &record {
            self.check_ordinal(line, record);
        }
        let damaged = self.inspector.first_line().is_some() || !self.ordinal_damages.is_empty();
        if damaged && self.sound.is_none() {
            self.damage_begins(line);
        }
        // Copied forks hold the first lines of the files that they were copied from; only the own counts.
        if let Some(record) = record.as_ref().filter(|record| record.kind != "session_meta") {
            self.record(line, record);
        }
        // A last line without a newline counts if it is a whole record.
        if line.terminated || record.is_some() {
            self.part.lines += 1;
            self.part.bytes = line.end;
            if let Some(open) = self.turns.last_mut().filter(|_| !self.closed) {
                open.at.turn.span.end = line.end;
            }
        }
    }

    /// From the first damage on nothing is sure. A turn that has ended before it is complete; what follows up
    /// to the next turn belongs to nobody.
    fn damage_begins(&mut self, line: &Line<'_>) {
        let ended = self.turns.last().is_some_and(|open| open.ended);
        let turns = self.turns.len() as u32;
        self.sound = Some(if ended { turns } else { turns.saturating_sub(1) });
        if ended {
            self.close_last();
            self.closed = true;
            self.sound_end = Some(End {
                part: self.basis.part_number,
                lines: line.number - 1,
                bytes: line.start,
                ordinal: self.ordinal_before,
            });
        }
    }

    fn record(&mut self, line: &Line<'_>, record: &Record<'_>) {
        if self.closed && !starts_turn(record) {
            return;
        }
        match &*record.kind {
            "event_msg" => self.event(line, record),
            "turn_context" => {
                if let Some(TurnContext { model: Some(model) }) = record.payload() {
                    self.model = Some(model.into_owned());
                }
            }
            "response_item" => {
                self.user(record);
                self.call(record);
            }
            _ => {}
        }
        let time = record.time();
        let Some(open) = self.turns.last_mut() else { return };
        open.at.turn.last = time.or(open.at.turn.last);
        let mut length = render::Length::default();
        open.reader.line(record, &mut |_, item: Item<'_>| render::item(&item, &mut length));
        open.at.turn.text_len += length.0;
    }

    fn event(&mut self, line: &Line<'_>, record: &Record<'_>) {
        let Some(event) = record.payload::<Event<'_>>() else { return };
        let time = record.time();
        match &*event.kind {
            "task_started" => self.start(line, record),
            "task_complete" | "turn_aborted" => {
                let Some(open) = self.turns.last_mut().filter(|open| !open.ended) else { return };
                open.ended = true;
                open.at.turn.ended = time;
                open.at.turn.detail = None;
                open.at.turn.status = match &*event.kind {
                    "turn_aborted" => TurnStatus::Interrupted,
                    _ if event.failed() => TurnStatus::Failed,
                    _ => TurnStatus::Complete,
                };
            }
            "thread_rolled_back" => self.rolled_back(event.num_turns.unwrap_or(0)),
            "user_message" | "item_completed" => {
                // Where no response item says it (very old files), the event's text is the prompt.
                if let Some(open) = self.turns.last_mut().filter(|open| open.at.turn.prompt.is_none()) {
                    let mut reader = Reader::default();
                    let mut sink = |_, item: Item<'_>| {
                        if let Item::User { text } = item {
                            open.at.turn.prompt = Some(shortened(&text));
                        }
                    };
                    reader.line(record, &mut sink);
                    reader.finish(&mut sink);
                }
            }
            _ => {}
        }
    }

    fn start(&mut self, line: &Line<'_>, record: &Record<'_>) {
        self.close_last();
        self.closed = false;
        let n = self.basis.first_turn + self.turns.len() as u32;
        let turn = Turn {
            n,
            prompt: None,
            status: TurnStatus::Interrupted,
            detail: Some(TurnDetail::Open),
            started: record.time(),
            ended: None,
            last: record.time(),
            file: self.part.file.clone(),
            span: Range { start: line.start, end: line.end },
            pieces: Vec::new(),
            line: line.number,
            group: n,
            text_len: 0,
        };
        let at = TurnAt { turn, part: self.basis.part_number, ordinal: record.ordinal };
        self.turns.push(Open {
            at,
            reader: Reader::default(),
            users: Vec::new(),
            calls: HashSet::new(),
            ended: false,
        });
    }

    fn user(&mut self, record: &Record<'_>) {
        let Some(open) = self.turns.last_mut() else { return };
        let payload = readable(record.payload.get());
        let Ok(response) = serde_json::from_str::<Response<'_>>(&payload) else { return };
        if response.kind == "message" && response.voice() == Voice::User {
            if open.users.is_empty() {
                open.at.turn.prompt = Some(shortened(&text_of(&response.content)));
            }
            open.users.push(open.at.turn.text_len);
        }
    }

    fn call(&mut self, record: &Record<'_>) {
        let (Some(open), Some(item)) = (self.turns.last_mut(), record.payload::<Call<'_>>()) else { return };
        let Some(id) = item.call_id else { return };
        if item.kind.ends_with("_output") {
            open.calls.remove(&*id);
        } else if item.kind.ends_with("_call") {
            open.calls.insert(id.into_owned());
        }
    }

    /// `thread_rolled_back` takes back the last `count` user messages and what followed them; it counts
    /// messages, not turns, so that a steer can go and its turn stay.
    fn rolled_back(&mut self, count: u64) {
        if self.basis.paginated {
            self.notes.push("an old rollback record changes what the model gets, not the turns".into());
            return;
        }
        let mut left = count;
        while left > 0 {
            let Some(at) = self.turns.iter().rposition(|open| !open.users.is_empty()) else { break };
            self.turns.truncate(at + 1);
            let open = &mut self.turns[at];
            let users = open.users.len() as u64;
            if left >= users {
                left -= users;
                self.turns.truncate(at);
                continue;
            }
            let keep = (users - left) as usize;
            open.at.turn.text_len = open.users[keep];
            open.users.truncate(keep);
            left = 0;
        }
        if let Some(open) = self.turns.last_mut() {
            open.reader = Reader::default();
        }
        let left = self.turns.len() as u32;
        if self.sound.is_some_and(|sound| sound > left) {
            // What comes now has their numbers, and is behind the damage.
            (self.sound, self.sound_end) = (Some(left), None);
        }
    }

    fn close_last(&mut self) {
        let Some(open) = self.turns.last_mut() else { return };
        let mut length = render::Length::default();
        open.reader.finish(&mut |_, item: Item<'_>| render::item(&item, &mut length));
        open.at.turn.text_len += length.0;
    }

    /// Numbers must be there and grow, in paginated files; gaps are fine, legacy files have none.
    fn check_ordinal(&mut self, line: &Line<'_>, record: &Record<'_>) {
        if !self.basis.paginated {
            return;
        }
        let Some(ordinal) = record.ordinal else {
            self.unnumbered = Some((line.number, line.start));
            let message = match self.last_numbered {
                0 => "the line has no ordinal".to_owned(),
                last => format!("the line has no ordinal, line {last} before it has one"),
            };
            self.bad_ordinal(line.number, line.start, message);
            return;
        };
        self.unnumbered = None;
        if self.last_ordinal.is_some_and(|last| ordinal <= last) && self.part.lines > 0 {
            let last = self.last_ordinal.unwrap_or_default();
            let before = match self.last_numbered {
                0 => "the rollout before it".to_owned(),
                number => format!("line {number}"),
            };
            let message = format!("ordinal {ordinal} does not follow {last} of {before}");
            self.bad_ordinal(line.number, line.start, message);
        }
        self.last_ordinal = Some(ordinal);
        self.last_numbered = line.number;
        self.part.next_ordinal = Some(ordinal + 1);
    }

    fn bad_ordinal(&mut self, line: u64, byte: u64, what: String) {
        // A file that restarts its numbers has one bad place, not thousands.
        const KEPT: usize = 100;
        if self.ordinal_damages.len() < KEPT {
            let message = format!("{what}; Codex's turn list silently loses such turns");
            let (file, class) = (self.name.clone(), DamageClass::Ordinal);
            self.ordinal_damages.push(Damage { file, line, byte, class, message });
        }
    }

    pub fn finish(mut self) -> Found {
        self.close_last();
        if let Some((line, _)) = self.unnumbered
            && let Some(damage) = self.ordinal_damages.iter_mut().find(|damage| damage.line == line)
        {
            damage.message = "the last line has no ordinal; Codex refuses to resume such a thread".into();
        }
        let does = "Codex sends it to the model as it is";
        let unanswered = self.turns.iter().filter(|open| !open.calls.is_empty());
        self.notes.extend(unanswered.map(|open| open_calls(open.at.turn.n, does)));
        let mut damages = self.inspector.finish();
        damages.append(&mut self.ordinal_damages);
        damages.sort_by_key(|damage| damage.line);
        Found {
            turns: self.turns.into_iter().map(|open| open.at).collect(),
            part: self.part,
            damages,
            sound: self.sound,
            sound_end: self.sound_end,
            notes: self.notes,
            model: self.model,
            last_ordinal: self.last_ordinal,
        }
    }
}

fn starts_turn(record: &Record<'_>) -> bool {
    record.kind == "event_msg"
        && record.payload::<Event<'_>>().is_some_and(|event| event.kind == "task_started")
}

fn shortened(text: &str) -> String {
    text.chars().take(Turn::PROMPT_CHARS).collect()
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
