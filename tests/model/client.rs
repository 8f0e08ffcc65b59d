//! What a client does in a session, as events, and a client that writes them to disk as kimi-cli does.
//!
//! Source of the forms: the samples, which the real client recorded. Each record is written by opening,
//! appending and closing. All that the client knows it reads from the disk, as at a resume.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// One thing that a client does. A turn is a list of these; a killed client stops anywhere in it.
#[derive(Clone, Debug)]
pub enum Event {
    /// A turn begins.
    Begin(String),
    /// A turn begins inside the last one.
    BeginInner(String),
    End,
    Checkpoint,
    /// A user record: the prompt, a notification, a command's own record.
    User(String),
    Step(u32),
    CompactionBegins,
    /// The context is rotated; a summary and the last messages begin the new one.
    Compact(String),
    CompactionEnds,
    /// The context is rotated; the new one is empty.
    Clear,
    /// The model says something, or calls a tool; the user sees it.
    Streams(String, Option<String>),
    /// The same goes into the context.
    Keeps(String, Option<String>),
    /// A tool has returned; the user sees it.
    Returns(String),
    /// The same goes into the context.
    KeepsResult(String),
    /// The user says something while the turn runs.
    Steer(String),
    /// A command answers; only the user sees it.
    Reply(String),
}

/// The text before a compaction's summary.
pub const COMPACTED: &str =
    "<system>Previous context has been compacted. Here is the compaction output:</system>";

/// A client in one session's directory.
pub struct Client<'a> {
    pub dir: PathBuf,
    /// Seconds since 1970; moves on with every record.
    pub clock: &'a mut f64,
}

impl Client<'_> {
    /// Makes the session.
    pub fn create(&self) {
        std::fs::create_dir_all(&self.dir).unwrap();
        append(&self.dir.join("wire.jsonl"), r#"{"type": "metadata", "protocol_version": "1.10"}"#);
        self.context(&system_prompt());
    }

    pub fn play(&mut self, events: &[Event]) {
        for event in events {
            self.play_one(event);
        }
    }

    /// A record that a kill left half written.
    pub fn tear(&mut self) {
        let mut file = OpenOptions::new().append(true).open(self.dir.join("wire.jsonl")).unwrap();
        file.write_all(br#"{"timestamp": 1796, "message": {"type": "Con"#).unwrap();
    }

    fn play_one(&mut self, event: &Event) {
        match event {
            Event::Begin(text) | Event::BeginInner(text) => {
                self.wire("TurnBegin", json!({"user_input": text}));
            }
            Event::End => self.wire("TurnEnd", json!({})),
            Event::Checkpoint => {
                let id = self.next_checkpoint();
                self.context(&format!(r#"{{"role": "_checkpoint", "id": {id}}}"#));
            }
            Event::User(text) => self.context(&json!({"role": "user", "content": text}).to_string()),
            Event::Step(n) => self.wire("StepBegin", json!({"n": n})),
            Event::CompactionBegins => self.wire("CompactionBegin", json!({})),
            Event::CompactionEnds => self.wire("CompactionEnd", json!({})),
            Event::Compact(summary) => {
                let kept = last_messages(&self.rotate());
                self.context(r#"{"role": "_checkpoint", "id": 0}"#);
                let parts = json!([{"type": "text", "text": COMPACTED}, {"type": "text", "text": summary}]);
                self.context(&json!({"role": "user", "content": parts}).to_string());
                for line in kept {
                    self.context(&line);
                }
                self.context(r#"{"role": "_usage", "token_count": 15}"#);
            }
            Event::Clear => {
                self.rotate();
            }
            Event::Streams(text, call) => {
                self.wire("ContentPart", json!({"type": "text", "text": text}));
                if let Some(id) = call {
                    self.wire("ToolCall", tool_call(id));
                }
                self.wire("StatusUpdate", json!({"context_tokens": 3671}));
            }
            Event::Keeps(text, call) => {
                self.context(r#"{"role": "_usage", "token_count": 3671}"#);
                let mut record = json!({"role": "assistant", "content": text});
                if let Some(id) = call {
                    record["tool_calls"] = json!([tool_call(id)]);
                }
                self.context(&record.to_string());
                self.context(r#"{"role": "_usage", "token_count": 3678}"#);
            }
            Event::Returns(id) => self.wire(
                "ToolResult",
                json!({"tool_call_id": id, "return_value": {"is_error": false, "output": "x\n"}}),
            ),
            Event::KeepsResult(id) => {
                let parts = json!([{"type": "text", "text": "<system>done</system>"}]);
                self.context(&json!({"role": "tool", "content": parts, "tool_call_id": id}).to_string());
            }
            Event::Steer(text) => {
                self.wire("SteerInput", json!({"user_input": text}));
                self.context(&json!({"role": "user", "content": text}).to_string());
            }
            Event::Reply(text) => self.wire("ContentPart", json!({"type": "text", "text": text})),
        }
    }

    fn wire(&mut self, kind: &str, payload: Value) {
        *self.clock += 0.01;
        let time = *self.clock;
        let line =
            format!(r#"{{"timestamp": {time:.4}, "message": {{"type": "{kind}", "payload": {payload}}}}}"#);
        append(&self.dir.join("wire.jsonl"), &line);
    }

    fn context(&self, line: &str) {
        append(&self.dir.join("context.jsonl"), line);
    }

    fn next_checkpoint(&self) -> i64 {
        let text = std::fs::read_to_string(self.dir.join("context.jsonl")).unwrap();
        let mut ids = text.lines().filter_map(|line| {
            let record: Value = serde_json::from_str(line).ok()?;
            (record["role"] == "_checkpoint").then(|| record["id"].as_i64())?
        });
        ids.next_back().map_or(0, |last| last + 1)
    }

    /// Moves the live context to the next number and begins a new one; the old one's lines.
    fn rotate(&self) -> Vec<String> {
        let numbers = std::fs::read_dir(&self.dir).unwrap().filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_prefix("context_")?.strip_suffix(".jsonl")?.parse::<u32>().ok()
        });
        let next = numbers.max().unwrap_or(0) + 1;
        let live = self.dir.join("context.jsonl");
        let old = std::fs::read_to_string(&live).unwrap();
        std::fs::rename(&live, self.dir.join(format!("context_{next}.jsonl"))).unwrap();
        self.context(&system_prompt());
        old.lines().map(str::to_owned).collect()
    }
}

/// What a compaction takes over: the last two user or assistant messages and what follows the first of them.
fn last_messages(lines: &[String]) -> Vec<String> {
    let role = |line: &String| {
        let record: Value = serde_json::from_str(line).unwrap();
        record["role"].as_str().unwrap().to_owned()
    };
    let messages: Vec<&String> = lines.iter().filter(|line| !role(line).starts_with('_')).collect();
    let spoken = |line: &&&String| matches!(role(line).as_str(), "user" | "assistant");
    let first = messages.iter().enumerate().rev().filter(|(_, line)| spoken(line)).nth(1);
    let from = first.map_or(0, |(at, _)| at);
    messages[from..].iter().map(|line| (*line).clone()).collect()
}

fn system_prompt() -> String {
    r#"{"role": "_system_prompt", "content": "SYSTEM"}"#.to_owned()
}

fn tool_call(id: &str) -> Value {
    json!({"type": "function", "id": id, "function": {"name": "Shell", "arguments": "{\"command\":\"x\"}"}})
}

fn append(file: &Path, line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}
