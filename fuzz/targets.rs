//! What is done with bytes that anybody may have written: nothing may panic, hang, or show what a terminal obeys, and
//! a turn is as long as it was said to be. Used by the targets of cargo-fuzz, and by `tests/fuzz.rs` without it.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use turnfs::agents;
use turnfs::catalog::{Catalog, StoreOptions};
use turnfs::cut::{self, StateDir};
use turnfs::fs::{Command, Control};
use turnfs::host::Environment;
use turnfs::session::{AgentKind, Session};

/// The sample of each agent whose files are replaced, one at a time.
const TEMPLATES: [(&str, &str); 5] = [
    ("kimi-cli", "c-compact"),
    ("kimi-code", "b-tools"),
    ("codex", "b_tools_reasoning"),
    ("openmax", "a_stdio"),
    ("claude-code", "tools"),
];
/// Of how many turns of a session cuts are planned.
const PLANNED: u32 = 3;

/// The directory of an agent's samples.
pub fn samples(agent: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = if here.ends_with("fuzz") { here.join("..") } else { here.to_owned() };
    top.join("tests/samples").join(agent)
}

/// A store in which one file is always another.
struct Template {
    kind: AgentKind,
    dir: tempfile::TempDir,
    /// Every file, relative to the store, with its bytes.
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Template {
    fn of(agent: &str) -> Template {
        let (_, sample) = TEMPLATES.iter().find(|(name, _)| *name == agent).unwrap();
        let files = files_of(&samples(agent).join(sample).join("store"));
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in &files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        Template { kind: agent.parse().unwrap(), dir, files: files.into_iter().collect() }
    }

    fn look_with(&self, data: &[u8]) {
        let Some((which, content)) = data.split_first() else { return };
        let (name, original) = &self.files[usize::from(*which) % self.files.len()];
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        look_at_all(self.kind, self.dir.path());
        fs::write(&path, original).unwrap();
    }
}

/// All files below `root`, by their relative paths.
pub fn files_of(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => dirs.push(entry.path()),
                false => {
                    let name = entry.path().strip_prefix(root).unwrap().to_owned();
                    files.insert(name, fs::read(entry.path()).unwrap());
                }
            }
        }
    }
    files
}

/// Data for [`store`]: every file of every sample, in the place of the file of the template that it is most like.
pub fn seeds(agent: &str) -> Vec<Vec<u8>> {
    let template = Template::of(agent);
    let mut seeds = Vec::new();
    for sample in fs::read_dir(samples(agent)).unwrap().map(|entry| entry.unwrap().path().join("store")) {
        for (name, bytes) in if sample.is_dir() { files_of(&sample) } else { BTreeMap::new() } {
            let end = |name: &Path| name.to_string_lossy().rsplit('.').next().unwrap_or_default().to_owned();
            let same = |(of, _): &(PathBuf, Vec<u8>)| of.file_name() == name.file_name();
            let alike = |(of, _): &(PathBuf, Vec<u8>)| end(of) == end(&name);
            let place =
                template.files.iter().position(same).or_else(|| template.files.iter().position(alike));
            if let Some(place) = place {
                seeds.push([&[place as u8][..], &bytes].concat());
            }
        }
    }
    seeds.sort();
    seeds.dedup();
    seeds
}

/// A store of this agent with one file replaced: the first byte says which, the rest is the file.
pub fn store(agent: &str, data: &[u8]) {
    thread_local! {
        static TEMPLATE: RefCell<Option<Template>> = const { RefCell::new(None) };
    }
    TEMPLATE.with_borrow_mut(|template| template.get_or_insert_with(|| Template::of(agent)).look_with(data));
}

/// Everything that a mount and the commands read of a store.
fn look_at_all(kind: AgentKind, root: &Path) {
    let options = StoreOptions { places: vec![(kind, root.to_owned())], only: vec![kind] };
    let catalog = Catalog::for_one_command(&Environment::default(), &options);
    for (_, listed) in catalog.listing().all() {
        look_at(&catalog, &listed.session);
        for agent in catalog.subagents(&listed.session).unwrap_or_default() {
            look_at(&catalog, &agent);
        }
    }
}

fn look_at(catalog: &Catalog, session: &Session) {
    let Ok(view) = catalog.view(&session.key) else { return };
    let (store, session, history) = (&*view.store, &*view.session, &view.history);
    // As a mount shows them: of a damaged session only what ends before the damage (`salvage/`).
    let shown = match history.readable() {
        Ok(()) => &*history.turns,
        Err(_) => history.sound(),
    };
    for turn in shown.iter().chain(history.branches.iter().flat_map(|branch| &branch.turns)) {
        let Ok(span) = catalog.span(&view, turn) else { continue };
        if let Ok(text) = agents::turn_text(store, session, turn, &span) {
            assert_eq!(text.len() as u64, turn.text_len, "bytes of turn {} of {}", turn.n, session.id);
            let obeyed = text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t'));
            assert_eq!(obeyed, None, "in turn {} of {}", turn.n, session.id);
        }
        let _ = store.prompt(session, turn, &span);
    }
    let _ = store.context(session, history, &mut |_, _| {});
    let _ = store.undo_refusals(session, history);
    for n in 0..PLANNED.min(history.turns.len() as u32) {
        let _ = store.plan_undo(session, history, n);
        let _ = store.plan_fork(session, history, n, None);
    }
}

/// What is written into a control file.
pub fn control(data: &[u8]) {
    for control in Control::ALL {
        if let Ok(Some(command)) = Command::parse(control, data) {
            // A command is one word, or two: nothing else may ever act.
            let text = std::str::from_utf8(data).unwrap();
            let words: Vec<&str> = text.split_whitespace().collect();
            assert_eq!(words.len(), 1 + usize::from(command.force), "{text:?}");
            assert!(!(command.force && control == Control::Fork), "{text:?}");
        }
    }
}

/// Data for [`control`].
pub fn control_seeds() -> Vec<Vec<u8>> {
    ["3\n", "003", " last \n", "force 12", "force last", "1\n2\n", "", "-1", "99999999999999999999"]
        .map(|seed| seed.as_bytes().to_vec())
        .into()
}

/// Data for [`journal`]: what real undos have written down, one of each store that has them.
pub fn journal_seeds() -> Vec<Vec<u8>> {
    let seed = |(agent, _): &(&str, &str)| {
        let template = Template::of(agent);
        let state = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            places: vec![(template.kind, template.dir.path().into())],
            only: vec![template.kind],
        };
        let catalog = Catalog::for_one_command(&Environment::default(), &options);
        let listing = catalog.listing();
        let (_, listed) = listing.all().into_iter().next().unwrap();
        let view = catalog.view(&listed.session.key).unwrap();
        let last = view.history.turns.last().unwrap().n;
        let (state, force) = (StateDir::at(&state.path().join("turnfs")), true);
        cut::undo(&*view.store, &state, &view.session, &view.history, last, force).ok()?;
        files_of(state.path())
            .into_iter()
            .find(|(name, _)| name.ends_with("undo.json"))
            .map(|(_, bytes)| bytes)
    };
    TEMPLATES.iter().filter_map(seed).collect()
}

/// The journal of a cut that a crash interrupted, as `turnfs doctor` reads it. (Nothing is carried out.)
pub fn journal(data: &[u8]) {
    thread_local! {
        static STATE: tempfile::TempDir = {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join(SESSION)).unwrap();
            dir
        };
    }
    const SESSION: &str = "sessions/kimi-cli-0011223344556677";
    STATE.with(|state| {
        use std::os::unix::fs::PermissionsExt as _;
        for dir in ["", "sessions", SESSION] {
            fs::set_permissions(state.path().join(dir), fs::Permissions::from_mode(0o700)).unwrap();
        }
        let file = state.path().join(SESSION).join("journal.json");
        fs::write(&file, data).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(cut::leftovers(&StateDir::at(state.path())).unwrap().len(), 1);
    });
}
