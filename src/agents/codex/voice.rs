//! Whose words a message with the role `user` is.
//!
//! The model gets the client's words (instructions, plugin lists, notes) in messages of the same role as the
//! user's. There is no closed list of what the client puts in, so the user's words are known by what records them
//! as such: an event (`user_message`, in paginated files `item_completed` with a `UserMessage`), or the kinds that
//! new clients write beside each part. The client's marks decide only where a file has neither.
//!
//! Turns, prompts, steers, rollbacks, titles and the model's history all ask here. Facts: `docs/stores/codex.md`,
//! "3. Turns".

use std::borrow::Cow;
use std::collections::HashSet;

use jiff::Timestamp;
use xxhash_rust::xxh3::xxh3_128;

use super::outputs::blob;
use super::records::{CompletedItem, Event, Part, Response, text_of};
use crate::session::{Item, ItemSink};

/// What tells the user's words from the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Events, and recorded kinds.
    Records,
    /// The client's marks, in files that hold no such record.
    Marks,
}

/// Who speaks in a message, as far as the message itself records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    Assistant,
    /// Recorded as the user's.
    User,
    /// Recorded as the client's, or with a role of the client's own.
    Client,
    /// Of the role `user`, by an older client.
    Unrecorded,
}

/// The user's words, as the client puts them into the record of its own messages.
const USER: &str = "user.text";

/// What the client tells the model in every session: not shown in turns.
const STANDING: [&str; 5] = [
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
    "<permissions instructions>",
    "<recommended_plugins>",
];

/// What the client tells the model because something happened.
const HAPPENED: [&str; 5] =
    ["<turn_aborted>", "<subagent_notification>", "<user_shell_command>", "<skill>", "<user_action>"];

/// Who speaks in a `message`.
pub fn author(message: &Response<'_>) -> Author {
    match (message.role.as_deref(), message.content_kinds()) {
        (Some("assistant"), _) => Author::Assistant,
        (Some("user"), Some(kinds)) if kinds.iter().any(|kind| kind == USER) => Author::User,
        (Some("user"), Some(kinds)) if !kinds.is_empty() => Author::Client,
        (Some("user"), _) => Author::Unrecorded,
        _ => Author::Client,
    }
}

/// Whether `response` is a message in which the user may speak.
pub fn may_be_users(response: &Response<'_>) -> bool {
    response.kind == "message" && response.role.as_deref() == Some("user")
}

/// Whether a message is the user's if nothing but its own words and kinds can tell.
pub fn is_users_by_marks(message: &Response<'_>) -> bool {
    match author(message) {
        Author::User => true,
        Author::Unrecorded => {
            // A picture alone is a prompt, too.
            message.content.iter().any(|part| is_own(part) || part.image_url.is_some())
                || message.content.is_empty()
        }
        Author::Assistant | Author::Client => false,
    }
}

/// What the user said, by an event of `user_message` or, in what paginated files have instead, an item.
pub fn said<'e>(event: &'e Event<'_>, item: Option<&'e CompletedItem<'_>>) -> Option<Cow<'e, str>> {
    match (&*event.kind, item) {
        ("user_message", _) => event.message.as_deref().map(Cow::Borrowed),
        ("item_completed", Some(item)) if item.kind == "UserMessage" => Some(text_of(&item.content)),
        _ => None,
    }
}

/// Whether the client that wrote this event also writes events of what the user says: then marks tell nothing.
pub fn tells_words(event: &Event<'_>) -> bool {
    event.kind.starts_with("agent_") || matches!(&*event.kind, "user_message" | "item_completed")
}

/// The user's text of a message that is the user's: without the client's parts, and without the frames that it
/// puts around pictures.
pub fn own_text<'m>(message: &'m Response<'_>) -> Cow<'m, str> {
    let kinds = message.content_kinds().filter(|kinds| kinds.len() == message.content.len());
    let own = message.content.iter().enumerate().filter(|(at, part)| match kinds {
        Some(kinds) => kinds[*at] == USER && !is_frame(part),
        None => is_own(part),
    });
    let mut texts = own.filter_map(|(_, part)| part.text.as_deref());
    match (texts.next(), texts.next()) {
        (None, _) => Cow::Borrowed(""),
        (Some(only), None) => Cow::Borrowed(only),
        (Some(first), Some(second)) => {
            Cow::Owned([first, second].into_iter().chain(texts).collect::<Vec<_>>().concat())
        }
    }
}

/// A part with words that nothing marks as the client's.
fn is_own(part: &Part<'_>) -> bool {
    let text = part.text.as_deref().unwrap_or("").trim_start();
    !text.is_empty()
        && !is_frame(part)
        && !STANDING.iter().chain(&HAPPENED).any(|mark| text.starts_with(mark))
}

/// `<image name=[Image #1]>` and `</image>` stand around a picture; the user did not write them.
fn is_frame(part: &Part<'_>) -> bool {
    let text = part.text.as_deref().unwrap_or("").trim();
    text == "</image>"
        || text.strip_prefix("<image").is_some_and(|rest| {
            rest.ends_with('>')
                && (rest.starts_with('>') || rest.starts_with(' '))
                && rest.matches('>').count() == 1
        })
}

/// The texts that an event may repeat of a message, as hashes: all of it, its end behind parts of the client's,
/// or one part. Pictures' frames do not count.
#[derive(Clone, Debug, Default)]
pub struct Words(Vec<u128>);

impl Words {
    pub fn of(message: &Response<'_>) -> Words {
        /// More parts than the client writes.
        const PARTS: usize = 32;
        let texts: Vec<&str> = message
            .content
            .iter()
            .filter(|part| !is_frame(part))
            .filter_map(|part| part.text.as_deref())
            .collect();
        let mut keys = vec![key(&text_of(&message.content))];
        match &texts[..] {
            // A picture without a word.
            [] => keys.push(key("")),
            [only] => keys.push(key(only)),
            several => {
                let from = several.len().saturating_sub(PARTS);
                for at in from..several.len() {
                    keys.push(key(&several[at..].concat()));
                    keys.push(key(several[at]));
                }
            }
        }
        Words(keys)
    }

    /// Whether the text with this [`key`] is among them.
    pub fn say(&self, key: u128) -> bool {
        self.0.contains(&key)
    }

    /// Whether one of these keys is among them.
    pub fn any_of(&self, keys: &HashSet<u128>) -> bool {
        self.0.iter().any(|key| keys.contains(key))
    }
}

/// Of a text, with the blanks around it left out of account.
pub fn key(text: &str) -> u128 {
    xxh3_128(text.trim().as_bytes())
}

/// What is shown of the client's words: what happened, as a notice. The standing instructions are the same in
/// every session; `context.md` has them.
pub fn client_items(time: Option<Timestamp>, message: &Response<'_>, sink: &mut ItemSink<'_>) {
    if let Some(kinds) = message.content_kinds().filter(|kinds| !kinds.is_empty()) {
        let standing =
            |kind: &Cow<'_, str>| kind.starts_with("environments.") || kind.contains("instructions");
        if message.role.as_deref() == Some("user") && !kinds.iter().any(standing) {
            sink(time, notice_by_kind(&kinds[0], &message.content));
        }
        return;
    }
    if message.role.as_deref() != Some("user") {
        return;
    }
    let is_standing = |part: &&Part<'_>| {
        let text = part.text.as_deref().unwrap_or("").trim_start();
        STANDING.iter().any(|mark| text.starts_with(mark))
    };
    let shown = message.content.iter().filter(|part| !is_standing(part) && !is_frame(part));
    let texts: Vec<&str> = shown.filter_map(|part| part.text.as_deref()).collect();
    if let Some(first) = texts.first() {
        sink(time, Item::Notice { kind: name_of(first), text: texts.concat().into() });
    }
    pictures(time, &message.content, sink);
}

fn notice_by_kind<'m>(kind: &str, parts: &'m [Part<'_>]) -> Item<'m> {
    // `generic.turn_aborted`, `compaction.summary`: for people to read.
    let kind = kind.strip_prefix("generic.").unwrap_or(kind).replace(['.', '_'], " ");
    Item::Notice { kind: kind.into(), text: text_of(parts) }
}

/// `turn aborted` of a text that begins with `<turn_aborted>`.
fn name_of(text: &str) -> Cow<'static, str> {
    let name = text.trim_start().strip_prefix('<').and_then(|rest| rest.split_once('>'));
    let is_name = |name: &&str| {
        (1..=40).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b' '))
    };
    name.map(|(name, _)| name).filter(is_name).map_or("client".into(), |name| name.replace('_', " ").into())
}

/// One entry of the model's history that the client put in, whatever it is.
pub fn model_notice(time: Option<Timestamp>, message: &Response<'_>, sink: &mut ItemSink<'_>) {
    let role = message.role.as_deref().unwrap_or_default();
    let kinds = message.content_kinds().filter(|kinds| !kinds.is_empty());
    let standing = |kind: &Cow<'_, str>| kind.starts_with("environments.") || kind.contains("instructions");
    let first = message.content.first().and_then(|part| part.text.as_deref()).unwrap_or("").trim_start();
    let item = match (role, kinds) {
        ("user", Some(kinds)) if !kinds.iter().any(standing) => notice_by_kind(&kinds[0], &message.content),
        ("user", None) if !STANDING.iter().any(|mark| first.starts_with(mark)) => {
            Item::Notice { kind: name_of(first), text: text_of(&message.content) }
        }
        ("user", _) => Item::Notice { kind: "context".into(), text: text_of(&message.content) },
        (role, _) => Item::Notice { kind: role.to_owned().into(), text: text_of(&message.content) },
    };
    sink(time, item);
    pictures(time, &message.content, sink);
}

/// The pictures among these parts, one line each.
pub fn pictures(time: Option<Timestamp>, parts: &[Part<'_>], sink: &mut ItemSink<'_>) {
    for url in parts.iter().filter_map(|part| part.image_url.as_deref()) {
        sink(time, blob(url));
    }
}
