//! What a user may call a session by.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::names::{self, Likeness};
use super::{Catalog, Listed, Listing};
use crate::session::{self, Refusal, Result, Session};

/// Shortest prefix or suffix of an id that stands for it, in characters.
const SHORTEST: usize = 8;
/// How many of several fitting sessions a refusal names.
const NAMED: usize = 5;
/// How many sessions are suggested where none fits.
const SUGGESTED: usize = 3;
/// How many characters of an id may be wrong in a suggestion.
const WRONG: usize = 2;
/// How alike a directory name has to be to be suggested, from 0 to 1.
const ALIKE: f64 = 0.95;

/// A session that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// `None`: unplaced.
    pub project: Option<PathBuf>,
    pub listed: Listed,
    /// The sub-agent's session that was meant, of the session `listed`.
    pub subagent: Option<Arc<Session>>,
}

impl Catalog {
    /// Resolves a SESSION argument that is no path: a full id, a unique beginning or end of one (8+ characters),
    /// a directory name that any mount of this user shows (its date may be that of another time zone), the same
    /// of a sub-agent, or words of a title that only one session has.
    ///
    /// # Errors
    /// [`Refusal::NoSuchSession`] when none fits, [`Refusal::AmbiguousSession`] when more than one does.
    pub fn find(&self, text: &str) -> Result<Found> {
        let listing = self.listing();
        let all: Vec<Found> = listing
            .all()
            .into_iter()
            .map(|(project, listed)| Found {
                project: project.map(Path::to_path_buf),
                listed: listed.clone(),
                subagent: None,
            })
            .collect();
        let alike = |found: &Found| names::likeness(text, &found.listed);
        let surest: [&dyn Fn(&Found) -> bool; 5] = [
            &|found| found.listed.session.id == text,
            &|found| alike(found) == Some(Likeness::Same),
            &|found| alike(found) == Some(Likeness::OtherDay),
            &|found| is_part(text, &found.listed.session.id),
            &|found| alike(found) == Some(Likeness::SameEnd),
        ];
        if let Some(found) = first_that_fits(&all, &surest) {
            return only(text, &found);
        }
        let subagents = self.all_subagents(&all);
        let agent =
            |found: &Found, fits: &dyn Fn(&Session) -> bool| found.subagent.as_deref().is_some_and(fits);
        let of_agents: [&dyn Fn(&Found) -> bool; 2] = [
            &|found| agent(found, &|agent| agent.id == text || agent.subagent.as_deref() == Some(text)),
            &|found| agent(found, &|agent| is_part(text, &agent.id)),
        ];
        let by_title: [&dyn Fn(&Found) -> bool; 1] = [&|found| has_words(text, &found.listed.session)];
        let found = first_that_fits(&subagents, &of_agents).or_else(|| first_that_fits(&all, &by_title));
        match found {
            Some(found) => only(text, &found),
            None => Err(Refusal::NoSuchSession { text: text.to_owned(), near: near(text, &all) }),
        }
    }

    fn all_subagents(&self, all: &[Found]) -> Vec<Found> {
        let mut agents = Vec::new();
        for store in self.stores().iter() {
            let own: Vec<&Found> =
                all.iter().filter(|found| store.holds(&found.listed.session.key)).collect();
            let sessions: Vec<_> = own.iter().map(|found| found.listed.session.clone()).collect();
            let found = store.subagents_of(&sessions);
            agents.extend(found.into_iter().filter_map(|(at, agent)| {
                Some(Found { subagent: Some(Arc::new(agent)), ..(*own.get(at)?).clone() })
            }));
        }
        agents
    }
}

impl Listing {
    /// The sessions whose titles have all words of `text`, also within longer ones, whatever their case; newest activity first.
    pub fn titled(&self, text: &str) -> Vec<(Option<&Path>, &Listed)> {
        let wanted = words(&text.to_lowercase());
        let fits = |listed: &Listed| {
            let title = session::title(&listed.session, None).map(|title| title.to_lowercase());
            title.is_some_and(|title| wanted.iter().all(|word| title.contains(word.as_str())))
        };
        let all = if wanted.is_empty() { Vec::new() } else { self.all() };
        all.into_iter().filter(|(_, listed)| fits(listed)).collect()
    }

    /// Ids and titles of the few newest sessions whose titles nearly have all words of `text`.
    pub fn nearly_titled(&self, text: &str) -> Vec<String> {
        let wanted = words(&text.to_lowercase());
        let nearly = |word: &String, own: &String| {
            own.contains(word.as_str()) || strsim::osa_distance(own, word) <= word.chars().count() / 4
        };
        let fits = |listed: &Listed| {
            let title = session::title(&listed.session, None).map(|title| words(&title.to_lowercase()));
            title.is_some_and(|title| wanted.iter().all(|word| title.iter().any(|own| nearly(word, own))))
        };
        let all = if wanted.is_empty() { Vec::new() } else { self.all() };
        let near = all.into_iter().filter(|(_, listed)| fits(listed)).take(SUGGESTED);
        near.map(|(_, listed)| with_title(&listed.session)).collect()
    }
}

/// Those that fit by the first of these ways by which any does.
fn first_that_fits<'f>(all: &'f [Found], ways: &[&dyn Fn(&Found) -> bool]) -> Option<Vec<&'f Found>> {
    let by = |fits: &&dyn Fn(&Found) -> bool| all.iter().filter(|found| fits(found)).collect::<Vec<_>>();
    ways.iter().map(by).find(|found| !found.is_empty())
}

fn is_part(text: &str, id: &str) -> bool {
    text.chars().count() >= SHORTEST && (id.starts_with(text) || id.ends_with(text))
}

/// The only one.
fn only(text: &str, found: &[&Found]) -> Result<Found> {
    if let [one] = found {
        return Ok((*one).clone());
    }
    let meant = |found: &Found| found.subagent.clone().unwrap_or_else(|| found.listed.session.clone());
    // One id in two places: a store that was copied.
    let same_id = found.iter().all(|one| meant(one).id == meant(found[0]).id);
    let shown = |one: &&&Found| {
        let session = meant(one);
        if same_id { one.listed.name.clone() } else { with_title(&session) }
    };
    let mut which: Vec<String> = found.iter().take(NAMED).map(|one| shown(&one)).collect();
    if found.len() > NAMED {
        which.push("…".into());
    }
    Err(Refusal::AmbiguousSession {
        text: text.to_owned(),
        count: found.len(),
        which: which.join(", "),
        give: if same_id { "a directory name" } else { "more characters of an id" },
    })
}

/// The title as lists show it.
fn title(session: &Session) -> Option<&str> {
    session.title.as_deref().or(session.first_prompt.as_deref())
}

/// The id, and the title where there is one.
fn with_title(session: &Session) -> String {
    match title(session) {
        Some(title) => format!("{} ({})", session.id, short(title)),
        None => session.id.clone(),
    }
}

fn short(title: &str) -> String {
    let line = title.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let short: String = line.chars().take(40).collect();
    if short.len() < line.len() { format!("{short}…") } else { short }
}

/// Whether every word of `text` is one of the session's title, whatever its case. In scripts that put no blanks
/// between words a part of the title will do.
fn has_words(text: &str, session: &Session) -> bool {
    let Some(title) = title(session).map(str::to_lowercase) else { return false };
    let (wanted, own) = (words(&text.to_lowercase()), words(&title));
    let has = |word: &String| own.contains(word) || (!word.is_ascii() && title.contains(word.as_str()));
    !wanted.is_empty() && wanted.iter().all(has)
}

fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

/// What may have been meant, as a question.
fn near(text: &str, all: &[Found]) -> Vec<String> {
    let mut scored: Vec<(usize, String)> = Vec::new();
    let lower = text.to_lowercase();
    let length = text.chars().count();
    for found in all {
        let session = &found.listed.session;
        let id: Vec<char> = session.id.chars().collect();
        let wrong = |part: &[char]| strsim::osa_distance(&lower, &part.iter().collect::<String>());
        let (start, end) = (&id[..length.min(id.len())], &id[id.len().saturating_sub(length)..]);
        let in_id = wrong(start).min(wrong(end));
        let in_title = title(session).is_some_and(|title| {
            let title = title.to_lowercase();
            length >= 3
                && (title.contains(&lower)
                    || title.split_whitespace().any(|word| strsim::osa_distance(word, &lower) <= length / 4))
        });
        let score = if length >= 6 && in_id <= WRONG {
            in_id
        } else if length > SHORTEST && strsim::jaro_winkler(text, &found.listed.name) >= ALIKE {
            WRONG + 1
        } else if in_title {
            WRONG + 2
        } else {
            continue;
        };
        scored.push((score, with_title(session)));
    }
    scored.sort_by_key(|(score, _)| *score);
    scored.truncate(SUGGESTED);
    let shown: Vec<&str> = scored.iter().map(|(_, shown)| shown.as_str()).collect();
    if shown.is_empty() { Vec::new() } else { vec![format!("did you mean {}?", shown.join(" or "))] }
}
