//! What the user asked for: words and phrases, all of which a turn must have.

use std::fmt::Write as _;
use std::ops::Range;

use grep_matcher::Matcher as _;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};

use super::sieve::Sieve;

/// Most words and phrases of one query.
const MOST_TERMS: usize = 64;

/// Why something is no query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQuery {
    #[error("the query has no word in it")]
    Empty,
    #[error("the query has more than {MOST_TERMS} words and phrases")]
    TooMany,
    #[error("the query is too long")]
    TooLong,
}

/// Words and phrases. A word is found wherever it stands, also within another one; a blank in a phrase stands for any
/// blanks and line ends. Upper and lower case only differ if the query has an upper case letter.
pub struct Query {
    terms: Vec<Term>,
    sieve: Sieve,
}

/// A word or a phrase.
pub(super) struct Term(RegexMatcher);

impl Term {
    /// Where it stands first from byte `at` on.
    pub fn find(&self, text: &[u8], at: usize) -> Option<Range<usize>> {
        // This matcher has no errors.
        let found = self.0.find_at(text, at).ok().flatten()?;
        Some(found.start()..found.end())
    }
}

impl Query {
    /// Reads a query: words between blanks, and phrases between double quotes (the last one need not be closed).
    /// `\"` is a double quote.
    ///
    /// # Errors
    /// If there is no word in it, or too much.
    pub fn parse(text: &str) -> Result<Query, BadQuery> {
        let terms = split(text);
        if terms.is_empty() {
            return Err(BadQuery::Empty);
        }
        if terms.len() > MOST_TERMS {
            return Err(BadQuery::TooMany);
        }
        let any_case = !text.chars().any(char::is_uppercase);
        let sieve = Sieve::of(terms.iter().flatten(), any_case).ok_or(BadQuery::TooLong)?;
        let matcher = |words: &Vec<String>| {
            let pattern = words.iter().map(|word| literal(word)).collect::<Vec<_>>().join(r"\s+");
            let matcher = RegexMatcherBuilder::new().case_insensitive(any_case).build(&pattern);
            matcher.map(Term).map_err(|_| BadQuery::TooLong)
        };
        Ok(Query { terms: terms.iter().map(matcher).collect::<Result<_, _>>()?, sieve })
    }

    pub(super) fn terms(&self) -> &[Term] {
        &self.terms
    }

    pub(super) fn sieve(&self) -> &Sieve {
        &self.sieve
    }
}

/// The words of each term.
fn split(text: &str) -> Vec<Vec<String>> {
    let mut terms: Vec<Vec<String>> = Vec::new();
    let (mut phrase, mut word, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    let end_word = |word: &mut String, phrase: &mut Vec<String>| {
        if !word.is_empty() {
            phrase.push(std::mem::take(word));
        }
    };
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.peek() == Some(&'"') => word.extend(chars.next()),
            '"' => {
                end_word(&mut word, &mut phrase);
                terms.push(std::mem::take(&mut phrase));
                quoted = !quoted;
            }
            c if c.is_whitespace() => {
                end_word(&mut word, &mut phrase);
                if !quoted {
                    terms.push(std::mem::take(&mut phrase));
                }
            }
            c => word.push(c),
        }
    }
    end_word(&mut word, &mut phrase);
    terms.push(phrase);
    terms.retain(|term| !term.is_empty());
    terms
}

/// A pattern that matches this text and nothing else.
fn literal(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        // Writing into a String cannot fail.
        let _ = match c.is_alphanumeric() {
            true => write!(pattern, "{c}"),
            false => write!(pattern, r"\x{{{:x}}}", u32::from(c)),
        };
    }
    pattern
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn a_query_is_words_and_phrases() {
        for (text, expected) in [
            ("flaky test", vec![vec!["flaky"], vec!["test"]]),
            ("  flaky\t test ", vec![vec!["flaky"], vec!["test"]]),
            (r#""flaky test""#, vec![vec!["flaky", "test"]]),
            (r#"a "b  c" d"#, vec![vec!["a"], vec!["b", "c"], vec!["d"]]),
            (r#"a"b c"#, vec![vec!["a"], vec!["b", "c"]]),
            (r#"say \"hi\""#, vec![vec!["say"], vec!["\"hi\""]]),
            (r"C:\dir", vec![vec![r"C:\dir"]]),
            ("-x", vec![vec!["-x"]]),
            ("..", vec![vec![".."]]),
            ("*", vec![vec!["*"]]),
            ("🎉", vec![vec!["🎉"]]),
            ("", vec![]),
            (r#" "" " "#, vec![]),
        ] {
            assert_eq!(split(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_query_says_why() {
        assert_eq!(Query::parse(" \"\" ").err(), Some(BadQuery::Empty));
        assert_eq!(Query::parse(&"a ".repeat(65)).err(), Some(BadQuery::TooMany));
        assert!(Query::parse(&"a ".repeat(64)).is_ok());
        assert!(Query::parse(&"(".repeat(255)).is_ok());
    }

    #[test]
    fn terms_are_found_as_they_stand() {
        for (query, text, expected) in [
            ("flaky", "the Flaky one", true),
            ("Flaky", "the flaky one", false),
            ("ÜBER", "über", false),
            ("über", "ÜBER", true),
            ("\"flaky test\"", "flaky \n  test", true),
            ("\"flaky test\"", "flaky, test", false),
            ("a.c", "abc", false),
            ("a.c", "xa.cx", true),
            ("[x]*", "a [x]* b", true),
            ("🎉", "x🎉y", true),
        ] {
            let query = Query::parse(query).unwrap();
            let found = query.terms().iter().all(|term| term.find(text.as_bytes(), 0).is_some());
            assert_eq!(found, expected, "{text:?}");
        }
    }
}
