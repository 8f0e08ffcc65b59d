//! What a session is called.

use super::{History, Session};

/// Longest title, in characters.
const TITLE_CHARS: usize = 200;

/// What a session is called, in one line of at most 200 characters: the name that its user gave it, else the last
/// one that its transcript records (known once that is read), else the title that its agent made, else its first
/// prompt. `None` if it has none of these. It may hold control characters.
///
/// Every list asks here. Only a directory's name goes by the first prompt alone, for that never changes.
pub fn title(session: &Session, history: Option<&History>) -> Option<String> {
    let recorded = history.and_then(|history| history.name.as_deref());
    let first = history.and_then(|history| history.turns.iter().find_map(|turn| turn.prompt.as_deref()));
    let all =
        [session.name.as_deref(), recorded, session.title.as_deref(), session.first_prompt.as_deref(), first];
    all.into_iter().flatten().find_map(headline)
}

/// The first line that is not empty, shortened.
fn headline(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    match line.char_indices().nth(TITLE_CHARS) {
        None => Some(line.to_owned()),
        Some(_) => Some(line.chars().take(TITLE_CHARS - 1).chain(['…']).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_one_line_of_at_most_200_characters() {
        let long = "ä".repeat(201);
        let cut = format!("{}…", "ä".repeat(199));
        let whole = "ä".repeat(200);
        for (text, expected) in [
            ("\n\n  words \nmore", Some("words")),
            ("", None),
            (" \n\t", None),
            (&*whole, Some(&*whole)),
            (&*long, Some(&*cut)),
        ] {
            assert_eq!(headline(text).as_deref(), expected, "{text:?}");
        }
    }
}
