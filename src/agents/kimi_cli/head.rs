//! The head of a transcript: the first prompt and when the session began, without reading the rest.

use std::fs::File;
use std::path::Path;

use jiff::Timestamp;

use super::parse::{self, Message, Wire};
use super::records::{TextKey, is_the_clients_own};
use crate::session::{AgentKind, FileHash, Refusal, Result};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{self, StoreDir, scan_bytes};

/// Most of a wire that is read for its head, bytes: a first prompt may carry images.
const LONGEST: usize = 1 << 20;
/// First read; nearly every head is shorter.
const USUAL: usize = 4096;
/// How much of the first prompt is kept, in characters.
const PROMPT_CHARS: usize = 1000;
/// Enough to tell one head from another: the header and the time of the first record, which no two
/// sessions share.
const PROOF: usize = 256;

/// What the head of a session's main file says.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    pub protocol: Option<String>,
    pub first_prompt: Option<String>,
    pub created: Option<Timestamp>,
    /// Length and hash of the file's first bytes, once there is a first prompt: the same bytes say the
    /// same for ever.
    proof: Option<(usize, FileHash)>,
}

/// The head of a wire. `before` is what an earlier look found: if the wire still begins with the same
/// bytes, nothing else is read.
pub(super) fn read(dir: &StoreDir, wire: &Path, before: Option<&Head>) -> Result<Head> {
    let Some(file) = dir.file(wire)? else { return Ok(Head::default()) };
    let path = dir.path().join(wire);
    if let Some((head, (len, hash))) = before.and_then(|head| Some((head, head.proof?))) {
        let mut bytes = vec![0; len];
        if fill(&file, &path, &mut bytes, 0)? == len && FileHash::of(&bytes) == hash {
            return Ok(head.clone());
        }
    }
    let mut bytes = Vec::new();
    loop {
        let have = bytes.len();
        let want = if have == 0 { USUAL } else { LONGEST };
        bytes.resize(want, 0);
        let got = fill(&file, &path, &mut bytes[have..], have as u64)?;
        bytes.truncate(have + got);
        let at_end = bytes.len() < want;
        let mut head = of_bytes(&bytes);
        if head.first_prompt.is_some() || at_end || want == LONGEST {
            if head.first_prompt.is_some() {
                let proof = &bytes[..bytes.len().min(PROOF)];
                head.proof = Some((proof.len(), FileHash::of(proof)));
            }
            return Ok(head);
        }
    }
}

fn of_bytes(bytes: &[u8]) -> Head {
    let mut head = Head::default();
    scan_bytes(bytes, 1, 0, |line| {
        if head.first_prompt.is_some() || !line.terminated {
            return;
        }
        match parse::wire_line(&line, &mut String::new()) {
            Ok(Wire::Metadata { protocol }) => head.protocol = Some(protocol.text().into_owned()),
            Ok(Wire::Message { time, message }) => {
                head.created = head.created.or(time);
                if let Message::TurnBegin(input) = message {
                    let text = input.text().unwrap_or_default();
                    head.first_prompt = Some(text.chars().take(PROMPT_CHARS).collect());
                }
            }
            Err(_) => {}
        }
    });
    head
}

/// The first prompt of a session without a wire: its first user record. A context has no times.
pub(super) fn of_context(dir: &StoreDir, context: &Path) -> Result<Head> {
    let Some(file) = dir.file(context)? else { return Ok(Head::default()) };
    let mut bytes = vec![0; LONGEST];
    let got = fill(&file, &dir.path().join(context), &mut bytes, 0)?;
    let mut head = Head::default();
    scan_bytes(&bytes[..got], 1, 0, |line| {
        let mut buffer = String::new();
        if head.first_prompt.is_none()
            && let Ok(record) = parse::context_line(&line, &mut buffer)
            && record.role.text() == "user"
        {
            let text = record.content.text().unwrap_or_default();
            if !is_the_clients_own(&TextKey::of(&text)) {
                head.first_prompt = Some(text.chars().take(PROMPT_CHARS).collect());
            }
        }
    });
    Ok(head)
}

/// Reads until the buffer is full or the file ends; bytes read.
fn fill(file: &File, path: &Path, buffer: &mut [u8], at: u64) -> Result<usize> {
    let filled =
        transcript::read_full(file, buffer, at).map_err(|error| Refusal::io("cannot read", path, error))?;
    count_bytes(AgentKind::KimiCli, ReadKind::Transcript, filled as u64);
    Ok(filled)
}
