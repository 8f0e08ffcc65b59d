//! What 10 KB cost that are appended to a session of 100 MB: the time until it is read again, and how many
//! bytes of it are parsed and only hashed. Stores are generated; the page cache is warm.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use turnfs::catalog::{Catalog, StoreOptions};
use turnfs::host::Environment;
use turnfs::session::{AgentKind, SessionKey};
use turnfs::transcript::metrics::{ReadKind, bytes};

const LARGE: usize = 100 << 20;
const APPENDED: usize = 10 << 10;
const ROUNDS: u32 = 20;

const KIMI: &str = "sessions/4b24918b77d02ba73f3f0be652ed7127/large";
const THREAD: &str = "01a22cb1-efc7-7c10-ad92-f63da4a19e90";
const STAMP: &str = "2026-11-30T13:43:08.000Z";

/// A store with one session whose main transcript can grow.
struct Store {
    agent: AgentKind,
    session: PathBuf,
    transcript: PathBuf,
    turn: fn(usize, usize) -> String,
}

/// One turn of kimi-cli's wire with about `size` bytes of text.
fn kimi_turn(n: usize, size: usize) -> String {
    let mut out = String::new();
    let mut event = |kind: &str, payload: String| {
        let message = format!("{{\"type\": \"{kind}\", \"payload\": {payload}}}");
        writeln!(out, "{{\"timestamp\": 1796045260.5, \"message\": {message}}}").unwrap();
    };
    event("TurnBegin", format!("{{\"user_input\": \"please do number {n}\"}}"));
    event("StepBegin", "{\"n\": 1}".into());
    for line in 0..size / 1000 {
        let text = format!("step {line} ").repeat(110);
        event("ContentPart", format!("{{\"type\": \"text\", \"text\": \"{text}\"}}"));
    }
    event("TurnEnd", "{}".into());
    out
}

fn codex_turn(n: usize, size: usize) -> String {
    let mut out = String::new();
    let mut line = |kind: &str, payload: String| {
        writeln!(out, "{{\"timestamp\":\"{STAMP}\",\"type\":\"{kind}\",\"payload\":{payload}}}").unwrap();
    };
    let message = |role: &str, kind: &str, text: String| {
        format!(
            "{{\"type\":\"message\",\"role\":\"{role}\",\"content\":[{{\"type\":\"{kind}\",\"text\":\"{text}\"}}]}}"
        )
    };
    line("event_msg", "{\"type\":\"task_started\"}".into());
    line("response_item", message("user", "input_text", format!("please do number {n}")));
    for part in 0..size / 1000 {
        line("response_item", message("assistant", "output_text", format!("step {part} ").repeat(110)));
    }
    line("event_msg", "{\"type\":\"task_complete\"}".into());
    out
}

fn openmax_turn(n: usize, size: usize) -> String {
    let mut out = String::new();
    writeln!(out, "{{\"role\":\"user\",\"content\":\"please do number {n}\"}}").unwrap();
    for part in 0..size / 1000 {
        let text = format!("step {part} ").repeat(110);
        writeln!(out, "{{\"role\":\"assistant\",\"content\":\"{text}\"}}").unwrap();
    }
    out
}

fn stores(root: &Path) -> [Store; 3] {
    let file = |path: String, head: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, head).unwrap();
        path
    };
    let rollout = format!("sessions/2026/11/30/rollout-2026-11-30T13-43-08-{THREAD}.jsonl");
    let meta = format!(
        "{{\"timestamp\":\"{STAMP}\",\"type\":\"session_meta\",\"payload\":{{\"id\":\"{THREAD}\",\"timestamp\":\"{STAMP}\",\"cwd\":\"/w/a\",\"originator\":\"bench\",\"cli_version\":\"0.171.0\",\"source\":\"cli\"}}}}\n"
    );
    file("kimi-cli/kimi.json".into(), "{\"work_dirs\": [{\"path\": \"/w/a\"}]}");
    file("openmax/sessions/index.json".into(), "{\"sessions\":[]}");
    [
        Store {
            agent: AgentKind::KimiCli,
            session: KIMI.into(),
            transcript: file(
                format!("kimi-cli/{KIMI}/wire.jsonl"),
                "{\"type\": \"metadata\", \"protocol_version\": \"1.10\"}\n",
            ),
            turn: kimi_turn,
        },
        Store {
            agent: AgentKind::Codex,
            transcript: file(format!("codex/{rollout}"), &meta),
            session: rollout.into(),
            turn: codex_turn,
        },
        Store {
            agent: AgentKind::OpenMax,
            session: "sessions/large.messages.json".into(),
            transcript: file(
                "openmax/sessions/large.messages.json".into(),
                "{\"role\":\"system\",\"content\":\"You are a bench.\"}\n",
            ),
            turn: openmax_turn,
        },
    ]
}

fn main() {
    let dir = tempfile::tempdir().unwrap();
    for store in stores(dir.path()) {
        let root = dir.path().join(store.agent.name());
        let append = |text: &str| {
            File::options().append(true).open(&store.transcript).unwrap().write_all(text.as_bytes()).unwrap();
        };
        let mut large = String::with_capacity(LARGE);
        let mut n = 0;
        while large.len() < LARGE {
            large.push_str(&(store.turn)(n, 50_000));
            n += 1;
        }
        append(&large);
        drop(large);
        let options = StoreOptions { places: vec![(store.agent, root.clone())], only: vec![store.agent] };
        let catalog = Catalog::new(&Environment::default(), &options);
        let key = SessionKey { agent: store.agent, root: root.into(), path: store.session.as_path().into() };
        let began = Instant::now();
        assert_eq!(catalog.view(&key).unwrap().history.turns.len(), n);
        let first = began.elapsed();
        let counted = || (bytes(store.agent, ReadKind::Transcript), bytes(store.agent, ReadKind::Check));
        let mut times: Vec<Duration> = Vec::new();
        let before = counted();
        let mut appended = 0;
        for _ in 0..ROUNDS {
            let text = (store.turn)(n, APPENDED);
            append(&text);
            appended += text.len() as u64;
            n += 1;
            let began = Instant::now();
            assert_eq!(catalog.view(&key).unwrap().history.turns.len(), n);
            times.push(began.elapsed());
        }
        times.sort();
        let (parsed, checked) = counted();
        let each = |bytes: u64| bytes / u64::from(ROUNDS);
        println!(
            "{}: {n} turns; first view {first:.1?}; after an append of {} bytes {:.1?} (median of {ROUNDS}, longest {:.1?}): {} bytes parsed, {} only hashed",
            store.agent,
            each(appended),
            times[times.len() / 2],
            times[times.len() - 1],
            each(parsed - before.0),
            each(checked - before.1),
        );
    }
}
