//! The records of a transcript as the tree that they are: which of them are the conversation, and what was left
//! beside it. Facts: `docs/stores/claude-code.md`, "3. Which records are the conversation" and "4. Turns".

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::sync::Arc;

use super::lines::{Line, Node, Preserved, What};
use super::records::{Key, KeyMap, Kind};

/// To whom a line belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// It comes before the first turn.
    Head,
    /// A turn of the conversation.
    Turn(u32),
    /// The turn of an abandoned branch that begins with this line.
    Abandoned(usize),
    /// Nobody: a record that was left behind, without a prompt of its own.
    Nobody,
}

/// What leads to a record: the lines of a conversation, from its first to this one, and its turns.
#[derive(Clone, Debug, Default)]
pub(super) struct Path {
    pub story: Vec<usize>,
    /// Places in `story` where turns begin.
    pub starts: Vec<usize>,
    /// What the client sends with it: [`Tree::beside`].
    pub beside: Vec<(usize, usize)>,
}

impl Path {
    /// Places in `story` behind which nothing belongs to the turns before `turns`.
    pub fn end(&self, turns: usize) -> usize {
        self.starts.get(turns).copied().unwrap_or(self.story.len())
    }
}

/// An abandoned branch.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    /// How many of the conversation's turns lead to it.
    pub shared: usize,
    /// The lines with which its own turns begin, in order.
    pub starts: Vec<usize>,
    pub leaf: usize,
}

/// A transcript's lines, with what belongs together.
pub(super) struct Tree<'t> {
    pub lines: &'t [Arc<Line>],
    at: KeyMap<usize>,
    /// Whether a line's record counts: it is one of this conversation, and the first with its key.
    counts: Vec<bool>,
    /// The line of each record's parent, where both count.
    parents: Vec<Option<usize>>,
    /// What each compaction goes on from.
    compacted: HashMap<usize, usize>,
    begins: Vec<bool>,
    pub path: Path,
    pub owners: Vec<Owner>,
    pub branches: Vec<Branch>,
    /// The record of the conversation whose parent is not in the file.
    pub dangling: Option<usize>,
}

impl<'t> Tree<'t> {
    /// `sidechain`: these are the lines of a sub-agent.
    pub fn of(lines: &'t [Arc<Line>], sidechain: bool) -> Tree<'t> {
        let mut at = KeyMap::with_capacity_and_hasher(lines.len(), BuildHasherDefault::default());
        let mut counts = vec![false; lines.len()];
        for (index, line) in lines.iter().enumerate() {
            // Of records that stand in the file twice the first counts; they are the same.
            if let Some(node) = line.node().filter(|node| node.sidechain == sidechain) {
                counts[index] = *at.entry(node.key).or_insert(index) == index;
            }
        }
        let parent = |(index, line): (usize, &Arc<Line>)| {
            let parent = line.node().filter(|_| counts[index])?.parent?;
            at.get(&parent).copied().filter(|parent| *parent != index)
        };
        let parents = lines.iter().enumerate().map(parent).collect();
        let mut tree = Tree {
            lines,
            at,
            counts,
            parents,
            compacted: HashMap::new(),
            begins: Vec::new(),
            path: Path::default(),
            owners: vec![Owner::Nobody; lines.len()],
            branches: Vec::new(),
            dangling: None,
        };
        for index in 0..lines.len() {
            if let Some(before) = tree.before_compaction(index) {
                tree.compacted.insert(index, before);
            }
        }
        tree.begins = tree.turn_starts();
        if let Some(leaf) = tree.leaf_within(lines.len()) {
            (tree.path, tree.dangling) = tree.path_to(leaf);
        }
        tree.own();
        tree
    }

    /// The record at a line, if it counts.
    pub fn node(&self, index: usize) -> Option<&'t Node> {
        self.lines[index].node().filter(|_| self.counts[index])
    }

    pub fn place(&self, key: Key) -> Option<usize> {
        self.at.get(&key).copied()
    }

    /// The line of the record that this one follows. A compaction follows what it stands for.
    fn up(&self, index: usize) -> Option<usize> {
        match self.node(index)?.parent {
            Some(_) => self.parents[index],
            None => self.compacted.get(&index).copied(),
        }
    }

    /// The end of the conversation that a compaction goes on from. What the boundary names is the end of what was
    /// summarized, or, where the summary stands for what came after, the end of what was not.
    fn before_compaction(&self, index: usize) -> Option<usize> {
        let node = self.node(index).filter(|node| node.is_boundary && node.parent.is_none())?;
        let named = self.place(node.logical?).filter(|named| *named != index)?;
        let follows = |end: &usize| *end < index && self.last_behind(named, *end..*end + 1).is_some();
        let end = match &node.preserved {
            Preserved { anchor: Some(anchor), .. } if *anchor == node.key => self.leaf_within(index),
            Preserved { tail, .. } => tail.and_then(|tail| self.place(tail)),
        };
        end.filter(follows).or(Some(named))
    }

    /// Whether a conversation can end here.
    pub fn is_leaf(&self, index: usize) -> bool {
        self.node(index).is_some_and(|node| node.kind != Kind::Link)
    }

    /// Where turns begin: with a prompt, and with a slash command that was expanded to a text for the model.
    fn turn_starts(&self) -> Vec<bool> {
        let mut expanded = HashSet::new();
        for index in 0..self.lines.len() {
            if self.node(index).is_some_and(|node| node.kind == Kind::User && node.meta) {
                let mut up = self.up(index);
                for _ in 0..self.lines.len() {
                    let between = |at| {
                        self.node(at).is_some_and(|node| matches!(node.kind, Kind::Attachment | Kind::Link))
                    };
                    match up {
                        Some(at) if between(at) => up = self.up(at),
                        _ => break,
                    }
                }
                expanded.extend(up);
            }
        }
        let begins = |index| {
            let node: Option<&Node> = self.node(index);
            node.is_some_and(|node| node.may_begin_turn && (!node.is_command || expanded.contains(&index)))
        };
        (0..self.lines.len()).map(begins).collect()
    }

    /// The record that the conversation ended with when the file had so many lines, by the client's own rule.
    fn leaf_within(&self, lines: usize) -> Option<usize> {
        let note = self.lines[..lines].iter().enumerate().rev().find_map(|(index, line)| match line.what {
            What::LastPrompt { leaf, explicit } => Some((index, leaf, explicit)),
            _ => None,
        });
        let last = |from| (from..lines).rev().find(|index| self.is_leaf(*index));
        let Some((index, leaf, explicit)) = note else { return last(0) };
        // Whatever was written behind an explicit note goes on from where it says.
        let from = if explicit { index } else { 0 };
        match leaf.map(|leaf| self.place(leaf)) {
            Some(Some(leaf)) => self.last_behind(leaf, from..lines).or(Some(leaf)),
            None if explicit => last(index),
            _ => last(0),
        }
    }

    /// The last of these lines with which a conversation through `through` can end.
    fn last_behind(&self, through: usize, lines: Range<usize>) -> Option<usize> {
        let mut known: HashMap<usize, bool> = HashMap::from([(through, true)]);
        lines.rev().filter(|index| self.is_leaf(*index)).find(|index| {
            let mut way = Vec::new();
            let mut at = Some(*index);
            let leads = loop {
                match at {
                    None => break false,
                    Some(here) => match known.get(&here) {
                        Some(leads) => break *leads,
                        None if way.len() > self.lines.len() => break false,
                        None => way.push(here),
                    },
                }
                at = at.and_then(|here| self.up(here));
            };
            known.extend(way.into_iter().map(|here| (here, leads)));
            leads
        })
    }

    /// The way to a record; and the record on it whose parent is missing, or is one that follows it.
    pub fn path_to(&self, leaf: usize) -> (Path, Option<usize>) {
        let mut story = Vec::new();
        let mut seen = vec![false; self.lines.len()];
        let mut at = Some(leaf);
        let mut dangling = None;
        while let Some(index) = at {
            if std::mem::replace(&mut seen[index], true) {
                dangling = story.pop();
                break;
            }
            story.push(index);
            at = self.up(index);
            if at.is_none() && self.node(index).is_some_and(|node| node.parent.is_some()) {
                dangling = Some(index);
            }
        }
        story.reverse();
        let starts = (0..story.len()).filter(|at| self.begins[story[*at]]).collect();
        let beside = self.beside(&story);
        (Path { story, starts, beside }, dangling)
    }

    /// The records beside these lines of a conversation that the client sends with them: other pieces of their replies,
    /// and what tools answered to those. Each with the line of the story that it belongs to.
    pub fn beside(&self, story: &[usize]) -> Vec<(usize, usize)> {
        // Of each line of the story itself, of others as they are found.
        let mut belongs: Vec<Option<usize>> = vec![None; self.lines.len()];
        let mut replies = KeyMap::default();
        for index in story {
            belongs[*index] = Some(*index);
            if let Some(reply) = self.node(*index).and_then(Node::reply_key) {
                replies.entry(reply).or_insert(*index);
            }
        }
        let mut beside = Vec::new();
        let mut add = |belongs: &mut Vec<Option<usize>>, index: usize, with: usize| {
            belongs[index] = Some(with);
            beside.push((index, with));
        };
        for index in 0..self.lines.len() {
            let reply = self.node(index).filter(|_| belongs[index].is_none()).and_then(Node::reply_key);
            if let Some(with) = reply.and_then(|reply| replies.get(&reply)) {
                add(&mut belongs, index, *with);
            }
        }
        for index in 0..self.lines.len() {
            if self.node(index).is_none_or(|node| !node.has_results) {
                continue;
            }
            let Some(call) = self.parents[index] else { continue };
            let of_call =
                belongs[call].filter(|_| self.node(call).is_some_and(|it| it.kind == Kind::Assistant));
            if let Some(with) = of_call.filter(|_| belongs[index].is_none()) {
                add(&mut belongs, index, with);
            }
        }
        beside
    }

    /// Says to whom every line belongs, and which branches were abandoned.
    fn own(&mut self) {
        let mut known: Vec<Option<Owner>> = vec![None; self.lines.len()];
        let mut turn = Owner::Head;
        let mut turns = 0;
        for index in &self.path.story {
            if self.begins[*index] {
                turn = Owner::Turn(turns);
                turns += 1;
            }
            known[*index] = Some(turn);
        }
        for (index, with) in &self.path.beside {
            known[*index] = known[*with];
        }
        let kept = known.clone();
        (0..self.lines.len())
            .filter(|index| self.node(*index).is_some())
            .for_each(|index| self.find_owner(index, &mut known));
        self.name_branches(&known, &kept);
        let mut last = Owner::Head;
        for (index, (known, kept)) in known.iter().zip(&kept).enumerate() {
            let owner = match (self.lines[index].node(), self.node(index)) {
                // What was said without a prompt of its own and was left behind is shown nowhere.
                (_, Some(node)) => match known {
                    Some(owner @ Owner::Abandoned(_)) => *owner,
                    _ if kept.is_none() && matches!(node.kind, Kind::User | Kind::Assistant) => Owner::Nobody,
                    _ if kept.is_none() => last,
                    owner => owner.unwrap_or(Owner::Nobody),
                },
                // It stands in the file twice.
                (Some(node), None) if self.at.contains_key(&node.key) => Owner::Nobody,
                // A sub-agent's record among the others, or the client's own note.
                _ => last,
            };
            if owner != Owner::Nobody {
                last = owner;
            }
            self.owners[index] = owner;
        }
        self.own_leads();
    }

    /// Whose a record is that is not part of the conversation: it belongs to the turn that it follows.
    fn find_owner(&self, index: usize, known: &mut [Option<Owner>]) {
        let mut way = Vec::new();
        let mut at = Some(index);
        let owner = loop {
            let Some(here) = at else { break Owner::Head };
            if let Some(owner) = known[here] {
                break owner;
            }
            way.push(here);
            if self.begins[here] {
                break Owner::Abandoned(here);
            }
            if way.len() > self.lines.len() {
                break Owner::Nobody;
            }
            at = self.up(here);
        };
        way.into_iter().for_each(|here| known[here] = Some(owner));
    }

    /// An abandoned branch ends with a turn that no other abandoned turn follows.
    fn name_branches(&mut self, owners: &[Option<Owner>], kept: &[Option<Owner>]) {
        let before = |start: usize| self.up(start).and_then(|up| owners[up]);
        let dead = (0..self.lines.len()).filter(|index| owners[*index] == Some(Owner::Abandoned(*index)));
        let dead: Vec<usize> = dead.filter(|index| kept[*index].is_none()).collect();
        let followed: HashSet<usize> = dead
            .iter()
            .filter_map(|start| match before(*start) {
                Some(Owner::Abandoned(earlier)) => Some(earlier),
                _ => None,
            })
            .collect();
        let mut leaves: HashMap<usize, usize> = HashMap::new();
        for (index, owner) in owners.iter().enumerate() {
            if let Some(Owner::Abandoned(start)) = owner
                && self.is_leaf(index)
            {
                leaves.insert(*start, index);
            }
        }
        let branch = |last: usize| {
            let mut starts = vec![last];
            let mut first = before(last);
            while let Some(Owner::Abandoned(earlier)) = first
                && starts.len() <= dead.len()
            {
                starts.push(earlier);
                first = before(earlier);
            }
            starts.reverse();
            let shared = match first {
                Some(Owner::Turn(turn)) => turn as usize + 1,
                _ => 0,
            };
            Branch { shared, starts, leaf: leaves.get(&last).copied().unwrap_or(last) }
        };
        self.branches =
            dead.iter().filter(|start| !followed.contains(start)).map(|start| branch(*start)).collect();
    }

    /// The lines directly before a prompt that belong to it.
    fn own_leads(&mut self) {
        for start in (0..self.lines.len()).filter(|index| self.begins[*index]) {
            let Some(prompt) = self.node(start).map(|node| node.key) else { continue };
            for before in (0..start).rev() {
                match self.lines[before].what {
                    What::Lead(None) => {}
                    What::Lead(Some(of)) if of == prompt => {}
                    _ => break,
                }
                self.owners[before] = self.owners[start];
            }
        }
    }
}
