//! Random rollouts of every form against a small model of what the client makes of them (`docs/stores/codex.md`, "3.
//! Turns"). The model knows what was meant; turnfs only sees the lines.
//!
//! `TURNFS_TEST_SEQUENCES` sets how many rollouts are made (default 300).

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod codex_store;

use std::fs;

use codex_store::Store;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use turnfs::agents::store_of;
use turnfs::cut;
use turnfs::session::{Item, State};

const THREAD: &str = "019f7ed6-0000-7000-8000-000000000001";

/// What the client puts into messages of the user's role. Nobody knows the last one.
const INJECTED: [&str; 6] = [
    "<recommended_plugins>\n- x\n</recommended_plugins>",
    "# AGENTS.md instructions for /w\n\n<INSTRUCTIONS>\nx\n</INSTRUCTIONS>",
    "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>",
    "<skill>\n<name>x</name>\n</skill>",
    "<user_shell_command>\nls\n</user_shell_command>",
    "<a_tag_of_tomorrow>\nx\n</a_tag_of_tomorrow>",
];

#[derive(Clone, Debug)]
enum Op {
    /// `told`: the text that all prompts share, or one of its own. `parts` stand before the words in one message.
    Prompt {
        shared: bool,
        parts: Vec<usize>,
        picture: bool,
        late: bool,
        kinds: bool,
    },
    /// The event alone.
    Event,
    Started,
    Complete(Id),
    Aborted(Id),
    Answer {
        event_first: bool,
    },
    Call,
    Injected(Vec<usize>),
    Context,
    RolledBack(u64),
    Compacted {
        listed: bool,
    },
    Meta,
}

#[derive(Clone, Copy, Debug)]
enum Id {
    None,
    Current,
    First,
    Unknown,
}

fn op() -> impl Strategy<Value = Op> {
    let parts = || prop::collection::vec(0..INJECTED.len(), 0..4);
    let some = || prop::collection::vec(0..INJECTED.len(), 1..4);
    let id = || prop_oneof![3 => Just(Id::Current), 2 => Just(Id::None), 1 => Just(Id::First), 1 => Just(Id::Unknown)];
    prop_oneof![
        8 => (any::<bool>(), prop_oneof![3 => Just(vec![]), 1 => parts()], prop::bool::weighted(0.2), any::<bool>(),
              prop::bool::weighted(0.2))
            .prop_map(|(shared, parts, picture, late, kinds)| Op::Prompt { shared, parts, picture, late, kinds }),
        1 => Just(Op::Event),
        5 => Just(Op::Started),
        4 => id().prop_map(Op::Complete),
        3 => id().prop_map(Op::Aborted),
        4 => any::<bool>().prop_map(|event_first| Op::Answer { event_first }),
        2 => Just(Op::Call),
        4 => some().prop_map(Op::Injected),
        2 => Just(Op::Context),
        2 => (1..4_u64).prop_map(Op::RolledBack),
        1 => any::<bool>().prop_map(|listed| Op::Compacted { listed }),
        1 => Just(Op::Meta),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Turn {
    id: Option<String>,
    users: Vec<String>,
    status: &'static str,
    ended: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Current {
    None,
    /// Without anything but a compaction.
    Bare,
    Implicit,
    Explicit,
}

/// The lines, and beside them what the client makes of them.
struct World {
    lines: Vec<String>,
    turns: Vec<Turn>,
    current: Current,
    /// Told by an event so far.
    told: bool,
    compacted: bool,
    /// A turn was ended, or aborted once more, when a later one had begun.
    ended_late: bool,
    /// An end that, read without the turns before it, would be that of the turn which was open then.
    misleading_end: bool,
    /// Turns were taken back behind such an end. Which they were cannot be told from the lines of one turn alone, as
    /// which a turn's text is made. No client was seen to write that.
    unclear: bool,
    n: usize,
}

fn line(kind: &str, payload: Value) -> String {
    format!("{}\n", json!({"timestamp": "2026-07-20T09:00:01.000Z", "type": kind, "payload": payload}))
}

fn message(role: &str, texts: &[&str]) -> Value {
    let parts: Vec<Value> = texts.iter().map(|text| json!({"type": "input_text", "text": text})).collect();
    json!({"type": "message", "role": role, "content": parts})
}

impl World {
    fn new() -> World {
        let mut world = World {
            lines: Vec::new(),
            turns: Vec::new(),
            current: Current::None,
            told: false,
            compacted: false,
            ended_late: false,
            misleading_end: false,
            unclear: false,
            n: 0,
        };
        world.meta();
        world
    }

    fn meta(&mut self) {
        self.put("session_meta", json!({"id": THREAD, "cwd": "/w", "cli_version": "0.1.0", "source": "cli"}));
    }

    fn put(&mut self, kind: &str, payload: Value) {
        self.lines.push(line(kind, payload));
    }

    fn event(&mut self, kind: &str, mut payload: Value) {
        payload["type"] = kind.into();
        self.put("event_msg", payload);
    }

    fn begin(&mut self, current: Current, id: Option<String>) {
        let status = if current == Current::Explicit { "interrupted" } else { "complete" };
        self.turns.push(Turn { id, users: Vec::new(), status, ended: false });
        self.current = current;
    }

    fn said(&mut self, text: &str) {
        match self.current {
            Current::None | Current::Implicit => self.begin(Current::Implicit, None),
            Current::Bare => self.current = Current::Implicit,
            Current::Explicit => {}
        }
        self.turns.last_mut().unwrap().users.push(text.to_owned());
        self.told = true;
    }

    fn shown(&mut self) {
        match self.current {
            Current::None => self.begin(Current::Implicit, None),
            Current::Bare => self.current = Current::Implicit,
            Current::Implicit | Current::Explicit => {}
        }
    }

    fn id(&self, which: Id) -> Option<String> {
        match which {
            Id::None => None,
            Id::Current => self.turns.last().and_then(|turn| turn.id.clone()),
            Id::First => self.turns.first().and_then(|turn| turn.id.clone()),
            Id::Unknown => Some("nobody".into()),
        }
    }

    fn ends(&mut self, id: Option<&String>, aborted: bool) {
        let open = self.turns.len().checked_sub(1).filter(|_| self.current != Current::None);
        let own = open.filter(|at| id.is_none() || self.turns[*at].id.as_ref() == id);
        let named = id.and_then(|id| self.turns.iter().position(|turn| turn.id.as_ref() == Some(id)));
        let other = open.filter(|_| !aborted || self.current != Current::Explicit);
        let Some(at) = own.or(named).or(other) else { return };
        self.ended_late |= at + 1 < self.turns.len();
        self.misleading_end |= Some(at) != open && other.is_some();
        let turn = &mut self.turns[at];
        if aborted {
            turn.status = "interrupted";
        } else if !turn.ended {
            turn.status = "complete";
        }
        turn.ended = true;
        if Some(at) == open {
            self.current = Current::None;
        }
    }

    fn rolled_back(&mut self, count: u64) {
        self.unclear |= self.misleading_end;
        self.current = Current::None;
        let listed = self.turns.len().saturating_sub(count as usize);
        let all: Vec<(usize, usize)> = (0..self.turns.len())
            .flat_map(|turn| (0..self.turns[turn].users.len()).map(move |user| (turn, user)))
            .collect();
        if let Some((turn, user)) = all.get(all.len().saturating_sub(count as usize)).copied() {
            self.turns.truncate(turn + 1);
            self.turns[turn].users.truncate(user);
            if user == 0 {
                self.turns.truncate(turn);
            }
        }
        while self.turns.len() > listed && self.turns.last().is_some_and(|turn| turn.users.is_empty()) {
            self.turns.pop();
        }
    }

    fn run(&mut self, op: &Op) {
        self.n += 1;
        let n = self.n;
        match op {
            Op::Prompt { shared, parts, picture, late, kinds } => {
                let text = if *shared { "go on".to_owned() } else { format!("prompt {n}\nof several lines") };
                let mut texts: Vec<&str> = parts.iter().map(|part| INJECTED[*part]).collect();
                texts.push(&text);
                let mut own = message("user", &texts);
                if *picture {
                    let content = own["content"].as_array_mut().unwrap();
                    let frame = |text: &str| json!({"type": "input_text", "text": text});
                    content.insert(0, frame("<image name=[Image #1]>"));
                    content.insert(
                        1,
                        json!({"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="}),
                    );
                    content.insert(2, frame("</image>"));
                }
                // New clients record what each part is.
                if *kinds && parts.is_empty() && !*picture && self.current == Current::Explicit {
                    own["internal_chat_message_metadata_passthrough"] =
                        json!({"content_item_kinds": ["user.text"]});
                }
                self.put("response_item", own);
                if *late {
                    self.put("turn_context", json!({"cwd": "/w", "model": "m"}));
                }
                self.event("user_message", json!({"message": text, "images": []}));
                self.said(&text);
            }
            Op::Event => {
                let text = format!("only an event {n}");
                self.event("user_message", json!({"message": text}));
                self.said(&text);
            }
            Op::Started => {
                let id = format!("turn-{n}");
                self.event("task_started", json!({"turn_id": id}));
                self.begin(Current::Explicit, Some(id));
            }
            Op::Complete(which) => {
                // That nobody's id ends an explicit turn cannot be told from the lines of a turn before it alone,
                // which matters if that turn is taken back later. No client was seen to write one.
                let which = match which {
                    Id::Unknown if self.current == Current::Explicit => Id::Current,
                    which => *which,
                };
                let id = self.id(which);
                self.event("task_complete", json!({"turn_id": id, "last_agent_message": null}));
                self.ends(id.as_ref(), false);
            }
            Op::Aborted(which) => {
                let id = self.id(*which);
                if self.current == Current::Explicit {
                    self.put("response_item", message("user", &["<turn_aborted>\nx\n</turn_aborted>"]));
                }
                self.event("turn_aborted", json!({"turn_id": id, "reason": "interrupted"}));
                self.ends(id.as_ref(), true);
            }
            Op::Answer { event_first } => {
                let text = format!("answer {n}");
                let item = line("response_item", message("assistant", &[&text]));
                if !event_first {
                    self.lines.push(item.clone());
                }
                self.event("agent_message", json!({"message": text}));
                if *event_first {
                    self.lines.push(item);
                }
                self.shown();
            }
            Op::Call => {
                let id = format!("call-{n}");
                let call =
                    json!({"type": "function_call", "name": "shell", "arguments": "{}", "call_id": id});
                self.put("response_item", call);
                self.put(
                    "response_item",
                    json!({"type": "function_call_output", "call_id": id, "output": "done"}),
                );
            }
            Op::Injected(parts) => {
                let texts: Vec<&str> = parts.iter().map(|part| INJECTED[*part]).collect();
                self.put("response_item", message("user", &texts));
            }
            Op::Context => {
                self.put("turn_context", json!({"cwd": "/w", "model": "m"}));
                self.event("token_count", json!({"info": null}));
            }
            Op::RolledBack(count) => {
                self.event("thread_rolled_back", json!({"num_turns": count}));
                self.rolled_back(*count);
            }
            Op::Compacted { listed } => {
                let mut payload = json!({"message": format!("summary {n}")});
                if *listed {
                    payload["replacement_history"] = json!([message("assistant", &["so far"])]);
                }
                self.put("compacted", payload);
                if self.current == Current::None {
                    self.begin(Current::Bare, None);
                }
                self.compacted = true;
            }
            Op::Meta => self.meta(),
        }
    }
}

/// What turnfs makes of the world's lines must be what the model makes of them.
fn agrees(world: &World, fork: usize) -> Result<(), TestCaseError> {
    let store = Store::empty();
    let file = store.rollout(THREAD, world.lines.concat().as_bytes());
    let session = store.only();
    let history = store.load(&session);
    let codex = store_of(&session);
    let wanted = if world.turns.is_empty() { State::Empty } else { State::Ok };
    prop_assert_eq!(history.state, wanted, "{:?}", history.damages);
    let statuses: Vec<&str> = history.turns.iter().map(|turn| turn.status.name()).collect();
    let wanted: Vec<&str> = world.turns.iter().map(|turn| turn.status).collect();
    prop_assert_eq!(statuses, wanted);
    let mut at = history.turns.first().map_or(0, |turn| turn.span.start);
    for (n, (turn, wanted)) in history.turns.iter().zip(&world.turns).enumerate() {
        prop_assert_eq!(turn.prompt.as_ref(), wanted.users.first(), "turn {}", n);
        prop_assert_eq!(turn.span.start, at, "turn {}", n);
        at = turn.span.end;
        // Compares the text's length, too.
        store.text(&session, &history, n);
        let span = turnfs::transcript::read_range(&session.key.root, &turn.file, turn.span.clone()).unwrap();
        let mut users = Vec::new();
        let mut sink = |_, item: Item<'_>| match item {
            Item::User { text } => users.insert(0, text.into_owned()),
            Item::Steer { text } => users.push(text.into_owned()),
            _ => {}
        };
        codex.items(&session, turn, &span, &mut sink).unwrap();
        prop_assert_eq!(&users, &wanted.users, "turn {}", n);
    }
    let len = fs::metadata(store.root.join(&file)).unwrap().len();
    prop_assert!(history.turns.is_empty() || at == len, "the turns end at {} of {}", at, len);
    if !world.compacted {
        let mut sent = Vec::new();
        let mut sink = |_, item: Item<'_>| {
            if let Item::User { text } = item {
                sent.push(text.into_owned());
            }
        };
        codex.context(&session, &history, &mut sink).unwrap();
        let all: Vec<&String> = world.turns.iter().flat_map(|turn| &turn.users).collect();
        // What only an event says is never sent.
        let all: Vec<_> = all.into_iter().filter(|text| !text.starts_with("only an event")).collect();
        prop_assert_eq!(sent.len(), all.len(), "sent {:?}, said {:?}", sent, all);
        prop_assert!(sent.iter().zip(&all).all(|(sent, said)| sent.ends_with(said.as_str())), "{:?}", sent);
    }
    if let Some(n) = fork.checked_rem(world.turns.len()).filter(|_| !world.ended_late) {
        let new = cut::fork(&*store_of(&session), &store.state, &session, &history, n as u32).unwrap();
        let forked = store.load(&store.session(&new));
        let kept: Vec<_> = forked.turns.iter().map(|turn| (turn.prompt.clone(), turn.status)).collect();
        let wanted: Vec<_> =
            history.turns[..=n].iter().map(|turn| (turn.prompt.clone(), turn.status)).collect();
        prop_assert_eq!(kept, wanted, "fork {}", n);
    }
    Ok(())
}

#[test]
fn every_form_of_a_rollout_has_the_turns_that_the_client_makes_of_it() {
    let cases = std::env::var("TURNFS_TEST_SEQUENCES").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let ops = (prop::collection::vec(op(), 1..40), any::<usize>());
    let result = TestRunner::new(config).run(&ops, |(ops, fork)| {
        let mut world = World::new();
        ops.iter().for_each(|op| world.run(op));
        if world.told && !world.unclear { agrees(&world, fork) } else { Ok(()) }
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
