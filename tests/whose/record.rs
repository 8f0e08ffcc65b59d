//! Sessions recorded at any path, in the stores of one HOME.

use std::fs;
use std::path::{Path, PathBuf};

use md5::Digest as _;
use serde_json::{Value, json};

use crate::support::{Mount, TestStore, copy_tree};

/// The agents that can fork.
pub const AGENTS: [&str; 5] = ["kimi-cli", "kimi-code", "codex", "openmax", "claude-code"];

fn sample(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(path)
}

/// Makes a session of four turns that `agent` recorded at `project`; `word` is in its first prompt. Its id.
pub fn record(store: &TestStore, agent: &str, project: &str, word: &str) -> String {
    match agent {
        "kimi-cli" => kimi_cli(store, project, word),
        "kimi-code" => kimi_code(store, project, word),
        "codex" => codex(store, project, word),
        "openmax" => openmax(store, project, word),
        "claude-code" => claude_code(store, project, word),
        other => panic!("{other}"),
    }
}

fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

pub fn folder(project: &str) -> String {
    md5::Md5::digest(project.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read_json(path: &Path, or: Value) -> Value {
    fs::read(path).map_or(or, |bytes| serde_json::from_slice(&bytes).unwrap())
}

fn replace_in(path: &Path, pairs: &[(&str, &str)]) {
    let mut text = fs::read_to_string(path).unwrap();
    for (old, new) in pairs {
        assert!(text.contains(old), "{} has no {old}", path.display());
        text = text.replace(old, new);
    }
    fs::write(path, text).unwrap();
}

fn kimi_cli(store: &TestStore, project: &str, word: &str) -> String {
    let id = new_id();
    let from = sample(
        "kimi-cli/a-plain/store/sessions/301f8022c44669fd30b93f123c419b45/0c45fd13-bf97-4bf8-9665-76d7e8ac2706",
    );
    let dir = store.root.join("sessions").join(folder(project)).join(&id);
    copy_tree(&from, &dir);
    for name in ["wire.jsonl", "context.jsonl"] {
        replace_in(&dir.join(name), &[("\"turn one\"", &format!("\"{word} one\""))]);
    }
    let index = store.root.join("kimi.json");
    let mut known = read_json(&index, json!({"work_dirs": []}));
    let dirs = known["work_dirs"].as_array_mut().unwrap();
    if !dirs.iter().any(|dir| dir["path"] == project) {
        dirs.push(json!({"path": project, "kaos": "local", "last_session_id": null}));
    }
    fs::write(index, serde_json::to_vec_pretty(&known).unwrap()).unwrap();
    id
}

fn kimi_code(store: &TestStore, project: &str, word: &str) -> String {
    let old = "session_43f6366c-ff5f-40c9-bd48-48e3280f5f51";
    let from = sample("kimi-code/a-plain/store/sessions/wd_kc-a-plain_d23af06e25cb").join(old);
    let id = format!("session_{}", new_id());
    // The name is the client's affair: nothing but the session's state tells the project.
    let workspace = format!("wd_x_{}", &folder(project)[..12]);
    let dir = store.home.join(".kimi-code/sessions").join(&workspace).join(&id);
    copy_tree(&from, &dir);
    let to = Value::from(project).to_string();
    let cwd = "\"cwd\":\"/home/dev/projects/work/kc-a-plain\"";
    replace_in(&dir.join("state.json"), &[(old, &id), (cwd, &format!("\"cwd\":{to}"))]);
    let wire = dir.join("agents/main/wire.jsonl");
    replace_in(
        &wire,
        &[("wd_kc-a-plain_d23af06e25cb", &workspace), ("\"turn one\"", &format!("\"{word} one\""))],
    );
    id
}

fn codex(store: &TestStore, project: &str, word: &str) -> String {
    let id = new_id();
    let day = "2026/11/30";
    let old = "01a22cb1-8565-71c1-997b-5aa67cc3b0a3";
    let name = |id: &str| format!("rollout-2026-11-30T13-42-41-{id}.jsonl");
    let dir = store.home.join(".codex/sessions").join(day);
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join(name(&id));
    fs::copy(sample("codex/a_plain4/store/sessions").join(day).join(name(old)), &file).unwrap();
    let (from, to) = ("\"/home/dev/work/app1\"", Value::from(project).to_string());
    replace_in(&file, &[(old, &id), (from, &to), ("one ALPHA", &format!("{word} one"))]);
    id
}

fn openmax(store: &TestStore, project: &str, word: &str) -> String {
    let id = new_id();
    let dir = store.home.join(".openmax/sessions");
    fs::create_dir_all(&dir).unwrap();
    let from = sample("openmax/a_plain/store/sessions");
    for suffix in ["messages.json", "manifest.json"] {
        let old = from.join(format!("561d5266-2612-4a70-b3b5-4277aff74b94.{suffix}"));
        fs::copy(old, dir.join(format!("{id}.{suffix}"))).unwrap();
    }
    replace_in(&dir.join(format!("{id}.messages.json")), &[("alpha one", &format!("{word} one"))]);
    let index = dir.join("index.json");
    let mut entries = read_json(&index, json!([]));
    let all = entries.as_array_mut().unwrap();
    let at = 1_796_045_220 + all.len() as u64;
    let title = format!("{word} one");
    all.push(json!({"id": id, "project": project, "title": title, "created_at": at, "updated_at": at}));
    fs::write(index, serde_json::to_vec_pretty(&entries).unwrap()).unwrap();
    id
}

fn claude_code(store: &TestStore, project: &str, word: &str) -> String {
    let id = new_id();
    let is_kept = |unit: u16| u8::try_from(unit).is_ok_and(|byte| byte.is_ascii_alphanumeric());
    let slug: String =
        project.encode_utf16().map(|unit| if is_kept(unit) { char::from(unit as u8) } else { '-' }).collect();
    // (No client records an empty path.)
    let slug = if slug.is_empty() { "-".to_owned() } else { slug.chars().take(200).collect() };
    let dir = store.home.join(".claude/projects").join(slug);
    fs::create_dir_all(&dir).unwrap();
    let old = "d2a89d11-f8f5-4cb1-836c-5321ecbadd9b";
    let file = dir.join(format!("{id}.jsonl"));
    let from = sample("claude-code/plain/store/projects/-home-dev-repos-team-proj-alpha");
    fs::copy(from.join(format!("{old}.jsonl")), &file).unwrap();
    let (cwd, to) = ("\"/home/dev/repos/team/proj/alpha\"", Value::from(project).to_string());
    replace_in(&file, &[(old, &id), (cwd, &to), ("first prompt", &format!("{word} one"))]);
    id
}

/// The names in a directory of a mount, sorted, without `latest`; empty if it is not there.
pub fn names(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    // What turnfs has there itself.
    names.retain(|name| !["latest", ".turnfs", "by-date", "recent"].contains(&name.as_str()));
    names.sort();
    names
}

/// Where a mount shows a host path.
pub fn shown(mount: &Mount, path: &Path) -> PathBuf {
    mount.path.join(path.strip_prefix("/").unwrap())
}

/// The ids that `turnfs ls` lists, sorted.
#[track_caller]
pub fn listed(store: &TestStore, arguments: &[&str]) -> Vec<String> {
    let all = store.run(&[&["ls", "--json"], arguments].concat()).json();
    let mut ids: Vec<String> =
        all.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

/// The prompts of a session's turns.
#[track_caller]
pub fn prompts(store: &TestStore, id: &str) -> Vec<String> {
    let shown = store.run(&["show", id, "--json"]).json();
    assert_eq!(shown["state"], "ok", "{shown}");
    let turns = shown["turns"].as_array().unwrap();
    turns.iter().map(|turn| turn["prompt"].as_str().unwrap_or_default().to_owned()).collect()
}
