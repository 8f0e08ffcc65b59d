//! The line of a turn that shows best why it was found.

use std::collections::BTreeMap;
use std::ops::Range;

use super::query::{Query, Term};
use crate::render;

/// Longest text that is shown of a line, and how much of that before the first match, in characters.
const SHOWN: usize = 400;
const BEFORE: usize = 100;
/// How many places of each term are looked at for the line that has the most of them.
const PLACES: usize = 256;

/// A line that has words of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// From 1, in the turn's text.
    pub line: u64,
    /// The line, or what stands around the first match of one that has more than 400 characters.
    pub text: String,
    /// Where the words stand in `text`, bytes; in order, none within another.
    pub marks: Vec<Range<usize>>,
}

/// The first of the lines that have the most terms of the query; `None` unless every term stands somewhere in the turn's text. What
/// turnfs writes into each turn itself (the heading, the titles of its parts) does not count.
pub(super) fn shown(query: &Query, text: &str) -> Option<Shown> {
    let bytes = text.as_bytes();
    // The terms of a line, one bit each, by where it begins.
    let mut lines: BTreeMap<usize, u64> = BTreeMap::new();
    for (number, term) in query.terms().iter().enumerate() {
        let places = places(term, bytes).map(|place| start_of_line(bytes, place.start));
        let own = places.filter(|start| !is_structure(text, *start)).take(PLACES);
        let mut found = false;
        for start in own {
            *lines.entry(start).or_default() |= 1 << number;
            found = true;
        }
        if !found {
            return None;
        }
    }
    let (start, _) = lines.into_iter().rev().max_by_key(|(_, terms)| terms.count_ones())?;
    let line = 1 + memchr::memchr_iter(b'\n', &bytes[..start]).count() as u64;
    let (text, marks) = around(query, text[start..].lines().next().unwrap_or_default());
    Some(Shown { line, text, marks })
}

/// Where a term stands, one place behind the other.
fn places<'t>(term: &'t Term, bytes: &'t [u8]) -> impl Iterator<Item = Range<usize>> + 't {
    let mut at = 0;
    std::iter::from_fn(move || {
        let place = term.find(bytes, at)?;
        at = place.end;
        Some(place)
    })
}

fn start_of_line(bytes: &[u8], at: usize) -> usize {
    memchr::memrchr(b'\n', &bytes[..at]).map_or(0, |end| end + 1)
}

fn is_structure(text: &str, start: usize) -> bool {
    start == 0 || render::is_bare_title(text[start..].lines().next().unwrap_or_default())
}

/// The line, shortened around its first match, and where the terms stand in what is left.
fn around(query: &Query, line: &str) -> (String, Vec<Range<usize>>) {
    let first =
        query.terms().iter().filter_map(|term| term.find(line.as_bytes(), 0)).map(|at| at.start).min();
    let first = first.unwrap_or(0);
    let start = line[..first].char_indices().rev().nth(BEFORE - 1).map_or(0, |(at, _)| at);
    let end = line[start..].char_indices().nth(SHOWN).map_or(line.len(), |(at, _)| start + at);
    let (before, after) = (if start > 0 { "…" } else { "" }, if end < line.len() { "…" } else { "" });
    let text = format!("{before}{}{after}", &line[start..end]);
    let mut found: Vec<Range<usize>> =
        query.terms().iter().flat_map(|term| places(term, text.as_bytes())).collect();
    found.sort_by_key(|mark| (mark.start, std::cmp::Reverse(mark.end)));
    let mut marks: Vec<Range<usize>> = Vec::new();
    for mark in found {
        match marks.last_mut() {
            Some(last) if mark.start < last.end => last.end = last.end.max(mark.end),
            _ => marks.push(mark),
        }
    }
    (text, marks)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    const TURN: &str = "# Turn 1 · complete\n\n## User\n\nfix the login\nof users\n\n## Assistant\n\nThe flaky login\ntest is fixed\n";

    fn look(query: &str, text: &str) -> Option<(u64, String, Vec<String>)> {
        let shown = shown(&Query::parse(query).unwrap(), text)?;
        let marked = shown.marks.iter().map(|mark| shown.text[mark.clone()].to_owned()).collect();
        Some((shown.line, shown.text, marked))
    }

    #[test]
    fn the_line_with_the_most_words_is_shown() {
        for (query, line, text, marks) in [
            ("login", 5, "fix the login", vec!["login"]),
            ("login flaky", 10, "The flaky login", vec!["flaky", "login"]),
            ("USERS", 0, "", vec![]),
            ("users", 6, "of users", vec!["users"]),
            ("user", 6, "of users", vec!["user"]),
            ("\"login test\"", 10, "The flaky login", vec![]),
            ("fix users flaky", 5, "fix the login", vec!["fix"]),
            ("logi ogin", 5, "fix the login", vec!["login"]),
        ] {
            let expected =
                (line > 0).then(|| (line, text.to_owned(), marks.iter().map(|m| (*m).to_owned()).collect()));
            assert_eq!(look(query, TURN), expected, "{query}");
        }
    }

    #[test]
    fn headings_that_turnfs_writes_are_not_found() {
        for query in ["assistant", "complete", "turn", "##"] {
            assert_eq!(look(query, TURN), None, "{query}");
        }
    }

    #[test]
    fn of_a_long_line_what_stands_around_the_match_is_shown() {
        let text = format!("\n{}needle{}\n", "ä".repeat(1000), "ö".repeat(1000));
        let (line, shown, marks) = look("needle", &text).unwrap();
        assert_eq!((line, marks), (2, vec!["needle".to_owned()]));
        assert_eq!(shown, format!("…{}needle{}…", "ä".repeat(100), "ö".repeat(294)));
    }
}
