//! A small agent with the shape of Kimi's store: a wire, a live context and rotated ones.
//!
//! Wire lines: `H` head, `T<text>` begins a turn, `C` a compaction (the context is rotated), others belong
//! to the turn. Context lines: `T<text>` begins a turn's records.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use tempfile::TempDir;

use crate::agents::{AgentStore, Discovery, store_of};
use crate::cut::StateDir;
use crate::cut::verify::Proof;
use crate::session::*;

pub struct Toy;

pub struct Fixture {
    pub dir: TempDir,
    pub session: Session,
    pub state: StateDir,
}

pub const TURNS: u32 = 5;

impl Fixture {
    /// Five turns; a compaction at the end of turn 1 and one at the end of turn 3.
    pub fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let s = dir.path().join("store/group/s");
        std::fs::create_dir_all(&s).unwrap();
        std::fs::write(s.join("wire.jsonl"), "H\nTa\nx0\nTb\nx1 longer\nC\nTc\nx2\nTd\nx3\nC\nTe\nx4\n")
            .unwrap();
        std::fs::write(s.join("context_1.jsonl"), "h\nTa\ny0\nTb\ny1 some more text\n").unwrap();
        std::fs::write(s.join("context_2.jsonl"), "h2\nTc\ny2\nTd\ny3\n").unwrap();
        std::fs::write(s.join("context.jsonl"), "h3\nTe\ny4\n").unwrap();
        Fixture::at(dir)
    }

    pub fn at(dir: TempDir) -> Fixture {
        let (session, state) = (session(&dir.path().join("store")), StateDir::at(&dir.path().join("state")));
        Fixture { dir, session, state }
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    pub fn load(&self) -> History {
        Toy.load(&self.session).unwrap()
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.root().join("group/s").join(file)
    }

    pub fn undo(&self, n: u32) -> Result<crate::cut::UndoDone> {
        super::super::execute::undo(&Toy, &self.state, &self.session, &self.load(), n, false)
    }

    pub fn redo(&self, number: Option<u32>) -> Result<(u32, u32)> {
        super::super::execute::redo(&Toy, &self.state, &self.session, number, false)
    }

    pub fn fork(&self, n: u32) -> Result<String> {
        super::super::fork::fork(&Toy, &self.state, &self.session, &self.load(), n, Proof::Turns)
    }

    pub fn prompts(&self) -> Vec<String> {
        self.load().turns.iter().map(|turn| turn.prompt.clone().unwrap()).collect()
    }
}

pub fn session(root: &Path) -> Session {
    let path = Path::new("group/s");
    let mut files = vec![path.join("wire.jsonl")];
    files.extend(contexts(&root.join(path)).into_iter().map(|name| path.join(name)));
    Session {
        key: SessionKey { agent: AgentKind::KimiCli, root: Arc::from(root), path: Arc::from(path) },
        id: "s".into(),
        place: Place::Project("/toy".into()),
        name: None,
        title: None,
        first_prompt: None,
        created: Timestamp::UNIX_EPOCH,
        updated: Timestamp::UNIX_EPOCH,
        model: None,
        archived: None,
        history_mode: None,
        forked_from: None,
        begun: crate::session::Begun::default(),
        migrated_from: None,
        files,
        sidecars: Vec::new(),
        subagent: None,
    }
}

/// Epoch files, oldest first.
fn contexts(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = (1..100).map(|n| format!("context_{n}.jsonl")).collect();
    names.retain(|name| dir.join(name).exists());
    if dir.join("context.jsonl").exists() {
        names.push("context.jsonl".into());
    }
    names
}

fn lines(bytes: &[u8]) -> Vec<(u64, String)> {
    let mut at = 0;
    let mut lines = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        lines.push((at, String::from_utf8(line.to_vec()).unwrap()));
        at += line.len() as u64;
    }
    lines
}

fn view(root: &Path, file: &Path) -> (FileView, Vec<u8>) {
    let bytes = std::fs::read(root.join(file)).unwrap();
    let hash = FileHash(xxhash_rust::xxh3::xxh3_128(&bytes));
    (FileView { file: file.to_owned(), len: Some(bytes.len() as u64), hash }, bytes)
}

impl AgentStore for Toy {
    fn root(&self) -> &Arc<Path> {
        unreachable!("a cut knows where its session is")
    }

    fn kind(&self) -> AgentKind {
        AgentKind::KimiCli
    }

    fn load_again(&self, session: &Session, _: &mut crate::transcript::Passes) -> Result<History> {
        let root = &*session.key.root;
        let wire_file = session.key.path.join("wire.jsonl");
        let (wire_view, wire) = view(root, &wire_file);
        let mut files = vec![wire_view];
        let mut epochs = Vec::new();
        for name in contexts(&session.key.absolute()) {
            let (view, bytes) = view(root, &session.key.path.join(name));
            files.push(view);
            epochs.push(bytes);
        }
        let mut turns: Vec<Turn> = Vec::new();
        let mut starts: Vec<(u64, usize)> = Vec::new();
        let mut epoch = 0;
        for (number, (at, line)) in lines(&wire).into_iter().enumerate() {
            if let Some(text) = line.strip_prefix('T') {
                if let Some(last) = turns.last_mut() {
                    last.span.end = at;
                }
                starts.push((at, epoch));
                turns.push(Turn {
                    n: turns.len() as u32,
                    prompt: Some(text.trim().to_owned()),
                    status: TurnStatus::Complete,
                    detail: Some(TurnDetail::Command),
                    started: None,
                    ended: None,
                    last: None,
                    file: Arc::from(wire_file.as_path()),
                    span: at..wire.len() as u64,
                    pieces: Vec::new(),
                    line: number as u64 + 1,
                    group: turns.len() as u32,
                    model: None,
                    tokens: None,
                    text_len: 0,
                });
            } else if line == "C\n" {
                epoch += 1;
            }
        }
        starts.push((wire.len() as u64, epoch));
        let name = |index: usize| {
            let live = index + 1 == epochs.len();
            if live { "context.jsonl".to_owned() } else { format!("context_{}.jsonl", index + 1) }
        };
        let kept = |file: String, source: String, bytes: u64| Kept {
            rebuilt: false,
            file: session.key.path.join(file),
            source: session.key.path.join(source),
            lines: 0,
            bytes,
        };
        let mut cuts = Vec::new();
        let begins: Vec<Vec<u64>> = epochs
            .iter()
            .map(|bytes| lines(bytes).into_iter().filter(|(_, line)| line.starts_with('T')))
            .map(|lines| lines.map(|(at, _)| at).collect())
            .collect();
        let mut used = vec![0; epochs.len()];
        for (wire_at, epoch) in &starts {
            let at = begins[*epoch].get(used[*epoch]).copied();
            used[*epoch] += 1;
            let mut point: Vec<Kept> =
                (0..*epoch).map(|e| kept(name(e), name(e), epochs[e].len() as u64)).collect();
            let bytes = at.unwrap_or(epochs[*epoch].len() as u64);
            point.push(kept("context.jsonl".into(), name(*epoch), bytes));
            point.push(kept("wire.jsonl".into(), "wire.jsonl".into(), *wire_at));
            cuts.push(Ok(CutPoint { confidence: Confidence::Exact, kept: point, at: None }));
        }
        let state = if turns.is_empty() { State::Empty } else { State::Ok };
        let sound_turns = turns.len() as u32;
        let empty = History::without_turns(state, files);
        Ok(History { sound_turns, head_bytes: starts[0].0, turns, cuts, ..empty })
    }

    fn undo_refusals(&self, _: &Session, history: &History) -> Result<Vec<Result<()>>> {
        Ok(vec![Ok(()); history.turns.len()])
    }

    fn plan_undo(&self, session: &Session, history: &History, n: u32) -> Result<UndoPlan> {
        store_of(session).plan_undo(session, history, n)
    }

    fn plan_fork(
        &self,
        session: &Session,
        history: &History,
        n: u32,
        project: Option<&Path>,
    ) -> Result<ForkPlan> {
        store_of(session).plan_fork(session, history, n, project)
    }

    fn resume(&self, _: &Session, _: &History) -> Option<Vec<Vec<String>>> {
        None
    }

    fn writer(&self, _: &Session, _: &History, _: &crate::host::processes::Running) -> Option<Writer> {
        None
    }

    fn discover(&self) -> Result<Arc<Discovery>> {
        Ok(Arc::default())
    }
    fn items(&self, _: &Session, _: &Turn, _: &[u8], _: &mut ItemSink<'_>) -> Result<()> {
        Ok(())
    }
    fn prompt(&self, _: &Session, _: &Turn, _: &[u8]) -> Result<String> {
        Ok(String::new())
    }
    fn context(&self, _: &Session, _: &History, _: &mut ItemSink<'_>) -> Result<()> {
        Ok(())
    }
    fn subagents(&self, _: &Session) -> Result<Vec<Session>> {
        Ok(Vec::new())
    }
}

/// Every path below `root` with its mode and bytes.
pub fn snapshot(root: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut all = Vec::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            let facts = entry.metadata().unwrap();
            let path = entry.path();
            let bytes = if facts.is_dir() { Vec::new() } else { std::fs::read(&path).unwrap() };
            if facts.is_dir() {
                dirs.push(path.clone());
            }
            let mode = facts.permissions().mode();
            all.push((path.strip_prefix(root).unwrap().to_owned(), mode, bytes));
        }
    }
    all.sort();
    all
}
