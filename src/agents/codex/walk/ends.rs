//! How turns end, and how they are taken back.

use jiff::Timestamp;

use super::{Current, TakenBack, Walk};
use crate::agents::codex::line::At;
use crate::agents::codex::open_turn::measured;
use crate::session::TurnStatus;

impl Walk {
    /// A turn's end: of the turn with this id, else of the one that is open.
    pub(super) fn ends(&mut self, id: Option<u64>, time: Option<Timestamp>, status: TurnStatus) {
        let last = self.turns.len().checked_sub(1).filter(|_| self.current != Current::None);
        let own = last.filter(|last| id.is_none() || self.turns[*last].id == id);
        let aborted = status == TurnStatus::Interrupted;
        // An explicit turn is not aborted by the id of a turn that nobody knows, though completed by it. Of the
        // lines of one turn, an id that they do not know is rather that of a turn before them.
        let unmoved = aborted || self.script.is_some();
        let other = last.filter(|last| !unmoved || self.turns[*last].id.is_none());
        let Some(turn) = own.or_else(|| self.with_id(id?)).or(other) else { return };
        let open = &mut self.turns[turn];
        // An aborted turn stays one, whatever ends it afterwards.
        if aborted || !open.ended {
            open.at.turn.status = status;
        }
        if !open.ended {
            open.at.turn.ended = time;
        }
        open.ended = true;
        open.at.turn.detail = None;
        if Some(turn) == last {
            self.current = Current::None;
        }
    }

    /// `thread_rolled_back` takes back the last `count` user messages and what followed them; it counts
    /// messages, not turns, so that a steer can go and its turn stay. The client's list counts turns instead:
    /// what it drops and the model never knew of is dropped here, too.
    pub(super) fn rolled_back(&mut self, at: &At<'_>, time: Option<Timestamp>, count: u64) {
        if self.rules.paginated {
            self.idle_rollback = true;
            return;
        }
        self.settle();
        self.current = Current::None;
        let before = self.turns.len();
        let listed = before.saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
        let (mut keep, mut steer, mut left) = (before, None, count);
        while left > 0 {
            let Some(turn) = self.spoken.last().copied() else { break };
            let users = self.turns[turn].users.len() as u64;
            if left < users {
                (keep, steer, left) = (turn + 1, Some((users - left) as usize), 0);
            } else {
                (keep, left) = (turn, left - users);
                self.spoken.pop();
            }
        }
        while keep > listed && steer.is_none() && self.turns[keep - 1].users.is_empty() {
            keep -= 1;
        }
        self.apart |= keep != listed || steer.is_some();
        let mut taken = self.turns.get(keep).map(|first| first.at.turn.span.start);
        let turns = steer.is_none();
        self.turns.truncate(keep);
        if let (Some(steer), Some(open)) = (steer, self.turns.last_mut()) {
            taken = Some(open.forget_from(steer));
        }
        if let (Some(start), Some(script)) = (taken, &mut self.script) {
            // What was taken back in there before is in it.
            script.taken.retain(|taken| taken.span.start < start);
            script.taken.push(TakenBack { span: start..at.end, turns });
        }
        if let Some(open) = self.turns.last_mut().filter(|_| !self.closed) {
            open.at.turn.span.end = at.end;
            open.at.turn.last = time.or(open.at.turn.last);
        }
        let left = self.turns.len() as u32;
        if self.sound.is_some_and(|sound| sound > left) {
            // What comes now has their numbers, and is behind the damage.
            (self.sound, self.sound_end) = (Some(left), None);
        }
    }

    pub(super) fn close_last(&mut self) {
        self.settle();
        let Some(open) = self.turns.last_mut() else { return };
        let mut reader = std::mem::take(&mut open.reader);
        open.length += measured(self.rules, |sink| reader.finish(sink));
    }
}
