//! Cuts of this store as steps. Facts: `docs/stores/claude-code.md`, "6. Fork" and "7. Undo".
//!
//! A fork is a new transcript of the lines that are kept. An undo cuts the transcript off where the client then finds
//! exactly the kept turns; where a branch was abandoned it would find that again, so the file is written anew.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::history::{self, Reading};
use super::layout;
use super::lines::What;
use super::records::Record;
use super::tree::{self, Owner, Tree};
use super::writer::{self, Live};
use crate::host::processes::Running;
use crate::session::{
    Changes, Content, DamageClass, ForkPlan, History, Lock, NewFiles, Part, Piece, Place, Plan,
    Postcondition, Refusal, Result, Session, Step, UndoPlan,
};
use crate::transcript::{self, Passes};

/// The beginning of a transcript that is a session of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix {
    pub bytes: u64,
    pub lines: u64,
}

/// Why a session cannot be left without turns.
pub(super) fn without_turns() -> Refusal {
    Refusal::CannotCut {
        what: "claude has no session without a prompt, so turn 0 cannot be undone".into(),
        hint: Some("start a new session instead; this one stays as it is".into()),
    }
}

/// For each number of turns, the beginning of the file in which the client would find exactly these turns, if there
/// is one.
pub(super) fn prefixes(tree: &Tree<'_>) -> Vec<Option<Prefix>> {
    let turns = tree.path.starts.len();
    // Behind the last line of the head and of each turn, and how many lines stand before that.
    let mut ends = vec![0; turns + 1];
    let mut spoilt = None;
    for (index, owner) in tree.owners.iter().enumerate() {
        match owner {
            Owner::Head => ends[0] = index + 1,
            Owner::Turn(turn) => ends[*turn as usize + 1] = index + 1,
            Owner::Abandoned(_) | Owner::Nobody => spoilt = spoilt.or(Some(index)),
        }
        if matches!(tree.lines[index].what, What::LastPrompt { explicit: true, .. }) {
            spoilt = spoilt.or(Some(index));
        }
    }
    let mut is_story = vec![false; tree.lines.len()];
    tree.path.story.iter().for_each(|index| is_story[*index] = true);
    // Up to each line: the last record that can end a conversation, and whether the last note of the client
    // leads to the conversation.
    let (mut last, mut leads) = (None, true);
    let mut seen = Vec::with_capacity(tree.lines.len());
    for (index, line) in tree.lines.iter().enumerate() {
        if tree.is_leaf(index) {
            last = Some(index);
        }
        if let What::LastPrompt { leaf, .. } = line.what {
            let place = leaf.and_then(|leaf| tree.place(leaf));
            leads = place.is_none_or(|place| is_story[place]);
        }
        seen.push((last, leads));
    }
    // Where the client moved the session to must not be lost with the end of its file.
    let moved = tree.lines.iter().rposition(|line| matches!(line.what, What::Relocated));
    let mut end = ends[0];
    let prefix = |turns: usize| {
        end = end.max(ends[turns]);
        let is_leaf = |at: &&usize| tree.is_leaf(**at);
        let wanted = tree.path.story[..tree.path.end(turns)].iter().rev().find(is_leaf).copied();
        let (last, leads) = *seen.get(end.checked_sub(1)?)?;
        let is_here = moved.is_none_or(|moved| moved < end);
        let sound = spoilt.is_none_or(|spoilt| spoilt >= end) && is_here && leads && last == wanted;
        let line = &tree.lines[end - 1];
        sound.then_some(Prefix { bytes: line.end, lines: line.line })
    };
    (0..=turns).map(prefix).collect()
}

/// For each line with how many turns of a path a session must have to keep it: 0 for what comes before the first one,
/// `None` for what no session with turns of that path keeps.
pub(super) fn kept_with(tree: &Tree<'_>, path: &tree::Path) -> Vec<Option<usize>> {
    let mut kept = vec![None; tree.lines.len()];
    let mut turns = 0;
    let mut owners = HashMap::from([(Owner::Head, 0)]);
    for (at, index) in path.story.iter().enumerate() {
        if path.starts.get(turns) == Some(&at) {
            turns += 1;
            owners.insert(tree.owners[*index], turns);
        }
        kept[*index] = Some(turns);
    }
    for (index, with) in &path.beside {
        kept[*index] = kept[*with];
    }
    // What the client still sends of what stands before a compaction may lie beside the story.
    for index in &path.story {
        let Some(node) = tree.node(*index).filter(|node| node.is_boundary) else { continue };
        for preserved in node.preserved.records.iter().filter_map(|key| tree.place(*key)) {
            kept[preserved] = kept[preserved].or(kept[*index]);
        }
    }
    for (index, line) in tree.lines.iter().enumerate() {
        // Records of sub-agents stand among the others in older versions; the client passes over them.
        let is_note = line.node().is_none_or(|node| node.sidechain && tree.place(node.key).is_none());
        if is_note && !matches!(line.what, What::LastPrompt { .. }) {
            kept[index] = owners.get(&tree.owners[index]).copied();
        }
    }
    kept
}

/// A session that is about to be cut, read again.
struct Cutting {
    transcript: history::Transcript,
    file: PathBuf,
    /// Whether the last record has no newline.
    unterminated: bool,
}

impl Cutting {
    /// # Errors
    /// [`Refusal::Changed`] if it is not what `history` was made from.
    fn read(session: &Session, history: &History) -> Result<Cutting> {
        let file = session.key.path.to_path_buf();
        let changed = || Refusal::Changed { what: file.display().to_string() };
        let read = history::read(&session.key.root, &file, false, &mut Passes::default())?;
        let (Some(transcript), view) = read else { return Err(changed()) };
        if history.files.first() != Some(&view) {
            return Err(changed());
        }
        let unterminated = history.damages.iter().any(|damage| damage.class == DamageClass::NoFinalNewline);
        Ok(Cutting { transcript, file, unterminated })
    }

    /// The kept lines as parts of a new transcript.
    fn parts(
        &self,
        tree: &Tree<'_>,
        path: &tree::Path,
        turns: usize,
        now: &Now<'_>,
        bridged: &Bridged,
    ) -> Vec<Part> {
        let Now { id, cwd, .. } = *now;
        let file: Arc<Path> = self.file.as_path().into();
        let kept_with = kept_with(tree, path);
        let is_kept = |index: &usize| {
            let goes_along = match tree.lines[*index].what {
                What::Worktree => id.is_none(),
                // Said anew, as the kept ones may name a project that it was in before.
                What::Relocated => false,
                _ => true,
            };
            let is_needed = kept_with[*index].is_some_and(|needed| needed <= turns);
            goes_along && is_needed && !bridged.gone.contains(index)
        };
        let kept: Vec<usize> = (0..tree.lines.len()).filter(is_kept).collect();
        let mut parts: Vec<Part> = Vec::new();
        let piece = |parts: &mut Vec<Part>, start: u64, end: u64| match parts.last_mut() {
            Some(Part::Piece(last)) if last.span.end == start => last.span.end = end,
            _ if start == end => {}
            _ => parts.push(Part::Piece(Piece { file: file.clone(), span: start..end })),
        };
        for index in &kept {
            let line = &tree.lines[*index];
            let mut edits: Vec<_> = [(&line.session_at, id), (&line.cwd_at, cwd)]
                .into_iter()
                .filter_map(|(at, new)| Some((at.clone()?, new?.as_bytes().to_vec())))
                .chain(bridged.parents.get(index).cloned())
                .collect();
            edits.sort_by_key(|(at, _)| at.start);
            let mut at = line.start;
            for (place, new) in edits {
                piece(&mut parts, at, line.start + u64::from(place.start));
                parts.push(Part::Bytes(new));
                at = line.start + u64::from(place.end);
            }
            piece(&mut parts, at, line.end);
        }
        let story = &path.story[..path.end(turns)];
        let end = story.iter().rev().find(|index| tree.is_leaf(**index));
        let last = kept.iter().rev().find(|index| tree.is_leaf(**index));
        // Without this note the client would go on from a record beside the conversation.
        let end = end.filter(|end| Some(*end) != last).map(|end| self.note(tree, *end, id));
        let mut notes = end.into_iter().chain(now.relocated()).flatten().peekable();
        if notes.peek().is_some() && self.unterminated && kept.last() == Some(&(tree.lines.len() - 1)) {
            parts.push(Part::Bytes(b"\n".to_vec()));
        }
        parts.extend(notes);
        parts
    }

    /// The client's note that the conversation ends at this record, whose uuid is copied from where it stands.
    fn note(&self, tree: &Tree<'_>, end: usize, id: Option<&str>) -> Vec<Part> {
        let line = &tree.lines[end];
        let Some(uuid_at) = line.uuid_at.clone() else { return Vec::new() };
        let file: Arc<Path> = self.file.as_path().into();
        let piece = |at: Range<u32>| {
            let span = line.start + u64::from(at.start)..line.start + u64::from(at.end);
            Part::Piece(Piece { file: file.clone(), span })
        };
        let mut parts = vec![Part::Bytes(br#"{"type":"last-prompt","leafUuid":""#.to_vec()), piece(uuid_at)];
        let session = match (id, line.session_at.clone()) {
            (Some(id), _) => Some(Part::Bytes(id.as_bytes().to_vec())),
            (None, at) => at.map(piece),
        };
        if let Some(session) = session {
            parts.extend([Part::Bytes(br#"","sessionId":""#.to_vec()), session]);
        }
        parts.push(Part::Bytes(b"\"}\n".to_vec()));
        parts
    }
}

/// What a transcript that is written anew says of its session.
#[derive(Default)]
struct Now<'a> {
    /// Its id, where it is another session.
    id: Option<&'a str>,
    /// Its project as it stands in a JSON string, where every record is to name another one.
    cwd: Option<&'a str>,
    /// The session and the project that it was moved to since it was begun.
    moved: Option<(&'a str, &'a Path)>,
}

impl Now<'_> {
    /// The client's note that the session was moved.
    fn relocated(&self) -> Option<Vec<Part>> {
        let (id, project) = self.moved?;
        let note = serde_json::json!({"type": "relocated", "sessionId": id, "relocatedCwd": project.to_string_lossy()});
        Some(vec![Part::Bytes(format!("{note}\n").into_bytes())])
    }
}

/// The project that a session is in, if it was begun in another one.
fn moved(session: &Session) -> Option<&Path> {
    let project = session.place.project()?;
    let begun = session.begun.cwd.as_ref().map(|cwd| Place::recorded(cwd))?;
    (begun.project() != Some(project)).then_some(project)
}

/// What a turn that is left out takes with it, and how what followed it is linked to what came before it.
#[derive(Default)]
struct Bridged {
    /// Its lines.
    gone: HashSet<usize>,
    /// For the lines that follow one of these: where the value of `parentUuid` stands, and the JSON that takes its place.
    parents: HashMap<usize, (Range<u32>, Vec<u8>)>,
}

impl Bridged {
    fn over(
        session: &Session,
        cutting: &Cutting,
        tree: &Tree<'_>,
        path: &tree::Path,
        turn: u32,
    ) -> Result<Bridged> {
        let changed = || Refusal::Changed { what: cutting.file.display().to_string() };
        let kept_with = kept_with(tree, path);
        let is_of_turn = |index: &usize| kept_with[*index] == Some(turn as usize + 1);
        let gone: HashSet<usize> = (0..tree.lines.len()).filter(is_of_turn).collect();
        let up = |index: usize| tree.node(index)?.parent.and_then(|parent| tree.place(parent));
        let line_of = |index: usize| -> Result<(u64, Vec<u8>)> {
            let line = &tree.lines[index];
            Ok((line.start, transcript::read_range(&session.key.root, &cutting.file, line.start..line.end)?))
        };
        let mut parents = HashMap::new();
        for index in
            (0..tree.lines.len()).filter(|index| kept_with[*index].is_some() && !gone.contains(index))
        {
            let Some(first) = up(index).filter(|parent| gone.contains(parent)) else { continue };
            let mut above = Some(first);
            for _ in 0..gone.len() {
                above = above.filter(|at| gone.contains(at)).map_or(above, up);
            }
            let parent = match above {
                None => b"null".to_vec(),
                Some(above) => {
                    let (_, bytes) = line_of(above)?;
                    let record = Record::parse(bytes.trim_ascii()).map_err(|_| changed())?;
                    record.uuid.ok_or_else(changed)?.get().as_bytes().to_vec()
                }
            };
            let (_, bytes) = line_of(index)?;
            let record = Record::parse(bytes.trim_ascii()).map_err(|_| changed())?;
            let old = record.parent_uuid.ok_or_else(changed)?.get();
            let at = (old.as_ptr() as usize).checked_sub(bytes.as_ptr() as usize).ok_or_else(changed)?;
            let place = |at: usize| u32::try_from(at).map_err(|_| changed());
            parents.insert(index, (place(at)?..place(at + old.len())?, parent));
        }
        Ok(Bridged { gone, parents })
    }
}

/// The new session that keeps the turns up to and including `n`; in `project` where one is given, else where the
/// source is.
pub(super) fn plan_fork(
    session: &Session,
    history: &History,
    n: u32,
    project: Option<&Path>,
) -> Result<ForkPlan> {
    let turn = history.turn(n)?;
    history.cut_before(n + 1)?;
    let last = n as usize + 1 == history.turns.len() && history.branch.is_none();
    if last
        && let Some(Live { busy, .. }) = writer::live(session, &Running::default())
        && (busy || turn.is_open())
    {
        return Err(Refusal::StillRunning { asked: n, last_finished: n.checked_sub(1) });
    }
    let cutting = Cutting::read(session, history)?;
    let reading = Reading::of(&cutting.transcript, &cutting.file, false);
    let path = match history.branch {
        None => reading.tree.path.clone(),
        Some(number) => {
            let branch = reading.tree.branches.get(number as usize);
            let branch =
                branch.ok_or_else(|| Refusal::Changed { what: cutting.file.display().to_string() })?;
            reading.tree.path_to(branch.leaf).0
        }
    };
    let id = uuid::Uuid::new_v4().to_string();
    let file = layout::transcript(session, project, &id);
    let cwd = project.map(layout::json_text);
    let moved = if project.is_none() { moved(session) } else { None };
    let moved = moved.map(|project| (id.as_str(), project));
    let now = Now { id: Some(&id), cwd: cwd.as_deref(), moved };
    let (turns, bridged) = match &history.left_out {
        None => (n + 1, Bridged::default()),
        // It is one of the turns of the path, which has its number.
        Some(left_out) => (n + 2, Bridged::over(session, &cutting, &reading.tree, &path, left_out.n)?),
    };
    let parts = cutting.parts(&reading.tree, &path, turns as usize, &now, &bridged);
    let files = vec![(file.clone(), Content::Parts(parts))];
    Ok(Plan {
        made: NewFiles::Beside { files, rows: None },
        entry: None,
        locks: Vec::new(),
        based_on: history.files.clone(),
        promise: Postcondition { session: file.clone(), id, transcript: file, turns: n + 1 },
    })
}

/// For each turn why it cannot be undone, besides its boundary.
pub(super) fn undo_refusals(history: &History) -> Result<Vec<Result<()>>> {
    history.readable()?;
    Ok(vec![Ok(()); history.turns.len()])
}

/// The session without turn `n` and everything after it.
pub(super) fn plan_undo(session: &Session, history: &History, n: u32) -> Result<UndoPlan> {
    history.undo_point(n)?;
    // The client keeps the conversation in memory: what it writes next would follow a record that is gone, and the
    // whole session would be lost to it.
    if let Some(Live { writer, .. }) = writer::live(session, &Running::default()) {
        return Err(Refusal::Locked { writer });
    }
    let cutting = Cutting::read(session, history)?;
    let reading = Reading::of(&cutting.transcript, &cutting.file, false);
    let tree = &reading.tree;
    let file = cutting.file.clone();
    let moved = moved(session);
    let now = Now { moved: moved.map(|project| (&*session.id, project)), ..Now::default() };
    let has_note = tree.lines.iter().any(|line| matches!(line.what, What::Relocated));
    let prefix = prefixes(tree).get(n as usize).copied().flatten();
    let step = match prefix.filter(|_| has_note || moved.is_none()) {
        Some(prefix) => Step::KeepPrefix { file: file.clone(), bytes: prefix.bytes },
        None => {
            let parts = cutting.parts(tree, &tree.path, n as usize, &now, &Bridged::default());
            Step::Overwrite { file: file.clone(), content: Content::Parts(parts) }
        }
    };
    Ok(Plan {
        made: Changes { steps: vec![step], rows: None },
        entry: None,
        locks: vec![Lock::Lease { file: file.clone() }],
        based_on: history.files.clone(),
        promise: Postcondition::of(session, file, n),
    })
}
