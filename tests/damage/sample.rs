//! A sample of each store with one session of four plain turns, and ways to damage it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use turnfs::session::AgentKind;

use crate::support::{TestStore, copy_tree};

/// A store with one session.
pub struct Sample {
    pub agent: AgentKind,
    /// For messages: the sample's name.
    pub name: &'static str,
    pub store: TestStore,
    pub id: String,
    /// The file that holds the turns.
    pub transcript: PathBuf,
    /// The sample's expected.json.
    pub expected: Value,
}

/// Four plain turns in each store; Codex has two forms.
pub const PLAIN: [(AgentKind, &str); 6] = [
    (AgentKind::KimiCli, "a-plain"),
    (AgentKind::KimiCode, "a-plain"),
    (AgentKind::Codex, "a_plain4"),
    (AgentKind::Codex, "a_plain4_legacy"),
    (AgentKind::OpenMax, "a_plain"),
    (AgentKind::ClaudeCode, "plain"),
];

/// A line of the transcript in the middle of turn 2, counted from 0: the answer, with the word "three" in it.
pub fn victim(sample: &Sample) -> usize {
    match sample.agent {
        AgentKind::KimiCli => 13,
        AgentKind::KimiCode => 45,
        AgentKind::Codex => 28,
        AgentKind::OpenMax => 6,
        AgentKind::ClaudeCode => 16,
    }
}

impl Sample {
    pub fn of(agent: AgentKind, name: &'static str) -> Sample {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(agent.name()).join(name);
        let expected: Value = serde_json::from_slice(&fs::read(from.join("expected.json")).unwrap()).unwrap();
        let mut store = TestStore::empty();
        store.root = store.home.join(match agent {
            AgentKind::KimiCli => ".kimi",
            AgentKind::KimiCode => ".kimi-code",
            AgentKind::Codex => ".codex",
            AgentKind::OpenMax => ".openmax",
            AgentKind::ClaudeCode => ".claude",
        });
        copy_tree(&from.join("store"), &store.root);
        let id = expected["session"].as_str().unwrap().to_owned();
        let transcript = store.root.join(match agent {
            AgentKind::KimiCli => format!("{}/wire.jsonl", expected["session_path"].as_str().unwrap()),
            AgentKind::KimiCode => {
                format!("{}/agents/main/wire.jsonl", expected["session_path"].as_str().unwrap())
            }
            AgentKind::Codex => expected["rollout"].as_str().unwrap().to_owned(),
            AgentKind::OpenMax => format!("sessions/{id}.messages.json"),
            AgentKind::ClaudeCode => {
                let slug = expected["project"].as_str().unwrap().replace('/', "-");
                format!("projects/{slug}/{id}.jsonl")
            }
        });
        assert!(transcript.is_file(), "{}", transcript.display());
        let mut sample = Sample { agent, name, store, id, transcript, expected };
        if agent == AgentKind::ClaudeCode {
            sample.rename_prompts();
        }
        sample
    }

    /// Gives a sample the prompts that those of the other stores have.
    fn rename_prompts(&mut self) {
        let names = [
            ("first prompt", "one"),
            ("prompt number 2", "two"),
            ("prompt number 3", "three"),
            ("prompt number 4", "four"),
        ];
        let renamed = |text: String| names.iter().fold(text, |text, (old, new)| text.replace(old, new));
        self.write(renamed(fs::read_to_string(&self.transcript).unwrap()).as_bytes());
        self.expected = serde_json::from_str(&renamed(self.expected.to_string())).unwrap();
    }

    pub fn all() -> impl Iterator<Item = Sample> {
        PLAIN.into_iter().map(|(agent, name)| Sample::of(agent, name))
    }

    pub fn lines(&self) -> Vec<Vec<u8>> {
        let bytes = fs::read(&self.transcript).unwrap();
        bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    }

    /// Writes the transcript anew, with its old times, so that nobody seems to be at work.
    pub fn write(&self, content: &[u8]) {
        write_old(&self.transcript, content);
    }

    /// Writes the transcript with its lines changed.
    pub fn change(&self, change: impl FnOnce(&mut Vec<Vec<u8>>)) {
        let mut lines = self.lines();
        change(&mut lines);
        self.write(&lines.concat());
    }

    /// The line of the session in `ls --all --json`.
    #[track_caller]
    pub fn listed(&self) -> Value {
        let all = self.store.run(&["ls", "--all", "--json"]).json();
        let mine = all.as_array().unwrap().iter().find(|row| row["id"] == self.id.as_str());
        mine.unwrap_or_else(|| panic!("{}: {} is not in {all}", self.name, self.id)).clone()
    }

    /// What `show --json` says of a session.
    #[track_caller]
    pub fn shown(&self, id: &str) -> Value {
        self.store.run(&["show", id, "--json"]).json()
    }

    /// The project of the session, as recorded.
    pub fn project(&self) -> &str {
        self.expected["project"].as_str().unwrap()
    }

    /// Every file of the store but databases, which a reader's own lock files may touch.
    pub fn bytes(&self) -> Vec<(PathBuf, u32, Vec<u8>)> {
        let files = self.store.snapshot().into_iter();
        let sqlite_helper = |path: &Path| path.to_string_lossy().ends_with("-shm");
        files
            .filter(|(path, _)| !sqlite_helper(path))
            .map(|(path, (mode, bytes))| (path, mode, bytes))
            .collect()
    }
}

pub fn write_old(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_760_000_000)).unwrap();
}

/// The first half of a line, with its newline.
pub fn half(line: &[u8]) -> Vec<u8> {
    [&line[..line.len() / 2], b"\n"].concat()
}

/// A line with other text in it.
#[track_caller]
pub fn replaced(line: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = std::str::from_utf8(line).unwrap();
    assert!(text.contains(from), "no {from:?} in {text}");
    text.replacen(from, to, 1).into_bytes()
}
