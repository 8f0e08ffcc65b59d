//! The form of the texts that turnfs itself writes: `status`, `meta.json`, the plans, `.turnfs/`. What stands
//! in them is gathered in `status` and `control`.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;

use super::project_state::ProjectState;
use crate::catalog::{Facts, Watching};
use crate::cut::Undone;
use crate::render::{cut_to_width, escaped_json, one_line};
use crate::session::{
    self, Branch, Confidence, CutPoint, Damage, DamageClass, History, Place, Refusal, Session, State,
    TurnStatus, Writer, rfc3339,
};

/// Longest prompt in a plan, in columns of a terminal.
const PROMPT_COLUMNS: usize = 48;

pub(super) const README: &str = "\
# What is here

Each directory of the host under which a coding agent has sessions appears at its own path. In it, each session
is a directory:

    turns/000 001 ...   one file per turn, numbered from 0
    status              what turnfs thinks of the session; the last line is the last command's outcome
    meta.json           id, title, times, tokens, the command that continues it (resume), files
    undo                read: what each cut would do. Write N: remove turn N and everything after it
    redo                read: what would come back. Write `last`: bring it back
    fork                write N: a new session with the turns 0 to N; then read its id here
    undone/N/           what the Nth undo of the session removed (N-undo-<turn>-<time> is a link to it): turns/, status
                        (which undo it was), and fork: write K, a new session of the turns up to K as they were before that undo
    abandoned/K/        turns that were left behind by going back in the agent, where there are any: turns/, status, and
                        fork: write N, a new session of that branch up to its turn N
    salvage/            of a damaged session: the turns before the damage; `turnfs rescue` makes a session of them

At the top of a mount of all projects, too, as links:

    recent/             the 50 sessions with the newest activity, newest first
    by-date/2026/12/03/ the sessions that began on that day
    search/WORDS/       the turns that have these words, newest first: ls search/'flaky test' (\"...\" is a phrase,
                        %2F stands for /; search/ itself lists nothing)

By name, though not listed: prompts/NNN, blobs/NNN/<picture>, records/NNN.jsonl, raw/<file>, context.md; and a session by its full id;
.turnfs/options.json: how this mount was made; .gitignore and .ignore at the top: git keeps out, ripgrep does not.
`latest` leads to the newest session.

    echo 3 > latest/undo        echo last > latest/redo        echo 3 > latest/fork; cat latest/fork

Nothing else here can be written, removed or renamed. `.turnfs/status` tells which sessions are not sound.
";

/// In a work tree, git shall take nothing of a mount into an index, a stash or a commit.
pub(super) const GITIGNORE: &str = "# What turnfs shows does not belong into a repository.\n*\n";

/// ripgrep, fd and their kind go by `.gitignore` in a work tree, too; this counts more there (and only there). Names
/// that begin with a dot stay hidden.
pub(super) const IGNORE: &str =
    "# For ripgrep, fd and the like: search here although .gitignore keeps git out.\n![!.]*\n";

pub(super) fn version() -> String {
    format!("turnfs {}\n", env!("CARGO_PKG_VERSION"))
}

/// What `status` is made of.
pub(super) struct Status<'a> {
    pub session: &'a Session,
    /// The history, or why it cannot be read.
    pub history: Result<&'a History, Refusal>,
    /// What is wrong with files of the session that hold no turns.
    pub problems: Vec<&'a Damage>,
    pub writer: Option<Writer>,
    /// What is wrong with the store's index of sessions: the session's place is the one of the last sound one.
    pub index: Option<&'a Damage>,
    /// The shell command that continues the session.
    pub resume: Option<String>,
    /// What was undone and can still be read.
    pub undone: &'a [Undone],
    /// The outcome of the last command; each further line is a hint.
    pub last: Option<&'a str>,
}

impl Status<'_> {
    pub fn text(&self) -> String {
        let mut lines = Lines::default();
        match &self.history {
            Ok(history) => self.of_history(history, &mut lines),
            Err(refusal) => {
                lines.put("state", State::of_unread(refusal).name());
                lines.put("turns", "refused");
                lines.put("writer", "none");
                lines.put("error", &refusal.to_string());
                if refusal.is_unreadable() {
                    lines.put("hint", DamageClass::Unreadable.remedy());
                }
                refusal.hints().iter().for_each(|hint| lines.put("hint", hint));
            }
        }
        for problem in &self.problems {
            let file = problem.file.rsplit('/').next().unwrap_or(&problem.file);
            lines.put("problem", &format!("{file}: {}: {}", problem.class, problem.message));
        }
        if let Place::Unplaced { reason } = &self.session.place {
            lines.put("unplaced", reason);
        }
        if let Some(damage) = self.index {
            lines.put("index", &damage.to_string());
        }
        if let Some(command) = &self.resume {
            lines.put("resume", command);
        }
        for undone in self.undone {
            lines.put("undone", &undone.sentence());
        }
        // The outcome stays the last line, as scripts expect.
        let mut last = self.last.unwrap_or("none").lines();
        let outcome = last.next().unwrap_or_default();
        last.for_each(|hint| lines.put("hint", hint));
        lines.put("last", outcome);
        lines.0
    }

    fn of_history(&self, history: &History, lines: &mut Lines) {
        lines.put("state", history.state.name());
        match history.readable() {
            Ok(()) => lines.put("turns", &history.turns.len().to_string()),
            Err(_) => lines.put("turns", "refused"),
        }
        match &self.writer {
            Some(writer) => lines.put("writer", &writer.to_string()),
            None => lines.put("writer", "none"),
        }
        if let Some(turn) = history.turns.last().filter(|turn| turn.status == TurnStatus::Running) {
            lines.put("running", &format!("turn {}", turn.n));
        }
        if history.readable().is_ok() {
            lines.put("boundary", worst_boundary(history).name());
        }
        if let Some(damage) = history.shown_damage() {
            lines.put("file", &damage.file);
            if let Some((line, byte)) = damage.place() {
                lines.put("line", &line.to_string());
                lines.put("byte", &byte.to_string());
            }
            lines.put("class", damage.class.name());
            lines.put("message", &damage.message);
            if history.damages.len() > 1 {
                lines.put("damages", &history.damages.len().to_string());
            }
        }
        for note in &history.notes {
            lines.put("note", note);
        }
        let raw = "raw/ has the files as they are";
        match history.state {
            State::Damaged => {
                let remedy =
                    history.shown_damage().map_or("repair that line", |damage| damage.class.remedy());
                lines.put("hint", remedy);
                match history.sound_turns {
                    0 => lines.put("note", "no turn ends before the damage"),
                    turns => lines.put(
                        "hint",
                        &format!(
                            "`turnfs rescue {}` makes a new session of the {} before the damage, which can be read in salvage/",
                            self.session.id,
                            session::turns(turns)
                        ),
                    ),
                }
                lines.put("hint", raw);
            }
            State::Torn => lines.put(
                "note",
                "the end of the file is an append that was cut short or is going on; what is complete is shown",
            ),
            State::Unsupported => lines.put("hint", raw),
            State::NoTranscript => lines.put("note", "the agent knows this session but its transcript is gone"),
            State::Ok | State::Empty | State::Unreadable => {}
        }
    }
}

/// "key: value" lines, one each, whatever the value holds.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn put(&mut self, key: &str, value: &str) {
        // Writing into a String cannot fail.
        let _ = writeln!(self.0, "{key}: {}", one_line(value));
    }
}

fn worst_boundary(history: &History) -> Confidence {
    let boundaries = (0..history.cuts.len() as u32).map(|n| history.boundary(n));
    boundaries.max().unwrap_or(Confidence::Exact)
}

/// `cat undo`: what each cut would do.
/// `refusals`: [`crate::agents::AgentStore::undo_refusals`].
pub(super) fn undo_plan(
    session: &Session,
    history: &History,
    refusals: &session::Result<Vec<session::Result<()>>>,
) -> String {
    let mut text = plan_line("turn", "prompt", "undo would keep", "boundary");
    for turn in &history.turns {
        let refused = match refusals {
            Ok(each) => each.get(turn.n as usize).and_then(|refused| refused.as_ref().err()),
            Err(all) => Some(all),
        };
        let keeps = match (history.undo_point(turn.n), refused) {
            (Err(refusal), _) => format!("refused: {}", refusal.in_one_line()),
            (Ok(_), Some(refusal)) => format!("refused: {}", refusal.in_one_line()),
            (Ok(point), None) => kept(session, history, turn.n, point),
        };
        let prompt = first_line(turn.prompt.as_deref());
        text += &plan_line(&format!("{:03}", turn.n), &prompt, &keeps, history.boundary(turn.n).name());
    }
    text
}

fn kept(session: &Session, history: &History, n: u32, point: &CutPoint) -> String {
    let short = |file: &Path| {
        let own = file.strip_prefix(&*session.key.path).unwrap_or(file);
        let own = if own.as_os_str().is_empty() { file } else { own };
        one_line(&own.to_string_lossy()).into_owned()
    };
    let files = point.kept.iter().map(|kept| {
        let file = short(&kept.file);
        let source = (kept.source != kept.file).then(|| short(&kept.source));
        match source {
            Some(source) if kept.rebuilt => {
                format!("{file} of {} bytes, put together from it and {source}", kept.bytes)
            }
            Some(source) => format!("{file} to byte {} of {source}", kept.bytes),
            None if kept.rebuilt => format!("{file} of {} bytes, put together from it", kept.bytes),
            None => format!("{file} to byte {}", kept.bytes),
        }
    });
    let mut text = files.collect::<Vec<_>>().join(", ");
    let stays = history.turns_kept(n);
    if stays > n {
        text.push_str(&format!("; {}", history.what_stays(n)));
    }
    text
}

/// `cat redo`: the turns that redo would bring back.
pub(super) fn redo_plan(undone: &[Undone]) -> String {
    let mut text = "undo\tturn\tprompt\n".to_owned();
    let Some(latest) = undone.iter().max_by_key(|undo| undo.number) else { return text };
    let mut all: Vec<&Undone> = undone.iter().collect();
    all.sort_by_key(|undo| std::cmp::Reverse(undo.number));
    let told: String = all.iter().map(|undo| format!("{}\n", undo.sentence())).collect();
    text = told + &text;
    for turn in &latest.turns {
        let prompt = first_line(turn.prompt.as_deref());
        let _ = writeln!(text, "{}\t{:03}\t{}", latest.number, turn.n, prompt);
    }
    text
}

/// `undone/<number>/status`.
pub(super) fn undone_status(undone: &Undone) -> String {
    let number = undone.number;
    let mut lines = Lines::default();
    lines.put("undo", &undone.sentence());
    lines.put("redo", &format!("echo {number} > redo (while nothing was done in the session since)"));
    let last = undone.turns.last().map_or(0, |turn| turn.n);
    lines.put(
        "fork",
        &format!("echo {last} > undone/{number}/fork (a new session of it, whatever was done since)"),
    );
    lines.0
}

/// `abandoned/<number>/status`.
pub(super) fn abandoned_status(number: u32, branch: &Branch) -> String {
    let mut lines = Lines::default();
    let last = branch.turns.last().map_or(0, |turn| turn.n);
    let turns = match branch.turns.first() {
        Some(first) if first.n != last => format!("the turns {} to {last}", first.n),
        _ => format!("turn {last}"),
    };
    let begins = match branch.shared {
        0 => "at the session's beginning".to_owned(),
        shared => format!("after turn {}", shared - 1),
    };
    lines.put("abandoned", &format!("{turns}: the session was rewound and goes on {begins} without them"));
    lines.put("fork", &format!("echo {last} > abandoned/{number}/fork (a new session with them)"));
    lines.0
}

/// Columns separated by tabs, prompts padded so that they line up.
fn plan_line(turn: &str, prompt: &str, cut: &str, boundary: &str) -> String {
    let pad = PROMPT_COLUMNS.saturating_sub(prompt.width());
    format!("{turn}\t{prompt}{:pad$}\t{}\t{boundary}\n", "", one_line(cut))
}

/// The first line of a prompt, shortened, safe for a terminal.
fn first_line(prompt: Option<&str>) -> String {
    let line = prompt.unwrap_or_default().lines().map(str::trim).find(|line| !line.is_empty());
    let line = one_line(line.unwrap_or("-"));
    if line.width() <= PROMPT_COLUMNS {
        return line.into_owned();
    }
    format!("{}…", cut_to_width(&line, PROMPT_COLUMNS - 1))
}

/// `meta.json`; the keys and their order are part of the contract.
#[derive(Serialize)]
struct Meta<'a> {
    id: &'a str,
    agent: &'a str,
    title: Option<String>,
    project: Option<String>,
    /// What is at that path now; null where there is no project.
    project_state: Option<&'static str>,
    /// Where the path leads now, of a symlink.
    #[serde(skip_serializing_if = "Option::is_none")]
    project_leads_to: Option<String>,
    created: String,
    updated: String,
    /// Null where the history is refused.
    turns: Option<usize>,
    /// The last one.
    model: Option<&'a str>,
    #[serde(flatten)]
    facts: Facts,
    history_mode: Option<&'a str>,
    forked_from: Option<&'a str>,
    /// Absent where the session was made by its own agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    migrated_from: Option<&'a str>,
    /// Absent where the store knows no archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    archived: Option<bool>,
    /// Relative to the store.
    files: Vec<String>,
}

pub(super) fn meta(
    session: &Session,
    state: Option<&ProjectState>,
    history: Option<&History>,
    facts: Facts,
) -> String {
    let readable = history.filter(|history| history.readable().is_ok());
    let all = session.files.iter().chain(&session.sidecars);
    let meta = Meta {
        id: &session.id,
        agent: session.key.agent.name(),
        title: session::title(session, history),
        project: session.project().map(|path| path.to_string_lossy().into_owned()),
        project_state: state.map(ProjectState::name),
        project_leads_to: match state {
            Some(ProjectState::Symlink(place)) => Some(place.to_string_lossy().into_owned()),
            _ => None,
        },
        created: rfc3339(session.created),
        updated: rfc3339(session.updated),
        turns: readable.map(|history| history.turns.len()),
        model: session.model.as_deref().or_else(|| history?.model.as_deref()),
        facts,
        history_mode: session.history_mode.as_deref(),
        forked_from: session.forked_from.as_deref(),
        migrated_from: session.migrated_from.as_deref(),
        archived: session.archived,
        files: all.map(|file| file.to_string_lossy().into_owned()).collect(),
    };
    // Strings and numbers always serialise.
    serde_json::to_string_pretty(&meta)
        .map(|text| escaped_json(&text).into_owned() + "\n")
        .unwrap_or_default()
}

/// How the changes of a store are noticed.
pub(super) fn watching(watching: &Watching) -> String {
    match watching {
        Watching::Pushed => "pushed (inotify)".into(),
        Watching::Looked => "looked at for each answer".into(),
        Watching::Polled(directories) => {
            let some = directories.iter().take(3).map(|(dir, why)| format!("{}: {why}", dir.display()));
            let some: Vec<String> = some.collect();
            format!("{} directories looked at once a second ({})", directories.len(), some.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_in_a_plan_is_one_safe_short_line() {
        for (prompt, expected) in [
            (Some("fix it"), "fix it".to_owned()),
            (Some("\n\n  fix it  \nand more"), "fix it".to_owned()),
            (Some("a\u{1b}[31mb\tc"), "a␛[31mb␉c".to_owned()),
            (Some(""), "-".to_owned()),
            (None, "-".to_owned()),
            (Some(&"ä".repeat(48)), "ä".repeat(48)),
            (Some(&"ä".repeat(49)), format!("{}…", "ä".repeat(47))),
        ] {
            assert_eq!(first_line(prompt), expected, "{prompt:?}");
        }
    }

    #[test]
    fn a_value_with_newlines_stays_one_line_of_status() {
        let mut lines = Lines::default();
        lines.put("note", "two\nlines\u{1b}");
        assert_eq!(lines.0, "note: two␊lines␛\n");
    }
}
