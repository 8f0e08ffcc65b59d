//! What a model's answers took.

use serde::{Deserialize, Serialize};

/// Tokens, as the client recorded them. A figure that the store does not have is `None`, never 0. The figures mean the
/// same for every store: `cached` is a part of `input`, `reasoning` a part of `output`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tokens {
    /// All that the model was sent, summed over the requests.
    pub input: Option<u64>,
    /// How much of it came out of the provider's cache.
    pub cached: Option<u64>,
    /// All that the model wrote.
    pub output: Option<u64>,
    /// How much of it was thinking.
    pub reasoning: Option<u64>,
}

impl Tokens {
    /// With these, too; of a figure that only one of them has, that one counts.
    pub fn add(&mut self, other: &Tokens) {
        let sum = |one: &mut Option<u64>, other: Option<u64>| {
            *one = match (*one, other) {
                (Some(one), Some(other)) => Some(one.saturating_add(other)),
                (one, other) => one.or(other),
            };
        };
        sum(&mut self.input, other.input);
        sum(&mut self.cached, other.cached);
        sum(&mut self.output, other.output);
        sum(&mut self.reasoning, other.reasoning);
    }

    /// Whether no figure is known.
    pub fn is_empty(&self) -> bool {
        *self == Tokens::default()
    }

    /// Adds these to a turn's, which has none before its first.
    pub fn add_to(&self, sum: &mut Option<Box<Tokens>>) {
        if !self.is_empty() {
            sum.get_or_insert_default().add(self);
        }
    }
}

/// The sum of figures that a client keeps apart; `None` if it has none of them.
pub fn sum_of(figures: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    figures.into_iter().flatten().reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_nowhere_stays_unknown_and_sums_do_not_overflow() {
        let one = Tokens { input: Some(u64::MAX), cached: None, output: Some(1), reasoning: None };
        let other = Tokens { input: Some(2), cached: None, output: None, reasoning: Some(3) };
        let mut sum = None;
        Tokens::default().add_to(&mut sum);
        assert_eq!(sum, None);
        one.add_to(&mut sum);
        other.add_to(&mut sum);
        let expected = Tokens { input: Some(u64::MAX), cached: None, output: Some(1), reasoning: Some(3) };
        assert_eq!(sum.as_deref(), Some(&expected));
    }
}
