//! The lines of a turn as items, one line after the other.

use std::borrow::Cow;

use jiff::Timestamp;
use xxhash_rust::xxh3::xxh3_128;

use super::calls::{Calls, repeated};
use super::kinds::{self, Form, Kinds};
use super::line::Content;
use super::records::{Body, CompletedItem, Event, Response, text_of};
use super::shown::Out;
use super::voice::{self, Author};
use crate::session::{Item, ItemSink};

/// What kind of text stands in both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Assistant,
    Thinking,
}

impl Said {
    fn item(self, text: &str) -> Item<'_> {
        let text = Cow::Borrowed(text);
        match self {
            Said::Assistant => Item::Assistant { text },
            Said::Thinking => Item::Thinking { text },
        }
    }

    /// What is the same where a response item and an event say the same.
    fn key(self, text: &str) -> u128 {
        match self {
            Said::Assistant => xxh3_128(repeated(text).trim().as_bytes()),
            Said::Thinking => xxh3_128(text.as_bytes()),
        }
    }
}

/// Something that an event said and no response item has said yet.
#[derive(Clone)]
struct Pending {
    time: Option<Timestamp>,
    said: Said,
    key: u128,
    text: String,
}

/// Turns the lines of one turn into items, in order; all but the messages of which a walk knows whose they are.
#[derive(Clone, Default)]
pub struct Reader {
    /// Told by response items, not yet repeated by an event.
    told: Vec<(Said, u128)>,
    pending: Vec<Pending>,
    calls: Calls,
}

impl Reader {
    /// One that shows the results of calls exactly as the model is sent them.
    pub fn verbatim() -> Reader {
        Reader { calls: Calls::verbatim(), ..Reader::default() }
    }

    /// The items of the next line. What only an event says waits for [`Reader::finish`]: a later line may say it, too.
    pub fn line(&mut self, Content { record, json, body }: Content<'_>, sink: &mut ItemSink<'_>) {
        let out = &mut Out { time: record.time(), sink };
        match body {
            Body::Response(response) => self.response(response, json, out),
            Body::Event(event, item) => self.event(event, item.as_ref(), json, out),
            Body::Compacted(_) | Body::Context(_) | Body::Other => {
                self.other(kinds::LINES, &record.kind, json, out);
            }
        }
    }

    /// What only events said, at the turn's end.
    pub fn finish(&mut self, sink: &mut ItemSink<'_>) {
        for Pending { time, said, text, .. } in std::mem::take(&mut self.pending) {
            sink(time, said.item(&text));
        }
        self.told.clear();
        self.calls.finish(sink);
    }

    /// What is neither a message nor a thought, in the form that its kind has.
    fn other(&mut self, kinds: Kinds, kind: &str, json: &str, out: &mut Out<'_, '_>) {
        let known = match kinds::of(kinds, kind) {
            Some(Form::LeftOut) => Some(()),
            Some(Form::Once(make)) => self.calls.heard(out.time, json, make),
            Some(Form::Shown(make)) => serde_json::from_str(json).ok().map(|value| out.put_all(make(&value))),
            _ => None,
        };
        if known.is_none() {
            out.unknown(kind, json);
        }
    }

    /// A response item says it: it is shown here, and its event is not.
    fn say(&mut self, said: Said, text: &str, out: &mut Out<'_, '_>) {
        let key = said.key(text);
        match self.pending.iter().position(|pending| (pending.said, pending.key) == (said, key)) {
            Some(at) => drop(self.pending.remove(at)),
            None => self.told.push((said, key)),
        }
        out.put(said.item(text));
    }

    /// An event says it: shown at the turn's end, unless a response item says the same.
    fn hear(&mut self, time: Option<Timestamp>, said: Said, text: &str) {
        let key = said.key(text);
        match self.told.iter().position(|told| *told == (said, key)) {
            Some(at) => drop(self.told.swap_remove(at)),
            None if text.is_empty() => {}
            None => self.pending.push(Pending { time, said, key, text: text.to_owned() }),
        }
    }

    pub fn response(&mut self, response: &Response<'_>, json: &str, out: &mut Out<'_, '_>) {
        match &*response.kind {
            "message" if voice::author(response) == Author::Assistant => {
                let text = text_of(&response.content);
                self.calls.message(&text);
                self.say(Said::Assistant, &text, out);
            }
            // A command that the user ran: its event need not be shown.
            "message" => self.calls.report(&text_of(&response.content)),
            "reasoning" => {
                for text in response.thoughts() {
                    self.say(Said::Thinking, text, out);
                }
            }
            kind => match kinds::of(kinds::RESPONSES, kind) {
                Some(Form::Call(name, asked)) => self.calls.call(response, name, asked, out),
                Some(Form::Result) => self.calls.result(response, out),
                _ => {
                    if let Some(id) = response.call_id.as_deref().or(response.id.as_deref()) {
                        self.calls.told(id);
                    }
                    self.other(kinds::RESPONSES, kind, json, out);
                }
            },
        }
    }

    fn event(
        &mut self,
        event: &Event<'_>,
        item: Option<&CompletedItem<'_>>,
        json: &str,
        out: &mut Out<'_, '_>,
    ) {
        match &*event.kind {
            "user_message" => {}
            "agent_message" => self.hear(out.time, Said::Assistant, event.message.as_deref().unwrap_or("")),
            "agent_reasoning" | "agent_reasoning_raw_content" => {
                self.hear(out.time, Said::Thinking, event.text.as_deref().unwrap_or(""));
            }
            "item_completed" => match (item, event.item) {
                (Some(item), Some(raw)) => self.completed(item, raw.get(), out),
                _ => out.unknown(&event.kind, json),
            },
            kind => self.other(kinds::EVENTS, kind, json, out),
        }
    }

    fn completed(&mut self, item: &CompletedItem<'_>, json: &str, out: &mut Out<'_, '_>) {
        match &*item.kind {
            "UserMessage" => {}
            "AgentMessage" => self.hear(out.time, Said::Assistant, &text_of(&item.content)),
            "Reasoning" => {
                for text in item.summary_text.iter().chain(&item.raw_content) {
                    self.hear(out.time, Said::Thinking, text);
                }
            }
            kind => self.other(kinds::ITEMS, kind, json, out),
        }
    }
}
