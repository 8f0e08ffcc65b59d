//! What a prompt asks for, as lists show it: without what an editor put around it.

/// What the user's own words follow. The client looks for it in the same way: the first place, with these
/// letters exactly (its `USER_MESSAGE_BEGIN`).
const REQUEST: &str = "## My request for Codex:";
/// How the parts begin that editors put before it.
const CONTEXTS: [&str; 2] = ["# Context from my IDE setup:", "# Files mentioned by the user:"];

/// The part of a prompt that says what is asked; the whole prompt where that cannot be told.
pub fn request(prompt: &str) -> &str {
    let marked = prompt.find(REQUEST).map(|at| prompt[at + REQUEST.len()..].trim());
    let begins = || CONTEXTS.iter().any(|context| prompt.trim_start().starts_with(context));
    match marked {
        Some(request) if !request.is_empty() => request,
        _ if begins() => behind_sections(prompt).unwrap_or(prompt),
        _ => prompt,
    }
}

/// What follows the sections that an editor wrote: each is a heading with what stands up to the next empty
/// line, or a list.
fn behind_sections(prompt: &str) -> Option<&str> {
    let (mut at, mut inside, mut quotes) = (0, false, false);
    for line in prompt.split_inclusive('\n') {
        let text = line.trim();
        if text.starts_with('#') {
            inside = true;
            // Selected text is anything at all: only the next heading ends it.
            quotes = text.starts_with("## Active selection");
        } else if text.is_empty() {
            inside = quotes;
        } else if !inside && !text.starts_with("- ") && text != REQUEST {
            return Some(prompt[at..].trim());
        }
        at += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_what_the_user_wrote() {
        for (prompt, expected) in [
            ("plain words", "plain words"),
            (
                "# Context from my IDE setup:\n\n## Open tabs:\n- a\n\n## My request for Codex:\nwhy\nso\n",
                "why\nso",
            ),
            ("## My request for Codex: at once", "at once"),
            (
                "# Files mentioned by the user:\n\n## a b.png:\n/tmp/a b.png\n\nfix what is there",
                "fix what is there",
            ),
            (
                "# Context from my IDE setup:\n\n## Active file: a\n\n## Active selection of the file:\nx\n\ny\n\n## Open tabs:\n- a\n- b\n\nwords\n- more",
                "words\n- more",
            ),
            (
                "# Context from my IDE setup:\n\n## Active file: a\n",
                "# Context from my IDE setup:\n\n## Active file: a\n",
            ),
            (
                "# Context from my IDE setup:\n\n## My request for Codex:\n",
                "# Context from my IDE setup:\n\n## My request for Codex:\n",
            ),
            ("# A heading of my own\n\ntext", "# A heading of my own\n\ntext"),
            ("", ""),
        ] {
            assert_eq!(request(prompt), expected, "{prompt:?}");
        }
    }
}
