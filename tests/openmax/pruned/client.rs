//! A small client of this store that knows what was really said. It appends, prunes, fails and is killed as the
//! real ones are (`docs/stores/openmax.md`, "7. History behind a prune").

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::json;

pub const CUT: &str = "\n…[older tool output truncated]";

/// Numbers that are the same for the same seed (splitmix64).
#[derive(Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// From 0 to `below - 1`.
    pub fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) % below as u64) as usize
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.roll(100) < percent
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl Message {
    fn of(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: Some(content.into()), tool_calls: None, tool_call_id: None }
    }

    pub fn text(&self) -> &str {
        self.content.as_deref().unwrap_or_default()
    }

    fn tokens(&self) -> usize {
        let calls = self.tool_calls.iter().flatten().map(|call| call.to_string().len()).sum::<usize>();
        (self.text().len() + calls) / 4 + 8
    }

    fn is_prune_note(&self) -> bool {
        self.role == "user" && self.text().starts_with("[context note:")
    }
}

/// What a message is, beyond its bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Prompt,
    /// A line of the harness before a prompt.
    Note,
    Other,
}

/// A line of a transcript; `said`: which of all messages it is, none for what a prune put in.
#[derive(Clone)]
pub struct Line {
    pub message: Message,
    pub said: Option<usize>,
}

/// A transcript, and the true history of which it is what was left.
#[derive(Clone, Default)]
pub struct Transcript {
    pub lines: Vec<Line>,
    pub history: Vec<usize>,
    /// The archive or the record of a prune in it could not be written.
    pub lossy: bool,
    /// A rewrite failed and later lines were appended to what was there.
    pub torn_apart: bool,
}

impl Transcript {
    fn push(&mut self, message: Message, said: usize) {
        self.lines.push(Line { message, said: Some(said) });
        self.history.push(said);
    }
}

/// How a session's client is.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The newer client: it takes a prune back that it could not write, and tries it again.
    pub newer: bool,
    /// The model gives every summary the same words.
    pub mock_summary: bool,
    /// Calls are counted from 0 in each reply.
    pub ids_reused: bool,
    /// People and model say the same few things.
    pub repetitive: bool,
    /// How often a prune does not go well, percent.
    pub trouble: usize,
    pub budget: usize,
}

/// What happens to a prune.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Lands,
    KilledAfterOriginals,
    KilledAfterArchive,
    KilledAfterRecord,
    RewriteFails,
    DiskFull,
}

#[derive(Serialize)]
struct Record<'a> {
    ts: u64,
    message_count: usize,
    tools: Vec<String>,
    digest: &'a str,
}

/// The client was killed.
pub struct Killed;

pub struct Client {
    pub dice: Dice,
    pub form: Form,
    pub id: String,
    dir: PathBuf,
    pub said: Vec<(Message, Kind)>,
    memory: Transcript,
    pub disk: Transcript,
    persisted: usize,
    /// So many writes of the transcript fail from now on.
    failing: usize,
    /// How often a prune did not land.
    pub failed: usize,
    pub shortened: usize,
    /// Whether somebody else made it shorter.
    pub cut: bool,
    /// Whether the disk was ever full.
    pub was_full: bool,
}

impl Client {
    pub fn new(dir: PathBuf, id: &str, form: Form, dice: Dice) -> Client {
        let mut client = Client {
            dice,
            form,
            id: id.into(),
            dir,
            said: Vec::new(),
            memory: Transcript::default(),
            disk: Transcript::default(),
            persisted: 0,
            failing: 0,
            failed: 0,
            shortened: 0,
            cut: false,
            was_full: false,
        };
        client.sit_down();
        client
    }

    pub fn file(&self, suffix: &str) -> PathBuf {
        self.dir.join(format!("{}.{suffix}", self.id))
    }

    /// A new process reads what is on disk.
    pub fn sit_down(&mut self) {
        self.memory = self.disk.clone();
        self.persisted = self.memory.lines.len();
        self.failing = 0;
        if self.memory.lines.is_empty() {
            let system = self.say(Message::of("system", "You are a coding agent."), Kind::Other);
            self.memory.push(self.said[system].0.clone(), system);
        }
    }

    fn say(&mut self, message: Message, kind: Kind) -> usize {
        self.said.push((message, kind));
        self.said.len() - 1
    }

    fn push(&mut self, message: Message, kind: Kind) {
        let said = self.say(message.clone(), kind);
        self.memory.push(message, said);
    }

    fn append(&mut self, suffix: &str, lines: &[String]) {
        let bytes: String = lines.iter().map(|line| format!("{line}\n")).collect();
        self.append_bytes(suffix, bytes.as_bytes());
    }

    fn append_bytes(&mut self, suffix: &str, bytes: &[u8]) {
        if !bytes.is_empty() {
            let mut file = fs::OpenOptions::new().create(true).append(true).open(self.file(suffix)).unwrap();
            file.write_all(bytes).unwrap();
        }
    }

    fn save(&mut self, rewrite: bool) -> bool {
        let json = |line: &Line| serde_json::to_string(&line.message).unwrap();
        let len = self.memory.lines.len();
        if !rewrite && len == self.persisted {
            return true;
        }
        if self.failing > 0 {
            self.failing -= 1;
            return false;
        }
        if rewrite || len < self.persisted {
            let bytes: String = self.memory.lines.iter().map(|line| json(line) + "\n").collect();
            fs::write(self.file("messages.json"), bytes).unwrap();
            self.disk = self.memory.clone();
        } else {
            let new = self.memory.lines[self.persisted..].to_vec();
            // Its memory is not what is on disk: it pruned, and could not write that.
            let same = |(one, other): (&Line, &Line)| one.message == other.message;
            let known = self.disk.lines.iter().zip(&self.memory.lines);
            if self.disk.lines.len() != self.persisted || !known.clone().all(same) {
                self.disk.torn_apart = true;
            }
            self.append("messages.json", &new.iter().map(json).collect::<Vec<_>>());
            self.disk.history.extend(new.iter().filter_map(|line| line.said));
            self.disk.lines.extend(new);
        }
        self.persisted = len;
        true
    }

    /// One prompt and what follows, as far as it gets.
    pub fn turn(&mut self) -> Result<(), Killed> {
        let first = self.memory.lines.len() == 1;
        // Of a newer client it is not known where a second note before the first prompt would go.
        let notes =
            if self.dice.chance(20) { 1 + self.dice.roll(if self.form.newer { 1 } else { 2 }) } else { 0 };
        for _ in 0..notes {
            let said = [
                "[policy notice: no rule matches]",
                "[extension refreeze: x.]",
                "[settings.json changed on disk. y]",
            ];
            let note = said[self.dice.roll(said.len())];
            self.push(Message::of("user", note), Kind::Note);
        }
        let typed = !first && self.dice.chance(3);
        let prompt = match self.form.repetitive {
            _ if typed => "[context note: is what a person typed".to_owned(),
            true => ["go on", "yes", "again"][self.dice.roll(3)].to_owned(),
            false => format!("prompt {} {}", self.said.len(), "word ".repeat(self.dice.roll(30))),
        };
        self.push(Message::of("user", prompt), Kind::Prompt);
        if self.dice.chance(2) && !first && !typed {
            // No endpoint: the prompt is taken back, the notes stay.
            self.memory.lines.pop();
            self.memory.history.pop();
            self.save(false);
            return Ok(());
        }
        for _ in 0..4 {
            self.prune_if_over()?;
            match self.dice.roll(40) {
                0 => return Err(Killed),
                1 if !typed => break,
                _ => {}
            }
            let calls = if self.dice.chance(45) { 1 + self.dice.roll(3) } else { 0 };
            let text = match self.form.repetitive {
                true => ["done", "ok"][self.dice.roll(2)].to_owned(),
                false => format!("ANSWER {} {}", self.said.len(), "lorem ".repeat(self.dice.roll(60))),
            };
            let ids: Vec<String> = (0..calls)
                .map(|nth| match self.form.ids_reused {
                    true => format!("call_{nth}"),
                    false => format!("call_{}_{nth}", self.said.len()),
                })
                .collect();
            let call = |id: &String| json!({"id": id, "type": "function", "function": {"name": "bash", "arguments": "{}"}});
            let mut reply = Message::of("assistant", text);
            if !ids.is_empty() {
                reply.tool_calls = Some(ids.iter().map(call).collect());
                reply.content = reply.content.filter(|_| self.dice.chance(50));
            }
            self.push(reply, Kind::Other);
            self.save(false);
            if ids.is_empty() {
                break;
            }
            if self.dice.chance(3) {
                // In a tool: the calls stay open.
                return Err(Killed);
            }
            let cancelled = self.dice.chance(4).then(|| self.dice.roll(ids.len()));
            for (nth, id) in ids.into_iter().enumerate() {
                let output = match cancelled {
                    Some(at) if nth == at => "Error: command cancelled by user".to_owned(),
                    Some(at) if nth > at => "The user cancelled this turn.".to_owned(),
                    _ => self.output(),
                };
                let result = Message { tool_call_id: Some(id), ..Message::of("tool", output) };
                self.push(result, Kind::Other);
            }
            self.save(false);
            if cancelled.is_some() {
                break;
            }
        }
        self.save(false);
        Ok(())
    }

    fn output(&mut self) -> String {
        let long = self.dice.chance(60);
        let lines = if long { 25 + self.dice.roll(60) } else { self.dice.roll(12) };
        let run = if self.form.repetitive { self.dice.roll(3) } else { self.said.len() };
        (0..lines).map(|line| format!("{line:5} output {run} says — line {line}\n")).collect()
    }

    fn tokens(&self) -> usize {
        self.memory.lines.iter().map(|line| line.message.tokens()).sum()
    }

    /// Where a prune's note stands.
    fn behind_head(&self) -> usize {
        let noted = self
            .memory
            .lines
            .get(1)
            .is_some_and(|line| line.said.is_some_and(|said| self.said[said].1 == Kind::Note));
        if self.form.newer && noted { 3 } else { 2 }
    }

    fn prune_if_over(&mut self) -> Result<(), Killed> {
        let mut tries = 0;
        while self.tokens() > self.form.budget {
            let (before, persisted) = (self.memory.clone(), self.persisted);
            let Some(landed) = self.prune()? else { return Ok(()) };
            tries += 1;
            if landed || !self.form.newer {
                return Ok(());
            }
            (self.memory, self.persisted) = (before, persisted);
            if tries == 3 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether it landed; none if there was nothing to do.
    fn prune(&mut self) -> Result<Option<bool>, Killed> {
        let at = self.behind_head();
        let target = self.form.budget * 70 / 100;
        let is_note =
            |client: &Client| client.memory.lines.get(at).is_some_and(|line| line.message.is_prune_note());
        let reserve = if is_note(self) { 0 } else { 120 };
        let tail = self.memory.lines.len().saturating_sub(6);
        let mut originals = Vec::new();
        let mut reached = false;
        for nth in 1..tail {
            let message = self.memory.lines[nth].message.clone();
            if message.role == "tool" && message.text().len() > 600 {
                self.memory.lines[nth].message.content = Some(self.shortened_to(message.text()));
                originals.push(message);
            }
            if self.tokens() + reserve <= target {
                reached = true;
                break;
            }
        }
        let mut dropped: Vec<Message> = Vec::new();
        let mut note = None;
        if reached {
            if reserve > 0 && !originals.is_empty() && self.memory.lines.len() >= at {
                self.shortened += 1;
                note = Some(format!(
                    "[context note: {} older tool outputs were shortened in place; each ends with \"…[older tool output truncated]\".",
                    originals.len()
                ));
                let line = Line { message: Message::of("user", ""), said: None };
                self.memory.lines.insert(at, line);
            }
        } else {
            self.drop_from(at, target, &mut dropped);
            if !dropped.is_empty() {
                let digest = Line { message: Message::of("user", "x".repeat(300)), said: None };
                self.memory.lines.insert(at, digest);
                self.drop_from(at + 1, target, &mut dropped);
            }
        }
        if originals.is_empty() && dropped.is_empty() {
            return Ok(None);
        }
        self.settle(at, originals, dropped, note)
    }

    fn drop_from(&mut self, at: usize, target: usize, dropped: &mut Vec<Message>) {
        while self.tokens() > target && self.memory.lines.len() > 6 {
            let removed = self.memory.lines.remove(at).message;
            let calls = removed.tool_calls.is_some();
            dropped.push(removed);
            while calls && self.memory.lines.get(at).is_some_and(|line| line.message.role == "tool") {
                dropped.push(self.memory.lines.remove(at).message);
            }
        }
    }

    fn shortened_to(&mut self, text: &str) -> String {
        let starts: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
        let start = if self.dice.chance(40) { 0 } else { starts[self.dice.roll(starts.len() / 2)] };
        let mut end = (start + 160).min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        format!("{}{}{CUT}", if start > 0 { "…" } else { "" }, &text[start..end])
    }

    /// Archive, record, rewrite, as far as they get.
    fn settle(
        &mut self,
        at: usize,
        originals: Vec<Message>,
        dropped: Vec<Message>,
        note: Option<String>,
    ) -> Result<Option<bool>, Killed> {
        let fates = [
            Fate::KilledAfterOriginals,
            Fate::KilledAfterArchive,
            Fate::KilledAfterRecord,
            Fate::RewriteFails,
            Fate::DiskFull,
        ];
        let trouble = self.dice.chance(self.form.trouble);
        let fate = if trouble { fates[self.dice.roll(fates.len())] } else { Fate::Lands };
        self.failed += usize::from(trouble);
        let json = |messages: &[Message]| -> Vec<String> {
            messages.iter().map(|message| serde_json::to_string(message).unwrap()).collect()
        };
        let full = fate == Fate::DiskFull;
        self.was_full |= full;
        let mut archived = true;
        for (nth, block) in [json(&originals), json(&dropped)].iter().enumerate() {
            if full && !block.is_empty() && (nth == 1 || dropped.is_empty() || self.dice.chance(50)) {
                let bytes = block.join("\n") + "\n";
                let end = self.dice.roll(bytes.len());
                self.append_bytes("archive.jsonl", &bytes.as_bytes()[..end]);
                archived = false;
            } else {
                self.append("archive.jsonl", block);
            }
            if fate == Fate::KilledAfterOriginals {
                return Err(Killed);
            }
        }
        if fate == Fate::KilledAfterArchive {
            return Err(Killed);
        }
        self.memory.lossy |= !archived;
        let path = self.file("archive.jsonl").display().to_string();
        if let Some(note) = note {
            let path =
                if archived { format!(" Full text: {path} (bash: grep or tail it).") } else { String::new() };
            let text = format!("{note}{path} Re-issue the call if you need the rest.");
            self.memory.lines[at].message = Message::of("user", text);
        }
        if !dropped.is_empty() {
            let summary = match self.form.mock_summary {
                true => "MOCKSUMMARY of the dropped exchanges.".to_owned(),
                false => format!("Goal: {}", self.dice.roll(1 << 30)),
            };
            let path = if archived {
                format!(" Full dropped messages: {path} (bash: grep or tail it).")
            } else {
                String::new()
            };
            let digest = format!(
                "[context note: {} earlier messages were compacted. Summary: {summary}{path} Re-read files if you need the details.",
                dropped.len()
            );
            self.memory.lines[at].message = Message::of("user", digest.clone());
            let record = Record { ts: 1, message_count: dropped.len(), tools: vec![], digest: &digest };
            let record = serde_json::to_string(&record).unwrap();
            if full && self.dice.chance(50) {
                let end = self.dice.roll(record.len());
                self.append_bytes("compaction.jsonl", &record.as_bytes()[..end]);
                self.memory.lossy = true;
            } else {
                self.append("compaction.jsonl", &[record]);
            }
        }
        match fate {
            Fate::KilledAfterRecord => return Err(Killed),
            Fate::RewriteFails => self.failing = 1 + self.dice.roll(3),
            Fate::DiskFull if self.dice.chance(70) => self.failing = 1 + self.dice.roll(3),
            _ => {}
        }
        let landed = self.save(true);
        if !landed && self.form.newer {
            self.failing = 0;
        }
        Ok(Some(landed))
    }
}

impl Client {
    /// Somebody else cut the session: the transcript is read anew, and it stands for these messages.
    pub fn was_cut(&mut self, kept: &[usize]) {
        let text = fs::read_to_string(self.file("messages.json")).unwrap_or_default();
        let messages: Vec<Message> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let real = messages.iter().filter(|message| !self.is_put_in(message)).count();
        // Behind the head stand the last of what was kept; the head is its beginning.
        let head = messages.iter().position(|message| self.is_put_in(message)).unwrap_or(messages.len());
        let skipped = kept.len() - real;
        let mut at = 0;
        let mut lines = Vec::new();
        for message in messages {
            let said = match self.is_put_in(&message) {
                true => None,
                false => {
                    let nth = if at < head { at } else { at + skipped };
                    at += 1;
                    Some(kept[nth])
                }
            };
            lines.push(Line { message, said });
        }
        let lossy = self.disk.lossy;
        self.cut = true;
        self.disk = Transcript { lines, history: kept.to_vec(), lossy, torn_apart: false };
        self.sit_down();
    }

    fn is_put_in(&self, message: &Message) -> bool {
        message.is_prune_note() && !message.text().contains("a person typed")
    }
}
