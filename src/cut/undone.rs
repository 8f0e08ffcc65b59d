//! What undos removed: `undone/<n>/` of a session's folder, listed and read.
//!
//! An undo counts from the moment that its directory holds `undo.json`, and until it holds `redone.json`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::disk::Tree;
use super::journal::{Direction, Record, VERSION};
use super::state::{Folder, JOURNAL, Locked, StateDir, undone_dir};
use crate::session::{
    self, Piece, Refusal, Result, SessionKey, StorePath, Tokens, Turn, TurnDetail, TurnStatus, rfc3339,
};

/// An undo that can still be read under `undone/` (and perhaps redone).
#[derive(Clone, Debug)]
pub struct Undone {
    /// From 1, growing for the life of the session; never used again.
    pub number: u32,
    pub at: Timestamp,
    /// The removed turns, with their numbers, spans and sizes as they were.
    pub turns: Vec<Turn>,
    /// The backup's directory.
    pub dir: PathBuf,
}

impl Undone {
    /// Which undo it was: `undone/1: undo 2 at 2026-12-02T15:04:05.123Z removed 3 turns, 2 to 4`.
    pub fn sentence(&self) -> String {
        let number = self.number;
        let at = rfc3339(self.at);
        match (self.turns.first(), self.turns.last()) {
            (Some(first), Some(last)) if first.n != last.n => {
                let removed = session::turns(self.turns.len() as u32);
                format!(
                    "undone/{number}: undo {} at {at} removed {removed}, {} to {}",
                    first.n, first.n, last.n
                )
            }
            (Some(turn), _) => format!("undone/{number}: undo {} at {at} removed turn {}", turn.n, turn.n),
            (None, _) => format!("undone/{number}: an undo at {at}"),
        }
    }

    /// A name that says the same to whoever lists `undone/`, beginning with the number:
    /// `1-undo-2-2026-12-02T16.04.05`, in local time.
    pub fn label(&self) -> String {
        let at = self.at.to_zoned_datetime(TimeZone::system()).strftime("%Y-%m-%dT%H.%M.%S").to_string();
        match self.turns.first() {
            Some(first) => format!("{}-undo-{}-{at}", self.number, first.n),
            None => format!("{}-undo-{at}", self.number),
        }
    }
}

/// `turns.json`: the removed turns.
#[derive(Serialize, Deserialize)]
pub(super) struct Turns {
    version: u32,
    turns: Vec<StoredTurn>,
}

/// A [`Turn`] as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredTurn {
    n: u32,
    prompt: Option<String>,
    status: String,
    detail: Option<String>,
    /// Nanoseconds since 1970, as all times here.
    started: Option<i128>,
    ended: Option<i128>,
    last: Option<i128>,
    file: StorePath,
    start: u64,
    end: u64,
    /// Where the bytes are not one range.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pieces: Vec<StoredPiece>,
    line: u64,
    group: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<Tokens>,
    text_len: u64,
}

#[derive(Serialize, Deserialize)]
struct StoredPiece {
    file: StorePath,
    start: u64,
    end: u64,
}

impl Turns {
    pub fn of(turns: &[Turn]) -> Turns {
        let nanoseconds = |time: Option<Timestamp>| time.map(Timestamp::as_nanosecond);
        let piece = |piece: &Piece| StoredPiece {
            file: (&*piece.file).into(),
            start: piece.span.start,
            end: piece.span.end,
        };
        let store = |turn: &Turn| StoredTurn {
            n: turn.n,
            prompt: turn.prompt.clone(),
            status: turn.status.name().to_owned(),
            detail: turn.detail.map(|detail| detail.name().to_owned()),
            started: nanoseconds(turn.started),
            ended: nanoseconds(turn.ended),
            last: nanoseconds(turn.last),
            file: (&*turn.file).into(),
            start: turn.span.start,
            end: turn.span.end,
            pieces: turn.pieces.iter().map(piece).collect(),
            line: turn.line,
            group: turn.group,
            model: turn.model.as_deref().map(str::to_owned),
            tokens: turn.tokens.as_deref().copied(),
            text_len: turn.text_len,
        };
        Turns { version: VERSION, turns: turns.iter().map(store).collect() }
    }
}

impl StoredTurn {
    fn into_turn(self) -> Turn {
        let time = |time: Option<i128>| time.and_then(|time| Timestamp::from_nanosecond(time).ok());
        let all = [TurnStatus::Complete, TurnStatus::Interrupted, TurnStatus::Failed, TurnStatus::Running];
        Turn {
            n: self.n,
            prompt: self.prompt,
            status: all.into_iter().find(|s| s.name() == self.status).unwrap_or(TurnStatus::Interrupted),
            detail: TurnDetail::ALL.into_iter().find(|d| Some(d.name()) == self.detail.as_deref()),
            started: time(self.started),
            ended: time(self.ended),
            last: time(self.last),
            file: (&*self.file).into(),
            span: self.start..self.end,
            pieces: self
                .pieces
                .into_iter()
                .map(|piece| Piece { file: (&*piece.file).into(), span: piece.start..piece.end })
                .collect(),
            line: self.line,
            group: self.group,
            model: self.model.map(Arc::from),
            tokens: self.tokens.map(Box::new),
            text_len: self.text_len,
        }
    }
}

/// The undos of a session that can be read, oldest first. Costs one readdir when there are none.
///
/// # Errors
/// What prevents reading turnfs's own state.
pub fn undone(state: &StateDir, key: &SessionKey) -> Result<Vec<Undone>> {
    let Some(folder) = Folder::find(state, key)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for number in counting_numbers(&folder)? {
        let read = || -> Result<Undone> {
            let record = record(&folder, number)?;
            let at = Timestamp::from_nanosecond(record.at).unwrap_or(Timestamp::UNIX_EPOCH);
            let dir = folder.tree.path().join(undone_dir(number));
            Ok(Undone { number, at, turns: turns(&folder, number)?, dir })
        };
        match read() {
            Ok(undone) => found.push(undone),
            // Redone or pruned by another process in this moment.
            Err(Refusal::NotFound { .. }) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(found)
}

/// The record bytes of a removed turn.
///
/// # Errors
/// What prevents reading the backup.
pub fn undone_span(undone: &Undone, turn: &Turn) -> Result<Vec<u8>> {
    let backup = Tree::open(&undone.dir)?;
    let record = record_in(&backup, Path::new("undo.json"))?;
    let mut bytes = Vec::new();
    for (file, span) in turn.ranges() {
        let (open, kept) = match record.file(file) {
            Some((index, change)) if span.start >= change.keep => {
                (backup.read(&Direction::Undo.start_tail(index))?, change.keep)
            }
            // The undo left these bytes where they are.
            _ => {
                let sessions = undone.dir.ancestors().nth(2).unwrap_or(Path::new("/"));
                let identity = Folder { tree: Tree::open(sessions)? }.identity()?;
                let root = identity.map(|identity| identity.root).unwrap_or_default();
                (Tree::store(&root)?.read(file)?, 0)
            }
        };
        let what = || format!("the backup of turn {}", turn.n);
        let open = open.ok_or_else(|| Refusal::NotFound { what: what() })?;
        let piece = open.read_span(span.start - kept..span.end.saturating_sub(kept))?;
        bytes.extend(piece.ok_or_else(|| Refusal::Changed { what: what() })?);
    }
    Ok(bytes)
}

/// The numbers of the undos that count, rising; those of all directories there are, [`Folder::numbers`] tells.
pub(super) fn counting_numbers(folder: &Folder) -> Result<Vec<u32>> {
    let mut counting = Vec::new();
    for number in folder.numbers()? {
        let undone = folder.tree.stat(&done(number, Direction::Undo))?.is_some();
        if undone && folder.tree.stat(&done(number, Direction::Redo))?.is_none() {
            counting.push(number);
        }
    }
    Ok(counting)
}

pub(super) fn record(folder: &Folder, number: u32) -> Result<Record> {
    record_in(&folder.tree, &done(number, Direction::Undo))
}

fn record_in(tree: &Tree, file: &Path) -> Result<Record> {
    let what = || tree.path().join(file).display().to_string();
    Record::parse(&tree.must_read(file)?).ok_or_else(|| Refusal::Unsupported { what: what() })
}

pub(super) fn turns(folder: &Folder, number: u32) -> Result<Vec<Turn>> {
    let file = undone_dir(number).join("turns.json");
    let what = |error| format!("{} ({error})", folder.tree.path().join(&file).display());
    let turns: Turns = serde_json::from_slice(&folder.tree.must_read(&file)?)
        .map_err(|error| Refusal::Unsupported { what: what(error) })?;
    Ok(turns.turns.into_iter().map(StoredTurn::into_turn).collect())
}

/// Makes the directory of a new undo.
pub(super) fn make_dir(locked: &Locked, number: u32) -> Result<Tree> {
    let tree = locked.tree();
    tree.ensure_dir(Path::new("undone"))?;
    let dir = undone_dir(number);
    tree.mkdir(&dir)?;
    tree.mkdir(&dir.join("files"))?;
    tree.sub(&dir)
}

/// Makes the names in and above an undo's directory durable.
pub(super) fn sync_dir(locked: &Locked, number: u32) -> Result<()> {
    let dir = undone_dir(number);
    locked.tree().sync_dir(&dir.join("files"))?;
    locked.tree().sync_dir(&dir)?;
    locked.tree().sync_dir(Path::new("undone"))?;
    locked.tree().sync_dir(Path::new(""))
}

/// Where the journal of an undo or redo lies when it counts.
pub(super) fn done(number: u32, direction: Direction) -> PathBuf {
    undone_dir(number).join(match direction {
        Direction::Undo => "undo.json",
        Direction::Redo => "redone.json",
    })
}

/// Makes the undo or redo count whose journal is written, durable when this returns.
pub(super) fn count(locked: &Locked, number: u32, direction: Direction) -> Result<()> {
    let tree = locked.tree();
    tree.rename(Path::new(JOURNAL), &done(number, direction), false)?;
    tree.sync_dir(&undone_dir(number))?;
    tree.sync_dir(Path::new(""))
}

/// Removes an undo that no longer counts. `undo.json` goes first and `redone.json` last, so that a crash
/// in between never makes it count again.
pub(super) fn discard(locked: &Locked, number: u32) -> Result<()> {
    let (tree, dir) = (locked.tree(), undone_dir(number));
    tree.unlink(&done(number, Direction::Undo))?;
    tree.sync_dir(&dir)?;
    tree.remove_dir(&dir.join("files"))?;
    tree.unlink(&dir.join("turns.json"))?;
    tree.unlink(&done(number, Direction::Redo))?;
    tree.remove_dir(&dir)
}
