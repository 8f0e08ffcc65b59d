//! A turn's items as readable text (Markdown), exact and bounded.
//!
//! The text is a pure function of the turn's facts and its record bytes, so its size is known as soon as
//! the turn is indexed: sizes are counted by the same code that writes the text.

use crate::session::{Item, Turn};

/// Where text goes: a buffer, or only its length.
pub trait Output {
    fn put(&mut self, text: &str);
}

impl Output for String {
    fn put(&mut self, text: &str) {
        self.push_str(text);
    }
}

/// Counts bytes instead of keeping them.
#[derive(Debug, Default, Clone, Copy)]
pub struct Length(pub u64);

impl Output for Length {
    fn put(&mut self, text: &str) {
        self.0 += text.len() as u64;
    }
}

/// The heading line of a turn: number, time, duration, outcome. Depends only on the turn's facts.
pub fn heading(turn: &Turn, out: &mut impl Output) {
    let _ = (turn, out);
}

/// One item, marked, with control characters made visible. Ends with a newline.
pub fn item(item: &Item<'_>, out: &mut impl Output) {
    let _ = (item, out);
}
