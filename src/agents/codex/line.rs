//! A line with its place and what it holds, parsed once; also one that is kept until it is known whose it is.

use std::borrow::Cow;

use super::first_format;
use super::records::{Body, Line as Record, Response};
use crate::agents::json::readable;

/// A line's place.
#[derive(Clone, Copy)]
pub struct At<'l> {
    /// From 1.
    pub number: u64,
    pub start: u64,
    /// Behind its newline.
    pub end: u64,
    pub bytes: &'l [u8],
}

/// What a line holds, if it is a record: the payload is given as readable JSON and as what it is.
#[derive(Clone, Copy)]
pub struct Content<'l> {
    pub record: &'l Record<'l>,
    pub json: &'l str,
    pub body: &'l Body<'l>,
}

/// A line that may belong to the turn that is open, or to the next one.
#[derive(Clone)]
pub struct Held {
    number: u64,
    start: u64,
    end: u64,
    pub bytes: Vec<u8>,
}

impl Held {
    pub fn of(at: &At<'_>) -> Held {
        Held { number: at.number, start: at.start, end: at.end, bytes: at.bytes.to_vec() }
    }

    pub fn with<R>(&self, each: impl FnOnce(&At<'_>, Option<Content<'_>>) -> R) -> R {
        let at = At { number: self.number, start: self.start, end: self.end, bytes: &self.bytes };
        read(&self.bytes, |content| each(&at, content))
    }

    /// Whether it is such a response item.
    pub fn is_response(&self, such: impl FnOnce(&Response<'_>) -> bool) -> bool {
        self.with(|_, content| match content {
            Some(Content { body: Body::Response(response), .. }) => such(response),
            _ => false,
        })
    }
}

/// A line as a record that counts, and its payload as readable JSON; `None` if it is none.
pub fn record(bytes: &[u8]) -> Option<(Record<'_>, Cow<'_, str>)> {
    // The first session_meta is the head's; copied forks hold those of the files that they were copied from.
    let record = Record::parse(bytes).or_else(|| first_format::record(bytes));
    let record = record.filter(|record| record.kind != "session_meta")?;
    let json = readable(record.payload.get());
    Some((record, json))
}

/// Parses a line; `None` is given for what is no record that counts.
pub fn read<R>(bytes: &[u8], each: impl FnOnce(Option<Content<'_>>) -> R) -> R {
    let Some((record, json)) = record(bytes) else { return each(None) };
    let body = Body::parse(&record.kind, &json).ok();
    each(body.as_ref().map(|body| Content { record: &record, json: &json, body }))
}
