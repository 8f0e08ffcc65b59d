//! Numbers with their nouns, as people write them.

/// A number of turns.
pub fn turns(count: u32) -> String {
    counted(count.into(), "turn")
}

/// A number of things: `1 byte`, `2 bytes`.
pub fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}
