//! What a running mount was started with, so that another `turnfs mount` at its place can tell whether it is what
//! was asked for.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Request;
use crate::catalog::Catalog;

/// The options of a mount, as they stand in its lock file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    pub version: String,
    pub pid: u32,
    pub mountpoint: PathBuf,
    pub read_only: bool,
    pub allow_root: bool,
    pub show_all: bool,
    pub project: Option<PathBuf>,
    /// Agent and place, in the order of the agents.
    pub stores: Vec<(String, PathBuf)>,
}

impl Running {
    pub fn of(request: &Request, catalog: &Catalog, project: Option<&Path>, mountpoint: &Path) -> Running {
        let stores = catalog.stores().iter();
        Running {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            mountpoint: mountpoint.to_owned(),
            read_only: request.read_only,
            allow_root: request.allow_root,
            show_all: request.show_all,
            project: project.map(Path::to_owned),
            stores: stores
                .map(|store| (store.agent.kind().name().into(), store.root.to_path_buf()))
                .collect(),
        }
    }

    /// How this mount differs from the one that was asked for, one sentence each.
    pub fn differences(&self, asked: &Running) -> Vec<String> {
        let mut differences = Vec::new();
        let yes_or_no = |yes: bool| if yes { "on" } else { "off" };
        let flags = [
            ("--read-only", self.read_only, asked.read_only),
            ("--allow-root", self.allow_root, asked.allow_root),
            ("--show-all", self.show_all, asked.show_all),
        ];
        for (name, is, wanted) in flags {
            if is != wanted {
                differences.push(format!("{name} is {}", yes_or_no(is)));
            }
        }
        if self.project != asked.project {
            differences.push(match &self.project {
                Some(project) => format!("it shows only the project {}", project.display()),
                None => "it shows all projects".into(),
            });
        }
        differences.extend(self.other_stores(&asked.stores));
        differences
    }

    /// Where its stores are not the ones that were asked for.
    pub fn other_stores(&self, asked: &[(String, PathBuf)]) -> Vec<String> {
        let place = |stores: &[(String, PathBuf)], agent: &str| {
            stores.iter().find(|(name, _)| name == agent).map(|(_, place)| place.clone())
        };
        let mut agents: Vec<&String> = self.stores.iter().chain(asked).map(|(agent, _)| agent).collect();
        agents.sort();
        agents.dedup();
        let mut differences = Vec::new();
        for agent in agents {
            match (place(&self.stores, agent), place(asked, agent)) {
                (Some(is), Some(wanted)) if is != wanted => {
                    differences.push(format!("{agent} is {}, not {}", is.display(), wanted.display()));
                }
                (Some(_), None) => differences.push(format!("it shows {agent}, too")),
                (None, Some(_)) => differences.push(format!("it does not show {agent}")),
                _ => {}
            }
        }
        differences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> Running {
        Running {
            version: "0.1.0".into(),
            pid: 1,
            mountpoint: "/m".into(),
            read_only: false,
            allow_root: false,
            show_all: false,
            project: None,
            stores: vec![("codex".into(), "/a".into()), ("openmax".into(), "/o".into())],
        }
    }

    #[test]
    fn every_option_that_differs_is_named() {
        let is = running();
        assert_eq!(is.differences(&Running { pid: 2, ..running() }), Vec::<String>::new());
        let asked = Running {
            read_only: true,
            project: Some("/p".into()),
            stores: vec![("codex".into(), "/b".into()), ("kimi-cli".into(), "/k".into())],
            ..running()
        };
        assert_eq!(
            is.differences(&asked),
            [
                "--read-only is off",
                "it shows all projects",
                "codex is /a, not /b",
                "it does not show kimi-cli",
                "it shows openmax, too",
            ]
        );
    }
}
