//! A turn's lines as items.
//!
//! Both families of lines say the same twice: `response_item` is what the model gets, the events beside it
//! are what the client shows (`user_message` in legacy files, `item_completed` in paginated ones). What
//! stands in both is shown once, so that both history modes give the same text.

use std::borrow::Cow;

use jiff::Timestamp;

use super::line::{self, At, Content};
use super::open_turn::Rules;
use super::reader::Reader;
use super::records::{Body, Response, text_of};
use super::shown::{Out, pictures};
use super::voice::{self, Author, Evidence};
use super::walk::{Told, Walk};
use crate::agents::json::readable;
use crate::session::{Item, ItemSink};

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
        _ => Reader::verbatim().response(&response, &json, out),
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
