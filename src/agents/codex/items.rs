//! A turn's lines as items.
//!
//! Both families of lines say the same twice: `response_item` is what the model gets, the events beside it
//! are what the client shows (`user_message` in legacy files, `item_completed` in paginated ones). What
//! stands in both is shown once, so that both history modes give the same text.

use std::borrow::Cow;

use jiff::Timestamp;
use xxhash_rust::xxh3::xxh3_128;

use super::calls::{Calls, repeated};
use super::kinds::{self, Form, Kinds};
use super::line::{self, At, Content};
use super::records::{Body, CompletedItem, Event, Response, text_of};
use super::voice::{self, Author, Evidence, pictures};
use super::walk::{Rules, Told, Walk};
use crate::agents::json::readable;
use crate::session::{Item, ItemSink};

/// Where the items of one record go.
pub struct Out<'o, 's> {
    pub time: Option<Timestamp>,
    pub sink: &'o mut ItemSink<'s>,
}

impl Out<'_, '_> {
    pub fn put(&mut self, item: Item<'_>) {
        (self.sink)(self.time, item);
    }

    pub fn put_all<'i>(&mut self, items: impl IntoIterator<Item = Item<'i>>) {
        items.into_iter().for_each(|item| self.put(item));
    }

    fn unknown(&mut self, kind: &str, json: &str) {
        self.put(Item::Unknown { kind: kind.into(), json: json.into() });
    }
}

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

/// Turns the lines of one turn into items, in order; all but the messages of which [`Walk`] knows whose they are.
#[derive(Clone, Default)]
pub struct Reader {
    /// Told by response items, not yet repeated by an event.
    told: Vec<(Said, u128)>,
    pending: Vec<Pending>,
    calls: Calls,
}

impl Reader {
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

    fn response(&mut self, response: &Response<'_>, json: &str, out: &mut Out<'_, '_>) {
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

/// One entry of the model's history, with what the client put in; `users`: it is a message of the user's.
pub fn model_item(time: Option<Timestamp>, payload: &str, users: bool, sink: &mut ItemSink<'_>) {
    let json = readable(payload);
    let out = &mut Out { time, sink };
    let Ok(response) = serde_json::from_str::<Response<'_>>(&json) else {
        return out.unknown("response_item", &json);
    };
    match &*response.kind {
        "message" if users => {
            out.put(Item::User { text: text_of(&response.content) });
            out.put_all(pictures(&response.content));
        }
        "message" if voice::author(&response) != Author::Assistant => {
            out.put_all(voice::model_notice(&response));
        }
        _ => Reader::default().response(&response, &json, out),
    }
}

/// The items of a turn, in order, out of its bytes. `paginated`: of such a file; `prompted`: the turn is known to
/// have a prompt.
pub fn items(span: &[u8], paginated: bool, prompted: bool, sink: &mut ItemSink<'_>) {
    let mut end = 0;
    let lines = span.split_inclusive(|byte| *byte == b'\n').zip(1..).map(|(bytes, number)| {
        let start = end;
        end += bytes.len() as u64;
        (At { number, start, end, bytes }, line::record(bytes))
    });
    let lines: Vec<_> = lines.collect();
    let bodies: Vec<Option<Body<'_>>> = lines
        .iter()
        .map(|(_, record)| record.as_ref().and_then(|(line, json)| Body::parse(&line.kind, json).ok()))
        .collect();
    let lines = lines.iter().zip(&bodies).map(|((at, record), body)| {
        let content = record.as_ref().zip(body.as_ref());
        (*at, content.map(|((record, json), body)| Content { record, json, body }))
    });
    let script_by = |evidence| {
        let rules = Rules { evidence, paginated, measure: false };
        Walk::script(rules, lines.clone())
    };
    let (mut script, heard) = script_by(Evidence::Records);
    if !heard && prompted {
        (script, _) = script_by(Evidence::Marks);
    }
    let mut reader = Reader::default();
    let mut users = 0;
    let mut taken = script.taken.iter().peekable();
    for (At { start, .. }, content) in lines {
        while taken.next_if(|taken| taken.span.end <= start).is_some() {}
        if let Some(taken) = taken.peek().filter(|taken| taken.span.contains(&start)) {
            if taken.turns && taken.span.start == start {
                // The turn before it was closed when the one that is taken back began.
                reader.finish(sink);
            }
            continue;
        }
        let Some(content) = content else { continue };
        let out = &mut Out { time: content.record.time(), sink };
        let told = script.told.get(&start);
        if let Some(Told::User(text)) = told {
            users += 1;
            let text = Cow::Borrowed(&**text);
            out.put(if users == 1 { Item::User { text } } else { Item::Steer { text } });
        }
        match (content.body, told) {
            (Body::Response(message), Some(_)) if voice::may_be_users(message) => {
                out.put_all(pictures(&message.content));
            }
            (Body::Response(message), None) if voice::may_be_users(message) => {
                out.put_all(voice::client_items(message));
            }
            _ => reader.line(content, sink),
        }
    }
    reader.finish(sink);
}
