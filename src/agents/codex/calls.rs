//! Calls and their results: as response items say them, and as the client's events do.

use std::borrow::Cow;
use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use super::outputs;
use super::records::{Response, string_or_json};
use super::shown::{Once, Out, after, base64, first, lines, notice, text, tool_call, tool_result, type_of};
use super::tools::{command_line, plan_key};
use crate::session::{Action, Asked, Item, ItemSink, Lines, Outcome};

/// Which calls of a turn were shown, and what only events told of others so far.
#[derive(Clone, Default)]
pub struct Calls {
    told: HashSet<u128>,
    waiting: Vec<Waiting>,
    /// Results are shown as the model is sent them.
    verbatim: bool,
}

/// A call that an event told of and no response item.
#[derive(Clone)]
struct Waiting {
    time: Option<Timestamp>,
    id: Option<u128>,
    same: Vec<u128>,
    items: Vec<Item<'static>>,
}

/// The ids that events and items give to their calls.
#[derive(Deserialize)]
struct Ids<'a> {
    #[serde(borrow)]
    call_id: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "callId")]
    dynamic: Option<Cow<'a, str>>,
    #[serde(borrow)]
    event_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
}

fn key(identity: &str) -> u128 {
    xxh3_128(identity.as_bytes())
}

impl Calls {
    /// Shows results as the model is sent them.
    pub fn verbatim() -> Calls {
        Calls { verbatim: true, ..Calls::default() }
    }

    /// A response item says it.
    pub fn told(&mut self, identity: &str) {
        let key = key(identity);
        self.told.insert(key);
        self.waiting.retain(|waiting| waiting.id != Some(key) && !waiting.same.contains(&key));
    }

    /// An event says it: shown at the turn's end, unless a response item says the same. What is told of one
    /// call later (its end, after its beginning) takes the place of what was told before.
    pub fn heard(&mut self, time: Option<Timestamp>, json: &str, make: fn(&Value) -> Once) -> Option<()> {
        let id = serde_json::from_str::<Ids<'_>>(json).ok().and_then(|ids| {
            let Ids { call_id, dynamic, event_id, id } = ids;
            call_id.or(dynamic).or(event_id).or(id)
        });
        let id = id.as_deref().filter(|id| !id.is_empty()).map(key);
        if id.is_some_and(|id| self.told.contains(&id)) {
            return Some(());
        }
        let Once { items, same } = make(&serde_json::from_str(json).ok()?);
        let same: Vec<u128> = same.iter().map(|same| key(same)).collect();
        if same.iter().any(|same| self.told.contains(same)) {
            // Its beginning may have told only the id.
            self.waiting.retain(|waiting| id.is_none() || waiting.id != id);
            self.told.extend(id);
            return Some(());
        }
        match self.waiting.iter_mut().find(|waiting| id.is_some() && waiting.id == id) {
            Some(waiting) => (waiting.items, waiting.same) = (items, same),
            None => self.waiting.push(Waiting { time, id, same, items }),
        }
        Some(())
    }

    /// The model's message: the plans that it proposes are told.
    pub fn message(&mut self, text: &str) {
        for plan in marked(text, PLAN) {
            self.told(&plan_said(plan).1);
        }
    }

    /// The client's message about what happened: a command that the user ran is told.
    pub fn report(&mut self, text: &str) {
        if text.trim_start().starts_with("<user_shell_command>") {
            for command in marked(text, ("<command>", "</command>")) {
                self.told(&users_command(command));
            }
        }
    }

    /// What only events told, at the turn's end.
    pub fn finish(&mut self, sink: &mut ItemSink<'_>) {
        for Waiting { time, items, .. } in std::mem::take(&mut self.waiting) {
            items.into_iter().for_each(|item| sink(time, item));
        }
        self.told.clear();
    }

    /// A call that a response item says.
    pub fn call(
        &mut self,
        response: &Response<'_>,
        name: &str,
        translate: for<'r> fn(&str, &'r str) -> Asked<'r>,
        out: &mut Out<'_, '_>,
    ) {
        let arguments = arguments(response);
        let asked = translate(response.name.as_deref().unwrap_or(name), &arguments);
        if response.kind == "web_search_call" {
            self.told(&searched_for(&searched(response).unwrap_or_else(|| arguments.to_string())));
        }
        if let Action::Plan { .. } = asked.action {
            self.told(&plan_key(&asked.action));
        }
        let id = self.id(response);
        let name = match (response.namespace.as_deref(), response.name.as_deref().unwrap_or(name)) {
            (Some(namespace), name) if !namespace.is_empty() => Cow::Owned(format!("{namespace}.{name}")),
            (_, name) => Cow::Borrowed(name),
        };
        out.put(Item::ToolCall { name, id, asked });
    }

    /// The result of a call.
    pub fn result(&mut self, response: &Response<'_>, out: &mut Out<'_, '_>) {
        let id = self.id(response);
        outputs::result(id, response, self.verbatim, out);
    }

    /// What a call and its result have in common.
    fn id<'r>(&mut self, response: &'r Response<'_>) -> Cow<'r, str> {
        for id in [&response.call_id, &response.id].into_iter().flatten() {
            self.told(id);
        }
        response.call_id.as_deref().or(response.id.as_deref()).unwrap_or("").into()
    }
}

/// Between what marks a proposed plan stands in the model's message.
const PLAN: (&str, &str) = ("<proposed_plan>", "</proposed_plan>");
/// And what it read in its memories.
const CITATION: (&str, &str) = ("<oai-mem-citation>", "</oai-mem-citation>");

/// What stands between marks.
fn marked<'t>(text: &'t str, (begin, end): (&'static str, &'static str)) -> impl Iterator<Item = &'t str> {
    let pieces = text.split(begin).skip(1);
    pieces.map(move |piece| piece.split_once(end).map_or(piece, |(inside, _)| inside))
}

/// A message of the model's as the client's events repeat it: without what it shows in another place.
pub fn repeated(text: &str) -> Cow<'_, str> {
    let mut shown = Cow::Borrowed(text);
    for (begin, end) in [PLAN, CITATION] {
        if let Some((first, marked)) = shown.split_once(begin) {
            let behind = marked.split(begin).filter_map(|piece| Some(piece.split_once(end)?.1));
            shown = Cow::Owned(std::iter::once(first).chain(behind).collect());
        }
    }
    shown
}

/// A plan in words, and what is the same wherever it is told.
pub fn plan_said(text: &str) -> (Action<'static>, String) {
    let plan = Action::Plan { text: text.trim().to_owned().into(), steps: Vec::new() };
    let key = plan_key(&plan);
    (plan, key)
}

/// What a call was asked to do, as it stands in the record.
fn arguments<'r>(response: &'r Response<'_>) -> Cow<'r, str> {
    let raw = response.arguments.or(response.input).or(response.action);
    raw.map_or(Cow::Borrowed(""), string_or_json)
}

/// What a `web_search_call` searched for.
fn searched(response: &Response<'_>) -> Option<String> {
    web_action(&serde_json::from_str(response.action?.get()).ok()?)
}

/// `search`, `open_page` or `find_in_page`, in words.
fn web_action(action: &Value) -> Option<String> {
    let queries = || {
        let all = action["queries"].as_array().into_iter().flatten().filter_map(Value::as_str);
        all.collect::<Vec<_>>().join("\n")
    };
    let said = match (text(action, "query"), text(action, "pattern"), text(action, "url")) {
        ("", "", "") => queries(),
        (query, "", "") => query.to_owned(),
        (_, "", url) => url.to_owned(),
        (_, pattern, url) => format!("{pattern:?} in {url}"),
    };
    (!said.is_empty()).then_some(said)
}

fn searched_for(query: &str) -> String {
    format!("web search {query}")
}

/// The command that a user ran without the model, as the message about it names it.
pub fn users_command(command: &str) -> String {
    format!("command of the user {}", command.trim())
}

/// Whether this is told when a call has ended.
fn is_over(value: &Value, marks: &[&str]) -> bool {
    marks.iter().any(|mark| !value[mark].is_null())
}

fn streams(value: &Value) -> String {
    [text(value, "stdout"), text(value, "stderr")].concat()
}

/// A command, at its begin or end.
pub fn exec_command(value: &Value) -> Once {
    let command = command_line(&value["command"]).unwrap_or_default();
    let output = match first(value, &["aggregated_output", "formatted_output"]) {
        "" => streams(value),
        output => output.to_owned(),
    };
    if matches!(text(value, "source"), "user_shell" | "userShell") {
        let shown = format!("$ {command}\n{output}");
        let items = vec![Item::Notice { kind: "command".into(), text: shown.into() }];
        return Once { items, same: vec![users_command(&command)] };
    }
    let directory = match text(value, "cwd") {
        "" => None,
        cwd => Some(cwd.to_owned().into()),
    };
    let asked = Asked::only(Action::Command { command: command.into(), directory });
    let mut items = vec![tool_call("command", value, asked)];
    if is_over(value, &["exit_code", "aggregated_output", "stdout"]) {
        let exit_code = value["exit_code"].as_i64();
        let outcome = Outcome {
            exit_code,
            duration: duration(&value["duration"]),
            ..Outcome::of(exit_code.is_some_and(|code| code != 0))
        };
        items.push(tool_result(value, output, outcome));
    }
    items.into()
}

/// How long something took, in the form of the client's events.
fn duration(value: &Value) -> Option<SignedDuration> {
    let nanos = i32::try_from(value["nanos"].as_i64()?).ok()?;
    Some(SignedDuration::new(value["secs"].as_i64()?, nanos))
}

/// A patch with what it changes.
pub fn patch(value: &Value) -> Once {
    let changes = value["changes"].as_object().into_iter().flatten().map(|(path, change)| {
        let moved = match text(change, "move_path") {
            "" => path.as_str(),
            moved => moved,
        };
        let (old, new, mark) = match text(change, "type") {
            "add" => ("/dev/null", moved, "+"),
            "delete" => (path.as_str(), "/dev/null", "-"),
            _ => (path.as_str(), moved, ""),
        };
        let body = [text(change, "unified_diff"), text(change, "content")].concat();
        let hunk = if mark.is_empty() { "" } else { "@@ @@\n" };
        let lines: String = body.split_inclusive('\n').map(|line| format!("{mark}{line}")).collect();
        format!("--- {old}\n+++ {new}\n{hunk}{lines}")
    });
    let changes: Vec<String> = changes.collect();
    let diff = changes.iter().map(|change| change.trim_end_matches('\n')).collect::<Vec<_>>().join("\n");
    let mut items = vec![tool_call("apply_patch", value, Asked::only(Action::Patch { diff: diff.into() }))];
    if is_over(value, &["success", "stdout", "status"]) {
        let failed = value["success"] == false || matches!(text(value, "status"), "failed" | "declined");
        items.push(tool_result(value, streams(value), Outcome::of(failed)));
    }
    items.into()
}

/// A tool of an MCP server.
pub fn mcp_tool_call(value: &Value) -> Once {
    // The event has these below `invocation`, the item has them itself.
    let asked = value.get("invocation").unwrap_or(value);
    let name = format!("{}.{}", text(asked, "server"), text(asked, "tool"));
    let mut items = vec![tool_call(name, value, Asked::other(json(&asked["arguments"])))];
    let result = &value["result"];
    let ok = result.get("Ok").unwrap_or(result);
    let error = match (text(result, "Err"), text(&value["error"], "message")) {
        ("", message) => message,
        (error, _) => error,
    };
    if !error.is_empty() {
        items.push(tool_result(value, error.to_owned(), Outcome::of(true)));
    } else if !ok.is_null() {
        let failed = ok["is_error"] == true || ok["isError"] == true;
        items.extend(outputs::content(value, &ok["content"], failed));
    }
    items.into()
}

/// A tool that the program around the client offers.
pub fn dynamic_tool_call(value: &Value) -> Once {
    let mut items =
        vec![tool_call(text(value, "tool").to_owned(), value, Asked::other(json(&value["arguments"])))];
    if is_over(value, &["success", "content_items", "contentItems", "error"]) {
        let failed = value["success"] == false;
        let content = value.get("content_items").or(value.get("contentItems")).unwrap_or(&Value::Null);
        match text(value, "error") {
            "" => items.extend(outputs::content(value, content, failed)),
            error => items.push(tool_result(value, error.to_owned(), Outcome::of(true))),
        }
    }
    items.into()
}

pub fn web_search(value: &Value) -> Once {
    let said = web_action(&value["action"]).unwrap_or_else(|| text(value, "query").to_owned());
    let same = [&said, text(value, "query")].into_iter().filter(|said| !said.is_empty());
    let same = same.map(searched_for).collect();
    let action = &value["action"];
    let own = |key| text(action, key).to_owned();
    let action = match (own("pattern"), own("url")) {
        (query, url) if !query.is_empty() && !url.is_empty() => {
            Action::Search { query: query.into(), place: Some(url.into()) }
        }
        (_, url) if !url.is_empty() => Action::Fetch { url: url.into() },
        _ => Action::Search { query: said.into(), place: None },
    };
    Once { items: vec![tool_call("web_search", value, Asked::only(action))], same }
}

pub fn view_image(value: &Value) -> Once {
    let path = text(value, "path").to_owned().into();
    let asked = Asked::only(Action::Read { path, lines: Lines::default() });
    vec![tool_call("view_image", value, asked)].into()
}

/// An image that the model made: what it was made of, its type and size.
pub fn image_generation(value: &Value) -> Once {
    let result = text(value, "result");
    let missing = match (result, text(value, "status")) {
        ("", "") => "no image yet".into(),
        ("", status) => format!("no image: {status}"),
        _ => String::new(),
    };
    let saved = after("saved to ", text(value, "saved_path"));
    let said = lines(&[text(value, "revised_prompt"), &saved, &missing]);
    let mut items = if said.is_empty() { Vec::new() } else { notice("image", said) };
    if !result.is_empty() {
        items.push(base64(type_of(result), result));
    }
    items.into()
}

/// JSON as text; nothing for null.
fn json(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
