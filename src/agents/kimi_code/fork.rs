//! A fork as new files: the active chain up to the cut without what belongs to removed prompts, a state.json of its own,
//! and what the client's own fork takes besides. Facts: `docs/stores/kimi-code.md`, "4. Fork".

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::chain::Chain;
use super::cuts::{as_seen, directory, put, require_state, require_turns, within};
use super::history::wire_of;
use super::layout::{AGENTS, MAIN, SESSIONS, main_wire};
use super::records;
use super::state::STATE;
use super::state_of_fork::{Made, state_of_fork};
use super::taken::{others, wires_of_subagents};
use super::wire::{What, Wire};
use super::writer;
use crate::agents::json::Object;
use crate::host::processes::Running;
use crate::session::{
    Content, ForkPlan, History, NewFiles, Part, Piece, Plan, Postcondition, Refusal, Result, Session,
    time_of_writing,
};
use crate::transcript::{self, StoreDir};

/// Longest slug in a workspace's name, characters.
const SLUG: usize = 40;

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
