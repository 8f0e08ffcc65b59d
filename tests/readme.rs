//! The examples of the README are what really happens: every command of every `console` block is run, in
//! order, in one shell on a real mount, and prints what the README says (`…` stands for anything).

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use support::TestStore;

/// A command and the lines that it prints.
struct Example {
    command: String,
    output: Vec<String>,
}

fn examples(markdown: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut inside = false;
    for line in markdown.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match (line.strip_prefix("$ "), examples.last_mut()) {
                (Some(command), _) => {
                    examples.push(Example { command: command.to_owned(), output: Vec::new() })
                }
                (None, Some(example)) => example.output.push(line.to_owned()),
                (None, None) => panic!("output before a command: {line}"),
            },
        }
    }
    examples
}

/// Whether a line is as the README has it; `…` stands for any text.
fn fits(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[test]
fn the_examples_of_the_readme_print_what_it_says() {
    const END: &str = "--end of an example--";
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let examples = examples(&readme);
    assert!(examples.len() > 15, "only {} examples were found", examples.len());

    let store = TestStore::from_sample("c-compact");
    let script: String =
        examples.iter().map(|example| format!("{}\necho '{END}'\n", example.command)).collect();
    let ran = support::run(store.shell("bash", &format!("exec 2>&1\n{script}")));
    support::detach(&store.home.join("turns"));

    let end = format!("{END}\n");
    let mut blocks = ran.stdout.split(&end);
    for example in &examples {
        let block = blocks.next().unwrap_or_default();
        let lines: Vec<&str> = block.lines().collect();
        // Markdown cannot tell whether an empty line before the next command belongs to the output.
        let same = lines.len() == example.output.len()
            && example.output.iter().zip(&lines).all(|(pattern, line)| fits(pattern, line));
        assert!(
            same,
            "$ {}\nprinted\n{block}\nthe README says\n{}",
            example.command,
            example.output.join("\n")
        );
    }
}

/// The function `pick` of the README, with what a user types given to fzf as a filter.
#[test]
fn pick_of_the_readme_prints_the_command_that_continues_the_session() {
    let store = TestStore::from_samples(&["a-plain", "c-compact"]);
    if support::run(store.shell("sh", "command -v fzf")).code != 0 {
        return support::skipped::skipped("fzf is not installed");
    }
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let start = readme.find("\npick() {\n").unwrap();
    let function = readme[start..].split("```").next().unwrap();
    let sessions = store.run(&["ls", "--all", "--json"]).json();
    for session in sessions.as_array().unwrap() {
        let typed = session["project"].as_str().unwrap().rsplit('/').next().unwrap();
        let script = format!("fzf() {{ command fzf --exact --filter='{typed}' \"$@\"; }}\n{function}\npick");
        let ran = support::run(store.shell("bash", &script));
        assert_eq!(ran.stdout, format!("{}\n", session["resume"].as_str().unwrap()), "{}", ran.stderr);
    }
    // What the preview runs.
    let preview = function.split('\'').find(|part| part.contains("{1}")).unwrap();
    let id = sessions[0]["id"].as_str().unwrap();
    let shown = support::run(store.shell("sh", &preview.replace("{1}", &id[id.len() - 8..]))).ok();
    assert!(shown.contains("TURN ") && shown.contains("## User"), "{shown}");
}

#[test]
fn dots_stand_for_anything_and_nothing_else_does() {
    for (pattern, line, expected) in [
        ("abc", "abc", true),
        ("abc", "abcd", false),
        ("a…c", "abbbc", true),
        ("…", "", true),
        ("…x", "abcx", true),
        ("…x", "abcy", false),
        ("a…b…c", "a1b2c", true),
        ("a…b…c", "a1c2b", false),
    ] {
        assert_eq!(fits(pattern, line), expected, "{pattern} {line}");
    }
}
