//! Sessions of a client that prunes, fails and is killed at random: what is shown is what was said, and every cut
//! leaves a history that begins with exactly the kept messages. What cannot be known is refused, never guessed.
//!
//! `TURNFS_TEST_PRUNES` sets how many sessions, `TURNFS_TEST_SEED` which; a failure names its seed.

mod client;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use client::{CUT, Client, Dice, Form, Kind, Message};
use turnfs::agents::store_of;
use turnfs::session::{Content, Errno, History, NewFiles, Part, Session, SessionKey, Step};
use turnfs::transcript;

use crate::store::Store;

const ID: &str = "0e3b7c52-8a1d-4f6e-9b20-5d7c1a2e3f40";
const THREADS: u64 = 4;

#[derive(Default, Debug)]
struct Counted {
    sessions: usize,
    turns: usize,
    shortened: usize,
    failed: usize,
    /// Looks at a session.
    looks: usize,
    /// Looks at which the pruned turns were refused.
    refused: usize,
    /// Those of them of which everything is there, if one only knew.
    refused_in_vain: usize,
    /// Sessions in which a rewrite failed and more was appended: their transcript is not what anybody said.
    torn_apart: usize,
    full: usize,
    as_is: usize,
    refused_cuts: usize,
    undos: usize,
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

#[test]
fn every_session_shows_what_was_said_and_every_cut_keeps_exactly_that() {
    let (sessions, first) = (number("TURNFS_TEST_PRUNES", 2000), number("TURNFS_TEST_SEED", 1));
    let (next, failed) = (AtomicU64::new(first), AtomicBool::new(false));
    let work = || {
        let mut counted = Counted::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + sessions || failed.load(Ordering::Relaxed) {
                return counted;
            }
            let done = catch_unwind(AssertUnwindSafe(|| session(seed, &mut counted)));
            if done.is_err() {
                failed.store(true, Ordering::Relaxed);
                panic!("to see it again: TURNFS_TEST_PRUNES=1 TURNFS_TEST_SEED={seed}");
            }
        }
    };
    let counted: Vec<Counted> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sum = |of: fn(&Counted) -> usize| counted.iter().map(of).sum::<usize>();
    println!("{counted:?}");
    if sessions >= 1000 {
        assert!(sum(|c| c.failed) > 500 && sum(|c| c.shortened) > 100);
        assert!(sum(|c| c.full) > 1000 && sum(|c| c.as_is) > 1000 && sum(|c| c.undos) > 1000);
        assert!(sum(|c| c.refused_in_vain) * 100 < sum(|c| c.sessions), "what could be known is refused");
        assert!(sum(|c| c.refused) * 6 < sum(|c| c.looks), "too much is refused");
        assert!(sum(|c| c.torn_apart) * 5 < sum(|c| c.sessions), "too little is looked at");
    }
}

fn session(seed: u64, counted: &mut Counted) {
    let mut dice = Dice(seed.wrapping_mul(0x1234_5678_9ABC_DEF1));
    let form = Form {
        newer: dice.chance(40),
        mock_summary: dice.chance(50),
        ids_reused: dice.chance(30),
        repetitive: dice.chance(15),
        trouble: [0, 10, 30, 60][dice.roll(4)],
        budget: 400 + dice.roll(1600),
    };
    let store = Store::empty();
    let entry =
        serde_json::json!([{"id": ID, "project": "/w/p", "title": "t", "created_at": 1, "updated_at": 1}]);
    fs::write(store.index(), entry.to_string()).unwrap();
    let mut client = Client::new(store.file(""), ID, form, dice);
    let last = client.dice.roll(4);
    for sitting in 0..=last {
        client.sit_down();
        for _ in 0..1 + client.dice.roll(9) {
            if client.turn().is_err() {
                client.sit_down();
            }
        }
        client.sit_down();
        if client.disk.lines.is_empty() || (sitting < last && client.dice.chance(60)) {
            continue;
        }
        let mut case = Case { store: &store, client: &mut client, counted };
        if case.check() {
            continue;
        }
        case.counted.torn_apart += 1;
        return;
    }
    counted.sessions += 1;
    counted.shortened += client.shortened;
    counted.failed += client.failed;
}

/// A store at one moment, with the client that knows what is true.
struct Case<'a> {
    store: &'a Store,
    client: &'a mut Client,
    counted: &'a mut Counted,
}

impl Case<'_> {
    /// False for a transcript that holds what nobody said.
    fn check(&mut self) -> bool {
        let session = self.store.session(ID);
        let history = store_of(&session).load(&session).unwrap();
        if let Some(to) = std::env::var_os("TURNFS_TEST_KEEP") {
            for (path, bytes) in self.store.snapshot() {
                fs::write(Path::new(&to).join(path.file_name().unwrap()), bytes).unwrap();
            }
        }
        history.readable().unwrap();
        if self.client.disk.torn_apart {
            return false;
        }
        self.counted.looks += 1;
        let truth = self.client.disk.history.clone();
        let turns = self.turns(&truth);
        if history.notes.iter().any(|note| note.contains("are not shown")) {
            self.refused(&session, &history, &turns);
            return true;
        }
        assert_eq!(shown(&history), self.prompts(&turns), "the prompts, {:?}", self.client.form);
        self.counted.turns += turns.len();
        let mut said = self.read(&self.client.file("messages.json"), 0..history.head_bytes);
        for turn in &history.turns {
            let bytes = self.store.bytes(turn);
            said.extend(messages(&bytes));
        }
        self.same(&said, &truth, "the turns");
        if let Some(turn) = history.turns.first() {
            assert_eq!(self.store.text(&session, turn).len() as u64, turn.text_len);
        }
        let mut cuts: Vec<u32> = (0..2).map(|_| self.client.dice.roll(turns.len().max(1)) as u32).collect();
        cuts.extend((turns.len() as u32).checked_sub(1).filter(|_| self.client.dice.chance(30)));
        for n in cuts.into_iter().filter(|n| (*n as usize) < turns.len()) {
            self.fork(&session, &history, n, &truth, &turns);
            self.undo(&session, &history, n, &truth, &turns, false);
        }
        if self.client.dice.chance(15) && !turns.is_empty() {
            let n = self.client.dice.roll(turns.len()) as u32;
            self.undo(&session, &history, n, &truth, &turns, true);
        }
        true
    }

    /// What a message is. Of a line that begins like a note only the reply tells that a person typed it.
    fn kind(&self, truth: &[usize], at: usize) -> Kind {
        let (message, kind) = &self.client.said[truth[at]];
        let is_answered = || truth.get(at + 1).is_some_and(|next| self.client.said[*next].1 == Kind::Other);
        match kind {
            Kind::Prompt if message.text().starts_with("[context note:") && !is_answered() => Kind::Note,
            kind => *kind,
        }
    }

    /// The messages of each turn, as places in the true history: notes directly before a prompt belong to it.
    fn turns(&self, truth: &[usize]) -> Vec<Range<usize>> {
        let kind = |at: usize| self.kind(truth, at);
        let mut starts = Vec::new();
        for at in (0..truth.len()).filter(|at| kind(*at) == Kind::Prompt) {
            let notes = (0..at).rev().take_while(|at| kind(*at) == Kind::Note).count();
            starts.push(at - notes);
        }
        let ends = starts.iter().skip(1).copied().chain([truth.len()]);
        starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
    }

    fn prompts(&self, turns: &[Range<usize>]) -> Vec<String> {
        let truth = &self.client.disk.history;
        let prompt = |turn: &Range<usize>| {
            let prompt = turn.clone().find(|at| self.kind(truth, *at) == Kind::Prompt).unwrap();
            self.client.said[truth[prompt]].0.text().to_owned()
        };
        turns.iter().map(prompt).collect()
    }

    /// Whether these are the messages that were said; a cut output may stand where its original is lost.
    fn same(&self, shown: &[Message], truth: &[usize], what: &str) {
        let shown: Vec<&Message> = shown.iter().filter(|message| !is_prune_note(message)).collect();
        assert_eq!(shown.len(), truth.len(), "{what}: the number of messages, {:?}", self.client.form);
        for (shown, said) in shown.into_iter().zip(truth) {
            let (said, _) = &self.client.said[*said];
            if shown != said {
                let cut = shown.text().ends_with(CUT) && shown.text().len() <= 600;
                assert!(
                    cut && shown.tool_call_id == said.tool_call_id,
                    "{what}: {shown:?} instead of {said:?}"
                );
                assert!(self.may_be_lost(), "{what}: an output is not restored, {:?}", self.client.form);
            }
        }
    }

    fn may_be_lost(&self) -> bool {
        let form = self.client.form;
        self.client.disk.lossy || (form.ids_reused && (form.repetitive || self.client.was_full))
    }

    fn refused(&mut self, session: &Session, history: &History, turns: &[Range<usize>]) {
        let form = self.client.form;
        let known = self.client.disk.lossy || form.repetitive;
        if std::env::var_os("TURNFS_TEST_KEEP").is_some() {
            assert!(known, "what could be known is refused: {:?} {form:?}", history.notes);
        }
        self.counted.refused += 1;
        self.counted.refused_in_vain += usize::from(!known);
        let (shown, said) = (shown(history), self.prompts(turns));
        let tail = shown.len().saturating_sub(1);
        assert!(said.ends_with(&shown[shown.len() - tail..]), "{shown:?} {said:?}");
        if history.turns.len() > 1 {
            let refusals = [
                store_of(session).plan_undo(session, history, 1).err(),
                store_of(session).plan_fork(session, history, 0, None).err(),
            ];
            for refusal in refusals.into_iter().flatten() {
                assert_eq!(refusal.errno(), Errno::NODATA);
            }
        }
    }

    fn read(&self, file: &Path, span: Range<u64>) -> Vec<Message> {
        let bytes = fs::read(file).unwrap();
        messages(&bytes[span.start as usize..span.end as usize])
    }

    fn content(&self, content: &Content) -> Vec<u8> {
        let read = |file: &Path, span| transcript::read_range(&self.store.root, file, span).unwrap();
        match content {
            Content::Prefix { file, bytes } => read(file, 0..*bytes),
            Content::Whole { file } => fs::read(self.store.root.join(file)).unwrap(),
            Content::Bytes(bytes) => bytes.clone(),
            Content::Parts(parts) => parts
                .iter()
                .flat_map(|part| match part {
                    Part::Piece(piece) => read(&piece.file, piece.span.clone()),
                    Part::Bytes(bytes) => bytes.clone(),
                })
                .collect(),
        }
    }

    fn fork(
        &mut self,
        session: &Session,
        history: &History,
        n: u32,
        truth: &[usize],
        turns: &[Range<usize>],
    ) {
        let plan = match store_of(session).plan_fork(session, history, n, None) {
            Ok(plan) => plan,
            Err(refusal) => {
                assert_eq!(refusal.errno(), Errno::NODATA, "{refusal}");
                assert!(self.may_be_lost(), "fork {n}: {refusal}, {:?}", self.client.form);
                self.counted.refused_cuts += 1;
                return;
            }
        };
        let NewFiles::Beside { files, .. } = &plan.made else { panic!("{:?}", plan.made) };
        for (file, content) in files {
            fs::write(self.store.root.join(file), self.content(content)).unwrap();
        }
        let path = plan.promise.transcript.clone();
        let live = fs::read(self.store.root.join(&path)).unwrap();
        assert!(
            !String::from_utf8(live.clone()).unwrap().contains(ID),
            "fork {n} names its source's archive"
        );
        let kept = &truth[..turns[n as usize].end];
        if files.len() == 1 {
            let written = messages(&live);
            assert!(!written.iter().any(is_prune_note), "fork {n}: a note of what is not there");
            self.same(&written, kept, &format!("fork {n}, in full"));
            self.counted.full += 1;
        } else {
            self.counted.as_is += 1;
        }
        let key = SessionKey { path: Arc::from(path.as_path()), ..session.key.clone() };
        let fork = Session { key, id: plan.promise.id.clone(), ..session.clone() };
        self.reads_as(&fork, kept, &format!("fork {n}"));
        for (file, _) in files {
            fs::remove_file(self.store.root.join(file)).unwrap();
        }
    }

    fn reads_as(&self, session: &Session, kept: &[usize], what: &str) {
        let history = store_of(session).load(session).unwrap();
        assert!(history.readable().is_ok(), "{what}");
        let mut said = Vec::new();
        if history.files[0].len.is_some() {
            said = self.read(&session.key.root.join(&*session.key.path), 0..history.head_bytes);
        }
        history.turns.iter().for_each(|turn| said.extend(messages(&self.store.bytes(turn))));
        self.same(&said, kept, what);
    }

    /// An undo, taken back afterwards unless the client shall go on from it.
    fn undo(
        &mut self,
        session: &Session,
        history: &History,
        n: u32,
        truth: &[usize],
        turns: &[Range<usize>],
        stays: bool,
    ) {
        let plan = match store_of(session).plan_undo(session, history, n) {
            Ok(plan) => plan,
            Err(refusal) => {
                assert_eq!(refusal.errno(), Errno::NODATA, "{refusal}");
                assert!(self.may_be_lost(), "undo {n}: {refusal}, {:?}", self.client.form);
                self.counted.refused_cuts += 1;
                return;
            }
        };
        let before: BTreeMap<PathBuf, Vec<u8>> = self.store.snapshot();
        for step in &plan.made.steps {
            match step {
                Step::KeepPrefix { file, bytes } => {
                    let kept = transcript::read_range(&self.store.root, file, 0..*bytes).unwrap();
                    fs::write(self.store.root.join(file), kept).unwrap();
                }
                Step::Replace { file, content } => {
                    let bytes = self.content(content);
                    fs::write(self.store.root.join(file), bytes).unwrap();
                }
                Step::MoveAside { file } => fs::remove_file(self.store.root.join(file)).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        let kept = &truth[..turns[n as usize].start];
        self.reads_as(session, kept, &format!("undo {n}"));
        self.counted.undos += 1;
        if stays {
            self.client.was_cut(kept);
        } else {
            before.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        }
    }
}

fn is_prune_note(message: &Message) -> bool {
    message.role == "user"
        && message.text().starts_with("[context note: ")
        && !message.text().contains("typed")
}

fn messages(bytes: &[u8]) -> Vec<Message> {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

fn shown(history: &History) -> Vec<String> {
    history.turns.iter().map(|turn| turn.prompt.clone().unwrap_or_default()).collect()
}
