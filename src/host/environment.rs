//! The environment of a process, as a value: where a user's home, the agents' stores and turnfs's own state are.

use std::ffi::OsString;
use std::path::PathBuf;

/// The environment in which stores are looked for; a value, so that tests and `--store` can set it.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub home: Option<PathBuf>,
    vars: Vec<(String, OsString)>,
}

impl Environment {
    /// The environment of this process.
    pub fn of_process() -> Environment {
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let vars = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v))).collect();
        Environment { home, vars }
    }

    /// A variable's value as a path, if it is set and not empty.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        let (_, value) = self.vars.iter().find(|(key, value)| key == name && !value.is_empty())?;
        Some(PathBuf::from(value))
    }
}
