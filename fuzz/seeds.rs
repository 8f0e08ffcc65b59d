//! Writes the data that a target begins with: `seeds TARGET DIR`.

#![allow(clippy::unwrap_used)]

mod targets;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (target, dir) = (arguments.next().unwrap(), arguments.next().unwrap());
    let seeds = match target.as_str() {
        "control" => targets::control_seeds(),
        "journal" => targets::journal_seeds(),
        agent => targets::seeds(&agent.replace('_', "-")),
    };
    for (n, seed) in seeds.iter().enumerate() {
        std::fs::write(format!("{dir}/seed-{n:04}"), seed).unwrap();
    }
}
