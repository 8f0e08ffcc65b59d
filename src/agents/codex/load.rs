//! The one pass over a thread's files, oldest first: turns, sizes, damage and cut points.

use super::layout::Rollout;
use super::lineage::{Lineage, Segment, first_record, lost};
use super::pass::{Basis, End, Part, Pass, TurnAt};
use super::records::Mode;
use crate::render;
use crate::session::{
    AgentKind, Confidence, CutAt, CutPoint, Damage, DamageClass, FileView, History, Kept, Refusal, Result,
    Session, State, Turn,
};
use crate::transcript::metrics::count_parse;
use crate::transcript::{self, Passes, StoreDir};

/// Reads a session's history.
///
/// # Errors
/// What prevents reading.
pub fn load(session: &Session, passes: &mut Passes) -> Result<History> {
    let root = &*session.key.root;
    let missing = || Refusal::NotFound { what: session.key.absolute().display().to_string() };
    let store = StoreDir::open(root)?.ok_or_else(missing)?;
    let current = session.files.first().and_then(|file| Rollout::named(file)).ok_or_else(missing)?;
    if store.stat(&current.file)?.is_none() {
        return Ok(History::without_turns(State::NoTranscript, Vec::new()));
    }
    let lineage = Lineage::of(&store, current)?;
    count_parse();
    let mut whole = Whole { thread: session.id.clone(), ..Whole::default() };
    if let Some(broken) = &lineage.broken {
        whole.damaged(vec![broken.clone()], Some(0));
    }
    if session.archived == Some(true) {
        whole.notes.push(
            "archived: `codex unarchive` comes before undo, whose refusal says what to do where that fails; fork \
             makes an ordinary thread"
                .into(),
        );
    }
    if let Some(kind) = lineage.segments.iter().find_map(|segment| segment.head.pointer()) {
        let mut files = Vec::new();
        for segment in lineage.segments.iter().rev() {
            let file = segment.rollout.file.to_path_buf();
            let (len, hash) = transcript::hash(store.path(), &file)?;
            files.push(FileView { file, len, hash });
        }
        return Ok(History::unsupported(kind.says(), files));
    }
    let mut files = Vec::new();
    for segment in &lineage.segments {
        files.push(whole.segment(&store, segment, passes)?);
    }
    files.reverse();
    let mode = lineage.segments.last().and_then(|last| last.head.meta.as_ref().ok()).map(|meta| meta.mode());
    if mode == Some(Mode::First) {
        whole.notes.push(
            "the first format of Codex (2025, before session_meta): no current Codex resumes it; fork writes today's \
             form, undo is refused"
                .into(),
        );
    }
    if let Some(Mode::Unknown(mode)) = mode {
        return Ok(History::unsupported(format!("the history mode {mode:?} of Codex"), files));
    }
    Ok(whole.finish(&lineage, files))
}

/// What the passes over the files so far have found.
#[derive(Default)]
struct Whole {
    /// Its id.
    thread: String,
    turns: Vec<TurnAt>,
    parts: Vec<Part>,
    damages: Vec<Damage>,
    /// Turns that end before the first damage.
    sound: Option<u32>,
    sound_end: Option<End>,
    notes: Vec<String>,
    model: Option<String>,
    name: Option<String>,
    last_ordinal: Option<u64>,
}

impl Whole {
    /// Reads one file, up to where the next one takes over.
    fn segment(&mut self, store: &StoreDir, segment: &Segment, passes: &mut Passes) -> Result<FileView> {
        let rollout = &segment.rollout;
        let path = store.path().join(&rollout.file);
        let gone = || Refusal::Changed { what: path.display().to_string() };
        let basis = Basis::of(segment, self.parts.len(), self.turns.len() as u32, self.last_ordinal);
        let start = || Pass::new(&rollout.file, basis);
        let pass = passes.scan(store, &rollout.file, basis, start, |pass, line| pass.line(&line))?;
        let (pass, scanned) = pass.ok_or_else(gone)?;
        scanned.count(AgentKind::Codex);
        let mut found = pass.finish();
        if let Err(what) = segment.head.meta
            && let Some(damage) = first_record(rollout, what)
        {
            // The pass calls it a bad line where it is no JSON at all; what is wrong is that it comes first.
            found.damages.retain(|other| other.line != 1);
            found.damages.insert(0, damage);
            found.sound = Some(0);
        }
        if let Ok(meta) = &segment.head.meta
            && meta.id != rollout.thread
        {
            let message = format!(
                "the file's name says thread {}, its first line {}; Codex does not resume such a thread",
                rollout.thread, meta.id
            );
            let (file, class) = (rollout.file.display().to_string(), DamageClass::FirstRecord);
            found.damages.insert(0, Damage { file, line: 1, byte: 0, class, message });
            found.sound = Some(0);
        }
        if let Some(base) = &segment.end
            && found.part.bytes != base.end_byte_offset
        {
            let name = rollout.file.display();
            let end = base.end_byte_offset;
            let what = if scanned.len < end {
                format!("{name} is shorter than the {end} bytes that a later rollout continues")
            } else {
                format!("byte {end} of {name}, where a later rollout continues, is not between two lines")
            };
            found.sound.get_or_insert(found.turns.len() as u32);
            found.damages.push(lost(rollout, &what));
        }
        let sound = found.sound.map(|turns| self.turns.len() as u32 + turns);
        if self.sound.is_none() && found.sound.is_some() {
            self.sound_end = found.sound_end.filter(|_| found.sound > Some(0));
        }
        self.damaged(found.damages, sound);
        self.turns.extend(found.turns);
        self.parts.push(found.part);
        self.notes.extend(found.notes);
        self.model = found.model.or(self.model.take());
        if let Some(given) = found.name.filter(|given| given.is_of(&self.thread)) {
            self.name = given.thread_name;
        }
        self.last_ordinal = found.last_ordinal;
        let file = rollout.file.to_path_buf();
        if transcript::is_packed(&file) {
            let (len, hash) = transcript::hash(store.path(), &file)?;
            return Ok(FileView { file, len, hash });
        }
        Ok(FileView { file, len: Some(scanned.len), hash: scanned.hash })
    }

    fn damaged(&mut self, damages: Vec<Damage>, sound: Option<u32>) {
        self.damages.extend(damages);
        self.sound = self.sound.or(sound);
    }

    fn finish(mut self, lineage: &Lineage, files: Vec<FileView>) -> History {
        let Some(last) = self.parts.last() else {
            return History { notes: self.notes, ..History::without_turns(State::NoTranscript, files) };
        };
        let state = match State::of(&self.damages) {
            State::Ok if self.turns.is_empty() => State::Empty,
            state => state,
        };
        // What is damaged comes before what is only torn: the first one is shown.
        self.damages.sort_by_key(|damage| damage.class.is_torn());
        let newest = self.parts.len() - 1;
        let head_bytes = self
            .turns
            .iter()
            .find(|turn| turn.part == newest)
            .map_or(last.bytes, |turn| turn.turn.span.start);
        let mut cuts: Vec<Result<CutPoint, Refusal>> = self
            .turns
            .iter()
            .map(|turn| {
                Ok(self.cut(lineage, turn.part, turn.turn.line - 1, turn.turn.span.start, turn.ordinal))
            })
            .collect();
        cuts.push(Ok(self.cut(lineage, newest, last.lines, last.bytes, last.next_ordinal)));
        let sound_turns = self.sound.unwrap_or(self.turns.len() as u32);
        if let (Some(end), Some(cut)) = (self.sound_end, cuts.get_mut(sound_turns as usize)) {
            *cut = Ok(self.cut(lineage, end.part, end.lines, end.bytes, end.ordinal));
        }
        let turns = self.turns.into_iter().map(|turn| sized(turn.turn)).collect();
        History {
            state,
            damages: self.damages,
            turns,
            sound_turns,
            cuts,
            notes: self.notes,
            files,
            head_bytes,
            model: self.model,
            name: self.name,
        }
    }

    /// The cut that keeps `lines` lines of part `part`, and every part before it.
    fn cut(&self, lineage: &Lineage, part: usize, lines: u64, bytes: u64, ordinal: Option<u64>) -> CutPoint {
        let kept = |part: &Part, lines: u64, bytes: u64| Kept {
            file: part.file.to_path_buf(),
            source: part.file.to_path_buf(),
            lines,
            bytes,
            rebuilt: false,
        };
        let mut all: Vec<Kept> =
            self.parts[..part].iter().map(|part| kept(part, part.lines, part.bytes)).collect();
        all.push(kept(&self.parts[part], lines, bytes));
        let rollout = &lineage.segments[part].rollout;
        let at = CutAt { file: rollout.file.to_path_buf(), id: rollout.id.clone(), byte: bytes, ordinal };
        CutPoint { confidence: Confidence::Exact, kept: all, at: Some(at) }
    }
}

/// The turn with the size of its heading added to that of its items.
fn sized(mut turn: Turn) -> Turn {
    turn.text_len += render::heading_len(&turn);
    turn
}
