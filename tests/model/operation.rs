//! What is tried, and what each of it makes a client do.

use proptest::prelude::*;
use proptest::sample::select;

use super::client::Event;
use super::reference::State;

/// One step of a sequence. Numbers are taken modulo what there is, plus one that there is not.
#[derive(Clone, Debug)]
pub enum Op {
    /// A client does something to its end.
    Client(Input),
    /// A client does something and is killed on the way.
    Killed {
        input: Input,
        at: u8,
        torn: bool,
    },
    /// A minute passes.
    Wait,
    Undo {
        n: u8,
        force: bool,
    },
    /// An undo that was decided on before a client wrote one more turn.
    StaleUndo {
        n: u8,
        force: bool,
    },
    RedoLast {
        force: bool,
    },
    Redo {
        number: u8,
        force: bool,
    },
    /// `enter`: what comes next is done to the fork.
    Fork {
        n: u8,
        enter: bool,
    },
    /// What comes next is done to another session.
    Session {
        which: u8,
    },
    /// A line of a file becomes nonsense.
    Damage {
        file: u8,
        line: u8,
    },
    Repair,
}

/// What a user gives to a client.
#[derive(Clone, Debug)]
pub enum Input {
    Prompt {
        text: &'static str,
        tools: u8,
        steers: u8,
        compacts: bool,
        notified: bool,
    },
    /// A command that leaves nothing in the context.
    Command,
    /// A command that leaves a record in the context.
    AddDir,
    Init,
    Compact,
    Clear,
}

/// Few texts, so that they repeat.
fn text() -> impl Strategy<Value = &'static str> {
    select(vec!["go on", "fix it", "yes", "weiter: \u{1f600} \"q\"\nline two", "<system>odd</system>"])
}

fn input() -> impl Strategy<Value = Input> {
    let prompt = (text(), 0..3_u8, 0..3_u8, prop::bool::weighted(0.2), prop::bool::weighted(0.2)).prop_map(
        |(text, tools, steers, compacts, notified)| {
            // A steer stands between two steps.
            let tools = if steers > 0 { tools.max(1) } else { tools };
            Input::Prompt { text, tools, steers, compacts, notified }
        },
    );
    prop_oneof![
        8 => prompt,
        1 => Just(Input::Command),
        1 => Just(Input::AddDir),
        1 => Just(Input::Init),
        2 => Just(Input::Compact),
        1 => Just(Input::Clear),
    ]
}

/// A sequence, short ones first when it is made simpler.
pub fn sequence() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        10 => input().prop_map(Op::Client),
        2 => (input(), any::<u8>(), prop::bool::weighted(0.3))
            .prop_map(|(input, at, torn)| Op::Killed { input, at, torn }),
        1 => Just(Op::Wait),
        6 => (0..12_u8, prop::bool::weighted(0.3)).prop_map(|(n, force)| Op::Undo { n, force }),
        1 => (0..12_u8, any::<bool>()).prop_map(|(n, force)| Op::StaleUndo { n, force }),
        5 => prop::bool::weighted(0.3).prop_map(|force| Op::RedoLast { force }),
        1 => (0..4_u8, any::<bool>()).prop_map(|(number, force)| Op::Redo { number, force }),
        3 => (0..12_u8, any::<bool>()).prop_map(|(n, enter)| Op::Fork { n, enter }),
        1 => (0..3_u8).prop_map(|which| Op::Session { which }),
        1 => (0..5_u8, any::<u8>()).prop_map(|(file, line)| Op::Damage { file, line }),
        2 => Just(Op::Repair),
    ];
    prop::collection::vec(op, 4..=12)
}

impl Input {
    /// What the client does with this in a session that is as `state`; `serial` makes its words unique.
    pub fn events(&self, state: &State, serial: u32) -> Vec<Event> {
        let answer = |text: String| [Event::Streams(text.clone(), None), Event::Keeps(text, None)];
        let begin = |text: &str| Event::Begin(text.to_owned());
        let compaction = || {
            let summary = format!("SUMMARY-{serial}");
            [Event::CompactionBegins, Event::Compact(summary), Event::CompactionEnds]
        };
        // With fewer there is nothing to sum up.
        let can_compact = |messages: usize| messages > 2;
        match self {
            Input::Prompt { text, tools, steers, compacts, notified } => {
                let mut events = vec![begin(text), Event::Checkpoint, Event::User((*text).to_owned())];
                let mut messages = state.live() + 1;
                for step in 0..=*tools {
                    events.push(Event::Step(u32::from(step) + 1));
                    if *compacts && step == *tools && can_compact(messages) {
                        events.extend(compaction());
                    }
                    events.push(Event::Checkpoint);
                    if *notified && step == 0 {
                        let notice = format!("<notification id=\"n{serial}\">\ndone\n</notification>");
                        events.push(Event::User(notice));
                        messages += 1;
                    }
                    messages += 1;
                    if step == *tools {
                        events.extend(answer(format!("R{serial}: reply to <{text}>")));
                        continue;
                    }
                    let (words, id) = (format!("calling {serial}.{step}"), format!("call_{serial}_{step}"));
                    events.push(Event::Streams(words.clone(), Some(id.clone())));
                    events.push(Event::Keeps(words, Some(id.clone())));
                    events.push(Event::Returns(id.clone()));
                    events.push(Event::KeepsResult(id));
                    if step == 0 {
                        // A steer that equals a prompt is still no turn.
                        events.extend((0..*steers).map(|_| Event::Steer((*text).to_owned())));
                        messages += usize::from(*steers);
                    }
                }
                events.push(Event::End);
                events
            }
            Input::Command => {
                let reply = format!("You only live once! ({serial})");
                vec![begin("/yolo"), Event::Reply(reply), Event::End]
            }
            Input::AddDir => {
                let reply = format!("Added directory to workspace: /extra{serial}");
                let record = format!(
                    "<system>The user has added an additional directory to the workspace: `/extra{serial}`"
                );
                vec![begin("/add-dir /extra"), Event::User(record), Event::Reply(reply), Event::End]
            }
            Input::Init => {
                let prompt = "You are a software engineering expert with many years of experience.";
                let record = format!("<system>The user just ran `/init` slash command. ({serial})</system>");
                vec![
                    begin("/init"),
                    Event::BeginInner(prompt.to_owned()),
                    Event::Step(1),
                    Event::Streams(format!("I{serial}: AGENTS.md is written"), None),
                    Event::End,
                    Event::User(record),
                    Event::End,
                ]
            }
            Input::Compact if can_compact(state.live()) => {
                let said = Event::Reply("The context has been compacted.".to_owned());
                [&[begin("/compact")], &compaction()[..], &[said, Event::End]].concat()
            }
            Input::Compact => {
                vec![begin("/compact"), Event::Reply("The context is empty.".to_owned()), Event::End]
            }
            Input::Clear => vec![
                begin("/clear"),
                Event::Clear,
                Event::Reply("The context has been cleared.".to_owned()),
                Event::End,
            ],
        }
    }
}
