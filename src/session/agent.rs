//! The agents by name.

use std::fmt;
use std::str::FromStr;

/// The agents, each with its name and its folder in `agents/`: the one list of them.
macro_rules! for_each_agent {
    ($then:ident) => {
        $then! {
            KimiCli "kimi-cli" kimi_cli,
            KimiCode "kimi-code" kimi_code,
            Codex "codex" codex,
            OpenMax "openmax" openmax,
            ClaudeCode "claude-code" claude_code,
        }
    };
}
pub(crate) use for_each_agent;

macro_rules! kinds {
    ($($kind:ident $name:literal $folder:ident,)*) => {
        /// A coding agent whose store turnfs reads.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum AgentKind { $($kind),* }

        impl AgentKind {
            /// Every agent whose store can be read.
            pub const ALL: [AgentKind; [$(AgentKind::$kind),*].len()] = [$(AgentKind::$kind),*];

            /// The name in directory names, on the command line and in machine output.
            pub fn name(self) -> &'static str {
                match self { $(AgentKind::$kind => $name),* }
            }
        }
    };
}
for_each_agent!(kinds);

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
