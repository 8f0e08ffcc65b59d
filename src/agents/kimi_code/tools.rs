//! What the client's tools are asked to do. Facts: `docs/stores/kimi-code.md`, "2. Records".

use crate::agents::arguments::{self, Translate};
use crate::session::{Action, Asked};

/// What a call of the tool `name` asks for; tools of other programs (MCP) are not known.
pub(super) fn asked<'a>(name: &str, arguments: &'a str) -> Asked<'a> {
    let translate: Translate<'a> = match name {
        "Bash" => |fields| fields.command("command", "cwd"),
        "Read" => |fields| fields.read("path", "line_offset", "n_lines"),
        "ReadMediaFile" => |fields| fields.read("path", "", ""),
        "Write" => |fields| fields.write("path", "content"),
        "Edit" => |fields| fields.edit("path", "old_string", "new_string"),
        "Grep" | "Glob" => |fields| fields.search("pattern", "path"),
        "WebSearch" => |fields| fields.search("query", ""),
        "FetchURL" => |fields| fields.fetch("url"),
        "TodoList" => |fields| Some(Action::Plan { text: "".into(), steps: fields.todos("todos", "title")? }),
        "Agent" => |fields| fields.agent("description", "prompt"),
        // Sessions that were migrated from Kimi CLI have its tools.
        name => match crate::agents::kimi_tools::of(name) {
            Some(translate) => translate,
            None => return Asked::other(arguments),
        },
    };
    arguments::asked(arguments, translate)
}
