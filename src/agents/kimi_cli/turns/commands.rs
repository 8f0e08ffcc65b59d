//! What the client's slash commands do to the context.

use super::walk::{NewEpoch, OpKind};

/// What a /compact replies.
pub(super) const HAS_BEEN_COMPACTED: &str = "The context has been compacted.";

/// Whether only the command's reply tells what it did.
pub(super) fn needs_reply(command: &str) -> bool {
    matches!(command, "clear" | "reset" | "add-dir" | "afk" | "import")
}

/// What a command did to the context, told by its reply. Facts: `docs/stores/kimi-cli.md`,
/// "2.3 What each input writes".
pub(super) fn command_effect(command: &str, reply: &str) -> Option<OpKind> {
    let said = match command {
        "clear" | "reset" => {
            return reply.contains("has been cleared").then_some(OpKind::NewEpoch(NewEpoch::Clear));
        }
        "add-dir" => "Added directory to workspace:",
        "afk" => "afk mode disabled",
        "import" => "Imported context from",
        _ => "",
    };
    let prefix = side_record(command)?;
    reply.contains(said).then_some(OpKind::SideRecord { prefix, sure: true })
}

/// How the user record begins that a command writes.
pub(super) fn side_record(command: &str) -> Option<&'static str> {
    Some(match command {
        "add-dir" => "<system>The user has added an additional directory",
        "afk" => "<system-reminder>\nAfk mode is now disabled",
        "import" => "<system>The user has imported context from",
        "init" => "<system>The user just ran `/init`",
        _ => return None,
    })
}
