//! The one pass over a wire: where its records lie, and of those that decide branches, turns and cuts what they say.
//!
//! Texts stay on disk; of every other record its end, its time and the length of its text are kept.

use std::path::Path;
use std::sync::Arc;

use super::items;
use super::messages::Whose;
use super::records::{self, Body, Edge, RECORDS, Record};
use crate::render::{self, Length};
use crate::session::{AgentKind, FileHash, FileView, Result, Tokens, Turn};
use crate::transcript::metrics::count_parse;
use crate::transcript::{Inspector, Line, Passes, StoreDir, is_json};

/// The branch that a wire begins with.
const MAIN: &str = "main";

/// A record's place and size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Where its bytes end, with blank lines behind it.
    pub end: u64,
    /// The physical line, from 1.
    pub line: u64,
    /// Milliseconds since 1970.
    pub time: Option<i64>,
    /// Length of the text of all records up to this one, bytes.
    pub text: u64,
}

/// What a record decides.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// A turn begins.
    Anchor {
        id: Option<Arc<str>>,
        prompt: Arc<str>,
    },
    /// A message that was put in for the prompt with this id.
    Injection {
        owner: Arc<str>,
    },
    /// Any other message.
    Message,
    /// The model said something.
    Reply,
    Call {
        id: Arc<str>,
    },
    Result {
        id: Arc<str>,
    },
    Compaction,
    Clear,
    Switched,
    Undo {
        count: u64,
    },
    Undone,
    /// The turn's own number, and the id of its prompt.
    Prompt {
        id: Option<Arc<str>>,
        turn: Option<i64>,
    },
    /// It goes with the prompt with this id.
    Owned {
        prompt: Arc<str>,
    },
    Ended {
        reason: Ended,
    },
    /// It names the directory that the session's workspace has.
    Workspace,
    FileHistory,
    /// What a request took, and which model answered it.
    Usage {
        model: Option<Arc<str>>,
        tokens: Box<Tokens>,
    },
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Completed,
    Cancelled,
    Failed,
}

/// A stretch of the wire that one branch has written.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub name: Arc<str>,
    /// Its first record, from 0.
    pub from: usize,
    /// The branch that it goes on from (its place among all), and the last line (from 1) that it takes from there.
    pub base: Option<(usize, u64)>,
}

/// A wire as it was read.
#[derive(Clone)]
pub(super) struct Wire {
    pub places: Vec<Place>,
    /// With the numbers of their records, from 0, rising.
    pub marks: Vec<(usize, What)>,
    /// The last one is the active one.
    pub branches: Vec<Branch>,
    /// Lines (from 1) of undo records that belong to a new branch.
    pub paired: Vec<u64>,
    /// Version of the protocol, where the first record tells it.
    pub protocol: Option<Arc<str>>,
    pub model: Option<Arc<str>>,
    /// The model of the last request, shared by the marks of all that it answered.
    answered: Option<Arc<str>>,
    /// Whether the last record has no newline.
    pub unterminated: bool,
    pub inspector: Inspector,
}

/// The file name of a session's transcript.
pub(super) const WIRE: &str = "wire.jsonl";

impl Wire {
    fn new(name: &str) -> Wire {
        Wire {
            places: Vec::new(),
            marks: Vec::new(),
            branches: vec![Branch { name: MAIN.into(), from: 0, base: None }],
            paired: Vec::new(),
            protocol: None,
            model: None,
            answered: None,
            unterminated: false,
            inspector: Inspector::new(name, RECORDS),
        }
    }

    /// Reads the wire `file` (relative to the root) of a session or sub-agent; of one that only grew since `passes`
    /// only what was appended. `name` is what damages call it. `None` if it is not there.
    pub fn read(
        store: &StoreDir,
        passes: &mut Passes,
        file: &Path,
        name: &str,
        whose: Whose,
    ) -> Result<(Option<Wire>, FileView)> {
        count_parse();
        let each = |wire: &mut Wire, line: Line<'_>| wire.line(&line, whose);
        let scanned = passes.scan(store, file, whose, || Wire::new(name), each)?;
        let view = |len, hash| FileView { file: file.to_owned(), len, hash };
        Ok(match scanned {
            Some((wire, scanned)) => {
                scanned.count(AgentKind::KimiCode);
                (Some(wire), view(Some(scanned.len), scanned.hash))
            }
            None => (None, view(None, FileHash::of(b""))),
        })
    }

    /// Where the bytes of record `at` begin.
    pub fn start_of(&self, at: usize) -> u64 {
        match at.checked_sub(1) {
            Some(before) => self.places.get(before).map_or(self.end(), |place| place.end),
            None => 0,
        }
    }

    /// Where the last record ends.
    pub fn end(&self) -> u64 {
        self.places.last().map_or(0, |last| last.end)
    }

    fn line(&mut self, line: &Line<'_>, whose: Whose) {
        // The numbers behind a bad line would be other ones than those that the records refer to, and the client
        // drops all of that.
        let is_behind_damage = self.inspector.first_line().is_some();
        if line.is_blank() && line.terminated {
            if let Some(last) = self.places.last_mut().filter(|_| !is_behind_damage) {
                last.end = line.end;
            }
            return;
        }
        let taken = match records::parse(line.bytes) {
            Ok(record) if line.nuls == 0 => self.check(record),
            Ok(_) => Err(String::new()),
            Err(why) => Err(why),
        };
        match taken {
            Ok(record) => {
                self.inspector.record(line);
                if !is_behind_damage {
                    self.unterminated = !line.terminated;
                    self.take(line, record, whose);
                }
            }
            Err(why) => {
                let why = format!("not a record of kimi-code: {why}");
                self.inspector.no_record(line, is_json(line.bytes).then_some(&*why));
            }
        }
    }

    /// Makes sure that a new branch goes on from one that is there.
    fn check(&self, record: Record) -> Result<Record, String> {
        let Body::Switched(edge) = &record.body else { return Ok(record) };
        if self.branch(&edge.branch).is_some() {
            return Err(format!("the branch {:?} begins a second time", edge.branch));
        }
        let base = self.branch(&edge.base).ok_or_else(|| format!("there is no branch {:?}", edge.base))?;
        let end = self.branches.get(base + 1).map_or(self.places.len(), |next| next.from);
        match edge.line <= end as u64 {
            true => Ok(record),
            false => Err(format!("the branch {:?} has no line {}", edge.base, edge.line)),
        }
    }

    fn branch(&self, name: &str) -> Option<usize> {
        self.branches.iter().position(|branch| *branch.name == *name)
    }

    fn take(&mut self, line: &Line<'_>, record: Record, whose: Whose) {
        let at = self.places.len();
        if let (0, Body::Metadata { protocol, .. }) = (at, &record.body) {
            self.protocol = Some(protocol.as_deref().unwrap_or_default().into());
        }
        let mut length = Length::default();
        items::of(&record, line.bytes, whose, &mut |item| render::item(&item, &mut length));
        let text = self.places.last().map_or(0, |last| last.text) + length.0;
        self.places.push(Place { end: line.end, line: line.number, time: record.time, text });
        if let Some(what) = self.what(record.body, at, whose) {
            self.marks.push((at, what));
        }
    }

    fn what(&mut self, body: Body, at: usize, whose: Whose) -> Option<What> {
        Some(match body {
            Body::Message(message) if message.is_anchor(whose) => {
                let prompt: String = message.text().chars().take(Turn::PROMPT_CHARS).collect();
                What::Anchor { id: message.id.map(Arc::from), prompt: prompt.into() }
            }
            Body::Message(message) => match (message.role.as_str(), message.origin.kind.as_deref()) {
                (_, Some("injection")) => match message.origin.owner {
                    Some(owner) => What::Injection { owner: owner.into() },
                    None => What::Message,
                },
                ("assistant", _) => What::Reply,
                _ => What::Message,
            },
            Body::Part(_) => What::Reply,
            Body::Call { id, .. } => What::Call { id: id.into() },
            Body::Result { id, .. } => What::Result { id: id.into() },
            Body::Compaction { .. } => What::Compaction,
            Body::Clear => What::Clear,
            Body::Switched(Edge { branch, base, line, undo_line }) => {
                self.paired.extend(undo_line);
                let base = self.branch(&base).map(|base| (base, line));
                self.branches.push(Branch { name: branch.into(), from: at + 1, base });
                What::Switched
            }
            Body::Undo { count } => What::Undo { count },
            Body::Undone => What::Undone,
            Body::Prompt { id, turn } => What::Prompt { id: id.map(Arc::from), turn },
            Body::Owned { prompt } => What::Owned { prompt: prompt.into() },
            Body::Ended { reason, .. } => What::Ended { reason: Ended::of(&reason) },
            Body::Bind { workspace: true, .. } => What::Workspace,
            Body::Bind { model, .. } => {
                self.model = model.map(Arc::from).or(self.model.take());
                return None;
            }
            Body::FileHistory => What::FileHistory,
            Body::Usage { model, tokens } => {
                let shared = self.answered.take().filter(|last| Some(&**last) == model.as_deref());
                let model = shared.or(model.map(Arc::from));
                self.answered = model.clone();
                What::Usage { model, tokens: Box::new(tokens) }
            }
            Body::Metadata { .. } | Body::Bookkeeping | Body::Unknown => return None,
        })
    }
}

impl Ended {
    fn of(reason: &str) -> Ended {
        match reason {
            "completed" => Ended::Completed,
            "failed" | "blocked" => Ended::Failed,
            _ => Ended::Cancelled,
        }
    }
}
