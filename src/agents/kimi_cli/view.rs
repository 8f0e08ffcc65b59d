//! What is shown out of record bytes: a turn's items, its exact prompt, and what the model will be sent.

use std::path::Path;

use super::parse::{self, Message, Wire};
use super::{items, layout};
use crate::session::{History, ItemSink, Refusal, Result, Session, Turn};
use crate::transcript::{Line, StoreDir, scan, scan_bytes};

/// The items of a turn's record bytes.
pub(super) fn items(turn: &Turn, span: &[u8], sink: &mut ItemSink<'_>) -> Result<()> {
    check(turn, span)?;
    let by_wire = is_wire(&turn.file);
    scan_bytes(span, turn.line, turn.span.start, |line| {
        if by_wire {
            if let Ok(wire) = parse::wire_line(&line, &mut String::new()) {
                items::of_wire(&wire, line.bytes, sink);
            }
        } else {
            of_context(&line, sink);
        }
    });
    Ok(())
}

/// The exact text of a turn's user, out of its record bytes.
pub(super) fn prompt(turn: &Turn, span: &[u8]) -> Result<String> {
    check(turn, span)?;
    let by_wire = is_wire(&turn.file);
    let mut prompt = None;
    scan_bytes(span, turn.line, turn.span.start, |line| {
        if prompt.is_some() {
            return;
        }
        let mut buffer = String::new();
        let content = if by_wire {
            match parse::wire_line(&line, &mut buffer) {
                Ok(Wire::Message { message: Message::TurnBegin(input), .. }) => Some(input),
                _ => None,
            }
        } else {
            let record = parse::context_line(&line, &mut buffer).ok();
            record.filter(|record| record.role.text() == "user").map(|record| record.content)
        };
        prompt = content.map(|content| content.text().unwrap_or_default().into_owned());
    });
    Ok(prompt.unwrap_or_default())
}

/// The live context: what the client reads back on resume.
pub(super) fn context(session: &Session, history: &History, sink: &mut ItemSink<'_>) -> Result<()> {
    let is_live = |file: &Path| file.ends_with(layout::CONTEXT) || file == &*session.key.path;
    let live = history.files.iter().find(|view| view.len.is_some() && is_live(&view.file));
    let Some(live) = live else { return Ok(()) };
    let changed = || Refusal::Changed { what: live.file.display().to_string() };
    let store = StoreDir::open(&session.key.root)?.ok_or_else(changed)?;
    let file = store.file(&live.file)?.ok_or_else(changed)?;
    // Items are handed out only after the whole file was seen not to change: the records are kept as bytes
    // until then. A context is bounded by what a model takes.
    let (bytes, scanned) = scan(&file, &session.key.root.join(&live.file), Vec::new, |all, line| {
        if line.nuls == 0 {
            all.extend_from_slice(line.bytes);
            all.push(b'\n');
        }
    })?;
    if (Some(scanned.len), scanned.hash) != (live.len, live.hash) {
        return Err(changed());
    }
    scan_bytes(&bytes, 1, 0, |line| of_context(&line, sink));
    Ok(())
}

fn of_context(line: &Line<'_>, sink: &mut ItemSink<'_>) {
    if let Ok(record) = parse::context_line(line, &mut String::new()) {
        items::of_context(&record, line.bytes, sink);
    }
}

fn is_wire(file: &Path) -> bool {
    file.ends_with(layout::WIRE)
}

fn check(turn: &Turn, span: &[u8]) -> Result<()> {
    if span.len() as u64 == turn.span.end - turn.span.start {
        return Ok(());
    }
    Err(Refusal::Changed { what: turn.file.display().to_string() })
}
