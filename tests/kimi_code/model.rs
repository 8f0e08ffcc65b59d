//! Random sequences of what the client and users do to a session, against a reference that only remembers what the
//! model has seen. `TURNFS_TEST_SEQUENCES` sets how many, `TURNFS_TEST_SEED` which.

use std::fs;

use serde_json::json;
use turnfs::session::{Errno, Session};
use turnfs::transcript::Passes;

use crate::wires::Store;

const SEQUENCES: u64 = 150;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// What the model has seen, and what it had seen before each turn.
#[derive(Clone, Default, PartialEq, Debug)]
struct Seen {
    said: Vec<String>,
    turns: Vec<(String, Vec<String>)>,
    /// Turns before the last compaction or clear.
    floor: usize,
    floors: Vec<usize>,
}

impl Seen {
    fn begin(&mut self, prompt: &str) {
        self.turns.push((prompt.to_owned(), self.said.clone()));
        self.floors.push(self.floor);
        self.said.push(format!("user: {prompt}"));
    }

    fn first(&self, turns: usize) -> Seen {
        match self.turns.get(turns) {
            None => self.clone(),
            Some((_, before)) => Seen {
                said: before.clone(),
                turns: self.turns[..turns].to_vec(),
                floor: self.floors[turns],
                floors: self.floors[..turns].to_vec(),
            },
        }
    }
}

#[derive(Default)]
struct Counts {
    undos: usize,
    redos: usize,
    forks: usize,
    client_undos: usize,
}

/// An undo of ours that could be redone: what was seen before, what it left, and the wire before.
type Undone = (Seen, Seen, Vec<u8>);

struct World {
    store: Store,
    seen: Seen,
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
            0..=3 => self.turn(dice),
            4 => self.compact_or_clear(dice),
            5 if turns > 0 => {
                counts.client_undos += 1;
                self.client_undo(dice)
            }
            6 | 7 => {
                let n = dice.below(turns + 1);
                let wire = fs::read(self.store.wire()).unwrap();
                match self.store.undo(n as u32) {
                    Ok(done) => {
                        assert_eq!((done.keeps as usize, done.drops as usize), (n, turns - n));
                        let left = self.seen.first(n);
                        self.undone.push((self.seen.clone(), left.clone(), wire));
                        self.seen = left;
                        counts.undos += 1;
                    }
                    Err(refusal) => assert_eq!((refusal.errno(), n), (Errno::RANGE, turns), "{refusal}"),
                }
                format!("undo {n}")
            }
            8..=10 => {
                match self.store.redo() {
                    Ok(_) => {
                        let (before, _, wire) = self.undone.pop().unwrap();
                        assert_eq!(fs::read(self.store.wire()).unwrap(), wire);
                        self.seen = before;
                        counts.redos += 1;
                    }
                    Err(refusal) if self.undone.is_empty() => assert_eq!(refusal.errno(), Errno::RANGE),
                    Err(refusal) => assert_eq!(refusal.errno(), Errno::STALE, "{refusal}"),
                }
                "redo".into()
            }
            _ if turns > 0 => {
                let n = dice.below(turns);
                let fork = self.store.fork(n as u32).unwrap();
                let wanted = self.seen.first(n + 1);
                assert_eq!(self.store.context_of(&fork), wanted.said, "fork {n}");
                assert_eq!(self.store.history_of(&fork).turns.len(), n + 1);
                fs::remove_dir_all(fork.key.absolute()).unwrap();
                counts.forks += 1;
                format!("fork {n}")
            }
            _ => "nothing".into(),
        }
    }

    fn turn(&mut self, dice: &mut Dice) -> String {
        let text = ["go on", "fix it", "yes", "\u{1f600} \"q\"\nline two"][dice.below(4)];
        self.store.prompt(text, dice.below(3) == 0);
        self.seen.begin(text);
        for n in 0..=dice.below(3) {
            let reply = format!("reply {}.{n}", self.serial);
            self.store.reply(&reply);
            self.seen.said.push(format!("assistant: {reply}"));
            if dice.below(4) == 0 {
                // A steer that equals a prompt is still no turn.
                self.store.steer(text);
                self.seen.said.push(format!("user: {text}"));
            }
        }
        match dice.below(5) {
            0 => return "a killed turn".into(),
            1 => self.store.end("cancelled"),
            _ => self.store.end("completed"),
        }
        if dice.below(3) == 0 {
            self.store.put("token_counting.measured", json!({"length": 1}));
        }
        "a turn".into()
    }

    fn compact_or_clear(&mut self, dice: &mut Dice) -> String {
        self.seen.floor = self.seen.turns.len();
        if dice.below(3) == 0 {
            self.store.put("context.clear", json!({}));
            self.seen.said.clear();
            return "clear".into();
        }
        let summary = format!("SUMMARY-{}", self.serial);
        self.seen.said.retain(|said| said.starts_with("user: "));
        self.store.compact(&summary, self.seen.said.len());
        self.seen.said.push(format!("summary: {summary}"));
        "compact".into()
    }

    /// The client's own undo, in either form, of some of the turns behind the last compaction.
    fn client_undo(&mut self, dice: &mut Dice) -> String {
        let turns = self.seen.turns.len();
        let count = 1 + dice.below(turns);
        if dice.below(2) == 0 {
            self.store.put("context.undo", json!({"count": count}));
            if turns - count >= self.seen.floor {
                self.seen = self.seen.first(turns - count);
            }
            return format!("old undo of {count}");
        }
        // As the client writes it, told from the library's own cut point.
        let history = self.store.history();
        let at = history.cuts[turns - count].as_ref().unwrap().at.clone().unwrap();
        let lines = self.store.lines();
        self.store.switch(
            &format!("c{}", self.serial),
            &at.id,
            at.ordinal.unwrap() as usize - 1,
            Some(lines + 2),
        );
        self.store.put("context.undo", json!({"count": count}));
        self.store.put("context.undone", json!({"turns": count}));
        self.seen = self.seen.first(turns - count);
        format!("client's undo of {count}")
    }

    fn compare(&mut self, story: &[String]) {
        let told = || story.join(", ");
        let prompts: Vec<String> = self.seen.turns.iter().map(|(prompt, _)| prompt.clone()).collect();
        assert_eq!(self.store.prompts(), prompts, "{}", told());
        assert_eq!(self.store.context(), self.seen.said, "{}", told());
        self.passes.begin();
        let grown = self.store.agent.load_again(&self.session, &mut self.passes).unwrap();
        let whole = self.store.history();
        assert!(grown == whole, "{}: read piece by piece it is another history", told());
        self.passes.settle();
        let undone = turnfs::cut::undone(&self.store.state(), &self.session.key).unwrap();
        assert_eq!(undone.len(), self.undone.len(), "{}", told());
        for (found, (before, left, wire)) in undone.iter().zip(&self.undone) {
            let gone = before.turns[left.turns.len()..].iter().map(|(prompt, _)| Some(prompt.clone()));
            assert!(found.turns.iter().map(|turn| turn.prompt.clone()).eq(gone), "{}", told());
            for turn in &found.turns {
                let wanted: Vec<u8> = turn
                    .ranges()
                    .flat_map(|(_, span)| wire[span.start as usize..span.end as usize].to_vec())
                    .collect();
                assert!(
                    turnfs::cut::undone_span(found, turn).unwrap() == wanted,
                    "{}: turn {}",
                    told(),
                    turn.n
                );
            }
        }
    }
}

#[test]
fn whatever_clients_and_users_do_a_session_holds_what_the_model_has_seen() {
    let number = |name: &str, or: u64| std::env::var(name).ok().map_or(or, |text| text.parse().unwrap());
    let sequences = number("TURNFS_TEST_SEQUENCES", SEQUENCES);
    let seed = number("TURNFS_TEST_SEED", 1);
    let mut counts = Counts::default();
    for sequence in 0..sequences {
        let mut dice = Dice(seed.wrapping_mul(1_000_003) + sequence);
        let store = Store::new();
        let session = store.session();
        let (seen, undone, passes) = Default::default();
        let mut world = World { store, seen, undone, session, passes, serial: 0 };
        let mut story = vec![format!("sequence {sequence} of seed {seed}")];
        for _ in 0..4 + dice.below(12) {
            story.push(world.step(&mut dice, &mut counts));
            world.compare(&story);
        }
    }
    let Counts { undos, redos, forks, client_undos } = counts;
    println!(
        "{sequences} sequences: {undos} undos, {redos} redos, {forks} forks, {client_undos} undos by the client"
    );
    let often = sequences as usize / 20;
    assert!([undos, redos, forks, client_undos].iter().all(|count| *count >= often));
}
