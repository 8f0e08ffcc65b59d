//! Rollouts of the first format in the form that the client writes today.

use std::path::Path;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::first_format::Head;
use super::line as lines;
use super::records::{Body, Mode, Part, Response};
use super::voice;
use crate::session::{CutPoint, History, Refusal, Result, Session, Turn, rfc3339};
use crate::transcript;

/// What is kept of a rollout of the first format, as a rollout of today's form.
///
/// # Errors
/// What prevents reading it.
pub fn fork(
    session: &Session,
    history: &History,
    point: &CutPoint,
    id: &str,
    project: Option<&Path>,
    now: Timestamp,
) -> Result<Vec<u8>> {
    let changed = || Refusal::Changed { what: session.key.absolute().display().to_string() };
    let kept = point.kept.last().ok_or_else(changed)?;
    let bytes = transcript::read_range(&session.key.root, &kept.source, 0..kept.bytes)?;
    let cwd = project.or(session.project()).map(|path| path.to_string_lossy().into_owned());
    let meta = json!({
        "id": id, "session_id": id, "forked_from_id": session.id, "timestamp": rfc3339(now),
        // The format does not tell; the client needs one.
        "cwd": cwd.unwrap_or_else(|| "/".into()),
        "originator": "turnfs", "cli_version": env!("CARGO_PKG_VERSION"), "source": "cli",
        "history_mode": Mode::Legacy.name(),
    });
    in_todays_form(&bytes, &history.turns, meta, now).ok_or_else(changed)
}

/// The lines of `bytes`, which are the file's first ones, in today's form: explicit turns, each item in its
/// envelope and byte for byte, and beside it the event by which the client shows it. `meta` is the payload of the
/// first line, without what this file tells.
///
/// The format records one time, that of its beginning; it stands in every line but the first.
fn in_todays_form(bytes: &[u8], turns: &[Turn], mut meta: Value, now: Timestamp) -> Option<Vec<u8>> {
    let first = bytes.split(|byte| *byte == b'\n').next()?;
    let head = Head::parse(first)?;
    if let Some(git) = head.git.filter(Value::is_object) {
        meta["git"] = git;
    }
    let mut out = Today { out: Vec::with_capacity(bytes.len() * 2), time: head.timestamp };
    out.line(&rfc3339(now), "session_meta", &meta.to_string());
    let mut turns = turns.iter().peekable();
    let mut open: Option<String> = None;
    let mut at = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let start = at as u64;
        at += line.len();
        if turns.next_if(|turn| turn.span.start == start).is_some() {
            out.end(open.take());
            let id = uuid::Uuid::now_v7().to_string();
            out.event(&json!({"type": "task_started", "turn_id": id, "model_context_window": null}));
            open = Some(id);
        }
        lines::read(line, |content| {
            let Some(content) = content.filter(|content| content.record.kind == "response_item") else {
                return;
            };
            out.item(content.record.payload.get());
            if let Body::Response(response) = content.body {
                out.events_of(response, open.is_some());
            }
        });
    }
    out.end(open.take());
    Some(out.out)
}

struct Today {
    out: Vec<u8>,
    time: String,
}

impl Today {
    fn line(&mut self, time: &str, kind: &str, payload: &str) {
        let time = Value::from(time);
        let line = format!("{{\"timestamp\":{time},\"type\":\"{kind}\",\"payload\":{payload}}}\n");
        self.out.extend_from_slice(line.as_bytes());
    }

    fn item(&mut self, payload: &str) {
        let time = self.time.clone();
        self.line(&time, "response_item", payload);
    }

    fn event(&mut self, payload: &Value) {
        let time = self.time.clone();
        self.line(&time, "event_msg", &payload.to_string());
    }

    fn end(&mut self, turn: Option<String>) {
        if let Some(id) = turn {
            self.event(&json!({"type": "task_complete", "turn_id": id, "last_agent_message": null}));
        }
    }

    /// What the client shows of an item.
    fn events_of(&mut self, response: &Response<'_>, in_turn: bool) {
        let text = |part: &Part<'_>| part.text.as_deref().unwrap_or("").to_owned();
        match (&*response.kind, response.role.as_deref()) {
            ("message", Some("user")) if in_turn && voice::is_users_by_marks(response) => {
                let images: Vec<&str> =
                    response.content.iter().filter_map(|part| part.image_url.as_deref()).collect();
                self.event(&json!({
                    "type": "user_message", "message": voice::own_text(response), "images": images,
                    "local_images": [], "text_elements": [],
                }));
            }
            ("message", Some("assistant")) => {
                let message: String = response.content.iter().map(text).collect();
                self.event(&json!({"type": "agent_message", "message": message}));
            }
            ("reasoning", _) => {
                for part in response.summary.iter() {
                    self.event(&json!({"type": "agent_reasoning", "text": text(part)}));
                }
                for part in response.content.iter() {
                    self.event(&json!({"type": "agent_reasoning_raw_content", "text": text(part)}));
                }
            }
            _ => {}
        }
    }
}
