//! The one pass over a transcript, and what it says: turns, damage, cut points, abandoned branches.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::lines::{Line, Node, Reply, What};
use super::records::{Kind, Record, TRANSCRIPT, text};
use super::tree::{self, Owner, Tree};
use crate::render;
use crate::session::{
    AgentKind, Branch, Confidence, CutPoint, Damage, DamageClass, FileHash, FileView, History, Kept, Piece,
    Refusal, Result, State, Tokens, Turn, TurnDetail, TurnStatus, open_calls,
};
use crate::transcript::metrics::count_parse;
use crate::transcript::{self, Inspector, Passes, StoreDir, is_json};

/// A transcript as it was read.
#[derive(Clone)]
pub(super) struct Transcript {
    pub lines: Vec<Arc<Line>>,
    inspector: Inspector,
    name: Option<String>,
    model: Option<Arc<str>>,
    /// Whether anybody said anything.
    is_conversation: bool,
}

/// Reads a transcript; `None` of its lines if it is not there.
pub(super) fn read(
    root: &Path,
    file: &Path,
    sidechain: bool,
    passes: &mut Passes,
) -> Result<(Option<Transcript>, FileView)> {
    let missing = || FileView { file: file.to_owned(), len: None, hash: FileHash::of(b"") };
    let Some(store) = StoreDir::open(root)? else { return Ok((None, missing())) };
    count_parse();
    let start = || Transcript {
        lines: Vec::new(),
        inspector: Inspector::new(file.display().to_string(), TRANSCRIPT),
        name: None,
        model: None,
        is_conversation: false,
    };
    let each =
        |transcript: &mut Transcript, line: transcript::Line<'_>, parsed| transcript.add(&line, parsed);
    let map = |line: &transcript::Line<'_>| Parsed::of(line, sidechain);
    let Some((transcript, scanned)) = passes.scan_with(&store, file, sidechain, start, (map, each))? else {
        return Ok((None, missing()));
    };
    scanned.count(AgentKind::ClaudeCode);
    Ok((Some(transcript), FileView { file: file.to_owned(), len: Some(scanned.len), hash: scanned.hash }))
}

/// What a line says by itself.
enum Parsed {
    Record(Arc<Line>, Said),
    /// Why it is JSON but no record, if it is that.
    Not(Option<&'static str>),
}

/// What a record tells of its session.
struct Said {
    /// Somebody said something in it.
    is_conversation: bool,
    model: Option<Arc<str>>,
    /// The session's name now; none, if it has lost that.
    name: Option<Option<String>>,
}

impl Parsed {
    fn of(line: &transcript::Line<'_>, sidechain: bool) -> Parsed {
        let parsed = if line.nuls > 0 || line.too_long { Err(None) } else { Record::parse(line.bytes) };
        match parsed {
            Ok(record) => Parsed::Record(Arc::new(Line::of(line, &record)), Said::of(&record, sidechain)),
            Err(what) => Parsed::Not(what.filter(|_| is_json(line.bytes))),
        }
    }
}

impl Said {
    fn of(record: &Record<'_>, sidechain: bool) -> Said {
        let kind = record.kind();
        let is_conversation =
            matches!(kind, Kind::User | Kind::Assistant) && record.is_sidechain() == sidechain;
        let model = record.model().filter(|_| is_conversation && kind == Kind::Assistant);
        let name = text(record.custom_title).map(|name| Some(name.into_owned()).filter(|it| !it.is_empty()));
        Said { is_conversation, model: model.map(|model| Arc::from(&*model)), name }
    }
}

impl Transcript {
    fn add(&mut self, line: &transcript::Line<'_>, parsed: Parsed) {
        match parsed {
            Parsed::Record(mut record, said) => {
                self.inspector.record(line);
                self.learn(said);
                let own = Arc::make_mut(&mut record);
                own.share(self.model.as_ref());
                // Blank lines belong to what they follow, or to the first record.
                if self.lines.is_empty() {
                    own.begin_at(0);
                }
                self.lines.push(record);
            }
            Parsed::Not(_) if line.is_blank() && line.terminated => {
                if let Some(last) = self.lines.last_mut() {
                    Arc::make_mut(last).end = line.end;
                }
            }
            Parsed::Not(what) => self.inspector.no_record(line, what),
        }
    }

    fn learn(&mut self, said: Said) {
        self.is_conversation |= said.is_conversation;
        if said.model.is_some() && said.model != self.model {
            self.model = said.model;
        }
        if let Some(name) = said.name {
            self.name = name;
        }
    }
}

/// The history of a session in `file`.
pub(super) fn load(root: &Path, file: &Path, sidechain: bool, passes: &mut Passes) -> Result<History> {
    let (transcript, view) = read(root, file, sidechain, passes)?;
    let Some(transcript) = transcript else {
        let mut history = History::without_turns(State::NoTranscript, vec![view]);
        history.cuts = vec![Err(Refusal::NoSuchTurn { asked: 0, turns: 0 })];
        return Ok(history);
    };
    Ok(tell(&transcript, view, sidechain))
}

/// A transcript as a tree, with what is wrong with it.
pub(super) struct Reading<'t> {
    /// Of a transcript with a hole: of what stands before the hole, for what comes behind it leads nowhere.
    pub tree: Tree<'t>,
    damages: Vec<Damage>,
}

impl<'t> Reading<'t> {
    pub fn of(transcript: &'t Transcript, file: &Path, sidechain: bool) -> Reading<'t> {
        let mut damages = transcript.inspector.clone().finish();
        let mut tree = Tree::of(&transcript.lines, sidechain);
        if let Some(dangling) = tree.dangling {
            damages.push(missing_parent(file, &transcript.lines[dangling]));
            damages.sort_by_key(|damage| damage.byte);
            let first = damages.iter().find(|damage| !damage.class.is_torn()).map_or(0, |damage| damage.byte);
            let sound = transcript.lines.partition_point(|line| line.start < first);
            tree = Tree::of(&transcript.lines[..sound], sidechain);
            tree.dangling = Some(dangling);
        }
        Reading { tree, damages }
    }

    /// How many of these turns end before the first damage.
    fn sound_turns(&self, turns: &[Turn]) -> usize {
        let Some(damage) = self.damages.iter().find(|damage| !damage.class.is_torn()) else {
            return turns.len();
        };
        // What the client notes behind an answer is no part of the turn.
        let mut ends = vec![0; turns.len()];
        for (line, owner) in self.tree.lines.iter().zip(&self.tree.owners) {
            if let Owner::Turn(n) = owner
                && line.node().is_some()
            {
                ends[*n as usize] = line.end;
            }
        }
        let sound = ends.iter().take_while(|end| **end <= damage.byte).count();
        // Where nothing of the conversation comes behind the damage, it may have been part of the last turn.
        let goes_on =
            self.tree.path.story.last().is_some_and(|last| self.tree.lines[*last].start > damage.byte);
        match goes_on || self.last_has_ended(turns) {
            true => sound,
            false => sound.min(turns.len().saturating_sub(1)),
        }
    }

    /// Whether the client noted that the last turn had ended where it does.
    fn last_has_ended(&self, turns: &[Turn]) -> bool {
        let lines = self.tree.lines;
        let Some(end) = self.tree.path.story.last().copied() else { return false };
        let Some(node) = self.tree.node(end).filter(|_| turns.last().is_some_and(|turn| !turn.is_open()))
        else {
            return false;
        };
        let is_note =
            |line: &Arc<Line>| matches!(line.what, What::LastPrompt { leaf, .. } if leaf == Some(node.key));
        node.ends_turn || lines[end..].iter().any(is_note)
    }
}

/// Turns, cuts and state out of a transcript.
fn tell(transcript: &Transcript, view: FileView, sidechain: bool) -> History {
    let reading = Reading::of(transcript, &view.file, sidechain);
    let (tree, damages) = (&reading.tree, &reading.damages);
    let file: Arc<Path> = view.file.as_path().into();
    let state = match transcript.is_conversation {
        false if State::of(damages) != State::Damaged => State::Empty,
        _ => State::of(damages),
    };
    let mut history = History::without_turns(state, vec![view]);
    history.turns = turns(tree, &file, sidechain);
    history.sound_turns = reading.sound_turns(&history.turns) as u32;
    history.head_bytes = head_bytes(tree);
    history.model = transcript.model.as_deref().map(str::to_owned);
    history.name = transcript.name.clone();
    history.notes = notes(&history, tree);
    history.cuts = cuts(tree, &file, &history.turns);
    let branches = tree.branches.iter();
    history.branches = branches.map(|branch| self::branch(tree, branch, &file, sidechain)).collect();
    history.damages = reading.damages;
    history
}

fn missing_parent(file: &Path, line: &Line) -> Damage {
    Damage {
        file: file.display().to_string(),
        line: line.line,
        byte: line.start,
        class: DamageClass::DanglingParent,
        message: "the record that this one follows is not in the file; claude goes on without all that came \
                  before, in silence"
            .into(),
    }
}

fn head_bytes(tree: &Tree<'_>) -> u64 {
    let first = tree.owners.iter().position(|owner| *owner != Owner::Head);
    match first.map(|index| &tree.lines[index]) {
        Some(line) => line.start,
        None => tree.lines.last().map_or(0, |last| last.end),
    }
}

fn notes(history: &History, tree: &Tree<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if !tree.branches.is_empty() {
        let count = tree.branches.len();
        let branches = if count == 1 { "branch is".to_owned() } else { format!("{count} branches are") };
        notes.push(format!("the session was rewound; the abandoned {branches} under abandoned/"));
    }
    for turn in history.turns.iter().filter(|turn| turn.detail == Some(TurnDetail::OpenCalls)) {
        notes.push(open_calls(turn.n, "claude goes on from there and says so to the model"));
    }
    notes
}

/// The lines of each owner, as ranges: neighbours have the same one, as a rule.
fn runs(tree: &Tree<'_>) -> HashMap<Owner, Vec<Range<usize>>> {
    let mut runs: HashMap<Owner, Vec<Range<usize>>> = HashMap::new();
    let mut start = 0;
    for run in tree.owners.chunk_by(|one, other| one == other) {
        runs.entry(run[0]).or_default().push(start..start + run.len());
        start += run.len();
    }
    runs
}

/// The ranges of bytes of these lines; neighbours joined.
fn spans(tree: &Tree<'_>, runs: &[Range<usize>]) -> Vec<Range<u64>> {
    let mut spans: Vec<Range<u64>> = Vec::new();
    for line in runs.iter().flat_map(|run| &tree.lines[run.clone()]) {
        match spans.last_mut() {
            Some(last) if last.end == line.start => last.end = line.end,
            _ => spans.push(line.start..line.end),
        }
    }
    spans
}

fn turns(tree: &Tree<'_>, file: &Arc<Path>, sidechain: bool) -> Vec<Turn> {
    let owners = (0..tree.path.starts.len()).map(|n| Owner::Turn(n as u32));
    let starts = tree.path.starts.iter().map(|at| tree.path.story[*at]);
    all_turns(tree, owners.zip(starts).collect(), 0, file, sidechain)
}

/// The turns with these owners and first records, numbered from `first`.
fn all_turns(
    tree: &Tree<'_>,
    wanted: Vec<(Owner, usize)>,
    first: u32,
    file: &Arc<Path>,
    sidechain: bool,
) -> Vec<Turn> {
    let runs = runs(tree);
    let turn = |(at, (owner, start)): (usize, (Owner, usize))| {
        let own = runs.get(&owner).map(Vec::as_slice).unwrap_or_default();
        turn(tree, first + at as u32, start, own, file, sidechain)
    };
    wanted.into_iter().enumerate().map(turn).collect()
}

fn turn(
    tree: &Tree<'_>,
    n: u32,
    start: usize,
    own: &[Range<usize>],
    file: &Arc<Path>,
    sidechain: bool,
) -> Turn {
    let own_lines = || own.iter().cloned().flatten().map(|index| (index, &tree.lines[index]));
    let nodes = own_lines().filter_map(|(index, line)| Some((index, line.node()?)));
    let shown: Vec<(usize, &Node)> = nodes.filter(|(_, node)| node.sidechain == sidechain).collect();
    let size = |(index, node): &(usize, &Node)| if *index == start { node.prompt_len } else { node.text_len };
    let (status, detail) = outcome(shown.iter().map(|(_, node)| *node));
    let (span, pieces) = match &*spans(tree, own) {
        [only] => (only.clone(), Vec::new()),
        several => {
            let piece = |span: &Range<u64>| Piece { file: file.clone(), span: span.clone() };
            (0..0, several.iter().map(piece).collect())
        }
    };
    let model = shown.iter().rev().find_map(|(_, node)| node.reply.as_ref()?.model.clone());
    let tokens = tokens(shown.iter().map(|(_, node)| *node));
    let last = own_lines().filter_map(|(_, line)| line.time).max();
    let first = tree.lines[start].node();
    let mut turn = Turn {
        n,
        prompt: first.and_then(|node| node.prompt.as_deref().map(str::to_owned)),
        status,
        detail,
        started: tree.lines[start].time,
        ended: last.filter(|_| status == TurnStatus::Complete),
        last,
        file: file.clone(),
        span,
        pieces,
        line: own_lines().next().map_or(1, |(_, line)| line.line),
        group: n,
        model,
        tokens,
        text_len: shown.iter().map(size).sum(),
    };
    turn.text_len += render::heading_len(&turn);
    turn
}

/// What the replies among these records took. Each piece of a reply repeats what the reply took so far, so of each its
/// last piece counts.
fn tokens<'n>(nodes: impl DoubleEndedIterator<Item = &'n Node>) -> Option<Box<Tokens>> {
    let (mut sum, mut counted) = (None, HashSet::new());
    for node in nodes.rev() {
        if let Some(Reply { key, tokens: Some(tokens), .. }) = node.reply.as_deref()
            && key.is_none_or(|key| counted.insert(key))
        {
            tokens.add_to(&mut sum);
        }
    }
    sum
}

/// How a turn ended, told from its records.
fn outcome<'n>(nodes: impl Iterator<Item = &'n Node>) -> (TurnStatus, Option<TurnDetail>) {
    let (mut answered, mut interrupted) = (false, false);
    let mut last: Option<&Node> = None;
    for node in nodes {
        interrupted |= node.is_interrupt;
        answered |= node.kind == Kind::Assistant;
        if matches!(node.kind, Kind::User | Kind::Assistant) && !node.meta {
            last = Some(node);
        }
    }
    match last {
        _ if interrupted => (TurnStatus::Interrupted, None),
        _ if !answered => (TurnStatus::Interrupted, Some(TurnDetail::Open)),
        Some(last) if last.has_calls => (TurnStatus::Interrupted, Some(TurnDetail::OpenCalls)),
        Some(last) if last.has_results => (TurnStatus::Interrupted, Some(TurnDetail::EndedInTool)),
        _ => (TurnStatus::Complete, None),
    }
}

fn branch(tree: &Tree<'_>, branch: &tree::Branch, file: &Arc<Path>, sidechain: bool) -> Branch {
    let wanted = branch.starts.iter().map(|start| (Owner::Abandoned(*start), *start)).collect();
    Branch {
        shared: branch.shared as u32,
        turns: all_turns(tree, wanted, branch.shared as u32, file, sidechain),
    }
}

/// How to keep the turns before each turn: the file's beginning where the client then finds exactly these, else a
/// file that is put together from their lines.
fn cuts(tree: &Tree<'_>, file: &Arc<Path>, turns: &[Turn]) -> Vec<Result<CutPoint>> {
    let prefixes = super::cuts::prefixes(tree);
    // Lines and bytes that each turn adds to a file that is put together.
    let mut added = vec![(0, 0); turns.len() + 1];
    for (line, needed) in tree.lines.iter().zip(super::cuts::kept_with(tree, &tree.path)) {
        if let Some(needed) = needed {
            added[needed].0 += 1;
            added[needed].1 += line.end - line.start;
        }
    }
    let (mut lines, mut bytes) = (0, 0);
    let cut = |n: usize| {
        lines += added[n].0;
        bytes += added[n].1;
        if n == 0 {
            return Err(super::cuts::without_turns());
        }
        let prefix = prefixes[n];
        let kept = Kept {
            file: file.to_path_buf(),
            source: file.to_path_buf(),
            lines: prefix.map_or(lines, |prefix| prefix.lines),
            bytes: prefix.map_or(bytes, |prefix| prefix.bytes),
            rebuilt: prefix.is_none(),
        };
        Ok(CutPoint { confidence: Confidence::Exact, kept: vec![kept], at: None })
    };
    (0..=turns.len()).map(cut).collect()
}
