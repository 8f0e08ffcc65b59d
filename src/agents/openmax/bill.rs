//! What a session took in all: its bill, a line for each request. Facts: `docs/stores/openmax.md`, "2. Turns".

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;

use super::layout::USAGE;
use crate::agents::remembered::Remembered;
use crate::session::{AgentKind, Refusal, Result, Session, Tokens};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{Stamp, StoreDir, read_small};

/// Longest bill that is read, bytes: some hundred thousand requests.
const LONGEST: u64 = 32 << 20;

/// Bills that were read.
pub(super) type Bills = Mutex<Remembered<Tokens>>;

/// A request. A torn line is none.
#[derive(Deserialize)]
struct Request {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    cached_tokens: Option<u64>,
}

/// The sum of a session's bill; `None` if there is none that can be read.
pub(super) fn tokens(bills: &Bills, session: &Session) -> Option<Tokens> {
    let is_bill = |file: &&std::path::PathBuf| file.to_str().is_some_and(|name| name.ends_with(USAGE));
    let file: Arc<Path> = Arc::from(session.sidecars.iter().find(is_bill)?.as_path());
    let store = StoreDir::open(&session.key.root).ok()??;
    let stamp = store.stat(&file).ok()??;
    let sum = bills.lock().get_or(&file, &stamp, || read(&store, &file, &stamp)).ok()?;
    Some(sum).filter(|sum| !sum.is_empty())
}

fn read(store: &StoreDir, file: &Path, stamp: &Stamp) -> Result<Tokens> {
    let gone = || Refusal::NotFound { what: store.path().join(file).display().to_string() };
    if stamp.len > LONGEST {
        return Err(Refusal::Unsupported { what: "a bill of that length".into() });
    }
    let bytes = read_small(store, file, LONGEST)?.ok_or_else(gone)?;
    count_bytes(AgentKind::OpenMax, ReadKind::Sidecar, bytes.len() as u64);
    let mut sum = Tokens::default();
    let lines = bytes.split(|byte| *byte == b'\n');
    for request in lines.filter_map(|line| serde_json::from_slice::<Request>(line).ok()) {
        sum.add(&Tokens {
            input: request.prompt_tokens,
            cached: request.cached_tokens,
            output: request.completion_tokens,
            reasoning: None,
        });
    }
    Ok(sum)
}
