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

/// A block that did not land may hold more than the transcript has, if nothing could be written at all; then it
/// holds all that the transcript has, and that is so many messages at least.
const ENOUGH_OF_ALL: usize = 3;

/// Most prunes of one client none of which it could write.
const LONGEST_CHAIN: usize = 8;

/// Different histories that are compared with each other.
const MOST_READINGS: usize = 16;

/// A prune's record.
struct Record {
    digest: Option<FileHash>,
    count: usize,
    /// Whether all that it dropped is in the archive, as far as the client knew.
    archived: bool,
}

/// What a transcript held behind its head at some time: messages of the archive, then those of the transcript.
struct Front {
    /// The blocks of the archive that landed behind it, with their records' places; of all but the first block the
    /// first message, a digest, is left out.
    pieces: Vec<Range<usize>>,
    records: Vec<usize>,
    /// Whether the note of a prune that only shortened is left out: as it was before that prune.
    before_note: bool,
    begins_with: Begin,
    len: usize,
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
    live_found: &'a [Found],
    /// Places in the archive at which a block may begin and that no block contains: those of prunes' notes, and
    /// those behind an append that failed or behind originals.
    begins: Vec<usize>,
    /// Ids that several calls have.
    reused: HashSet<&'a str>,
    records: Vec<Record>,
    digests: HashSet<FileHash>,
    fronts: Vec<Front>,
    /// The front from before a block landed, by the front behind it, the block's end and its record; and the one from before
    /// the note of a prune that only shortened.
    before: HashMap<(usize, Option<(usize, usize)>), usize>,
    /// Comparisons that are left.
    patience: usize,
}

/// What of an archive belongs to the history.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Landed {
    /// The blocks of the prunes that landed, the first prune's first: places in the archive without originals.
    pub blocks: Vec<Range<usize>>,
    /// The places of their records.
    pub records: Vec<usize>,
}

impl Landed {
    /// The places of what was said: a digest, which begins all but the first block, was not.
    pub fn said(&self) -> impl Iterator<Item = usize> {
        let blocks = self.blocks.iter().enumerate();
        blocks.flat_map(|(nth, block)| block.start + usize::from(nth > 0)..block.end)
    }
}

/// Why nothing of an archive is certain.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub why: String,
    /// Whether several histories would explain what is there.
    pub several: bool,
}

/// Which blocks of `archive`, which holds no originals, belong to the history. `live` is the transcript from its
/// digest on; no block goes on behind one of `ends`, places in the archive at which an append failed or
/// originals stand. `has_gaps`: something could not be written, so what seems to fit may do so by chance, and only
/// an exact fit counts.
///
/// # Errors
/// Why that is not certain.
pub(super) fn landed(
    live: &[Found],
    archive: &[&Found],
    ends: &[usize],
    records: &[Compaction],
    has_gaps: bool,
) -> Result<Landed, Doubt> {
    let mut walk = Walk::of(live, archive, ends, records);
    let readings = [Reading::Exact, Reading::OriginalsAnywhere, Reading::Beginnings];
    for reading in readings.into_iter().take(if has_gaps { 1 } else { 3 }) {
        if let Some(front) = walk.read(reading).map_err(|why| Doubt { why, several: true })? {
            let Front { pieces, records, .. } = &walk.fronts[front];
            return Ok(Landed { blocks: pieces.clone(), records: records.clone() });
        }
    }
    let dropped = walk.records.iter().fold(0usize, |sum, record| sum.saturating_add(record.count));
    let why = format!(
        "{dropped} messages were pruned in all, the archive holds {}, and they do not fit together",
        walk.archive.len()
    );
    Err(Doubt { why, several: false })
}

/// How an archive is read; the next way only where the one before explains nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reading {
    /// Every block that did not land repeats what the transcript still held.
    Exact,
    /// And a tool output at a block's end may be an original of the next block: it has the id of a call that was
    /// never answered, where ids are used again. And a block that did not land may begin with a digest that the
    /// transcript never held.
    OriginalsAnywhere,
    /// And of a block that did not land its beginning or its record is enough: an undo may have come between.
    Beginnings,
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

fn reused<'f>(messages: impl Iterator<Item = &'f Found>) -> HashSet<&'f str> {
    let mut once: HashSet<&str> = HashSet::new();
    messages.flat_map(|found| &found.calls).map(|id| &**id).filter(|id| !once.insert(id)).collect()
}

impl<'a> Walk<'a> {
    fn of(live: &'a [Found], archive: &'a [&'a Found], ends: &[usize], records: &[Compaction]) -> Walk<'a> {
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
            live_found: live,
            begins: Vec::new(),
            reused: reused(archive.iter().copied().chain(live)),
            digests: records.iter().filter_map(|record| record.digest).collect(),
            records,
            fronts: Vec::new(),
            before: HashMap::new(),
        };
        let notes = (0..archive.len()).filter(|at| walk.begin(archive[*at]) != Begin::Message);
        let mut begins: Vec<usize> = notes.chain(ends.iter().copied()).collect();
        begins.sort_unstable();
        walk.begins = begins;
        if let Some(first) = live.first() {
            let begins_with = walk.begin(first);
            walk.add(Vec::new(), Vec::new(), false, begins_with);
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

    /// Whether this can be one block.
    fn is_block(&self, block: Range<usize>) -> bool {
        let next = self.begins.partition_point(|at| *at <= block.start);
        self.begins.get(next).is_none_or(|at| *at >= block.end)
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

    fn add(
        &mut self,
        pieces: Vec<Range<usize>>,
        records: Vec<usize>,
        before_note: bool,
        begins_with: Begin,
    ) -> usize {
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
        let archived: usize = pieces.iter().map(ExactSizeIterator::len).sum();
        let len = (archived + self.live.len()).saturating_sub(pieces.len() + usize::from(before_note));
        self.fronts.push(Front { pieces, records, before_note, begins_with, len, starts });
        self.fronts.len() - 1
    }

    /// The front from before all prunes, if there is exactly one that explains the whole archive.
    ///
    /// # Errors
    /// If there are several, or it takes too long to know.
    fn read(&mut self, reading: Reading) -> Result<Option<usize>, String> {
        let mut seen: HashSet<Step> = HashSet::new();
        let mut open: Vec<Step> = vec![(self.archive.len(), self.records.len(), 0)];
        let mut whole: Vec<usize> = Vec::new();
        while let Some(step) = open.pop() {
            if !seen.insert(step) {
                continue;
            }
            let (end, records, front) = step;
            self.patience = self.patience.saturating_sub(1 + self.fronts[front].starts.len());
            if self.patience == 0 {
                return Err("the archive repeats itself too often to tell what was pruned".into());
            }
            if self.is_whole(step) && !whole.iter().any(|known| self.same(*known, front)) {
                whole.push(front);
                if whole.len() > MOST_READINGS {
                    break;
                }
            }
            if reading > Reading::Exact {
                self.patience = self.patience.saturating_sub(self.fronts[front].len);
            }
            self.blocks_that_did_not_land(step, reading, &mut open);
            if reading >= Reading::OriginalsAnywhere
                && let Some(before) = end.checked_sub(1)
                && self.archive[before].answers.as_deref().is_some_and(|id| self.reused.contains(id))
                && !self.archive[before].is_cut
            {
                open.push((before, records, front));
            }
            let last = records.checked_sub(1).map(|last| (last, &self.records[last]));
            if let Some((left, _)) = last.filter(|(_, record)| !record.archived) {
                open.push((end, left, front));
            }
            match (self.fronts[front].begins_with, last) {
                (Begin::Digest(digest), Some((left, record)))
                    if record.digest == Some(digest)
                        // Else its block could not be written whole, and what stands there is another one.
                        && record.archived
                        && (1..=end).contains(&record.count)
                        && self.is_block(end - record.count..end) =>
                {
                    let start = end - record.count;
                    open.push((start, left, self.before_landing(front, start..end, left)));
                }
                (Begin::Shortened, _) if !self.fronts[front].before_note => {
                    open.push((end, records, self.before_note(front)));
                }
                _ => {}
            }
        }
        let len = |front: &usize| self.fronts[*front].len;
        let Some(shortest) = whole.iter().copied().min_by_key(len) else { return Ok(None) };
        let others = whole.iter().filter(|other| **other != shortest);
        let certain = whole.len() <= MOST_READINGS
            && others.into_iter().all(|other| self.is_said_again(shortest, *other));
        match certain {
            true => Ok(Some(shortest)),
            false => Err("the archive can be read in more than one way".into()),
        }
    }

    /// Whether what the longer of two fronts has more is what nobody says again: most of it was said only once in
    /// the shorter one. So it is a block that did not land, and not a talk that was repeated word for word between
    /// two prunes whose digests are equal.
    fn is_said_again(&self, shorter: usize, longer: usize) -> bool {
        let [shorter, longer] = [shorter, longer].map(|front| {
            let mut times: HashMap<FileHash, u32> = HashMap::new();
            let pieces = self.fronts[front].pieces.iter().enumerate();
            let archived =
                pieces.flat_map(|(nth, piece)| &self.archive[piece.start + usize::from(nth > 0)..piece.end]);
            let all = archived.copied().chain(self.live_found).filter(|found| {
                let spoken = matches!(found.role, Role::User | Role::Assistant) && !found.looks_like_note;
                spoken || (found.role == Role::Tool && !found.is_cut)
            });
            for found in all {
                *times.entry(FileHash(found.hash.0.wrapping_add(token(found).0))).or_default() += 1;
            }
            times
        });
        let before = |said: &FileHash| shorter.get(said).copied().unwrap_or(0);
        let more = longer.iter().filter(|(said, times)| **times > before(said)).map(|(said, _)| before(said));
        let more: Vec<u32> = more.collect();
        let once = more.iter().filter(|times| **times == 1).count();
        once > 0 && once * 2 >= more.len()
    }

    fn before_landing(&mut self, front: usize, block: Range<usize>, record: usize) -> usize {
        let key = (front, Some((block.end, record)));
        if let Some(known) = self.before.get(&key) {
            return *known;
        }
        let begins_with = self.begin(self.archive[block.start]);
        let pieces = [vec![block], self.fronts[front].pieces.clone()].concat();
        let records = [vec![record], self.fronts[front].records.clone()].concat();
        let before = self.add(pieces, records, false, begins_with);
        self.before.insert(key, before);
        before
    }

    fn before_note(&mut self, front: usize) -> usize {
        if let Some(known) = self.before.get(&(front, None)) {
            return *known;
        }
        let Front { pieces, records, .. } = &self.fronts[front];
        let before = self.add(pieces.clone(), records.clone(), true, Begin::Message);
        self.before.insert((front, None), before);
        before
    }

    /// Whether no prune comes before the front, and nothing is left to explain.
    fn is_whole(&self, (end, records, front): Step) -> bool {
        let pruned = matches!(self.fronts[front].begins_with, Begin::Digest(_));
        !pruned && end == 0 && self.records[..records].iter().all(|record| !record.archived)
    }

    /// Steps over a block at the end that repeats what the front says.
    fn blocks_that_did_not_land(&self, (end, records, front): Step, reading: Reading, open: &mut Vec<Step>) {
        let lenient = reading >= Reading::Beginnings;
        let last = records.checked_sub(1).map(|last| (last, &self.records[last]));
        let front_is = self.fronts[front].begins_with;
        // An undo keeps something behind a digest, and perhaps nothing of what follows the first message.
        let enough = if matches!(front_is, Begin::Digest(_)) { 2 } else { 1 };
        for (at, agree) in self.fronts[front].starts.iter().filter(|(at, _)| *at < end) {
            let known = at + agree >= end
                || (*agree >= ENOUGH_OF_ALL && *agree == self.fronts[front].len)
                || (lenient && *agree >= enough);
            if !known || !self.is_block(*at..end) {
                continue;
            }
            // It was killed before the record, or after it.
            open.push((*at, records, front));
            if let Some((left, _)) = last.filter(|(_, record)| record.count == end - at) {
                open.push((*at, left, front));
            }
        }
        open.extend(self.chain_that_did_not_land((end, records, front)));
        // A digest that only a client's memory held, and what the transcript still holds somewhere.
        let begin = self.begins.partition_point(|at| *at < end).checked_sub(1).map(|nth| self.begins[nth]);
        if reading >= Reading::OriginalsAnywhere
            && let Some(at) = begin.filter(|at| at + 1 < end)
            && matches!(self.begin(self.archive[at]), Begin::Digest(_))
            && self.holds(front, &self.tokens[at + 1..end])
        {
            open.push((at, records, front));
            if let Some((left, _)) = last.filter(|(_, record)| record.count == end - at) {
                open.push((at, left, front));
            }
        }
    }

    fn holds(&self, front: usize, run: &[FileHash]) -> bool {
        let all: Vec<&FileHash> = self.front(&self.fronts[front].pieces, false).collect();
        all.windows(run.len()).any(|window| window.iter().copied().eq(run))
    }

    /// Steps over blocks of a client that could not write what it pruned, and pruned that again: each but the first
    /// begins with a digest that only it knew, and goes on behind the block before.
    fn chain_that_did_not_land(&self, (end, records, front): Step) -> Option<Step> {
        let mut blocks: Vec<Range<usize>> = Vec::new();
        let (mut start, mut left) = (end, records);
        loop {
            let count = self.records[..left].last()?.count;
            let block = start.checked_sub(count).filter(|_| count > 0)?..start;
            (start, left) = (block.start, left - 1);
            let begins_with = self.begin(self.archive[start]);
            blocks.push(block);
            match begins_with {
                begin if begin == self.fronts[front].begins_with => break,
                Begin::Digest(digest) if self.records[..left].last()?.digest == Some(digest) => {}
                _ => break,
            }
            if blocks.len() > LONGEST_CHAIN {
                return None;
            }
        }
        // One block alone is no chain.
        blocks.get(1)?;
        let repeated = blocks
            .iter()
            .rev()
            .enumerate()
            .flat_map(|(nth, block)| &self.tokens[block.start + usize::from(nth > 0)..block.end]);
        let mut held = self.front(&self.fronts[front].pieces, self.fronts[front].before_note);
        let mut agree = 0;
        // What comes after the transcript's end was never written there, either.
        let all = repeated.into_iter().all(|token| match held.next() {
            Some(other) => {
                agree += 1;
                token == other
            }
            None => agree >= ENOUGH_OF_ALL,
        });
        all.then_some((start, left, front))
    }

    fn same(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|front| self.front(&self.fronts[front].pieces, false));
        one.eq(other)
    }
}
