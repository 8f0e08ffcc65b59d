//! Which turns lay in others, and what the turns did to the context once that is known.
//!
//! A turn that begins inside another one belongs to it only if that one has a TurnEnd, and what a nested command
//! did counts otherwise than what a prompt did: so both wait for the end of the walk.

use super::walk::{Op, OpKind};
use super::{Begun, RawKind, RawOp};

/// How the prompt begins that /init gives to its inner run.
pub(super) const INIT_PROMPT: &str = "You are a software engineering expert";

/// Which turns were really nested: an outer turn that never got its TurnEnd was killed and owns nothing.
pub(super) struct Nesting {
    /// Each turn's outermost turn.
    pub groups: Vec<usize>,
    pub has_inner: Vec<bool>,
    /// Runs in a context of its own (/init): nothing of it reaches the session's context.
    off_context: Vec<bool>,
}

impl Nesting {
    pub fn of(turns: &[Begun]) -> Nesting {
        let mut nesting = Nesting {
            groups: Vec::with_capacity(turns.len()),
            has_inner: vec![false; turns.len()],
            off_context: Vec::with_capacity(turns.len()),
        };
        for (index, begun) in turns.iter().enumerate() {
            let is_init = |turn: usize| turns[turn].turn.command.as_deref() == Some("init");
            // Where no turn has a TurnEnd, only the run of an /init is inside of one.
            let owns = |outer: &usize| turns[*outer].turn.end.is_some() || turns[*outer].endless;
            let owner = begun.inside.filter(owns);
            let group = match owner {
                Some(outer) => nesting.groups[outer],
                None => index,
            };
            if let Some(outer) = owner {
                nesting.has_inner[outer] = true;
            }
            // A killed /init owns nothing, but its inner run still went to another context.
            let of_killed_init = begun.inside.is_some_and(|outer| {
                owner.is_none()
                    && outer + 1 == index
                    && is_init(outer)
                    && begun.turn.text.starts_with(INIT_PROMPT)
            });
            nesting.off_context.push((group != index && is_init(group)) || of_killed_init);
            nesting.groups.push(group);
        }
        nesting
    }
}

/// The ops as they are now that nesting is known.
pub(super) fn settle(raw: Vec<RawOp>, turns: &[Begun], nesting: &Nesting, steps: usize) -> Vec<Op> {
    let run_ends = run_ends(&raw, steps);
    let mut run_ends = run_ends.into_iter();
    let mut ops: Vec<Op> = Vec::with_capacity(raw.len());
    let mut unanswered = turns.iter().enumerate().filter(|(index, begun)| {
        begun.steps == 0
            && begun.turn.command.is_none()
            && !nesting.has_inner[*index]
            && !nesting.off_context[*index]
    });
    let mut next_unanswered = unanswered.next();
    let op = |turn: usize, kind| Op { group: nesting.groups[turn] as u32, kind };
    for RawOp { turn, kind } in raw {
        let killed = matches!(kind, RawKind::KilledCommand(_));
        let kind = match kind {
            RawKind::Op(kind) | RawKind::KilledCommand(kind) => kind,
            RawKind::Run { own_text, first_step } => {
                let begun = &turns[turn].turn;
                let text = (own_text && begun.command.is_none()).then(|| begun.text.clone());
                OpKind::Run { text, steps: first_step..run_ends.next().unwrap_or(steps) }
            }
            RawKind::CommandDone(_) if turns[turn].turn.nested => continue,
            RawKind::CommandDone(kind) => kind,
        };
        // Not what a killed /init wrote itself, behind its inner turn.
        if nesting.off_context[turn] && !killed {
            continue;
        }
        while let Some((index, begun)) = next_unanswered.filter(|(index, _)| *index < turn) {
            ops.push(op(index, OpKind::Unanswered { text: begun.turn.text.clone() }));
            next_unanswered = unanswered.next();
        }
        ops.push(op(turn, kind));
    }
    for (index, begun) in next_unanswered.into_iter().chain(unanswered) {
        ops.push(op(index, OpKind::Unanswered { text: begun.turn.text.clone() }));
    }
    ops
}

/// For each run the step where the next one begins.
fn run_ends(raw: &[RawOp], steps: usize) -> Vec<usize> {
    let starts = raw.iter().filter_map(|op| match op.kind {
        RawKind::Run { first_step, .. } => Some(first_step),
        _ => None,
    });
    starts.skip(1).chain([steps]).collect()
}
