//! Random sequences of what clients and users do to a session, against a tiny reference model.
//!
//! A sequence of [`operation::Op`] is turned into client events; the simulated client (`client`) writes them
//! as kimi-cli does, the reference (`reference`) only remembers what the model has seen. After every step
//! `world` compares the two through the library. `TURNFS_TEST_SEQUENCES` sets how many sequences,
//! `TURNFS_TEST_SEED` which.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;
mod operation;
mod reference;
mod world;

use std::sync::Mutex;
use std::time::Instant;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use operation::Op;
use world::{Counts, World};

const SEQUENCES: u32 = 2_000;
/// A cut that is not forced looks twice, 25 ms apart: most of the time is waiting.
const THREADS: u32 = 16;

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Plays a sequence; what went wrong, with everything that was done before it.
fn play(ops: &[Op], counts: &mut Counts) -> Result<(), String> {
    let mut world = World::new();
    for op in ops {
        if let Err(wrong) = world.step(op) {
            return Err(format!("{wrong}\nafter these steps:\n  {}", world.story().join("\n  ")));
        }
    }
    counts.add(world.counts());
    Ok(())
}

#[test]
fn whatever_clients_and_users_do_a_session_holds_what_the_model_has_seen() {
    let start = Instant::now();
    let (sequences, seed) = (number("TURNFS_TEST_SEQUENCES", SEQUENCES), number("TURNFS_TEST_SEED", 1));
    let total = Mutex::new(Counts::default());
    let run = |thread: u32| {
        let config = Config {
            cases: sequences.div_ceil(THREADS),
            failure_persistence: None,
            max_shrink_iters: 2_000,
            ..Config::default()
        };
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&seed.to_le_bytes());
        bytes[4..8].copy_from_slice(&thread.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let counts = std::cell::RefCell::new(Counts::default());
        let result = TestRunner::new_with_rng(config, rng).run(&operation::sequence(), |ops| {
            play(&ops, &mut counts.borrow_mut()).map_err(TestCaseError::fail)
        });
        total.lock().unwrap().add(&counts.into_inner());
        match result {
            Ok(()) => None,
            Err(TestError::Fail(why, ops)) => Some(format!("{why}\n\nshortest sequence: {ops:#?}")),
            Err(TestError::Abort(why)) => Some(format!("given up: {why}")),
        }
    };
    let failures: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    let total = total.into_inner().unwrap();
    println!("{sequences} sequences in {:.0} s: {total}", start.elapsed().as_secs_f32());
    // One is enough to begin with; the others are often the same.
    if let Some(shortest) = failures.iter().min_by_key(|failure| failure.len()) {
        panic!("{} of {THREADS} threads found something wrong, seed {seed}:\n{shortest}", failures.len());
    }
    assert!(total.is_thorough(sequences), "too little was tried: {total}");
}
