//! The environment of a process, as a value: where a user's home, the agents' stores and turnfs's own state are.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
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
        let Environment { home, .. } = Environment::of_home();
        let vars = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v))).collect();
        Environment { home, vars }
    }

    /// The environment of another process, as it was when its program was started; `None` if this user may not see
    /// it, or there is no such process.
    pub fn of_pid(pid: u32) -> Option<Environment> {
        let text = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let pairs = text.split(|byte| *byte == 0).filter_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let name = std::str::from_utf8(&pair[..at]).ok()?;
            Some((name.to_owned(), OsStr::from_bytes(&pair[at + 1..]).to_owned()))
        });
        let vars: Vec<_> = pairs.collect();
        let mut env = Environment { home: None, vars };
        env.home = env.path("HOME");
        Some(env)
    }

    /// HOME of this process and nothing else: where things are if nobody says otherwise.
    pub fn of_home() -> Environment {
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        Environment { home, vars: Vec::new() }
    }

    /// A variable's value, if it is set and not empty.
    pub fn value(&self, name: &str) -> Option<&OsStr> {
        let (_, value) = self.vars.iter().find(|(key, value)| key == name && !value.is_empty())?;
        Some(value)
    }

    /// [`Environment::value`] as a path.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.value(name).map(PathBuf::from)
    }
}
