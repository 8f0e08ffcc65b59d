//! The targets of `scripts/fuzz`, driven by mutations of the samples that are the same in every run.
//!
//! TURNFS_TEST_FUZZ sets how many of each target, TURNFS_TEST_SEED which ones.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../fuzz/targets.rs"]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Numbers that look random and are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// What a parser may stumble over.
const PIECES: [&str; 16] = [
    "\n",
    "\r\n",
    "\0",
    "\"",
    "\\",
    "{",
    "}}",
    "[",
    "null",
    "-1",
    "1e999",
    "18446744073709551616",
    "\\ud800",
    "\u{1b}[2J",
    "\u{feff}",
    "true",
];

fn mutated(dice: &mut Dice, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut data = seeds[dice.below(seeds.len())].clone();
    for _ in 0..=dice.below(4) {
        let at = dice.below(data.len());
        let end = (at + 1 + dice.below(200)).min(data.len());
        match dice.below(8) {
            0 => data.truncate(at),
            1 => drop(data.drain(at..end)),
            2 if at < data.len() => data[at] ^= 1 << dice.below(8),
            3 => drop(data.splice(at..at, PIECES[dice.below(PIECES.len())].bytes())),
            4 => drop(data.splice(at..end, PIECES[dice.below(PIECES.len())].bytes())),
            // A piece twice, or somewhere else.
            5 => {
                let piece = data[at..end].to_vec();
                let to = dice.below(data.len());
                drop(data.splice(to..to, piece));
            }
            // A line twice, or gone.
            6 => {
                let mut lines: Vec<&[u8]> = data.split_inclusive(|byte| *byte == b'\n').collect();
                let line = dice.below(lines.len());
                match (dice.below(2), lines.get(line).copied()) {
                    (0, Some(whole)) => lines.insert(dice.below(lines.len()), whole),
                    (_, Some(_)) => drop(lines.remove(line)),
                    (_, None) => {}
                }
                data = lines.concat();
            }
            // The rest of something else.
            _ => {
                let other = &seeds[dice.below(seeds.len())];
                data.truncate(at);
                data.extend_from_slice(&other[dice.below(other.len())..]);
            }
        }
    }
    data
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[track_caller]
fn drive(name: &str, usual: u64, seeds: Vec<Vec<u8>>, target: impl Fn(&[u8])) {
    assert!(!seeds.is_empty(), "{name} has nothing to begin with");
    seeds.iter().for_each(|seed| target(seed));
    let mut dice = Dice(setting("TURNFS_TEST_SEED", 1));
    for round in 0..setting("TURNFS_TEST_FUZZ", usual) {
        let data = mutated(&mut dice, &seeds);
        if catch_unwind(AssertUnwindSafe(|| target(&data))).is_err() {
            let kept = std::env::temp_dir().join(format!("turnfs-fuzz-{name}-{round}"));
            std::fs::write(&kept, &data).unwrap();
            panic!("{name}, round {round}: see above; the data is in {}", kept.display());
        }
    }
}

macro_rules! stores {
    ($($test:ident $agent:literal $rounds:literal,)*) => {$(
        #[test]
        fn $test() {
            drive($agent, $rounds, targets::seeds($agent), |data| targets::store($agent, data));
        }
    )*};
}

stores! {
    no_file_of_kimi_cli_does_harm "kimi-cli" 400,
    no_file_of_kimi_code_does_harm "kimi-code" 400,
    no_file_of_codex_does_harm "codex" 400,
    no_file_of_openmax_does_harm "openmax" 400,
    no_file_of_claude_code_does_harm "claude-code" 400,
}

#[test]
fn no_write_into_a_control_file_is_taken_for_a_command_that_it_is_not() {
    drive("control", 200_000, targets::control_seeds(), targets::control);
}

#[test]
fn no_journal_does_harm_when_it_is_read() {
    drive("journal", 2000, targets::journal_seeds(), targets::journal);
}
