//! The reference model: a list of turns, and what the model has seen before each of them and now.

use super::client::{COMPACTED, Event};

/// A user's or assistant's message, as one line: "user: text".
pub type Message = String;

/// The contexts, oldest first; the last one is live.
pub type Contexts = Vec<Vec<Message>>;

/// A turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    pub prompt: String,
    /// The first turn of those that only go together.
    pub group: usize,
    pub ended: bool,
    /// The contexts as they were before it.
    before: Contexts,
}

/// A session as it should be. Every turn says something that no other says, so equal states are equal bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub turns: Vec<Turn>,
    pub contexts: Contexts,
    /// The last record is half written.
    pub torn: bool,
}

impl State {
    pub fn new() -> State {
        State { turns: Vec::new(), contexts: vec![Vec::new()], torn: false }
    }

    /// Plays what a client does; `killed` means that it is cut off behind these events.
    pub fn play(&mut self, events: &[Event], killed: bool) {
        let first = self.turns.len();
        let mut open: Vec<usize> = Vec::new();
        for event in events {
            match event {
                Event::Begin(prompt) | Event::BeginInner(prompt) => {
                    let group = if let Event::BeginInner(_) = event { first } else { self.turns.len() };
                    open.push(self.turns.len());
                    let before = self.contexts.clone();
                    self.turns.push(Turn { prompt: prompt.clone(), group, ended: false, before });
                }
                Event::End => {
                    let ended = open.pop().unwrap();
                    self.turns[ended].ended = true;
                }
                Event::User(text) | Event::Steer(text) => self.say(format!("user: {text}")),
                Event::Keeps(text, _) => self.say(format!("assistant: {text}")),
                Event::Compact(summary) => {
                    let old = self.contexts.last().unwrap();
                    let kept = old[old.len() - 2..].to_vec();
                    self.contexts.push(vec![format!("user: {COMPACTED} {summary}")]);
                    self.contexts.last_mut().unwrap().extend(kept);
                }
                Event::Clear => self.contexts.push(Vec::new()),
                Event::Checkpoint
                | Event::Step(_)
                | Event::CompactionBegins
                | Event::CompactionEnds
                | Event::Streams(..)
                | Event::Returns(_)
                | Event::KeepsResult(_)
                | Event::Reply(_) => {}
            }
        }
        if killed && !open.is_empty() && !self.turns[first].ended {
            // An outer turn that never ended owns nothing.
            for (n, turn) in self.turns.iter_mut().enumerate().skip(first) {
                turn.group = n;
            }
        }
    }

    fn say(&mut self, message: Message) {
        self.contexts.last_mut().unwrap().push(message);
    }

    /// Messages in the live context.
    pub fn live(&self) -> usize {
        self.contexts.last().unwrap().len()
    }

    /// How many turns stay when turn `n` is the first to go: a group goes or stays as a whole.
    pub fn kept_before(&self, n: usize) -> usize {
        let Some(last) = n.checked_sub(1).and_then(|last| self.turns.get(last)) else { return 0 };
        n + self.turns[n..].iter().take_while(|turn| turn.group == last.group).count()
    }

    /// The first `count` turns alone.
    pub fn first(&self, count: usize) -> State {
        match self.turns.get(count) {
            None => State { torn: false, ..self.clone() },
            Some(next) => {
                State { turns: self.turns[..count].to_vec(), contexts: next.before.clone(), torn: false }
            }
        }
    }

    /// Whether the last turn, or one that it belongs to, has no end.
    pub fn is_open(&self) -> bool {
        self.turns.last().is_some_and(|last| self.turns[last.group..].iter().any(|turn| !turn.ended))
    }

    /// Whether a client was killed in a turn that is still there: where it stopped cannot always be told.
    pub fn has_killed(&self) -> bool {
        self.turns.iter().any(|turn| !turn.ended)
    }
}
