//! Random sequences of what the client and users do to a session, against a reference that only remembers what the
//! model has seen. `TURNFS_TEST_SEQUENCES` sets how many, `TURNFS_TEST_SEED` which.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;
use turnfs::session::{Errno, Session};
use turnfs::transcript::Passes;

use crate::transcript::Store;

const SEQUENCES: u64 = 150;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// What the model has seen at one moment.
#[derive(Clone, Default)]
struct Moment {
    said: Vec<String>,
    /// The record that the next one follows.
    last: Option<String>,
}

/// What the model has seen now, and what it had seen before each turn.
#[derive(Clone, Default)]
struct Seen {
    now: Moment,
    turns: Vec<(String, Moment)>,
}

impl Seen {
    fn first(&self, turns: usize) -> Seen {
        match self.turns.get(turns) {
            None => self.clone(),
            Some((_, before)) => Seen { now: before.clone(), turns: self.turns[..turns].to_vec() },
        }
    }

    fn prompts(&self) -> Vec<String> {
        self.turns.iter().map(|(prompt, _)| prompt.clone()).collect()
    }
}

#[derive(Default)]
struct Counts {
    undos: usize,
    redos: usize,
    forks: usize,
    rewinds: usize,
}

/// An undo that could be redone: what was seen and what could be read before, the file before, and the file after.
struct Undone {
    seen: Seen,
    readable: BTreeSet<String>,
    before: Vec<u8>,
    after: Vec<u8>,
}

struct World {
    store: Store,
    seen: Seen,
    /// Every prompt that the file still holds, in the conversation or in a branch that was left.
    readable: BTreeSet<String>,
    undone: Vec<Undone>,
    session: Session,
    passes: Passes,
    serial: u32,
}

impl World {
    fn step(&mut self, dice: &mut Dice, counts: &mut Counts) -> String {
        self.serial += 1;
        let turns = self.seen.turns.len();
        match dice.below(12) {
            4 if turns > 0 => self.compact(dice),
            5 if turns > 0 => {
                // The client writes nothing before the next prompt.
                let n = dice.below(turns);
                self.seen = self.seen.first(n);
                counts.rewinds += 1;
                let turn = self.turn(dice);
                // An earlier note would lead to what was left.
                self.store.note(json!(self.seen.now.last), false);
                format!("rewind to before {n}, and {turn}")
            }
            6 | 7 if turns > 0 => self.undo(dice.below(turns + 1), counts),
            8 | 9 => self.redo(counts),
            10 | 11 if turns > 0 => {
                let n = dice.below(turns);
                let (prompts, said) = self.store.fork(n as u32);
                let wanted = self.seen.first(n + 1);
                assert_eq!(prompts, wanted.prompts(), "fork {n}");
                assert_eq!(sent(said), wanted.now.said, "fork {n}");
                counts.forks += 1;
                format!("fork {n}")
            }
            _ => self.turn(dice),
        }
    }

    fn undo(&mut self, n: usize, counts: &mut Counts) -> String {
        let before = fs::read(self.store.file()).unwrap();
        match self.store.undo(n as u32) {
            Ok(()) => {
                let after = fs::read(self.store.file()).unwrap();
                let (seen, readable) = (self.seen.clone(), self.readable.clone());
                self.seen = self.seen.first(n);
                // What was left before is gone, or is not, as the file had to be written; what is kept is there.
                self.readable = self.all_prompts();
                assert!(self.readable.is_subset(&readable));
                self.undone.push(Undone { seen, readable, before, after });
                counts.undos += 1;
            }
            Err(refusal) if n == 0 => assert_eq!(refusal.errno(), Errno::OPNOTSUPP, "{refusal}"),
            Err(refusal) => {
                assert_eq!((refusal.errno(), n), (Errno::RANGE, self.seen.turns.len()), "{refusal}");
            }
        }
        format!("undo {n}")
    }

    fn redo(&mut self, counts: &mut Counts) -> String {
        let now = fs::read(self.store.file()).ok();
        match (self.store.redo(), self.undone.pop()) {
            (Ok(()), Some(undone)) => {
                assert_eq!(now.as_ref(), Some(&undone.after), "another file was redone");
                assert_eq!(fs::read(self.store.file()).unwrap(), undone.before);
                (self.seen, self.readable) = (undone.seen, undone.readable);
                counts.redos += 1;
            }
            (Err(refusal), Some(undone)) => {
                assert_eq!(refusal.errno(), Errno::STALE, "{refusal}");
                assert_ne!(now.as_ref(), Some(&undone.after));
                self.undone.push(undone);
            }
            (Err(refusal), None) => assert_eq!(refusal.errno(), Errno::RANGE, "{refusal}"),
            (Ok(()), None) => panic!("nothing was undone"),
        }
        "redo".into()
    }

    fn turn(&mut self, dice: &mut Dice) -> String {
        let words = ["go on", "fix it", "yes", "\u{1f600} \"q\"\nline two"][dice.below(4)];
        let prompt = format!("{words} {}", self.serial);
        self.seen.turns.push((prompt.clone(), self.seen.now.clone()));
        self.store.last = self.seen.now.last.clone();
        self.store.user(prompt.clone());
        self.seen.now.said.push(format!("user: {prompt}"));
        self.readable.insert(prompt);
        for step in 0..dice.below(3) {
            self.calls(step, 1 + dice.below(2));
        }
        let reply = format!("reply {}", self.serial);
        self.store.says(&reply);
        self.seen.now.said.push(format!("assistant: {reply}"));
        if dice.below(3) == 0 {
            self.store.put("system", json!({"subtype": "turn_duration", "durationMs": 5}));
        }
        self.seen.now.last = self.store.last.clone();
        match dice.below(4) {
            0 => self.store.note(json!(self.seen.now.last), false),
            1 => self.store.raw(&json!({"type": "ai-title", "aiTitle": "a title"})),
            _ => {}
        }
        "a turn".into()
    }

    /// A reply that calls tools at once: the chain goes through the last result only.
    fn calls(&mut self, step: usize, count: usize) {
        let reply = format!("msg {} {step}", self.serial);
        let ids: Vec<String> = (0..count).map(|at| format!("{reply} call {at}")).collect();
        let made: Vec<String> = ids
            .iter()
            .map(|id| {
                self.store.reply(&reply, json!({"type": "tool_use", "id": id, "name": "t", "input": {}}))
            })
            .collect();
        self.seen.now.said.extend(ids.iter().map(|id| format!("call: {id}")));
        for (id, call) in ids.iter().zip(made) {
            self.store.last = Some(call);
            self.store.result(id, &format!("output of {id}"));
            self.seen.now.said.push(format!("result: output of {id}"));
        }
    }

    fn compact(&mut self, dice: &mut Dice) -> String {
        let summary = format!("SUMMARY-{}", self.serial);
        self.store.last = self.seen.now.last.clone();
        let last = self.seen.now.said.last().cloned().filter(|said| said.starts_with("assistant: "));
        // The end of a turn is its reply, or the note behind that.
        let end = self.store.last.clone().filter(|_| dice.below(2) == 0);
        match (end, last) {
            (Some(end), Some(last)) if self.store.is_reply(&end) => {
                self.store.compact(&summary, &[&end]);
                self.seen.now.said = vec![format!("summary: {summary}"), last];
            }
            _ => {
                self.store.compact(&summary, &[]);
                self.seen.now.said = vec![format!("summary: {summary}")];
            }
        }
        self.seen.now.last = self.store.last.clone();
        "compact".into()
    }

    fn all_prompts(&self) -> BTreeSet<String> {
        let history = self.store.history();
        let branches = history.branches.iter().flat_map(|branch| &branch.turns);
        history.turns.iter().chain(branches).filter_map(|turn| turn.prompt.clone()).collect()
    }

    fn compare(&mut self, story: &[String]) {
        if !self.store.file().exists() {
            return;
        }
        let told = || story.join(", ");
        assert_eq!(self.store.prompts(), self.seen.prompts(), "{}", told());
        assert_eq!(sent(self.store.context()), self.seen.now.said, "{}", told());
        assert_eq!(self.all_prompts(), self.readable, "{}", told());
        self.passes.begin();
        let grown = self.store.agent.load_again(&self.session, &mut self.passes).unwrap();
        assert!(grown == self.store.history(), "{}: read piece by piece it is another history", told());
        self.passes.settle();
    }
}

/// Without what the client adds where nothing was answered yet: behind a summary.
fn sent(mut said: Vec<String>) -> Vec<String> {
    if said.last().is_some_and(|last| last == "assistant: No response requested.") {
        said.truncate(said.len() - 2);
    }
    said
}

#[test]
fn whatever_clients_and_users_do_a_session_holds_what_the_model_has_seen() {
    let number = |name: &str, or: u64| std::env::var(name).ok().map_or(or, |text| text.parse().unwrap());
    let sequences = number("TURNFS_TEST_SEQUENCES", SEQUENCES);
    let seed = number("TURNFS_TEST_SEED", 1);
    let mut counts = Counts::default();
    for sequence in 0..sequences {
        let mut dice = Dice(seed.wrapping_mul(1_000_003) + sequence);
        let mut store = Store::new();
        store.raw(&json!({"type": "mode", "mode": "normal", "sessionId": crate::transcript::ID}));
        let seen = Seen::default();
        let prompt = "the first";
        store.turn(prompt);
        let now = Moment {
            said: vec![format!("user: {prompt}"), format!("assistant: reply to {prompt}")],
            last: store.last.clone(),
        };
        let seen = Seen { now, turns: vec![(prompt.into(), seen.now)] };
        let session = store.session();
        let readable = BTreeSet::from([prompt.to_owned()]);
        let (undone, passes) = Default::default();
        let mut world = World { store, seen, readable, undone, session, passes, serial: 0 };
        let mut story = vec![format!("sequence {sequence} of seed {seed}")];
        for _ in 0..4 + dice.below(12) {
            story.push(world.step(&mut dice, &mut counts));
            world.compare(&story);
        }
    }
    let Counts { undos, redos, forks, rewinds } = counts;
    println!("{sequences} sequences: {undos} undos, {redos} redos, {forks} forks, {rewinds} rewinds");
    let often = sequences as usize / 20;
    assert!([undos, redos, forks, rewinds].iter().all(|count| *count >= often));
}
