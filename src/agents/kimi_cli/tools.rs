//! What the client's tools are asked to do, and what their messages say. Facts: `docs/stores/kimi-cli.md`, "2.5 Tools".

use crate::agents::{arguments, kimi_tools};
use crate::session::Asked;

/// What a call of the tool `name` asks for; tools of other programs (MCP) are not known.
pub(super) fn asked<'a>(name: &str, arguments: &'a str) -> Asked<'a> {
    match kimi_tools::of(name) {
        Some(translate) => arguments::asked(arguments, translate),
        None => Asked::other(arguments),
    }
}

/// The exit code of a command, where the message about it says that and nothing else.
pub(super) fn exit_code(message: &str) -> Option<i64> {
    match message {
        "Command executed successfully." => Some(0),
        message => message.strip_prefix("Command failed with exit code: ")?.strip_suffix('.')?.parse().ok(),
    }
}
