//! Where a turn begins: the one walk over a wire's events, giving the turns and the operations that they
//! made on the context.
//!
//! [`Walker`] is fed line by line, so a wire of any size is walked in memory that grows only with its turns
//! and steps. Nobody else decides what a turn is. Rules: `docs/stores/kimi-cli.md`, "4.2 Wire to
//! turns and operations". `commands`: what a slash command does to the context; `nesting`: what only the end of
//! the walk tells, which turns lay in others.

mod commands;
mod nesting;
mod walk;

use std::collections::HashMap;

use jiff::Timestamp;
use xxhash_rust::xxh3::Xxh3;

use super::records::{TextKey, WireEvent, WireLine, call_key};
use crate::session::{TurnDetail, TurnStatus};
use commands::{HAS_BEEN_COMPACTED, command_effect, needs_reply, side_record};
use nesting::{INIT_PROMPT, Nesting, settle};
pub use walk::{NewEpoch, Op, OpKind, StepFacts, TurnEnd, Walk, WireTurn};

/// A turn while the walk goes on. What depends on its outer turn's TurnEnd is decided by [`Walker::finish`]:
/// only then is it known whether the outer turn was killed.
#[derive(Clone, Debug)]
struct Begun {
    turn: WireTurn,
    /// The turn that was open when this one began.
    inside: Option<usize>,
    steps: u32,
    runs: u32,
    /// A turn began while this one was on top.
    has_inner: bool,
    interrupted: bool,
    /// Its TurnBegin is lost, and with it its text.
    lost: bool,
    /// Of a client that wrote no TurnEnd.
    endless: bool,
    /// The last step said something and called nothing behind it: without a TurnEnd the only sign of an end.
    answered: bool,
    /// A CompactionEnd came in it.
    compacted: bool,
    /// Kept only of commands whose reply tells what they did.
    reply: String,
}

/// An op before it is known which turns were nested.
#[derive(Clone, Debug)]
struct RawOp {
    turn: usize,
    kind: RawKind,
}

#[derive(Clone, Debug)]
enum RawKind {
    Op(OpKind),
    /// A run, and whether the turn's own text is its user record (if the turn is no command).
    Run {
        own_text: bool,
        first_step: usize,
    },
    /// What the command did, if the turn is not nested.
    CommandDone(OpKind),
    /// What a command did, or may have done, in which the client was killed; the turn is the last one begun.
    KilledCommand(OpKind),
}

/// The step whose content is being read.
#[derive(Clone)]
struct OpenStep {
    index: usize,
    text: Option<Xxh3>,
}

/// The walk, line by line.
#[derive(Clone, Default)]
pub struct Walker {
    turns: Vec<Begun>,
    /// Turns without TurnEnd so far, innermost last.
    open: Vec<usize>,
    ops: Vec<RawOp>,
    steps: Vec<StepFacts>,
    /// A step that has begun and whose checkpoint may not be written yet: turn and step.
    pending: Option<(usize, usize)>,
    current: Option<OpenStep>,
    /// A CompactionBegin without its CompactionEnd.
    compacting: bool,
    /// Turns have a TurnEnd: the header says so, or there was one. A newer client that goes on with an older one's
    /// file leaves the header.
    has_ends: bool,
    /// D-Mails whose result has not come yet: call id and checkpoint.
    dmails: HashMap<String, i64>,
    /// A D-Mail that was sent; the next step begins in the reverted context.
    reverting: Option<i64>,
    lines: u64,
    end: u64,
    invalid: u64,
    /// An invalid line where a turn should begin: line and byte.
    lost: Option<(u64, u64)>,
}

impl Walker {
    pub fn new() -> Walker {
        Walker::default()
    }

    /// Walks one line. Lines must come in file order.
    pub fn line(&mut self, line: &WireLine) {
        self.lines = line.line;
        self.end = line.end;
        match &line.event {
            WireEvent::Invalid => {
                self.invalid += 1;
                self.lost = self.open.is_empty().then_some((line.line, line.start));
            }
            WireEvent::Metadata { ends } => self.has_ends |= ends,
            WireEvent::Silent | WireEvent::Other => {}
            WireEvent::TurnBegin { text, command } => {
                self.lost = None;
                self.turn_begins(line, text, command.as_deref());
            }
            WireEvent::TurnEnd => {
                self.has_ends = true;
                self.turn_ends(line);
            }
            WireEvent::StepBegin { n } => {
                self.lost_turn_begins(line.time);
                self.step_begins(*n);
            }
            WireEvent::StepInterrupted => {
                self.flush_stopped();
                if let Some(turn) = self.top() {
                    self.turns[turn].interrupted = true;
                }
            }
            // A step's compaction comes before its checkpoint, so the step stays pending.
            WireEvent::CompactionBegin => self.compacting = true,
            WireEvent::CompactionEnd => {
                self.compacting = false;
                if let Some(turn) = self.top() {
                    self.turns[turn].compacted = true;
                }
                self.emit(OpKind::NewEpoch(NewEpoch::Compaction));
            }
            WireEvent::SteerInput { text } => {
                self.flush();
                self.emit(OpKind::Steer { text: text.clone() });
            }
            WireEvent::Text { text } => self.text(text),
            WireEvent::OtherPart => {
                self.flush();
                self.answers(true);
            }
            WireEvent::ToolCall { id, dmail_checkpoint } => {
                self.flush();
                self.answers(false);
                if let Some(step) = &self.current {
                    self.steps[step.index].calls.push(call_key(id));
                }
                if let Some(checkpoint) = dmail_checkpoint {
                    self.dmails.insert(id.clone(), *checkpoint);
                }
            }
            WireEvent::ToolResult { id, is_error } => {
                self.flush();
                if let Some(checkpoint) = self.dmails.remove(id)
                    && !is_error
                {
                    self.reverting = Some(checkpoint);
                }
            }
        }
        if let (Some(last), Some(time)) = (self.turns.last_mut(), line.time) {
            last.turn.last = Some(time);
        }
    }

    /// The innermost open turn; without one (its TurnBegin is lost) the last turn.
    fn top(&self) -> Option<usize> {
        self.open.last().copied().or(self.turns.len().checked_sub(1))
    }

    fn emit(&mut self, kind: OpKind) {
        if let Some(turn) = self.top() {
            self.ops.push(RawOp { turn, kind: RawKind::Op(kind) });
        }
    }

    /// The pending step has written its checkpoint: it went on to say something, or the next one began.
    fn flush(&mut self) {
        self.compacting = false;
        if let Some((turn, step)) = self.pending.take() {
            self.ops.push(RawOp { turn, kind: RawKind::Op(OpKind::Step { step }) });
        }
    }

    /// Nothing more comes of the pending step. If it was stopped (failed, cancelled, killed) while it
    /// compacted, its checkpoint was never written.
    fn flush_stopped(&mut self) {
        if self.compacting {
            self.pending = None;
        }
        self.flush();
    }

    fn step_ends(&mut self) {
        if let Some(OpenStep { index, text: Some(hash) }) = self.current.take() {
            self.steps[index].text = Some(hash.digest128());
        }
    }

    /// The innermost turn said something, or called a tool.
    fn answers(&mut self, answers: bool) {
        if let Some(turn) = self.top() {
            self.turns[turn].answered = answers;
        }
    }

    /// Without TurnEnds every turn that is open ends where the next one begins; only the run that an /init makes
    /// lies in it.
    fn endless_turns_end(&mut self, next: &TextKey) {
        while let Some(&top) = self.open.last() {
            let begun = &self.turns[top];
            if !begun.endless
                || (begun.turn.command.as_deref() == Some("init") && self.is_inits_run(top, next))
            {
                break;
            }
            self.killed_command(top);
            self.open.pop();
        }
    }

    /// Whether a turn that begins with this text is the run of this /init.
    fn is_inits_run(&self, init: usize, text: &TextKey) -> bool {
        !self.turns[init].has_inner && text.starts_with(INIT_PROMPT)
    }

    fn turn_begins(&mut self, line: &WireLine, text: &TextKey, command: Option<&str>) {
        self.killed_in_compaction();
        self.flush_stopped();
        self.step_ends();
        self.endless_turns_end(text);
        while let Some(&top) = self.open.last() {
            let begun = &self.turns[top];
            // A turn with steps of its own has no nested ones: it was killed.
            let killed_in_step = begun.steps > 0 && !begun.has_inner;
            if !killed_in_step && !self.killed_command(top) {
                break;
            }
            self.open.pop();
        }
        let inside = self.open.last().copied();
        if let Some(outer) = inside {
            self.turns[outer].has_inner = true;
        }
        self.open.push(self.turns.len());
        let turn = WireTurn {
            line: line.line,
            start: line.start,
            end: None,
            started: line.time,
            last: line.time,
            text: text.clone(),
            command: command.map(str::to_owned),
            group: 0,
            nested: false,
            status: TurnStatus::Interrupted,
            detail: None,
        };
        self.turns.push(Begun {
            turn,
            inside,
            steps: 0,
            runs: 0,
            has_inner: false,
            interrupted: false,
            lost: false,
            endless: !self.has_ends,
            answered: false,
            compacted: false,
            reply: String::new(),
        });
    }

    /// A client that is gone while it compacted may have rotated the context already.
    fn killed_in_compaction(&mut self) {
        if self.compacting {
            self.emit(OpKind::MaybeEpoch(NewEpoch::Compaction));
        }
    }

    /// Whether this open turn is a command that can have no (further) turn in it, so that it was killed.
    /// What it writes into the context comes before its reply: it may be there.
    fn killed_command(&mut self, turn: usize) -> bool {
        let begun = &self.turns[turn];
        let Some(name) = begun.turn.command.as_deref() else { return false };
        // /init has exactly one turn in it, and writes its record behind that.
        let is_done = |inner: &Begun| inner.endless || inner.turn.end.is_some();
        let inner_is_done = || self.turns.get(turn + 1).is_some_and(is_done);
        let killed_init = name == "init" && begun.has_inner && inner_is_done();
        if !killed_init && !needs_reply(name) {
            return false;
        }
        let said = if name == "init" { None } else { command_effect(name, &begun.reply) };
        let effect = said.or_else(|| match name {
            "clear" | "reset" => Some(OpKind::MaybeEpoch(NewEpoch::Clear)),
            _ => side_record(name).map(|prefix| OpKind::SideRecord { prefix, sure: false }),
        });
        if let Some(kind) = effect {
            let last = self.turns.len() - 1;
            self.ops.push(RawOp { turn: last, kind: RawKind::KilledCommand(kind) });
        }
        true
    }

    fn turn_ends(&mut self, line: &WireLine) {
        self.flush_stopped();
        self.step_ends();
        let Some(index) = self.open.pop() else { return };
        let begun = &mut self.turns[index];
        begun.turn.end = Some(TurnEnd { line: line.line, byte: line.end, time: line.time });
        let reply = std::mem::take(&mut begun.reply);
        if let Some(kind) = begun.turn.command.as_deref().and_then(|name| command_effect(name, &reply)) {
            self.ops.push(RawOp { turn: index, kind: RawKind::CommandDone(kind) });
        }
    }

    /// How many turns have begun.
    pub fn begun(&self) -> usize {
        self.turns.len()
    }

    /// A step begins and no turn is open: the invalid line before it was the turn's beginning. What it did is
    /// not the turn's before.
    fn lost_turn_begins(&mut self, time: Option<Timestamp>) {
        let Some((number, start)) = self.lost.take().filter(|_| self.open.is_empty()) else { return };
        let event = WireEvent::Invalid;
        let line = WireLine { line: number, start, end: start, time, event };
        self.turn_begins(&line, &TextKey::of(""), None);
        if let Some(begun) = self.turns.last_mut() {
            begun.lost = true;
        }
    }

    fn step_begins(&mut self, n: i64) {
        self.flush();
        self.step_ends();
        let Some(turn) = self.top() else { return };
        if let Some(checkpoint) = self.reverting.take() {
            self.emit(OpKind::NewEpoch(NewEpoch::Revert { checkpoint }));
        }
        let index = self.steps.len();
        self.steps.push(StepFacts::default());
        let begun = &mut self.turns[turn];
        begun.steps += 1;
        begun.answered = false;
        if n == 1 {
            begun.runs += 1;
            let own_text = begun.runs == 1 && !begun.lost && !self.open.is_empty();
            self.ops.push(RawOp { turn, kind: RawKind::Run { own_text, first_step: index } });
        }
        self.pending = Some((turn, index));
        self.current = Some(OpenStep { index, text: None });
    }

    fn text(&mut self, text: &str) {
        self.flush();
        if let Some(&turn) = self.open.last() {
            let begun = &mut self.turns[turn];
            begun.answered = true;
            // Clients before 0.68 rotated the context for a /compact without a word but this one.
            let is_compact = begun.turn.command.as_deref() == Some("compact") && begun.steps == 0;
            if is_compact && !begun.compacted && text.contains(HAS_BEEN_COMPACTED) {
                begun.compacted = true;
                self.emit(OpKind::NewEpoch(NewEpoch::Compaction));
            }
            let begun = &mut self.turns[turn];
            if begun.turn.command.as_deref().is_some_and(needs_reply) {
                begun.reply.push_str(text);
            }
        }
        if text.is_empty() {
            return;
        }
        if let Some(step) = &mut self.current {
            let joined = step.text.is_some();
            let hash = step.text.get_or_insert_default();
            if joined {
                hash.update(b" ");
            }
            hash.update(text.as_bytes());
        }
    }

    /// Ends the walk: what the turns were and did.
    pub fn finish(mut self) -> Walk {
        self.killed_in_compaction();
        self.flush_stopped();
        self.step_ends();
        self.endless_turns_end(&TextKey::default());
        if let Some(&top) = self.open.last() {
            self.killed_command(top);
        }
        let last = self.turns.len().saturating_sub(1);
        let nesting = Nesting::of(&self.turns);
        for (index, begun) in self.turns.iter_mut().enumerate() {
            begun.turn.group = nesting.groups[index] as u32;
            begun.turn.nested = nesting.groups[index] != index;
            if begun.turn.nested {
                begun.turn.command = None;
            }
            // Without TurnEnds a turn has ended if another one came, or its answer.
            let ended = begun.turn.end.is_some() || (begun.endless && (begun.answered || index < last));
            let stopped = begun.interrupted || (begun.endless && begun.steps > 0 && !begun.answered);
            let ran = begun.steps > 0 || nesting.has_inner[index];
            begun.turn.status =
                if ended && !stopped { TurnStatus::Complete } else { TurnStatus::Interrupted };
            begun.turn.detail = match ended {
                false => Some(TurnDetail::Open),
                true if begun.turn.command.is_some() && !ran => Some(TurnDetail::Command),
                true => None,
            };
        }
        let ops = settle(self.ops, &self.turns, &nesting, self.steps.len());
        Walk {
            turns: self.turns.into_iter().map(|begun| begun.turn).collect(),
            ops,
            steps: self.steps,
            lines: self.lines,
            end: self.end,
            invalid: self.invalid,
        }
    }
}
