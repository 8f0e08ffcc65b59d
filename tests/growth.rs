//! A session that grows is read piece by piece, and what is found is always what a reading of the whole
//! finds: every sample of every store is grown line by line and in chunks that end anywhere.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use turnfs::agents::{AgentStore, open, store_of};
use turnfs::session::{AgentKind, Session};
use turnfs::transcript::Passes;

/// Numbers that look random and are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Whether everything is to be tried.
fn is_all() -> bool {
    std::env::var_os("TURNFS_TEST_ALL").is_some()
}

/// A piece is at most this part of a file.
fn pieces() -> usize {
    if is_all() { 12 } else { 6 }
}

/// A file that grows.
struct Growing {
    path: PathBuf,
    whole: Vec<u8>,
    /// Bytes of `whole` that are there already.
    there: usize,
}

impl Growing {
    /// The next piece: a line, or a chunk that ends anywhere.
    fn next(&mut self, dice: &mut Dice, by_lines: bool) -> Vec<u8> {
        let rest = &self.whole[self.there..];
        let len = match by_lines {
            true => memchr(rest).map_or(rest.len(), |newline| newline + 1),
            false => 1 + dice.below((self.whole.len() / pieces()).min(rest.len())),
        };
        self.there += len;
        rest[..len].to_vec()
    }

    fn append(&self, bytes: &[u8]) {
        fs::create_dir_all(self.path.parent().unwrap()).unwrap();
        File::options().create(true).append(true).open(&self.path).unwrap().write_all(bytes).unwrap();
    }
}

fn memchr(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}

/// A session whose files grow, read again and again with one memory.
struct Case<'s> {
    name: String,
    agent: std::sync::Arc<dyn AgentStore>,
    session: &'s Session,
    passes: Passes,
    steps: usize,
}

impl Case<'_> {
    /// Reads the session by both ways.
    fn compare(&mut self, what: &str) {
        self.steps += 1;
        self.passes.begin();
        let grown = self.agent.load_again(self.session, &mut self.passes);
        let whole = self.agent.load(self.session);
        if grown != whole {
            let at = format!("{}, step {}: {what}", self.name, self.steps);
            assert_eq!(format!("{grown:#?}"), format!("{whole:#?}"), "{at}");
            panic!("{at}");
        }
        if grown.is_ok() {
            self.passes.settle();
        }
    }
}

/// Every session of every sample, on a copy of its store.
fn each_session(mut with: impl FnMut(AgentKind, &str, &Path, &Session)) -> usize {
    let mut sessions = 0;
    for kind in AgentKind::ALL {
        for sample in support::names_of(kind.name()) {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().join("store");
            support::copy_tree(&support::samples_of(kind.name()).join(&sample).join("store"), &root);
            let found = open(kind, &*root).discover().unwrap().sessions.clone();
            for session in &found {
                sessions += 1;
                with(kind, &sample, &root, session);
            }
        }
    }
    sessions
}

/// Grows each session from nothing to what it is. `between` may do something else before each step; it gets
/// the files and says what it did.
fn grow(by_lines: bool, seed: u64, mut between: impl FnMut(&mut Case<'_>, &[Growing], &mut Dice)) {
    let mut steps = 0;
    let sessions = each_session(|kind, sample, root, session| {
        let mut dice = Dice(seed);
        let mut files: Vec<Growing> = Vec::new();
        for file in &session.files {
            let path = root.join(file);
            let Ok(whole) = fs::read(&path) else { continue };
            fs::remove_file(&path).unwrap();
            files.push(Growing { path, whole, there: 0 });
        }
        let name = format!("{kind} {sample} {} (seed {seed})", session.id);
        let mut case = Case { name, agent: store_of(session), session, passes: Passes::default(), steps: 0 };
        loop {
            let unfinished: Vec<usize> =
                (0..files.len()).filter(|at| files[*at].there < files[*at].whole.len()).collect();
            let Some(&at) = unfinished.get(dice.below(unfinished.len())) else { break };
            between(&mut case, &files, &mut dice);
            let piece = files[at].next(&mut dice, by_lines);
            files[at].append(&piece);
            case.compare("after an append");
        }
        steps += case.steps;
    });
    println!("{sessions} sessions, {steps} steps");
    assert!(sessions >= 60 && steps > 1000, "{sessions} sessions, {steps} steps");
}

#[test]
fn a_session_that_grows_line_by_line_is_what_the_whole_is() {
    grow(true, 1, |_, _, _| {});
}

#[test]
fn a_session_that_grows_by_chunks_that_end_anywhere_is_what_the_whole_is() {
    let seeds = if is_all() { 2..6 } else { 2..4 };
    for seed in seeds {
        grow(false, seed, |_, _, _| {});
    }
}

#[test]
fn what_was_rewritten_cut_off_or_replaced_in_between_is_read_anew() {
    grow(false, 7, |case, files, dice| {
        let Some(file) = files.get(dice.below(files.len())).filter(|file| file.there > 0) else { return };
        let there = &file.whole[..file.there];
        match dice.below(6) {
            0 => {
                let at = dice.below(there.len());
                let open = File::options().write(true).open(&file.path).unwrap();
                open.write_all_at(b"#", at as u64).unwrap();
                case.compare("after an edit in place");
            }
            1 => {
                let open = File::options().write(true).open(&file.path).unwrap();
                open.set_len(dice.below(there.len()) as u64).unwrap();
                case.compare("after a cut");
            }
            2 => {
                let beside = file.path.with_extension("tmp");
                let mut other = there.to_vec();
                let from = dice.below(other.len());
                other.splice(from..from, *b"{\"not\": \"a record\"}\n");
                fs::write(&beside, &other).unwrap();
                fs::rename(&beside, &file.path).unwrap();
                case.compare("after a replacement");
            }
            3 => {
                fs::remove_file(&file.path).unwrap();
                case.compare("after a removal");
            }
            _ => return,
        }
        if dice.one_in(2) {
            fs::write(&file.path, there).unwrap();
            case.compare("after it was put back");
        } else {
            let beside = file.path.with_extension("tmp");
            fs::write(&beside, there).unwrap();
            fs::rename(&beside, &file.path).unwrap();
        }
    });
}

#[test]
fn damage_that_is_appended_is_the_same_damage() {
    const DAMAGE: [&[u8]; 9] = [
        b"garbage\n",
        b"{\"type\":\"half a rec",
        b"{\"a\": \"a newline that is\nnot escaped\"}\n",
        b"\0\0\0\0\0",
        b"\0\0\0\n",
        b"\xff\xfe\n",
        b"\n \r\n",
        b"\xEF\xBB\xBF",
        b"[1]\n",
    ];
    for seed in 8..10 {
        grow(seed == 8, seed, |case, files, dice| {
            let Some(file) = files.get(dice.below(files.len())).filter(|_| dice.one_in(8)) else { return };
            file.append(DAMAGE[dice.below(DAMAGE.len())]);
            case.compare("after damage");
        });
    }
}
