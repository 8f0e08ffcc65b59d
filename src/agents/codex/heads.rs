//! The head of a rollout file: its first line and its first prompt.

use std::io::Read;
use std::path::Path;

use jiff::Timestamp;

use super::first_format;
use super::line::{self as lines, Content};
use super::records::{Body, Line, Meta, TurnContext};
use super::tails;
use super::titles;
use super::voice::{self, Author};
use crate::session::{AgentKind, DamageClass, Refusal, Result, Turn};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{StoreDir, plain_stream};

/// Where the search for the first prompt ends, bytes of plain text.
const LONGEST: usize = 1 << 20;
/// Longest first line; the client's instructions and the project's are in it.
const LONGEST_FIRST: usize = 64 << 20;
const CHUNK: usize = 64 * 1024;

/// What the head of a file says.
#[derive(Debug)]
pub struct Head {
    /// The first line; the error says what it is instead.
    pub meta: Result<Meta, NoMeta>,
    pub first_prompt: Option<String>,
    pub model: Option<String>,
    /// The time of the file's last record, as [`super::tails`] tells it, where the whole file was read for its head.
    pub ending: Option<Option<Timestamp>>,
    /// The first message that is the user's if only marks tell, for files in which no record does.
    by_marks: Option<String>,
    /// The model said something.
    answered: bool,
    /// Records tell whose words are whose.
    heard: bool,
}

/// A first line that is not `session_meta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMeta {
    /// No bytes at all.
    Empty,
    /// It could not be read.
    Unread,
    Damaged(DamageClass),
    Pointer(Pointer),
}

/// What stands where another store keeps a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pointer {
    GitLfs,
    GitAnnex,
}

impl Pointer {
    /// The one that a file with this beginning is.
    pub fn of(start: &[u8]) -> Option<Pointer> {
        const LFS: [&[u8]; 2] = [b"version https://git-lfs.", b"version https://hawser."];
        if LFS.iter().any(|mark| start.starts_with(mark)) {
            return Some(Pointer::GitLfs);
        }
        start.starts_with(b"/annex/objects/").then_some(Pointer::GitAnnex)
    }

    /// What it is, and what to do, as the rest of a sentence.
    pub fn says(self) -> String {
        let (tool, fetch) = match self {
            Pointer::GitLfs => ("git-lfs", "git lfs pull"),
            Pointer::GitAnnex => ("git-annex", "git annex get"),
        };
        format!(
            "a pointer of {tool}: this is not a rollout; its content was never fetched; run `{fetch}` in the \
             repository that holds the store"
        )
    }
}

/// Reads the head of a file.
///
/// # Errors
/// What prevents reading.
pub fn read(store: &StoreDir, file: &Path) -> Result<Head> {
    let path = store.path().join(file);
    let cannot = |error| Refusal::io("cannot read", &path, error);
    let Some(opened) = store.file(file)? else {
        return Err(Refusal::NotFound { what: path.display().to_string() });
    };
    // A pointer takes the place of a packed file, too.
    let mut start = [0; 64];
    let got = std::os::unix::fs::FileExt::read_at(&opened, &mut start, 0).map_err(cannot)?;
    if let Some(pointer) = Pointer::of(&start[..got]) {
        return Ok(Head::without(NoMeta::Pointer(pointer)));
    }
    let Ok(mut stream) = plain_stream(opened, file) else {
        return Ok(Head::without(NoMeta::Damaged(DamageClass::FirstRecord)));
    };
    let (mut head, mut ending): (Option<Head>, _) = (None, None);
    let mut bytes = Vec::new();
    let (mut start, mut searched) = (0, 0);
    loop {
        let got = match stream.by_ref().take(CHUNK as u64).read_to_end(&mut bytes) {
            Ok(got) => got,
            Err(error) if error.raw_os_error().is_some() => return Err(cannot(error)),
            // A compressed file that is cut off or no such file: what was unpacked before counts.
            Err(_) => 0,
        };
        count_bytes(AgentKind::Codex, ReadKind::Transcript, got as u64);
        if bytes.len() == got && got < CHUNK {
            ending = Some(tails::of_whole(&bytes));
        }
        while let Some(newline) = memchr::memchr(b'\n', &bytes[searched..]) {
            let line = &bytes[start..searched + newline];
            searched += newline + 1;
            start = searched;
            match &mut head {
                None => head = Some(Head::of_first(line)),
                Some(head) => head.add(line),
            }
            if let Some(head) = head.take_if(|head| head.meta.is_err() || head.first_prompt.is_some()) {
                return Ok(Head { ending, ..head });
            }
        }
        searched = bytes.len();
        let limit = if head.is_some() { LONGEST } else { LONGEST_FIRST };
        if got == 0 || bytes.len() > limit {
            let head = head.map_or_else(|| Head::of_first(&bytes[start..]), Head::whole);
            return Ok(Head { ending, ..head });
        }
    }
}

impl Head {
    pub fn without(what: NoMeta) -> Head {
        Head {
            meta: Err(what),
            first_prompt: None,
            model: None,
            by_marks: None,
            answered: false,
            heard: false,
            ending: None,
        }
    }

    /// What kind of pointer the file is, if it is one.
    pub fn pointer(&self) -> Option<Pointer> {
        match self.meta {
            Err(NoMeta::Pointer(pointer)) => Some(pointer),
            _ => None,
        }
    }

    fn of_first(line: &[u8]) -> Head {
        if line.is_empty() {
            return Head::without(NoMeta::Empty);
        }
        if line.starts_with(b"\xEF\xBB\xBF") {
            return Head::without(NoMeta::Damaged(DamageClass::Bom));
        }
        let record = Line::parse(line).filter(|line| line.kind == "session_meta");
        match record.and_then(|record| record.payload()).or_else(|| first_format::meta(line)) {
            Some(meta) => Head { meta: Ok(meta), ..Head::without(NoMeta::Empty) },
            None => Head::without(NoMeta::Damaged(DamageClass::FirstRecord)),
        }
    }

    fn add(&mut self, line: &[u8]) {
        lines::read(line, |content| {
            let Some(Content { body, .. }) = content else { return };
            match body {
                Body::Context(TurnContext { model: Some(model) }) if self.model.is_none() => {
                    self.model = Some(model.clone().into_owned());
                }
                Body::Event(event, item) => {
                    self.heard |= voice::tells_words(event);
                    self.first_prompt = voice::said(event, item.as_ref()).map(|text| shortened(&text));
                }
                Body::Response(response) if voice::may_be_users(response) => {
                    let users = voice::is_users_by_marks(response);
                    let text = users.then(|| shortened(&voice::own_text(response)));
                    if voice::author(response) == Author::User {
                        self.first_prompt = text;
                    } else if self.by_marks.is_none() {
                        self.by_marks = text;
                    }
                    if let Ok(meta) = &mut self.meta
                        && meta.first_format
                    {
                        meta.cwd = meta.cwd.take().or_else(|| first_format::project(response));
                        self.first_prompt = self.by_marks.take();
                    }
                }
                Body::Response(response) => self.answered |= voice::author(response) == Author::Assistant,
                _ => {}
            }
        });
    }

    /// Nothing more is read: where no record tells the user's words, marks must.
    fn whole(mut self) -> Head {
        if self.answered && !self.heard {
            self.first_prompt = self.first_prompt.take().or(self.by_marks.take());
        }
        self
    }
}

fn shortened(text: &str) -> String {
    titles::request(text).chars().take(Turn::PROMPT_CHARS).collect()
}
