//! A wire as a history: its turns, how each ended, and where it can be cut.
//!
//! A turn is what was put in for a prompt directly before it, the prompt, and everything up to the next turn, all as
//! far as the active chain has it. Facts: `docs/stores/kimi-code.md`, "2. Records".

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;

use super::chain::Chain;
use super::messages::Whose;
use super::wire::{Ended, What, Wire};
use crate::render;
use crate::session::{
    Confidence, CutAt, CutPoint, Damage, DamageClass, FileView, History, Kept, Piece, Refusal, Result,
    Session, State, Turn, TurnDetail, TurnStatus, open_calls,
};
use crate::transcript::{Passes, StoreDir};

/// A session's wire as read, with what was found in it.
pub(super) struct Loaded {
    pub history: History,
    /// `None` if the wire is missing, or its version is not known.
    pub wire: Option<Wire>,
    pub chain: Chain,
}

impl Loaded {
    pub fn read(session: &Session) -> Result<Loaded> {
        Loaded::read_again(session, &mut Passes::default())
    }

    /// Parses only what was appended since `passes`.
    pub fn read_again(session: &Session, passes: &mut Passes) -> Result<Loaded> {
        let file = wire_of(session);
        let whose = whose(session);
        let name = file.strip_prefix(&session.key.path).unwrap_or(&file).to_string_lossy().into_owned();
        let missing =
            || FileView { file: file.to_path_buf(), len: None, hash: crate::session::FileHash::of(b"") };
        let (wire, view) = match StoreDir::open(&session.key.root)? {
            Some(store) => Wire::read(&store, passes, &file, &name, whose)?,
            None => (None, missing()),
        };
        let Some(wire) = wire else {
            let mut history = History::without_turns(State::NoTranscript, vec![view]);
            history.cuts = vec![Err(Refusal::NoSuchTurn { asked: 0, turns: 0 })];
            return Ok(Loaded { history, wire: None, chain: Chain::default() });
        };
        let damages = wire.inspector.clone().finish();
        let is_damaged = damages.iter().any(|damage| !damage.class.is_torn());
        if let Some(what) = unsupported(&wire).filter(|_| !is_damaged && !wire.places.is_empty()) {
            let history = History::unsupported(what, vec![view]);
            return Ok(Loaded { history, wire: None, chain: Chain::default() });
        }
        let chain = Chain::of(&wire);
        let history = Told { wire: &wire, chain: &chain, file: file.clone() }.history(view, damages, &name);
        Ok(Loaded { history, wire: Some(wire), chain })
    }
}

/// The wire of a session or sub-agent, relative to the root.
pub(super) fn wire_of(session: &Session) -> Arc<Path> {
    session.files.first().map_or_else(|| session.key.path.clone(), |file| Arc::from(file.as_path()))
}

/// Who asks in the session.
pub(super) fn whose(session: &Session) -> Whose {
    if session.subagent.is_some() { Whose::Subagent } else { Whose::Session }
}

/// Why the wire's version is none that is known.
fn unsupported(wire: &Wire) -> Option<String> {
    match wire.protocol.as_deref() {
        Some(version) if version.split('.').next() == Some("1") => None,
        Some(version) => Some(format!("version {version:?} of the wire protocol")),
        None => Some("a wire that does not begin with its version".into()),
    }
}

/// What a wire tells.
struct Told<'a> {
    wire: &'a Wire,
    chain: &'a Chain,
    file: Arc<Path>,
}

impl Told<'_> {
    fn history(&self, view: FileView, mut damages: Vec<Damage>, name: &str) -> History {
        let mut history = History::without_turns(State::of(&damages), vec![view]);
        history.model = self.wire.model.as_deref().map(str::to_owned);
        let is_damaged = history.state == State::Damaged;
        if self.wire.places.is_empty() && !is_damaged {
            damages.insert(0, no_record(name));
            history.state = State::Empty;
            history.cuts = vec![Err(Refusal::Damaged { damage: damages[0].clone() })];
            history.damages = damages;
            return history;
        }
        let turns = self.chain.turns.len();
        history.turns = (0..turns).map(|n| self.turn(n)).collect();
        history.sound_turns = turns as u32;
        if is_damaged && history.turns.last().is_some_and(|last| last.status != TurnStatus::Complete) {
            history.sound_turns -= 1;
        }
        history.head_bytes = self.head_bytes();
        for turn in history.turns.iter().filter(|turn| turn.detail == Some(TurnDetail::OpenCalls)) {
            history.notes.push(open_calls(turn.n, "kimi-code tells its model that the call was interrupted"));
        }
        history.damages = damages;
        history.cuts = (0..=turns).map(|n| Ok(self.cut_point(n))).collect();
        history
    }

    /// The first bytes of the wire that no turn has, as far as they are one stretch.
    fn head_bytes(&self) -> u64 {
        let first = self.chain.ranges.first().filter(|first| first.start == 0).map_or(0, |first| first.end);
        let turn = self.chain.turns.first().map_or(first, |(start, _)| *start);
        self.wire.start_of(first.min(turn))
    }

    fn bytes(&self, range: &Range<usize>) -> Range<u64> {
        self.wire.start_of(range.start)..self.wire.start_of(range.end)
    }

    fn turn(&self, n: usize) -> Turn {
        let (start, end) = (self.chain.start_of(n), self.chain.start_of(n + 1));
        let ranges = self.chain.between(start, end);
        let spans = ranges.iter().map(|range| self.bytes(range));
        let mut pieces: Vec<Piece> = spans.map(|span| Piece { file: self.file.clone(), span }).collect();
        let span = match pieces.as_slice() {
            [only] => only.span.clone(),
            _ => 0..0,
        };
        if pieces.len() == 1 {
            pieces.clear();
        }
        let (id, prompt) = match self.chain.anchor_of(self.wire, n) {
            Some((id, prompt)) => (id, prompt.to_string()),
            None => (None, String::new()),
        };
        let (status, detail, ended) = self.outcome(n, id.is_some());
        let (mut model, mut tokens) = (None, None);
        for (_, what) in self.chain.marks_of(self.wire, n) {
            if let What::Usage { model: named, tokens: used } = what {
                model = named.clone().or(model);
                used.add_to(&mut tokens);
            }
        }
        let anchor = self.chain.turns.get(n).map_or(start, |(_, anchor)| *anchor);
        // Messages that the client has imported carry no times.
        let started = self.time(anchor).or_else(|| self.time(anchor.checked_sub(1)?));
        let records = ranges.iter().rev().flat_map(|range| range.clone().rev());
        let last = records.into_iter().find_map(|at| self.time(at));
        let text = |at: usize| {
            at.checked_sub(1).and_then(|at| self.wire.places.get(at)).map_or(0, |place| place.text)
        };
        let mut turn = Turn {
            n: n as u32,
            prompt: Some(prompt),
            status,
            detail,
            started,
            ended: ended.and_then(|at| self.time(at)),
            last: last.or(started),
            file: self.file.clone(),
            span,
            pieces,
            line: self.wire.places.get(start).map_or(1, |place| place.line),
            group: n as u32,
            model,
            tokens,
            text_len: ranges.iter().map(|range| text(range.end) - text(range.start)).sum(),
        };
        turn.text_len += render::heading_len(&turn);
        turn
    }

    fn time(&self, at: usize) -> Option<Timestamp> {
        Timestamp::from_millisecond(self.wire.places.get(at)?.time?).ok()
    }

    /// How a turn ended, and with which record. `is_own`: the client itself has run it; of imported ones it is only
    /// known that they are over.
    fn outcome(&self, n: usize, is_own: bool) -> (TurnStatus, Option<TurnDetail>, Option<usize>) {
        let mut ended = None;
        let mut open: HashSet<&Arc<str>> = HashSet::new();
        let mut last = None;
        for (at, what) in self.chain.marks_of(self.wire, n) {
            match what {
                What::Ended { reason } => ended = Some((*at, *reason)),
                What::Call { id } => {
                    open.insert(id);
                    last = Some(what);
                }
                What::Result { id } => {
                    open.remove(id);
                    last = Some(what);
                }
                What::Reply => last = Some(what),
                _ => {}
            }
        }
        let Some((at, reason)) = ended else {
            let detail = match last {
                _ if !open.is_empty() => TurnDetail::OpenCalls,
                None if is_own => TurnDetail::NoReply,
                Some(What::Result { .. }) if is_own => TurnDetail::EndedInTool,
                _ if is_own => TurnDetail::Open,
                _ => return (TurnStatus::Complete, None, None),
            };
            return (TurnStatus::Interrupted, Some(detail), None);
        };
        match reason {
            Ended::Completed => (TurnStatus::Complete, None, Some(at)),
            Ended::Cancelled => (TurnStatus::Interrupted, None, Some(at)),
            Ended::Failed => (TurnStatus::Failed, None, Some(at)),
        }
    }

    fn cut_point(&self, n: usize) -> CutPoint {
        let start = self.chain.start_of(n);
        let ranges = self.chain.between(0, start);
        let bytes = ranges.iter().map(|range| self.bytes(range)).map(|span| span.end - span.start).sum();
        let file = self.file.to_path_buf();
        let kept = Kept {
            file: file.clone(),
            source: file.clone(),
            lines: ranges.iter().map(|range| range.len() as u64).sum(),
            bytes,
            rebuilt: ranges.len() > 1 || ranges.first().is_some_and(|first| first.start > 0),
        };
        let branch = self.wire.branches.iter().rev().find(|branch| branch.from <= start);
        let at = CutAt {
            file,
            id: branch.map_or_else(String::new, |branch| branch.name.to_string()),
            byte: self.wire.start_of(start),
            ordinal: Some(start as u64 + 1),
        };
        CutPoint { confidence: Confidence::Exact, kept: vec![kept], at: Some(at) }
    }
}

fn no_record(name: &str) -> Damage {
    let message = "the file holds no complete record; kimi-code opens such a session without a model";
    Damage { file: name.into(), line: 1, byte: 0, class: DamageClass::NoRecord, message: message.into() }
}
