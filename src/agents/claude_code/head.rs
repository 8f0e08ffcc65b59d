//! The beginning and the end of a transcript: all that a list shows of a session, however long it is.

use std::path::Path;

use jiff::Timestamp;

use super::layout;
use super::records::{Record, text};
use crate::session::{AgentKind, Refusal, Result, Turn};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{StoreDir, read_full, scan_bytes};

/// How much of the beginning is read first, and at most, bytes.
const FIRST: u64 = 32 * 1024;
const LONGEST: u64 = 1 << 20;
/// How much of the end is searched for notes, bytes; the client writes them again when it ends, and in between.
const TAIL: u64 = 64 * 1024;

/// What the beginning of a transcript says.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    pub cwd: Option<String>,
    /// Of the record that names the directory.
    pub branch: Option<String>,
    pub first_prompt: Option<String>,
    pub created: Option<Timestamp>,
    /// The session that the first record names; of a sub-agent its parent.
    pub session: Option<String>,
}

impl Head {
    /// Whether more records could tell nothing new.
    pub fn is_whole(&self) -> bool {
        self.cwd.is_some() && self.first_prompt.is_some() && self.created.is_some()
    }

    fn add(&mut self, record: &Record<'_>, sidechain: bool) {
        self.created = self.created.or_else(|| record.time());
        if self.cwd.is_none() {
            self.cwd = text(record.cwd).map(|cwd| cwd.into_owned());
            // Without a branch, and without git, the client writes HEAD.
            let branch = text(record.git_branch).filter(|name| !matches!(&**name, "" | "HEAD"));
            self.branch = branch.filter(|_| self.cwd.is_some()).map(|name| name.into_owned());
        }
        if self.session.is_none() {
            self.session = text(record.session_id).map(|id| id.into_owned());
        }
        if self.first_prompt.is_none() && record.is_sidechain() == sidechain && record.may_begin_turn() {
            let prompt = record.prompt();
            // The client's own commands are no prompts; those that stand for a text begin with their message.
            if !prompt.starts_with("<command-name>") {
                let typed = layout::typed(&prompt);
                self.first_prompt = Some(typed.chars().take(Turn::PROMPT_CHARS).collect());
            }
        }
    }
}

/// What the client notes of a session again and again, so that it stands near the end: what it is called, and where it
/// was moved to.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    /// Its name, by its user.
    pub custom: Option<String>,
    ai: Option<String>,
    /// By older versions.
    summary: Option<String>,
    /// The project that `/cd` moved it to.
    pub relocated: Option<String>,
}

impl Notes {
    /// What the session is called.
    pub fn title(&self) -> Option<&str> {
        [&self.custom, &self.ai, &self.summary].into_iter().find_map(|title| title.as_deref())
    }

    /// These, and the others where these have none.
    pub fn or(self, others: Notes) -> Notes {
        Notes {
            custom: self.custom.or(others.custom),
            ai: self.ai.or(others.ai),
            summary: self.summary.or(others.summary),
            relocated: self.relocated.or(others.relocated),
        }
    }

    fn add(&mut self, record: &Record<'_>) {
        let title = |value| text(value).map(|title| title.into_owned()).filter(|title| !title.is_empty());
        match &*record.type_name() {
            "custom-title" => self.custom = title(record.custom_title),
            "ai-title" => self.ai = title(record.ai_title).or(self.ai.take()),
            "summary" => self.summary = title(record.summary).or(self.summary.take()),
            "relocated" => self.relocated = title(record.relocated_cwd).or(self.relocated.take()),
            _ => {}
        }
    }
}

/// Reads beginning and end of a transcript of `len` bytes.
///
/// # Errors
/// What prevents reading.
pub(super) fn read(folder: &StoreDir, name: &Path, len: u64) -> Result<(Head, Notes)> {
    of(folder, name, len, false)
}

/// The same of a sub-agent's transcript.
///
/// # Errors
/// What prevents reading.
pub(super) fn of_subagent(folder: &StoreDir, name: &Path, len: u64) -> Result<Head> {
    of(folder, name, len, true).map(|(head, _)| head)
}

fn of(folder: &StoreDir, name: &Path, len: u64, sidechain: bool) -> Result<(Head, Notes)> {
    let mut most = FIRST;
    loop {
        let bytes = part(folder, name, 0, most.min(len))?;
        let (mut head, mut notes) = (Head::default(), Notes::default());
        scan_bytes(&bytes, 1, 0, |line| {
            // The last line may go on behind what was read.
            let is_whole = line.terminated || bytes.len() as u64 == len;
            if is_whole
                && (!head.is_whole() || is_note(line.bytes))
                && let Ok(record) = Record::parse(line.bytes)
            {
                head.add(&record, sidechain);
                notes.add(&record);
            }
        });
        if head.is_whole() || bytes.len() as u64 >= len || most >= LONGEST {
            let notes = match sidechain || len <= most {
                true => notes,
                false => tail(folder, name, len)?.or(notes),
            };
            return Ok((head, notes));
        }
        most = (most * 8).min(LONGEST);
    }
}

/// The notes at the end of a transcript of `len` bytes.
///
/// # Errors
/// What prevents reading.
pub(super) fn tail(folder: &StoreDir, name: &Path, len: u64) -> Result<Notes> {
    let from = len.saturating_sub(TAIL);
    let bytes = part(folder, name, from, len - from)?;
    let mut notes = Notes::default();
    scan_bytes(&bytes, 1, from, |line| {
        if is_note(line.bytes)
            && let Ok(record) = Record::parse(line.bytes)
        {
            notes.add(&record);
        }
    });
    Ok(notes)
}

/// Whether a line may be a note; cheaper than to parse it.
fn is_note(line: &[u8]) -> bool {
    line.len() < 16 * 1024
        && ["Title\"", "\"summary\"", "\"relocatedCwd\""]
            .iter()
            .any(|mark| memchr::memmem::find(line, mark.as_bytes()).is_some())
}

/// Of the directories that the records at the end name, the last one that `fits`.
///
/// # Errors
/// What prevents reading.
pub(super) fn last_cwd(
    folder: &StoreDir,
    name: &Path,
    len: u64,
    fits: impl Fn(&str) -> bool,
) -> Result<Option<String>> {
    let from = len.saturating_sub(TAIL);
    let bytes = part(folder, name, from, len - from)?;
    let mut last = None;
    scan_bytes(&bytes, 1, from, |line| {
        // The first line may have begun before.
        if let Ok(record) = Record::parse(line.bytes)
            && let Some(cwd) = text(record.cwd)
            && fits(&cwd)
        {
            last = Some(cwd.into_owned());
        }
    });
    Ok(last)
}

fn part(folder: &StoreDir, name: &Path, from: u64, len: u64) -> Result<Vec<u8>> {
    let path = folder.path().join(name);
    let Some(file) = folder.file(name)? else {
        return Err(Refusal::NotFound { what: path.display().to_string() });
    };
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    let got = read_full(&file, &mut bytes, from).map_err(|error| Refusal::io("cannot read", &path, error))?;
    bytes.truncate(got);
    count_bytes(AgentKind::ClaudeCode, ReadKind::Transcript, got as u64);
    Ok(bytes)
}
