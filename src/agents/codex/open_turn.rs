//! A turn while its lines pass by: its length, whose messages are in it, and what is still undecided.

use std::collections::HashSet;

use super::reader::Reader;
use super::records::Response;
use super::titles;
use super::voice::{Evidence, Words};
use crate::render;
use crate::session::{Item, ItemSink, Turn};

/// What a walk goes by, besides the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub evidence: Evidence,
    /// Turns are explicit, and a rollback changes none.
    pub paginated: bool,
    /// Count the length of texts.
    pub measure: bool,
}

/// A turn with its place.
#[derive(Clone)]
pub struct TurnAt {
    /// `text_len` is that of the items, without the heading.
    pub turn: Turn,
    /// Where what comes before it ends.
    pub before: End,
}

/// A place in a history: what is kept of a part when it is cut there.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Which of the history's files it is in, counted from the oldest.
    pub part: usize,
    pub lines: u64,
    pub bytes: u64,
    /// Of the line that follows.
    pub ordinal: Option<u64>,
}

/// A turn while its lines pass by.
#[derive(Clone)]
pub struct Open {
    pub at: TurnAt,
    pub id: Option<u64>,
    pub reader: Reader,
    /// Length of what was shown when its line passed by.
    pub length: u64,
    /// Place and length of what was not decided then.
    pub decided: Vec<(u64, u64)>,
    /// In order of their places.
    pub users: Vec<User>,
    pub waiting: Vec<Waiting>,
    /// Told by events, and by no message so far.
    pub unmet: Vec<u128>,
    /// Tool calls without a result so far.
    pub calls: HashSet<String>,
    pub ended: bool,
}

/// A user's message, and the state of its turn before it.
#[derive(Clone)]
pub struct User {
    pub at: u64,
    pub length: u64,
    pub reader: Reader,
}

/// A message of which it is not known yet whose it is.
#[derive(Clone)]
pub struct Waiting {
    pub before: User,
    pub words: Words,
    /// Set where it is recorded as the user's.
    pub own: Option<String>,
    pub pictures: u64,
    /// As one of the client's.
    pub notice: u64,
}

impl Open {
    /// The state of the turn before what stands at `at`.
    pub fn so_far(&self, at: u64) -> User {
        User { at, length: self.length, reader: self.reader.clone() }
    }

    /// A message of the user's, whose place and what was before it are in `before`.
    pub fn user(&mut self, rules: Rules, before: User, text: &str, pictures: u64) {
        let length = measured(rules, |sink| sink(None, Item::Steer { text: text.into() }));
        self.decided.push((before.at, length + pictures));
        let place = self.users.partition_point(|user| user.at < before.at);
        if place == 0 {
            self.at.turn.prompt = Some(titles::request(text).chars().take(Turn::PROMPT_CHARS).collect());
        }
        self.users.insert(place, before);
    }

    /// Forgets a user's message, which is not the first, and everything behind it. Where it began.
    pub fn forget_from(&mut self, user: usize) -> u64 {
        let User { at, length, reader } = self.users[user].clone();
        self.users.truncate(user);
        self.decided.retain(|(place, _)| *place < at);
        (self.length, self.reader) = (length, reader);
        self.calls.clear();
        self.unmet.clear();
        at
    }

    pub fn call(&mut self, response: &Response<'_>) {
        let Some(id) = response.call_id.as_deref() else { return };
        if response.kind.ends_with("_output") {
            self.calls.remove(id);
        } else if response.kind.ends_with("_call") {
            self.calls.insert(id.to_owned());
        }
    }
}

/// The length of what `items` gives to its sink, where a walk measures.
pub fn measured(rules: Rules, items: impl FnOnce(&mut ItemSink<'_>)) -> u64 {
    if !rules.measure {
        return 0;
    }
    render::len_of(|out| items(&mut |_, item: Item<'_>| render::item(&item, out)))
}

/// The length of these items, where a walk measures.
pub fn length_of<'i, I: IntoIterator<Item = Item<'i>>>(rules: Rules, items: impl FnOnce() -> I) -> u64 {
    measured(rules, |sink| items().into_iter().for_each(|item| sink(None, item)))
}

/// By how many bytes the text of a steer is longer than that of a prompt.
pub fn steer_is_longer() -> u64 {
    let length = |item: Item<'_>| render::len_of(|out| render::item(&item, out));
    length(Item::Steer { text: "".into() }) - length(Item::User { text: "".into() })
}
