//! Control files: the grammar of a command, and what one open control file does.
//!
//! Everything happens inside one `write`: shells drop the errors of `flush` and `close`, so whatever can go
//! wrong has to be the answer to the write, and what refuses every command already refuses the open.

use std::sync::Arc;

use parking_lot::Mutex;

use super::node::{Branch, Control, SessionRef};
use super::{Fs, format};
use crate::catalog::{Changed, View};
use crate::cut;
use crate::render::one_line;
use crate::session::{Refusal, Result, turns};

/// Longest command, bytes.
const LONGEST: usize = 4096;

/// A command as written into a control file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    pub target: Target,
    /// Also while an agent has the session.
    pub force: bool,
}

/// What a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A turn, or for `redo` an undo, by its number.
    Number(u32),
    Last,
}

impl Command {
    /// The command in the bytes of one write; `None` if they are blank.
    ///
    /// # Errors
    /// [`Refusal::NotACommand`].
    pub fn parse(control: Control, bytes: &[u8]) -> Result<Option<Command>> {
        let refuse = |what: &str| Err(Refusal::NotACommand { what: what.to_owned() });
        if bytes.len() > LONGEST {
            return refuse("more than 4096 bytes");
        }
        let Ok(text) = std::str::from_utf8(bytes) else { return refuse("bytes that are not UTF-8 text") };
        let blank = [' ', '\t'];
        let mut lines = text.split('\n').map(|line| line.trim_matches(blank)).filter(|line| !line.is_empty());
        let Some(line) = lines.next() else { return Ok(None) };
        if lines.next().is_some() {
            return refuse("several lines");
        }
        let words: Vec<&str> = line.split(blank).filter(|word| !word.is_empty()).collect();
        let (force, word) = match words.as_slice() {
            [word] => (false, *word),
            ["force", word] if control != Control::Fork => (true, *word),
            _ => return refuse(&format!("{line:?}")),
        };
        let target = match word {
            "last" => Target::Last,
            // A number too big for any turn is still a number: there is no such turn.
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Target::Number(digits.parse().unwrap_or(u32::MAX))
            }
            _ => return refuse(&format!("{line:?}")),
        };
        Ok(Some(Command { target, force }))
    }
}

/// One open control file.
pub(super) struct ControlHandle {
    session: Arc<SessionRef>,
    control: Control,
    /// For `undone/<number>/fork` and `abandoned/<number>/fork`.
    branch: Option<Branch>,
    writable: bool,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The session as it was when the file was opened: what a command refers to.
    seen: Arc<View>,
    /// A command was written, whether it was right or not.
    used: bool,
    /// The session that a fork on this handle made.
    forked: Option<String>,
    /// What is read; made at the first read.
    text: Option<Vec<u8>>,
    /// Where in the file `text` begins: behind what was written on this handle.
    base: u64,
}

impl ControlHandle {
    fn name(&self) -> String {
        name(self.control, self.branch)
    }

    /// What a write on this handle changed, if it was a command: the store, or at least `status`.
    pub fn changed(&self, fs: &Fs, done: &Result<()>) -> Option<Changed> {
        let key = &self.session.key;
        match (self.inner.lock().used, done) {
            (false, _) => None,
            (true, Ok(())) => Some(fs.catalog.changed_by_us(key)),
            (true, Err(Refusal::Changed { .. })) => {
                // A cut compares every byte: what was believed of the transcript may be wrong.
                fs.catalog.forget(key);
                Some(Changed::of(key.clone()))
            }
            (true, Err(_)) => Some(Changed::of(key.clone())),
        }
    }

    pub fn read<T>(&self, fs: &Fs, offset: u64, size: usize, with: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let mut inner = self.inner.lock();
        if offset < inner.base {
            inner.base = 0; // the reader went back to the start
        }
        let text = match inner.text.take() {
            Some(text) => text,
            None => match &inner.forked {
                Some(id) => format!("{id}\n").into_bytes(),
                None => match self.branch {
                    Some(branch) => fs.forked_branch(&self.session, branch).into_bytes(),
                    None => fs.control_text(&self.session, self.control)?.into_bytes(),
                },
            },
        };
        let answer = with(super::part_of(&text, offset - inner.base, size));
        inner.text = Some(text);
        Ok(answer)
    }

    /// Does what the bytes say, completely, before it returns.
    pub fn write(&self, fs: &Fs, offset: u64, bytes: &[u8]) -> Result<()> {
        if !self.writable {
            return Err(Refusal::NotPermitted);
        }
        let mut inner = self.inner.lock();
        let command = match Command::parse(self.control, bytes) {
            Ok(None) => return Ok(()),
            Ok(Some(_)) | Err(_) if inner.used => {
                Err(Refusal::NotACommand { what: "a second command on the same open file".to_owned() })
            }
            Ok(Some(command)) => Ok(command),
            Err(refusal) => Err(refusal),
        };
        inner.used = true;
        let outcome = command.and_then(|command| match self.branch {
            Some(branch) => fs.fork_branch(&inner.seen, branch, command),
            None => fs.act(self.control, &inner.seen, command),
        });
        let sentence = match &outcome {
            Ok(done) => format!("{}: {}", self.name(), done.sentence),
            Err(refusal) => refused(&self.name(), refusal),
        };
        let outcome_only = sentence.lines().next().unwrap_or_default();
        log::info!("{}: {outcome_only}", self.session.key.absolute().display());
        let forked = outcome.as_ref().ok().and_then(|it| it.forked.clone());
        fs.memory.note(&self.session.key, sentence, self.branch, forked);
        inner.forked = outcome?.forked;
        inner.text = None;
        inner.base = offset + bytes.len() as u64;
        Ok(())
    }
}

/// What a command did.
struct Done {
    sentence: String,
    forked: Option<String>,
}

impl Fs {
    /// Opens a control file.
    pub(super) fn open_control(
        &self,
        session: &Arc<SessionRef>,
        control: Control,
        branch: Option<Branch>,
        writable: bool,
    ) -> Result<ControlHandle> {
        let open = || {
            if writable && self.options.read_only {
                return Err(Refusal::ReadOnlyMount);
            }
            let seen = self.view(&session.key)?;
            match branch {
                // What was removed may be sound where the session is damaged now.
                Some(branch) => drop(self.branch(session, branch)?),
                None => seen.history.readable()?,
            }
            Ok(seen)
        };
        let seen = open().inspect_err(|refusal| {
            if writable {
                let sentence = refused(&name(control, branch), refusal);
                self.memory.note(&session.key, sentence, branch, None);
            }
        })?;
        let inner = Inner { seen, used: false, forked: None, text: None, base: 0 };
        let (session, inner) = (session.clone(), Mutex::new(inner));
        Ok(ControlHandle { session, control, branch, writable, inner })
    }

    /// What reading a control file gives.
    pub(super) fn control_text(&self, session: &SessionRef, control: Control) -> Result<String> {
        let view = self.view(&session.key)?;
        view.history.readable()?;
        Ok(match control {
            Control::Undo => {
                let refusals = view.store.undo_refusals(&view.session, &view.history);
                format::undo_plan(&view.session, &view.history, &refusals)
            }
            Control::Redo => format::redo_plan(&cut::undone(&self.state, &session.key)?),
            Control::Fork => self.memory.forked(&view.session).map(|id| id + "\n").unwrap_or_default(),
        })
    }

    /// What reading a branch's `fork` gives: the id of the session that the last fork of that branch made.
    pub(super) fn forked_branch(&self, session: &SessionRef, branch: Branch) -> String {
        self.memory.forked_branch(&session.key, branch).map(|id| id + "\n").unwrap_or_default()
    }

    fn fork_branch(&self, seen: &View, branch: Branch, command: Command) -> Result<Done> {
        let asked = match command.target {
            Target::Number(n) => Some(n),
            Target::Last => None,
        };
        let (store, session) = (&*seen.store, &seen.session);
        let (id, n, of) = match branch {
            Branch::Undone(number) => {
                let (id, n) = cut::fork_undone(store, &self.state, session, number, asked)?;
                (id, n, format!("as before undo {number}"))
            }
            Branch::Abandoned(number) => {
                let (id, n) = cut::fork_abandoned(store, &self.state, session, &seen.history, number, asked)?;
                (id, n, format!("of the branch abandoned/{number}"))
            }
        };
        let sentence = format!("done, turns 0 to {n} {of} are session {id}");
        Ok(Done { sentence, forked: Some(id) })
    }

    fn act(&self, control: Control, seen: &View, command: Command) -> Result<Done> {
        let count = seen.history.turns.len() as u32;
        let last = || count.checked_sub(1).ok_or(Refusal::NoSuchTurn { asked: 0, turns: 0 });
        let done = match control {
            Control::Undo => {
                let n = match command.target {
                    Target::Number(n) => n,
                    Target::Last => last()?,
                };
                let done =
                    cut::undo(&*seen.store, &self.state, &seen.session, &seen.history, n, command.force)?;
                let mut sentence = format!(
                    "done, {} removed (undone/{}), {} left",
                    turns(done.drops),
                    done.number,
                    done.keeps
                );
                if done.keeps > n {
                    sentence = format!("{sentence}; {}", seen.history.what_stays(n));
                }
                Done { sentence, forked: None }
            }
            Control::Redo => {
                let number = match command.target {
                    Target::Number(number) => Some(number),
                    Target::Last => None,
                };
                let (number, back) =
                    cut::redo(&*seen.store, &self.state, &seen.session, number, command.force)?;
                let sentence = format!("done, {} of undo {number} back", turns(back));
                Done { sentence, forked: None }
            }
            Control::Fork => {
                let n = match command.target {
                    Target::Number(n) => n,
                    Target::Last => seen.history.last_finished()?,
                };
                let id = cut::fork(&*seen.store, &self.state, &seen.session, &seen.history, n)?;
                Done { sentence: format!("done, turns 0 to {n} are session {id}"), forked: Some(id) }
            }
        };
        Ok(done)
    }
}

/// What `status` says of a command that was refused: the message, and each hint in a line of its own.
fn refused(control: &str, refusal: &Refusal) -> String {
    let message = format!("{control} refused: {refusal}");
    let hints = refusal.hints();
    let lines = std::iter::once(&message).chain(&hints).map(|line| one_line(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// A control file's name in `status` and in the log.
fn name(control: Control, branch: Option<Branch>) -> String {
    match branch {
        Some(branch) => format!("{}/{}/{}", branch.shelf(), branch.number(), control.name()),
        None => control.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;
    use crate::session::Errno;

    fn number(n: u32) -> Option<Command> {
        Some(Command { target: Target::Number(n), force: false })
    }

    #[test]
    fn one_write_is_one_command() {
        let last = Some(Command { target: Target::Last, force: false });
        let table: &[(&[u8], Option<Command>)] = &[
            (b"3\n", number(3)),
            (b"3", number(3)),
            (b"003\n", number(3)),
            (b"  3\t\n", number(3)),
            (b"\n\n3\n \n", number(3)),
            (b"0000000000000000000000000000003", number(3)),
            (b"0", number(0)),
            (b"99999999999999999999", number(u32::MAX)),
            (b"last\n", last),
            (b" last ", last),
            (b"", None),
            (b"\n", None),
            (b" \t\n \n", None),
        ];
        for control in Control::ALL {
            for (bytes, expected) in table {
                assert_eq!(&Command::parse(control, bytes).unwrap(), expected, "{control:?} {bytes:?}");
            }
        }
    }

    #[test]
    fn what_is_no_command_is_einval() {
        let long = [b' '; 4097];
        let table: &[&[u8]] = &[
            b"3\n4\n",
            b"3 4",
            b"last last",
            b"-1",
            b"+3",
            b"0x3",
            b"3.0",
            b"three",
            b"LAST",
            b"last3",
            b"force",
            b"force force 3",
            b"force 3 4",
            b"3 force",
            b"3\r\n",
            b"3\0",
            b"\xff",
            "\u{663}".as_bytes(), // a digit of another script
            &long,
        ];
        for control in Control::ALL {
            for bytes in table {
                let refusal = Command::parse(control, bytes).unwrap_err();
                assert_eq!(refusal.errno(), Errno::INVAL, "{control:?} {bytes:?}");
            }
        }
    }

    #[test]
    fn force_is_for_cuts_in_place() {
        for (word, target) in [("3", Target::Number(3)), ("last", Target::Last)] {
            let bytes = format!("force  {word}\n");
            let forced = Some(Command { target, force: true });
            assert_eq!(Command::parse(Control::Undo, bytes.as_bytes()).unwrap(), forced);
            assert_eq!(Command::parse(Control::Redo, bytes.as_bytes()).unwrap(), forced);
            assert!(Command::parse(Control::Fork, bytes.as_bytes()).is_err());
        }
    }

    #[test]
    fn a_command_of_exactly_4096_bytes_is_read() {
        let mut bytes = [b' '; 4096];
        bytes[4095] = b'7';
        assert_eq!(Command::parse(Control::Undo, &bytes).unwrap(), number(7));
    }
}
