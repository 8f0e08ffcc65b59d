//! Messages as items: what a turn's text consists of.

use super::records::{Message, Role};
use crate::session::{Item, ItemSink, Refusal, Result};
use crate::transcript::scan_bytes;

/// What a user line is: the same bytes are a prompt or a note, depending on where they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum As {
    Prompt,
    Said,
}

/// The items of one message.
pub(super) fn of(message: &Message<'_>, line: &[u8], what: As, sink: &mut dyn FnMut(Item<'_>)) {
    let text = message.content();
    match message.role() {
        Role::User if what == As::Prompt => sink(Item::User { text: text.into() }),
        Role::User if message.prune_note().is_some() => sink(Item::Compaction { text: text.into() }),
        Role::User => sink(Item::Notice { kind: "harness".into(), text: text.into() }),
        Role::System => sink(Item::Notice { kind: "system".into(), text: text.into() }),
        Role::Assistant => {
            if !text.is_empty() {
                sink(Item::Assistant { text: text.into() });
            }
            for call in message.calls() {
                sink(Item::ToolCall {
                    name: call.function.name.0.as_ref().into(),
                    id: call.id.0.as_ref().into(),
                    arguments: call.function.arguments.0.as_ref().into(),
                });
            }
        }
        Role::Tool => sink(Item::ToolResult {
            id: message.call_id().into(),
            output: text.into(),
            is_error: text.starts_with("Error: "),
        }),
        Role::Other => {
            sink(Item::Unknown { kind: message.role.0.as_ref().into(), json: String::from_utf8_lossy(line) })
        }
    }
}

/// The items of a turn, out of its bytes.
pub(super) fn of_turn(bytes: &[u8], sink: &mut ItemSink<'_>) -> Result<()> {
    let prompt = prompt_line(bytes)?;
    let mut at = 0;
    each(bytes, &mut |message, line| {
        let what = if prompt == Some(at) { As::Prompt } else { As::Said };
        of(message, line, what, &mut |item| sink(None, item));
        at += 1;
    })
}

/// The exact text of a turn's prompt.
pub(super) fn prompt(bytes: &[u8]) -> Result<String> {
    let wanted = prompt_line(bytes)?;
    let (mut at, mut text) = (0, String::new());
    each(bytes, &mut |message, _| {
        if wanted == Some(at) {
            text = message.content().to_owned();
        }
        at += 1;
    })?;
    Ok(text)
}

fn prompt_line(bytes: &[u8]) -> Result<Option<usize>> {
    let (mut at, mut leading) = (0, Vec::new());
    each(bytes, &mut |message, _| {
        if leading.len() == at && message.role() == Role::User {
            leading.push((message.looks_like_note(), message.prune_note().is_some()));
        }
        at += 1;
    })?;
    Ok(prompt_of(&leading))
}

/// Which of the user lines at a turn's start is the prompt, told from whether each looks like a note and like a
/// prune's note: the first that is no note; if all look like notes the last that is no prune's (then a person
/// typed it, or there would be no reply).
pub(super) fn prompt_of(leading: &[(bool, bool)]) -> Option<usize> {
    let plain = leading.iter().position(|(note, _)| !note);
    plain.or(leading.iter().rposition(|(_, of_prune)| !of_prune)).or(leading.len().checked_sub(1))
}

/// Everything in message lines, as the model is sent it.
pub(super) fn context(bytes: &[u8], sink: &mut ItemSink<'_>) -> Result<()> {
    each(bytes, &mut |message, line| {
        let note = message.looks_like_note();
        of(message, line, if note { As::Said } else { As::Prompt }, &mut |item| sink(None, item));
    })
}

fn each(bytes: &[u8], with: &mut dyn FnMut(&Message<'_>, &[u8])) -> Result<()> {
    let mut failed = false;
    scan_bytes(bytes, 1, 0, |line| match Message::parse(line.bytes) {
        Ok(message) => with(&message, line.bytes),
        Err(_) => failed |= !line.is_blank(),
    });
    if failed { Err(Refusal::Changed { what: "the transcript".into() }) } else { Ok(()) }
}
