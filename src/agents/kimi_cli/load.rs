//! The one pass over a session's files: turns, offsets, rendered sizes, damage, cut points.
//!
//! wire.jsonl tells the turns, the context files tell where they can be cut. A session whose wire has no
//! turns (the old flat form, or a lost wire) is numbered by its live context file.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::align::from_context::{ContextTurn, align_without_wire};
use super::align::{Alignment, align};
use super::parse::{self, Message, Wire};
use super::records::{ContextFile, ContextLine, ContextRecord, WireEvent, WireLine, call_key};
use super::turns::{Walk, Walker};
use super::{items, layout};
use crate::render::{self, Length};
use crate::session::{
    AgentKind, CutPoint, Damage, FileHash, FileView, History, Kept, Refusal, Result, Session, State, Tokens,
    Turn, TurnDetail, TurnStatus, open_calls,
};
use crate::transcript::metrics::count_parse;
use crate::transcript::{EntryKind, Inspector, Line, Passes, Scanned, StoreDir};

/// Reads a session.
pub(super) fn load(session: &Session, passes: &mut Passes) -> Result<History> {
    let gone = |what: &Path| Refusal::NotFound { what: what.display().to_string() };
    let root = &session.key.root;
    let store = StoreDir::open(root)?.ok_or_else(|| gone(root))?;
    count_parse();
    let own = store.stat(&session.key.path)?.ok_or_else(|| gone(&session.key.path))?;
    let files = if own.kind == EntryKind::File {
        Files {
            base: session.key.path.parent().unwrap_or(Path::new("")),
            wire: None,
            contexts: vec![name(&session.key.path)],
        }
    } else {
        let dir = store.dir(&session.key.path)?.ok_or_else(|| gone(&session.key.path))?;
        let mut names: Vec<_> = dir
            .entries()?
            .into_iter()
            .filter_map(|entry| Some((layout::order(entry.name.to_str()?)?, entry.name.into_string().ok()?)))
            .collect();
        names.sort();
        let mut contexts: Vec<String> = names.into_iter().map(|(_, name)| name).collect();
        let wire = contexts.first().is_some_and(|name| name == layout::WIRE).then(|| contexts.remove(0));
        Files { base: &session.key.path, wire, contexts }
    };
    Reading::of(&store, &files, passes)?.history(&files)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The history's files, by name in `base`.
struct Files<'a> {
    /// Relative to the store's root.
    base: &'a Path,
    wire: Option<String>,
    /// In the order of the epochs; the live one, if it is there, last.
    contexts: Vec<String>,
}

/// What was read of a session.
#[derive(Default)]
struct Reading {
    wire: WireReading,
    contexts: Vec<ContextFile>,
    /// Of the live context, where the wire has no turns.
    runs: RunSizes,
    damages: Vec<Damage>,
    views: Vec<FileView>,
    /// Turns with tool calls without results.
    unanswered: Vec<u32>,
    unsupported: Option<String>,
}

/// What a pass over the wire finds besides the walk.
#[derive(Default)]
struct WireReading {
    walk: Walk,
    /// For each turn, what is not in the walk.
    turns: Vec<TurnText>,
    before_damage: Option<BeforeDamage>,
}

/// How far the last turn had come at the first damaged line.
#[derive(Clone, Copy)]
struct BeforeDamage {
    /// Of that line.
    byte: u64,
    turn: usize,
    /// Size of its items, bytes.
    items: u64,
}

#[derive(Clone, Default)]
struct TurnText {
    prompt: String,
    items: Length,
    tokens: Option<Box<Tokens>>,
}

/// Rendered sizes and prompts by line index of a context file.
#[derive(Clone, Default)]
struct RunSizes {
    lines: Vec<u64>,
    prompts: HashMap<usize, String>,
}

impl Reading {
    fn of(store: &StoreDir, files: &Files<'_>, passes: &mut Passes) -> Result<Reading> {
        let mut reading = Reading::default();
        let mut wire_damages = Vec::new();
        if let Some(wire) = &files.wire {
            let file = files.base.join(wire);
            let pass = passes.scan(store, &file, (), || WirePass::new(wire), WirePass::line)?;
            let (mut pass, scanned) = pass.ok_or_else(|| gone(store, &file))?;
            pass.calls_end(pass.walker.begun());
            scanned.count(AgentKind::KimiCli);
            reading.views.push(view(file, &scanned));
            reading.unsupported = pass.unsupported;
            let before_damage = pass.before_damage;
            reading.unanswered = pass.unanswered;
            reading.wire = WireReading { walk: pass.walker.finish(), turns: pass.turns, before_damage };
            wire_damages = pass.inspector.finish();
        }
        let without_turns = reading.wire.walk.turns.is_empty();
        for context in &files.contexts {
            let file = files.base.join(context);
            let with_runs = without_turns && files.contexts.last() == Some(context);
            let start = || ContextPass::new(context, with_runs);
            let pass = passes.scan(store, &file, with_runs, start, ContextPass::line)?;
            let (pass, scanned) = pass.ok_or_else(|| gone(store, &file))?;
            scanned.count(AgentKind::KimiCli);
            reading.views.push(view(file, &scanned));
            reading.damages.extend(pass.inspector.finish());
            reading.contexts.push(ContextFile { name: context.clone(), lines: pass.lines });
            reading.runs = pass.runs.unwrap_or_default();
        }
        // That the live context is not there is a fact that a cut must find unchanged.
        let live = files.base.join(layout::CONTEXT);
        if files.wire.is_some() && !files.contexts.iter().any(|name| name == layout::CONTEXT) {
            reading.views.push(FileView { file: live, len: None, hash: FileHash::of(b"") });
        }
        reading.damages.extend(wire_damages);
        Ok(reading)
    }

    fn history(self, files: &Files<'_>) -> Result<History> {
        let Reading { wire, contexts, runs, damages, views, unanswered, unsupported } = self;
        let place = |name: &Path| files.base.join(name);
        let by_wire = !wire.walk.turns.is_empty();
        let (turns, alignment) = if by_wire {
            let alignment = align(&wire.walk, &contexts);
            let file: Arc<Path> = place(Path::new(layout::WIRE)).into();
            let mut turns = turns_of_wire(&wire, &file);
            end_before_damage(&mut turns, &wire);
            (turns, alignment)
        } else {
            let (found, alignment) = align_without_wire(&wire.walk, &contexts);
            let turns = match contexts.last() {
                Some(live) => turns_of_context(&found, live, &runs, &place(Path::new(&live.name)).into()),
                None => Vec::new(),
            };
            (turns, alignment)
        };
        let main_end = match (by_wire, contexts.last()) {
            (false, Some(live)) if files.wire.is_none() => end_of(live),
            _ => wire.walk.end,
        };
        let head_bytes = turns.first().map_or(main_end, |turn| turn.span.start);
        let Alignment { cuts, mut notes, .. } = alignment;
        let cuts = cuts.into_iter().enumerate().map(|(n, cut)| match cut {
            Ok(CutPoint { confidence, kept, at }) => {
                let at_root =
                    |kept: Kept| Kept { file: place(&kept.file), source: place(&kept.source), ..kept };
                Ok(CutPoint { confidence, kept: kept.into_iter().map(at_root).collect(), at })
            }
            Err(refused) => Err(refused.refusal(n)),
        });
        let cuts: Vec<_> = cuts.collect();
        let does = "kimi-cli sends what its context holds of it";
        notes.extend(unanswered.into_iter().map(|turn| open_calls(turn, does)));
        let is_there = files.wire.is_some() || !files.contexts.is_empty();
        let state = match State::of(&damages) {
            _ if unsupported.is_some() => State::Unsupported,
            State::Ok if !is_there => State::NoTranscript,
            State::Ok if turns.is_empty() => State::Empty,
            state => state,
        };
        notes.splice(0..0, unsupported);
        let sound_turns = sound_turns(&turns, &cuts, &damages, files);
        let mut views = views;
        if !by_wire && !turns.is_empty() {
            // The live context holds the turns: it is the main transcript, and comes first.
            let live = views.iter().position(|view| turns.iter().any(|turn| *turn.file == *view.file));
            views.rotate_left(live.unwrap_or(0));
        }
        let empty = History::without_turns(state, views);
        Ok(History { damages, turns, sound_turns, cuts, notes, head_bytes, ..empty })
    }
}

/// A file that was listed a moment ago is not there.
fn gone(store: &StoreDir, file: &Path) -> Refusal {
    Refusal::Changed { what: store.path().join(file).display().to_string() }
}

fn view(file: PathBuf, scanned: &Scanned) -> FileView {
    FileView { file, len: Some(scanned.len), hash: scanned.hash }
}

fn end_of(file: &ContextFile) -> u64 {
    file.lines.last().map_or(0, |line| line.end)
}

/// The pass over wire.jsonl.
#[derive(Clone)]
struct WirePass {
    walker: Walker,
    inspector: Inspector,
    turns: Vec<TurnText>,
    before_damage: Option<BeforeDamage>,
    /// Tool calls of the running turn without a result.
    open_calls: HashSet<u128>,
    /// Turns that ended so.
    unanswered: Vec<u32>,
    unsupported: Option<String>,
}

impl WirePass {
    fn new(file: &str) -> WirePass {
        WirePass {
            walker: Walker::new(),
            inspector: Inspector::new(file, parse::WIRE),
            turns: Vec::new(),
            before_damage: None,
            open_calls: HashSet::new(),
            unanswered: Vec::new(),
            unsupported: None,
        }
    }

    fn line(&mut self, line: Line<'_>) {
        let mut buffer = String::new();
        let turns = self.walker.begun();
        let (time, event) = match parse::wire_line(&line, &mut buffer) {
            Ok(wire) => {
                self.inspector.record(&line);
                (self.record(&wire, line.bytes), wire.event())
            }
            Err(bad) => {
                self.inspector.no_record(&line, bad.what());
                if !line.terminated {
                    return;
                }
                (None, if line.is_blank() { WireEvent::Silent } else { WireEvent::Invalid })
            }
        };
        self.calls(&event);
        self.walker.line(&WireLine { line: line.number, start: line.start, end: line.end, time, event });
        if self.walker.begun() > turns {
            self.calls_end(turns);
        }
        // A turn whose TurnBegin is damaged.
        self.turns.resize_with(self.walker.begun().max(self.turns.len()), TurnText::default);
        if self.before_damage.is_none() && self.inspector.first_line().is_some() {
            let items = self.turns.last().map_or(0, |turn| turn.items.0);
            let turn = self.turns.len().saturating_sub(1);
            self.before_damage = Some(BeforeDamage { byte: line.start, turn, items });
        }
    }

    fn calls(&mut self, event: &WireEvent) {
        match event {
            WireEvent::ToolCall { id, .. } => drop(self.open_calls.insert(call_key(id))),
            WireEvent::ToolResult { id, .. } => drop(self.open_calls.remove(&call_key(id))),
            _ => {}
        }
    }

    /// Another turn has begun, or the file has ended: what the last of these turns called is not answered any
    /// more.
    fn calls_end(&mut self, turns: usize) {
        if !std::mem::take(&mut self.open_calls).is_empty()
            && let Some(last) = turns.checked_sub(1)
        {
            self.unanswered.push(last as u32);
        }
    }

    fn record(&mut self, wire: &Wire<'_>, bytes: &[u8]) -> Option<jiff::Timestamp> {
        let (time, message) = match wire {
            Wire::Message { time, message } => (*time, message),
            Wire::Metadata { protocol } => {
                let version = protocol.text();
                if version.split('.').next() != Some("1") {
                    self.unsupported.get_or_insert(format!("wire protocol {version} of kimi-cli"));
                }
                return None;
            }
        };
        if let Message::TurnBegin(input) = message {
            let text = input.text().unwrap_or_default();
            let prompt = text.chars().take(Turn::PROMPT_CHARS).collect();
            self.turns.push(TurnText { prompt, ..TurnText::default() });
        }
        if let Some(turn) = self.turns.last_mut() {
            items::of_wire(wire, bytes, &mut |_, item| render::item(&item, &mut turn.items));
            if let Some(tokens) = message.tokens() {
                tokens.add_to(&mut turn.tokens);
            }
        }
        time
    }
}

/// The pass over a context file.
#[derive(Clone)]
struct ContextPass {
    /// Shared with what was made of it, so that nothing is copied when the pass goes on.
    lines: Arc<Vec<ContextLine>>,
    inspector: Inspector,
    runs: Option<RunSizes>,
}

impl ContextPass {
    fn new(file: &str, with_runs: bool) -> ContextPass {
        let inspector = Inspector::new(file, parse::CONTEXT);
        ContextPass { lines: Arc::default(), inspector, runs: with_runs.then(RunSizes::default) }
    }

    fn line(&mut self, line: Line<'_>) {
        let mut size = Length::default();
        let mut buffer = String::new();
        let record = match parse::context_line(&line, &mut buffer) {
            Ok(context) => {
                self.inspector.record(&line);
                let record = context.record();
                if let Some(runs) = &mut self.runs {
                    items::of_context(&context, line.bytes, &mut |_, item| render::item(&item, &mut size));
                    if let ContextRecord::User { .. } = record {
                        let text = context.content.text().unwrap_or_default();
                        let prompt = text.chars().take(Turn::PROMPT_CHARS).collect();
                        runs.prompts.insert(self.lines.len(), prompt);
                    }
                }
                record
            }
            Err(bad) => {
                self.inspector.no_record(&line, bad.what());
                if !line.terminated {
                    return;
                }
                ContextRecord::Invalid
            }
        };
        if let Some(runs) = &mut self.runs {
            runs.lines.push(size.0);
        }
        Arc::make_mut(&mut self.lines).push(ContextLine { start: line.start, end: line.end, record });
    }
}

fn turns_of_wire(wire: &WireReading, file: &Arc<Path>) -> Vec<Turn> {
    let walk = &wire.walk;
    let starts = walk.turns.iter().map(|turn| turn.start).skip(1).chain([walk.end]);
    let each = walk.turns.iter().zip(&wire.turns).zip(starts).enumerate();
    each.map(|(n, ((turn, text), end))| {
        sized(
            Turn {
                n: n as u32,
                prompt: Some(text.prompt.clone()).filter(|prompt| !prompt.is_empty()),
                status: turn.status,
                detail: turn.detail,
                started: turn.started,
                ended: match turn.end {
                    Some(end) => end.time,
                    // Of a client that wrote no TurnEnd.
                    None => turn.last.filter(|_| turn.detail != Some(TurnDetail::Open)),
                },
                last: turn.last,
                file: file.clone(),
                span: turn.start..end,
                pieces: Vec::new(),
                line: turn.line,
                group: turn.group,
                // No record of this client names it.
                model: None,
                tokens: text.tokens.clone(),
                text_len: 0,
            },
            text.items.0,
        )
    })
    .collect()
}

/// A turn that has ended before the first damaged line of the wire ends there: what follows may be another's.
fn end_before_damage(turns: &mut [Turn], wire: &WireReading) {
    let Some(BeforeDamage { byte, turn, items }) = wire.before_damage else { return };
    let Some(turn) = turns.get_mut(turn) else { return };
    let ended = wire.walk.turns[turn.group as usize].end.is_some_and(|end| end.byte <= byte);
    if ended && turn.span.end > byte {
        turn.span.end = byte;
        *turn = sized(turn.clone(), items);
    }
}

fn turns_of_context(
    found: &[ContextTurn],
    live: &ContextFile,
    runs: &RunSizes,
    file: &Arc<Path>,
) -> Vec<Turn> {
    let index = |turn: &ContextTurn| turn.line as usize - 1;
    let ends = found.iter().skip(1).map(index).chain([live.lines.len()]);
    let each = found.iter().zip(ends).enumerate();
    each.map(|(n, (turn, end))| {
        let span = turn.start..live.lines.get(end).map_or_else(|| end_of(live), |line| line.start);
        let items = runs.lines.get(index(turn)..end).unwrap_or_default().iter().sum();
        sized(
            Turn {
                n: n as u32,
                prompt: runs.prompts.get(&turn.user_line).cloned().filter(|prompt| !prompt.is_empty()),
                // A context does not tell how a turn ended.
                status: TurnStatus::Complete,
                detail: None,
                started: None,
                ended: None,
                last: None,
                file: file.clone(),
                span,
                pieces: Vec::new(),
                line: turn.line,
                group: n as u32,
                model: None,
                tokens: None,
                text_len: 0,
            },
            items,
        )
    })
    .collect()
}

/// The turn with its rendered size: heading and items.
fn sized(mut turn: Turn, items: u64) -> Turn {
    turn.text_len = render::heading_len(&turn) + items;
    turn
}

/// How many turns lie wholly before the first damage of each file; 0 where that cannot be told.
fn sound_turns(turns: &[Turn], cuts: &[Result<CutPoint>], damages: &[Damage], files: &Files<'_>) -> u32 {
    let mut sound = turns.len();
    for damage in damages.iter().filter(|damage| !damage.class.is_torn()) {
        let file = files.base.join(&damage.file);
        let is_before = |n: usize| {
            let shown = turns[..n].iter().all(|turn| *turn.file != *file || turn.span.end <= damage.byte);
            let kept = cuts.get(n).is_some_and(|cut| {
                cut.as_ref().is_ok_and(|point| {
                    point.kept.iter().all(|kept| kept.source != file || kept.bytes <= damage.byte)
                })
            });
            shown && kept
        };
        let upto = (1..=sound).take_while(|n| is_before(*n)).count();
        sound = sound.min(upto);
    }
    // A group is only kept as a whole.
    if let (Some(last), Some(next)) = (sound.checked_sub(1).map(|n| &turns[n]), turns.get(sound))
        && last.group == next.group
    {
        sound = last.group as usize;
    }
    sound as u32
}
