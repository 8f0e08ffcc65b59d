//! What items are made of, and where they go: fields of records, calls and their results, pictures.

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::Value;

use super::records::Part;
use crate::agents::data_url;
use crate::session::{Asked, Item, ItemSink, Outcome};

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

    pub fn unknown(&mut self, kind: &str, json: &str) {
        self.put(Item::Unknown { kind: kind.into(), json: json.into() });
    }
}

/// What is told of a call that may stand elsewhere, too.
#[derive(Default)]
pub struct Once {
    pub items: Vec<Item<'static>>,
    /// What is the same in the response item of that call, besides its id.
    pub same: Vec<String>,
}

impl From<Vec<Item<'static>>> for Once {
    fn from(items: Vec<Item<'static>>) -> Once {
        Once { items, same: Vec::new() }
    }
}

/// A field's text; empty if there is none.
pub fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or("")
}

/// The first of these fields that has a text.
pub fn first<'v>(value: &'v Value, keys: &[&str]) -> &'v str {
    keys.iter().map(|key| text(value, key)).find(|text| !text.is_empty()).unwrap_or("")
}

/// The text behind what introduces it; nothing if it is empty.
pub fn after(introduction: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{introduction}{text}") }
}

pub fn notice(kind: &str, text: impl Into<String>) -> Vec<Item<'static>> {
    vec![Item::Notice { kind: kind.to_owned().into(), text: text.into().into() }]
}

/// The texts that are not empty, one below the other.
pub fn lines(texts: &[&str]) -> String {
    texts.iter().filter(|text| !text.is_empty()).copied().collect::<Vec<_>>().join("\n")
}

fn id_of(value: &Value) -> String {
    first(value, &["call_id", "callId", "event_id", "id"]).to_owned()
}

pub fn tool_call(name: impl Into<Cow<'static, str>>, value: &Value, asked: Asked<'static>) -> Item<'static> {
    Item::ToolCall { name: name.into(), id: id_of(value).into(), asked }
}

pub fn tool_result(value: &Value, output: String, outcome: Outcome<'static>) -> Item<'static> {
    Item::ToolResult { id: id_of(value).into(), output: output.into(), outcome }
}

/// An image by its URL, which may hold it.
pub fn blob(url: &str) -> Item<'static> {
    match data_url::parse(url) {
        Some((media_type, bytes)) => {
            let media_type = media_type.split(';').next().unwrap_or("image").to_owned();
            let base64 = data_url::base64_in(url).to_owned();
            Item::Blob { media_type: media_type.into(), bytes, base64: base64.into() }
        }
        None => Item::Notice { kind: "image".into(), text: url.to_owned().into() },
    }
}

/// A blob of this type, by its base64 text.
pub fn base64(media_type: &str, data: &str) -> Item<'static> {
    let bytes = data_url::base64_len(data);
    Item::Blob { media_type: media_type.to_owned().into(), bytes, base64: data.to_owned().into() }
}

/// The type of an image, by the beginning of its base64 text.
pub fn type_of(data: &str) -> &'static str {
    let known =
        [("iVBOR", "image/png"), ("/9j/", "image/jpeg"), ("UklGR", "image/webp"), ("R0lGOD", "image/gif")];
    known.iter().find(|(start, _)| data.starts_with(start)).map_or("image", |(_, name)| name)
}

/// The pictures among these parts, one line each.
pub fn pictures<'m>(parts: &'m [Part<'_>]) -> impl Iterator<Item = Item<'m>> {
    parts.iter().filter_map(|part| part.image_url.as_deref()).map(|url| -> Item<'m> { blob(url) })
}
