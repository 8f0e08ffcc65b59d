//! Which turns a fork may leave out.

use super::first_format;
use super::line::{self as lines, Content};
use super::records::{Body, Mode};
use super::voice;
use crate::session::{Refusal, Result, Session, Turn};
use crate::transcript;

/// Whether the client goes on with a thread without this turn. It tells its model of directories, rules and files when a
/// thread begins and when they change, and takes that for told ever after.
///
/// # Errors
/// [`Refusal::CannotCut`].
pub fn can_leave_out(session: &Session, turn: &Turn) -> Result<()> {
    if session.history_mode.as_deref() == Some(Mode::First.name()) {
        return Err(Refusal::cannot_cut(first_format::NOT_RESUMED, first_format::USE_FORK));
    }
    for (file, span) in turn.ranges() {
        let bytes = transcript::read_range(&session.key.root, file, span)?;
        let records = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        if let Some(told) = records.into_iter().find_map(|line| lines::read(line, lasting)) {
            let what = format!("turn {} holds {told}, which later turns depend on", turn.n);
            return Err(Refusal::cannot_cut(what, "fork up to the turn before it"));
        }
    }
    Ok(())
}

/// What a line tells that counts for later turns, too.
fn lasting(content: Option<Content<'_>>) -> Option<&'static str> {
    let Some(Content { record, body, .. }) = content else { return Some("a line of an unknown form") };
    match body {
        Body::Event(event, _) if event.kind == "thread_rolled_back" => Some("a rollback"),
        Body::Response(response) if voice::is_lasting(response) => {
            Some("what the client tells its model once, when a session begins or something changes")
        }
        _ if record.kind == "world_state" => Some("what the client notes of its surroundings"),
        _ => None,
    }
}
