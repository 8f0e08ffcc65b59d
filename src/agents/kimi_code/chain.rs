//! The active chain: the records that, after all switches between branches and all undos, are the history.
//! Facts: `docs/stores/kimi-code.md`, "2. Records", "Active chain".

use std::ops::Range;
use std::sync::Arc;

use super::wire::{What, Wire};

/// The active chain of a wire, and its turns.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    /// Stretches of records, by their numbers from 0, rising.
    pub ranges: Vec<Range<usize>>,
    /// For each turn the numbers of its first record and of the message that it begins with.
    pub turns: Vec<(usize, usize)>,
}

impl Chain {
    pub fn of(wire: &Wire) -> Chain {
        let mut chain = Chain { ranges: active(wire), turns: Vec::new() };
        let hidden: Vec<usize> =
            wire.marks.iter().filter(|mark| is_hidden(wire, mark)).map(|(at, _)| *at).collect();
        for at in hidden {
            chain.remove(at..at + 1);
        }
        chain.undo(wire);
        chain.turns = begun(chain.marks(wire));
        chain
    }

    /// Its records that decide anything.
    pub fn marks<'w>(&self, wire: &'w Wire) -> impl Iterator<Item = &'w (usize, What)> {
        self.ranges.iter().flat_map(|range| marks_in(wire, range))
    }

    /// The stretches of records from number `from` up to `to`.
    pub fn between(&self, from: usize, to: usize) -> Vec<Range<usize>> {
        let part = |range: &Range<usize>| range.start.max(from)..range.end.min(to);
        self.ranges.iter().map(part).filter(|range| !range.is_empty()).collect()
    }

    /// The number behind its last record.
    pub fn end(&self) -> usize {
        self.ranges.last().map_or(0, |last| last.end)
    }

    /// The records of turn `n` that decide anything.
    pub fn marks_of<'w>(&self, wire: &'w Wire, n: usize) -> impl Iterator<Item = &'w (usize, What)> {
        let ranges = self.between(self.start_of(n), self.start_of(n + 1));
        ranges.into_iter().flat_map(|range| marks_in(wire, &range))
    }

    /// The message that turn `n` begins with: its id and its text.
    pub fn anchor_of<'w>(&self, wire: &'w Wire, n: usize) -> Option<(Option<&'w Arc<str>>, &'w Arc<str>)> {
        let (_, anchor) = self.turns.get(n)?;
        let mark = wire.marks.binary_search_by_key(anchor, |(at, _)| *at).ok()?;
        match &wire.marks.get(mark)?.1 {
            What::Anchor { id, prompt } => Some((id.as_ref(), prompt)),
            _ => None,
        }
    }

    /// The number of the first record of turn `n`; behind the last turn the number behind the last record.
    pub fn start_of(&self, n: usize) -> usize {
        self.turns.get(n).map_or(self.end(), |(start, _)| *start)
    }

    fn remove(&mut self, gone: Range<usize>) {
        let parts = self
            .ranges
            .iter()
            .flat_map(|range| [range.start..range.end.min(gone.start), range.start.max(gone.end)..range.end]);
        self.ranges = parts.filter(|range| !range.is_empty()).collect();
    }

    /// Takes out what undos of the old form removed: those without a branch of their own.
    fn undo(&mut self, wire: &Wire) {
        let undos: Vec<(usize, u64)> = self
            .marks(wire)
            .filter_map(|(at, what)| match what {
                What::Undo { count } => Some((*at, *count)),
                _ => None,
            })
            .collect();
        for (at, count) in undos {
            if let Some(from) = self.undone_from(wire, at, count) {
                self.remove(from..at + 1);
            }
        }
    }

    /// Where the last `count` turns before record `at` begin; `None` where the client does nothing: across a compaction,
    /// or of more turns than there are.
    fn undone_from(&self, wire: &Wire, at: usize, count: u64) -> Option<usize> {
        let before = || self.marks(wire).take_while(|(mark, _)| *mark < at);
        let floor = before().filter(|(_, what)| matches!(what, What::Compaction | What::Clear)).last();
        let floor = floor.map_or(0, |(mark, _)| *mark);
        let turns = begun(before());
        let behind = turns.iter().rev().take_while(|(_, anchor)| *anchor >= floor);
        behind.map(|(start, _)| *start).nth(usize::try_from(count).ok()?.checked_sub(1)?)
    }
}

/// Where the turns of these records begin, each with the message that it begins with. What was put in for a prompt
/// directly before it belongs to its turn; a message that stands there again with the same id is the same.
fn begun<'w>(marks: impl Iterator<Item = &'w (usize, What)>) -> Vec<(usize, usize)> {
    let mut turns = Vec::new();
    let mut last: Option<&Arc<str>> = None;
    let mut put_in: Option<(usize, &Arc<str>)> = None;
    for (at, what) in marks {
        match what {
            What::Injection { owner } => {
                put_in = put_in.filter(|(_, other)| *other == owner).or(Some((*at, owner)));
            }
            What::Anchor { id, .. } => {
                if id.is_none() || id.as_ref() != last {
                    let own = put_in.filter(|(_, owner)| id.as_ref() == Some(owner));
                    turns.push((own.map_or(*at, |(start, _)| start), *at));
                }
                (last, put_in) = (id.as_ref(), None);
            }
            What::Message | What::Compaction | What::Clear => put_in = None,
            _ => {}
        }
    }
    turns
}

/// Numbers of records, and what they decide, in a stretch.
fn marks_in<'w>(wire: &'w Wire, range: &Range<usize>) -> std::slice::Iter<'w, (usize, What)> {
    let place = |number: usize| wire.marks.partition_point(|(at, _)| *at < number);
    wire.marks[place(range.start)..place(range.end)].iter()
}

/// Records that only say that something was undone.
fn is_hidden(wire: &Wire, (at, what): &(usize, What)) -> bool {
    match what {
        What::Switched | What::Undone => true,
        What::Undo { .. } => wire.paired.contains(&(*at as u64 + 1)),
        _ => false,
    }
}

/// The stretches of the last branch and of those that it goes on from.
fn active(wire: &Wire) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut branch, mut upto) = (wire.branches.len() - 1, u64::MAX);
    while let Some(this) = wire.branches.get(branch) {
        let end = wire.branches.get(branch + 1).map_or(wire.places.len(), |next| next.from);
        ranges.push(this.from..end.min(usize::try_from(upto).unwrap_or(usize::MAX)));
        // A branch goes on from an earlier one.
        match this.base {
            Some((base, line)) => (branch, upto) = (base, line),
            None => break,
        }
    }
    ranges.reverse();
    ranges.retain(|range| range.start < range.end);
    ranges
}
