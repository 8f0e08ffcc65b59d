//! A store with its sessions, the reference beside it, and what must agree after every step.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tempfile::TempDir;
use turnfs::agents::store_of;
use turnfs::catalog::{Catalog, StoreOptions, View};
use turnfs::cut::{self, StateDir};
use turnfs::host::Environment;
use turnfs::session::{AgentKind, Errno, Refusal, SessionKey, State as Condition};

use super::client::{Client, Event};
use super::operation::{Input, Op};
use super::reference::State;

const PROJECT: &str = "/model/project";

/// Every file of the store with its bytes.
type Files = BTreeMap<PathBuf, Vec<u8>>;
type Checked = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($what:tt)*) => {
        if !$holds {
            return Err(format!($($what)*));
        }
    };
}

/// An undo that can be redone while the session is as it left it.
struct Undone {
    number: u32,
    before: State,
    left: State,
    /// The transcript before it.
    wire: Vec<u8>,
}

/// A session as it should be.
struct Expected {
    key: SessionKey,
    state: State,
    undone: Vec<Undone>,
    undos: u32,
    /// Something wrote to it less than a minute ago.
    fresh: bool,
    /// No client was ever killed in it: all its boundaries are exact.
    sound: bool,
    /// The file that is damaged, and what it held.
    damaged: Option<(PathBuf, Vec<u8>)>,
}

pub struct World {
    top: TempDir,
    catalog: Catalog,
    state: StateDir,
    sessions: Vec<Expected>,
    /// The one that is worked on.
    at: usize,
    clock: f64,
    serial: u32,
    story: Vec<String>,
    counts: Counts,
}

/// How often what was tried.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    appends: u32,
    undos: u32,
    redos: u32,
    forks: u32,
    refusals: BTreeMap<&'static str, u32>,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.appends += other.appends;
        self.undos += other.undos;
        self.redos += other.redos;
        self.forks += other.forks;
        for (errno, count) in &other.refusals {
            *self.refusals.entry(errno).or_default() += count;
        }
    }

    /// Whether so many sequences tried enough of everything to mean something.
    pub fn is_thorough(&self, sequences: u32) -> bool {
        let often = [self.undos, self.redos, self.forks].iter().all(|count| *count >= sequences / 10);
        let refused = ["ERANGE", "EBUSY", "ESTALE", "EUCLEAN"];
        often && refused.iter().all(|name| self.refusals.contains_key(name))
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { appends, undos, redos, forks, refusals } = self;
        write!(f, "{appends} appends, {undos} undos, {redos} redos, {forks} forks, refused {refusals:?}")
    }
}

impl World {
    /// One session with two turns.
    pub fn new() -> World {
        // Every step is synced; in memory that costs nothing.
        let memory = Path::new("/dev/shm");
        let top = match tempfile::tempdir_in(memory) {
            Ok(top) => top,
            Err(_) => tempfile::tempdir().unwrap(),
        };
        let root = top.path().join("store");
        let path = PathBuf::from(group()).join("11111111-2222-3333-4444-555555555555");
        std::fs::create_dir_all(root.join(group())).unwrap();
        let index = serde_json::json!({"work_dirs": [{"path": PROJECT, "kaos": "local"}]});
        std::fs::write(root.join("kimi.json"), index.to_string()).unwrap();
        let options = StoreOptions { places: vec![(AgentKind::KimiCli, root.clone())], ..Default::default() };
        let key = SessionKey { agent: AgentKind::KimiCli, root: root.into(), path: path.into() };
        let state = StateDir::at(&top.path().join("state"));
        let mut world = World {
            catalog: Catalog::new(&Environment::default(), &options),
            state,
            sessions: vec![Expected::new(key, State::new())],
            at: 0,
            // A turn counts as running while its last record is of this moment.
            clock: std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64(),
            serial: 0,
            story: Vec::new(),
            counts: Counts::default(),
            top,
        };
        world.client().create();
        let prompt = Input::Prompt { text: "go on", tools: 0, steers: 0, compacts: false, notified: false };
        for _ in 0..2 {
            world.append(&prompt, None);
        }
        world
    }

    pub fn story(&self) -> &[String] {
        &self.story
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Does one step and compares everything afterwards.
    pub fn step(&mut self, op: &Op) -> Checked {
        self.story.push(format!("{op:?}"));
        match op {
            Op::Client(input) => self.append(input, None),
            Op::Killed { input, at, torn } => self.append(input, Some((*at, *torn))),
            Op::Wait => self.wait(),
            Op::Undo { n, force } => self.undo(*n, *force, false)?,
            Op::StaleUndo { n, force } => self.undo(*n, *force, true)?,
            Op::RedoLast { force } => self.redo(None, *force)?,
            Op::Redo { number, force } => self.redo(Some(u32::from(*number)), *force)?,
            Op::Fork { n, enter } => self.fork(*n, *enter)?,
            Op::Session { which } => self.at = usize::from(*which) % self.sessions.len(),
            Op::Damage { file, line } => self.damage(*file, *line),
            Op::Repair => self.repair(),
        }
        (0..self.sessions.len()).try_for_each(|session| self.compare(session))
    }

    fn expected(&mut self) -> &mut Expected {
        &mut self.sessions[self.at]
    }

    fn dir(&self) -> PathBuf {
        self.sessions[self.at].key.absolute()
    }

    fn client(&mut self) -> Client<'_> {
        Client { dir: self.dir(), clock: &mut self.clock }
    }

    fn note(&mut self, what: impl fmt::Display) {
        let line = self.story.last_mut().unwrap();
        line.push_str(&format!("  -> {what}"));
    }

    /// A client plays `input`; killed behind some of its events, perhaps in the middle of a record.
    fn append(&mut self, input: &Input, killed: Option<(u8, bool)>) {
        // A client that resumes a damaged or torn session would damage it for good.
        let expected = self.expected();
        if expected.damaged.is_some() || expected.state.torn {
            return;
        }
        self.serial += 1;
        let mut events: Vec<Event> = input.events(&self.sessions[self.at].state, self.serial);
        let torn = killed.is_some_and(|(_, torn)| torn);
        if let Some((at, _)) = killed {
            events.truncate(usize::from(at) % (events.len() - 1) + 1);
            self.note(format!("killed behind {:?}", events.last().unwrap()));
        }
        self.client().play(&events);
        if torn {
            self.client().tear();
        }
        self.counts.appends += 1;
        let expected = self.expected();
        expected.state.play(&events, killed.is_some());
        expected.state.torn = torn;
        expected.sound &= killed.is_none();
        expected.fresh = true;
    }

    fn wait(&mut self) {
        let long_ago = SystemTime::now() - Duration::from_secs(61);
        for entry in std::fs::read_dir(self.dir()).unwrap() {
            let file = std::fs::File::options().write(true).open(entry.unwrap().path()).unwrap();
            file.set_modified(long_ago).unwrap();
        }
        self.expected().fresh = false;
    }

    fn view(&self) -> Arc<View> {
        self.catalog.view(&self.sessions[self.at].key).unwrap()
    }

    fn undo(&mut self, n: u8, force: bool, stale: bool) -> Checked {
        let view = self.view();
        let seen = self.sessions[self.at].state.clone();
        let (was_fresh, by_undo) = (self.sessions[self.at].fresh, self.sessions[self.at].is_as_undone());
        let n = usize::from(n) % (seen.turns.len() + 1);
        let mut moved_on = false;
        if stale {
            let prompt = Input::Prompt { text: "yes", tools: 0, steers: 0, compacts: false, notified: false };
            self.append(&prompt, None);
            moved_on = self.sessions[self.at].state != seen;
        }
        let before = self.files();
        let wire = std::fs::read(self.dir().join("wire.jsonl")).unwrap();
        let result =
            cut::undo(&*store_of(&view.session), &self.state, &view.session, &view.history, n as u32, force);

        let expected = &self.sessions[self.at];
        let keeps = seen.kept_before(n);
        let refused = if expected.damaged.is_some() {
            Some(Errno::UCLEAN)
        } else if keeps >= seen.turns.len() {
            Some(Errno::RANGE)
        } else if !force && seen.is_open() && (was_fresh || moved_on) && !by_undo {
            Some(Errno::BUSY)
        } else if !force && moved_on {
            Some(Errno::STALE)
        } else {
            None
        };
        let what = format!("undo {n}");
        let done = match self.judge(&what, result, refused, &before)? {
            None => return Ok(()),
            Some(done) => done,
        };
        let expected = self.expected();
        let old = expected.state.clone();
        ensure!(
            (done.keeps as usize, done.drops as usize) == (keeps, old.turns.len() - keeps),
            "{what} says that it keeps {} and drops {}, of {} turns",
            done.keeps,
            done.drops,
            old.turns.len()
        );
        expected.undos += 1;
        ensure!(done.number == expected.undos, "{what} has the number {}", done.number);
        let left = old.first(keeps);
        expected.undone.push(Undone { number: done.number, before: old, left: left.clone(), wire });
        expected.state = left;
        expected.fresh = true;
        self.counts.undos += 1;
        self.nothing_else_changed(&what, &before, None)
    }

    fn redo(&mut self, number: Option<u32>, force: bool) -> Checked {
        let view = self.view();
        let before = self.files();
        let result = cut::redo(&*store_of(&view.session), &self.state, &view.session, number, force);
        let expected = &self.sessions[self.at];
        let chosen = match number {
            None => expected.undone.len().checked_sub(1),
            Some(number) => expected.undone.iter().position(|undone| undone.number == number),
        };
        let refused = match chosen {
            None => Some(Errno::RANGE),
            Some(_) if expected.damaged.is_some() => Some(Errno::UCLEAN),
            Some(_) if !force && expected.is_busy() => Some(Errno::BUSY),
            Some(chosen) if expected.undone[chosen].left != expected.state => Some(Errno::STALE),
            Some(_) => None,
        };
        let what = format!("redo {number:?}");
        let Some((number, back)) = self.judge(&what, result, refused, &before)? else { return Ok(()) };
        let expected = self.expected();
        let undone = expected.undone.remove(chosen.unwrap());
        ensure!(number == undone.number, "{what} redid {number}");
        let wanted = undone.before.turns.len() - undone.left.turns.len();
        ensure!(back as usize == wanted, "{what} says that {back} turns came back, not {wanted}");
        expected.state = undone.before;
        expected.fresh = true;
        let now = std::fs::read(self.dir().join("wire.jsonl")).unwrap();
        ensure!(now == undone.wire, "{what}: the transcript is not the one that was undone");
        self.counts.redos += 1;
        self.nothing_else_changed(&what, &before, None)
    }

    fn fork(&mut self, n: u8, enter: bool) -> Checked {
        let view = self.view();
        let before = self.files();
        let source = self.sessions[self.at].state.clone();
        let n = usize::from(n) % (source.turns.len() + 1);
        let result =
            cut::fork(&*store_of(&view.session), &self.state, &view.session, &view.history, n as u32);
        let expected = &self.sessions[self.at];
        let keeps = source.kept_before(n + 1);
        let last_group = source.turns.last().map_or(0, |last| last.group);
        let refused = if expected.damaged.is_some() {
            Some(Errno::UCLEAN)
        } else if n >= source.turns.len() {
            Some(Errno::RANGE)
        } else if keeps > last_group && source.is_open() && expected.fresh {
            Some(Errno::BUSY)
        } else {
            None
        };
        let what = format!("fork {n}");
        let Some(id) = self.judge(&what, result, refused, &before)? else { return Ok(()) };
        let listing = self.catalog.listing();
        let found = listing.all().into_iter().find(|(_, listed)| listed.session.id == id);
        let Some((project, listed)) = found else { return Err(format!("{what}: {id} is not listed")) };
        ensure!(project == Some(Path::new(PROJECT)), "{what}: {id} is listed in {project:?}");
        let key = listed.session.key.clone();
        self.nothing_else_changed(&what, &before, Some(&key))?;
        let mut fork = Expected::new(key, source.first(keeps));
        (fork.fresh, fork.sound) = (true, self.sessions[self.at].sound);
        self.sessions.push(fork);
        if enter {
            self.at = self.sessions.len() - 1;
        }
        self.counts.forks += 1;
        Ok(())
    }

    /// What a cut answered against what it must answer; after a refusal nothing may have changed.
    fn judge<T>(
        &mut self,
        what: &str,
        result: Result<T, Refusal>,
        refused: Option<Errno>,
        before: &Files,
    ) -> Result<Option<T>, String> {
        let refusal = match (result, refused) {
            (Ok(done), None) => {
                self.note("done");
                return Ok(Some(done));
            }
            (Ok(_), Some(errno)) => return Err(format!("{what} was done, not refused with {errno:?}")),
            (Err(refusal), _) => refusal,
        };
        // Where a killed client stopped cannot always be told; then nothing is cut.
        let unsure = matches!(refusal.errno(), Errno::NOTUNIQ | Errno::NODATA)
            && self.sessions[self.at].state.has_killed();
        ensure!(
            unsure || refused == Some(refusal.errno()),
            "{what} was refused, not {}: {refusal}",
            refused.map_or("done".into(), |errno| format!("with {errno:?}"))
        );
        self.note(&refusal);
        *self.counts.refusals.entry(name(refusal.errno())).or_default() += 1;
        ensure!(self.files() == *before, "{what} was refused ({refusal}) and changed the store");
        Ok(None)
    }

    /// A cut changes its own session, a fork only what it makes.
    fn nothing_else_changed(&self, what: &str, before: &Files, made: Option<&SessionKey>) -> Checked {
        let own = made.unwrap_or(&self.sessions[self.at].key);
        let others = |files: &Files| -> Files {
            let others = files.iter().filter(|(path, _)| !path.starts_with(&own.path));
            others.map(|(path, bytes)| (path.clone(), bytes.clone())).collect()
        };
        let now = self.files();
        ensure!(others(&now) == others(before), "{what} changed something outside {}", own.path.display());
        let left = now.keys().find(|path| path.to_string_lossy().contains("turnfs"));
        ensure!(left.is_none(), "{what} left {left:?} behind");
        Ok(())
    }

    fn damage(&mut self, file: u8, line: u8) {
        let dir = self.dir();
        let expected = self.expected();
        if expected.damaged.is_some() {
            return;
        }
        let mut names: Vec<PathBuf> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
            .collect();
        names.sort();
        let path = names[usize::from(file) % names.len()].clone();
        let old = std::fs::read(&path).unwrap();
        let lines: Vec<&[u8]> = old.split_inclusive(|byte| *byte == b'\n').collect();
        let whole = lines.iter().filter(|line| line.ends_with(b"\n")).count();
        let bad = usize::from(line) % whole;
        let new: Vec<u8> = lines
            .iter()
            .enumerate()
            .flat_map(|(n, line)| if n == bad { b"{\"broken\n" } else { *line }.to_vec())
            .collect();
        std::fs::write(&path, new).unwrap();
        expected.damaged = Some((path.clone(), old));
        expected.fresh = true;
        self.note(format!("{}, line {}", path.file_name().unwrap().display(), bad + 1));
    }

    fn repair(&mut self) {
        let expected = self.expected();
        if let Some((path, old)) = expected.damaged.take() {
            std::fs::write(path, old).unwrap();
            expected.fresh = true;
        }
    }

    /// What turnfs and the disk say of a session against the reference.
    fn compare(&self, session: usize) -> Checked {
        let expected = &self.sessions[session];
        let view = self.catalog.view(&expected.key).map_err(|refusal| format!("a look: {refusal}"))?;
        let history = &view.history;
        self.compare_undone(session)?;
        let condition = match &expected.state {
            _ if expected.damaged.is_some() => Condition::Damaged,
            state if state.torn => Condition::Torn,
            state if state.turns.is_empty() => Condition::Empty,
            _ => Condition::Ok,
        };
        ensure!(history.state == condition, "session {session} is {}, not {condition}", history.state);
        if expected.damaged.is_some() {
            return Ok(());
        }
        let prompts: Vec<_> = history.turns.iter().map(|turn| (turn.prompt.clone(), turn.group)).collect();
        let wanted: Vec<_> =
            expected.state.turns.iter().map(|turn| (Some(turn.prompt.clone()), turn.group as u32)).collect();
        ensure!(prompts == wanted, "session {session} has the turns {prompts:?}, not {wanted:?}");
        let contexts = contexts(&expected.key.absolute());
        let wanted = &expected.state.contexts;
        ensure!(
            contexts == *wanted,
            "session {session}: the contexts (live one last) hold\n{contexts:#?}, not\n{wanted:#?}"
        );
        let exact = |n: u32| history.boundary(n).name() == "exact";
        let unsure = history.turns.iter().find(|turn| expected.sound && !exact(turn.n));
        ensure!(unsure.is_none(), "session {session}: the boundary before {unsure:?} is not exact");
        Ok(())
    }

    fn compare_undone(&self, session: usize) -> Checked {
        let expected = &self.sessions[session];
        let undone = cut::undone(&self.state, &expected.key).map_err(|e| e.to_string())?;
        let numbers: Vec<u32> = undone.iter().map(|undone| undone.number).collect();
        let wanted: Vec<u32> = expected.undone.iter().map(|undone| undone.number).collect();
        ensure!(numbers == wanted, "session {session} has the undos {numbers:?}, not {wanted:?}");
        for (found, wanted) in undone.iter().zip(&expected.undone) {
            let number = found.number;
            let gone = &wanted.before.turns[wanted.left.turns.len()..];
            let prompts: Vec<_> = found.turns.iter().map(|turn| turn.prompt.clone().unwrap()).collect();
            let same = prompts.iter().eq(gone.iter().map(|turn| &turn.prompt));
            ensure!(same, "undo {number} of session {session} removed {prompts:?}, not {gone:?}");
            for turn in &found.turns {
                let bytes = cut::undone_span(found, turn)
                    .map_err(|e| format!("turn {} of undo {number}: {e}", turn.n))?;
                let span = turn.span.start as usize..turn.span.end as usize;
                ensure!(
                    bytes == wanted.wire[span],
                    "turn {} of undo {number} of session {session} is not what was removed",
                    turn.n
                );
            }
        }
        Ok(())
    }

    fn files(&self) -> Files {
        let root = self.top.path().join("store");
        let mut files = Files::new();
        let mut dirs = vec![root.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else {
                    let bytes = std::fs::read(&path).unwrap();
                    files.insert(path.strip_prefix(&root).unwrap().to_owned(), bytes);
                }
            }
        }
        files
    }
}

impl Expected {
    fn new(key: SessionKey, state: State) -> Expected {
        Expected { key, state, undone: Vec::new(), undos: 0, fresh: false, sound: true, damaged: None }
    }

    /// Whether its files look as if a client were in the middle of a turn. What an undo itself has just
    /// written does not count.
    fn is_busy(&self) -> bool {
        self.state.is_open() && self.fresh && !self.is_as_undone()
    }

    fn is_as_undone(&self) -> bool {
        self.undone.last().is_some_and(|undone| undone.left == self.state)
    }
}

/// The user's and assistant's messages of every context file of a session, oldest first.
fn contexts(dir: &Path) -> Vec<Vec<String>> {
    let mut files: Vec<(u32, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name == "context.jsonl" {
            files.push((u32::MAX, path));
        } else if let Some(rest) = name.strip_prefix("context_") {
            files.push((rest.strip_suffix(".jsonl").unwrap().parse().unwrap(), path));
        }
    }
    files.sort();
    files.into_iter().map(|(_, path)| messages(&std::fs::read_to_string(path).unwrap())).collect()
}

fn messages(context: &str) -> Vec<String> {
    let spoken = context.lines().filter_map(|line| {
        let record: Value = serde_json::from_str(line).unwrap();
        let role = record["role"].as_str().unwrap().to_owned();
        if !matches!(role.as_str(), "user" | "assistant") {
            return None;
        }
        let text = match &record["content"] {
            Value::String(text) => text.clone(),
            Value::Array(parts) => {
                parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join(" ")
            }
            other => panic!("content {other}"),
        };
        Some(format!("{role}: {text}"))
    });
    spoken.collect()
}

fn name(errno: Errno) -> &'static str {
    match errno {
        Errno::RANGE => "ERANGE",
        Errno::BUSY => "EBUSY",
        Errno::STALE => "ESTALE",
        Errno::UCLEAN => "EUCLEAN",
        Errno::NOTUNIQ => "ENOTUNIQ",
        Errno::NODATA => "ENODATA",
        _ => "others",
    }
}

fn group() -> String {
    use md5::Digest as _;
    let digest = md5::Md5::digest(PROJECT.as_bytes());
    let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sessions/{name}")
}
