//! What can be wrong with a store's file, as data.

use std::fmt;

use super::Refusal;

/// A place in a store's file that is not what the store's client writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// File name relative to the session (or to the store, for a shared index).
    pub file: String,
    /// Line, counted from 1; 0: the file (or directory) as a whole.
    pub line: u64,
    /// Byte offset in the file of the line's start (for `torn-tail` and `nul-tail`: of the tail's start).
    pub byte: u64,
    pub class: DamageClass,
    /// One sentence: what is wrong and what the agent itself does with it.
    pub message: String,
}

impl Damage {
    /// Of a file or directory as a whole.
    pub fn of_whole(file: impl Into<String>, class: DamageClass, message: impl Into<String>) -> Damage {
        Damage { file: file.into(), line: 0, byte: 0, class, message: message.into() }
    }

    /// Of a file or directory that could not be read, for this reason.
    pub fn unread(file: impl Into<String>, why: &Refusal) -> Damage {
        let class = match why {
            Refusal::NotFollowed { .. } => DamageClass::Unreadable,
            why if why.is_unreadable() => DamageClass::Unreadable,
            _ => DamageClass::Sidecar,
        };
        Damage::of_whole(file, class, why.to_string())
    }

    /// Line (from 1) and byte, where it is a matter of one line.
    pub fn place(&self) -> Option<(u64, u64)> {
        (self.line > 0).then_some((self.line, self.byte))
    }

    /// Where it is and of what kind, without what is wrong.
    pub fn brief(&self) -> String {
        match self.place() {
            Some((line, byte)) => format!("{}, line {line} (byte {byte}): {}", self.file, self.class),
            None => format!("{}: {}", self.file, self.class),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.brief(), self.message)
    }
}

/// The classes of damage; names as in machine output. `docs/stores/damage.md` says what each one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DamageClass {
    BadLine,
    BadRecord,
    GluedCut,
    MissingNewline,
    SplitRecord,
    NulRun,
    TooLong,
    InvalidUtf8,
    Bom,
    ArrayForm,
    NoRecord,
    FirstRecord,
    Ordinal,
    DanglingParent,
    Sidecar,
    /// This user may not read it, or it is a link that is not followed. What is in it may be sound.
    Unreadable,
    TornTail,
    NulTail,
    NoFinalNewline,
}

/// The note for a turn with a tool call that has no result: no damage, but no cut may separate the two.
/// `agent`: what the agent does with it.
pub fn open_calls(turn: u32, agent: &str) -> String {
    format!("open-tool-call: a tool call of turn {turn} has no result; {agent}")
}

impl DamageClass {
    /// As in texts and machine output.
    pub fn name(self) -> &'static str {
        match self {
            DamageClass::BadLine => "bad-line",
            DamageClass::BadRecord => "bad-record",
            DamageClass::GluedCut => "glued-cut",
            DamageClass::MissingNewline => "missing-newline",
            DamageClass::SplitRecord => "split-record",
            DamageClass::NulRun => "nul-run",
            DamageClass::TooLong => "too-long",
            DamageClass::InvalidUtf8 => "invalid-utf8",
            DamageClass::Bom => "bom",
            DamageClass::ArrayForm => "array-form",
            DamageClass::NoRecord => "no-record",
            DamageClass::FirstRecord => "first-record",
            DamageClass::Ordinal => "ordinal",
            DamageClass::DanglingParent => "dangling-parent",
            DamageClass::Sidecar => "sidecar",
            DamageClass::Unreadable => "unreadable",
            DamageClass::TornTail => "torn-tail",
            DamageClass::NulTail => "nul-tail",
            DamageClass::NoFinalNewline => "no-final-newline",
        }
    }

    /// What its user can do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            DamageClass::DanglingParent => "put back the file that it needs",
            DamageClass::Sidecar => "repair that file",
            DamageClass::Unreadable => "make it readable for this user (chown, chmod), or look as its owner",
            _ => "repair that line",
        }
    }

    /// A tail that a crash or an append in progress leaves: everything before it stays readable.
    pub fn is_torn(self) -> bool {
        matches!(self, DamageClass::TornTail | DamageClass::NulTail | DamageClass::NoFinalNewline)
    }
}

impl fmt::Display for DamageClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
