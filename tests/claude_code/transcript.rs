//! A store with one session, and a client that appends to its transcript what the real one would.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use turnfs::agents::{AgentStore, open};
use turnfs::cut::{self, StateDir};
use turnfs::session::{AgentKind, History, Item, Refusal, Session};

pub const ID: &str = "11111111-2222-4333-8444-555555555555";

pub struct Store {
    top: tempfile::TempDir,
    pub agent: Arc<dyn AgentStore>,
    records: u32,
    /// What the next record names as its directory.
    pub cwd: String,
    /// What the next record follows.
    pub last: Option<String>,
}

impl Store {
    pub fn new() -> Store {
        let top = tempfile::tempdir().unwrap();
        let root = top.path().join("store");
        fs::create_dir_all(root.join("projects/-w-p")).unwrap();
        let agent = open(AgentKind::ClaudeCode, &*root);
        Store { top, agent, records: 0, cwd: "/w/p".into(), last: None }
    }

    pub fn with_turns(prompts: &[&str]) -> Store {
        let mut store = Store::new();
        prompts.iter().for_each(|prompt| drop(store.turn(prompt)));
        store
    }

    pub fn root(&self) -> PathBuf {
        self.top.path().join("store")
    }

    pub fn file(&self) -> PathBuf {
        self.root().join(format!("projects/-w-p/{ID}.jsonl"))
    }

    pub fn raw(&self, record: &Value) {
        let mut file = File::options().create(true).append(true).open(self.file()).unwrap();
        file.write_all(format!("{record}\n").as_bytes()).unwrap();
    }

    /// Appends a record that follows the last one; its uuid.
    pub fn put(&mut self, kind: &str, rest: Value) -> String {
        self.records += 1;
        let uuid = format!("record-{}", self.records);
        let time = format!("2026-01-02T03:{:02}:{:02}.000Z", self.records / 60, self.records % 60);
        let mut record = json!({"parentUuid": self.last, "isSidechain": false, "type": kind, "uuid": uuid,
            "timestamp": time, "sessionId": ID, "cwd": self.cwd});
        record.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        self.raw(&record);
        self.last = Some(uuid.clone());
        uuid
    }

    pub fn user(&mut self, content: impl Into<Value>) -> String {
        self.put("user", json!({"message": {"role": "user", "content": content.into()}}))
    }

    pub fn reply(&mut self, id: &str, block: Value) -> String {
        let message = json!({"id": id, "role": "assistant", "model": "m", "content": [block]});
        self.put("assistant", json!({"message": message}))
    }

    pub fn says(&mut self, text: &str) -> String {
        let id = format!("msg-{}", self.records);
        self.reply(&id, json!({"type": "text", "text": text}))
    }

    /// A prompt and its answer; the answer's uuid.
    pub fn turn(&mut self, prompt: &str) -> String {
        self.user(prompt);
        self.says(&format!("reply to {prompt}"))
    }

    /// Whether this record is one of an answer.
    pub fn is_reply(&self, uuid: &str) -> bool {
        let text = fs::read_to_string(self.file()).unwrap();
        text.lines().any(|line| {
            let record: Value = serde_json::from_str(line).unwrap();
            record["uuid"] == uuid && record["type"] == "assistant"
        })
    }

    pub fn result(&mut self, call: &str, output: &str) -> String {
        let block = json!({"type": "tool_result", "tool_use_id": call, "content": output});
        self.put("user", json!({"message": {"role": "user", "content": [block]}, "toolUseResult": {}}))
    }

    /// The client's note of where the conversation ends.
    pub fn note(&self, leaf: Value, explicit: bool) {
        let mut note = json!({"type": "last-prompt", "leafUuid": leaf, "sessionId": ID});
        if explicit {
            note["explicit"] = true.into();
        }
        self.raw(&note);
    }

    /// A compaction that keeps these records for the model.
    pub fn compact(&mut self, summary: &str, kept: &[&str]) {
        let before = self.last.take();
        let anchor = format!("record-{}", self.records + 2);
        let preserved = json!({"anchorUuid": anchor, "uuids": kept, "allUuids": kept});
        self.put(
            "system",
            json!({"subtype": "compact_boundary", "logicalParentUuid": before,
            "content": "Conversation compacted", "compactMetadata": {"preservedMessages": preserved}}),
        );
        self.put(
            "user",
            json!({"isCompactSummary": true, "isVisibleInTranscriptOnly": true,
            "message": {"role": "user", "content": summary}}),
        );
    }

    /// The projects of all sessions of the store, each named once.
    pub fn projects(&self) -> Vec<PathBuf> {
        let found = self.agent.discover().unwrap();
        let place = |session: &Arc<Session>| session.place.project().unwrap().to_owned();
        let mut projects: Vec<_> = found.sessions.iter().map(place).collect();
        projects.sort();
        projects.dedup();
        projects
    }

    pub fn session(&self) -> Session {
        let found = self.agent.discover().unwrap();
        let mine = found.sessions.iter().find(|session| session.id == ID);
        (**mine.unwrap()).clone()
    }

    pub fn history(&self) -> History {
        self.agent.load(&self.session()).unwrap()
    }

    pub fn prompts(&self) -> Vec<String> {
        prompts(&self.history())
    }

    /// What the model is sent: text and outputs, in order.
    pub fn context(&self) -> Vec<String> {
        self.context_of(&self.session())
    }

    fn context_of(&self, session: &Session) -> Vec<String> {
        let history = self.agent.load(session).unwrap();
        let mut said = Vec::new();
        let mut sink = |_, item: Item<'_>| {
            said.push(match item {
                Item::User { text } => format!("user: {text}"),
                Item::Assistant { text } => format!("assistant: {text}"),
                Item::Compaction { text } => format!("summary: {text}"),
                Item::ToolCall { id, .. } => format!("call: {id}"),
                Item::ToolResult { output, .. } => format!("result: {output}"),
                Item::Steer { text } => format!("steer: {text}"),
                other => format!("{other:?}"),
            });
        };
        self.agent.context(session, &history, &mut sink).unwrap();
        said
    }

    fn state(&self) -> StateDir {
        StateDir::at(&self.top.path().join("state"))
    }

    pub fn undo(&self, n: u32) -> Result<(), Refusal> {
        let session = self.session();
        cut::undo(&*self.agent, &self.state(), &session, &self.history(), n, false).map(drop)
    }

    pub fn redo(&self) -> Result<(), Refusal> {
        cut::redo(&*self.agent, &self.state(), &self.session(), None, false).map(drop)
    }

    /// The prompts of a fork that keeps the turns up to `n`, and what its model is sent.
    pub fn fork(&self, n: u32) -> (Vec<String>, Vec<String>) {
        let id = cut::fork(&*self.agent, &self.state(), &self.session(), &self.history(), n).unwrap();
        self.of(&id)
    }

    /// The same of a fork of an abandoned branch.
    pub fn fork_abandoned(&self, number: u32, n: Option<u32>) -> Result<(Vec<String>, Vec<String>), Refusal> {
        let (session, history) = (self.session(), self.history());
        let (id, _) = cut::fork_abandoned(&*self.agent, &self.state(), &session, &history, number, n)?;
        Ok(self.of(&id))
    }

    fn of(&self, id: &str) -> (Vec<String>, Vec<String>) {
        let found = self.agent.discover().unwrap();
        let session = found.sessions.iter().find(|session| session.id == id).unwrap();
        (prompts(&self.agent.load(session).unwrap()), self.context_of(session))
    }
}

fn prompts(history: &History) -> Vec<String> {
    history.turns.iter().map(|turn| turn.prompt.clone().unwrap_or_default()).collect()
}
