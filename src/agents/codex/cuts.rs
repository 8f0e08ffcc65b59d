//! Forks and undos as steps.
//!
//! A fork is one file that holds the whole kept history under a new first line; it needs no other file. An
//! undo of a legacy thread makes its file shorter; of a paginated one it adds a file of one line that points
//! back into the history and makes the thread index name that file, as the client's own revert does.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use parking_lot::Mutex;

use super::database::Database;
use super::discover::{Memory, is_same};
use super::layout::{ARCHIVED, NAMES, Rollout, SESSIONS, STATE_DB, coordination_lock, thread_lock};
use super::lineage::Lineage;
use super::records::{HistoryBase, Line, Mode};
use super::{archive, first_format, heads, todays_form, writer};
use crate::agents::Companion;
use crate::agents::json::Object;
use crate::host::processes::Running;
use crate::session::{
    Changes, Content, CutAt, CutPoint, FileView, ForkPlan, History, Lock, NewFiles, Part, Piece, Plan,
    Postcondition, Refusal, Result, Row, RowChange, Rows, Session, SqlValue, Step, TurnDetail, UndoPlan,
    rfc3339, time_of_writing,
};
use crate::transcript::{self, StoreDir};

/// The source of a thread that a user started.
const USERS: &str = "cli";
/// What the first line, and the row, of a sub-agent's thread have and a user's have not.
const OF_SUBAGENTS: [&str; 5] =
    ["parent_thread_id", "thread_source", "agent_nickname", "agent_role", "agent_path"];
/// Longest first line, bytes.
const LONGEST_FIRST: u64 = 64 << 20;

/// The new thread that keeps the turns up to and including `n`; of `project` where one is given, else of the
/// source's own.
///
/// # Errors
/// Why that fork is refused.
pub fn plan_fork(session: &Session, history: &History, n: u32, project: Option<&Path>) -> Result<ForkPlan> {
    let turn = history.turn(n)?;
    let last = n as usize + 1 == history.turns.len();
    if last
        && turn.detail == Some(TurnDetail::Open)
        && writer::writer(&session.key.root, &session.id, &Running::default()).is_some()
    {
        return Err(Refusal::StillRunning { asked: n, last_finished: n.checked_sub(1) });
    }
    let point = history.cut_before(n + 1)?;
    let store = open(session)?;
    let now = time_of_writing()?;
    let id = uuid::Uuid::now_v7().to_string();
    let file = place(now, &id);
    let made = |parts, row: Option<RowChange>| Plan {
        made: NewFiles::Beside {
            files: vec![(file.clone(), Content::Parts(parts))],
            rows: row.map(in_index),
        },
        entry: None,
        locks: Vec::new(),
        based_on: history.files.clone(),
        promise: Postcondition {
            session: file.clone(),
            id: id.clone(),
            transcript: file.clone(),
            turns: n + 1,
        },
    };
    if mode(&store, current(session)?)? == Mode::First {
        let content = todays_form::fork(session, history, point, &id, project, now)?;
        // No client knows the source, so no row is there to copy; it makes one when it finds the file.
        return Ok(made(vec![Part::Bytes(content)], None));
    }
    let first = first_line(&store, current(session)?)?;
    let (mut line, mut payload) = with_payload(&first).ok_or_else(|| changed(session))?;
    let time = text(&rfc3339(now));
    payload.set("id", text(&id));
    payload.set("session_id", text(&id));
    payload.set("forked_from_id", text(&session.id));
    payload.set("timestamp", time.clone());
    payload.remove("history_base");
    payload.remove("forked_from_ordinal_exclusive");
    if session.subagent.is_some() {
        // A user's thread from now on: the client lists no others, and goes on with a sub-agent in its parent.
        payload.set("source", text(USERS));
        for field in OF_SUBAGENTS {
            payload.remove(field);
        }
    }
    line.set("timestamp", time);
    if let Some(project) = project {
        payload.set("cwd", text(&project.to_string_lossy()));
        if let Some(roots) = payload.get("runtime_workspace_roots") {
            let roots = moved(roots, session.project(), project).ok_or_else(|| changed(session))?;
            payload.set("runtime_workspace_roots", roots);
        }
    }
    if line.get("ordinal").is_some() {
        line.set("ordinal", "0".into());
    }
    line.set("payload", payload.to_json());
    let mut parts = vec![Part::Bytes(format!("{}\n", line.to_json()).into_bytes())];
    for kept in &point.kept {
        let own = first_line(&store, &kept.source)?.len() as u64 + 1;
        let spans = match &history.left_out {
            Some(left_out) if *left_out.file == *kept.source => {
                [own..left_out.span.start.min(kept.bytes), left_out.span.end.max(own)..kept.bytes]
            }
            _ => [own..kept.bytes, 0..0],
        };
        let pieces = spans.into_iter().filter(|span| !span.is_empty());
        parts.extend(pieces.map(|span| Part::Piece(Piece { file: kept.source.as_path().into(), span })));
    }
    if let Some(project) = project
        && let Some(context) = LastContext::find(session, history, n)?
    {
        parts = context.moved_to(project, parts).ok_or_else(|| changed(session))?;
    }
    // Without a usable index the client finds the file by its name and makes the row itself.
    let mut row_made = None;
    if let Ok(Some(row)) = Database::of(&store).and_then(|db| db.whole_row(&session.id)) {
        let mut row = forked_row(row, session, history, &id, &file, now);
        if let Some(project) = project {
            row.set("cwd", SqlValue::Text(project.to_string_lossy().into_owned()));
        }
        row_made = Some(row_change(&id, None, row));
    }
    Ok(made(parts, row_made))
}

/// The thread index, the names, and the files of other threads that these go on from.
///
/// # Errors
/// What prevents reading them.
pub fn companions(session: &Session, history_files: &[PathBuf]) -> Result<Vec<Companion>> {
    let store = open(session)?;
    let mut found = Database::of(&store)?.companions()?;
    let mut files = vec![PathBuf::from(NAMES)];
    for rollout in history_files.iter().filter_map(|file| Rollout::named(file)) {
        for segment in Lineage::of(&store, rollout)?.segments {
            let file = segment.rollout.file.to_path_buf();
            if !history_files.contains(&file) && !files.contains(&file) {
                files.push(file);
            }
        }
    }
    found.extend(Companion::of(&store, files)?);
    Ok(found)
}

/// Which undos are refused although the history has their cut points.
///
/// # Errors
/// What refuses every undo of this thread.
pub fn undo_refusals(
    memory: &Mutex<Memory>,
    session: &Session,
    history: &History,
) -> Result<Vec<Result<()>>> {
    not_a_subagent(session)?;
    let current = current(session)?;
    let index = memory.lock().index(&open(session)?)?;
    archive::refuse(session, index.rows.get(&session.id), current)?;
    if transcript::is_packed(current) {
        let hint = "resume it in Codex once, or use `fork`";
        return Err(Refusal::cannot_cut("this thread's file is compressed", hint));
    }
    if session.history_mode.as_deref() == Some(Mode::First.name()) {
        return Err(Refusal::cannot_cut(first_format::NOT_RESUMED, first_format::USE_FORK));
    }
    // A revert takes nothing from anybody; a legacy thread loses what stands behind the cut.
    if session.history_mode.as_deref() != Some(Mode::Legacy.name()) {
        return Ok(vec![Ok(()); history.turns.len()]);
    }
    let store = open(session)?;
    let continuing = memory.lock().continuing(&store);
    let refused = |cut: &Result<CutPoint>| {
        let Ok(CutPoint { at: Some(at), .. }) = cut else { return Ok(()) };
        if at.file != *current {
            let what = "this legacy thread continues another file, which Codex itself never does";
            return Err(Refusal::CannotCut { what: what.into(), hint: None });
        }
        let needs = |base: &HistoryBase| base.thread_id == at.id && base.end_byte_offset > at.byte;
        match continuing.iter().find(|(_, base)| needs(base)) {
            Some((thread, _)) => {
                let (file, by) = (current.display().to_string(), format!("the thread {thread}"));
                Err(Refusal::Needed { file, by })
            }
            None => Ok(()),
        }
    };
    Ok(history.cuts.iter().take(history.turns.len()).map(refused).collect())
}

/// The thread without turn `n` and everything after it.
///
/// # Errors
/// Why that cut is refused.
pub fn plan_undo(memory: &Mutex<Memory>, session: &Session, history: &History, n: u32) -> Result<UndoPlan> {
    history.undo_point(n)?;
    if let Some(refused) = undo_refusals(memory, session, history)?.into_iter().nth(n as usize) {
        refused?;
    }
    let current = current(session)?;
    let CutPoint { at: Some(at), .. } = history.cut_before(n)? else { return Err(changed(session)) };
    let store = open(session)?;
    let mut locks = vec![Lock::Gated { gate: coordination_lock(), file: thread_lock(&session.id) }];
    let made = match mode(&store, current)? {
        Mode::Legacy => {
            locks.push(Lock::Lease { file: current.to_owned() });
            let kept = Step::KeepPrefix { file: current.to_owned(), bytes: at.byte };
            Changes { steps: vec![kept], rows: None }
        }
        Mode::Paginated => revert(&store, session, current, at, n == 0)?,
        Mode::First => return Err(Refusal::cannot_cut(first_format::NOT_RESUMED, first_format::USE_FORK)),
        Mode::Unknown(mode) => {
            return Err(Refusal::Unsupported { what: format!("the history mode {mode:?} of Codex") });
        }
    };
    // Files of other threads may grow behind what this one uses of them.
    let own = |view: &&FileView| session.files.contains(&view.file);
    Ok(Plan {
        made,
        entry: None,
        locks,
        based_on: history.files.iter().filter(own).cloned().collect(),
        promise: Postcondition::of(session, PathBuf::new(), n),
    })
}

/// A new file of the same thread whose history is the one up to `at`, and the index naming it.
fn revert(store: &StoreDir, session: &Session, current: &Path, at: &CutAt, all: bool) -> Result<Changes> {
    let now = time_of_writing()?;
    let name = format!("{}_{}", session.id, uuid::Uuid::now_v7());
    let file = place(now, &name);
    let first = first_line(store, current)?;
    let (mut line, mut payload) = with_payload(&first).ok_or_else(|| changed(session))?;
    let end = match (all, at.ordinal) {
        (true, _) => 0,
        (false, Some(ordinal)) => ordinal,
        (false, None) => return Err(changed(session)),
    };
    let time = text(&rfc3339(now));
    payload.set("timestamp", time.clone());
    if all {
        payload.remove("history_base");
    } else {
        let base = serde_json::json!({
            "thread_id": at.id, "end_ordinal_exclusive": end, "end_byte_offset": at.byte,
        });
        payload.set("history_base", base.to_string());
    }
    let inherited = payload.get("forked_from_ordinal_exclusive").and_then(|text| text.parse::<u64>().ok());
    if inherited.is_some_and(|inherited| inherited > end) {
        payload.set("forked_from_ordinal_exclusive", end.to_string());
    }
    line.set("timestamp", time);
    line.set("ordinal", end.to_string());
    line.set("payload", payload.to_json());
    let content = Content::Bytes(format!("{}\n", line.to_json()).into_bytes());
    let mut row = None;
    if let Some(before) = Database::of(store)?.whole_row(&session.id)? {
        // The client reverted meanwhile: another file is the current one.
        let named = match before.get("rollout_path") {
            Some(SqlValue::Text(path)) => is_same(Path::new(path), current),
            _ => false,
        };
        if !named {
            return Err(changed(session));
        }
        let mut after = before.clone();
        after.set("rollout_path", SqlValue::Text(absolute(&before, session, &file)));
        after.set("updated_at", SqlValue::Integer(now.as_second()));
        after.set("updated_at_ms", SqlValue::Integer(now.as_millisecond()));
        row = Some(row_change(&session.id, Some(before), after));
    }
    Ok(Changes { steps: vec![Step::Replace { file, content }], rows: row.map(in_index) })
}

fn in_index(change: RowChange) -> Rows {
    Rows { db: STATE_DB.into(), changes: vec![change] }
}

fn row_change(id: &str, before: Option<Row>, after: Row) -> RowChange {
    RowChange { table: "threads".into(), key: ("id".into(), id.to_owned()), before, after: Some(after) }
}

/// The row of a fork: the source's, as that of a new thread that nobody named, pinned or archived.
fn forked_row(
    mut row: Row,
    session: &Session,
    history: &History,
    id: &str,
    file: &Path,
    now: Timestamp,
) -> Row {
    let path = absolute(&row, session, file);
    row.set("id", SqlValue::Text(id.to_owned()));
    row.set("rollout_path", SqlValue::Text(path));
    for column in ["created_at", "updated_at", "recency_at"] {
        row.set(column, SqlValue::Integer(now.as_second()));
        row.set(&format!("{column}_ms"), SqlValue::Integer(now.as_millisecond()));
    }
    for column in ["archived", "is_pinned"] {
        row.set(column, SqlValue::Integer(0));
    }
    for column in [
        "name",
        "archived_at",
        "thread_section_id",
        "section_position",
        "section_entered_at_ms",
        "attached_thread_parent_id",
    ] {
        row.set(column, SqlValue::Null);
    }
    if session.subagent.is_some() {
        row.set("source", SqlValue::Text(USERS.to_owned()));
        for column in OF_SUBAGENTS {
            row.set(column, SqlValue::Null);
        }
    }
    // The client hides threads without a preview; its own forks have none before their first turn.
    let prompt = session
        .first_prompt
        .as_deref()
        .or_else(|| history.turns.iter().find_map(|turn| turn.prompt.as_deref()));
    for column in ["title", "preview", "first_user_message"] {
        if let (Some(SqlValue::Text(empty)), Some(prompt)) = (row.get(column), prompt)
            && empty.is_empty()
        {
            row.set(column, SqlValue::Text(prompt.to_owned()));
        }
    }
    row
}

/// The last `turn_context` line. Its directory decides, more than the first line's, whether the client takes
/// the thread for one of the directory that it is started in.
struct LastContext {
    piece: Piece,
    line: Vec<u8>,
}

impl LastContext {
    fn find(session: &Session, history: &History, n: u32) -> Result<Option<LastContext>> {
        for turn in history.turns.iter().take(n as usize + 1).rev() {
            let ranges: Vec<_> = turn.ranges().collect();
            for (file, span) in ranges.into_iter().rev() {
                let bytes = transcript::read_range(&session.key.root, file, span.clone())?;
                let mut found = None;
                let mut at = 0;
                for line in bytes.split_inclusive(|byte| *byte == b'\n') {
                    if Line::parse(line).is_some_and(|line| line.kind == "turn_context") {
                        found = Some(at..at + line.len());
                    }
                    at += line.len();
                }
                if let Some(within) = found {
                    let place = span.start + within.start as u64..span.start + within.end as u64;
                    let piece = Piece { file: file.into(), span: place };
                    return Ok(Some(LastContext { piece, line: bytes[within].to_vec() }));
                }
            }
        }
        Ok(None)
    }

    /// The parts with the new directory in this line.
    fn moved_to(&self, project: &Path, parts: Vec<Part>) -> Option<Vec<Part>> {
        let (mut line, mut payload) = with_payload(&self.line)?;
        payload.set("cwd", text(&project.to_string_lossy()));
        line.set("payload", payload.to_json());
        let new = format!("{}\n", line.to_json()).into_bytes();
        let own = &self.piece.span;
        let mut moved = Vec::with_capacity(parts.len() + 2);
        for part in parts {
            match part {
                Part::Piece(Piece { file, span })
                    if file == self.piece.file && span.start <= own.start && own.end <= span.end =>
                {
                    moved.push(Part::Piece(Piece { file: file.clone(), span: span.start..own.start }));
                    moved.push(Part::Bytes(new.clone()));
                    moved.push(Part::Piece(Piece { file, span: own.end..span.end }));
                }
                other => moved.push(other),
            }
        }
        Some(moved)
    }
}

/// A list of directories in JSON, with those of the old project moved to the new one.
fn moved(roots: &str, old: Option<&Path>, new: &Path) -> Option<String> {
    let roots: Vec<PathBuf> = serde_json::from_str(roots).ok()?;
    let moved = roots.into_iter().map(|root| match old.and_then(|old| root.strip_prefix(old).ok()) {
        Some(below) if below.as_os_str().is_empty() => new.to_owned(),
        Some(below) => new.join(below),
        None => root,
    });
    serde_json::to_string(&moved.collect::<Vec<_>>()).ok()
}

/// A file's path as the index spells the store's place.
fn absolute(row: &Row, session: &Session, file: &Path) -> String {
    let root = &*session.key.root;
    let spelled = match row.get("rollout_path") {
        Some(SqlValue::Text(path)) => {
            let base = Path::new(path)
                .ancestors()
                .find(|dir| dir.file_name().is_some_and(|name| name == SESSIONS || name == ARCHIVED));
            base.and_then(Path::parent).map(Path::to_owned)
        }
        _ => None,
    };
    // Another spelling of the same place counts, another place does not.
    let same = |spelled: &PathBuf| *spelled == root || root.canonicalize().is_ok_and(|real| real == *spelled);
    let base = spelled.filter(same).unwrap_or_else(|| root.to_owned());
    base.join(file).to_string_lossy().into_owned()
}

/// Where the client puts a file that it makes now.
fn place(now: Timestamp, ids: &str) -> PathBuf {
    let now = now.to_zoned_datetime(TimeZone::system());
    let folder = Path::new(SESSIONS).join(now.strftime("%Y/%m/%d").to_string());
    folder.join(format!("rollout-{}-{ids}.jsonl", now.strftime("%Y-%m-%dT%H-%M-%S")))
}

/// A line and its payload.
fn with_payload(line: &[u8]) -> Option<(Object, Object)> {
    let line = Object::parse(std::str::from_utf8(line).ok()?).ok()?;
    let payload = Object::parse(line.get("payload")?).ok()?;
    Some((line, payload))
}

fn text(value: &str) -> String {
    serde_json::Value::String(value.to_owned()).to_string()
}

fn open(session: &Session) -> Result<StoreDir> {
    StoreDir::open(&session.key.root)?.ok_or_else(|| changed(session))
}

fn changed(session: &Session) -> Refusal {
    Refusal::Changed { what: session.key.absolute().display().to_string() }
}

fn current(session: &Session) -> Result<&Path> {
    let file = session.files.first().ok_or_else(|| changed(session))?;
    Rollout::named(file).map(|_| file.as_path()).ok_or_else(|| changed(session))
}

fn mode(store: &StoreDir, file: &Path) -> Result<Mode> {
    let meta = heads::read(store, file)?.meta;
    meta.map(|meta| meta.mode()).map_err(|_| Refusal::Changed { what: file.display().to_string() })
}

fn not_a_subagent(session: &Session) -> Result<()> {
    match session.subagent {
        None => Ok(()),
        Some(_) => Err(Refusal::cannot_cut(
            "a sub-agent's session is only cut together with its parent's",
            "`fork` makes a session of its own of it",
        )),
    }
}

/// The first line of a file, without its newline.
fn first_line(store: &StoreDir, file: &Path) -> Result<Vec<u8>> {
    use std::io::{BufRead, BufReader, Read};
    let path = store.path().join(file);
    let gone = || Refusal::Changed { what: file.display().to_string() };
    let opened = store.file(file)?.ok_or_else(gone)?;
    let read = || -> std::io::Result<Vec<u8>> {
        let mut line = Vec::new();
        let stream = transcript::plain_stream(opened, file)?.take(LONGEST_FIRST);
        BufReader::new(stream).read_until(b'\n', &mut line)?;
        Ok(line)
    };
    let mut line = read().map_err(|error| Refusal::io("cannot read", &path, error))?;
    if line.pop() != Some(b'\n') {
        return Err(gone());
    }
    Ok(line)
}
