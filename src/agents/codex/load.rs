//! The one pass over a thread's files, oldest first: turns, sizes, damage and cut points.

use std::path::PathBuf;

use super::layout::Rollout;
use super::lineage::{Lineage, Segment, lost};
use super::open_turn::End;
use super::pass::{Basis, Found, Part, Pass};
use super::records::Mode;
use crate::render;
use crate::session::{
    AgentKind, Confidence, CutAt, CutPoint, FileView, History, Kept, Refusal, Result, Session, State,
};
use crate::transcript::metrics::count_parse;
use crate::transcript::{self, Passes, StoreDir};

const ARCHIVED: &str = "archived: `codex unarchive` comes before undo, whose refusal says what to do where that fails; fork \
                        makes an ordinary thread";
const FIRST_FORMAT: &str = "the first format of Codex (2025, before session_meta): no current Codex resumes it; fork writes today's \
                            form, undo is refused";

/// Reads a session's history.
///
/// # Errors
/// What prevents reading.
pub fn load(session: &Session, passes: &mut Passes) -> Result<History> {
    let missing = || Refusal::NotFound { what: session.key.absolute().display().to_string() };
    let store = StoreDir::open(&session.key.root)?.ok_or_else(missing)?;
    let current = session.files.first().and_then(|file| Rollout::named(file)).ok_or_else(missing)?;
    if store.stat(&current.file)?.is_none() {
        return Ok(History::without_turns(State::NoTranscript, Vec::new()));
    }
    let lineage = Lineage::of(&store, current)?;
    count_parse();
    if let Some(pointer) = lineage.segments.iter().find_map(|segment| segment.head.pointer()) {
        let view = |segment: &Segment| hashed(&store, segment);
        let files = lineage.segments.iter().rev().map(view).collect::<Result<_>>()?;
        return Ok(History::unsupported(pointer.says(), files));
    }
    let mut whole = Found::default();
    if let Some(broken) = &lineage.broken {
        (whole.damages, whole.sound) = (vec![broken.clone()], Some(0));
    }
    if session.archived == Some(true) {
        whole.notes.push(ARCHIVED.into());
    }
    let mut files = Vec::new();
    for segment in &lineage.segments {
        let (found, file) = read(&whole, &store, segment, passes)?;
        whole.add(found, &session.id);
        files.insert(0, file);
    }
    match lineage.segments.last().and_then(|last| last.head.meta.as_ref().ok()).map(|meta| meta.mode()) {
        Some(Mode::First) => whole.notes.push(FIRST_FORMAT.into()),
        Some(Mode::Unknown(mode)) => {
            return Ok(History::unsupported(format!("the history mode {mode:?} of Codex"), files));
        }
        _ => {}
    }
    Ok(history(whole, &lineage, files))
}

/// The files that a session's history consists of, the current one first.
///
/// # Errors
/// What prevents reading the beginnings of files.
pub fn transcripts(session: &Session) -> Result<Vec<PathBuf>> {
    let current = session.files.first().and_then(|file| Rollout::named(file));
    let (Some(store), Some(current)) = (StoreDir::open(&session.key.root)?, current) else {
        return Ok(Vec::new());
    };
    if store.stat(&current.file)?.is_none() {
        return Ok(Vec::new());
    }
    let lineage = Lineage::of(&store, current)?;
    Ok(lineage.segments.iter().rev().map(|segment| segment.rollout.file.to_path_buf()).collect())
}

fn hashed(store: &StoreDir, segment: &Segment) -> Result<FileView> {
    let file = segment.rollout.file.to_path_buf();
    let (len, hash) = transcript::hash(store.path(), &file)?;
    Ok(FileView { file, len, hash })
}

/// Reads one file, up to where the next one takes over. `before`: what the files before it hold.
fn read(
    before: &Found,
    store: &StoreDir,
    segment: &Segment,
    passes: &mut Passes,
) -> Result<(Found, FileView)> {
    let rollout = &segment.rollout;
    let gone = || Refusal::Changed { what: store.path().join(&rollout.file).display().to_string() };
    let basis = Basis::of(segment, before);
    let start = || Pass::new(&rollout.file, basis);
    let pass = passes.scan(store, &rollout.file, basis, start, |pass, line| pass.line(&line))?;
    let (pass, scanned) = pass.ok_or_else(gone)?;
    scanned.count(AgentKind::Codex);
    let (mut found, part) = pass.finish();
    if let Some(damage) = segment.first_line_damage() {
        // The pass calls it a bad line where it is no JSON at all; what is wrong is that it comes first.
        found.damages.retain(|other| segment.head.meta.is_ok() || other.line != 1);
        found.damages.insert(0, damage);
        found.sound = Some(0);
    }
    if let Some(base) = segment.end.as_ref().filter(|base| part.bytes != base.end_byte_offset) {
        let (name, end) = (rollout.file.display(), base.end_byte_offset);
        let what = if scanned.len < end {
            format!("{name} is shorter than the {end} bytes that a later rollout continues")
        } else {
            format!("byte {end} of {name}, where a later rollout continues, is not between two lines")
        };
        found.sound.get_or_insert(found.turns.len() as u32);
        found.damages.push(lost(rollout, &what));
    }
    found.parts.push(part);
    let file = match rollout.compressed() {
        true => hashed(store, segment)?,
        false => FileView { file: rollout.file.to_path_buf(), len: Some(scanned.len), hash: scanned.hash },
    };
    Ok((found, file))
}

fn history(mut whole: Found, lineage: &Lineage, files: Vec<FileView>) -> History {
    let Some(last) = whole.parts.last() else {
        return History { notes: whole.notes, ..History::without_turns(State::NoTranscript, files) };
    };
    let state = match State::of(&whole.damages) {
        State::Ok if whole.turns.is_empty() => State::Empty,
        state => state,
    };
    // What is damaged comes before what is only torn: the first one is shown.
    whole.damages.sort_by_key(|damage| damage.class.is_torn());
    let part = whole.parts.len() - 1;
    let first = whole.turns.iter().find(|turn| turn.before.part == part);
    let head_bytes = first.map_or(last.bytes, |turn| turn.turn.span.start);
    let end = End { part, lines: last.lines, bytes: last.bytes, ordinal: last.next_ordinal };
    let mut ends: Vec<End> = whole.turns.iter().map(|turn| turn.before).chain([end]).collect();
    let sound_turns = whole.sound.unwrap_or(whole.turns.len() as u32);
    if let (Some(end), Some(before)) = (whole.sound_end, ends.get_mut(sound_turns as usize)) {
        *before = end;
    }
    let cuts = ends.into_iter().map(|end| Ok(cut(&whole.parts, lineage, end))).collect();
    let mut turns: Vec<_> = whole.turns.into_iter().map(|turn| turn.turn).collect();
    for turn in &mut turns {
        turn.text_len += render::heading_len(turn);
    }
    History {
        damages: whole.damages,
        turns,
        sound_turns,
        cuts,
        notes: whole.notes,
        head_bytes,
        model: whole.model,
        name: whole.name.and_then(|given| given.thread_name),
        ..History::without_turns(state, files)
    }
}

/// The cut that keeps everything before `end`.
fn cut(parts: &[Part], lineage: &Lineage, end: End) -> CutPoint {
    let kept = |part: &Part, lines: u64, bytes: u64| {
        let file = part.file.to_path_buf();
        Kept { source: file.clone(), file, lines, bytes, rebuilt: false }
    };
    let mut all: Vec<Kept> =
        parts[..end.part].iter().map(|part| kept(part, part.lines, part.bytes)).collect();
    all.push(kept(&parts[end.part], end.lines, end.bytes));
    let Rollout { file, id, .. } = &lineage.segments[end.part].rollout;
    let at = CutAt { file: file.to_path_buf(), id: id.clone(), byte: end.bytes, ordinal: end.ordinal };
    CutPoint { confidence: Confidence::Exact, kept: all, at: Some(at) }
}
