//! What is wrong with a line that is no record: the classes of damage, told from the bytes alone.
//!
//! Classes say what most probably happened (a kill during an append, two appends without a newline
//! between them, a power loss), so that the user can mend it. Nothing here mends anything. A line is told in time
//! linear in its length, whatever stands in it. Rules: `docs/stores/damage.md`.

use serde::de::IgnoredAny;

use super::{LONGEST_LINE, Line};
use crate::session::{Damage, DamageClass};

/// Damages kept for one file; a file that is no transcript at all would have millions.
const KEPT: usize = 1000;
/// Longest record over several physical lines that is put together to tell `split-record`.
const JOIN_BYTES: usize = 16 << 20;
const JOIN_LINES: usize = 64;

/// What the inspector has to know of a store's format.
#[derive(Clone, Copy)]
pub struct Format {
    /// Whether these bytes are exactly one record.
    pub is_record: fn(&[u8]) -> bool,
    /// What the agent itself does with a line of this class, as the end of a sentence.
    pub agent: fn(DamageClass) -> &'static str,
}

/// Collects the damage of one file while its lines pass by.
#[derive(Clone)]
pub struct Inspector {
    file: String,
    format: Format,
    found: Vec<Damage>,
    split: Option<Split>,
    first: Option<u64>,
}

/// Bad lines that may turn out to be one record with raw newlines in it.
#[derive(Clone)]
struct Split {
    damages: Vec<Damage>,
    /// The lines, with the newlines between them escaped.
    text: Vec<u8>,
    /// Where JSON is behind that text.
    at: Brackets,
}

impl Inspector {
    /// `file` is the name that the damages carry.
    pub fn new(file: impl Into<String>, format: Format) -> Inspector {
        Inspector { file: file.into(), format, found: Vec::new(), split: None, first: None }
    }

    /// The line is a record.
    pub fn record(&mut self, line: &Line<'_>) {
        if self.split.is_some() {
            self.give_up_joining();
        }
        if !line.terminated {
            let what = "the last record has no newline; the next append would be glued to it";
            self.push(line.number, line.start, DamageClass::NoFinalNewline, what.into());
        }
    }

    /// The line is not a record: `what` says why, if it is JSON.
    pub fn no_record(&mut self, line: &Line<'_>, what: Option<&str>) {
        if line.is_blank() && line.terminated {
            return;
        }
        if !line.terminated {
            self.give_up_joining();
            let (class, message) = tail(line);
            self.push(line.number, line.start, class, message);
            return;
        }
        let class = match what {
            Some(_) => self.class_of_json(line),
            None => self.class(line),
        };
        let says = match (class, what) {
            (DamageClass::BadRecord, Some(what)) => what,
            _ => describe(class),
        };
        let damage = self.damage(line.number, line.start, class, says.to_owned());
        self.collect(line, damage);
    }

    /// Where the first damage starts that is not a torn tail: line, if there is one.
    pub fn first_line(&self) -> Option<u64> {
        self.first
    }

    /// All damages, in the order of the lines.
    pub fn finish(mut self) -> Vec<Damage> {
        self.give_up_joining();
        self.found
    }

    fn push(&mut self, line: u64, byte: u64, class: DamageClass, message: String) {
        let damage = self.damage(line, byte, class, message);
        self.keep(damage);
    }

    fn keep(&mut self, damage: Damage) {
        if self.found.len() < KEPT {
            self.found.push(damage);
        }
    }

    fn damage(&mut self, line: u64, byte: u64, class: DamageClass, mut message: String) -> Damage {
        if !class.is_torn() {
            self.first.get_or_insert(line);
        }
        let agent = (self.format.agent)(class);
        if !agent.is_empty() {
            message.push_str("; ");
            message.push_str(agent);
        }
        Damage { file: self.file.clone(), line, byte, class, message }
    }

    /// Adds a bad line, alone or as part of a record that is split over lines.
    fn collect(&mut self, line: &Line<'_>, damage: Damage) {
        if let Some(mut split) = self.split.take() {
            split.text.extend_from_slice(b"\\n");
            split.text.extend_from_slice(line.bytes);
            split.at.pass(line.bytes);
            split.damages.push(damage);
            if split.at.in_string {
                let goes_on = split.damages.len() < JOIN_LINES && split.text.len() < JOIN_BYTES;
                self.split = Some(split);
                if !goes_on {
                    self.give_up_joining();
                }
            } else if split.at.depth == 0 && (self.format.is_record)(&split.text) {
                let (first, byte) = (split.damages[0].line, split.damages[0].byte);
                let range = format!("one record over the lines {first} to {}", line.number);
                let what = format!("{range}: a newline inside a string is not escaped");
                self.push(first, byte, DamageClass::SplitRecord, what);
            } else {
                split.damages.into_iter().for_each(|damage| self.keep(damage));
            }
            return;
        }
        if damage.class == DamageClass::BadLine
            && line.bytes.len() < JOIN_BYTES
            && line.bytes.first() == Some(&b'{')
        {
            let mut at = Brackets::default();
            at.pass(line.bytes);
            if at.in_string {
                self.split = Some(Split { damages: vec![damage], text: line.bytes.to_vec(), at });
                return;
            }
        }
        self.keep(damage);
    }

    fn give_up_joining(&mut self) {
        if let Some(split) = self.split.take() {
            split.damages.into_iter().for_each(|damage| self.keep(damage));
        }
    }

    fn class_of_json(&self, line: &Line<'_>) -> DamageClass {
        match line.bytes.trim_ascii_start().first() {
            Some(b'[') if line.number == 1 => DamageClass::ArrayForm,
            _ => DamageClass::BadRecord,
        }
    }

    fn class(&self, line: &Line<'_>) -> DamageClass {
        let bytes = line.bytes;
        if line.too_long {
            return DamageClass::TooLong;
        }
        if line.nuls > 0 || memchr::memchr(0, bytes).is_some() {
            return DamageClass::NulRun;
        }
        if bytes.starts_with(b"\xEF\xBB\xBF") {
            return DamageClass::Bom;
        }
        if simdutf8::basic::from_utf8(bytes).is_err() {
            return DamageClass::InvalidUtf8;
        }
        if line.number == 1 && bytes.trim_ascii_start().first() == Some(&b'[') {
            return DamageClass::ArrayForm;
        }
        self.second_record(bytes).unwrap_or(DamageClass::BadLine)
    }

    /// Tells two appends on one line: both complete, or the first one cut.
    fn second_record(&self, bytes: &[u8]) -> Option<DamageClass> {
        let start = last_object(bytes).filter(|start| *start > 0)?;
        let (before, last) = bytes.split_at(start);
        if !(self.format.is_record)(last) {
            return None;
        }
        // Three or more appends on one line: whether the first one is complete decides.
        let first = first_object(before).map_or(before, |end| &before[..end]);
        let complete = (self.format.is_record)(first);
        Some(if complete { DamageClass::MissingNewline } else { DamageClass::GluedCut })
    }
}

/// Where JSON is, told from brackets and quotes alone.
#[derive(Clone, Copy, Default)]
struct Brackets {
    /// Objects that are open.
    depth: usize,
    in_string: bool,
    /// In a string, behind a backslash that escapes what comes next.
    escaped: bool,
}

impl Brackets {
    /// Goes on behind these bytes; a newline before them stands for its escape.
    fn pass(&mut self, bytes: &[u8]) {
        self.until(bytes, false);
    }

    /// Goes on behind these bytes, or, if that is wanted, only to where the last open object ends: there.
    fn until(&mut self, bytes: &[u8], end_of_object: bool) -> Option<usize> {
        let mut at = 0;
        if std::mem::take(&mut self.escaped) && !bytes.is_empty() {
            at = 1;
        }
        while at < bytes.len() {
            let rest = &bytes[at..];
            let found = match self.in_string {
                true => memchr::memchr2(b'"', b'\\', rest),
                false => memchr::memchr3(b'"', b'{', b'}', rest),
            };
            let found = found?;
            at += found + 1;
            match rest[found] {
                b'"' => self.in_string = !self.in_string,
                b'\\' if at == bytes.len() => self.escaped = true,
                b'\\' => at += 1,
                b'{' => self.depth += 1,
                _ => {
                    self.depth = self.depth.saturating_sub(1);
                    if end_of_object && self.depth == 0 {
                        return Some(at);
                    }
                }
            }
        }
        None
    }
}

/// Where the object at the start of these bytes ends, if it does.
fn first_object(bytes: &[u8]) -> Option<usize> {
    Brackets::default().until(bytes, true)
}

/// Where the object begins that ends with these bytes. If there is one, it is found; what is found need not be one:
/// only brackets and quotes were looked at, from the end.
fn last_object(bytes: &[u8]) -> Option<usize> {
    let mut end = bytes.trim_ascii_end().len();
    let mut depth = 0_usize;
    while let Some(at) = memchr::memrchr3(b'"', b'{', b'}', &bytes[..end]) {
        end = at;
        match bytes[at] {
            b'}' => depth += 1,
            b'{' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            // A string ends here: go to the quote that begins it, the next one that is not escaped.
            _ => loop {
                end = memchr::memrchr(b'"', &bytes[..end])?;
                let escapes = bytes[..end].iter().rev().take_while(|byte| **byte == b'\\').count();
                if escapes % 2 == 0 {
                    break;
                }
            },
        }
        if depth == 0 {
            return None;
        }
    }
    None
}

/// The class and the sentence for a last line without a newline that is no record.
fn tail(line: &Line<'_>) -> (DamageClass, String) {
    if line.too_long {
        (DamageClass::TooLong, describe(DamageClass::TooLong).into())
    } else if line.nuls > 0 || line.bytes.last() == Some(&0) {
        let len = line.end - line.start;
        (DamageClass::NulTail, format!("{len} bytes at the end, filled with NUL as after a power loss"))
    } else {
        let len = line.bytes.len();
        (
            DamageClass::TornTail,
            format!("the last {len} bytes are the beginning of a record: a crash or an append in progress"),
        )
    }
}

const TOO_LONG: &str = "the line is longer than 128 MiB, the longest that turnfs reads as one";
const _: () = assert!(LONGEST_LINE == 128 << 20);

fn describe(class: DamageClass) -> &'static str {
    match class {
        DamageClass::GluedCut => {
            "a record that was cut off, directly followed by another one on the same line"
        }
        DamageClass::MissingNewline => {
            "two records on one line; putting the newline between them by hand mends it"
        }
        DamageClass::NulRun => "NUL bytes in the line, as after a power loss",
        DamageClass::TooLong => TOO_LONG,
        DamageClass::InvalidUtf8 => "the line is not valid UTF-8",
        DamageClass::Bom => "the line begins with a byte order mark",
        DamageClass::ArrayForm => "the file is one array, not one record per line",
        _ => "the line is not valid JSON",
    }
}

/// Whether these bytes are JSON of any form.
pub fn is_json(bytes: &[u8]) -> bool {
    simdutf8::basic::from_utf8(bytes).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// Whether arrays and objects are nested in each other more than `limit` times.
pub fn is_deeper(line: &[u8], limit: usize) -> bool {
    // So many brackets need so many bytes; nearly every line ends here.
    if line.len() < 2 * limit || memchr::memchr2_iter(b'[', b'{', line).nth(limit).is_none() {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::scan_bytes;
    use super::*;

    fn is_record(bytes: &[u8]) -> bool {
        let text = simdutf8::basic::from_utf8(bytes).unwrap_or("");
        text.starts_with("{\"t\"") && serde_json::from_str::<IgnoredAny>(text).is_ok()
    }

    fn damages(content: &[u8]) -> Vec<(u64, u64, DamageClass)> {
        let format = Format { is_record, agent: |_| "the agent skips it" };
        let mut inspector = Inspector::new("f", format);
        scan_bytes(content, 1, 0, |line| {
            if is_record(line.bytes) {
                inspector.record(&line);
            } else {
                inspector.no_record(&line, is_json(line.bytes).then_some("not a record of this store"));
            }
        });
        inspector.finish().into_iter().map(|damage| (damage.line, damage.byte, damage.class)).collect()
    }

    #[test]
    fn every_class_is_told_from_the_bytes() {
        use DamageClass::*;
        type Found<'a> = &'a [(u64, u64, DamageClass)];
        let cases: &[(&[u8], Found<'_>)] = &[
            (b"{\"t\":1}\n{\"t\":2}\n", &[]),
            (b"{\"t\":1}\n\n  \r\n{\"t\":2}\r\n", &[]),
            (b"{\"t\":1}\n{\"t\":\"ha\n{\"t\":2}\n", &[(2, 8, BadLine)]),
            (b"{\"t\":1}\n{\"x\":2}\n", &[(2, 8, BadRecord)]),
            (b"{\"t\":1}\n{\"t\":{\"t\":2}\n", &[(2, 8, GluedCut)]),
            (b"{\"t\":\"cut in a st{\"t\":2}\n", &[(1, 0, GluedCut)]),
            (b"{\"t\":1}{\"t\":2}\n", &[(1, 0, MissingNewline)]),
            (b"{\"t\":1}{\"t\":2}{\"t\":3}\n", &[(1, 0, MissingNewline)]),
            (b"{\"t\":{\"x\":{\"y\":1}\n", &[(1, 0, BadLine)]),
            (b"{\"t\":1}\n\0\0\0\n{\"t\":2}\n", &[(2, 8, NulRun)]),
            (b"{\"t\":\"\xff\"}\n", &[(1, 0, InvalidUtf8)]),
            (b"\xEF\xBB\xBF{\"t\":1}\n", &[(1, 0, Bom)]),
            (b"[{\"t\":1},{\"t\":2}]\n", &[(1, 0, ArrayForm)]),
            (b"{\"t\":\"a\nb\n1\nc\"}\n{\"t\":2}\n", &[(1, 0, SplitRecord)]),
            (b"{\"t\":\"a\nb\n{\"t\":2}\n", &[(1, 0, BadLine), (2, 8, BadLine)]),
            (b"{\"t\":1}\n{\"t\":\"half", &[(2, 8, TornTail)]),
            (b"{\"t\":1}\n\0\0\0", &[(2, 8, NulTail)]),
            (b"{\"t\":1}\n{\"t\":2}", &[(2, 8, NoFinalNewline)]),
        ];
        for (content, expected) in cases {
            assert_eq!(damages(content), *expected, "{}", String::from_utf8_lossy(content));
        }
    }

    #[test]
    fn a_split_record_names_its_range_and_what_the_agent_does() {
        let format = Format { is_record, agent: |_| "the agent skips it" };
        let mut inspector = Inspector::new("f", format);
        scan_bytes(b"{\"t\":\"a\nb\nc\"}\n", 1, 0, |line| inspector.no_record(&line, None));
        let found = inspector.finish();
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("lines 1 to 3"), "{}", found[0].message);
        assert!(found[0].message.ends_with("the agent skips it"), "{}", found[0].message);
    }

    #[test]
    fn a_file_of_garbage_is_not_kept_in_memory() {
        let content = b"garbage\n".repeat(5 * KEPT);
        assert_eq!(damages(&content).len(), KEPT);
    }

    #[test]
    fn a_line_is_told_in_time_linear_in_its_length_whatever_stands_in_it() {
        for piece in ["{\"a\":", "{\"a\":{\"t\":1}", "\"}", "\\\"}", "}{\"", "{\"t\":\"\\\\\"}", "}"] {
            for (front, back) in [("{\"t\":\"", "\n"), ("{\"t\":1}", "}\n"), ("", "{\"t\":2}\n")] {
                let line = format!("{front}{}{back}", piece.repeat(2_000_000 / piece.len()));
                let begun = std::time::Instant::now();
                damages(line.as_bytes());
                // Trying 4096 places takes more than half a minute.
                assert!(begun.elapsed().as_secs() < 3, "{:?}: {front}{piece}{back}", begun.elapsed());
            }
        }
        // Sixty-three lines that could each go on with the record.
        let lines = format!("{{\"t\":\"{}\n", "x".repeat(1 << 20)) + &"y\n".repeat(5000);
        let begun = std::time::Instant::now();
        damages(lines.as_bytes());
        assert!(begun.elapsed().as_secs() < 3, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_second_record_is_found_behind_quotes_and_brackets_in_strings() {
        use DamageClass::*;
        for (line, class) in [
            (r#"{"t":"a}{"}{"t":"{\"}"}"#, MissingNewline),
            (r#"{"t":"cut { \" {"t":"}{\\"}"#, GluedCut),
            (r#"{"t":[{"x":1},{"t":[{"y":"}"}]}"#, GluedCut),
            (r#"{"t":1}{"t":"cu{"t":3} "#, MissingNewline),
            (r#"{"t":1}}"#, BadLine),
            (r#"{"t":1}{"x":2}"#, BadLine),
            (r#"x{"t":1}"#, GluedCut),
            (r#""}"#, BadLine),
        ] {
            assert_eq!(damages(format!("{line}\n").as_bytes()), [(1, 0, class)], "{line}");
        }
    }

    #[test]
    fn depth_counts_brackets_outside_of_strings() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(!is_deeper(nested(200).as_bytes(), 200));
        assert!(is_deeper(nested(201).as_bytes(), 200));
        assert!(!is_deeper(format!("\"{}\"", nested(900)).as_bytes(), 200));
        assert!(is_deeper("[".repeat(100_000).as_bytes(), 200), "what is not closed counts too");
    }
}
