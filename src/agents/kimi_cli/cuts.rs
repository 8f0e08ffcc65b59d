//! Cuts of this store as steps. Facts: `docs/stores/kimi-cli.md`, "3. Writing".
//!
//! Which bytes stay is decided by the cut points of the history; here is only what to do with the files.
//! The client sorts sessions by the mtime of context.jsonl: a cut that shortens it counts as activity,
//! one that leaves it alone (a turn that is only in the wire) does not.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use memchr::memmem;
use serde::Serialize;

use super::json::{Control, objects, parse_lenient};
use super::layout::{self, CONTEXT, LONGEST_STATE, STATE};
use super::work_dirs::{INDEX, LONGEST_INDEX};
use super::{parse, work_dirs, writer};
use crate::agents::Companion;
use crate::host::processes::Running;
use crate::session::{
    Changes, Content, CutPoint, Damage, DamageClass, EntryEdit, ForkPlan, History, IndexEdit, Kept, Lock,
    NewFiles, Part, Piece, Place, Plan, Postcondition, Refusal, Result, Session, Step, UndoPlan,
};
use crate::transcript::{EntryKind, StoreDir, read_small};

/// The session without turn `n` and everything after it.
pub(super) fn plan_undo(session: &Session, history: &History, n: u32) -> Result<UndoPlan> {
    let point = history.undo_point(n)?;
    let keeps = history.turns_kept(n);
    undoable(session)?;

    let mut steps = Vec::new();
    let mut locks = Vec::new();
    // The wire first: it is the file that the client touches last in a turn.
    for kept in point.kept.iter().rev() {
        steps.push(if kept.file == kept.source {
            Step::KeepPrefix { file: kept.file.clone(), bytes: kept.bytes }
        } else {
            let content = Content::Prefix { file: kept.source.clone(), bytes: kept.bytes };
            Step::Overwrite { file: kept.file.clone(), content }
        });
        locks.push(Lock::Lease { file: kept.file.clone() });
    }
    // A left-over epoch file of a removed epoch would break every later alignment.
    for file in context_files(session, history) {
        if point.kept.iter().all(|kept| kept.file != file) {
            steps.push(Step::MoveAside { file });
        }
    }
    let promise = Postcondition::of(session, history.turn(n)?.file.to_path_buf(), keeps);
    let made = Changes { steps, rows: None };
    Ok(Plan { made, entry: None, locks, based_on: history.files.clone(), promise })
}

/// The new session that keeps the turns up to and including `n`; of `project` where one is given, else of the
/// source's own.
pub(super) fn plan_fork(
    session: &Session,
    history: &History,
    n: u32,
    project: Option<&Path>,
) -> Result<ForkPlan> {
    history.turn(n)?;
    let point = history.cut_before(n + 1)?;
    let keeps = history.turns_kept(n + 1);
    // Only the last group can still be running; an open turn that nobody works on was killed.
    if let Some(first) = history.open_end().first().map(|turn| turn.n)
        && keeps > first
        && writer::writer(session, history, &Running::default()).is_some()
    {
        return Err(Refusal::StillRunning { asked: n, last_finished: first.checked_sub(1) });
    }
    require_project(session)?;

    let above = |path: &Path| path.parent().map_or_else(PathBuf::new, Path::to_owned);
    let mut own = above(&session.key.path);
    if session.subagent.is_some() {
        // Its fork is a session beside its parent.
        own = above(if own.ends_with(layout::SUBAGENTS) { own.parent().unwrap_or(&own) } else { &own });
    }
    let all = own.parent().unwrap_or(Path::new(""));
    let id = uuid::Uuid::new_v4().to_string();
    let dir = match project {
        Some(project) => all.join(work_dirs::folder(&project.to_string_lossy())).join(&id),
        None => own.join(&id),
    };
    // Not beside the sessions: while it is built the client would list it. But a rename stays in one file system,
    // and a work directory's folder may be a link to another one.
    let staging = match is_elsewhere(session, all, dir.parent().unwrap_or(&own))? {
        true => dir.with_file_name(format!(".turnfs-{id}")),
        false => all.join(format!(".turnfs-{id}")),
    };

    let transcript = dir.join(name_in_new(session, &history.turn(n)?.file));
    let mut files = Vec::new();
    for kept in &point.kept {
        let name = name_in_new(session, &kept.file);
        let content = match project {
            // The client writes a system prompt that names the new directory where there is none.
            Some(_) if name == CONTEXT => without_system_prompt(session, kept)?,
            _ => Content::Prefix { file: kept.source.clone(), bytes: kept.bytes },
        };
        files.push((PathBuf::from(name), content));
    }
    files.push((PathBuf::from("state.json"), Content::Bytes(state_of_fork(session)?)));
    if !is_flat(session) {
        files.extend(sidecars(session, point)?);
    }
    let entry = match project {
        Some(project) => {
            let last = last_one(session)?.then(|| id.clone());
            let edit = EntryEdit::Project { path: project.to_owned(), last };
            Some(IndexEdit { index: INDEX.into(), edit })
        }
        None => None,
    };
    Ok(Plan {
        made: NewFiles::Dir { dir: dir.clone(), staging, files },
        entry,
        locks: Vec::new(),
        based_on: history.files.clone(),
        promise: Postcondition { session: dir, id, transcript, turns: keeps },
    })
}

/// Whether a directory of the store lies on another file system than the one above it.
fn is_elsewhere(session: &Session, above: &Path, dir: &Path) -> Result<bool> {
    let Some(store) = StoreDir::open(&session.key.root)? else { return Ok(false) };
    let device = |dir: &Path| Ok::<_, Refusal>(store.stat(dir)?.map(|stamp| stamp.identity().0));
    Ok(device(dir)?.is_some_and(|of| device(above).is_ok_and(|above| above != Some(of))))
}

/// A kept context without its first line where that is the system prompt.
fn without_system_prompt(session: &Session, kept: &Kept) -> Result<Content> {
    let gone = || Refusal::Changed { what: kept.source.display().to_string() };
    let store = StoreDir::open(&session.key.root)?.ok_or_else(gone)?;
    let file = store.file(&kept.source)?.ok_or_else(gone)?;
    let mut line = Vec::new();
    let read = BufReader::new(file).take(kept.bytes).read_until(b'\n', &mut line);
    read.map_err(|error| Refusal::io("cannot read", &store.path().join(&kept.source), error))?;
    let is_prompt =
        parse::context(line.trim_ascii_end()).is_ok_and(|line| line.role.text() == "_system_prompt");
    if !is_prompt {
        return Ok(Content::Prefix { file: kept.source.clone(), bytes: kept.bytes });
    }
    let span = line.len() as u64..kept.bytes;
    Ok(Content::Parts(vec![Part::Piece(Piece { file: kept.source.as_path().into(), span })]))
}

/// Whether the client would go on with this session in its work directory.
fn last_one(session: &Session) -> Result<bool> {
    let Some(store) = StoreDir::open(&session.key.root)? else { return Ok(false) };
    let Some(index) = read_small(&store, Path::new(INDEX), LONGEST_INDEX)? else { return Ok(false) };
    let own = session.key.path.parent().and_then(Path::file_name);
    let is_own = |path: &Path| own.is_some_and(|own| *own == *work_dirs::folder(&path.to_string_lossy()));
    Ok(work_dirs::last_session(&index, is_own)?.as_ref() == Some(&session.id))
}

/// On resume of a session whose work dir is not in kimi.json the client makes a new session with that id
/// and deletes the context that it finds ("0. Surprises").
/// A session without a project is read only.
pub(super) fn require_project(session: &Session) -> Result<()> {
    match &session.place {
        Place::Project(_) => Ok(()),
        Place::Unplaced { reason } => Err(Refusal::CannotCut {
            what: format!(
                "this session cannot be cut or forked ({reason}): kimi-cli would delete its context on resume, as kimi.json does not list its work directory"
            ),
            hint: None,
        }),
    }
}

/// Refuses what no undo of this session may do.
pub(super) fn undoable(session: &Session) -> Result<()> {
    if session.subagent.is_some() {
        return Err(Refusal::cannot_cut(
            "a sub-agent's session cannot be undone by itself",
            "undo its parent's turn, or use `fork`",
        ));
    }
    require_project(session)
}

/// The old form: one context file without a directory.
fn is_flat(session: &Session) -> bool {
    session.key.path.extension().is_some_and(|extension| extension == "jsonl")
        && session.files.first().is_some_and(|file| **file == *session.key.path)
}

/// A kept file's name in the fork's directory; the flat file becomes the context, as the client does it.
fn name_in_new(session: &Session, file: &Path) -> String {
    if is_flat(session) {
        return CONTEXT.to_owned();
    }
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The session's context files, live and rotated.
fn context_files(session: &Session, history: &History) -> BTreeSet<PathBuf> {
    let read = history.files.iter().filter(|view| view.len.is_some()).map(|view| view.file.clone());
    let is_context = |file: &PathBuf| {
        file.parent() == Some(&*session.key.path)
            && file.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
                let number = name.strip_prefix("context_").and_then(|rest| rest.strip_suffix(".jsonl"));
                name == CONTEXT || number.is_some_and(|number| number.parse::<u32>().is_ok())
            })
    };
    read.chain(session.files.iter().cloned()).filter(is_context).collect()
}

/// state.json as the client's own fork writes it, with the additional directories carried over
/// ("3. Writing", step 5).
#[derive(Serialize)]
struct ForkState {
    version: u32,
    approval: Approval,
    additional_dirs: Vec<String>,
    custom_title: String,
    title_generated: bool,
    title_generate_attempts: u32,
    plan_mode: bool,
    plan_session_id: Option<String>,
    plan_slug: Option<String>,
    wire_mtime: Option<f64>,
    archived: bool,
    archived_at: Option<f64>,
    auto_archive_exempt: bool,
    todos: [(); 0],
}

#[derive(Default, Serialize)]
struct Approval {
    yolo: bool,
    afk: bool,
    auto_approve_actions: [(); 0],
}

objects! {
    /// What a fork takes from the source's state.json.
    struct SourceState {
        additional_dirs: Vec<String> = "additional_dirs",
    }
}

fn state_of_fork(session: &Session) -> Result<Vec<u8>> {
    let source = match open(session)? {
        Some(dir) => read_small(&dir, Path::new(STATE), LONGEST_STATE)?,
        None => None,
    };
    // A fork carries the additional directories over. Where the file is broken the client takes its defaults
    // and forgets them; a fork that did so would not be what the user sees in the source.
    let source: SourceState = match source {
        Some(bytes) => {
            let read = parse_lenient(&bytes, Control::Refused, |bytes| serde_json::from_slice(bytes));
            read.map_err(|error| {
                let message = layout::broken_state(&error.to_string());
                let (file, class) = (STATE.to_owned(), DamageClass::Sidecar);
                Refusal::Damaged { damage: Damage::of_whole(file, class, message) }
            })?
        }
        None => SourceState::default(),
    };
    let title = session.title.clone().or_else(|| Some(first_line(session.first_prompt.as_deref()?)));
    let state = ForkState {
        version: 1,
        approval: Approval::default(),
        additional_dirs: source.additional_dirs.unwrap_or_default(),
        custom_title: format!("Fork: {}", title.as_deref().unwrap_or("Untitled")),
        title_generated: true,
        title_generate_attempts: 0,
        plan_mode: false,
        plan_session_id: None,
        plan_slug: None,
        wire_mtime: None,
        archived: false,
        archived_at: None,
        auto_archive_exempt: false,
        todos: [],
    };
    serde_json::to_vec_pretty(&state)
        .map_err(|e| Refusal::Internal { what: format!("writing state.json: {e}") })
}

/// The client shortens an untitled session's first prompt to 50 characters.
fn first_line(prompt: &str) -> String {
    prompt.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(50).collect()
}

/// Sub-agent directories and uploads that the kept part of the wire names ("3. Writing", step 4).
fn sidecars(session: &Session, point: &CutPoint) -> Result<Vec<(PathBuf, Content)>> {
    let Some(wire) = point.kept.iter().find(|kept| kept.file.ends_with("wire.jsonl")) else {
        return Ok(Vec::new());
    };
    let gone = || Refusal::Changed { what: "the session".into() };
    let here = open(session)?.ok_or_else(gone)?;
    let name = wire.source.file_name().unwrap_or_default();
    let file = here.file(Path::new(name))?.ok_or_else(gone)?;
    let named = names_in(file, &here.path().join(name), wire.bytes)?;
    let mut found = Vec::new();
    for id in &named.subagents {
        let below = Path::new("subagents").join(id);
        collect(&here, &session.key.path, &below, &mut found)?;
    }
    // Clients before 1.25 numbered their sub-agents in the order of the calls that started them.
    for number in 1..=named.tasks.len() {
        let file = PathBuf::from(format!("context_sub_{number}.jsonl"));
        if here.stat(&file)?.is_some_and(|stat| stat.kind == EntryKind::File) {
            found.push((file.clone(), Content::Whole { file: session.key.path.join(&file) }));
        }
    }
    let mut sent = Vec::new();
    for name in &named.uploads {
        let file = Path::new("uploads").join(name);
        if here.stat(&file)?.is_some_and(|stat| stat.kind == EntryKind::File) {
            found.push((file.clone(), Content::Whole { file: session.key.path.join(&file) }));
            sent.push(name);
        }
    }
    if !sent.is_empty() {
        let list = serde_json::to_vec(&sent)
            .map_err(|e| Refusal::Internal { what: format!("writing uploads/.sent: {e}") })?;
        found.push((PathBuf::from("uploads/.sent"), Content::Bytes(list)));
    }
    Ok(found)
}

/// The index, and what lies in the session's directory besides its history.
pub(super) fn companions(session: &Session, history_files: &[PathBuf]) -> Result<Vec<Companion>> {
    let Some(store) = StoreDir::open(&session.key.root)? else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    if let Some(here) = open(session)? {
        collect(&here, Path::new(""), Path::new(""), &mut files)?;
    }
    let is_history = |name: &Path| name.to_str().is_some_and(|name| layout::order(name).is_some());
    let others = files.into_iter().map(|(name, _)| name).filter(|name| !is_history(name));
    let others = others.map(|name| session.key.path.join(name)).filter(|file| !history_files.contains(file));
    Companion::of(&store, [PathBuf::from(INDEX)].into_iter().chain(others))
}

/// The session's directory; `None` where the session is a single file.
fn open(session: &Session) -> Result<Option<StoreDir>> {
    if is_flat(session) {
        return Ok(None);
    }
    match StoreDir::open(&session.key.root)? {
        Some(store) => store.dir(&session.key.path),
        None => Ok(None),
    }
}

/// All regular files below `below`.
fn collect(
    here: &StoreDir,
    in_store: &Path,
    below: &Path,
    found: &mut Vec<(PathBuf, Content)>,
) -> Result<()> {
    let opened;
    let dir = if below.as_os_str().is_empty() {
        here
    } else {
        let is_dir = here.stat(below)?.is_some_and(|stat| stat.kind == EntryKind::Dir);
        let Some(dir) = (if is_dir { here.dir(below)? } else { None }) else { return Ok(()) };
        opened = dir;
        &opened
    };
    for entry in dir.entries_behind_links()?.0 {
        let path = below.join(&entry.name);
        match entry.kind {
            EntryKind::File => {
                let file = in_store.join(&path);
                found.push((path, Content::Whole { file }));
            }
            EntryKind::Dir => collect(here, in_store, &path, found)?,
            _ => {}
        }
    }
    Ok(())
}

/// What a wire names.
#[derive(Debug, Default, PartialEq)]
struct Named {
    subagents: BTreeSet<String>,
    /// Calls that started a sub-agent of a client before 1.25.
    tasks: BTreeSet<String>,
    uploads: BTreeSet<String>,
}

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;
/// Longer than any name and what stands before it: a name across two chunks is found in the second.
const OVERLAP: usize = 512;

fn names_in(wire: File, path: &Path, bytes: u64) -> Result<Named> {
    let error = |e| Refusal::io("cannot read", path, e);
    let mut input = wire.take(bytes);
    let mut named = Named::default();
    let mut buffer = Vec::new();
    loop {
        let kept = buffer.len().min(OVERLAP);
        buffer.drain(..buffer.len() - kept);
        let got = (&mut input).take(CHUNK as u64).read_to_end(&mut buffer).map_err(error)?;
        if got == 0 {
            return Ok(named);
        }
        add_names(&buffer, &mut named);
    }
}

fn add_names(bytes: &[u8], named: &mut Named) {
    let is_id = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let ids = |key: &'static str, found: &mut BTreeSet<String>| {
        for at in memmem::find_iter(bytes, key.as_bytes()) {
            // `"agent_id": "a1b2"`, also inside a string (`\"agent_id\":\"a1b2\"`), or `agent_id: a1b2`.
            let rest = &bytes[at + key.len()..];
            let start = rest.iter().take(8).position(is_id).unwrap_or(rest.len());
            let id: Vec<u8> = rest[start..].iter().take_while(|byte| is_id(byte)).copied().collect();
            found.extend(String::from_utf8(id).ok().filter(|id| !id.is_empty()));
        }
    };
    ids("agent_id", &mut named.subagents);
    ids("task_tool_call_id", &mut named.tasks);
    for at in memmem::find_iter(bytes, b"uploads/") {
        let ends =
            |byte: &u8| matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'/') || byte.is_ascii_whitespace();
        let rest = &bytes[at + b"uploads/".len()..];
        let name: Vec<u8> = rest.iter().take_while(|byte| !ends(byte)).copied().collect();
        let plain = |name: &String| !name.is_empty() && name != "." && name != ".." && name != ".sent";
        named.uploads.extend(String::from_utf8(name).ok().filter(plain));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_are_found_in_every_spelling_and_across_chunks() {
        let dir = tempfile::tempdir().unwrap();
        let wire = dir.path().join("wire.jsonl");
        let mut text =
            r#"{"agent_id": "aaf20e08a2"} {\"agent_id\":\"a1\"} agent_id: a2 uploads/v.mp4" uploads/../x"#
                .to_owned();
        text.push_str(&" ".repeat(CHUNK - text.len() - 4));
        text.push_str(r#""agent_id": "a3" "agent_id": "a4""#);
        std::fs::write(&wire, &text).unwrap();
        let bytes = text.len() as u64 - 4;
        let named = names_in(File::open(&wire).unwrap(), &wire, bytes).unwrap();
        let ids: Vec<_> = named.subagents.iter().map(String::as_str).collect();
        assert_eq!(ids, ["a1", "a2", "a3", "aaf20e08a2"], "what is behind the kept bytes is not named");
        assert_eq!(named.uploads.into_iter().collect::<Vec<_>>(), ["v.mp4"]);
    }
}
