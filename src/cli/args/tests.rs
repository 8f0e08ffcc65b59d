#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use clap::CommandFactory as _;

#[test]
fn the_definitions_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_help_names_every_known_agent() {
    let help = Cli::command().find_subcommand_mut("ls").unwrap().render_help().to_string();
    for kind in AgentKind::ALL {
        assert!(help.contains(kind.name()), "{kind} is missing in the help of --agents");
    }
}

#[test]
fn every_command_says_what_it_does() {
    for command in Cli::command().get_subcommands() {
        assert!(command.get_about().is_some(), "{} has no help", command.get_name());
    }
}

#[test]
fn numbers_are_decimal_or_last() {
    let table = [
        ("0", Some(Number::This(0))),
        ("003", Some(Number::This(3))),
        (" 7 ", Some(Number::This(7))),
        ("last", Some(Number::Last)),
        ("4294967295", Some(Number::This(u32::MAX))),
        ("4294967296", None),
        ("+1", None),
        ("-1", None),
        ("1.0", None),
        ("0x1", None),
        ("", None),
        ("Last", None),
    ];
    for (text, expected) in table {
        assert_eq!(text.parse::<Number>().ok(), expected, "{text:?}");
    }
}

#[test]
fn ages_have_a_unit() {
    let age = |text: &str| text.parse::<Age>().ok().map(|age| age.0.as_secs());
    let table = [
        ("90d", Some(7_776_000)),
        ("0s", Some(0)),
        ("5min", Some(300)),
        ("2 h", Some(7_200)),
        ("1w", Some(604_800)),
        ("1h30min", Some(5_400)),
        ("2 weeks", Some(1_209_600)),
        ("90", None),
        ("d", None),
        ("-1d", None),
        ("1mo", None),
        ("1y", None),
        ("18446744073709551615w", None),
    ];
    for (text, expected) in table {
        assert_eq!(age(text), expected, "{text}");
    }
}

#[test]
fn stores_are_given_as_agent_and_directory() {
    let parse = |text: &str| text.parse::<Place>().map(|place| place.dir);
    assert_eq!(parse("kimi-cli=/srv/a=b"), Ok("/srv/a=b".into()));
    assert!(parse("kimi-cli").is_err());
    assert!(parse("kimi-cli=").is_err());
    assert!(parse("nobody=/srv").unwrap_err().contains("kimi-cli"));
}

#[test]
fn a_tilde_means_home_only_where_a_shell_would_say_so() {
    let home = Some(Path::new("/home/ana"));
    for (given, expected) in
        [("~", "/home/ana"), ("~/k", "/home/ana/k"), ("~bob/k", "~bob/k"), ("/a/~", "/a/~"), ("k", "k")]
    {
        assert_eq!(without_tilde(given, home), Path::new(expected), "{given}");
    }
    assert_eq!(without_tilde("~/k", None), Path::new("~/k"));
}

#[test]
fn arguments_that_contradict_each_other_are_refused() {
    let table: [(&[&str], bool); 8] = [
        (&["turnfs", "ls", "--all"], true),
        (&["turnfs", "ls", "--all", "dir"], false),
        (&["turnfs", "undo", "s", "3", "--json"], false),
        (&["turnfs", "undo", "s", "3", "--json", "--dry-run"], true),
        (&["turnfs", "undo", "s"], false),
        (&["turnfs", "redo", "s"], true),
        (&["turnfs", "umount"], false),
        (&["turnfs", "ls", "--agents", "kimi-cli,nobody"], false),
    ];
    for (line, fine) in table {
        assert_eq!(Cli::try_parse_from(line).is_ok(), fine, "{line:?}");
    }
}
