//! Messages as items: what a turn's text consists of.

use super::records::{Message, Role};
use super::tools;
use crate::session::{Item, ItemSink, Outcome, Refusal, Result};
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
                    asked: tools::asked(&call.function.name.0, &call.function.arguments.0),
                });
            }
        }
        Role::Tool => sink(Item::ToolResult {
            id: message.call_id().into(),
            output: text.into(),
            outcome: Outcome::of(text.starts_with("Error: ")),
        }),
        Role::Other => {
            sink(Item::Unknown { kind: message.role.0.as_ref().into(), json: String::from_utf8_lossy(line) })
        }
    }
}

/// The items of a turn, out of its bytes.
pub(super) fn of_turn(bytes: &[u8], sink: &mut ItemSink<'_>) -> Result<()> {
    let messages = messages(bytes)?;
    let prompt = prompt_at(&messages);
    for (at, (message, line)) in messages.iter().enumerate() {
        let what = if prompt == Some(at) { As::Prompt } else { As::Said };
        of(message, line, what, &mut |item| sink(None, item));
    }
    Ok(())
}

/// The exact text of a turn's prompt.
pub(super) fn prompt(bytes: &[u8]) -> Result<String> {
    let messages = messages(bytes)?;
    Ok(prompt_at(&messages).map(|at| messages[at].0.content().to_owned()).unwrap_or_default())
}

fn prompt_at(messages: &[(Message<'_>, &[u8])]) -> Option<usize> {
    let users = messages.iter().map(|(message, _)| message).take_while(|one| one.role() == Role::User);
    prompt_of(&users.map(|user| (user.looks_like_note(), user.prune_note().is_some())).collect::<Vec<_>>())
}

/// Which of the user lines at a turn's start is the prompt, told from whether each looks like a note and like a
/// prune's note: the first that does not look like a note; else the last that is not a prune's (then a person
/// typed it, or there would be no reply).
pub(super) fn prompt_of(leading: &[(bool, bool)]) -> Option<usize> {
    let plain = leading.iter().position(|(note, _)| !note);
    plain.or(leading.iter().rposition(|(_, of_prune)| !of_prune)).or(leading.len().checked_sub(1))
}

/// Everything in message lines, as the model is sent it.
pub(super) fn context(bytes: &[u8], sink: &mut ItemSink<'_>) -> Result<()> {
    each(bytes, |message, line| {
        let what = if message.looks_like_note() { As::Said } else { As::Prompt };
        of(&message, line, what, &mut |item| sink(None, item));
    })
}

/// The messages of these lines, each with its line.
fn messages(bytes: &[u8]) -> Result<Vec<(Message<'_>, &[u8])>> {
    let mut all = Vec::new();
    each(bytes, |message, line| all.push((message, line)))?;
    Ok(all)
}

/// Gives the messages of these lines to `with`, one at a time: a whole context is too long to be kept.
///
/// # Errors
/// [`Refusal::Changed`] if one of them is not a message; those around it were given.
fn each<'b>(bytes: &'b [u8], mut with: impl FnMut(Message<'b>, &'b [u8])) -> Result<()> {
    let mut failed = false;
    scan_bytes(bytes, 1, 0, |line| match Message::parse(line.bytes) {
        Ok(message) => with(message, line.bytes),
        Err(_) => failed |= !line.is_blank(),
    });
    if failed { Err(Refusal::Changed { what: "the transcript".into() }) } else { Ok(()) }
}
