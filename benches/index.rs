//! How fast a session is indexed (bytes per second, validation and sizes included), 1,000 turns are
//! aligned, and 1,000 sessions are found. Stores are generated; the page cache is warm. Times are those of
//! the thread on its core, so that a busy machine does not change them.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Bencher, Criterion, Throughput, criterion_group, criterion_main};
use rustix::time::{ClockId, clock_gettime};
use turnfs::agents::{AgentStore, open, store_of};
use turnfs::session::{AgentKind, Session, State};

const PROJECT: &str = "/w/a";
/// md5 of the project's path.
const GROUP: &str = "sessions/4b24918b77d02ba73f3f0be652ed7127";

/// Measures the processor time of the calling thread.
fn measure<T>(b: &mut Bencher<'_>, mut what: impl FnMut() -> T) {
    b.iter_custom(|times| {
        let began = processor_time();
        for _ in 0..times {
            black_box(what());
        }
        processor_time() - began
    });
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn kimi(root: &Path) -> Arc<dyn AgentStore> {
    open(AgentKind::KimiCli, root)
}

/// A session in the making: its wire and its context.
#[derive(Default)]
struct Files {
    wire: String,
    context: String,
    checkpoint: u32,
    clock: f64,
}

impl Files {
    fn new() -> Files {
        let mut files = Files { clock: 1_796_045_259.25, ..Files::default() };
        files.wire.push_str("{\"type\": \"metadata\", \"protocol_version\": \"1.10\"}\n");
        files.context.push_str("{\"role\": \"_system_prompt\", \"content\": \"You are a bench.\"}\n");
        files
    }

    fn wire(&mut self, kind: &str, payload: &str) {
        self.clock += 0.125;
        let clock = self.clock;
        writeln!(
            self.wire,
            "{{\"timestamp\": {clock}, \"message\": {{\"type\": \"{kind}\", \"payload\": {payload}}}}}"
        )
        .unwrap();
    }

    fn checkpoint(&mut self) {
        writeln!(self.context, "{{\"role\": \"_checkpoint\", \"id\": {}}}", self.checkpoint).unwrap();
        self.checkpoint += 1;
    }

    fn message(&mut self, rest: &str) {
        writeln!(self.context, "{{\"role\":{rest}}}").unwrap();
    }

    /// One turn: a tool call with this output, then an answer. All texts are JSON already.
    fn turn(&mut self, n: usize, prompt: &str, output: &str, answer: &str) {
        self.wire("TurnBegin", &format!("{{\"user_input\": \"{prompt}\"}}"));
        self.checkpoint();
        self.message(&format!("\"user\",\"content\":\"{prompt}\""));
        self.wire("StepBegin", "{\"n\": 1}");
        self.checkpoint();
        let call = format!(
            "{{\"type\": \"function\", \"id\": \"call_{n}\", \"function\": {{\"name\": \"Shell\", \"arguments\": \"{{\\\"command\\\":\\\"make\\\"}}\"}}}}"
        );
        self.wire(
            "ContentPart",
            &format!("{{\"type\": \"think\", \"think\": \"{answer}\", \"encrypted\": null}}"),
        );
        self.wire("ToolCall", &call);
        self.message(&format!("\"assistant\",\"content\":[],\"tool_calls\":[{call}]"));
        self.wire(
            "ToolResult",
            &format!(
                "{{\"tool_call_id\": \"call_{n}\", \"return_value\": {{\"is_error\": false, \"output\": \"{output}\", \"message\": \"Done.\", \"display\": [], \"extras\": null}}}}"
            ),
        );
        self.message(&format!("\"tool\",\"content\":\"{output}\",\"tool_call_id\":\"call_{n}\""));
        self.wire(
            "StatusUpdate",
            "{\"context_usage\": 0.014003753662109375, \"context_tokens\": 3671, \"max_context_tokens\": 262144, \"token_usage\": {\"input_other\": 3671, \"output\": 7, \"input_cache_read\": 0, \"input_cache_creation\": 0}, \"message_id\": \"chatcmpl-2\", \"plan_mode\": false, \"mcp_status\": null}",
        );
        self.wire("StepBegin", "{\"n\": 2}");
        self.checkpoint();
        self.wire("ContentPart", &format!("{{\"type\": \"text\", \"text\": \"{answer}\"}}"));
        self.message(&format!("\"assistant\",\"content\":\"{answer}\""));
        self.wire("TurnEnd", "{}");
    }

    fn write(&self, session: &Path) -> u64 {
        fs::create_dir_all(session).unwrap();
        fs::write(session.join("wire.jsonl"), &self.wire).unwrap();
        fs::write(session.join("context.jsonl"), &self.context).unwrap();
        (self.wire.len() + self.context.len()) as u64
    }
}

fn output(bytes: usize) -> String {
    let line = r#"src/main.rs:42:17: warning: unused variable: `größe` → use \"_größe\" instead (id 0x1f)\n"#;
    line.repeat(bytes / line.len() + 1)
}

fn only_session(root: &Path) -> Session {
    let index = format!("{{\"work_dirs\": [{{\"path\": \"{PROJECT}\"}}]}}");
    fs::write(root.join("kimi.json"), index).unwrap();
    let found = kimi(root).discover().unwrap();
    assert_eq!(found.sessions.len(), 1);
    Session::clone(&found.sessions[0])
}

/// About 64 MB in both files together: many small records, some large outputs.
fn indexing(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let mut files = Files::new();
    let sizes = [200, 4_000, 60_000, 900, 1_500_000, 12_000];
    let outputs: Vec<String> = sizes.map(output).to_vec();
    let answer = output(700);
    let mut n = 0;
    while files.wire.len() < 32 << 20 {
        files.turn(n, &format!("please do number {n}"), &outputs[n % outputs.len()], &answer);
        n += 1;
    }
    let bytes = files.write(&dir.path().join(GROUP).join("large"));
    drop(files);
    let session = only_session(dir.path());
    let history = store_of(&session).load(&session).unwrap();
    assert_eq!((history.state, history.turns.len()), (State::Ok, n));
    let mut group = c.benchmark_group("index");
    group.throughput(Throughput::Bytes(bytes)).sample_size(10).measurement_time(Duration::from_secs(3));
    group.bench_function("64 MB of mixed records", |b| {
        measure(b, || store_of(&session).load(&session).unwrap())
    });
    group.finish();
}

/// Loads of 1,000 turns with hardly any text, so that what is measured is mostly the alignment.
fn aligning(c: &mut Criterion) {
    let mut group = c.benchmark_group("1,000 turns");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    for (name, with_checkpoints) in [("exact replay", true), ("scored matching", false)] {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::new();
        for n in 0..1000 {
            files.turn(n, &format!("turn {n}"), "ok", &format!("answer {}", n % 7));
        }
        if !with_checkpoints {
            let lines = files.context.lines().filter(|line| !line.contains("_checkpoint"));
            files.context = lines.flat_map(|line| [line, "\n"]).collect();
        }
        files.write(&dir.path().join(GROUP).join("many"));
        let session = only_session(dir.path());
        let history = store_of(&session).load(&session).unwrap();
        assert_eq!((history.turns.len(), history.cuts.len()), (1000, 1001));
        group.bench_function(name, |b| measure(b, || store_of(&session).load(&session).unwrap()));
    }
    group.finish();
}

fn finding(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let mut files = Files::new();
    files.turn(0, "hello", "ok", "hi");
    for n in 0..1000 {
        let session = dir.path().join(GROUP).join(format!("session-{n}"));
        files.write(&session);
        fs::write(session.join("state.json"), "{\"custom_title\": \"hello\"}").unwrap();
    }
    fs::write(dir.path().join("kimi.json"), "{\"work_dirs\": []}").unwrap();
    // Younger stats prove nothing, so everything would be read again.
    std::thread::sleep(Duration::from_millis(2200));
    let cold = || kimi(dir.path()).discover().unwrap();
    let known = kimi(dir.path());
    assert_eq!(known.discover().unwrap().sessions.len(), 1000);
    let mut group = c.benchmark_group("1,000 sessions");
    group.sample_size(10).measurement_time(Duration::from_secs(2));
    group.bench_function("found", |b| measure(b, cold));
    group.bench_function("found again", |b| measure(b, || known.discover().unwrap()));
    group.finish();
}

criterion_group!(benches, indexing, aligning, finding);
criterion_main!(benches);
