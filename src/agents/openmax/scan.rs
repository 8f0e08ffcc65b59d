//! One pass over a transcript or an archive: its messages with their places, and its damage.
//!
//! What is kept of a message is what turns, cuts and sizes need; the text stays on disk.

use std::path::Path;

use super::items::{self, As};
use super::records::{self, COMPACTIONS, Compaction, MESSAGES, Message, PruneNote, Role};
use crate::render::{self, Length};
use crate::session::{AgentKind, Damage, DamageClass, FileHash, FileView, Result, Turn};
use crate::transcript::{self, Inspector, Passes, StoreDir, is_json};

/// A message of a file.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Byte range in its file: the line, and blank lines behind it.
    pub start: u64,
    pub end: u64,
    /// Where its own line ends.
    pub line_end: u64,
    /// From 1.
    pub line: u64,
    pub role: Role,
    pub looks_like_note: bool,
    /// Of a user line: the form of what a prune leaves.
    pub note: Option<PruneNote>,
    /// Whether such a note says where the archive is; it does not if that could not be written.
    pub names_archive: bool,
    pub is_cut: bool,
    /// Whether a piece of another message, whose append failed, stands before it on its line.
    pub behind_fragment: bool,
    /// Ids of the calls that it makes.
    pub calls: Vec<Box<str>>,
    /// The call that it answers.
    pub answers: Option<Box<str>>,
    /// Of what it says ([`Message::hash`]).
    pub hash: FileHash,
    /// Size of its text, bytes, shown as what it is in the middle of a turn and as a prompt.
    pub text_len: u64,
    pub prompt_len: u64,
    /// A user line's text, as much as a turn keeps.
    pub prompt: Option<String>,
}

/// A message file as it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Messages {
    pub found: Vec<Found>,
    pub damages: Vec<Damage>,
    /// Whether the last message's line has no newline.
    pub unterminated: bool,
}

/// The records of a compaction sidecar, and its damage.
pub(super) type Compactions = (Vec<Compaction>, Vec<Damage>);

/// What is in a file, `None` if it is not there; and the file as it was then.
pub(super) type Read<T> = (Option<T>, FileView);

impl Messages {
    /// The first damage that is no torn tail.
    pub fn damage(&self) -> Option<&Damage> {
        self.damages.iter().find(|damage| !damage.class.is_torn())
    }

    /// Bytes up to the end of the last message and the blank lines behind it.
    pub fn end(&self) -> u64 {
        self.found.last().map_or(0, |last| last.end)
    }
}

/// Reads the messages of a transcript or an `archive`; `file` is relative to the store's root. In an archive, a disk
/// that was full for a moment leaves the beginning of a message, and the next prune's first message behind it on the
/// same line: what failed does not belong to the history, and what follows is whole.
pub(super) fn messages(
    store: &StoreDir,
    passes: &mut Passes,
    file: &Path,
    archive: bool,
) -> Result<Read<Messages>> {
    let new = || (Inspector::new(name(file), MESSAGES), Messages::default());
    let each = |(inspector, messages): &mut (Inspector, Messages), line: transcript::Line<'_>| {
        match Message::parse(line.bytes) {
            Ok(message) if line.nuls == 0 => {
                inspector.record(&line);
                messages.unterminated = !line.terminated;
                messages.found.push(Found::of(&line, &message));
            }
            // Blank lines belong to what they follow, so that concatenated spans are the file.
            _ if line.is_blank() && line.terminated => {
                if let Some(last) = messages.found.last_mut() {
                    last.end = line.end;
                }
            }
            failed => {
                if archive
                    && line.nuls == 0
                    && let Some((line, message)) = behind_fragment(&line)
                {
                    inspector.record(&line);
                    messages.unterminated = !line.terminated;
                    messages.found.push(Found { behind_fragment: true, ..Found::of(&line, &message) });
                    return;
                }
                let why = failed
                    .err()
                    .filter(|_| is_json(line.bytes))
                    .map(|why| format!("not a message of openmax: {why}"));
                // An array or a byte order mark is not the beginning of a record: no append made it.
                let begins = line.bytes.trim_ascii_start();
                let whole =
                    line.number == 1 && (begins.starts_with(b"[") || begins.starts_with(b"\xEF\xBB\xBF"));
                let line = transcript::Line { terminated: line.terminated || whole, ..line };
                inspector.no_record(&line, why.as_deref());
            }
        }
    };
    let (content, view) = file_of(store, passes, file, new, each)?;
    let content = content.map(|(inspector, mut messages)| {
        // A lost final newline is not damage for this client: it adds one before it appends.
        let damages = inspector.finish().into_iter();
        messages.damages = damages.filter(|damage| damage.class != DamageClass::NoFinalNewline).collect();
        messages
    });
    Ok((content, view))
}

/// The message at the end of a line that begins with a piece of another one. The client writes the role first,
/// and inside a string its quotes would be escaped, so the last such place is the message's true beginning.
fn behind_fragment<'a>(line: &transcript::Line<'a>) -> Option<(transcript::Line<'a>, Message<'a>)> {
    let at = memchr::memmem::rfind(line.bytes, br#"{"role":""#).filter(|at| *at > 0)?;
    let rest = transcript::Line { start: line.start + at as u64, bytes: &line.bytes[at..], ..*line };
    Some((rest, Message::parse(rest.bytes).ok()?))
}

/// Reads the records of a compaction sidecar.
pub(super) fn compactions(store: &StoreDir, passes: &mut Passes, file: &Path) -> Result<Read<Compactions>> {
    let new = || (Inspector::new(name(file), COMPACTIONS), Vec::new());
    let each = |(inspector, all): &mut (Inspector, Vec<Compaction>), line: transcript::Line<'_>| {
        // As in an archive, what a full disk left may stand before a record.
        let behind_fragment = || memchr::memmem::rfind(line.bytes, br#"{"ts":"#).filter(|at| *at > 0);
        let parse = |at: usize| {
            let record = serde_json::from_slice::<Compaction>(&line.bytes[at..]).ok()?;
            Some(Compaction { span: line.start + at as u64..line.end, ..record })
        };
        match parse(0).or_else(|| parse(behind_fragment()?)) {
            Some(record) if line.nuls == 0 => all.push(record),
            _ => {
                let what = is_json(line.bytes).then_some("not a record of a prune");
                inspector.no_record(&line, what);
            }
        }
    };
    let (content, view) = file_of(store, passes, file, new, each)?;
    Ok((content.map(|(inspector, all)| (all, inspector.finish())), view))
}

fn file_of<T: Clone + Send + 'static>(
    store: &StoreDir,
    passes: &mut Passes,
    file: &Path,
    new: impl Fn() -> T,
    each: impl FnMut(&mut T, transcript::Line<'_>),
) -> Result<Read<T>> {
    let (content, len, hash) = match passes.scan(store, file, (), new, each)? {
        Some((content, scanned)) => {
            scanned.count(AgentKind::OpenMax);
            (Some(content), Some(scanned.len), scanned.hash)
        }
        None => (None, None, FileHash::of(b"")),
    };
    Ok((content, FileView { file: file.to_owned(), len, hash }))
}

fn name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Found {
    fn of(line: &transcript::Line<'_>, message: &Message<'_>) -> Found {
        let role = message.role();
        let length = |what| {
            let mut length = Length::default();
            items::of(message, line.bytes, what, &mut |item| render::item(&item, &mut length));
            length.0
        };
        let text_len = length(As::Said);
        let user = role == Role::User;
        Found {
            start: line.start,
            end: line.end,
            line_end: line.end,
            line: line.number,
            role,
            looks_like_note: message.looks_like_note(),
            note: message.prune_note(),
            names_archive: message.prune_note().is_some() && records::names_archive(message.content()),
            is_cut: message.is_cut(),
            behind_fragment: false,
            calls: message.calls().iter().map(|call| call.id.0.as_ref().into()).collect(),
            answers: (role == Role::Tool).then(|| message.call_id().into()),
            hash: message.hash(),
            text_len,
            prompt_len: if user { length(As::Prompt) } else { text_len },
            prompt: user.then(|| message.content().chars().take(Turn::PROMPT_CHARS).collect()),
        }
    }
}
