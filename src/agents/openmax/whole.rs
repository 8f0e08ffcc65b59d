//! The whole history of a session: what a prune left in the transcript, put together with what it moved to
//! the archive. Facts: `docs/stores/openmax.md`, "7. History behind a prune".
//!
//! A prune keeps the head (system line and first request) and the tail; it replaces what was between by a
//! digest and appends it to the archive, after the originals of tool outputs that it cut.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use super::landed::{Doubt, Landed, landed};
use super::records::{self, Compaction, PruneNote, Role};
use super::scan::{Found, Messages};
use crate::session::FileHash;

/// Which file a message stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum In {
    Live,
    Archive,
}

/// A message of the whole history.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub file: In,
    pub found: Found,
    /// A tool output that was cut and whose original is nowhere.
    pub lost: bool,
    /// The note of a prune that only shortened outputs: nobody said it, and a history that is written in full
    /// goes without it.
    pub note: bool,
}

/// A session's messages, in the order in which they were said.
#[derive(Debug, Default)]
pub(super) struct Whole {
    pub said: Vec<Said>,
    /// The digest's place in the transcript, where there is one: the session was pruned.
    pub digest: Option<usize>,
    /// The place in the transcript of a note that outputs were shortened; there is no digest then.
    pub shortened: Option<usize>,
    /// For a pruned session: how many messages come before the first one behind the digest.
    pub border: usize,
    /// Why the messages before the border are not all there, if they are not.
    pub absent: Option<String>,
    pub sidecars: Sidecars,
}

/// What of archive and records a session needs that goes on without some of its live messages. What a prune that
/// did not land left repeats these, and without them nothing would tell that it did not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Sidecars {
    /// All.
    #[default]
    Whole,
    /// Only what landed: ranges of bytes; of the archive with the number of its messages.
    Landed { archive: (Vec<Range<u64>>, u64), records: Vec<Range<u64>> },
    /// The archive. The records would seem to explain it.
    Archive,
}

/// Most pairs of a cut output and an original of one call id that are compared where their order tells nothing.
const PAIRS: usize = 4096;

/// What a message says, read once more; `None` if that fails.
pub(super) type Text<'t> = &'t dyn Fn(In, &Found) -> Option<String>;

/// Puts a transcript and its sidecars together.
pub(super) fn whole(
    live: &Messages,
    archive: Option<&Messages>,
    records: Option<&[Compaction]>,
    text: Text<'_>,
) -> Whole {
    let archived = archive.map_or(&[][..], |archive| &archive.found);
    let originals = originals(archived);
    let (digest, shortened) = match pruned(&live.found, records.unwrap_or_default()) {
        Some((at, PruneNote::Dropped)) => (Some(at), None),
        Some((at, PruneNote::Shortened)) => (None, Some(at)),
        None => (None, None),
    };
    let (head, tail) = match digest {
        Some(at) => (&live.found[..at], &live.found[at + 1..]),
        None => (&live.found[..], &[][..]),
    };
    let (mut moved, mut ends) = (Vec::new(), Vec::new());
    for (at, found) in archived.iter().enumerate().filter(|_| digest.is_some()) {
        let original = originals.contains(&at);
        // Originals come before what was dropped, so a block ends there, too.
        if (found.behind_fragment || original) && ends.last() != Some(&moved.len()) {
            ends.push(moved.len());
        }
        if !original {
            moved.push(found);
        }
    }
    // Something that the archive should hold could not be written.
    let has_gaps = archived
        .iter()
        .chain(&live.found)
        .any(|found| found.behind_fragment || (found.note.is_some() && !found.names_archive));
    let doubt = |why: &str| Err(Doubt { why: why.to_owned(), several: false });
    let landed = match (digest, records) {
        (None, _) => Ok(Landed::default()),
        (Some(_), _) if archive.is_none() => doubt("the archive of what was pruned is not there"),
        (Some(_), None) => doubt("the record of what was pruned is not there"),
        (Some(at), Some(records)) => landed(&live.found[at..], &moved, &ends, records, has_gaps),
    };
    let dropped: Vec<&Found> = landed.iter().flat_map(Landed::said).map(|at| moved[at]).collect();
    let border = head.len() + dropped.len();
    let said = |file, found: &Found, note| Said { file, lost: found.is_cut, found: found.clone(), note };
    let mut all = Vec::with_capacity(border + tail.len());
    all.extend(head.iter().enumerate().map(|(at, found)| said(In::Live, found, shortened == Some(at))));
    all.extend(
        dropped.iter().enumerate().map(|(nth, found)| {
            said(In::Archive, found, nth == 0 && found.note == Some(PruneNote::Shortened))
        }),
    );
    all.extend(tail.iter().map(|found| said(In::Live, found, false)));
    let kept: HashSet<u64> = dropped.iter().map(|found| found.start).collect();
    // Whatever is whole and in the archive; blocks that did not land hold whole outputs, too.
    let uncut = archived.iter().filter(|found| found.answers.is_some() && !found.is_cut);
    let uncut: Vec<&Found> = uncut.filter(|found| !kept.contains(&found.start)).collect();
    // Where an original may be missing, another output that looks like it proves nothing.
    put_back(&mut all, &uncut, (!has_gaps).then_some(text));
    let (sidecars, absent) = match landed {
        Ok(landed) => {
            let needs_originals = live.found.iter().any(|found| found.is_cut) || digest.is_some();
            let used = all.iter().filter(|said| said.file == In::Archive).map(|said| said.found.start);
            let mut needed: HashSet<u64> = used.collect();
            needed
                .extend(landed.blocks.iter().flat_map(|block| moved[block.clone()].iter().map(|f| f.start)));
            if needs_originals {
                needed.extend(originals.iter().map(|at| archived[*at].start));
            }
            (sidecars(archived, &needed, records.unwrap_or_default(), &landed.records), None)
        }
        Err(Doubt { why, several: true }) => (Sidecars::Archive, Some(why)),
        Err(Doubt { why, several: false }) => (Sidecars::Whole, Some(why)),
    };
    Whole { said: all, digest, shortened, border, absent, sidecars }
}

fn sidecars(archive: &[Found], needed: &HashSet<u64>, records: &[Compaction], landed: &[usize]) -> Sidecars {
    if needed.len() == archive.len() && landed.len() == records.len() {
        return Sidecars::Whole;
    }
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for found in archive.iter().filter(|found| needed.contains(&found.start)) {
        match ranges.last_mut() {
            Some(last) if last.end == found.start => last.end = found.end,
            _ => ranges.push(found.start..found.end),
        }
    }
    let records = landed.iter().filter_map(|at| records.get(*at)).map(|record| record.span.clone());
    Sidecars::Landed { archive: (ranges, needed.len() as u64), records: records.collect() }
}

/// Where a prune's note stands, and of which kind it is. It stands behind the head: at message 2, in newer
/// versions also at 3; one less where an old transcript has no system line.
fn pruned(live: &[Found], records: &[Compaction]) -> Option<(usize, PruneNote)> {
    let users = (1..live.len().min(4)).filter(|at| live[*at].role == Role::User);
    let mut notes = users.filter_map(|at| {
        let recorded = || {
            let digests = records.iter().filter_map(|record| record.digest.as_deref());
            digests.map(records::digest_hash).any(|digest| digest == live[at].hash)
        };
        let note = live[at].note.or_else(|| recorded().then_some(PruneNote::Dropped));
        note.map(|note| (at, note))
    });
    notes.next()
}

/// The archive's tool lines that are uncut originals: they do not follow the call that they answer.
fn originals(archive: &[Found]) -> BTreeSet<usize> {
    let mut originals = BTreeSet::new();
    let mut open: Vec<&str> = Vec::new();
    for (at, found) in archive.iter().enumerate() {
        if found.behind_fragment {
            // Whatever answered the call is lost.
            open.clear();
        }
        match &found.answers {
            Some(id) => match open.iter().position(|call| **call == **id) {
                Some(answered) => drop(open.remove(answered)),
                None => {
                    open.clear();
                    if !found.is_cut {
                        originals.insert(at);
                    }
                }
            },
            None => open = found.calls.iter().map(|call| &**call).collect(),
        }
    }
    originals
}

/// Puts the originals of cut tool outputs back. Endpoints that give no ids to calls make the client count them
/// from 0 in each reply, so an id may stand for several calls: then the part that was kept tells, where `text` may
/// be asked.
fn put_back(all: &mut [Said], originals: &[&Found], text: Option<Text<'_>>) {
    let mut cut: HashMap<Box<str>, Vec<usize>> = HashMap::new();
    for (at, said) in all.iter().enumerate().filter(|(_, said)| said.lost) {
        cut.entry(said.found.answers.clone().unwrap_or_default()).or_default().push(at);
    }
    if cut.is_empty() {
        return;
    }
    let mut by_id: HashMap<&str, Vec<&Found>> = HashMap::new();
    for original in originals.iter().copied() {
        by_id.entry(original.answers.as_deref().unwrap_or_default()).or_default().push(original);
    }
    let mut answers: HashMap<&str, usize> = HashMap::new();
    for id in all.iter().filter_map(|said| said.found.answers.as_deref()) {
        *answers.entry(id).or_default() += 1;
    }
    let unique: HashSet<Box<str>> =
        cut.keys().filter(|id| answers.get(&***id) == Some(&1)).cloned().collect();
    for (id, places) in &cut {
        let Some(originals) = by_id.get(&**id) else { continue };
        let found: Vec<Option<&Found>> = match (unique.contains(id), distinct(originals).as_slice()) {
            (true, [only]) => vec![Some(only)],
            _ => {
                let Some(text) = text else { continue };
                let cut: Vec<&Said> = places.iter().map(|at| &all[*at]).collect();
                told_by_text(&cut, originals, text)
            }
        };
        for (at, original) in places.iter().zip(found) {
            if let Some(original) = original {
                all[*at] = Said { file: In::Archive, found: original.clone(), lost: false, note: false };
            }
        }
    }
}

/// Originals of different content, in order; a prune that was tried again archived them again.
fn distinct<'f>(originals: &[&'f Found]) -> Vec<&'f Found> {
    let mut seen: HashSet<FileHash> = HashSet::new();
    originals.iter().copied().filter(|original| seen.insert(original.hash)).collect()
}

/// The original of each cut output of one call id, where the part that was kept leaves no doubt.
fn told_by_text<'f>(cut: &[&Said], originals: &[&'f Found], text: Text<'_>) -> Vec<Option<&'f Found>> {
    let parts: Vec<String> =
        cut.iter().map(|said| text(said.file, &said.found).unwrap_or_default()).collect();
    // Outputs are cut in their order and archived in that order, with others between them that were archived in
    // vain: the first originals that fit and the last ones are the same, or it is not certain.
    let first = in_order(parts.iter(), originals.iter().copied(), text);
    let mut last = in_order(parts.iter().rev(), originals.iter().rev().copied(), text);
    last.reverse();
    let both = first
        .iter()
        .zip(&last)
        .map(|(first, last)| first.filter(|first| last.is_some_and(|last| last.hash == first.hash)));
    let mut told: Vec<Option<&Found>> = both.collect();
    let left: Vec<usize> = (0..cut.len()).filter(|at| told[*at].is_none()).collect();
    let mut free: Vec<&Found> = originals.to_vec();
    for used in told.iter().flatten() {
        if let Some(at) = free.iter().position(|original| original.hash == used.hash) {
            free.remove(at);
        }
    }
    // Where an original is missing, order does not tell. That may be a lot of text.
    if left.len() * free.len() <= PAIRS {
        let free = distinct(&free);
        let mut fitting: Vec<Vec<&Found>> = vec![Vec::new(); left.len()];
        for original in free {
            let Some(whole) = text(In::Archive, original) else { continue };
            for (nth, at) in left.iter().enumerate() {
                if records::is_part_of(&parts[*at], &whole) {
                    fitting[nth].push(original);
                }
            }
        }
        let wanted = |hash: FileHash| fitting.iter().filter(|all| all.iter().any(|f| f.hash == hash)).count();
        for (nth, at) in left.iter().enumerate() {
            // One original is not the whole text of two outputs.
            if let [only] = fitting[nth].as_slice()
                && wanted(only.hash) == 1
            {
                told[*at] = Some(only);
            }
        }
    }
    told
}

/// For each part the next original that it fits; none from the first on that fits none.
fn in_order<'f, 'p>(
    parts: impl ExactSizeIterator<Item = &'p String>,
    mut originals: impl Iterator<Item = &'f Found>,
    text: Text<'_>,
) -> Vec<Option<&'f Found>> {
    let fits = |part: &str, original: &Found| {
        text(In::Archive, original).is_some_and(|whole| records::is_part_of(part, &whole))
    };
    parts.map(|part| originals.by_ref().find(|original| fits(part, original))).collect()
}
