//! How long an outside change takes to be seen through the mount: `cargo bench --bench push [TRIES]`.
//!
//! Each kind of change is made TRIES times (200); printed are median and 99th percentile, in ms, from the end of
//! the change to the first look that shows it, with a program looking every 0.2 ms.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../tests/fresh/kinds.rs"]
mod kinds;
#[allow(dead_code)] // the tests use all of it
#[path = "../tests/fresh/store.rs"]
mod store;
#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Duration;

fn main() {
    let tries = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(200);
    let case = store::Case::at(None);
    println!("{:12} {:>6} {:>10} {:>10}", "change", "tries", "median ms", "p99 ms");
    for (name, once) in kinds::ALL {
        let mut times: Vec<Duration> = (0..tries).map(|round| once(&case, round)).collect();
        times.sort();
        let ms = |at: usize| times[at.min(times.len() - 1)].as_secs_f64() * 1e3;
        println!("{name:12} {tries:>6} {:>10.2} {:>10.2}", ms(times.len() / 2), ms(times.len() * 99 / 100));
    }
}
