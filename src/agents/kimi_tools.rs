//! The tools of Kimi CLI, which stand in the sessions of Kimi Code that were migrated from it, too.

use super::arguments::{Arguments, Translate};
use crate::session::Action;

/// How the arguments of the tool `name` are told; `None` of one that is not known.
pub(super) fn of<'a>(name: &str) -> Option<Translate<'a>> {
    let translate: Translate<'a> = match name {
        // Clients of 2025 called it Bash.
        "Shell" | "Bash" => |fields| fields.command("command", "cwd"),
        "ReadFile" => |fields| fields.read("path", "line_offset", "n_lines"),
        "ReadMediaFile" => |fields| fields.read("path", "", ""),
        "WriteFile" => |fields| fields.write("path", "content"),
        "StrReplaceFile" => |fields| fields.edits("path", "edit", "old", "new"),
        "Grep" => |fields| fields.search("pattern", "path"),
        "Glob" => |fields| fields.search("pattern", "directory"),
        "SearchWeb" => |fields| fields.search("query", ""),
        "FetchURL" => |fields| fields.fetch("url"),
        "SetTodoList" => |fields| todos(fields),
        "Agent" | "Task" => |fields| fields.agent("description", "prompt"),
        _ => return None,
    };
    Some(translate)
}

fn todos<'a>(fields: &mut Arguments<'a>) -> Option<Action<'a>> {
    Some(Action::Plan { text: "".into(), steps: fields.todos("todos", "title")? })
}
