//! Calls of tools and their results.

use std::borrow::Cow;

use serde::de::IgnoredAny;

use super::blocks::{Fence, code, fenced, lines, listed, quoted, title};
use super::diff::diff;
use super::heading::duration;
use super::{Output, one_line, visible};
use crate::session::{Action, Asked, Lines, Named, Outcome, Todo, TodoState};

/// A call, in the form that its action has.
pub fn call(name: &str, id: &str, asked: &Asked<'_>, out: &mut impl Output) {
    let subject = if id.is_empty() { Cow::from(name) } else { format!("{name} ({id})").into() };
    title("Tool call", Some(&subject), out);
    let mut besides = Vec::new();
    match &asked.action {
        Action::Command { command, directory } => {
            let fence = Fence::open("console", &[command], out);
            out.put("$ ");
            lines(if command.is_empty() { "\n" } else { command }, out);
            fence.close(out);
            besides.extend(directory.iter().map(|directory| ("directory", &**directory)));
        }
        Action::Edit { path, changes } => diff(path, changes, out),
        Action::Patch { diff } => fenced("diff", diff, out),
        Action::Write { path, content } => {
            paragraph(path, out);
            fenced("", content, out);
            if !content.is_empty() && !content.ends_with('\n') {
                besides.push(("newline at the end", "no"));
            }
        }
        Action::Read { path, lines } => {
            out.put("\n");
            code(path, out);
            out.put(&these(*lines));
            out.put("\n");
        }
        Action::Search { query, place } => {
            out.put("\n");
            code(query, out);
            if let Some(place) = place {
                out.put(" in ");
                code(place, out);
            }
            out.put("\n");
        }
        Action::Fetch { url } => paragraph(url, out),
        Action::Plan { text, steps } => {
            quoted(text, out);
            if !steps.is_empty() {
                out.put("\n");
            }
            steps.iter().for_each(|step| self::step(step, out));
        }
        Action::Agent { description, prompt } => {
            listed(description.iter().map(|description| ("description", &**description)), out);
            quoted(prompt, out);
        }
        Action::Other { arguments } => other(arguments, out),
    }
    listed(besides.into_iter().chain(each(&asked.more)), out);
}

/// A result: how it came out, as far as the store says so, and the whole output.
pub fn result(id: &str, output: &str, outcome: &Outcome<'_>, out: &mut impl Output) {
    title(if outcome.is_error { "Tool error" } else { "Tool result" }, Some(id), out);
    let code = outcome.exit_code.map(|code| format!("exit code {code}"));
    let facts: Vec<String> = code.into_iter().chain(outcome.duration.map(duration)).collect();
    if !facts.is_empty() {
        out.put("\n");
        out.put(&facts.join(" · "));
        out.put("\n");
    }
    listed(each(&outcome.more), out);
    fenced("", output, out);
}

fn each<'n>(named: &'n Named<'_>) -> impl Iterator<Item = (&'n str, &'n str)> {
    named.iter().map(|(name, value)| (&**name, &**value))
}

/// A line that says one thing.
fn paragraph(text: &str, out: &mut impl Output) {
    out.put("\n");
    code(text, out);
    out.put("\n");
}

fn these(lines: Lines) -> String {
    match (lines.from, lines.count) {
        (None, None) => String::new(),
        (None, Some(count)) => format!(", the first {count} lines"),
        (Some(from), None) if from < 0 => format!(", the last {} lines", from.unsigned_abs()),
        (Some(from), None) => format!(", from line {from} on"),
        (Some(from), Some(1)) => format!(", line {from}"),
        (Some(from), Some(count)) if from >= 0 && count > 0 => {
            format!(", lines {from} to {}", from.saturating_add(count - 1))
        }
        (Some(from), Some(count)) => format!(", {count} lines from line {from} on"),
    }
}

/// A step of a plan, to be ticked off.
fn step(step: &Todo<'_>, out: &mut impl Output) {
    out.put(if step.state == TodoState::Done { "- [x] " } else { "- [ ] " });
    // Lines behind the first one stand below it.
    out.put(&visible(step.text.trim_end_matches('\n')).replace('\n', "\n      "));
    let running = (step.state == TodoState::InProgress).then(|| "in progress".to_owned());
    let more = step.more.iter().map(|(name, value)| format!("{}: {}", one_line(name), one_line(value)));
    let notes: Vec<String> = running.into_iter().chain(more).collect();
    if !notes.is_empty() {
        out.put(&format!(" ({})", notes.join("; ")));
    }
    out.put("\n");
}

/// Arguments as they are; a JSON object with more than one field with a line for each.
fn other(arguments: &str, out: &mut impl Output) {
    // To indent a large document costs more than it helps.
    const LARGEST: usize = 64 * 1024;
    let is_object = arguments.trim_start().starts_with('{');
    let is_short = arguments.len() <= LARGEST;
    match is_object && is_short && serde_json::from_str::<IgnoredAny>(arguments).is_ok() {
        true => fenced("json", &indented(arguments), out),
        false => fenced("", arguments, out),
    }
}

/// JSON with a line for each field and element, if there is more than one field; everything as it is spelled.
fn indented(json: &str) -> Cow<'_, str> {
    let mut text = String::new();
    let (mut depth, mut fields) = (0_usize, 1);
    let mut rest = json.trim().char_indices().peekable();
    let json = json.trim();
    let line = |text: &mut String, depth: usize| {
        text.push('\n');
        (0..depth).for_each(|_| text.push_str("  "));
    };
    while let Some((at, c)) = rest.next() {
        match c {
            '"' => {
                let mut escaped = false;
                let closes = |c: char| {
                    let closes = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    closes
                };
                let len = json[at + 1..].find(closes).map_or(0, |len| len + 1);
                text.push_str(&json[at..=at + len]);
                while rest.next_if(|(next, _)| *next <= at + len).is_some() {}
            }
            '{' | '[' => {
                text.push(c);
                let close = if c == '{' { '}' } else { ']' };
                let next = json[at + 1..].trim_start();
                if next.starts_with(close) {
                    text.push(close);
                    while rest.next().is_some_and(|(_, c)| c != close) {}
                } else {
                    depth += 1;
                    line(&mut text, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut text, depth);
                text.push(c);
            }
            ',' => {
                fields += usize::from(depth == 1);
                text.push(c);
                line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => text.push(c),
        }
    }
    if fields > 1 { text.into() } else { json.into() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_and_keeps_its_spelling() {
        for (json, expected) in [
            (r#"{"a":1}"#, "{\"a\":1}"),
            (" {\"a\": [ ] } ", "{\"a\": [ ] }"),
            (
                r#"{"a":12345678901234567890123,"b":{"c":"x,{\"y","d":[]},"é":[1.0,{ }]}"#,
                "{\n  \"a\": 12345678901234567890123,\n  \"b\": {\n    \"c\": \"x,{\\\"y\",\n    \"d\": []\n  },\n  \"é\": [\n    1.0,\n    {}\n  ]\n}",
            ),
            (r#"{"a":"\\","b":"\\\""}"#, "{\n  \"a\": \"\\\\\",\n  \"b\": \"\\\\\\\"\"\n}"),
        ] {
            let indented = indented(json);
            assert_eq!(indented, expected);
            let value = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap();
            assert_eq!(value(&indented), value(json));
        }
    }

    #[test]
    fn lines_of_a_file_are_told_in_words() {
        for (from, count, expected) in [
            (None, None, ""),
            (Some(5), Some(16), ", lines 5 to 20"),
            (Some(5), Some(1), ", line 5"),
            (Some(5), None, ", from line 5 on"),
            (None, Some(9), ", the first 9 lines"),
            (Some(-9), None, ", the last 9 lines"),
            (Some(-9), Some(3), ", 3 lines from line -9 on"),
            (Some(i64::MAX), Some(i64::MAX), ", lines 9223372036854775807 to 9223372036854775807"),
        ] {
            assert_eq!(these(Lines { from, count }), expected);
        }
    }
}
