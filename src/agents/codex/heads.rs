//! The head of a rollout file: its first line and its first prompt. Each is read once and remembered with
//! the facts of the file that it was read from.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::items::Reader;
use super::layout::Rollout;
use super::records::{Line, Meta, TurnContext};
use crate::session::{AgentKind, DamageClass, Item, Refusal, Result, Turn};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{Stamp, StoreDir, plain_stream};

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
}

/// A first line that is not `session_meta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMeta {
    /// No bytes at all.
    Empty,
    /// It could not be read.
    Unread,
    Damaged(DamageClass),
}

/// The heads of a store's files, by name.
#[derive(Default)]
pub struct Heads {
    known: HashMap<Arc<Path>, Known>,
    /// Files read so far; what a test counts.
    pub reads: u64,
}

struct Known {
    stamp: Stamp,
    /// Read too soon after a change to be believed at the next look.
    young: bool,
    head: Arc<Head>,
}

impl Heads {
    /// The head of a file with these facts; read only if it is not known already.
    ///
    /// # Errors
    /// What prevents reading.
    pub fn head(&mut self, store: &StoreDir, rollout: &Rollout, stamp: &Stamp) -> Result<Arc<Head>> {
        if let Some(known) = self.known.get(&rollout.file)
            && known.stamp == *stamp
            && !known.young
        {
            return Ok(known.head.clone());
        }
        let young = !stamp.vouches(crate::transcript::clock());
        let head = Arc::new(read(store, &rollout.file)?);
        self.reads += 1;
        self.known.insert(rollout.file.clone(), Known { stamp: *stamp, young, head: head.clone() });
        Ok(head)
    }

    /// Forgets files that are gone.
    pub fn keep_only(&mut self, there: impl Fn(&Path) -> bool) {
        self.known.retain(|file, _| there(file));
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
    let mut stream = match plain_stream(opened, file) {
        Ok(stream) => stream,
        Err(_) => return Ok(Head::without(NoMeta::Damaged(DamageClass::FirstRecord))),
    };
    let mut head: Option<Head> = None;
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
        while let Some(newline) = memchr::memchr(b'\n', &bytes[searched..]) {
            let end = searched + newline;
            let line = &bytes[start..end];
            (start, searched) = (end + 1, end + 1);
            match &mut head {
                None => {
                    let first = Head::of_first(line);
                    if first.meta.is_err() {
                        return Ok(first);
                    }
                    head = Some(first);
                }
                Some(head) => head.add(line),
            }
            if let Some(complete) = head.take_if(|head| head.first_prompt.is_some()) {
                return Ok(complete);
            }
        }
        searched = bytes.len();
        let limit = if head.is_some() { LONGEST } else { LONGEST_FIRST };
        if got == 0 || bytes.len() > limit {
            return Ok(head.unwrap_or_else(|| Head::of_first(&bytes[start..])));
        }
    }
}

impl Head {
    pub fn without(what: NoMeta) -> Head {
        Head { meta: Err(what), first_prompt: None, model: None }
    }

    fn of_first(line: &[u8]) -> Head {
        if line.is_empty() {
            return Head::without(NoMeta::Empty);
        }
        if line.starts_with(b"\xEF\xBB\xBF") {
            return Head::without(NoMeta::Damaged(DamageClass::Bom));
        }
        match meta(line) {
            Some(meta) => Head { meta: Ok(meta), first_prompt: None, model: None },
            None => Head::without(NoMeta::Damaged(DamageClass::FirstRecord)),
        }
    }

    fn add(&mut self, line: &[u8]) {
        let Some(line) = Line::parse(line) else { return };
        if line.kind == "turn_context" && self.model.is_none() {
            self.model =
                line.payload::<TurnContext<'_>>().and_then(|context| Some(context.model?.into_owned()));
        }
        let mut reader = Reader::default();
        let mut found = None;
        let mut sink = |_, item: Item<'_>| {
            if let Item::User { text } = item {
                found.get_or_insert_with(|| text.chars().take(Turn::PROMPT_CHARS).collect::<String>());
            }
        };
        reader.line(&line, &mut sink);
        reader.finish(&mut sink);
        self.first_prompt = found;
    }
}

/// The first line of a rollout; `None` if it is anything else.
pub fn meta(line: &[u8]) -> Option<Meta> {
    let line = Line::parse(line)?;
    (line.kind == "session_meta").then(|| line.payload())?
}
