//! What is inside a session's directory: names, listings and attributes.
//!
//! Names that can be told without reading the transcript are; everything that depends on turns comes from
//! the catalog's view, which is true to the disk at that moment.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use jiff::Timestamp;

use super::Fs;
use super::content::{find, raw_files, raw_stat, salvaged, tail, turn, version_of};
use super::kernel_view::{A_SECOND, Attrs};
use super::node::{At, Branch, Control, Node, Part, SessionRef, turn_name, turn_number};
use super::tree::{Entries, absent, link_target};
use crate::catalog::View;
use crate::cut::{self, Undone};
use crate::session::{Refusal, Result, Session, State, Turn};

impl Fs {
    /// The node named `name` in a directory of a session.
    pub(super) fn inside(&self, session: &Arc<SessionRef>, part: &Part, name: &OsStr) -> Result<Node> {
        let Some(text) = name.to_str() else {
            return match part {
                Part::Raw => Ok(Node::Session(session.clone(), Part::RawFile(name.to_owned()))),
                _ => Err(absent(name)),
            };
        };
        let numbered = |make: fn(u32) -> Part| turn_number(text).map(make);
        let found = match part {
            Part::Dir => match text {
                "turns" => Some(Part::Turns),
                "status" => Some(Part::Status),
                "meta.json" => Some(Part::Meta),
                "agents" => Some(Part::Agents),
                "salvage" => Some(Part::Salvage),
                "undone" => Some(Part::Undone),
                "abandoned" => Some(Part::Abandoned),
                "prompts" => Some(Part::Prompts),
                "blobs" => Some(Part::Blobs),
                "records" => Some(Part::Records),
                "raw" => Some(Part::Raw),
                "context.md" => Some(Part::Context),
                _ => controls(session).iter().find(|it| it.name() == text).map(|it| Part::Control(*it)),
            },
            Part::Turns => numbered(Part::Turn),
            Part::Salvage => numbered(Part::SalvageTurn),
            Part::Prompts => numbered(Part::Prompt),
            Part::Blobs => numbered(Part::TurnBlobs),
            Part::TurnBlobs(n) => self.blob_named(session, *n, text)?,
            Part::Records => match text {
                "head.jsonl" => Some(Part::RecordsHead),
                "tail" => Some(Part::RecordsTail),
                _ => text.strip_suffix(".jsonl").and_then(turn_number).map(Part::Record),
            },
            Part::Raw => Some(Part::RawFile(name.to_owned())),
            Part::Undone => match text.split_once('-').and_then(|(number, _)| turn_number(number)) {
                Some(number) => {
                    let label = self.undone(session, number)?.label();
                    (label == text).then(|| Part::UndoneLink(label.into()))
                }
                None => numbered(|number| Part::BranchDir(Branch::Undone(number))),
            },
            Part::Abandoned => numbered(|number| Part::BranchDir(Branch::Abandoned(number))),
            Part::BranchDir(branch) => match text {
                "turns" => Some(Part::BranchTurns(*branch)),
                "status" => Some(Part::BranchStatus(*branch)),
                "fork" => Some(Part::BranchFork(*branch)),
                _ => None,
            },
            Part::BranchTurns(branch) => turn_number(text).map(|n| Part::BranchTurn(*branch, n)),
            Part::Agents => {
                let parent = self.catalog.session(&session.key)?;
                return match self.catalog.subagent(&parent, text)? {
                    Some(agent) => Ok(agent_directory(session, &agent)),
                    None => Err(absent(name)),
                };
            }
            _ => None,
        };
        found.map(|part| Node::Session(session.clone(), part)).ok_or_else(|| absent(name))
    }

    /// What a directory of a session lists.
    pub(super) fn entries_inside(&self, session: &Arc<SessionRef>, part: &Part) -> Result<Entries> {
        let node = |part| Node::Session(session.clone(), part);
        let entry = |name: &str, part| (OsString::from(name), node(part));
        let numbered = |turns: &[Turn], make: fn(u32) -> Part| -> Entries {
            turns.iter().map(|turn| entry(&turn_name(turn.n), make(turn.n))).collect()
        };
        match part {
            Part::Dir => self.entries_of_session(session),
            Part::Turns | Part::Prompts | Part::Blobs => {
                let view = self.view(&session.key)?;
                view.history.readable()?;
                let make = match part {
                    Part::Turns => Part::Turn,
                    Part::Blobs => Part::TurnBlobs,
                    _ => Part::Prompt,
                };
                Ok(numbered(&view.history.turns, make))
            }
            Part::TurnBlobs(n) => {
                let names = self.blob_names(session, *n)?;
                Ok((1..).zip(names).map(|(number, name)| entry(&name, Part::Blob(*n, number))).collect())
            }
            Part::Salvage => {
                let view = self.view(&session.key)?;
                Ok(numbered(salvaged(&view.history)?, Part::SalvageTurn))
            }
            Part::Records => {
                let view = self.view(&session.key)?;
                view.history.readable()?;
                let mut entries = Vec::new();
                if view.history.head_bytes > 0 {
                    entries.push(entry("head.jsonl", Part::RecordsHead));
                }
                entries.extend(
                    view.history
                        .turns
                        .iter()
                        .map(|turn| entry(&format!("{}.jsonl", turn_name(turn.n)), Part::Record(turn.n))),
                );
                if tail(&view.session, &view.history).is_some() {
                    entries.push(entry("tail", Part::RecordsTail));
                }
                Ok(entries)
            }
            Part::Raw => {
                let session = self.catalog.session(&session.key)?;
                let files =
                    raw_files(&session).into_iter().filter(|(name, _)| raw_stat(&session, name).is_ok());
                Ok(files.map(|(name, _)| (name.clone(), node(Part::RawFile(name)))).collect())
            }
            Part::Agents => {
                let parent = self.catalog.session(&session.key)?;
                let agents = self.catalog.subagents(&parent)?;
                let named = agents.iter().filter_map(|agent| {
                    Some((agent.subagent.as_deref()?.into(), agent_directory(session, agent)))
                });
                Ok(named.collect())
            }
            Part::Undone => {
                let undone = cut::undone(&self.state, &session.key)?;
                let both = |undo: &Undone| {
                    let (label, dir) = (undo.label(), Part::BranchDir(Branch::Undone(undo.number)));
                    [
                        entry(&undo.number.to_string(), dir),
                        entry(&label, Part::UndoneLink(label.as_str().into())),
                    ]
                };
                Ok(undone.iter().flat_map(both).collect())
            }
            Part::Abandoned => {
                let count = self.view(&session.key)?.history.branches.len() as u32;
                let branch = |number: u32| Part::BranchDir(Branch::Abandoned(number));
                Ok((1..=count).map(|number| entry(&number.to_string(), branch(number))).collect())
            }
            Part::BranchDir(branch) => {
                self.branch(session, *branch)?;
                Ok(vec![
                    entry("turns", Part::BranchTurns(*branch)),
                    entry("status", Part::BranchStatus(*branch)),
                    entry("fork", Part::BranchFork(*branch)),
                ])
            }
            Part::BranchTurns(branch) => {
                let (turns, _) = self.branch(session, *branch)?;
                let turns = turns.iter();
                Ok(turns.map(|turn| entry(&turn_name(turn.n), Part::BranchTurn(*branch, turn.n))).collect())
            }
            _ => Err(Refusal::Internal { what: format!("{part:?} is listed but no directory") }),
        }
    }

    fn entries_of_session(&self, session: &Arc<SessionRef>) -> Result<Entries> {
        let attrs = self.catalog.session(&session.key)?;
        // What cannot be read is still listed: `status` says why.
        let view = self.view(&session.key).ok();
        let mut parts = vec![("turns", Part::Turns), ("status", Part::Status), ("meta.json", Part::Meta)];
        parts.extend(controls(session).iter().map(|it| (it.name(), Part::Control(*it))));
        if self.catalog.subagent_count(&attrs).is_ok_and(|agents| agents > 0) {
            parts.push(("agents", Part::Agents));
        }
        if let Some(view) = &view {
            if view.history.state == State::Damaged {
                parts.push(("salvage", Part::Salvage));
            } else if !view.history.branches.is_empty() {
                parts.push(("abandoned", Part::Abandoned));
            }
        }
        if !session.is_subagent() && cut::undone(&self.state, &session.key).is_ok_and(|it| !it.is_empty()) {
            parts.push(("undone", Part::Undone));
        }
        if self.options.show_all {
            parts.extend([
                ("prompts", Part::Prompts),
                ("records", Part::Records),
                ("raw", Part::Raw),
                ("context.md", Part::Context),
            ]);
        }
        let node = |part| Node::Session(session.clone(), part);
        Ok(parts.into_iter().map(|(name, part)| (name.into(), node(part))).collect())
    }

    /// Size, time and links of a part of a session.
    pub(super) fn attrs_inside(&self, session: &Arc<SessionRef>, part: &Part) -> Result<Attrs> {
        let updated = || Ok::<Timestamp, Refusal>(self.catalog.session(&session.key)?.updated);
        match part {
            // A session's directory is shown without reading its transcript.
            Part::Dir | Part::Agents => self.facts_of_directory(session, part, updated()?),
            Part::Turns | Part::Prompts | Part::Blobs | Part::Records => {
                // Whatever a session's own time goes by: a new turn changes what is in these.
                let view = self.view(&session.key).ok();
                let last = view.and_then(|view| view.history.turns.last()?.last);
                Ok(Attrs::directory(0, last.max(Some(updated()?)).unwrap_or_default()))
            }
            Part::Raw => Ok(Attrs::directory(0, updated()?)),
            Part::Salvage => {
                let view = self.view(&session.key)?;
                salvaged(&view.history)?;
                Ok(Attrs::directory(0, view.session.updated))
            }
            Part::Turn(n) => self.facts_of_turn(&*self.view(&session.key)?, *n),
            Part::SalvageTurn(n) => {
                let view = self.view(&session.key)?;
                let turn = find(salvaged(&view.history)?, *n)?;
                let attrs = Attrs::file(turn.text_len, turn.last.unwrap_or(view.session.updated));
                Ok(Attrs { version: version_of(&view, part)?, ..attrs })
            }
            Part::Record(n) => {
                let view = self.view(&session.key)?;
                let turn = turn(&view.history, *n)?;
                let attrs = Attrs::file(turn.record_bytes(), turn.last.unwrap_or(view.session.updated));
                Ok(Attrs { version: version_of(&view, part)?, ..attrs })
            }
            Part::RecordsHead => {
                let view = self.view(&session.key)?;
                view.history.readable()?;
                Ok(Attrs::file(view.history.head_bytes, view.session.created))
            }
            Part::RecordsTail => {
                let view = self.view(&session.key)?;
                view.history.readable()?;
                let tail = tail(&view.session, &view.history).ok_or_else(|| absent(OsStr::new("tail")))?;
                Ok(Attrs::file(tail.span.end - tail.span.start, view.session.updated))
            }
            Part::RawFile(name) => {
                let session = self.catalog.session(&session.key)?;
                let found = raw_stat(&session, name)?;
                Ok(Attrs::file(found.len, found.modified()))
            }
            Part::Undone => {
                let undone = cut::undone(&self.state, &session.key)?;
                let latest = undone.iter().map(|undo| undo.at).max();
                let latest = latest.ok_or_else(|| absent(OsStr::new("undone")))?;
                Ok(Attrs::directory(undone.len(), latest))
            }
            Part::UndoneLink(label) => {
                let link = Node::Session(session.clone(), part.clone());
                let number = link_target(&link)?;
                let target_len = number.as_os_str().len() as u64;
                let number =
                    number.to_str().and_then(turn_number).ok_or_else(|| absent(OsStr::new(&**label)))?;
                Ok(Attrs::file(target_len, self.undone(session, number)?.at))
            }
            Part::Abandoned => {
                let view = self.view(&session.key)?;
                match view.history.branches.len() {
                    0 => Err(absent(OsStr::new("abandoned"))),
                    count => Ok(Attrs::directory(count, view.session.updated)),
                }
            }
            Part::BranchDir(branch) => Ok(Attrs::directory(1, self.branch(session, *branch)?.1)),
            Part::BranchTurns(branch) => Ok(Attrs::directory(0, self.branch(session, *branch)?.1)),
            Part::BranchStatus(branch) => {
                let (_, at) = self.branch(session, *branch)?;
                Ok(Attrs::file(self.branch_status(session, *branch)?.len() as u64, at))
            }
            Part::BranchFork(branch) => {
                let (_, at) = self.branch(session, *branch)?;
                Ok(Attrs::file(self.forked_branch(session, *branch).len() as u64, at))
            }
            Part::BranchTurn(Branch::Undone(number), n) => {
                let undone = self.undone(session, *number)?;
                let turn = find(&undone.turns, *n)?;
                Ok(Attrs::file(turn.text_len, turn.last.unwrap_or(undone.at)))
            }
            Part::BranchTurn(Branch::Abandoned(number), n) => {
                let view = self.view(&session.key)?;
                let turn = find(&view.history.abandoned_turns(*number)?.turns, *n)?;
                Ok(Attrs::file(turn.text_len, turn.last.unwrap_or(view.session.updated)))
            }
            Part::Status => Ok(Attrs::file(self.status(session, true)?.len() as u64, updated()?)),
            // Of a session that cannot be shown these are refused when opened; until then they are just there.
            Part::Control(control) => {
                let text = self.control_text(session, *control).unwrap_or_default();
                Ok(Attrs::file(text.len() as u64, updated()?))
            }
            // No size is worth asking the host what is at a project's path.
            Part::Meta => Ok(Attrs::file(self.meta(session, false)?.len() as u64, updated()?)),
            Part::TurnBlobs(n) => {
                let view = self.view(&session.key)?;
                let last = turn(&view.history, *n)?.last;
                Ok(Attrs::directory(0, last.unwrap_or(view.session.updated)))
            }
            Part::Prompt(n) | Part::Blob(n, _) => {
                let (version, len) = self.measure(session, part)?;
                let view = self.view(&session.key)?;
                let last = turn(&view.history, *n)?.last.unwrap_or(view.session.updated);
                Ok(Attrs { version: Some(version), ..Attrs::file(len, last) })
            }
            Part::Context => {
                let (version, len) = self.measure(session, part)?;
                Ok(Attrs { version: Some(version), ..Attrs::file(len, updated()?) })
            }
        }
    }

    pub(super) fn facts_of_turn(&self, view: &View, n: u32) -> Result<Attrs> {
        let turn = turn(&view.history, n)?;
        let attrs = Attrs::file(turn.text_len, turn.last.unwrap_or(view.session.updated));
        // What the heading says of a turn without an end depends on who is at it.
        let lasts = turn.is_open().then_some(A_SECOND);
        Ok(Attrs { version: version_of(view, &Part::Turn(n))?, lasts, ..attrs })
    }

    fn facts_of_directory(&self, session: &SessionRef, part: &Part, updated: Timestamp) -> Result<Attrs> {
        if *part == Part::Dir {
            return Ok(Attrs::uncounted(updated));
        }
        match self.catalog.subagent_count(&*self.catalog.session(&session.key)?)? {
            0 => Err(absent(OsStr::new("agents"))),
            agents => Ok(Attrs::directory(agents, updated)),
        }
    }

    /// The turns of a branch, and when it was left.
    pub(super) fn branch(&self, session: &SessionRef, branch: Branch) -> Result<(Vec<Turn>, Timestamp)> {
        match branch {
            Branch::Undone(number) => self.undone(session, number).map(|undone| (undone.turns, undone.at)),
            Branch::Abandoned(number) => {
                let view = self.view(&session.key)?;
                let turns = view.history.abandoned_turns(number)?.turns.clone();
                let last = turns.iter().filter_map(|turn| turn.last).max();
                Ok((turns, last.unwrap_or(view.session.updated)))
            }
        }
    }

    /// What a branch's `status` says.
    pub(super) fn branch_status(&self, session: &SessionRef, branch: Branch) -> Result<String> {
        match branch {
            Branch::Undone(number) => Ok(super::format::undone_status(&self.undone(session, number)?)),
            Branch::Abandoned(number) => {
                let view = self.view(&session.key)?;
                Ok(super::format::abandoned_status(number, view.history.abandoned_turns(number)?))
            }
        }
    }

    /// The undo with this number, if it can still be read.
    pub(super) fn undone(&self, session: &SessionRef, number: u32) -> Result<Undone> {
        let undone = cut::undone(&self.state, &session.key)?;
        undone
            .into_iter()
            .find(|undo| undo.number == number)
            .ok_or_else(|| Refusal::NotFound { what: format!("undo {number}") })
    }
}

/// The control files of a session; a sub-agent has none.
fn controls(session: &SessionRef) -> &'static [Control] {
    if session.is_subagent() { &[] } else { &Control::ALL }
}

fn agent_directory(parent: &Arc<SessionRef>, agent: &Session) -> Node {
    let at = At::Agents(parent.clone());
    Node::Session(Arc::new(SessionRef { key: agent.key.clone(), at }), Part::Dir)
}
