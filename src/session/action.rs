//! What tools were asked to do and what came of it, in the forms that a person knows. Each agent's folder translates
//! its own tools into these.

use std::borrow::Cow;

use jiff::SignedDuration;

/// What the call of a tool asks for. What its arguments hold is in `action` or in `more`: nothing is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked<'a> {
    pub action: Action<'a>,
    /// The arguments that the action does not say: names and values, a text as it is, anything else as JSON.
    pub more: Named<'a>,
}

/// Names and values, in their order.
pub type Named<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// What a tool is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<'a> {
    /// A command line for a shell.
    Command {
        command: Cow<'a, str>,
        directory: Option<Cow<'a, str>>,
    },
    /// Stretches of a file's text that others take the place of.
    Edit {
        path: Cow<'a, str>,
        changes: Vec<Replacement<'a>>,
    },
    /// Changes of files that are a diff already (or in the form of `apply_patch`).
    Patch {
        diff: Cow<'a, str>,
    },
    /// A file's whole text, or what is written behind it.
    Write {
        path: Cow<'a, str>,
        content: Cow<'a, str>,
    },
    /// A file, or what lines of it.
    Read {
        path: Cow<'a, str>,
        lines: Lines,
    },
    /// A search in files or in the web; `place` where it is not everywhere.
    Search {
        query: Cow<'a, str>,
        place: Option<Cow<'a, str>>,
    },
    Fetch {
        url: Cow<'a, str>,
    },
    /// A plan in words, in steps, or both.
    Plan {
        text: Cow<'a, str>,
        steps: Vec<Todo<'a>>,
    },
    /// Work for a sub-agent.
    Agent {
        description: Option<Cow<'a, str>>,
        prompt: Cow<'a, str>,
    },
    /// Anything else: the arguments as they are, mostly JSON.
    Other {
        arguments: Cow<'a, str>,
    },
}

/// One replacement of an edit.
#[derive(Clone, Debug, PartialEq)]
pub struct Replacement<'a> {
    pub before: Cow<'a, str>,
    pub after: Cow<'a, str>,
    /// What else is said of it.
    pub more: Named<'a>,
}

/// Which lines of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// The first one, from 1; a negative number counts from the file's end.
    pub from: Option<i64>,
    pub count: Option<i64>,
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Todo<'a> {
    pub text: Cow<'a, str>,
    pub state: TodoState,
    /// What else is said of it.
    pub more: Named<'a>,
}

/// How far a step has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TodoState {
    Pending,
    InProgress,
    Done,
}

/// How a call came out, besides its output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome<'a> {
    pub is_error: bool,
    /// Of a command that has ended.
    pub exit_code: Option<i64>,
    pub duration: Option<SignedDuration>,
    /// What else the store says of it.
    pub more: Named<'a>,
}

impl<'a> Asked<'a> {
    /// Nothing but the action.
    pub fn only(action: Action<'a>) -> Asked<'a> {
        Asked { action, more: Vec::new() }
    }

    /// Arguments without a form that is known.
    pub fn other(arguments: impl Into<Cow<'a, str>>) -> Asked<'a> {
        Asked::only(Action::Other { arguments: arguments.into() })
    }
}

impl Outcome<'_> {
    /// All that is known is whether it failed.
    pub fn of(is_error: bool) -> Self {
        Outcome { is_error, ..Outcome::default() }
    }
}

impl TodoState {
    /// The state that clients call so.
    pub fn named(name: &str) -> Option<TodoState> {
        Some(match name {
            "pending" => TodoState::Pending,
            "in_progress" => TodoState::InProgress,
            "completed" | "done" => TodoState::Done,
            _ => return None,
        })
    }
}
