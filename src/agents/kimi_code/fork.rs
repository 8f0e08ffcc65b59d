//! A fork as new files: the active chain up to the cut without what belongs to removed prompts, a state.json of its own,
//! and what the client's own fork takes besides. Facts: `docs/stores/kimi-code.md`, "4. Fork".

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::chain::Chain;
use super::cuts::{as_seen, directory, put, require_state, require_turns, within};
use super::history::wire_of;
use super::layout::{AGENTS, MAIN, SESSIONS, main_wire};
use super::records;
use super::state::STATE;
use super::wire::{WIRE, What, Wire};
use super::writer;
use crate::agents::json::Object;
use crate::host::processes::Running;
use crate::session::{
    Content, ForkPlan, History, NewFiles, Part, Piece, Plan, Postcondition, Refusal, Result, Session,
    rfc3339, time_of_writing,
};
use crate::transcript::{self, EntryKind, StoreDir};

/// What the client's fork does not take, and what belongs to the wires.
const LEFT: [&str; 5] = [STATE, "logs", "upcoming-goals.json", "notify", AGENTS];
/// What lies beside a wire and goes with it; tasks and cron jobs are run by one session.
const WITH_WIRE: [&str; 1] = ["plan"];
/// Most files that a fork copies besides its wires, and how deep they may lie.
const MOST: usize = 10_000;
const DEEPEST: usize = 8;
/// Longest slug in a workspace's name, characters.
const SLUG: usize = 40;
/// Longest name that a fork gets, characters.
const TITLE: usize = 200;

/// The new session that keeps the turns up to and including `n`; of `project` where one is given, else of the source's
/// own.
pub(super) fn plan_fork(
    session: &Session,
    history: &History,
    n: u32,
    project: Option<&Path>,
) -> Result<ForkPlan> {
    require_turns(history)?;
    history.turn(n)?;
    history.cut_before(n + 1)?;
    if session.subagent.is_some() {
        return Err(Refusal::cannot_cut(
            "a sub-agent's session cannot be forked by itself",
            "fork its parent at the turn that started it",
        ));
    }
    let is_open = history.open_end().first().is_some_and(|turn| turn.n <= n);
    if is_open && writer::writer(session, history, &Running::default()).is_some() {
        return Err(Refusal::StillRunning { asked: n, last_finished: n.checked_sub(1) });
    }
    let state = require_state(session)?;
    let (wire, chain) = as_seen(session, history)?;
    let end = chain.start_of(n as usize + 1);
    let time = time_of_writing()?.as_millisecond();

    let id = format!("session_{}", uuid::Uuid::new_v4());
    let own = directory(session);
    let workspace = match project {
        Some(project) => Path::new(SESSIONS).join(workspace_of(project)),
        None => own.parent().unwrap_or(Path::new(SESSIONS)).to_path_buf(),
    };
    let dir = workspace.join(&id);
    let store = open(session)?;
    // A workspace's folder may be a link to another file system, and a rename stays in one.
    let staging = match store.is_link(&workspace) {
        true => workspace.join(format!(".turnfs-{id}")),
        false => Path::new(SESSIONS).join(format!(".turnfs-{id}")),
    };

    let bound_to = project.map(|_| workspace.file_name().unwrap_or_default().to_string_lossy().into_owned());
    let source = Source { session, wire: &wire, chain: &chain, workspace: bound_to.as_deref() };
    let mut parts = source.parts(end, n as usize + 1)?;
    let mut last = Vec::new();
    put(&mut last, &Forked { r#type: "forked", agent: MAIN, time })?;
    parts.push(Part::Bytes(last));
    let mut files = vec![(main_wire(), Content::Parts(parts))];

    // Of the sub-agents what they had done when the first removed turn began.
    let cut = wire.places.get(end).and_then(|place| place.time).filter(|_| end < chain.end());
    let mut kept = HashSet::from([MAIN.to_owned()]);
    for (agent, file) in wires_of_subagents(&store, &own)? {
        if let Some(content) = source.wire_of_subagent(&store, &own.join(&file), cut)? {
            files.push((file, content));
            kept.insert(agent);
        }
    }
    let others = others(&store, &own)?.into_iter().filter(|file| {
        let mut names = file.iter();
        names.next().is_none_or(|first| first != AGENTS)
            || names.next().and_then(|agent| agent.to_str()).is_some_and(|agent| kept.contains(agent))
    });
    files.extend(others.map(|file| (file.clone(), Content::Whole { file: within(session, &file) })));
    let made = Made { id: &id, dir: &dir, kept: &kept, time, project };
    files.insert(1, (STATE.into(), Content::Bytes(state_of_fork(session, history, n, &state, &made)?)));
    let transcript = dir.join(main_wire());
    Ok(Plan {
        made: NewFiles::Dir { dir: dir.clone(), staging, files },
        entry: None,
        locks: Vec::new(),
        based_on: history.files.clone(),
        promise: Postcondition { session: dir, id, transcript, turns: n + 1 },
    })
}

/// The record that says that a session was forked.
#[derive(Serialize)]
struct Forked {
    r#type: &'static str,
    #[serde(rename = "agentId")]
    agent: &'static str,
    time: i64,
}

fn open(session: &Session) -> Result<StoreDir> {
    let gone = || Refusal::NotFound { what: session.key.root.display().to_string() };
    StoreDir::open(&session.key.root)?.ok_or_else(gone)
}

/// What a fork is made of.
struct Source<'a> {
    session: &'a Session,
    wire: &'a Wire,
    chain: &'a Chain,
    /// The workspace of a copy for another project: records that name one name this one there, for the client refuses a
    /// session whose records name another workspace.
    workspace: Option<&'a str>,
}

impl Source<'_> {
    /// The chain before record `end`, where turn `n` would begin, without what belongs to the prompts from there on.
    fn parts(&self, end: usize, n: usize) -> Result<Vec<Part>> {
        let anchors = (n..self.chain.turns.len()).filter_map(|n| self.chain.anchor_of(self.wire, n)?.0);
        let removed: HashSet<&Arc<str>> = anchors.chain(self.pending()).collect();
        let is_left = |what: &What| match what {
            What::Owned { prompt: id }
            | What::Injection { owner: id }
            | What::Prompt { id: Some(id), .. } => removed.contains(id),
            // They name lines of this file, or states of the project's files.
            What::Undo { .. } | What::FileHistory => true,
            _ => false,
        };
        let rebound = |what: &What| self.workspace.is_some() && matches!(what, What::Workspace);
        let mut parts: Vec<Part> = Vec::new();
        for range in self.chain.between(0, end) {
            let mut from = range.start;
            let marks = self.wire.marks.iter();
            for (at, what) in
                marks.skip_while(|(at, _)| *at < range.start).take_while(|(at, _)| *at < range.end)
            {
                if is_left(what) || rebound(what) {
                    self.add(&mut parts, from..*at)?;
                    from = at + 1;
                }
                if rebound(what) {
                    parts.push(Part::Bytes(self.rebound(*at)?));
                }
            }
            self.add(&mut parts, from..range.end)?;
        }
        Ok(parts)
    }

    /// Prompts whose turn has not begun: their message is not there yet.
    fn pending(&self) -> HashSet<&Arc<str>> {
        let marks = || self.wire.marks.iter().rev();
        let prompts = marks().take_while(|(_, what)| !matches!(what, What::Anchor { .. }));
        let prompts = prompts.filter_map(|(_, what)| match what {
            What::Prompt { id, .. } => id.as_ref(),
            _ => None,
        });
        let begun = |id: &Arc<str>| {
            marks().any(|(_, what)| matches!(what, What::Anchor { id: Some(own), .. } if own == id))
        };
        prompts.filter(|id| !begun(id)).collect()
    }

    fn add(&self, parts: &mut Vec<Part>, range: Range<usize>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let span = self.wire.start_of(range.start)..self.wire.start_of(range.end);
        let is_last = range.end == self.wire.places.len();
        let file = wire_of(self.session);
        match parts.last_mut() {
            Some(Part::Piece(last)) if last.span.end == span.start => last.span.end = span.end,
            _ => parts.push(Part::Piece(Piece { file, span })),
        }
        if is_last && self.wire.unterminated {
            parts.push(Part::Bytes(b"\n".to_vec()));
        }
        Ok(())
    }

    /// The record with the other workspace in it.
    fn rebound(&self, at: usize) -> Result<Vec<u8>> {
        let span = self.wire.start_of(at)..self.wire.start_of(at + 1);
        let file = wire_of(self.session);
        let line = transcript::read_range(&self.session.key.root, &file, span)?;
        rebound(&line, self.workspace.unwrap_or_default())
            .ok_or_else(|| Refusal::Changed { what: file.display().to_string() })
    }

    /// A sub-agent's wire as it was at `cut` (all of it where there is no cut); `None` if it had not begun.
    fn wire_of_subagent(&self, store: &StoreDir, file: &Path, cut: Option<i64>) -> Result<Option<Content>> {
        let Some(opened) = store.file(file)? else { return Ok(None) };
        let path = store.path().join(file);
        let mut end = 0;
        let mut began = false;
        let mut bindings = Vec::new();
        let mut is_over = false;
        transcript::scan(
            &opened,
            &path,
            || (),
            |(), line| {
                let record = records::parse(line.bytes).ok().filter(|_| line.terminated && line.nuls == 0);
                is_over |= match (&record, cut) {
                    (None, _) => !line.is_blank(),
                    (Some(record), Some(cut)) => record.time.is_some_and(|time| time >= cut),
                    (Some(_), None) => false,
                };
                if is_over {
                    return;
                }
                end = line.end;
                if let Some(record) = record {
                    began |= record.time.is_some();
                    if record.kind == "runtime.set_binding" {
                        bindings.push((line.start..line.end, line.bytes.to_vec()));
                    }
                }
            },
        )?;
        if !began {
            return Ok(None);
        }
        let Some(workspace) = self.workspace else {
            return Ok(Some(Content::Prefix { file: file.to_path_buf(), bytes: end }));
        };
        let piece = |span| Part::Piece(Piece { file: file.into(), span });
        let mut parts = Vec::new();
        let mut from = 0;
        for (span, line) in bindings {
            let changed = || Refusal::Changed { what: file.display().to_string() };
            parts.extend((from < span.start).then(|| piece(from..span.start)));
            parts.push(Part::Bytes(rebound(&line, workspace).ok_or_else(changed)?));
            from = span.end;
        }
        parts.extend((from < end).then(|| piece(from..end)));
        Ok(Some(Content::Parts(parts)))
    }
}

/// A record with its workspace replaced, as a line.
fn rebound(line: &[u8], workspace: &str) -> Option<Vec<u8>> {
    let mut record = Object::parse(std::str::from_utf8(line).ok()?.trim()).ok()?;
    record.set("workspaceId", text(workspace));
    let mut line = record.to_json().into_bytes();
    line.push(b'\n');
    Some(line)
}

fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The directory of a project's sessions, as the client names it.
pub(super) fn workspace_of(project: &Path) -> String {
    let path = project.to_string_lossy();
    let name = project.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let is_odd = |letter: char| !matches!(letter, 'a'..='z' | '0'..='9' | '.' | '_' | '-');
    let mut slug = String::new();
    let mut before = None;
    for letter in name.chars() {
        match is_odd(letter) {
            false => slug.push(letter),
            true if before.is_some_and(is_odd) => {}
            true => slug.push('-'),
        }
        before = Some(letter);
    }
    let slug: String = slug.trim_matches('-').chars().take(SLUG).collect();
    let slug = match slug.trim_matches('-') {
        "" | "." | ".." => "workspace",
        slug => slug,
    };
    let hash: String =
        Sha256::digest(path.as_bytes()).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("wd_{slug}_{hash}")
}

/// The wires of a session's sub-agents: name, and place in the session's directory `own` (relative to the root).
pub(super) fn wires_of_subagents(store: &StoreDir, own: &Path) -> Result<Vec<(String, PathBuf)>> {
    let Some(agents) = store.dir(&own.join(AGENTS))? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in agents.entries()?.into_iter().filter(|entry| entry.kind == EntryKind::Dir) {
        let Some(name) = entry.name.to_str().filter(|name| *name != MAIN && !name.starts_with('.')) else {
            continue;
        };
        let file = Path::new(name).join(WIRE);
        if agents.stat(&file)?.is_some_and(|stat| stat.kind == EntryKind::File) {
            found.push((name.to_owned(), Path::new(AGENTS).join(file)));
        }
    }
    Ok(found)
}

/// Everything else in a session's directory `own` that goes with a fork; places in that directory.
///
/// # Errors
/// What prevents listing it; and if there is too much.
pub(super) fn others(store: &StoreDir, own: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let Some(dir) = store.dir(own)? else { return Ok(found) };
    for entry in dir.entries()? {
        if LEFT.iter().all(|left| entry.name != *left) {
            collect(&dir, Path::new(&entry.name), entry.kind, 0, &mut found)?;
        }
    }
    if let Some(agents) = dir.dir(Path::new(AGENTS))? {
        for agent in agents.entries()?.into_iter().filter(|agent| agent.kind == EntryKind::Dir) {
            for name in WITH_WIRE {
                let below = Path::new(AGENTS).join(&agent.name).join(name);
                if let Some(stat) = dir.stat(&below)? {
                    collect(&dir, &below, stat.kind, 0, &mut found)?;
                }
            }
        }
    }
    Ok(found)
}

/// The files at and below `place`; links are left.
fn collect(
    dir: &StoreDir,
    place: &Path,
    kind: EntryKind,
    depth: usize,
    found: &mut Vec<PathBuf>,
) -> Result<()> {
    if found.len() >= MOST || depth > DEEPEST {
        let what = format!("{} holds more files than a fork would copy", dir.path().display());
        return Err(Refusal::CannotCut { what, hint: None });
    }
    match kind {
        EntryKind::File => found.push(place.to_path_buf()),
        EntryKind::Dir => {
            let Some(below) = dir.dir(place)? else { return Ok(()) };
            for entry in below.entries()? {
                collect(dir, &place.join(&entry.name), entry.kind, depth + 1, found)?;
            }
        }
        EntryKind::Symlink | EntryKind::Other => {}
    }
    Ok(())
}

/// A fork as far as its state.json tells it.
struct Made<'a> {
    id: &'a str,
    /// Relative to the root.
    dir: &'a Path,
    /// The agents whose wires it has.
    kept: &'a HashSet<String>,
    /// Milliseconds since 1970.
    time: i64,
    project: Option<&'a Path>,
}

/// The source's state.json with what is the fork's own.
fn state_of_fork(
    session: &Session,
    history: &History,
    n: u32,
    state: &[u8],
    made: &Made<'_>,
) -> Result<Vec<u8>> {
    let changed = || Refusal::Changed { what: STATE.into() };
    let source = std::str::from_utf8(state).map_err(|_| changed())?;
    let mut state = Object::parse(source).map_err(|_| changed())?;
    let title = crate::session::title(session, Some(history)).unwrap_or_else(|| "Untitled".into());
    let title = if made.project.is_some() { title } else { format!("Fork: {title}") };
    let title: String = title.chars().take(TITLE).collect();
    state.set("id", text(made.id));
    if let Some(project) = made.project {
        for key in
            ["cwd", "workDir"].into_iter().filter(|key| *key == "cwd" || source.contains("\"workDir\""))
        {
            state.set(key, text(&project.to_string_lossy()));
        }
    }
    // Some versions write times as text.
    let is_text = |key: &str| state.get(key).is_some_and(|value| value.starts_with('"'));
    let as_text = is_text("createdAt");
    let now = jiff::Timestamp::from_millisecond(made.time).map(rfc3339).map_err(|_| changed())?;
    let now = if as_text { text(&now) } else { made.time.to_string() };
    state.set("createdAt", now.clone());
    state.set("updatedAt", now);
    state.set("archived", "false".into());
    state.set("title", text(&title));
    state.set("titleKind", text("custom"));
    state.set("isCustomTitle", "true".into());
    state.set("forkedFrom", text(&session.id));
    let prompt = history.turn(n)?.prompt.clone().unwrap_or_default();
    state.set("lastPrompt", text(&prompt));
    let agents = agents_of_fork(session, state.get("agents"), made).ok_or_else(changed)?;
    state.set("agents", agents);
    Ok(state.to_json().into_bytes())
}

/// The agents that the fork has, at their new places.
fn agents_of_fork(session: &Session, agents: Option<&str>, made: &Made<'_>) -> Option<String> {
    let source = Object::parse(agents.unwrap_or("{}")).ok()?;
    let mut agents = Object::parse("{}").ok()?;
    for (name, agent) in source.fields().filter(|(name, _)| made.kept.contains(*name)) {
        let mut agent = Object::parse(agent).ok()?;
        let place = session.key.root.join(made.dir).join(AGENTS).join(name);
        agent.set("homedir", text(&place.to_string_lossy()));
        agents.set(name, agent.to_json());
    }
    if agents.get(MAIN).is_none() {
        let place = session.key.root.join(made.dir).join(AGENTS).join(MAIN);
        agents.set(MAIN, format!("{{\"homedir\":{},\"type\":\"main\"}}", text(&place.to_string_lossy())));
    }
    Some(agents.to_json())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_is_called_as_the_client_calls_it() {
        for (project, name) in [
            ("/home/dev/projects/work/kc-c-compact", "wd_kc-c-compact_"),
            ("/tmp/My App (2)", "wd_my-app-2_"),
            ("/tmp/a- b", "wd_a--b_"),
            ("/tmp/\u{1f600}", "wd_workspace_"),
            ("/", "wd_workspace_"),
        ] {
            let made = workspace_of(Path::new(project));
            assert!(made.starts_with(name) && made.len() == name.len() + 12, "{made}");
        }
    }
}
