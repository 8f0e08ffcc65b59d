//! The options of a mount that runs: it shows them itself (`.turnfs/options.json`), so that whoever asks for other
//! ones at the same place, or in another environment, can be told.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Request;
use crate::agents;
use crate::catalog::{Catalog, StoreOptions};
use crate::cut::StateDir;
use crate::host;
use crate::render;
use crate::session::{AgentKind, PathText};

/// Where a mount shows its options, relative to its root.
pub const PLACE: &str = ".turnfs/options.json";
/// Longest such file, bytes.
const LONGEST: u64 = 256 * 1024;

/// What a mount was made with. Paths are absolute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// turnfs's own.
    pub version: String,
    pub pid: u32,
    pub read_only: bool,
    pub allow_root: bool,
    pub show_all: bool,
    pub project: Option<PathText>,
    pub stores: Vec<RunningStore>,
    pub state: PathText,
}

/// A store that a mount shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningStore {
    pub agent: String,
    pub root: PathText,
    /// By --store, not by the environment.
    pub named: bool,
}

impl Running {
    pub(super) fn new(
        request: &Request,
        project: Option<&Path>,
        catalog: &Catalog,
        state: &StateDir,
    ) -> Running {
        Running {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            read_only: request.read_only,
            allow_root: request.allow_root,
            show_all: request.show_all,
            project: project.map(PathText::from),
            stores: stores(catalog, &request.stores),
            state: state.path().into(),
        }
    }

    /// As the mount shows it.
    pub(super) fn text(&self) -> String {
        // Strings and numbers always serialise.
        serde_json::to_string_pretty(self)
            .map(|text| render::escaped_json(&text).into_owned() + "\n")
            .unwrap_or_default()
    }

    /// The options of the mount at `mount`; `None` if it does not say, or not within [`host::PATIENCE`] (a mount of
    /// another version).
    pub fn ask(mount: &Path) -> Option<Running> {
        let place = mount.join(PLACE);
        let text = host::within(host::PATIENCE, move || {
            let mut text = Vec::new();
            File::open(place).ok()?.take(LONGEST).read_to_end(&mut text).ok()?;
            Some(text)
        });
        serde_json::from_slice(&text??).ok()
    }

    /// What this mount has otherwise than `wanted`, one clause each.
    pub fn differences(&self, wanted: &Running) -> Vec<String> {
        let mut found = Vec::new();
        for (option, is, wanted) in [
            ("--read-only", self.read_only, wanted.read_only),
            ("--allow-root", self.allow_root, wanted.allow_root),
            ("--show-all", self.show_all, wanted.show_all),
        ] {
            match (is, wanted) {
                (true, false) => found.push(format!("it has {option}")),
                (false, true) => found.push(format!("it does not have {option}")),
                _ => {}
            }
        }
        match (&self.project, &wanted.project) {
            (None, None) => {}
            (Some(is), Some(wanted)) if same_place(is, wanted) => {}
            (Some(is), _) => found.push(format!("it shows the project {} only", is.display())),
            (None, Some(_)) => found.push("it shows all projects".into()),
        }
        found.extend(self.store_differences(&wanted.stores).into_iter().map(|found| found.what));
        if !same_place(&self.state, &wanted.state) {
            found.push(format!(
                "it keeps its backups in {}, not in {}",
                self.state.display(),
                wanted.state.display()
            ));
        }
        found
    }

    /// Whether this mount keeps its backups there.
    pub fn keeps_its_own_in(&self, state: &StateDir) -> bool {
        same_place(&self.state, state.path())
    }

    /// For which agents this mount shows other stores than `wanted`.
    pub fn store_differences(&self, wanted: &[RunningStore]) -> Vec<StoreDifference> {
        let mut found = Vec::new();
        for kind in AgentKind::ALL {
            let of = |stores: &[RunningStore]| -> Vec<RunningStore> {
                stores.iter().filter(|store| store.agent == kind.name()).cloned().collect()
            };
            let (is, wanted) = (of(&self.stores), of(wanted));
            let within = |a: &[RunningStore], b: &[RunningStore]| {
                a.iter().all(|a| b.iter().any(|b| same_place(&a.root, &b.root)))
            };
            if within(&is, &wanted) && within(&wanted, &is) {
                continue;
            }
            let list = |stores: &[RunningStore]| {
                let all: Vec<String> = stores.iter().map(|store| store.root.display().to_string()).collect();
                if all.is_empty() { "nothing".into() } else { all.join(" and ") }
            };
            found.push(StoreDifference {
                on_purpose: is.is_empty() || is.iter().any(|store| store.named),
                what: format!("of {kind} it shows {}, and {} is asked for", list(&is), list(&wanted)),
            });
        }
        found
    }
}

/// An agent of which a mount shows other stores than were expected.
#[derive(Debug)]
pub struct StoreDifference {
    /// A clause.
    pub what: String,
    /// The mount was told so by --store or --agents.
    pub on_purpose: bool,
}

/// The stores that a catalog made with `options` has.
pub fn stores(catalog: &Catalog, options: &StoreOptions) -> Vec<RunningStore> {
    let stores = catalog.stores();
    let each = stores.iter().map(|store| {
        let agent = store.kind();
        RunningStore {
            agent: agent.name().into(),
            root: (&**store.root()).into(),
            named: options.places.iter().any(|(of, _)| *of == agent),
        }
    });
    each.collect()
}

/// The environment variables, besides HOME, that decide what a mount shows and where turnfs keeps what is its own.
pub fn variables() -> Vec<&'static str> {
    let agents = AgentKind::ALL.into_iter().flat_map(|kind| agents::agent(kind).variables);
    // The time zone is in the names of sessions.
    agents.copied().chain(["XDG_STATE_HOME", "XDG_CACHE_HOME", "TZ"]).collect()
}

/// Whether two paths are one place, under whatever spelling.
fn same_place(a: &Path, b: &Path) -> bool {
    let resolved = |path: &Path| {
        let asked = path.to_owned();
        let found = host::within(host::PATIENCE, move || asked.canonicalize().ok()).flatten();
        found.unwrap_or_else(|| path.to_owned())
    };
    a == b || resolved(a) == resolved(b)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    fn running() -> Running {
        let codex = RunningStore { agent: "codex".into(), root: Path::new("/a/.codex").into(), named: false };
        Running {
            version: "1".into(),
            pid: 7,
            read_only: false,
            allow_root: false,
            show_all: false,
            project: None,
            stores: vec![codex],
            state: Path::new("/a/state").into(),
        }
    }

    #[test]
    fn every_option_that_differs_is_named_and_no_other() {
        let is = running();
        let with = |change: fn(&mut Running)| {
            let mut other = running();
            change(&mut other);
            is.differences(&other).join("; ")
        };
        assert_eq!(with(|other| (other.version, other.pid) = ("2".into(), 8)), "");
        type Change = fn(&mut Running);
        let table: [(Change, &str); 7] = [
            (|other| other.read_only = true, "it does not have --read-only"),
            (|other| other.allow_root = true, "it does not have --allow-root"),
            (|other| other.show_all = true, "it does not have --show-all"),
            (|other| other.project = Some(Path::new("/p").into()), "it shows all projects"),
            (
                |other| other.stores[0].root = Path::new("/b/.codex").into(),
                "of codex it shows /a/.codex, and /b/.codex is asked for",
            ),
            (|other| other.stores.clear(), "of codex it shows /a/.codex, and nothing is asked for"),
            (|other| other.state = Path::new("/b").into(), "it keeps its backups in /a/state, not in /b"),
        ];
        for (change, expected) in table {
            assert_eq!(with(change), expected);
        }
        let mut read_only = running();
        read_only.read_only = true;
        assert_eq!(read_only.differences(&running()), ["it has --read-only"]);
    }

    #[test]
    fn paths_that_are_no_text_survive() {
        use std::os::unix::ffi::OsStrExt as _;
        let mut odd = running();
        odd.project = Some(Path::new(std::ffi::OsStr::from_bytes(b"/a\xff")).into());
        assert_eq!(serde_json::from_str::<Running>(&odd.text()).unwrap(), odd);
    }
}
