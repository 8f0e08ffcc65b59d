//! A turn's lines as items.
//!
//! Both families of lines say the same twice: `response_item` is what the model gets, the events beside it
//! are what the client shows (`user_message` in legacy files, `item_completed` in paginated ones). What
//! stands in both is shown once, so that both history modes give the same text.

use std::borrow::Cow;

use jiff::Timestamp;
use xxhash_rust::xxh3::xxh3_128;

use super::calls::{Calls, repeated};
use super::first_format;
use super::kinds::{self, Form};
use super::line::{At, Content};
use super::records::{Body, CompletedItem, Event, Line, Response, text_of};
use super::voice::{self, Author, Evidence, pictures};
use super::walk::{Rules, Told, Walk};
use crate::agents::json::readable;
use crate::session::{Item, ItemSink};

/// What kind of text stands in both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Assistant,
    Thinking,
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
    pub fn line(&mut self, line: &Line<'_>, json: &str, body: &Body<'_>, sink: &mut ItemSink<'_>) {
        let time = line.time();
        match body {
            Body::Response(response) => self.response(time, response, json, sink),
            Body::Event(event, item) => self.event(time, event, item.as_ref(), json, sink),
            Body::Compacted(_) | Body::Context(_) | Body::Other => {
                self.other(time, kinds::of(kinds::LINES, &line.kind), &line.kind, json, sink);
            }
        }
    }

    /// What only events said, at the turn's end.
    pub fn finish(&mut self, sink: &mut ItemSink<'_>) {
        for Pending { time, said, text, .. } in std::mem::take(&mut self.pending) {
            self.say(time, said, &text, sink);
        }
        self.told.clear();
        self.calls.finish(sink);
    }

    /// What is neither a message nor a thought, in the form that its kind has.
    fn other(
        &mut self,
        time: Option<Timestamp>,
        form: Option<Form>,
        kind: &str,
        json: &str,
        sink: &mut ItemSink<'_>,
    ) {
        let known = match form {
            Some(Form::LeftOut) => Some(()),
            Some(Form::Once(make)) => self.calls.heard(time, json, make),
            Some(Form::Shown(make)) => serde_json::from_str(json).ok().map(|value| {
                for item in make(&value) {
                    sink(time, item);
                }
            }),
            _ => None,
        };
        if known.is_none() {
            unknown(time, kind, json, sink);
        }
    }

    fn say(&self, time: Option<Timestamp>, said: Said, text: &str, sink: &mut ItemSink<'_>) {
        let text = Cow::Borrowed(text);
        sink(
            time,
            match said {
                Said::Assistant => Item::Assistant { text },
                Said::Thinking => Item::Thinking { text },
            },
        );
    }

    /// A response item says it: it is shown here, and its event is not.
    fn told(&mut self, said: Said, text: &str) {
        let key = key(said, text);
        match self.pending.iter().position(|pending| (pending.said, pending.key) == (said, key)) {
            Some(at) => drop(self.pending.remove(at)),
            None => self.told.push((said, key)),
        }
    }

    /// An event says it: shown at the turn's end, unless a response item says the same.
    fn heard(&mut self, time: Option<Timestamp>, said: Said, identity: &str, text: &str) {
        let key = key(said, identity);
        match self.told.iter().position(|told| *told == (said, key)) {
            Some(at) => drop(self.told.swap_remove(at)),
            None if text.is_empty() => {}
            None => self.pending.push(Pending { time, said, key, text: text.to_owned() }),
        }
    }

    fn response(
        &mut self,
        time: Option<Timestamp>,
        response: &Response<'_>,
        json: &str,
        sink: &mut ItemSink<'_>,
    ) {
        match &*response.kind {
            "message" => {
                if voice::author(response) == Author::Assistant {
                    let text = text_of(&response.content);
                    self.told(Said::Assistant, &text);
                    self.calls.message(&text);
                    self.say(time, Said::Assistant, &text, sink);
                } else {
                    // A command that the user ran: its event need not be shown.
                    self.calls.report(&text_of(&response.content));
                }
            }
            "reasoning" => {
                for part in response.summary.iter().chain(&response.content) {
                    let text = part.text.as_deref().unwrap_or("");
                    self.told(Said::Thinking, text);
                    self.say(time, Said::Thinking, text, sink);
                }
            }
            kind => match kinds::of(kinds::RESPONSES, kind) {
                Some(Form::Call(name, asked)) => self.calls.call(time, response, name, asked, sink),
                Some(Form::Result) => self.calls.result(time, response, sink),
                form => {
                    if let Some(id) = response.call_id.as_deref().or(response.id.as_deref()) {
                        self.calls.told(id);
                    }
                    self.other(time, form, kind, json, sink);
                }
            },
        }
    }

    fn event(
        &mut self,
        time: Option<Timestamp>,
        event: &Event<'_>,
        item: Option<&CompletedItem<'_>>,
        json: &str,
        sink: &mut ItemSink<'_>,
    ) {
        match &*event.kind {
            "user_message" => {}
            "agent_message" => {
                let text = event.message.as_deref().unwrap_or("");
                self.heard(time, Said::Assistant, text, text);
            }
            "agent_reasoning" | "agent_reasoning_raw_content" => {
                let text = event.text.as_deref().unwrap_or("");
                self.heard(time, Said::Thinking, text, text);
            }
            "item_completed" => match (item, event.item) {
                (Some(item), Some(raw)) => self.completed(time, item, raw.get(), sink),
                _ => unknown(time, &event.kind, json, sink),
            },
            kind => self.other(time, kinds::of(kinds::EVENTS, kind), kind, json, sink),
        }
    }

    fn completed(
        &mut self,
        time: Option<Timestamp>,
        item: &CompletedItem<'_>,
        json: &str,
        sink: &mut ItemSink<'_>,
    ) {
        match &*item.kind {
            "UserMessage" => {}
            "AgentMessage" => {
                let text = text_of(&item.content);
                self.heard(time, Said::Assistant, &text, &text);
            }
            "Reasoning" => {
                for text in item.summary_text.iter().chain(&item.raw_content) {
                    self.heard(time, Said::Thinking, text, text);
                }
            }
            kind => self.other(time, kinds::of(kinds::ITEMS, kind), kind, json, sink),
        }
    }
}

/// What is the same where a response item and an event say the same.
fn key(said: Said, text: &str) -> u128 {
    match said {
        Said::Assistant => xxh3_128(repeated(text).as_bytes()),
        Said::Thinking => xxh3_128(text.as_bytes()),
    }
}

fn unknown(time: Option<Timestamp>, kind: &str, json: &str, sink: &mut ItemSink<'_>) {
    sink(time, Item::Unknown { kind: kind.into(), json: json.into() });
}

/// One entry of the model's history, with what the client put in; `users`: it is a message of the user's.
pub fn model_item(time: Option<Timestamp>, payload: &str, users: bool, sink: &mut ItemSink<'_>) {
    let json = readable(payload);
    let Ok(response) = serde_json::from_str::<Response<'_>>(&json) else {
        return unknown(time, "response_item", &json, sink);
    };
    match &*response.kind {
        "message" if users => {
            sink(time, Item::User { text: text_of(&response.content) });
            pictures(time, &response.content, sink);
        }
        "message" => match voice::author(&response) {
            Author::Assistant => sink(time, Item::Assistant { text: text_of(&response.content) }),
            _ => voice::model_notice(time, &response, sink),
        },
        "reasoning" => {
            for part in response.summary.iter().chain(&response.content) {
                sink(time, Item::Thinking { text: part.text.clone().unwrap_or_default() });
            }
        }
        _ => Reader::default().response(time, &response, &json, sink),
    }
}

/// The items of a turn, in order, out of its bytes. `paginated`: of such a file; `prompted`: the turn is known to
/// have a prompt.
pub fn items(span: &[u8], paginated: bool, prompted: bool, sink: &mut ItemSink<'_>) {
    struct Place<'s> {
        at: At<'s>,
        record: Option<(Line<'s>, Cow<'s, str>)>,
    }
    impl<'s> Place<'s> {
        fn of(number: usize, start: u64, bytes: &'s [u8]) -> Place<'s> {
            let record = Line::parse(bytes).or_else(|| first_format::record(bytes));
            let record = record.filter(|record| record.kind != "session_meta");
            let record = record.map(|record| {
                let json = readable(record.payload.get());
                (record, json)
            });
            let end = start + bytes.len() as u64;
            Place { at: At { number: number as u64 + 1, start, end, bytes }, record }
        }
    }
    let mut end = 0;
    let mut places = Vec::new();
    for (number, bytes) in span.split_inclusive(|byte| *byte == b'\n').enumerate() {
        places.push(Place::of(number, end, bytes));
        end += bytes.len() as u64;
    }
    let bodies: Vec<Option<Body<'_>>> = places
        .iter()
        .map(|place| place.record.as_ref().and_then(|(line, json)| Body::parse(&line.kind, json).ok()))
        .collect();
    let content = |n: usize| {
        let (record, json) = places[n].record.as_ref()?;
        Some(Content { record, json, body: bodies[n].as_ref()? })
    };
    let script_by = |evidence| {
        let rules = Rules { evidence, paginated, measure: false };
        Walk::script(rules, places.iter().enumerate().map(|(n, place)| (place.at, content(n))))
    };
    let (mut script, heard) = script_by(Evidence::Records);
    if !heard && prompted {
        (script, _) = script_by(Evidence::Marks);
    }
    let mut reader = Reader::default();
    let mut users = 0;
    let mut taken = script.taken.iter().peekable();
    for (n, place) in places.iter().enumerate() {
        let start = place.at.start;
        while taken.next_if(|taken| taken.span.end <= start).is_some() {}
        if let Some(taken) = taken.peek().filter(|taken| taken.span.contains(&start)) {
            if taken.turns && taken.span.start == start {
                // The turn before it was closed when the one that is taken back began.
                reader.finish(sink);
            }
            continue;
        }
        let Some(Content { record, json, body }) = content(n) else { continue };
        let time = record.time();
        let told = script.told.get(&start);
        if let Some(Told::User(text)) = told {
            users += 1;
            let text = Cow::Borrowed(&**text);
            sink(time, if users == 1 { Item::User { text } } else { Item::Steer { text } });
        }
        match body {
            Body::Response(message) if voice::may_be_users(message) => match told {
                Some(_) => pictures(time, &message.content, sink),
                None => voice::client_items(time, message, sink),
            },
            _ => reader.line(record, json, body, sink),
        }
    }
    reader.finish(sink);
}
