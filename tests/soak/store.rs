//! Twenty sessions of Kimi CLI that agents work in, and what each of them must show.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;

use parking_lot::{Mutex, MutexGuard};

use crate::support::{TestStore, samples};

/// The project of the sample, and its folder in the store.
pub const PROJECT: &str = "home/dev/projects/work/a-plain";
const FOLDER: &str = "sessions/301f8022c44669fd30b93f123c419b45";
const SESSIONS: usize = 20;

pub struct Sessions {
    pub store: TestStore,
    all: Vec<Session>,
}

pub struct Session {
    pub id: String,
    number: usize,
    dir: PathBuf,
    /// The mark of each turn. Whoever holds this is the only one that changes the session.
    marks: Mutex<Marks>,
}

#[derive(Default)]
pub struct Marks {
    pub now: Vec<String>,
    /// How many turns there ever were: each has a mark of its own.
    ever: usize,
}

impl Sessions {
    pub fn new() -> Sessions {
        let store = TestStore::from_sample("a-plain");
        let folder = store.root.join(FOLDER);
        fs::remove_dir_all(&folder).unwrap();
        let sample = fs::read_dir(samples().join("a-plain/store").join(FOLDER))
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let all = (0..SESSIONS).map(|number| {
            let id = format!("{number:08x}-0000-4000-8000-{number:012x}");
            let dir = folder.join(&id);
            fs::create_dir_all(&dir).unwrap();
            fs::copy(sample.join("state.json"), dir.join("state.json")).unwrap();
            fs::write(dir.join("wire.jsonl"), "{\"type\": \"metadata\", \"protocol_version\": \"1.10\"}\n")
                .unwrap();
            fs::write(
                dir.join("context.jsonl"),
                "{\"role\": \"_system_prompt\", \"content\": \"be helpful\"}\n",
            )
            .unwrap();
            let session = Session { id, number, dir, marks: Mutex::default() };
            for _ in 0..5 {
                session.append(&mut session.lock());
            }
            session
        });
        let all = all.collect();
        Sessions { store, all }
    }

    pub fn get(&self, number: usize) -> &Session {
        &self.all[number % SESSIONS]
    }

    pub fn all(&self) -> &[Session] {
        &self.all
    }

    /// Deletes a session, as its client does.
    pub fn delete(&self, id: &str) {
        fs::remove_dir_all(self.store.root.join(FOLDER).join(id)).unwrap();
    }
}

impl Session {
    pub fn lock(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock()
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, Marks>> {
        self.marks.try_lock()
    }

    /// Appends a turn as the client does: to the context, and to the wire in several writes.
    pub fn append(&self, marks: &mut Marks) {
        let mark = format!("mark-{}-{}-end", self.number, marks.ever);
        marks.ever += 1;
        let context = fs::read_to_string(self.dir.join("context.jsonl")).unwrap();
        let id = context.matches("\"_checkpoint\"").count();
        let is_begun = context.lines().last().unwrap().contains("\"_checkpoint\"");
        let mut text = String::new();
        if !is_begun {
            text += &format!("{{\"role\": \"_checkpoint\", \"id\": {id}}}\n");
        }
        let next = if is_begun { id } else { id + 1 };
        let answer = format!("the answer {}", "and more words ".repeat(marks.ever % 50));
        text += &format!(
            "{{\"role\":\"user\",\"content\":\"{mark}\"}}\n{{\"role\": \"_checkpoint\", \"id\": {next}}}\n"
        );
        text += &format!(
            "{{\"role\":\"assistant\",\"content\":\"{answer}\"}}\n{{\"role\": \"_usage\", \"token_count\": 3678}}\n"
        );
        self.write("context.jsonl", &text);
        let at = 1_796_045_259.0 + marks.ever as f64;
        for (kind, payload) in [
            ("TurnBegin", format!("{{\"user_input\": \"{mark}\"}}")),
            ("StepBegin", "{\"n\": 1}".into()),
            ("ContentPart", format!("{{\"type\": \"text\", \"text\": \"{answer}\"}}")),
            ("TurnEnd", "{}".into()),
        ] {
            self.write("wire.jsonl", &format!("{{\"timestamp\": {at:?}, \"message\": {{\"type\": \"{kind}\", \"payload\": {payload}}}}}\n"));
        }
        marks.now.push(mark);
    }

    fn write(&self, name: &str, text: &str) {
        File::options().append(true).open(self.dir.join(name)).unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Whether a text shows a turn of this session, and no mark of any other turn.
    pub fn is_only(&self, mark: &str, text: &str) -> bool {
        let marks: Vec<&str> = text
            .match_indices("mark-")
            .map(|(at, _)| {
                let rest = &text[at..];
                &rest[..rest.find("-end").map_or(rest.len(), |end| end + 4)]
            })
            .collect();
        !marks.is_empty() && marks.iter().all(|found| *found == mark)
    }

    /// The session's own number, as its marks have it.
    pub fn prefix(&self) -> String {
        format!("mark-{}-", self.number)
    }
}
