//! What happened besides words and calls, in one readable form each. (Writing into a String cannot fail.)

use std::fmt::Write as _;

use serde_json::Value;

use super::calls::plan_said;
use super::shown::{Once, after, lines, notice, text, tool_call, tool_result};
use super::tools::{plan_key, plan_told};
use crate::session::{Action, Asked, Item, Outcome};

/// A record's kind as words.
fn words(value: &Value) -> String {
    text(value, "type").replace('_', " ")
}

/// `message`, with what is said about it.
pub fn message(value: &Value) -> Vec<Item<'static>> {
    notice(&words(value), lines(&[text(value, "message"), text(value, "additional_details")]))
}

pub fn deprecation(value: &Value) -> Vec<Item<'static>> {
    notice("deprecated", lines(&[text(value, "summary"), text(value, "details")]))
}

/// A turn that ended with an error says so in its end record.
pub fn turn_complete(value: &Value) -> Vec<Item<'static>> {
    match &value["error"] {
        Value::Null => Vec::new(),
        error => notice("error", error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned)),
    }
}

pub fn turn_aborted(value: &Value) -> Vec<Item<'static>> {
    vec![Item::Interrupted { text: text(value, "reason").to_owned().into() }]
}

pub fn named(value: &Value) -> Vec<Item<'static>> {
    match text(value, "thread_name") {
        "" => notice("name", "the thread's name was taken away"),
        name => notice("named", name),
    }
}

pub fn goal(value: &Value) -> Vec<Item<'static>> {
    let goal = &value["goal"];
    match (text(goal, "status"), text(goal, "objective")) {
        (_, "") => notice("goal", "the goal was taken away"),
        ("", objective) => notice("goal", objective),
        (status, objective) => notice("goal", format!("{}: {objective}", status.replace('_', " "))),
    }
}

/// What is reviewed.
pub fn review_begins(value: &Value) -> Vec<Item<'static>> {
    let target = &value["target"];
    let aim = match text(target, "type") {
        "uncommittedChanges" => "uncommitted changes".to_owned(),
        "baseBranch" => format!("changes against {}", text(target, "branch")),
        "commit" => format!("commit {} {}", text(target, "sha"), text(target, "title")).trim().to_owned(),
        "custom" => text(target, "instructions").to_owned(),
        other => other.to_owned(),
    };
    let hint = text(value, "user_facing_hint");
    // The hint is made of the target; only a user's own instructions say more.
    let said = hint.is_empty() || (text(target, "type") == "custom" && aim != hint);
    let aim = if said { &aim } else { "" };
    notice("review begins", lines(&[hint, aim, text(value, "prompt"), text(value, "review")]))
}

/// The review's result.
pub fn review_ends(value: &Value) -> Vec<Item<'static>> {
    let output = &value["review_output"];
    if output.is_null() {
        let said = text(value, "review");
        return notice("review ends", if said.is_empty() { "it was interrupted" } else { said });
    }
    let mut said = lines(&[text(output, "overall_correctness"), text(output, "overall_explanation")]);
    for finding in output["findings"].as_array().into_iter().flatten() {
        let place = &finding["code_location"];
        let range = &place["line_range"];
        let body = text(finding, "body").replace('\n', "\n  ");
        let _ = write!(
            said,
            "\n\n- {} ({}:{}-{})\n  {body}",
            text(finding, "title"),
            text(place, "absolute_file_path"),
            range["start"],
            range["end"],
        );
    }
    notice("review ends", said.trim())
}

pub fn hook(value: &Value) -> Vec<Item<'static>> {
    let run = &value["run"];
    let (event, message) = (text(run, "event_name").replace('_', " "), text(run, "status_message"));
    let mut said = format!("{event} {}{}", text(run, "status"), after(": ", message));
    for entry in run["entries"].as_array().into_iter().flatten() {
        let _ = write!(said, "\n{}: {}", text(entry, "kind"), text(entry, "text"));
    }
    notice("hook", said.trim())
}

/// The client's own reviewer of commands; what it let pass is seen by the command's result.
pub fn guardian(value: &Value) -> Vec<Item<'static>> {
    match text(value, "status") {
        "approved" | "in_progress" | "" => Vec::new(),
        status => {
            let action = text(&value["action"], "command");
            let said = lines(&[&status.replace('_', " "), text(value, "rationale"), action]);
            notice("automatic review", said)
        }
    }
}

/// One line for lists of thousands of files.
pub fn ghost_snapshot(value: &Value) -> Vec<Item<'static>> {
    let commit = &value["ghost_commit"];
    let count = |key: &str, one: &str, many: &str| match commit[key].as_array().map_or(0, Vec::len) {
        1 => format!("1 untracked {one}"),
        count => format!("{count} untracked {many}"),
    };
    let files = count("preexisting_untracked_files", "file", "files");
    let directories = count("preexisting_untracked_dirs", "directory", "directories");
    let id = text(commit, "id");
    notice("snapshot", format!("snapshot of the work tree: commit {id}, {files}, {directories}"))
}

/// The history was replaced by a summary, or by a list of items.
pub fn compacted(value: &Value) -> Vec<Item<'static>> {
    let said = match (text(value, "message"), &value["replacement_history"]) {
        ("", Value::Array(items)) => {
            format!(
                "[{} items take the place of the history before; context.md shows those in force]",
                items.len()
            )
        }
        (message, _) => message.to_owned(),
    };
    vec![Item::Compaction { text: said.into() }]
}

/// A summary that only the model can read.
pub fn compaction(value: &Value) -> Vec<Item<'static>> {
    vec![Item::Compaction { text: encrypted(value).into() }]
}

/// What stands in the place of a text that only the client's makers can read.
fn encrypted(value: &Value) -> String {
    match text(value, "encrypted_content").len() {
        0 => String::new(),
        bytes => format!("[encrypted, {bytes} bytes]"),
    }
}

/// What one agent wrote to another.
pub fn agent_message(value: &Value) -> Vec<Item<'static>> {
    let mut said = match (text(value, "author"), text(value, "recipient")) {
        ("", "") => Vec::new(),
        (author, recipient) => vec![format!("{author} to {recipient}")],
    };
    match &value["content"] {
        Value::String(content) => said.push(content.clone()),
        content => {
            let parts = content.as_array().into_iter().flatten().map(|part| match text(part, "text") {
                "" => encrypted(part),
                text => text.to_owned(),
            });
            said.extend(parts.filter(|said| !said.is_empty()));
        }
    }
    notice("message between agents", said.join("\n"))
}

pub fn sleep(value: &Value) -> Vec<Item<'static>> {
    let seconds = value["duration_ms"].as_f64().unwrap_or_default() / 1000.0;
    notice("sleep", format!("{seconds} s"))
}

/// A plan that the model proposes. Its message holds it, too, between marks.
pub fn plan(value: &Value) -> Once {
    let text = text(value, "text");
    Once { items: notice("plan", text), same: vec![plan_said(text).1] }
}

/// The list of steps, as a call of `update_plan` has it.
pub fn plan_update(value: &Value) -> Once {
    let Some(plan) = plan_told(value) else { return notice("plan", flat(value)).into() };
    let same = vec![plan_key(&plan)];
    Once { items: vec![tool_call("update_plan", value, Asked::only(plan))], same }
}

/// What the model asks its user.
pub fn questions(value: &Value) -> Once {
    let mut said = String::new();
    for question in value["questions"].as_array().into_iter().flatten() {
        let _ = writeln!(said, "{}", lines(&[text(question, "header"), text(question, "question")]));
        for option in question["options"].as_array().into_iter().flatten() {
            let about = after(": ", text(option, "description"));
            let _ = writeln!(said, "- {}{about}", text(option, "label"));
        }
    }
    vec![tool_call("request_user_input", value, Asked::other(said))].into()
}

/// Work with other agents: what was asked, and what came of it.
pub fn collaboration(value: &Value) -> Once {
    let kind = text(value, "type");
    let name = match text(value, "tool") {
        "" => kind.trim_start_matches("collab_").trim_end_matches("_begin").trim_end_matches("_end"),
        tool => tool,
    };
    let (mut asked, mut came) = (Value::Object(Default::default()), Value::Object(Default::default()));
    for (key, field) in value.as_object().into_iter().flatten() {
        match key.as_str() {
            "prompt" | "tool" => {}
            key if key.starts_with("receiver") => asked[key] = field.clone(),
            key => came[key] = field.clone(),
        }
    }
    let (more, came) = (flat_fields(&asked), flat(&came));
    let more = more.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    let prompt = text(value, "prompt").to_owned().into();
    let asked = Asked { action: Action::Agent { description: None, prompt }, more };
    let mut items = vec![tool_call(name.replace('_', " "), value, asked)];
    if !came.is_empty() {
        items.push(tool_result(value, came, Outcome::default()));
    }
    items.into()
}

pub fn sub_agent(value: &Value) -> Once {
    let said = format!("{} {}", text(value, "agent_path"), text(value, "kind"));
    notice("sub-agent", said.trim()).into()
}

/// A rare kind: its fields, a line for each.
pub fn fields(value: &Value) -> Vec<Item<'static>> {
    notice(&words(value), flat(value))
}

/// Fields as `key: value` lines, without ids and clocks.
fn flat(value: &Value) -> String {
    flat_fields(value).into_iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
}

/// Fields with their paths, without ids and clocks.
fn flat_fields(value: &Value) -> Vec<(String, String)> {
    const LEFT_OUT: [&str; 9] = [
        "type",
        "turn_id",
        "thread_id",
        "call_id",
        "id",
        "started_at_ms",
        "completed_at_ms",
        "occurred_at_ms",
        "sender_thread_id",
    ];
    fn put(path: &str, value: &Value, out: &mut Vec<(String, String)>) {
        match value {
            Value::Null => {}
            Value::Object(fields) => {
                for (key, value) in fields.iter().filter(|(key, _)| !LEFT_OUT.contains(&key.as_str())) {
                    let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    put(&below, value, out);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| put(path, item, out)),
            Value::String(text) if text.is_empty() => {}
            Value::String(text) => out.push((path.to_owned(), text.clone())),
            other => out.push((path.to_owned(), other.to_string())),
        }
    }
    let mut out = Vec::new();
    put("", value, &mut out);
    out
}
