//! Records as items: what a turn's text consists of, and what the model is sent.

use jiff::Timestamp;

use super::chain::Chain;
use super::messages::{Message, Part, Whose};
use super::records::{self, Body, Record, lossy};
use super::tools;
use super::wire::Wire;
use crate::session::{Action, Item, ItemSink, Outcome, Refusal, Result};
use crate::transcript::scan_bytes;

/// The items of one record; they depend on nothing but its bytes.
pub(super) fn of(record: &Record, line: &[u8], whose: Whose, sink: &mut dyn FnMut(Item<'_>)) {
    match &record.body {
        Body::Message(message) => of_message(message, whose, sink),
        Body::Part(part) => of_part(part, sink),
        Body::Call { id, name, arguments, directory } => {
            let mut asked = tools::asked(name, arguments);
            if let (Action::Command { directory: known @ None, .. }, Some(directory)) =
                (&mut asked.action, directory)
            {
                *known = Some(directory.into());
            }
            sink(Item::ToolCall { name: name.into(), id: id.into(), asked })
        }
        Body::Result { id, output, is_error, duration } => {
            let outcome = Outcome { duration: *duration, ..Outcome::of(*is_error) };
            sink(Item::ToolResult { id: id.into(), output: output.into(), outcome })
        }
        Body::Compaction { summary, .. } => sink(Item::Compaction { text: summary.into() }),
        Body::Clear => sink(Item::Notice {
            kind: "context.clear".into(),
            text: "The model is sent nothing from before here.".into(),
        }),
        Body::Ended { error: Some(error), .. } => {
            sink(Item::Notice { kind: "error".into(), text: error.into() })
        }
        Body::Unknown => sink(Item::Unknown { kind: record.kind.as_str().into(), json: lossy(line) }),
        Body::Metadata { .. }
        | Body::Switched(_)
        | Body::Undo { .. }
        | Body::Undone
        | Body::Prompt { .. }
        | Body::Owned { .. }
        | Body::Ended { .. }
        | Body::Bind { .. }
        | Body::FileHistory
        | Body::Usage { .. }
        | Body::Bookkeeping => {}
    }
}

fn of_message(message: &Message, whose: Whose, sink: &mut dyn FnMut(Item<'_>)) {
    let text = message.text();
    match message.role.as_str() {
        "user" if message.is_anchor(whose) => sink(Item::User { text: text.into() }),
        "user" if message.is_users(whose) => sink(Item::Steer { text: text.into() }),
        "assistant" => {
            message.parts.iter().for_each(|part| of_part(part, sink));
            for (id, name, arguments) in &message.calls {
                let asked = tools::asked(name, arguments);
                sink(Item::ToolCall { name: name.into(), id: id.into(), asked });
            }
            return;
        }
        "tool" => sink(Item::ToolResult {
            id: message.answers.as_deref().unwrap_or_default().into(),
            output: text.into(),
            outcome: Outcome::default(),
        }),
        role => {
            let origin = &message.origin;
            let kind = origin.name.as_deref().or(origin.kind.as_deref()).unwrap_or(role);
            sink(Item::Notice { kind: kind.into(), text: text.into() });
        }
    }
    for part in &message.parts {
        if let Part::Blob { .. } = part {
            of_part(part, sink);
        }
    }
}

fn of_part(part: &Part, sink: &mut dyn FnMut(Item<'_>)) {
    match part {
        Part::Text(text) if text.is_empty() => {}
        Part::Text(text) => sink(Item::Assistant { text: text.into() }),
        Part::Thinking(text) => sink(Item::Thinking { text: text.into() }),
        Part::Blob { media_type, bytes, base64 } => {
            sink(Item::Blob { media_type: media_type.into(), bytes: *bytes, base64: base64.into() });
        }
    }
}

/// The items of a turn, out of its bytes.
pub(super) fn of_turn(bytes: &[u8], whose: Whose, sink: &mut ItemSink<'_>) -> Result<()> {
    each(bytes, |record, line| of(&record, line, whose, &mut |item| sink(time(&record), item)))
}

/// The exact text of a turn's prompt.
pub(super) fn prompt(bytes: &[u8], whose: Whose) -> Result<String> {
    let mut prompt = None;
    each(bytes, |record, _| {
        if let (None, Body::Message(message)) = (&prompt, &record.body)
            && message.is_anchor(whose)
        {
            prompt = Some(message.text());
        }
    })?;
    Ok(prompt.unwrap_or_default())
}

/// When it was written.
pub(super) fn time(record: &Record) -> Option<Timestamp> {
    Timestamp::from_millisecond(record.time?).ok()
}

/// Gives the records of these lines to `with`, one at a time.
///
/// # Errors
/// [`Refusal::Changed`] if one of them is none; those around it were given.
pub(super) fn each<'b>(bytes: &'b [u8], mut with: impl FnMut(Record, &'b [u8])) -> Result<()> {
    let mut failed = false;
    scan_bytes(bytes, 1, 0, |line| match records::parse(line.bytes) {
        Ok(record) => with(record, line.bytes),
        Err(_) => failed |= !line.is_blank(),
    });
    if failed { Err(Refusal::Changed { what: "the wire".into() }) } else { Ok(()) }
}

/// What the model is sent on resume: of what was said before the last compaction only the user's own words and the
/// summary. `read` gives the bytes of a stretch of records.
///
/// # Errors
/// What prevents reading.
pub(super) fn context(
    wire: &Wire,
    chain: &Chain,
    whose: Whose,
    read: impl Fn(std::ops::Range<u64>) -> Result<Vec<u8>>,
    sink: &mut ItemSink<'_>,
) -> Result<()> {
    let mut folded = Folded::default();
    for range in &chain.ranges {
        let bytes = read(wire.start_of(range.start)..wire.start_of(range.end))?;
        each(&bytes, |record, line| folded.take(record, line, whose))?;
    }
    for (said, line) in folded.said {
        of(&said, &line, whose, &mut |item| sink(time(&said), item));
    }
    Ok(())
}

/// The model's context while records pass by.
#[derive(Default)]
struct Folded {
    said: Vec<(Record, Vec<u8>)>,
}

impl Folded {
    fn take(&mut self, record: Record, line: &[u8], whose: Whose) {
        match &record.body {
            Body::Message(_) | Body::Part(_) | Body::Call { .. } | Body::Result { .. } => {}
            Body::Clear => return self.said.clear(),
            Body::Compaction { kept, head, .. } => {
                let is_users = |said: &(Record, Vec<u8>)| matches!(&said.0.body, Body::Message(message) if message.is_users(whose));
                self.said.retain(is_users);
                let all = self.said.len();
                // Of very much that the user said the middle is left out.
                let count = |n: Option<u64>| usize::try_from(n.unwrap_or(0)).unwrap_or(usize::MAX).min(all);
                let (kept, head) = (count(*kept), count(*head).min(count(*kept)));
                self.said.drain(head..all - (kept - head));
            }
            _ => return,
        }
        self.said.push((record, line.to_vec()));
    }
}
