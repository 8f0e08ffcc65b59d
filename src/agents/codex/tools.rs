//! What the client's tools are asked to do. Facts: `docs/stores/codex.md`, "2. A line"; the tools of versions since 0.36.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::Value;
use serde_json::value::RawValue;

use super::shown::text;
use crate::agents::arguments::{self, Arguments, Translate};
use crate::session::{Action, Asked, Todo, TodoState};

/// What a call of the tool `name` asks for; tools of other programs (MCP) are not known.
pub fn function<'a>(name: &str, arguments: &'a str) -> Asked<'a> {
    let translate: Translate<'a> = match name {
        "shell" | "container.exec" => |fields| shell(fields, "workdir"),
        "shell_command" => |fields| fields.command("command", "workdir"),
        "exec_command" => |fields| fields.command("cmd", "workdir"),
        "apply_patch" if arguments.trim_start().starts_with("*** ") => {
            return Asked::only(Action::Patch { diff: arguments.into() });
        }
        "apply_patch" => |fields| Some(Action::Patch { diff: fields.text("input")? }),
        "update_plan" => |fields| plan(fields),
        "view_image" => |fields| fields.read("path", "", ""),
        "read_file" => |fields| fields.read("file_path", "offset", "limit"),
        "list_dir" => |fields| fields.read("dir_path", "offset", "limit"),
        "grep_files" => |fields| fields.search("pattern", "path"),
        "spawn_agent" => |fields| fields.agent("", "message"),
        _ => return Asked::other(arguments),
    };
    arguments::asked(arguments, translate)
}

/// The command of a `local_shell_call`.
pub fn local_shell<'a>(_name: &str, action: &'a str) -> Asked<'a> {
    arguments::asked(action, |fields| {
        let command = shell(fields, "working_directory");
        without_kind(fields);
        fields.leave_out_nulls();
        command
    })
}

/// What a `web_search_call` searched for, opened or looked for in a page.
pub fn web_search<'a>(_name: &str, action: &'a str) -> Asked<'a> {
    arguments::asked(action, |fields| {
        without_kind(fields);
        match (fields.text("pattern"), fields.text("url"), fields.text("query")) {
            (Some(query), place, _) => Some(Action::Search { query, place }),
            (None, Some(url), _) => Some(Action::Fetch { url }),
            (None, None, query) => {
                // The list says the same as the one query, or more.
                let read = |raw: &RawValue| serde_json::from_str::<Vec<String>>(raw.get()).ok();
                let queries = fields.take("queries", |raw| match (&query, read(raw)?) {
                    (Some(query), all) => (all == [&**query]).then(String::new),
                    (None, all) => Some(all.join("\n")),
                });
                Some(Action::Search { query: query.or(queries.map(Cow::Owned))?, place: None })
            }
        }
    })
}

/// What a search for tools searches for.
pub fn tool_search<'a>(_name: &str, arguments: &'a str) -> Asked<'a> {
    arguments::asked(arguments, |fields| fields.search("query", ""))
}

/// The form of what is asked: the action itself says it.
fn without_kind(fields: &mut Arguments<'_>) {
    let known = ["exec", "search", "open_page", "find_in_page"];
    let _ = fields.take("type", |kind| known.contains(&kind.get().trim_matches('"')).then_some(()));
}

/// A command as words, or as one line.
fn shell<'a>(fields: &mut Arguments<'a>, directory: &str) -> Option<Action<'a>> {
    fn words(raw: &RawValue) -> Option<Action<'static>> {
        let words: Value = serde_json::from_str(raw.get()).ok()?;
        if let [Value::String(program), Value::String(patch)] = words.as_array()?.as_slice()
            && program == "apply_patch"
        {
            return Some(Action::Patch { diff: patch.clone().into() });
        }
        Some(Action::Command { command: command_line(&words)?.into(), directory: None })
    }
    match fields.text("command") {
        Some(command) => Some(Action::Command { command, directory: fields.text(directory) }),
        None => match fields.take("command", words)? {
            Action::Command { command, .. } => {
                Some(Action::Command { command, directory: fields.text(directory) })
            }
            patch => Some(patch),
        },
    }
}

/// A command's words as one line; of a shell that runs a script, the script.
pub fn command_line(words: &Value) -> Option<String> {
    if let Some(line) = words.as_str() {
        return Some(line.to_owned());
    }
    let words: Vec<&str> = words.as_array()?.iter().map(Value::as_str).collect::<Option<_>>()?;
    if let [_, "-c" | "-lc", script] = words[..] {
        return Some(script.to_owned());
    }
    let quoted = words.iter().map(|word| {
        let plain = |c: char| c.is_alphanumeric() || "-_./=:,@%+".contains(c);
        match !word.is_empty() && word.chars().all(plain) {
            true => Cow::Borrowed(*word),
            false => format!("'{}'", word.replace('\'', r"'\''")).into(),
        }
    });
    Some(quoted.collect::<Vec<_>>().join(" "))
}

fn plan<'a>(fields: &mut Arguments<'a>) -> Option<Action<'a>> {
    let text = fields.text("explanation").unwrap_or_default();
    let steps = fields.todos("plan", "step")?;
    fields.leave_out_nulls();
    Some(Action::Plan { text, steps })
}

/// The plan that an event tells of, as a call of `update_plan` has it; `None` if it is something else.
pub fn plan_told(value: &Value) -> Option<Action<'static>> {
    let step = |item: &Value| {
        let state = TodoState::named(text(item, "status"))?;
        Some(Todo { text: item["step"].as_str()?.to_owned().into(), state, more: Vec::new() })
    };
    let steps = value["plan"].as_array()?.iter().map(step).collect::<Option<_>>()?;
    Some(Action::Plan { text: text(value, "explanation").to_owned().into(), steps })
}

/// What is the same wherever a plan is told.
pub fn plan_key(action: &Action<'_>) -> String {
    let mut key = String::from("plan ");
    if let Action::Plan { text, steps } = action {
        key.push_str(text.trim());
        for step in steps {
            // Writing into a String cannot fail.
            let _ = write!(key, "\n{:?} {}", step.state, step.text);
        }
    }
    key
}
