//! A store with one session, and a client that appends to its wire what the real one would.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use turnfs::agents::{AgentStore, open};
use turnfs::cut::{self, StateDir};
use turnfs::session::{AgentKind, History, Item, Refusal, Session};

pub const ID: &str = "session_11111111-2222-4333-8444-555555555555";
const WORKSPACE: &str = "wd_p_000000000000";

pub struct Store {
    top: tempfile::TempDir,
    pub agent: Arc<dyn AgentStore>,
    /// Milliseconds since 1970, long ago, so that nobody seems to be at work.
    clock: i64,
    turn: u32,
}

impl Store {
    /// A session of this project without a turn.
    pub fn of(project: &str) -> Store {
        let top = tempfile::tempdir().unwrap();
        let root = top.path().join("store");
        let agent = open(AgentKind::KimiCode, &*root);
        let mut store = Store { top, agent, clock: 1_780_000_000_000, turn: 0 };
        fs::create_dir_all(store.dir().join("agents/main")).unwrap();
        store.write_state(&json!({"id": ID, "version": 2, "cwd": project, "createdAt": store.clock,
            "updatedAt": store.clock, "archived": false, "custom": {}, "agents": {"main": {"type": "main"}}}));
        store.raw(json!({"type": "metadata", "protocol_version": "1.5", "created_at": store.clock}));
        store.put("runtime.set_binding", json!({"workspaceId": WORKSPACE}));
        store.put("profile.bind", json!({"modelAlias": "mock"}));
        store
    }

    pub fn new() -> Store {
        Store::of("/w/p")
    }

    pub fn root(&self) -> PathBuf {
        self.top.path().join("store")
    }

    pub fn dir(&self) -> PathBuf {
        self.root().join("sessions").join(WORKSPACE).join(ID)
    }

    pub fn wire(&self) -> PathBuf {
        self.dir().join("agents/main/wire.jsonl")
    }

    pub fn write_state(&self, state: &Value) {
        fs::write(self.dir().join("state.json"), state.to_string()).unwrap();
    }

    pub fn state(&self) -> StateDir {
        StateDir::at(&self.top.path().join("state"))
    }

    /// Appends a record.
    pub fn raw(&mut self, record: Value) {
        let mut file = File::options().create(true).append(true).open(self.wire()).unwrap();
        file.write_all(format!("{record}\n").as_bytes()).unwrap();
    }

    /// Appends a record of this type.
    pub fn put(&mut self, kind: &str, rest: Value) {
        self.clock += 10;
        let mut record = json!({"type": kind, "agentId": "main"});
        record.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        record["time"] = self.clock.into();
        self.raw(record);
    }

    pub fn message(&mut self, text: &str, id: Option<&str>, origin: Value) {
        let mut message = json!({"role": "user", "content": [{"type": "text", "text": text}], "toolCalls": [], "origin": origin});
        if let Some(id) = id {
            message["id"] = id.into();
        }
        self.put("context.append_message", json!({"message": message}));
    }

    /// A prompt, with or without something that is put in for it before; its id.
    pub fn prompt(&mut self, text: &str, injected: bool) -> String {
        let turn = self.turn;
        self.turn += 1;
        let id = format!("msg_{turn:04}");
        let input = json!([{"type": "text", "text": text}]);
        self.put("turn.prompt", json!({"input": input, "promptId": id, "turnId": turn}));
        if injected {
            let origin = json!({"kind": "injection", "variant": "skill", "ownerPromptId": id});
            self.message(&format!("<system-reminder>for {text}</system-reminder>"), None, origin);
        }
        self.message(text, Some(&id), json!({"kind": "user"}));
        let meta = json!({"promptId": id});
        self.put("agent.message.appended", json!({"message": {"meta": meta}, "kind": "event"}));
        id
    }

    pub fn steer(&mut self, text: &str) {
        self.message(text, Some(&format!("steer_{}", self.clock)), json!({"kind": "user", "inTurn": true}));
    }

    pub fn reply(&mut self, text: &str) {
        let event = json!({"type": "content.part", "part": {"type": "text", "text": text}});
        self.put("context.append_loop_event", json!({"event": event}));
    }

    pub fn end(&mut self, reason: &str) {
        let turn = self.turn - 1;
        self.put("turn.ended", json!({"turnId": turn, "reason": reason}));
    }

    /// A whole turn.
    pub fn turn(&mut self, text: &str) {
        self.prompt(text, false);
        self.reply(&format!("reply to {text}"));
        self.end("completed");
    }

    pub fn compact(&mut self, summary: &str, kept: usize) {
        self.put(
            "context.apply_compaction",
            json!({"summary": summary, "contextSummary": summary, "compactedCount": 9, "keptUserMessageCount": kept}),
        );
    }

    /// How many records there are.
    pub fn lines(&self) -> usize {
        fs::read_to_string(self.wire()).unwrap().lines().filter(|line| !line.trim().is_empty()).count()
    }

    pub fn switch(&mut self, branch: &str, base: &str, line: usize, undo_line: Option<usize>) {
        let base = json!({"branch": base, "line": line});
        self.put("agent.switched", json!({"branch": branch, "base": base, "legacyUndoLine": undo_line}));
    }

    pub fn session(&self) -> Session {
        let found = self.agent.discover().unwrap();
        Session::clone(found.sessions.iter().find(|session| session.id == ID).unwrap())
    }

    pub fn history_of(&self, session: &Session) -> History {
        self.agent.load(session).unwrap()
    }

    pub fn history(&self) -> History {
        self.history_of(&self.session())
    }

    pub fn prompts(&self) -> Vec<String> {
        self.history().turns.into_iter().map(|turn| turn.prompt.unwrap()).collect()
    }

    /// What the model of a session is sent: the user's words, its own, and summaries.
    pub fn context_of(&self, session: &Session) -> Vec<String> {
        let mut said = Vec::new();
        let history = self.history_of(session);
        self.agent
            .context(session, &history, &mut |_, item| match item {
                Item::User { text } | Item::Steer { text } => said.push(format!("user: {text}")),
                Item::Assistant { text } => said.push(format!("assistant: {text}")),
                Item::Compaction { text } => said.push(format!("summary: {text}")),
                _ => {}
            })
            .unwrap();
        said
    }

    pub fn context(&self) -> Vec<String> {
        self.context_of(&self.session())
    }

    pub fn undo(&self, n: u32) -> Result<cut::UndoDone, Refusal> {
        let session = self.session();
        cut::undo(&*self.agent, &self.state(), &session, &self.history(), n, false)
    }

    pub fn redo(&self) -> Result<(u32, u32), Refusal> {
        cut::redo(&*self.agent, &self.state(), &self.session(), None, false)
    }

    /// Forks; the new session.
    pub fn fork(&self, n: u32) -> Result<Session, Refusal> {
        let id = cut::fork(&*self.agent, &self.state(), &self.session(), &self.history(), n)?;
        let found = self.agent.discover().unwrap();
        Ok(Session::clone(found.sessions.iter().find(|session| session.id == id).unwrap()))
    }
}
