//! The heading of a turn.

use std::fmt::Write as _;

use jiff::tz::TimeZone;

use super::{Output, len_of, one_line};
use crate::session::{Tokens, Turn, TurnDetail, TurnStatus};

/// The length of [`heading`], bytes.
pub fn heading_len(turn: &Turn) -> u64 {
    len_of(|out| heading(turn, out))
}

/// The heading line of a turn: number, local time, duration, outcome, model, tokens. Depends only on the turn's facts, and its length
/// not on the time zone.
pub fn heading(turn: &Turn, out: &mut impl Output) {
    let mut line = format!("# Turn {}", turn.n);
    // Writing into a String cannot fail.
    if let Some(started) = turn.started {
        let local = started.to_zoned_datetime(TimeZone::system());
        let _ = write!(line, " · {}", local.strftime("%Y-%m-%d %H:%M:%S %:z"));
    }
    if let (Some(started), Some(ended)) = (turn.started, turn.ended) {
        let _ = write!(line, " · {}", duration(ended.duration_since(started)));
    }
    let _ = write!(line, " · {}", turn.status);
    match turn.detail {
        // A turn without an end that somebody is at is simply running.
        Some(TurnDetail::Open) if turn.status == TurnStatus::Running => {}
        Some(detail) => {
            let _ = write!(line, " ({detail})");
        }
        None => {}
    }
    if let Some(model) = &turn.model {
        let _ = write!(line, " · {}", one_line(model));
    }
    if let Some(tokens) = turn.tokens.as_deref().and_then(figures) {
        let _ = write!(line, " · {tokens}");
    }
    line.push('\n');
    out.put(&line);
}

/// What the turn took, as far as it is known: `tokens: 3120 in (3000 cached), 10 out`.
fn figures(tokens: &Tokens) -> Option<String> {
    let figure = |count: Option<u64>, what: &str| count.map(|count| format!("{count} {what}"));
    let cached = figure(tokens.cached, "cached");
    let input = match (figure(tokens.input, "in"), cached) {
        (Some(input), Some(cached)) => Some(format!("{input} ({cached})")),
        (input, cached) => input.or(cached),
    };
    let known: Vec<String> = input.into_iter().chain(figure(tokens.output, "out")).collect();
    (!known.is_empty()).then(|| format!("tokens: {}", known.join(", ")))
}

/// How long something took, as a person says it.
pub fn duration(span: jiff::SignedDuration) -> String {
    let millis = span.as_millis().max(0);
    match millis {
        0..1000 => format!("{millis} ms"),
        1000..60_000 => format!("{}.{} s", millis / 1000, millis % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", millis / 60_000, millis % 60_000 / 1000),
        _ => format!("{} h {} min", millis / 3_600_000, millis % 3_600_000 / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_figures_that_are_known_are_told() {
        let tokens = |input, cached, output| Tokens { input, cached, output, reasoning: None };
        for (tokens, expected) in [
            (tokens(Some(3120), Some(3000), Some(10)), Some("tokens: 3120 in (3000 cached), 10 out")),
            (tokens(Some(0), None, None), Some("tokens: 0 in")),
            (tokens(None, None, Some(10)), Some("tokens: 10 out")),
            (tokens(None, Some(5), None), Some("tokens: 5 cached")),
            (tokens(None, None, None), None),
        ] {
            assert_eq!(figures(&tokens).as_deref(), expected);
        }
    }

    #[test]
    fn durations_read_well() {
        for (millis, expected) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1234, "1.2 s"),
            (61_000, "1 min 1 s"),
            (3_700_000, "1 h 1 min"),
            (-5, "0 ms"),
        ] {
            assert_eq!(duration(jiff::SignedDuration::from_millis(millis)), expected);
        }
    }
}
