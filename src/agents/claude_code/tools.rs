//! What the client's tools are asked to do. Facts: `docs/stores/claude-code.md`, "2. Records".

use crate::agents::arguments::{self, Arguments, Translate};
use crate::session::{Action, Asked, TodoState};

/// What a call of the tool `name` asks for; tools of other programs (MCP) are not known.
pub(super) fn asked<'a>(name: &str, input: &'a str) -> Asked<'a> {
    let translate: Translate<'a> = match name {
        "Bash" => |input| input.command("command", "cwd"),
        "Read" => |input| input.read("file_path", "offset", "limit"),
        "LS" => |input| input.read("path", "", ""),
        "Write" => |input| input.write("file_path", "content"),
        "Edit" => |input| input.edit("file_path", "old_string", "new_string"),
        "MultiEdit" => |input| input.edits("file_path", "edits", "old_string", "new_string"),
        "Grep" | "Glob" => |input| input.search("pattern", "path"),
        "WebSearch" | "web_search" => |input| input.search("query", ""),
        "WebFetch" | "web_fetch" => |input| input.fetch("url"),
        "TodoWrite" => |input| todos(input),
        "ExitPlanMode" => |input| Some(Action::Plan { text: input.text("plan")?, steps: Vec::new() }),
        "Agent" | "Task" => |input| input.agent("description", "prompt"),
        _ => return Asked::other(input),
    };
    arguments::asked(input, translate)
}

/// Each item has its words twice: as what is to do (`content`), and as what is being done (`activeForm`), which is shown
/// only while it is.
fn todos<'a>(input: &mut Arguments<'a>) -> Option<Action<'a>> {
    let mut steps = input.todos("todos", "content")?;
    for step in &mut steps {
        let is_running = step.state == TodoState::InProgress;
        step.more.retain(|(name, _)| is_running || name != "activeForm");
    }
    Some(Action::Plan { text: "".into(), steps })
}

/// The exit code that the output of a failed command begins with, and the rest.
pub(super) fn exit_code(is_error: bool, output: &str) -> (Option<i64>, &str) {
    let found = || {
        let (first, rest) = output.split_once('\n').unwrap_or((output, ""));
        Some((first.strip_prefix("Exit code ")?.parse().ok()?, rest))
    };
    match is_error.then(found).flatten() {
        Some((code, rest)) => (Some(code), rest),
        None => (None, output),
    }
}
