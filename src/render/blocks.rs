//! The pieces that a section consists of. None of them can be left open by the text that stands in it.

use super::{Output, one_line, visible};

/// A section's heading.
pub fn title(title: &str, subject: Option<&str>, out: &mut impl Output) {
    out.put("\n## ");
    out.put(title);
    if let Some(subject) = subject.filter(|subject| !subject.is_empty()) {
        out.put(": ");
        out.put(&one_line(subject));
    }
    out.put("\n");
}

/// Text between fences that are longer than any run of backticks inside. `language`: what a viewer may colour it as.
pub fn fenced(language: &str, text: &str, out: &mut impl Output) {
    let fence = Fence::open(language, &[text], out);
    lines(text, out);
    fence.close(out);
}

/// An open fence, longer than any run of backticks in what stands behind it.
pub struct Fence(String);

impl Fence {
    /// `texts`: all that will stand behind it.
    pub fn open(language: &str, texts: &[&str], out: &mut impl Output) -> Fence {
        let longest = texts.iter().map(|text| longest_run_of_backticks(text)).max().unwrap_or(0);
        let fence = "`".repeat(longest.max(2) + 1);
        out.put("\n");
        out.put(&fence);
        out.put(language);
        out.put("\n");
        Fence(fence)
    }

    pub fn close(self, out: &mut impl Output) {
        out.put(&self.0);
        out.put("\n");
    }
}

/// Text as it is, with a newline at its end.
pub fn lines(text: &str, out: &mut impl Output) {
    out.put(&visible(text));
    if !text.is_empty() && !text.ends_with('\n') {
        out.put("\n");
    }
}

/// Text as a quotation: `> ` before each line. `grep` finds its words, and what is open in it ends with it.
pub fn quoted(text: &str, out: &mut impl Output) {
    if text.is_empty() {
        return;
    }
    out.put("\n");
    let text = visible(text);
    for line in text.split_inclusive('\n') {
        out.put(if line == "\n" { ">" } else { "> " });
        out.put(line);
    }
    if !text.ends_with('\n') {
        out.put("\n");
    }
}

/// A list of names and values.
pub fn listed<'n>(named: impl IntoIterator<Item = (&'n str, &'n str)>, out: &mut impl Output) {
    let mut in_list = false;
    for (name, value) in named {
        if !std::mem::replace(&mut in_list, true) {
            out.put("\n");
        }
        out.put("- ");
        out.put(&one_line(name));
        if value.contains('\n') {
            out.put(":\n");
            fenced("", value, out);
            in_list = false;
        } else {
            out.put(": ");
            out.put(&one_line(value));
            out.put("\n");
        }
    }
}

/// One line between backticks, whatever stands in it.
pub fn code(text: &str, out: &mut impl Output) {
    let marks = "`".repeat(longest_run_of_backticks(text) + 1);
    // Without these blanks its own backticks would belong to the marks.
    let blank = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    for piece in [&marks, blank, &one_line(text), blank, &marks] {
        out.put(piece);
    }
}

fn longest_run_of_backticks(text: &str) -> usize {
    let (mut longest, mut run, mut next) = (0, 0, None);
    for at in memchr::memchr_iter(b'`', text.as_bytes()) {
        run = if next == Some(at) { run + 1 } else { 1 };
        longest = longest.max(run);
        next = Some(at + 1);
    }
    longest
}
