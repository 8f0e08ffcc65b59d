//! Tells from the bytes of transcripts what certainly does not have the words of a query: much cheaper than to read
//! the records and make the text.
//!
//! The bytes are JSON, perhaps JSON in a string of JSON, so a character may stand there as an escape. Letters and digits
//! of ASCII never do, other letters as themselves or as `\uXXXX`. So of each word the runs of letters and digits are
//! looked for, each in all its spellings; signs between them may have been escaped or made by turnfs (`$ `, `+`).
//! A run of digits alone is not looked for: turnfs may have made it (a time, a size).

use std::fmt::Write as _;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};

use grep_matcher::Matcher as _;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};

use crate::agents::AgentStore;
use crate::session::{Refusal, Result, Session};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{StoreDir, plain_stream};

/// How much is read at a time, bytes; small enough for a processor's cache.
const BLOCK: usize = 256 * 1024;
/// The longest spelling of a character, bytes: two escapes of UTF-16 in a string in a string in a string.
const LONGEST_SPELLING: usize = 32;

/// What bytes must have for the words of a query to be in the text that is made of them.
pub(super) struct Sieve {
    pieces: Vec<Piece>,
    /// The longest match, bytes.
    longest: usize,
}

struct Piece(RegexMatcher);

impl Piece {
    fn is_in(&self, bytes: &[u8]) -> bool {
        // This matcher has no errors.
        self.0.is_match(bytes).unwrap_or(true)
    }
}

impl Sieve {
    /// `None`: the words are too long.
    pub fn of<'w>(words: impl Iterator<Item = &'w String>, any_case: bool) -> Option<Sieve> {
        let runs = words.flat_map(|word| word.split(|c: char| !c.is_alphanumeric()));
        let mut runs: Vec<&str> = runs.filter(|run| run.chars().any(|c| !c.is_numeric())).collect();
        // The longest is the rarest, as a rule.
        runs.sort_by_key(|run| std::cmp::Reverse(run.len()));
        runs.dedup();
        let longest = runs.iter().map(|run| run.chars().count()).max().unwrap_or(0) * LONGEST_SPELLING;
        let piece = |run: &&str| {
            let mut builder = RegexMatcherBuilder::new();
            // Of ASCII alone the Unicode rules would only add letters that look alike, such as the Kelvin sign.
            builder.case_insensitive(any_case).unicode(!run.is_ascii());
            builder.build(&spellings(run, any_case)).ok().map(Piece)
        };
        Some(Sieve { pieces: runs.iter().map(piece).collect::<Option<_>>()?, longest })
    }

    /// Whether the text of records with these bytes may have the words.
    pub fn passes(&self, bytes: &[u8]) -> bool {
        self.pieces.iter().all(|piece| piece.is_in(bytes))
    }

    /// As [`Sieve::passes`], of all transcripts of a session of this store; false, too, once `stop` is set.
    ///
    /// # Errors
    /// What prevents reading them.
    pub fn passes_session(
        &self,
        store: &dyn AgentStore,
        session: &Session,
        stop: &AtomicBool,
    ) -> Result<bool> {
        if self.pieces.is_empty() {
            return Ok(true);
        }
        let files = store.transcripts(session)?;
        let Some(store) = StoreDir::open(&session.key.root)? else { return Ok(false) };
        let mut missing: Vec<&Piece> = self.pieces.iter().collect();
        for file in &files {
            let Some(opened) = store.file(file)? else { continue };
            let refused = |error| Refusal::io("cannot read", &store.path().join(file), error);
            let stream = plain_stream(opened, file).map_err(refused)?;
            self.look_into(stream, session, &mut missing, stop).map_err(refused)?;
            if missing.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes out of `missing` what stands in these bytes.
    fn look_into(
        &self,
        mut stream: impl Read,
        session: &Session,
        missing: &mut Vec<&Piece>,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        let mut buffer = vec![0; self.longest + BLOCK];
        // How many bytes of the last block stand at the beginning.
        let mut kept = 0;
        loop {
            let got = match stream.read(&mut buffer[kept..]) {
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if got == 0 || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            count_bytes(session.key.agent, ReadKind::Search, got as u64);
            let end = kept + got;
            missing.retain(|piece| !piece.is_in(&buffer[..end]));
            if missing.is_empty() {
                return Ok(());
            }
            let from = end.saturating_sub(self.longest);
            buffer.copy_within(from..end, 0);
            kept = end - from;
        }
    }
}

/// A pattern for the ways in which a JSON text may have these letters and digits.
fn spellings(run: &str, any_case: bool) -> String {
    let mut pattern = String::new();
    for c in run.chars() {
        if c.is_ascii() {
            pattern.push(c);
            continue;
        }
        let mut forms = vec![c];
        if any_case {
            forms.extend(c.to_lowercase());
            forms.extend(c.to_uppercase());
        }
        forms.sort_unstable();
        forms.dedup();
        let escape = |form: &char| {
            let mut units = [0; 2];
            let mut escaped = String::new();
            for unit in form.encode_utf16(&mut units) {
                // Writing into a String cannot fail. In a string in a string the backslash is escaped, too.
                let _ = write!(escaped, r"\\+u(?i:{unit:04x})");
            }
            escaped
        };
        let escapes = forms.iter().map(escape).collect::<Vec<_>>().join("|");
        let _ = write!(pattern, "(?:{c}|{escapes})");
    }
    pattern
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    fn passes(query: &str, bytes: &str) -> bool {
        let words: Vec<String> = query.split(' ').map(str::to_owned).collect();
        let any_case = !query.chars().any(char::is_uppercase);
        Sieve::of(words.iter(), any_case).unwrap().passes(bytes.as_bytes())
    }

    #[test]
    fn every_spelling_of_a_word_passes() {
        for (query, bytes, expected) in [
            ("größe", r#"{"a":"Die Größe"}"#, true),
            ("größe", r#"{"a":"Die Gr\u00f6\u00dfe"}"#, true),
            ("größe", r#"{"a":"{\"b\":\"GR\\u00D6\\u00DFE\"}"}"#, true),
            ("Größe", r#"{"a":"gr\u00f6\u00dfe"}"#, false),
            ("größe", r#"{"a":"grosse"}"#, false),
            ("𐐷a", r#""\ud801\uDC37A""#, true),
            ("\"quoted\"", r#"say \"quoted\""#, true),
            ("src/main.rs", r#""src\/main.rs""#, true),
            ("src/main.rs", r#""src\/lib.rs""#, false),
            ("$ +12 2026-12-03", "nothing of it", true),
            ("v2", "v3", false),
            ("修复", r#""\u4fee\u590d""#, true),
            ("flaky test", "a test that is flaky", true),
            ("flaky test", "a flaky one", false),
        ] {
            assert_eq!(passes(query, bytes), expected, "{query} in {bytes}");
        }
    }
}
