//! The one pass over a session's files: its whole history as turns, and where it can be cut.
//!
//! A turn is the harness's notes directly before a prompt, the prompt, and everything up to the next turn.
//! Its number is the prompt's place in the whole history, the same before and after a prune.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::items;
use super::layout::Files;
use super::records::{Message, Role};
use super::scan::{self, Found, Messages};
use super::whole::{self, In, Said, Sidecars, Whole};
use crate::render;
use crate::session::{
    Confidence, CutPoint, Damage, DamageClass, FileHash, FileView, History, Kept, Piece, Refusal, Result,
    State, Turn, TurnDetail, TurnStatus, open_calls,
};
use crate::transcript::metrics::count_parse;
use crate::transcript::{self, Passes, StoreDir};

/// A session's files as read, with what was found in them.
pub(super) struct Loaded {
    pub history: History,
    /// `None` if the transcript is missing or empty.
    pub whole: Option<Whole>,
    /// The messages of each turn in the whole history.
    pub turns: Vec<Range<usize>>,
    pub live: Messages,
    /// The archive and the compaction sidecar, as far as they are there, with their records' number.
    pub sidecars: Vec<(FileView, u64)>,
}

/// What keeping the turns before some turn means for the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// The first bytes of the transcript; of archive and compaction what [`Loaded::beside`] says.
    Prefix { bytes: u64 },
    /// The transcript is written anew, of these pieces; archive and compaction go.
    Full { pieces: Vec<Piece> },
}

impl Loaded {
    pub fn read(root: &Path, files: &Files) -> Result<Loaded> {
        Loaded::read_again(root, files, &mut Passes::default())
    }

    /// Parses only what was appended since `passes`.
    pub fn read_again(root: &Path, files: &Files, passes: &mut Passes) -> Result<Loaded> {
        count_parse();
        let Some(store) = StoreDir::open(root)? else { return Ok(Loaded::without_transcript(files)) };
        let (live, live_view) = scan::messages(&store, passes, &files.messages, false)?;
        let (archive, archive_view) = scan::messages(&store, passes, &files.archive, true)?;
        let (compaction, compaction_view) = scan::compactions(&store, passes, &files.compaction)?;
        let views = vec![live_view, archive_view, compaction_view];
        let Some(messages) = live else { return Ok(Loaded::without_transcript(files)) };
        let mut damages = messages.damages.clone();
        let archived = archive.as_ref().map(|archive| archive.found.len() as u64);
        let recorded = compaction.as_ref().map(|(records, _)| records.len() as u64);
        let sidecars = views[1..].iter().cloned().zip([archived, recorded]);
        let sidecars = sidecars.filter_map(|(view, lines)| Some((view, lines?))).collect();
        let mut loaded = Loaded {
            history: History::without_turns(State::Ok, views),
            whole: None,
            turns: Vec::new(),
            sidecars,
            live: messages,
        };
        if loaded.live.found.is_empty() && loaded.live.damage().is_none() {
            damages.insert(0, no_record(&files.messages));
            loaded.history.state = State::Empty;
            loaded.history.cuts = vec![Err(Refusal::Damaged { damage: damages[0].clone() })];
            loaded.history.damages = damages;
            return Ok(loaded);
        }
        let (records, bad_records) = compaction.unzip();
        let text = |file, found: &Found| {
            let file = if file == In::Live { &files.messages } else { &files.archive };
            let line = transcript::read_range(root, file, found.start..found.line_end).ok()?;
            Some(Message::parse(line.trim_ascii()).ok()?.content().to_owned())
        };
        let pieced = whole::whole(&loaded.live, archive.as_ref(), records.as_deref(), &text);
        // Of a transcript that was never pruned the sidecars tell nothing that turns need.
        if pieced.digest.is_some() {
            damages.extend(archive.iter().flat_map(|archive| archive.damages.clone()));
            damages.extend(bad_records.unwrap_or_default());
        }
        if loaded.live.unterminated {
            loaded.history.notes.push("the last record has no newline yet; openmax adds it".into());
        }
        loaded.tell(files, pieced, damages);
        Ok(loaded)
    }

    fn without_transcript(files: &Files) -> Loaded {
        let missing = |file: &PathBuf| FileView { file: file.clone(), len: None, hash: FileHash::of(b"") };
        let mut history = History::without_turns(State::NoTranscript, vec![missing(&files.messages)]);
        history.cuts = vec![Err(Refusal::NoSuchTurn { asked: 0, turns: 0 })];
        Loaded { history, whole: None, turns: Vec::new(), live: Messages::default(), sidecars: Vec::new() }
    }

    /// Turns, cuts and state out of the whole history.
    fn tell(&mut self, files: &Files, mut whole: Whole, damages: Vec<Damage>) {
        let damage = damages.iter().find(|damage| !damage.class.is_torn()).cloned();
        let mut live_end = self.live.end();
        if let Some(damage) = &damage {
            // What can be told is what ends before the first damage; of a damaged archive nothing.
            let in_live = self.live.damage().is_some();
            live_end = if in_live { damage.byte.min(live_end) } else { 0 };
            let digest = whole.digest.and_then(|at| self.live.found.get(at));
            // What was pruned comes before the digest, and so before a damage behind that.
            let archive_counts = digest.is_some_and(|digest| digest.start < live_end)
                && damages.iter().all(|other| other.class.is_torn() || other.file == damage.file);
            let sound = |said: &Said| match said.file {
                In::Live => said.found.start < live_end,
                In::Archive => archive_counts,
            };
            let sound = whole.said.iter().take_while(|said| sound(said)).count();
            whole.said.truncate(sound);
            self.live.found.retain(|found| found.start < live_end);
        }
        self.turns = turns(&whole);
        let pieces = |range: &Range<usize>| pieces(whole.said[range.clone()].iter(), files);
        let turn = |(n, range): (usize, &Range<usize>)| {
            let lost = whole.absent.is_some() && range.start < whole.border && range.end >= whole.border;
            turn(n as u32, &whole.said[range.clone()], pieces(range), lost, files)
        };
        let history = &mut self.history;
        history.turns = self.turns.iter().enumerate().map(turn).collect();
        history.head_bytes = match self.turns.first() {
            Some(first) if whole.said[first.start].file == In::Live => whole.said[first.start].found.start,
            // The head is all that stands before what was pruned.
            Some(_) => whole.digest.and_then(|at| self.live.found.get(at)).map_or(0, |digest| digest.start),
            None => live_end,
        };
        history.sound_turns = history.turns.len() as u32;
        history.state = State::of(&damages);
        if damage.is_some() && history.turns.last().is_some_and(|last| last.status != TurnStatus::Complete) {
            history.sound_turns -= 1;
        }
        for turn in history.turns.iter().filter(|turn| turn.detail == Some(TurnDetail::OpenCalls)) {
            history.notes.push(open_calls(
                turn.n,
                "openmax goes on from there, and a strict endpoint answers 400 then: fork one turn earlier",
            ));
        }
        history.damages = damages;
        if let Some(why) = &whole.absent {
            history.notes.push(format!(
                "the turns that a prune moved out of the transcript are not shown, and the numbers do not count them: {why}"
            ));
        }
        self.whole = Some(whole);
        let beside = self.beside_kept(files);
        self.history.cuts = (0..=self.turns.len())
            .map(|n| Ok(self.cut_point(files, n, &self.keep(files, n)?, &beside)))
            .collect();
    }

    /// What keeps exactly the turns before `n`.
    ///
    /// # Errors
    /// [`Refusal::Lost`] where the messages before the cut are not all known.
    pub fn keep(&self, files: &Files, n: usize) -> Result<Keep> {
        let turns = self.turns.len() as u32;
        let no_turn = Refusal::NoSuchTurn { asked: n as u32, turns };
        let Some(whole) = self.whole.as_ref().filter(|_| n <= self.turns.len()) else { return Err(no_turn) };
        let end = self.message_before(n);
        Ok(match (whole.digest, whole.shortened) {
            (Some(digest), _) if end > whole.border => {
                Keep::Prefix { bytes: self.live_end(end - whole.border + digest + 1) }
            }
            // A transcript that ends at a prune's note would tell of what is not there.
            (None, shortened) if shortened.is_none_or(|note| end > note) => {
                Keep::Prefix { bytes: self.live_end(end) }
            }
            _ => Keep::Full { pieces: self.full(files, n)? },
        })
    }

    /// The pieces of the whole history before turn `n`.
    ///
    /// # Errors
    /// As [`Loaded::keep`].
    pub fn full(&self, files: &Files, n: usize) -> Result<Vec<Piece>> {
        let Some(whole) = &self.whole else { return Ok(Vec::new()) };
        if let Some(why) = whole.absent.clone() {
            return Err(Refusal::Lost { what: why, hint: None });
        }
        let kept = &whole.said[..self.message_before(n)];
        if let Some(cut) = kept.iter().find(|said| said.lost) {
            let id = cut.found.answers.as_deref().unwrap_or_default();
            return Err(Refusal::Lost {
                what: format!("the whole output of tool call {id:?}, which was cut"),
                hint: None,
            });
        }
        Ok(pieces(kept.iter().filter(|said| !said.note), files))
    }

    /// The pieces of the transcript before turn `n` but those of turn `left_out`; of one that was never pruned.
    pub fn without(&self, files: &Files, n: usize, left_out: usize) -> Option<Vec<Piece>> {
        let whole = self.whole.as_ref().filter(|_| !self.was_pruned())?;
        let gone = self.turns.get(left_out)?;
        let behind = whole.said.get(gone.end..self.message_before(n))?;
        Some(pieces(whole.said[..gone.start].iter().chain(behind), files))
    }

    /// Whether a prune dropped or shortened messages.
    pub fn was_pruned(&self) -> bool {
        self.whole.as_ref().is_some_and(|whole| whole.digest.is_some() || whole.shortened.is_some())
    }

    /// How many messages of the whole history come before turn `n`, without the notes of prunes.
    fn said_before(&self, n: usize) -> u64 {
        let whole = self.whole.as_ref().map_or(&[][..], |whole| &whole.said);
        let kept = whole.iter().take(self.message_before(n));
        kept.filter(|said| !said.note).count() as u64
    }

    /// What of the sidecars a session needs that keeps only a first part of the transcript: all of a file, or these
    /// pieces of it, of which there may be none.
    pub fn beside(&self, files: &Files) -> Vec<(&FileView, Option<Vec<Piece>>)> {
        let pieces = |view: &FileView, ranges: &[Range<u64>]| {
            let file: Arc<Path> = Arc::from(view.file.as_path());
            ranges.iter().map(|span| Piece { file: file.clone(), span: span.clone() }).collect()
        };
        let whole = self.whole.as_ref().map_or(&Sidecars::Whole, |whole| &whole.sidecars);
        let beside = self.sidecars.iter().map(|(view, _)| {
            let archive = view.file == files.archive;
            let kept = match whole {
                Sidecars::Whole => None,
                Sidecars::Archive => (!archive).then(Vec::new),
                Sidecars::Landed { archive: (ranges, _), .. } if archive => Some(pieces(view, ranges)),
                Sidecars::Landed { records, .. } => Some(pieces(view, records)),
            };
            (view, kept)
        });
        beside.collect()
    }

    /// Whether the transcript holds the note of a prune that only shortened outputs.
    pub fn shortened(&self) -> bool {
        self.whole.as_ref().is_some_and(|whole| whole.shortened.is_some())
    }

    /// Whether a prune cut an output in the transcript's first `bytes`.
    pub fn has_cut_output(&self, bytes: u64) -> bool {
        self.live.found.iter().any(|found| found.is_cut && found.start < bytes)
    }

    /// How many messages of the whole history come before turn `n`.
    pub fn message_before(&self, n: usize) -> usize {
        let all = self.whole.as_ref().map_or(0, |whole| whole.said.len());
        self.turns.get(n).map_or(all, |turn| turn.start)
    }

    /// How many messages the transcript has after a cut.
    pub fn messages_kept(&self, n: usize, keep: &Keep) -> u64 {
        let end = self.message_before(n) as u64;
        match (keep, &self.whole) {
            (Keep::Prefix { .. }, Some(Whole { digest: Some(digest), border, .. })) => {
                end - *border as u64 + *digest as u64 + 1
            }
            (Keep::Full { .. }, _) => self.said_before(n),
            _ => end,
        }
    }

    /// The lines of the transcript's first `bytes` that hold messages, where blank ones stand between them:
    /// a copy does not take these over. `None`: there are none.
    pub fn without_blanks(&self, files: &Files, bytes: u64) -> Option<Vec<Piece>> {
        let kept = self.live.found.iter().take_while(|found| found.start < bytes);
        let mut pieces: Vec<Piece> = Vec::new();
        let (mut expected, mut blanks) = (0, false);
        for found in kept {
            blanks |= found.start != expected || found.end != found.line_end;
            expected = found.end;
            pieces.push(Piece { file: files.live.clone(), span: found.start..found.line_end });
        }
        blanks.then_some(pieces)
    }

    /// Byte behind the first `messages` messages of the transcript.
    fn live_end(&self, messages: usize) -> u64 {
        match self.live.found.get(messages) {
            // Blank lines in front of the first message stay with it.
            Some(next) => next.start,
            None => self.live.end(),
        }
    }

    /// What stays of the sidecars where only live messages go.
    fn beside_kept(&self, files: &Files) -> Vec<Kept> {
        let kept =
            self.beside(files).into_iter().zip(&self.sidecars).filter_map(|((view, pieces), (_, all))| {
                let size =
                    |pieces: &Vec<Piece>| pieces.iter().map(|piece| piece.span.end - piece.span.start).sum();
                let lines = match self.whole.as_ref().map(|whole| &whole.sidecars) {
                    Some(Sidecars::Landed { archive: (_, lines), .. }) if view.file == files.archive => {
                        *lines
                    }
                    Some(Sidecars::Landed { records, .. }) => records.len() as u64,
                    _ => *all,
                };
                let (rebuilt, file) = (pieces.is_some(), view.file.clone());
                let bytes = pieces.as_ref().map_or(view.len.unwrap_or(0), size);
                (!rebuilt || bytes > 0).then(|| Kept { source: file.clone(), file, lines, bytes, rebuilt })
            });
        kept.collect()
    }

    fn cut_point(&self, files: &Files, n: usize, keep: &Keep, beside: &[Kept]) -> CutPoint {
        let mut kept = Vec::new();
        let mut source = &files.messages;
        let (lines, bytes) = match keep {
            Keep::Prefix { bytes } => {
                kept.extend_from_slice(beside);
                let next = self.live.found.partition_point(|found| found.start < *bytes);
                let next = self.live.found.get(next);
                let last = self.live.found.last().map_or(0, |last| last.line);
                (next.map_or(last, |next| next.line - 1), *bytes)
            }
            Keep::Full { pieces } => {
                if pieces.iter().any(|piece| piece.file == files.archived) {
                    source = &files.archive;
                }
                let bytes = pieces.iter().map(|piece| piece.span.end - piece.span.start).sum();
                (self.said_before(n), bytes)
            }
        };
        let rebuilt = matches!(keep, Keep::Full { .. });
        kept.push(Kept { file: files.messages.clone(), source: source.clone(), lines, bytes, rebuilt });
        CutPoint { confidence: Confidence::Exact, kept, at: None }
    }
}

fn no_record(file: &Path) -> Damage {
    Damage {
        file: file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        line: 1,
        byte: 0,
        class: DamageClass::NoRecord,
        message: "the file holds no complete record; openmax refuses it (older versions write over it)"
            .into(),
    }
}

/// Where turns begin and end.
fn turns(whole: &Whole) -> Vec<Range<usize>> {
    let said = &whole.said;
    // The note of a prune stands in a turn and is no part of what was said.
    let spoken: Vec<usize> = (0..said.len()).filter(|at| !said[*at].note).collect();
    let user = |nth: usize| spoken.get(nth).is_some_and(|at| said[*at].found.role == Role::User);
    let mut starts = Vec::new();
    let mut notes_from = None;
    for (nth, at) in spoken.iter().enumerate() {
        // The client puts a note before the next prompt, so whatever follows it is a user line, or nothing yet; or
        // the prompt is among what is missing.
        let missing = whole.absent.is_some() && at + 1 == whole.border;
        let ends = user(nth + 1) || nth + 1 == spoken.len() || missing;
        match user(nth) {
            true if said[*at].found.looks_like_note && ends => notes_from = notes_from.or(Some(*at)),
            true => {
                starts.push(notes_from.unwrap_or(*at));
                notes_from = None;
            }
            false => notes_from = None,
        }
    }
    let ends = starts.iter().skip(1).copied().chain([said.len()]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

/// The ranges of bytes of messages, neighbours joined.
fn pieces<'s>(said: impl Iterator<Item = &'s Said>, files: &Files) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for said in said {
        let file = match said.file {
            In::Live => &files.live,
            In::Archive => &files.archived,
        };
        let span = said.found.start..said.found.end;
        match pieces.last_mut() {
            Some(last) if last.file == *file && last.span.end == span.start => last.span.end = span.end,
            _ => pieces.push(Piece { file: file.clone(), span }),
        }
    }
    pieces
}

fn turn(n: u32, said: &[Said], pieces: Vec<Piece>, lost: bool, files: &Files) -> Turn {
    let leading = said.iter().take_while(|said| said.found.role == Role::User);
    let leading: Vec<(bool, bool)> =
        leading.map(|said| (said.found.looks_like_note, said.found.note.is_some())).collect();
    let prompt = items::prompt_of(&leading);
    let (status, detail) =
        if lost { (TurnStatus::Interrupted, Some(TurnDetail::Lost)) } else { outcome(said) };
    // The turns stand in the transcript; where some of their bytes are elsewhere, the pieces tell.
    let (span, pieces) = match pieces.as_slice() {
        [only] if only.file == files.live => (only.span.clone(), Vec::new()),
        _ => (0..0, pieces),
    };
    let body = |(at, said): (usize, &Said)| {
        if prompt == Some(at) { said.found.prompt_len } else { said.found.text_len }
    };
    let mut turn = Turn {
        n,
        prompt: prompt.and_then(|at| said[at].found.prompt.clone()),
        status,
        detail,
        started: None,
        ended: None,
        last: None,
        file: files.live.clone(),
        span,
        pieces,
        line: said.first().map_or(1, |said| said.found.line),
        group: n,
        // The client records neither with a message.
        model: None,
        tokens: None,
        text_len: said.iter().enumerate().map(body).sum(),
    };
    turn.text_len += render::heading_len(&turn);
    turn
}

/// How a turn ended, told from its last message.
fn outcome(said: &[Said]) -> (TurnStatus, Option<TurnDetail>) {
    let is_note = |said: &&Said| said.found.looks_like_note || said.found.role == Role::System;
    let Some(last) = said.iter().rev().find(|said| !is_note(said)).or(said.last()) else {
        return (TurnStatus::Complete, None);
    };
    match last.found.role {
        Role::User => (TurnStatus::Failed, Some(TurnDetail::NoReply)),
        Role::Tool if has_open_calls(said) => (TurnStatus::Interrupted, Some(TurnDetail::OpenCalls)),
        Role::Tool => (TurnStatus::Interrupted, Some(TurnDetail::EndedInTool)),
        Role::Assistant if !last.found.calls.is_empty() => {
            (TurnStatus::Interrupted, Some(TurnDetail::OpenCalls))
        }
        _ => (TurnStatus::Complete, None),
    }
}

fn has_open_calls(said: &[Said]) -> bool {
    let calls = said.iter().rposition(|said| !said.found.calls.is_empty());
    calls.is_some_and(|at| {
        let answered = |id: &str| said[at..].iter().any(|said| said.found.answers.as_deref() == Some(id));
        !said[at].found.calls.iter().all(|id| answered(id))
    })
}
