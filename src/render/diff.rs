//! Edits as unified diffs.

use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::blocks::Fence;
use super::{Output, one_line, visible};
use crate::session::Replacement;

/// Of a replacement whose changed lines are more than this (old and new together), all old lines and then all new ones are
/// shown: the best diff of very many lines costs the square of their number.
const MOST_LINES: usize = 1000;

/// The replacements in the file `path`. They are shown whole, and where in the file they are is not known: so the
/// hunks have no line numbers, as in the form of `apply_patch`.
pub fn diff(path: &str, changes: &[Replacement<'_>], out: &mut impl Output) {
    let texts = changes.iter().flat_map(|change| [&*change.before, &*change.after]);
    let more =
        changes.iter().flat_map(|change| change.more.iter().flat_map(|(name, value)| [&**name, &**value]));
    let all: Vec<&str> = texts.chain(more).chain([path]).collect();
    let fence = Fence::open("diff", &all, out);
    for mark in ["--- ", "+++ "] {
        out.put(mark);
        out.put(&one_line(path));
        out.put("\n");
    }
    for change in changes {
        out.put("@@ @@");
        for (name, value) in &change.more {
            out.put(&format!(" {}: {}", one_line(name), one_line(value)));
        }
        out.put("\n");
        hunk(&change.before, &change.after, out);
    }
    fence.close(out);
}

/// Both texts, with the lines that they share told once.
fn hunk(before: &str, after: &str, out: &mut impl Output) {
    let old: Vec<&str> = before.split_inclusive('\n').collect();
    let new: Vec<&str> = after.split_inclusive('\n').collect();
    // That a text ends without a newline only matters where the other one ends with one.
    let differ = !old.is_empty() && !new.is_empty() && before.ends_with('\n') != after.ends_with('\n');
    let mut put = |mark: &str, lines: &[&str]| {
        for line in lines {
            out.put(mark);
            out.put(&visible(line));
            if !line.ends_with('\n') {
                out.put(if differ { "\n\\ No newline at end of file\n" } else { "\n" });
            }
        }
    };
    let start = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old[start..], &new[start..]);
    let end = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
    let (old_middle, same_end) = old_rest.split_at(old_rest.len() - end);
    let new_middle = &new_rest[..new_rest.len() - end];
    put(" ", &old[..start]);
    if old_middle.len() + new_middle.len() > MOST_LINES {
        put("-", old_middle);
        put("+", new_middle);
    } else {
        for change in capture_diff_slices(Algorithm::Myers, old_middle, new_middle) {
            if let DiffOp::Equal { .. } = change {
                put(" ", &old_middle[change.old_range()]);
            } else {
                put("-", &old_middle[change.old_range()]);
                put("+", &new_middle[change.new_range()]);
            }
        }
    }
    put(" ", same_end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(before: &str, after: &str) -> String {
        let mut out = String::new();
        hunk(before, after, &mut out);
        out
    }

    #[test]
    fn what_stays_is_told_once() {
        for (before, after, expected) in [
            ("a\nb\nc\n", "a\nx\nc\n", " a\n-b\n+x\n c\n"),
            ("a", "b", "-a\n+b\n"),
            ("", "a\nb\n", "+a\n+b\n"),
            ("a\n", "", "-a\n"),
            ("a\nb", "a\nb", " a\n b\n"),
            ("a", "a\n", "-a\n\\ No newline at end of file\n+a\n"),
            ("1\n2\n3\n4\n", "0\n1\n3\n4\n5\n", "+0\n 1\n-2\n 3\n 4\n+5\n"),
            ("x\n\tz", "x\n\u{1b}z", " x\n-\tz\n+␛z\n"),
        ] {
            assert_eq!(shown(before, after), expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_huge_edit_is_shown_whole_without_the_work_of_a_diff() {
        let numbered =
            |word: &str| (0..200_000).map(|n| format!("{word} {}\n", n * 7919 % 1000)).collect::<String>();
        let (before, after) = (numbered("old"), numbered("new"));
        let start = std::time::Instant::now();
        let text = shown(&before, &after);
        assert!(start.elapsed().as_secs() < 5);
        assert_eq!(text.lines().filter(|line| line.starts_with("-old")).count(), 200_000);
        assert_eq!(text.lines().filter(|line| line.starts_with("+new")).count(), 200_000);
    }
}
