//! What the client's tools are asked to do, as the samples show them.

use crate::agents::arguments::{self, Translate};
use crate::session::Asked;

/// What a call of the tool `name` asks for.
pub(super) fn asked<'a>(name: &str, input: &'a str) -> Asked<'a> {
    let translate: Translate<'a> = match name {
        "bash" => |input| input.command("command", "cwd"),
        "read_file" => |input| input.read("path", "offset", "limit"),
        "write_file" => |input| input.write("path", "content"),
        "edit_file" => |input| input.edit("path", "old_string", "new_string"),
        _ => return Asked::other(input),
    };
    arguments::asked(input, translate)
}
