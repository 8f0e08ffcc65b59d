//! Both ends of a wire, without reading the rest: the first prompt and when the session began; the last record's time.

use std::fs::File;
use std::path::Path;

use jiff::Timestamp;

use super::items;
use super::messages::Whose;
use super::records::{self, Body};
use crate::session::{AgentKind, FileHash, Refusal, Result};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{self, StoreDir, scan_bytes};

/// How much of a wire is read for its head, bytes: before the first prompt stands the client's long system prompt, and
/// the prompt itself may carry pictures.
const HEADS: [usize; 3] = [16 << 10, 128 << 10, 2 << 20];
/// How much of a wire is read for its last record, bytes: a turn ends with short ones.
const TAILS: [u64; 4] = [512, 8 << 10, 128 << 10, 2 << 20];
/// How much of the first prompt is kept, in characters.
const PROMPT_CHARS: usize = 1000;
/// Enough to tell one head from another: no two sessions were made in the same millisecond and bound to the same model.
const PROOF: usize = 256;

/// What the head of a wire says.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    pub protocol: Option<String>,
    pub first_prompt: Option<String>,
    pub created: Option<Timestamp>,
    /// Length and hash of the file's first bytes, once there is a first prompt: the same bytes say the same for ever.
    proof: Option<(usize, FileHash)>,
}

/// The head of a wire. `before` is what an earlier look found: if the wire still begins with the same bytes, nothing
/// else is read.
///
/// # Errors
/// What prevents reading.
pub(super) fn head(dir: &StoreDir, wire: &Path, whose: Whose, before: Option<&Head>) -> Result<Head> {
    let Some(file) = dir.file(wire)? else { return Ok(Head::default()) };
    let path = dir.path().join(wire);
    if let Some((head, (len, hash))) = before.and_then(|head| Some((head, head.proof?))) {
        let mut bytes = vec![0; len];
        if fill(&file, &path, &mut bytes, 0)? == len && FileHash::of(&bytes) == hash {
            return Ok(head.clone());
        }
    }
    let mut bytes = Vec::new();
    let mut head = Head::default();
    for want in HEADS {
        let have = bytes.len();
        bytes.resize(want, 0);
        let got = fill(&file, &path, &mut bytes[have..], have as u64)?;
        bytes.truncate(have + got);
        head = of_bytes(&bytes, whose);
        if head.first_prompt.is_some() || bytes.len() < want {
            break;
        }
    }
    if head.first_prompt.is_some() {
        let proof = &bytes[..bytes.len().min(PROOF)];
        head.proof = Some((proof.len(), FileHash::of(proof)));
    }
    Ok(head)
}

fn of_bytes(bytes: &[u8], whose: Whose) -> Head {
    let mut head = Head::default();
    scan_bytes(bytes, 1, 0, |line| {
        if head.first_prompt.is_some() || !line.terminated {
            return;
        }
        let Ok(record) = records::parse(line.bytes) else { return };
        head.created = head.created.or_else(|| items::time(&record));
        match record.body {
            Body::Metadata { protocol, created } => {
                head.protocol = protocol;
                head.created = created.and_then(|at| Timestamp::from_millisecond(at).ok());
            }
            Body::Message(message) if message.is_anchor(whose) => {
                head.first_prompt = Some(message.text().chars().take(PROMPT_CHARS).collect());
            }
            _ => {}
        }
    });
    head
}

/// The time of the last whole record that has one; `None` where none of the last ones has.
///
/// # Errors
/// What prevents reading.
pub(super) fn last_time(dir: &StoreDir, wire: &Path) -> Result<Option<Timestamp>> {
    let Some(file) = dir.file(wire)? else { return Ok(None) };
    let path = dir.path().join(wire);
    let facts = file.metadata().map_err(|error| Refusal::io("cannot look at", &path, error))?;
    for most in TAILS {
        let from = facts.len().saturating_sub(most);
        let mut bytes = vec![0; (facts.len() - from) as usize];
        let got = fill(&file, &path, &mut bytes, from)?;
        let mut last = None;
        scan_bytes(&bytes[..got], 1, from, |line| {
            let is_whole = line.terminated && (line.number > 1 || from == 0);
            if let Some(time) = is_whole.then(|| records::time(line.bytes)).flatten() {
                last = Some(time);
            }
        });
        if last.is_some() || from == 0 {
            return Ok(last.and_then(|last| Timestamp::from_millisecond(last).ok()));
        }
    }
    Ok(None)
}

/// Reads until the buffer is full or the file ends; bytes read.
fn fill(file: &File, path: &Path, buffer: &mut [u8], at: u64) -> Result<usize> {
    let filled =
        transcript::read_full(file, buffer, at).map_err(|error| Refusal::io("cannot read", path, error))?;
    count_bytes(AgentKind::KimiCode, ReadKind::Transcript, filled as u64);
    Ok(filled)
}
