//! The agents by name.

use std::fmt;
use std::str::FromStr;

/// A coding agent whose store turnfs reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AgentKind {
    KimiCli,
    Codex,
    OpenMax,
}

impl AgentKind {
    /// Every agent whose store can be read.
    pub const ALL: [AgentKind; 3] = [AgentKind::KimiCli, AgentKind::Codex, AgentKind::OpenMax];

    /// The name in directory names, on the command line and in machine output.
    pub fn name(self) -> &'static str {
        match self {
            AgentKind::KimiCli => "kimi-cli",
            AgentKind::Codex => "codex",
            AgentKind::OpenMax => "openmax",
        }
    }
}

impl fmt::Display for AgentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AgentKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        AgentKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known: Vec<_> = AgentKind::ALL.iter().map(|kind| kind.name()).collect();
            format!("no agent named {name:?}; known: {}", known.join(", "))
        })
    }
}
