//! The bytes of files. A file's text is made from one version of the session: the stamps are compared
//! before and after, so that a reader never sees a mixture.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use xxhash_rust::xxh3::xxh3_128;

use super::Fs;
use super::handles::TextHandle;
use super::node::{Branch, Dot, Node, Part, SessionRef};
use super::text_cache::TextKey;
use super::tree::absent;
use crate::agents;
use crate::catalog::View;
use crate::cut;
use crate::render;
use crate::session::{AgentKind, History, Refusal, Result, Session, State, Turn};
use crate::transcript::metrics::{self, ReadKind};
use crate::transcript::{self, EntryKind, Stamp, StoreDir};

/// How often a text is made again because the session changed meanwhile.
const ATTEMPTS: u32 = 4;

/// A text and what tells it from others.
pub(super) struct Text {
    pub bytes: Arc<Vec<u8>>,
    pub version: u128,
}

impl Text {
    /// One that is its own version.
    fn of(bytes: impl Into<Vec<u8>>) -> Text {
        let bytes = bytes.into();
        Text { version: xxh3_128(&bytes), bytes: Arc::new(bytes) }
    }
}

/// The version of the text that a view has for a part, where one can be told without making it.
///
/// # Errors
/// Why the view does not show that part.
pub(super) fn version_of(view: &View, part: &Part) -> Result<Option<u128>> {
    let number = match part {
        Part::Turn(n) | Part::Prompt(n) | Part::Record(n) | Part::Blob(n, _) => {
            turn(&view.history, *n)?;
            view.turn_version(*n)
        }
        Part::SalvageTurn(n) => {
            find(salvaged(&view.history)?, *n)?;
            view.turn_version(*n)
        }
        Part::Context => Some(view.version),
        _ => None,
    };
    // Different parts of one turn are different nodes, so the number need not tell them apart.
    Ok(number.map(u128::from))
}

/// Whether what a view has for a part certainly is what is on disk, if the stamps are the same.
fn proves(view: &View, part: &Part) -> bool {
    match part {
        Part::Turn(n) | Part::Prompt(n) | Part::Record(n) | Part::Blob(n, _) => {
            turn(&view.history, *n).is_ok_and(|turn| view.proves(turn))
        }
        Part::SalvageTurn(n) => {
            salvaged(&view.history).and_then(|turns| find(turns, *n)).is_ok_and(|turn| view.proves(turn))
        }
        _ => view.is_proven(),
    }
}

fn key(session: &SessionRef, part: &Part, version: u128) -> TextKey {
    TextKey { session: session.key.clone(), part: part.clone(), version }
}

impl Fs {
    /// Opens a text. One that is known to be the same as before, or whose size is known and that will not
    /// change soon, is made when it is read; often it never is, because the kernel still has it.
    pub(super) fn open_text(&self, ino: u64, node: &Node) -> Result<TextHandle> {
        let mut grows = false;
        if let Node::Session(session, part) = node
            && matches!(
                part,
                Part::Turn(_) | Part::SalvageTurn(_) | Part::Record(_) | Part::Prompt(_) | Part::Context
            )
        {
            let view = self.view(&session.key)?;
            // The last turn is the one that an agent appends to.
            let last = view.history.turns.last().map(|turn| turn.n);
            grows = matches!(part, Part::Turn(n) if Some(*n) == last);
            if let Some((version, len)) = self.promise(ino, session, part, &view)? {
                return Ok(TextHandle::new(node.clone(), version, len, None, grows));
            }
        }
        let Text { bytes, version } = self.text(node)?;
        Ok(TextHandle::new(node.clone(), version, bytes.len() as u64, Some(bytes), grows))
    }

    /// Version and size of a text that need not be made yet.
    fn promise(
        &self,
        ino: u64,
        session: &SessionRef,
        part: &Part,
        view: &View,
    ) -> Result<Option<(u128, u64)>> {
        let is_certain = |_: &u128| proves(view, part) && !view.changed_lately();
        let Some(version) = version_of(view, part)?.filter(is_certain) else { return Ok(None) };
        let turn_size =
            |n: u32, size: fn(&Turn) -> u64| Ok(Some((version, size(find(&view.history.turns, n)?))));
        match part {
            Part::Turn(n) | Part::SalvageTurn(n) => turn_size(*n, |turn| turn.text_len),
            Part::Record(n) => turn_size(*n, Turn::record_bytes),
            _ => {
                if let Some(len) = self.texts.len(&key(session, part, version)) {
                    return Ok(Some((version, len)));
                }
                let told = self.kernel.told(ino, |told| *told).unwrap_or_default();
                let size = told.attrs.filter(|attrs| attrs.version == Some(version)).map(|attrs| attrs.size);
                Ok(size.filter(|_| told.cached.version == Some(version)).map(|size| (version, size)))
            }
        }
    }

    /// What an open text shows; made now if it was not yet.
    ///
    /// # Errors
    /// [`Refusal::Changed`] when it is too late for the version that was opened.
    pub(super) fn text_of(&self, open: &TextHandle) -> Result<Arc<Vec<u8>>> {
        let mut text = open.text.lock();
        if let Some(text) = &*text {
            return Ok(text.clone());
        }
        if let Node::Session(session, part) = &open.node {
            // Whatever the file has become: this is what was opened.
            if let Some(kept) = self.texts.text(&key(session, part, open.version())) {
                return Ok(text.insert(kept).clone());
            }
        }
        let changed = || Refusal::Changed { what: "this file".into() };
        let made = match self.text(&open.node) {
            Err(Refusal::NotFound { .. }) => return Err(changed()),
            made => made?,
        };
        if made.version != open.version() {
            return Err(changed());
        }
        Ok(text.insert(made.bytes).clone())
    }

    /// The whole content of a file that is made when it is needed.
    pub(super) fn text(&self, node: &Node) -> Result<Text> {
        let (session, part) = match node {
            Node::Session(session, part) => (session, part),
            Node::Dot(dot) => return Ok(Text::of(self.dot_text(*dot)?)),
            _ => return Err(Refusal::Internal { what: format!("{node:?} has no text") }),
        };
        match part {
            Part::BranchTurn(Branch::Undone(number), n) => {
                let undone = self.undone(session, *number)?;
                let turn = find(&undone.turns, *n)?;
                let span = cut::undone_span(&undone, turn)?;
                let store = self.catalog.store_of(&session.key)?;
                Ok(Text::of(agents::turn_text(&*store, &*self.catalog.session(&session.key)?, turn, &span)?))
            }
            Part::BranchStatus(branch) => Ok(Text::of(self.branch_status(session, *branch)?)),
            Part::Status => Ok(Text::of(self.status(session, false)?)),
            Part::Meta => Ok(Text::of(self.meta(session, true)?)),
            _ => self.text_of_part(session, part),
        }
    }

    /// The text of a part: the one that was made before, where that is still known.
    fn text_of_part(&self, session: &SessionRef, part: &Part) -> Result<Text> {
        let ((key, text), view) = self.of_one_version(session, |view| {
            let version = version_of(view, part)?;
            let key = key(session, part, version.unwrap_or(view.version.into()));
            let bytes = match self.texts.text(&key).filter(|_| proves(view, part)) {
                Some(kept) => kept,
                None => Arc::new(self.text_in(view, part)?),
            };
            let version = version.unwrap_or_else(|| xxh3_128(&bytes));
            Ok((key, Text { bytes, version }))
        })?;
        // While stamps prove nothing, other bytes may have stood there at the very moment of reading.
        if proves(&view, part) {
            self.texts.keep(key, &text.bytes);
        }
        Ok(text)
    }

    /// Version and length (bytes) of the text of a part; it is made only if nobody knows how long it is.
    pub(super) fn measure(&self, session: &SessionRef, part: &Part) -> Result<(u128, u64)> {
        let view = self.view(&session.key)?;
        if let Some(version) = version_of(&view, part)?
            && let Some(len) = self.texts.len(&key(session, part, version))
        {
            return Ok((version, len));
        }
        let text = self.text_of_part(session, part)?;
        Ok((text.version, text.bytes.len() as u64))
    }

    /// The text that a view has for a part.
    fn text_in(&self, view: &View, part: &Part) -> Result<Vec<u8>> {
        match part {
            Part::Turn(n) => self.turn_text(view, turn(&view.history, *n)?),
            Part::SalvageTurn(n) => self.turn_text(view, find(salvaged(&view.history)?, *n)?),
            Part::BranchTurn(Branch::Abandoned(number), n) => {
                self.turn_text(view, find(&view.history.abandoned_turns(*number)?.turns, *n)?)
            }
            Part::Prompt(n) => {
                let turn = turn(&view.history, *n)?;
                let span = self.catalog.span(view, turn)?;
                Ok(view.store.prompt(&view.session, turn, &span)?.into_bytes())
            }
            Part::Blob(n, number) => self.blob_in(view, *n, *number),
            Part::Record(n) => self.catalog.span(view, turn(&view.history, *n)?),
            Part::RecordsHead => {
                view.history.readable()?;
                let head = head(&view.session, &view.history);
                self.catalog.span(view, &head.ok_or_else(|| absent(OsStr::new("head.jsonl")))?)
            }
            Part::RecordsTail => {
                view.history.readable()?;
                let tail = tail(&view.session, &view.history);
                self.catalog.span(view, &tail.ok_or_else(|| absent(OsStr::new("tail")))?)
            }
            Part::Context => {
                view.history.readable()?;
                self.catalog.prove(view)?;
                let mut text = String::new();
                view.store
                    .context(&view.session, &view.history, &mut |_, item| render::item(&item, &mut text))?;
                Ok(text.into_bytes())
            }
            _ => Err(Refusal::Internal { what: format!("{part:?} has no text") }),
        }
    }

    fn turn_text(&self, view: &View, turn: &Turn) -> Result<Vec<u8>> {
        let span = self.catalog.span(view, turn)?;
        Ok(agents::turn_text(&*view.store, &view.session, turn, &span)?.into_bytes())
    }

    /// What `make` makes of a view that is still true afterwards, and that view.
    fn of_one_version<T>(
        &self,
        session: &SessionRef,
        make: impl Fn(&View) -> Result<T>,
    ) -> Result<(T, Arc<View>)> {
        let mut view = self.view(&session.key)?;
        for _ in 0..ATTEMPTS {
            let made = make(&view);
            let now = self.view(&session.key)?;
            if Arc::ptr_eq(&view, &now) {
                return Ok((made?, view));
            }
            view = now;
        }
        Err(Refusal::Changed { what: "the session".into() })
    }

    /// The text of a file in `.turnfs`, or of one that the root answers for.
    fn dot_text(&self, dot: Dot) -> Result<String> {
        Ok(match dot {
            Dot::Version => super::format::version(),
            Dot::Readme => super::format::README.to_owned(),
            Dot::Options => self.options.running.clone(),
            Dot::GitIgnore => super::format::GITIGNORE.to_owned(),
            Dot::Ignore => super::format::IGNORE.to_owned(),
            Dot::Metrics => super::metrics::text(self),
            Dot::Status => self.summary()?,
            Dot::Dir | Dot::Unplaced => {
                return Err(Refusal::Internal { what: format!("the directory {} has no text", dot.name()) });
            }
        })
    }

    /// Bytes of such a file. The summary looks at every session, which is too much for a size: it
    /// has that of the last one read (it is read without the page cache, so that does not matter).
    pub(super) fn dot_size(&self, dot: Dot) -> Result<u64> {
        match dot {
            Dot::Status => Ok(self.summary_size.load(Ordering::Relaxed)),
            dot => Ok(self.dot_text(dot)?.len() as u64),
        }
    }
}

/// A file of the store, open for the moment: an open descriptor would keep cuts from getting their lease,
/// so none is held between requests.
pub(super) struct RawFile {
    file: File,
    path: PathBuf,
    agent: AgentKind,
    kind: ReadKind,
    pub stat: Stamp,
}

impl RawFile {
    /// At most `size` bytes from `offset` on.
    pub fn read(&self, offset: u64, size: usize) -> Result<Vec<u8>> {
        let rest = self.stat.len.saturating_sub(offset);
        let mut bytes = vec![0; size.min(usize::try_from(rest).unwrap_or(usize::MAX))];
        let filled = transcript::read_full(&self.file, &mut bytes, offset)
            .map_err(|error| Refusal::io("cannot read", &self.path, error))?;
        bytes.truncate(filled);
        metrics::count_bytes(self.agent, self.kind, filled as u64);
        Ok(bytes)
    }
}

/// What the file named `name` in `raw/` of the session is; not opened.
pub(super) fn raw_stat(session: &Session, name: &OsStr) -> Result<Stamp> {
    let (store, file) = raw_place(session, name)?;
    match store.stat(&file)? {
        Some(stat) if stat.kind == EntryKind::File => Ok(stat),
        _ => Err(absent(name)),
    }
}

/// Opens the file named `name` in `raw/` of the session.
pub(super) fn open_raw(session: &Session, name: &OsStr) -> Result<RawFile> {
    let (store, file) = raw_place(session, name)?;
    let path = store.path().join(&file);
    let kind = if session.files.contains(&file) { ReadKind::Transcript } else { ReadKind::Sidecar };
    let file = store.file(&file)?.ok_or_else(|| absent(name))?;
    let stat = Stamp::of(&file).map_err(|error| Refusal::io("cannot look at", &path, error))?;
    Ok(RawFile { file, path, agent: session.key.agent, kind, stat })
}

fn raw_place(session: &Session, name: &OsStr) -> Result<(StoreDir, PathBuf)> {
    let known = raw_files(session).into_iter().find(|(known, _)| known == name);
    let (_, file) = known.ok_or_else(|| absent(name))?;
    Ok((StoreDir::open(&session.key.root)?.ok_or_else(|| absent(name))?, file))
}

/// The turn `n` as a file.
///
/// # Errors
/// [`Refusal::NotFound`] if there is none; or why the history is not shown.
pub(super) fn turn(history: &History, n: u32) -> Result<&Turn> {
    history.readable()?;
    find(&history.turns, n)
}

pub(super) fn find(turns: &[Turn], n: u32) -> Result<&Turn> {
    let found = turns.get(n as usize).filter(|turn| turn.n == n);
    found
        .or_else(|| turns.iter().find(|turn| turn.n == n))
        .ok_or_else(|| Refusal::NotFound { what: format!("turn {n}") })
}

/// The turns of a damaged session that end before the first damage.
pub(super) fn salvaged(history: &History) -> Result<&[Turn]> {
    if history.state != State::Damaged {
        return Err(absent(OsStr::new("salvage")));
    }
    Ok(history.sound())
}

/// A stretch of the main transcript, as if it were a turn.
fn stretch(session: &Session, history: &History, span: std::ops::Range<u64>) -> Option<Turn> {
    let main = history.files.first().map(|view| view.file.clone());
    let main = main.or_else(|| session.files.first().cloned())?;
    Some(Turn {
        n: 0,
        prompt: None,
        status: crate::session::TurnStatus::Complete,
        detail: None,
        started: None,
        ended: None,
        last: None,
        file: Arc::from(main),
        span,
        pieces: Vec::new(),
        line: 1,
        group: 0,
        model: None,
        tokens: None,
        text_len: 0,
    })
}

/// What comes before turn 0.
fn head(session: &Session, history: &History) -> Option<Turn> {
    stretch(session, history, 0..history.head_bytes)
}

/// What follows the last complete line, where there is anything.
pub(super) fn tail(session: &Session, history: &History) -> Option<Turn> {
    let len = history.files.first()?.len?;
    let main = &history.files.first()?.file;
    let ends = history.turns.iter().rev().flat_map(|turn| turn.ranges()).filter(|(file, _)| file == main);
    let end = ends.map(|(_, span)| span.end).max().unwrap_or(history.head_bytes);
    if end < len { stretch(session, history, end..len) } else { None }
}

/// The session's own files with their names in `raw/`, main transcript first; what lies deeper belongs to
/// sub-agents and the like.
pub(super) fn raw_files(session: &Session) -> Vec<(OsString, PathBuf)> {
    let all = session.files.iter().chain(&session.sidecars);
    // A session is a directory with its files in it, or a file with its other files beside it, or in a directory of
    // the same name; its transcript may lie deeper.
    let transcript = session.files.first().and_then(|file| file.parent());
    let places = [Some(&*session.key.path), session.key.path.parent(), transcript];
    let beside = session.key.path.with_extension("");
    let is_beside = |file: &Path| *beside != *session.key.path && file.starts_with(&beside);
    let own = all.filter(|file| places.contains(&file.parent()) || is_beside(file));
    own.filter_map(|file| Some((Path::new(file).file_name()?.to_owned(), file.clone()))).collect()
}
