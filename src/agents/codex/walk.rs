//! Where turns begin and end, and whose words are in them: line by line, as the client does it.
//!
//! Its rules (`docs/stores/codex.md`, "3. Turns"): `task_started` begins an explicit turn. Where none is open,
//! a user's words begin an implicit one, and so does anything else that the client shows; old clients wrote no
//! other kind. The record of the prompt stands before the event that tells it for one, so while an implicit turn
//! could begin, lines are held back until it is known whose they are.
//!
//! The same walk runs over a whole file (`pass.rs`: it measures) and over the bytes of one turn (`items.rs`: it
//! writes a [`Script`]), so that both find the same.

mod ends;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::line::{At, Content, Held};
use super::open_turn::{End, Open, Rules, TurnAt, User, Waiting, length_of, measured, steer_is_longer};
use super::reader::Reader;
use super::records::{Body, Event, Line as Record, Response, TurnContext, Usage};
use super::shown::pictures;
use super::voice::{self, Author, Evidence, Words};
use crate::session::{Turn, TurnDetail, TurnStatus};

/// How many lines, and bytes behind the first of them, may stand between a message and the event that tells of it.
const HELD_LINES: usize = 32;
const HELD_BYTES: usize = 1 << 20;

/// Events that the client shows. Where no turn is open, one begins with them.
const SHOWN: [&str; 9] = [
    "agent_message",
    "agent_reasoning",
    "agent_reasoning_raw_content",
    "web_search_end",
    "mcp_tool_call_end",
    "image_generation_end",
    "context_compacted",
    "entered_review_mode",
    "exited_review_mode",
];

/// How the lines of one turn are to be shown.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// By the start of a line that holds words of the user's. Other messages of the role are the client's.
    pub told: HashMap<u64, Told>,
    /// What a later rollback took back, in order; no two overlap.
    pub taken: Vec<TakenBack>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Words of the user's.
    User(String),
    /// An earlier line has its words; only its pictures are shown.
    Repeated,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenBack {
    pub span: Range<u64>,
    /// Turns, not only the rest of one.
    pub turns: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Current {
    None,
    /// `bare`: it holds a compaction and nothing that the client shows.
    Implicit {
        bare: bool,
    },
    Explicit,
}

#[derive(Clone)]
pub struct Walk {
    rules: Rules,
    file: Arc<Path>,
    part: usize,
    first_turn: u32,
    pub turns: Vec<Open>,
    current: Current,
    /// A turn began explicitly.
    explicit: bool,
    held: VecDeque<Held>,
    /// The first turn with an id, by the id's hash. A rollback may have taken it away.
    by_id: HashMap<u64, usize>,
    /// The turns in which the user speaks, in order.
    spoken: Vec<usize>,
    /// Records tell whose words are whose, here or in general.
    pub heard: bool,
    /// The model said something.
    pub answered: bool,
    /// How many turns end before the first damage, and where, if that is not where the next turn begins.
    pub sound: Option<u32>,
    pub sound_end: Option<End>,
    /// The last turn takes no more lines: it ended before a damage.
    closed: bool,
    /// The client's list and the model's history went apart at a rollback.
    pub apart: bool,
    /// There is a rollback record that changes no turn.
    pub idle_rollback: bool,
    script: Option<Script>,
    /// The model that was named last.
    model: Option<Arc<str>>,
    /// What the thread took in all, by the last event that told it.
    pub total: Option<Usage>,
}

impl Walk {
    /// Over the lines of `file`, part number `part` of a history, in which `first_turn` turns come before.
    pub fn new(rules: Rules, file: &Arc<Path>, part: usize, first_turn: u32) -> Walk {
        Walk {
            rules,
            file: file.clone(),
            part,
            first_turn,
            turns: Vec::new(),
            current: Current::None,
            explicit: false,
            held: VecDeque::new(),
            by_id: HashMap::new(),
            spoken: Vec::new(),
            heard: false,
            answered: false,
            sound: None,
            sound_end: None,
            closed: false,
            apart: false,
            idle_rollback: false,
            script: None,
            model: None,
            total: None,
        }
    }

    /// How the lines of one turn are to be shown, and whether they hold words recorded as the user's.
    pub fn script<'l>(
        rules: Rules,
        lines: impl Iterator<Item = (At<'l>, Option<Content<'l>>)>,
    ) -> (Script, bool) {
        let mut walk = Walk::new(rules, &Path::new("").into(), 0, 0);
        walk.script = Some(Script::default());
        for (at, content) in lines {
            walk.line(&at, content);
        }
        walk.finish();
        (walk.script.unwrap_or_default(), walk.heard)
    }

    /// The next line; `content` of a record that counts.
    pub fn line(&mut self, at: &At<'_>, content: Option<Content<'_>>) {
        let Some(line) = content else { return self.feed(at, None) };
        match line.body {
            Body::Event(event, item) => {
                self.heard |= voice::tells_words(event);
                let said = voice::said(event, item.as_ref());
                // In a legacy file only a turn that is open knows of items.
                let counts =
                    event.kind == "user_message" || self.rules.paginated || self.current == Current::Explicit;
                match said.filter(|_| counts) {
                    Some(said) => self.user_said(at, line, &said),
                    None => self.event(at, line, event),
                }
            }
            Body::Compacted(_) if !self.rules.paginated => {
                self.release();
                if self.current == Current::None {
                    self.begin(at, line.record, Current::Implicit { bare: true }, None);
                }
                self.put(at, Some(line));
            }
            Body::Response(response) => {
                self.answered |= voice::author(response) == Author::Assistant;
                if self.rules.evidence == Evidence::Marks {
                    // The message itself begins the turn, unless turns begin explicitly.
                    let implicit = !self.explicit && !self.rules.paginated;
                    if implicit && voice::may_be_users(response) && self.is_users(response) {
                        self.begin(at, line.record, Current::Implicit { bare: false }, None);
                    }
                    self.put(at, Some(line));
                } else if self.held.is_empty() && self.could_begin_with(response) {
                    self.hold(at);
                } else {
                    self.feed(at, Some(line));
                }
            }
            _ => self.feed(at, Some(line)),
        }
    }

    /// Whether the user speaks in one of the turns.
    pub fn has_users(&self) -> bool {
        !self.spoken.is_empty()
    }

    /// Damage: from here on nothing is sure. A turn that has ended before it is complete; what follows up to the
    /// next turn belongs to nobody.
    pub fn damage_begins(&mut self, end: End) {
        self.release();
        let ended = self.turns.last().is_some_and(|open| open.ended);
        let turns = self.turns.len() as u32;
        self.sound = Some(if ended { turns } else { turns.saturating_sub(1) });
        if ended {
            self.close_last();
            self.closed = true;
            self.sound_end = Some(End { part: self.part, ..end });
        }
    }

    /// After the last line.
    pub fn finish(&mut self) {
        self.release();
        self.close_last();
        for open in &mut self.turns {
            // The first of them is told as the prompt, not as a steer.
            let longer = if open.users.is_empty() { 0 } else { steer_is_longer() };
            let decided: u64 = open.decided.iter().map(|(_, length)| length).sum();
            open.at.turn.text_len = (open.length + decided).saturating_sub(longer);
        }
    }

    /// Whether a turn could turn out to begin with this message.
    fn could_begin_with(&self, response: &Response<'_>) -> bool {
        match self.current {
            _ if self.rules.paginated => false,
            Current::None => true,
            Current::Implicit { .. } => voice::may_be_users(response),
            Current::Explicit => false,
        }
    }

    fn hold(&mut self, at: &At<'_>) {
        self.held.push_back(Held::of(at));
        let behind = |held: &VecDeque<Held>| held.iter().skip(1).map(|held| held.bytes.len()).sum::<usize>();
        while self.held.len() > HELD_LINES || behind(&self.held) > HELD_BYTES {
            let Some(first) = self.held.pop_front() else { break };
            self.put_held(&first);
            // Up to the next one that a turn could begin with.
            while let Some(next) = self.held.pop_front() {
                if next.is_response(|response| self.could_begin_with(response)) {
                    self.held.push_front(next);
                    break;
                }
                self.put_held(&next);
            }
        }
    }

    /// What is held belongs to the turn that is open.
    fn release(&mut self) {
        while let Some(held) = self.held.pop_front() {
            self.put_held(&held);
        }
    }

    fn put_held(&mut self, held: &Held) {
        held.with(|at, content| self.put(at, content));
    }

    /// A line that begins nothing: into the turn that is open, or behind what is held.
    fn feed(&mut self, at: &At<'_>, content: Option<Content<'_>>) {
        if self.held.is_empty() { self.put(at, content) } else { self.hold(at) }
    }

    /// A line into the last turn.
    fn put(&mut self, at: &At<'_>, content: Option<Content<'_>>) {
        let Some(open) = self.turns.last_mut().filter(|_| !self.closed) else { return };
        open.at.turn.span.end = at.end;
        let Some(content) = content else { return };
        open.at.turn.last = content.record.time().or(open.at.turn.last);
        if let Body::Response(response) = content.body {
            if voice::may_be_users(response) {
                return self.message(at.start, response);
            }
            open.call(response);
        }
        match content.body {
            Body::Context(TurnContext { model: Some(model) }) => {
                let shared = self.model.take().filter(|last| **last == **model);
                let model = shared.unwrap_or_else(|| Arc::from(&**model));
                open.at.turn.model = Some(model.clone());
                self.model = Some(model);
            }
            Body::Event(event, _) => {
                // The client tells a total again, when a turn begins or limits change: only a new one is of a request.
                if let Some((total, last)) = event.counted()
                    && self.total.replace(total) != Some(total)
                {
                    last.tokens().add_to(&mut open.at.turn.tokens);
                }
            }
            _ => {}
        }
        let reader = &mut open.reader;
        open.length += measured(self.rules, |sink| reader.line(content, sink));
    }

    /// A message that may be the user's, in the last turn.
    fn message(&mut self, at: u64, response: &Response<'_>) {
        let rules = self.rules;
        let users = self.is_users(response);
        self.heard |= users;
        let Some(open) = self.turns.last_mut() else { return };
        let pictures = length_of(rules, || pictures(&response.content));
        let words = Words::of(response);
        if let Some(met) = open.unmet.iter().position(|key| words.say(*key)) {
            open.unmet.remove(met);
            open.decided.push((at, pictures));
            if let Some(script) = &mut self.script {
                script.told.insert(at, Told::Repeated);
            }
            return;
        }
        open.waiting.push(Waiting {
            before: open.so_far(at),
            words,
            own: users.then(|| voice::own_text(response).into_owned()),
            pictures,
            notice: length_of(rules, || voice::client_items(response)),
        });
        if rules.evidence == Evidence::Marks {
            self.settle();
        }
    }

    fn is_users(&self, message: &Response<'_>) -> bool {
        match self.rules.evidence {
            Evidence::Records => voice::author(message) == Author::User,
            Evidence::Marks => voice::is_users_by_marks(message),
        }
    }

    /// An event tells the user's words.
    fn user_said(&mut self, at: &At<'_>, line: Content<'_>, text: &str) {
        let key = voice::key(text);
        let begins = !self.rules.paginated
            && matches!(self.current, Current::None | Current::Implicit { bare: false });
        if begins {
            self.begin_with(at, line, |response| {
                voice::may_be_users(response) && Words::of(response).say(key)
            });
        } else {
            self.release();
            if let Current::Implicit { bare } = &mut self.current {
                *bare = false;
            }
        }
        self.told_by_event(at.start, key, text);
        self.put(at, Some(line));
    }

    /// Begins an implicit turn at the last of the held lines that is such a message, else here.
    fn begin_with(&mut self, at: &At<'_>, line: Content<'_>, is_such: impl Fn(&Response<'_>) -> bool) {
        let first = self.held.iter().rposition(|held| held.is_response(&is_such));
        let implicit = Current::Implicit { bare: false };
        let Some(first) = first else {
            self.release();
            return self.begin(at, line.record, implicit, None);
        };
        let own = self.held.split_off(first);
        self.release();
        for (n, held) in own.iter().enumerate() {
            held.with(|at, content| {
                if let (0, Some(content)) = (n, content) {
                    self.begin(at, content.record, implicit, None);
                }
                self.put(at, content);
            });
        }
    }

    fn told_by_event(&mut self, at: u64, key: u128, text: &str) {
        let Some(open) = self.turns.last_mut() else { return };
        let (before, pictures) = match open.waiting.iter().position(|waiting| waiting.words.say(key)) {
            Some(met) => {
                let Waiting { before, pictures, .. } = open.waiting.remove(met);
                (before, pictures)
            }
            None => {
                open.unmet.push(key);
                (open.so_far(at), 0)
            }
        };
        self.user(before, text, pictures);
    }

    /// A message of the user's in the last turn.
    fn user(&mut self, before: User, text: &str, pictures: u64) {
        if let Some(script) = &mut self.script {
            script.told.insert(before.at, Told::User(text.to_owned()));
        }
        let Some(open) = self.turns.last_mut() else { return };
        open.user(self.rules, before, text, pictures);
        let turn = self.turns.len() - 1;
        if self.spoken.last() != Some(&turn) {
            self.spoken.push(turn);
        }
    }

    fn event(&mut self, at: &At<'_>, line: Content<'_>, event: &Event<'_>) {
        let id = event.turn_id.as_deref().map(|id| xxh3_64(id.as_bytes()));
        match &*event.kind {
            "task_started" | "turn_started" => {
                self.release();
                self.begin(at, line.record, Current::Explicit, id);
                self.explicit = true;
                self.put(at, Some(line));
            }
            "task_complete" | "turn_complete" | "turn_aborted" | "thread_rolled_back" => {
                self.release();
                self.put(at, Some(line));
                let time = line.record.time();
                match &*event.kind {
                    "thread_rolled_back" => self.rolled_back(at, time, event.num_turns.unwrap_or(0)),
                    "turn_aborted" => self.ends(id, time, TurnStatus::Interrupted),
                    _ if event.failed() => self.ends(id, time, TurnStatus::Failed),
                    _ => self.ends(id, time, TurnStatus::Complete),
                }
            }
            kind if !self.rules.paginated && SHOWN.contains(&kind) && !is_empty(event) => {
                match &mut self.current {
                    Current::None if self.rules.evidence == Evidence::Records => {
                        let text = event.words().map(voice::key);
                        let call = event.call_id.as_deref();
                        self.begin_with(at, line, |response| {
                            text.is_some_and(|text| Words::of(response).say(text) || thinks(response, text))
                                || call.is_some()
                                    && response.call_id.as_deref().or(response.id.as_deref()) == call
                        });
                    }
                    Current::Implicit { bare } => {
                        *bare = false;
                        self.release();
                    }
                    _ => self.release(),
                }
                self.put(at, Some(line));
            }
            _ => self.feed(at, Some(line)),
        }
    }

    fn begin(&mut self, at: &At<'_>, record: &Record<'_>, current: Current, id: Option<u64>) {
        self.close_last();
        self.closed = false;
        self.current = current;
        let n = self.first_turn + self.turns.len() as u32;
        let explicit = current == Current::Explicit;
        if let Some(id) = id.filter(|id| self.with_id(*id).is_none()) {
            self.by_id.insert(id, self.turns.len());
        }
        let turn = Turn {
            n,
            prompt: None,
            // What old clients wrote has no end of its own.
            status: if explicit { TurnStatus::Interrupted } else { TurnStatus::Complete },
            detail: explicit.then_some(TurnDetail::Open),
            started: record.time(),
            ended: None,
            last: record.time(),
            file: self.file.clone(),
            span: at.start..at.end,
            pieces: Vec::new(),
            line: at.number,
            group: n,
            model: None,
            tokens: None,
            text_len: 0,
        };
        let (part, lines, bytes) = (self.part, at.number - 1, at.start);
        let before = End { part, lines, bytes, ordinal: record.ordinal };
        self.turns.push(Open {
            at: TurnAt { turn, before },
            id,
            reader: Reader::default(),
            length: 0,
            decided: Vec::new(),
            users: Vec::new(),
            waiting: Vec::new(),
            unmet: Vec::new(),
            calls: HashSet::new(),
            ended: false,
        });
    }

    /// The first turn with this id, of those that no rollback took away.
    fn with_id(&self, id: u64) -> Option<usize> {
        let at = *self.by_id.get(&id)?;
        self.turns.get(at).filter(|open| open.id == Some(id)).map(|_| at)
    }

    /// No event came for the messages that wait in the last turn: they are whose they are recorded to be.
    fn settle(&mut self) {
        let waiting = self.turns.last_mut().map(|open| std::mem::take(&mut open.waiting));
        for Waiting { before, own, pictures, notice, .. } in waiting.into_iter().flatten() {
            match (own, self.turns.last_mut()) {
                (Some(text), _) => self.user(before, &text, pictures),
                (None, Some(open)) => open.decided.push((before.at, notice)),
                (None, None) => {}
            }
        }
    }
}

/// An event of the model's words without a word.
fn is_empty(event: &Event<'_>) -> bool {
    event.kind.starts_with("agent_") && event.words().unwrap_or("").is_empty()
}

/// Whether a record of the model's thinking has a part with this text.
fn thinks(response: &Response<'_>, key: u128) -> bool {
    let mut parts = response.summary.iter().chain(&response.content).filter_map(|part| part.text.as_deref());
    response.kind == "reasoning" && parts.any(|text| voice::key(text) == key)
}
