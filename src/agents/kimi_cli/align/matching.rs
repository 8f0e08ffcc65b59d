//! Scored matching of expected runs with candidate runs, for an epoch whose replay fails.
//!
//! Monotone matching of maximum score; either side may be skipped. For every boundary the answer is the
//! set of all places that some optimal matching gives it, so a tie is seen as one. Pure: no records here.
//! Rules: `docs/stores/kimi-cli.md`, "4.6 Matching by score".

/// A run that the wire tells of. Texts and calls are hashes; both lists are sorted.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// `None`: the wire does not tell the text.
    pub text: Option<u128>,
    pub said: Vec<u128>,
    pub calls: Vec<u128>,
}

/// A place in the file where a run may begin, and what was said from there on up to the next such place.
#[derive(Clone, Debug, Default)]
pub struct Candidate {
    pub text: u128,
    /// The text begins as the client's own injected records do.
    pub injected: bool,
    pub said: Vec<u128>,
    pub calls: Vec<u128>,
}

/// All optimal matchings, as far as boundaries are concerned.
#[derive(Debug, Default)]
pub struct Matching {
    /// For each expected run the candidates at which "this run and the later ones begin" in some optimal
    /// matching, ascending; the number of candidates stands for the end of the file. Never empty; of more
    /// than [`MAX_OPTIONS`] only the first ones and the last one.
    pub boundaries: Vec<Vec<usize>>,
    /// Candidates that no optimal matching uses.
    pub unused: Vec<usize>,
}

/// How many options of one boundary are kept.
pub const MAX_OPTIONS: usize = 32;

/// More pairs than this are not compared: it would take longer than anyone waits.
pub const MAX_PAIRS: usize = 400_000_000;

const TEXT_EQUAL: i32 = 10;
const TEXT_UNKNOWN: i32 = 3;
const SAID_EQUAL: i32 = 4;
const CALL_SHARED: i32 = 6;
const NONE_SHARED: i32 = -6;
/// Below every sum of scores, and far enough from the type's end to be added to.
const IMPOSSIBLE: i32 = i32::MIN / 2;

/// The score of a pair; `None` if they cannot be the same run.
fn score(run: &Expected, candidate: &Candidate) -> Option<i32> {
    let mut score = match run.text {
        Some(text) if text == candidate.text => TEXT_EQUAL,
        Some(_) => return None,
        None if candidate.injected => return None,
        None => TEXT_UNKNOWN,
    };
    if !run.said.is_empty() && !candidate.said.is_empty() {
        score += match shared(&run.said, &candidate.said) {
            0 => NONE_SHARED,
            n => SAID_EQUAL * n,
        };
    }
    if !run.calls.is_empty() && !candidate.calls.is_empty() {
        score += if shared(&run.calls, &candidate.calls) > 0 { CALL_SHARED } else { NONE_SHARED };
    }
    Some(score)
}

/// How many elements two sorted lists have in common, repeated ones as often as both have them.
fn shared(a: &[u128], b: &[u128]) -> i32 {
    let (mut i, mut j, mut count) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        match a[i].cmp(&b[j]) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => (i, j, count) = (i + 1, j + 1, count + 1),
        }
    }
    count
}

/// What the runs from one on can score with the candidates from `j` on.
#[derive(Clone)]
struct Row {
    /// The most they can score.
    best: Vec<i32>,
    /// The most if candidate `j` is the first one used.
    begun: Vec<i32>,
}

/// Matches all runs with all candidates; `None` if there are too many pairs.
///
/// The tables have one cell a pair, but only every k-th row is kept and the rows between are made again
/// when they are needed, so memory grows with the candidates times the root of the runs.
pub fn matching(runs: &[Expected], candidates: &[Candidate]) -> Option<Matching> {
    let (n, m) = (runs.len(), candidates.len());
    if n.checked_mul(m)? > MAX_PAIRS {
        return None;
    }
    let stride = n.isqrt().max(1);
    let above = |run: &Expected, below: &Row| row_above(run, candidates, below);
    let mut row = Row { best: vec![0; m + 1], begun: vec![IMPOSSIBLE; m + 1] };
    let last = row.clone();
    let mut kept = vec![None; n / stride + 1];
    for (i, run) in runs.iter().enumerate().rev() {
        row = above(run, &row);
        if i % stride == 0 {
            kept[i / stride] = Some(row.clone());
        }
    }
    let total = row.best[0];
    let mut result = Matching { boundaries: Vec::with_capacity(n), unused: Vec::new() };
    let mut used = vec![false; m];
    let mut forward = vec![0; m + 1];
    for start in (0..n).step_by(stride) {
        let end = (start + stride).min(n);
        let mut rows =
            vec![kept.get(end / stride).cloned().flatten().filter(|_| end < n).unwrap_or(last.clone())];
        for run in runs[start..end].iter().rev() {
            let next = above(run, &rows[rows.len() - 1]);
            rows.push(next);
        }
        // rows: of run `end`, then of the block's runs from its last to its first.
        for i in start..end {
            let (own, below) = (&rows[end - i], &rows[end - i - 1]);
            result.boundaries.push(options(&forward, &own.begun, total));
            let mut next = vec![0; m + 1];
            for j in 0..m {
                let pair = score(&runs[i], &candidates[j]).map(|score| score + forward[j]);
                if pair.is_some_and(|pair| pair + below.best[j + 1] == total) {
                    used[j] = true;
                }
                next[j + 1] = forward[j + 1].max(next[j]).max(pair.unwrap_or(IMPOSSIBLE));
            }
            forward = next;
        }
    }
    result.unused = (0..m).filter(|&j| !used[j]).collect();
    Some(result)
}

fn row_above(run: &Expected, candidates: &[Candidate], below: &Row) -> Row {
    let m = candidates.len();
    let mut row = Row { best: vec![0; m + 1], begun: vec![IMPOSSIBLE; m + 1] };
    for j in (0..m).rev() {
        let pair = score(run, &candidates[j]).map_or(IMPOSSIBLE, |score| score + below.best[j + 1]);
        row.best[j] = below.best[j].max(row.best[j + 1]).max(pair);
        row.begun[j] = below.begun[j].max(pair);
    }
    row
}

/// The places at which a boundary can be: `forward` scores the runs before it, `begun` those from it on.
fn options(forward: &[i32], begun: &[i32], total: i32) -> Vec<usize> {
    let end = forward.len() - 1;
    let at_candidate = (0..end).filter(|&j| forward[j] + begun[j] == total);
    let at_end = std::iter::once(end).filter(|&end| forward[end] == total);
    let mut options: Vec<usize> = Vec::new();
    for option in at_candidate.chain(at_end) {
        if options.len() == MAX_OPTIONS {
            options.pop();
        }
        options.push(option);
    }
    options
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;
    use proptest::prelude::*;

    fn run(text: u128, said: u128) -> Expected {
        Expected { text: Some(text), said: vec![said], calls: Vec::new() }
    }

    fn candidate(text: u128, said: u128) -> Candidate {
        Candidate { text, injected: false, said: vec![said], calls: Vec::new() }
    }

    #[test]
    fn equal_runs_of_which_one_is_missing_give_every_possible_boundary() {
        let runs = [run(1, 9), run(2, 9), run(2, 9), run(2, 9), run(3, 9)];
        let candidates = [candidate(1, 9), candidate(2, 9), candidate(2, 9), candidate(3, 9)];
        let matching = matching(&runs, &candidates).unwrap();
        assert_eq!(matching.boundaries, [vec![0], vec![1], vec![1, 2], vec![2, 3], vec![3]]);
        assert!(matching.unused.is_empty());
    }

    #[test]
    fn the_reply_tells_which_of_two_equal_prompts_is_missing() {
        let runs = [run(2, 10), run(2, 11), run(2, 12)];
        let candidates = [candidate(2, 10), candidate(2, 12)];
        let matching = matching(&runs, &candidates).unwrap();
        assert_eq!(matching.boundaries, [vec![0], vec![1], vec![1]]);
    }

    #[test]
    fn of_a_thousand_equal_turns_the_flood_of_options_is_bounded() {
        let runs: Vec<_> = (0..1000).map(|_| run(1, 1)).collect();
        let candidates: Vec<_> = (0..900).map(|_| candidate(1, 1)).collect();
        let matching = matching(&runs, &candidates).unwrap();
        assert_eq!(matching.boundaries[500].len(), MAX_OPTIONS);
        assert_eq!(matching.boundaries[500].first(), Some(&400));
        assert_eq!(matching.boundaries[500].last(), Some(&500));
    }

    #[test]
    fn more_pairs_than_anyone_waits_for_are_refused() {
        let runs = vec![Expected::default(); 30_000];
        let candidates = vec![Candidate::default(); 30_000];
        assert!(matching(&runs, &candidates).is_none());
    }

    /// Every monotone matching, one by one.
    fn brute(runs: &[Expected], candidates: &[Candidate]) -> Vec<Vec<usize>> {
        fn all(
            runs: &[Expected],
            candidates: &[Candidate],
            (i, j): (usize, usize),
            sum: i32,
            pairs: &mut Vec<(usize, usize)>,
            found: &mut Vec<(i32, Vec<(usize, usize)>)>,
        ) {
            found.push((sum, pairs.clone()));
            for a in i..runs.len() {
                for b in j..candidates.len() {
                    if let Some(score) = score(&runs[a], &candidates[b]) {
                        pairs.push((a, b));
                        all(runs, candidates, (a + 1, b + 1), sum + score, pairs, found);
                        pairs.pop();
                    }
                }
            }
        }
        let mut found = Vec::new();
        all(runs, candidates, (0, 0), 0, &mut Vec::new(), &mut found);
        let best = found.iter().map(|(sum, _)| *sum).max().unwrap();
        let boundary = |b: usize| {
            let optimal = found.iter().filter(|(sum, _)| *sum == best);
            let mut places: Vec<usize> = optimal
                .map(|(_, pairs)| {
                    pairs.iter().find(|(run, _)| *run >= b).map_or(candidates.len(), |pair| pair.1)
                })
                .collect();
            places.sort_unstable();
            places.dedup();
            places
        };
        (0..runs.len()).map(boundary).collect()
    }

    proptest! {
        #[test]
        fn the_boundaries_are_those_of_all_optimal_matchings(
            runs in prop::collection::vec((prop::option::of(0..3u128), 0..3u128, 0..3u128), 0..6),
            candidates in prop::collection::vec((0..3u128, any::<bool>(), 0..3u128, 0..3u128), 0..6),
        ) {
            let some = |value: u128| if value == 0 { vec![] } else { vec![value] };
            let runs: Vec<_> = runs.into_iter()
                .map(|(text, said, call)| Expected { text, said: some(said), calls: some(call) })
                .collect();
            let candidates: Vec<_> = candidates.into_iter()
                .map(|(text, injected, said, call)| Candidate { text, injected, said: some(said), calls: some(call) })
                .collect();
            let fast = matching(&runs, &candidates).unwrap();
            prop_assert_eq!(fast.boundaries, brute(&runs, &candidates));
        }
    }
}
