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

use xxhash_rust::xxh3::xxh3_128;

use super::records::{CompletedItem, Event, Part, Response, joined, text_of};
use super::shown::pictures;
use crate::session::Item;

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

/// Whether the client itself says something to the model that holds from then on, not only of this turn.
pub fn is_lasting(response: &Response<'_>) -> bool {
    let clients = match author(response) {
        Author::Client => true,
        Author::Unrecorded => !is_users_by_marks(response),
        Author::Assistant | Author::User => false,
    };
    let of_this_turn = |part: &Part<'_>| HAPPENED.iter().any(|mark| part.trimmed().starts_with(mark));
    response.kind == "message" && clients && !response.content.iter().all(of_this_turn)
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
    joined(own.filter_map(|(_, part)| part.text.as_deref()))
}

/// A part with words that nothing marks as the client's.
fn is_own(part: &Part<'_>) -> bool {
    let text = part.trimmed();
    let happened = || HAPPENED.iter().any(|mark| text.starts_with(mark));
    !text.is_empty() && !is_frame(part) && !is_standing(text) && !happened()
}

/// `<image name=[Image #1]>` and `</image>` stand around a picture; the user did not write them.
fn is_frame(part: &Part<'_>) -> bool {
    let text = part.trimmed().trim_end();
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
pub fn client_items<'m>(message: &'m Response<'_>) -> Vec<Item<'m>> {
    if message.role.as_deref() != Some("user") {
        return Vec::new();
    }
    if let Some(kinds) = recorded_kinds(message) {
        return notice_by_kind(kinds, &message.content).into_iter().collect();
    }
    let shown = message.content.iter().filter(|part| !is_standing(part.trimmed()) && !is_frame(part));
    let texts: Vec<&str> = shown.filter_map(|part| part.text.as_deref()).collect();
    let notice =
        texts.first().map(|first| Item::Notice { kind: name_of(first), text: texts.concat().into() });
    notice.into_iter().chain(pictures(&message.content)).collect()
}

fn recorded_kinds<'m>(message: &'m Response<'_>) -> Option<&'m [Cow<'m, str>]> {
    message.content_kinds().filter(|kinds| !kinds.is_empty())
}

/// Whether a text of the client's is one of those that it tells in every session.
fn is_standing(text: &str) -> bool {
    STANDING.iter().any(|mark| text.starts_with(mark))
}

/// A message of the client's with these recorded kinds, unless it tells one of them in every session.
fn notice_by_kind<'m>(kinds: &[Cow<'_, str>], parts: &'m [Part<'_>]) -> Option<Item<'m>> {
    let standing = |kind: &Cow<'_, str>| kind.starts_with("environments.") || kind.contains("instructions");
    let first = kinds.first().filter(|_| !kinds.iter().any(standing))?;
    // `generic.turn_aborted`, `compaction.summary`: for people to read.
    let kind = first.strip_prefix("generic.").unwrap_or(first).replace(['.', '_'], " ");
    Some(Item::Notice { kind: kind.into(), text: text_of(parts) })
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
pub fn model_notice<'m>(message: &'m Response<'_>) -> Vec<Item<'m>> {
    let role = message.role.as_deref().unwrap_or_default();
    let first = message.content.first().map_or("", Part::trimmed);
    let by_kind = recorded_kinds(message).map(|kinds| notice_by_kind(kinds, &message.content));
    let item = match (role, by_kind) {
        ("user", Some(Some(notice))) => notice,
        ("user", None) if !is_standing(first) => {
            Item::Notice { kind: name_of(first), text: text_of(&message.content) }
        }
        (role, _) => {
            let kind = if role == "user" { "context" } else { role };
            Item::Notice { kind: kind.into(), text: text_of(&message.content) }
        }
    };
    std::iter::once(item).chain(pictures(&message.content)).collect()
}
