//! Which messages of an archive belong to the history: what was dropped by prunes that landed.
//!
//! A prune appends what it drops to the archive, then its record, then rewrites the transcript; it may be killed
//! or fail before each of these and be tried again. What it drops begins with what stood behind the head, so a
//! prune's digest is the first message of every block that is archived while the transcript holds that digest.
//! That is the rule: a block landed if its record's digest begins the transcript, or the next block that landed.
//! All other blocks repeat what the transcript still held; nothing leads to them.
//! Facts: `docs/stores/openmax.md`, "7. History behind a prune".

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::records::{self, Compaction, PruneNote, Role};
use super::scan::Found;
use crate::session::FileHash;

/// Most comparisons for one session, and more for each message; only an archive that repeats itself without end
/// needs so many.
const PATIENCE: usize = 1 << 20;
const PATIENCE_PER_MESSAGE: usize = 32;

/// A prune's record.
struct Record {
    digest: Option<FileHash>,
    count: usize,
    /// Whether all that it dropped is in the archive, as far as the client knew.
    archived: bool,
}

/// What a transcript held behind its head at some time: messages of the archive, then those of the transcript.
struct Front {
    /// Ranges of the archive; of all but the first the first message, a digest, is left out.
    pieces: Vec<Range<usize>>,
    /// Whether the note of a prune that only shortened is left out: as it was before that prune.
    before_note: bool,
    begins_with: Begin,
    /// Places in the archive at which a block begins as this front does, with how many messages agree.
    starts: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    Digest(FileHash),
    Shortened,
    Message,
}

/// One way to read the archive from its end, as far as it was followed: messages and records that are not yet
/// explained, and the front before them.
type Step = (usize, usize, usize);

struct Walk<'a> {
    archive: &'a [&'a Found],
    tokens: Vec<FileHash>,
    /// All places in the archive, those of equal tokens together, in order.
    by_token: Vec<u32>,
    /// The transcript from its digest on.
    live: Vec<FileHash>,
    records: Vec<Record>,
    digests: HashSet<FileHash>,
    fronts: Vec<Front>,
    /// The front from before a block landed, by the front behind it and the block's end; and the one from before
    /// the note of a prune that only shortened.
    before: HashMap<(usize, Option<usize>), usize>,
    /// Comparisons that are left.
    patience: usize,
}

/// The messages of the archive that belong to the history, in order, earlier digests left out: their places in
/// `archive`, which holds no originals. `live` is the transcript from its digest on.
///
/// # Errors
/// Why it is not certain which these are, for a person.
pub(super) fn landed(
    live: &[Found],
    archive: &[&Found],
    records: &[Compaction],
) -> Result<Vec<usize>, String> {
    let mut walk = Walk::of(live, archive, records);
    let doubt = |walk: &Walk<'_>| {
        let dropped = walk.records.iter().fold(0usize, |sum, record| sum.saturating_add(record.count));
        format!(
            "{dropped} messages were pruned in all, the archive holds {}, and they do not fit together",
            walk.archive.len()
        )
    };
    // What was undone between two prunes leaves blocks that nothing explains in full.
    for lenient in [false, true] {
        match walk.read(lenient)? {
            Some(front) => return Ok(walk.history(front)),
            None if lenient => break,
            None => {}
        }
    }
    Err(doubt(&walk))
}

/// What makes a message the same in two blocks: of a tool output its call, since prunes cut outputs.
fn token(found: &Found) -> FileHash {
    let role = match found.role {
        Role::System => 1,
        Role::User => 2,
        Role::Assistant => 3,
        Role::Tool => 4,
        Role::Other => 5,
    };
    let said = found.answers.as_ref().map_or(found.hash, |id| FileHash::of(id.as_bytes()));
    FileHash(said.0.wrapping_add(role))
}

impl<'a> Walk<'a> {
    fn of(live: &[Found], archive: &'a [&'a Found], records: &[Compaction]) -> Walk<'a> {
        let records: Vec<Record> = records
            .iter()
            .map(|record| Record {
                digest: record.digest.as_deref().map(records::digest_hash),
                count: usize::try_from(record.message_count).unwrap_or(usize::MAX),
                archived: record.digest.as_deref().is_some_and(records::names_archive),
            })
            .collect();
        let tokens: Vec<FileHash> = archive.iter().map(|found| token(found)).collect();
        let mut by_token: Vec<u32> = (0..tokens.len() as u32).collect();
        by_token.sort_by_key(|at| tokens[*at as usize].0);
        let mut walk = Walk {
            archive,
            patience: PATIENCE + PATIENCE_PER_MESSAGE * (archive.len() + live.len()),
            tokens,
            by_token,
            live: live.iter().map(token).collect(),
            digests: records.iter().filter_map(|record| record.digest).collect(),
            records,
            fronts: Vec::new(),
            before: HashMap::new(),
        };
        if let Some(first) = live.first() {
            let begins_with = walk.begin(first);
            walk.add(Vec::new(), false, begins_with);
        }
        walk
    }

    fn begin(&self, found: &Found) -> Begin {
        match found.note {
            Some(PruneNote::Shortened) => Begin::Shortened,
            Some(PruneNote::Dropped) => Begin::Digest(found.hash),
            None if found.role == Role::User && self.digests.contains(&found.hash) => {
                Begin::Digest(found.hash)
            }
            None => Begin::Message,
        }
    }

    /// The messages of a front, as tokens.
    fn front(&self, pieces: &[Range<usize>], before_note: bool) -> impl Iterator<Item = &FileHash> {
        let archived = pieces.iter().enumerate().flat_map(|(nth, piece)| {
            let from = piece.start + usize::from(nth > 0);
            &self.tokens[from..piece.end.max(from)]
        });
        let live = &self.live[usize::from(!pieces.is_empty())..];
        archived.chain(live).skip(usize::from(before_note))
    }

    fn add(&mut self, pieces: Vec<Range<usize>>, before_note: bool, begins_with: Begin) -> usize {
        let mut starts = Vec::new();
        let mut work = 0;
        if let Some(first) = self.front(&pieces, before_note).next() {
            let from = self.by_token.partition_point(|at| self.tokens[*at as usize].0 < first.0);
            let places = self.by_token[from..].iter().map(|at| *at as usize);
            for at in places.take_while(|at| self.tokens[*at] == *first) {
                let front = self.front(&pieces, before_note);
                let agree =
                    self.tokens[at..].iter().zip(front).take_while(|(one, other)| one == other).count();
                starts.push((at, agree));
                // A note that never reached the transcript, because the rewrite failed after it was put in.
                let note =
                    at.checked_sub(1).filter(|at| self.archive[*at].note == Some(PruneNote::Shortened));
                starts.extend(note.map(|note| (note, agree + 1)));
                work += agree + 1;
                if work >= self.patience {
                    break;
                }
            }
        }
        self.patience = self.patience.saturating_sub(work);
        self.fronts.push(Front { pieces, before_note, begins_with, starts });
        self.fronts.len() - 1
    }

    /// The front from before all prunes, if there is exactly one that explains the whole archive. `lenient`: of
    /// blocks that did not land their beginnings and their records are enough.
    ///
    /// # Errors
    /// If there are several, or it takes too long to know.
    fn read(&mut self, lenient: bool) -> Result<Option<usize>, String> {
        let mut seen: HashSet<Step> = HashSet::new();
        let mut open: Vec<Step> = vec![(self.archive.len(), self.records.len(), 0)];
        let mut result: Option<usize> = None;
        while let Some(step) = open.pop() {
            if !seen.insert(step) {
                continue;
            }
            let (end, records, front) = step;
            self.patience = self.patience.saturating_sub(1 + self.fronts[front].starts.len());
            if self.patience == 0 {
                return Err("the archive repeats itself too often to tell what was pruned".into());
            }
            if self.is_whole(step) {
                match result {
                    Some(known) if !self.same(known, front) => {
                        return Err("the archive can be read in more than one way".into());
                    }
                    _ => result = result.or(Some(front)),
                }
            }
            self.blocks_that_did_not_land(step, lenient, &mut open);
            let last = records.checked_sub(1).map(|last| (last, &self.records[last]));
            if let Some((left, _)) = last.filter(|(_, record)| !record.archived) {
                open.push((end, left, front));
            }
            match (self.fronts[front].begins_with, last) {
                (Begin::Digest(digest), Some((left, record)))
                    if record.digest == Some(digest) && (1..=end).contains(&record.count) =>
                {
                    let start = end - record.count;
                    open.push((start, left, self.before_landing(front, start..end)));
                }
                (Begin::Shortened, _) if !self.fronts[front].before_note => {
                    open.push((end, records, self.before_note(front)));
                }
                _ => {}
            }
        }
        Ok(result)
    }

    fn before_landing(&mut self, front: usize, block: Range<usize>) -> usize {
        let key = (front, Some(block.end));
        if let Some(known) = self.before.get(&key) {
            return *known;
        }
        let begins_with = self.begin(self.archive[block.start]);
        let pieces = [vec![block], self.fronts[front].pieces.clone()].concat();
        let before = self.add(pieces, false, begins_with);
        self.before.insert(key, before);
        before
    }

    fn before_note(&mut self, front: usize) -> usize {
        if let Some(known) = self.before.get(&(front, None)) {
            return *known;
        }
        let before = self.add(self.fronts[front].pieces.clone(), true, Begin::Message);
        self.before.insert((front, None), before);
        before
    }

    /// Whether no prune comes before the front, and nothing is left to explain.
    fn is_whole(&self, (end, records, front): Step) -> bool {
        let pruned = matches!(self.fronts[front].begins_with, Begin::Digest(_));
        !pruned && end == 0 && self.records[..records].iter().all(|record| !record.archived)
    }

    /// Steps over a block at the end that repeats what the front says.
    fn blocks_that_did_not_land(&self, (end, records, front): Step, lenient: bool, open: &mut Vec<Step>) {
        let last = records.checked_sub(1).map(|last| (last, &self.records[last]));
        let front_is = self.fronts[front].begins_with;
        // An undo keeps something behind a digest, and perhaps nothing of what follows the first message.
        let enough = if matches!(front_is, Begin::Digest(_)) { 2 } else { 1 };
        for (at, agree) in self.fronts[front].starts.iter().filter(|(at, _)| *at < end) {
            if at + agree < end && !(lenient && *agree >= enough) {
                continue;
            }
            // It was killed before the record, or after it.
            open.push((*at, records, front));
            if let Some((left, _)) = last.filter(|(_, record)| record.count == end - at) {
                open.push((*at, left, front));
            }
        }
        // A prune on top of one that was only ever in a client's memory.
        if lenient
            && let Some((left, record)) = last
            && let Some(start) = end.checked_sub(record.count).filter(|start| *start < end)
            && let Begin::Digest(digest) = self.begin(self.archive[start])
            && front_is != Begin::Digest(digest)
        {
            open.push((start, left, front));
        }
    }

    fn same(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|front| self.front(&self.fronts[front].pieces, false));
        one.eq(other)
    }

    fn history(&self, front: usize) -> Vec<usize> {
        let pieces = self.fronts[front].pieces.iter().enumerate();
        pieces.flat_map(|(nth, piece)| piece.start + usize::from(nth > 0)..piece.end).collect()
    }
}
