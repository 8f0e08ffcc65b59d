//! The arguments of a call, taken one by one: those that nobody takes are shown beside what the others mean.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::json;
use crate::session::{Action, Asked, Lines, Named, Replacement, Todo, TodoState};

/// The fields of a JSON object that nobody has taken so far, in their order.
pub(super) struct Arguments<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// How a tool's arguments are told as an action; `None` if they have another form than expected.
pub(super) type Translate<'a> = fn(&mut Arguments<'a>) -> Option<Action<'a>>;

/// What the call of a tool asks for. Arguments in another form than `translate` expects are shown as they are.
pub(super) fn asked<'a>(arguments: &'a str, translate: Translate<'a>) -> Asked<'a> {
    let known = || {
        let mut fields = Arguments::of(arguments)?;
        let action = translate(&mut fields)?;
        Some(Asked { action, more: fields.rest() })
    };
    known().unwrap_or_else(|| Asked::other(arguments))
}

impl<'a> Arguments<'a> {
    /// `None` if `json` is not an object.
    pub fn of(json: &'a str) -> Option<Arguments<'a>> {
        json::borrowed_fields(json).ok().map(Arguments)
    }

    /// The field `key`, if `read` can read it.
    pub fn take<T>(&mut self, key: &str, read: impl FnOnce(&'a RawValue) -> Option<T>) -> Option<T> {
        let at = self.0.iter().position(|(name, _)| name == key)?;
        let taken = read(self.0[at].1)?;
        self.0.remove(at);
        Some(taken)
    }

    /// A text.
    pub fn text(&mut self, key: &str) -> Option<Cow<'a, str>> {
        self.take(key, json::text)
    }

    /// A whole number.
    pub fn number(&mut self, key: &str) -> Option<i64> {
        self.take(key, |value| value.get().parse().ok())
    }

    /// Of a client that writes `null` for what is not there.
    pub fn leave_out_nulls(&mut self) {
        self.0.retain(|(_, value)| value.get() != "null");
    }

    /// What nobody has taken. A text is shown as it is, anything else as JSON.
    pub fn rest(self) -> Named<'a> {
        let shown = |value: &'a RawValue| json::text(value).unwrap_or(Cow::Borrowed(value.get()));
        self.0.into_iter().map(|(name, value)| (name, shown(value))).collect()
    }

    /// A command line, and the directory that it is for.
    pub fn command(&mut self, command: &str, directory: &str) -> Option<Action<'a>> {
        Some(Action::Command { command: self.text(command)?, directory: self.text(directory) })
    }

    /// A file, and from which line on how many of it.
    pub fn read(&mut self, path: &str, from: &str, count: &str) -> Option<Action<'a>> {
        let path = self.text(path)?;
        Some(Action::Read { path, lines: Lines { from: self.number(from), count: self.number(count) } })
    }

    /// A file's new text.
    pub fn write(&mut self, path: &str, content: &str) -> Option<Action<'a>> {
        Some(Action::Write { path: self.text(path)?, content: self.text(content)? })
    }

    /// One replacement in a file.
    pub fn edit(&mut self, path: &str, before: &str, after: &str) -> Option<Action<'a>> {
        let path = self.text(path)?;
        let (before, after) = (self.text(before)?, self.text(after)?);
        Some(Action::Edit { path, changes: vec![Replacement { before, after, more: Vec::new() }] })
    }

    /// Replacements in a file: a list of objects, or one of them.
    pub fn edits(&mut self, path: &str, edits: &str, before: &str, after: &str) -> Option<Action<'a>> {
        let one = |edit: &'a RawValue| {
            let mut edit = Arguments::of(edit.get())?;
            let (before, after) = (edit.text(before)?, edit.text(after)?);
            Some(Replacement { before, after, more: edit.rest() })
        };
        let path = self.text(path)?;
        let changes = self.take(edits, |raw| match one(raw) {
            Some(only) => Some(vec![only]),
            None => list(raw)?.into_iter().map(one).collect(),
        })?;
        Some(Action::Edit { path, changes })
    }

    /// What is searched for, and where.
    pub fn search(&mut self, query: &str, place: &str) -> Option<Action<'a>> {
        Some(Action::Search { query: self.text(query)?, place: self.text(place) })
    }

    /// A URL.
    pub fn fetch(&mut self, url: &str) -> Option<Action<'a>> {
        Some(Action::Fetch { url: self.text(url)? })
    }

    /// What a sub-agent is to do.
    pub fn agent(&mut self, description: &str, prompt: &str) -> Option<Action<'a>> {
        Some(Action::Agent { prompt: self.text(prompt)?, description: self.text(description) })
    }

    /// A list of steps, each with its text and its state.
    pub fn todos(&mut self, list_of: &str, step: &str) -> Option<Vec<Todo<'a>>> {
        let one = |todo: &'a RawValue| {
            let mut todo = Arguments::of(todo.get())?;
            let text = todo.text(step)?;
            let state = todo.take("status", |state| TodoState::named(&json::text(state)?))?;
            Some(Todo { text, state, more: todo.rest() })
        };
        self.take(list_of, |raw| list(raw)?.into_iter().map(one).collect())
    }
}

/// The elements of a list.
fn list(raw: &RawValue) -> Option<Vec<&RawValue>> {
    serde_json::from_str(raw.get()).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_takes_is_kept_in_its_order() {
        let asked = asked(
            r#"{"timeout": 20, "command": "a\nb", "why": "x\"y", "flags": [1.0, null], "command": "twice"}"#,
            |fields| fields.command("command", "cwd"),
        );
        assert_eq!(asked.action, Action::Command { command: "a\nb".into(), directory: None });
        let more: Vec<(&str, &str)> = asked.more.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(
            more,
            [("timeout", "20"), ("why", "x\"y"), ("flags", "[1.0, null]"), ("command", "twice")]
        );
    }

    #[test]
    fn arguments_in_another_form_stay_as_they_are() {
        for json in [r#"{"command": 7}"#, "[]", "", "null", r#"{"command": "a""#, r#"{"cmd": "a"}"#] {
            let asked = asked(json, |fields| fields.command("command", "cwd"));
            assert_eq!(asked, Asked::other(json), "{json}");
        }
        let json = r#"{"todos": [{"content": "a", "status": "done"}, {"content": "b", "status": "lost"}]}"#;
        let plan = |fields: &mut Arguments<'_>| {
            fields.todos("todos", "content").map(|_| Action::Fetch { url: "".into() })
        };
        assert_eq!(asked(json, plan), Asked::other(json));
    }

    #[test]
    fn a_lone_surrogate_in_an_argument_is_shown() {
        let asked = asked(r#"{"command": "a\ud800"}"#, |fields| fields.command("command", "cwd"));
        assert_eq!(asked.action, Action::Command { command: "a\u{fffd}".into(), directory: None });
    }
}
