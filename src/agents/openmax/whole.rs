//! The whole history of a session: what a prune left in the transcript, put together with what it moved to
//! the archive. Facts: `docs/stores/openmax.md`, "7. History behind a prune".
//!
//! A prune keeps the head (system line and first request) and the tail; it replaces what was between by a
//! digest and appends it to the archive, after the originals of tool outputs that it cut.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::records::{Compaction, Role};
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
}

/// A session's messages, in the order in which they were said.
#[derive(Debug, Default)]
pub(super) struct Whole {
    pub said: Vec<Said>,
    /// The digest's place in the transcript, where there is one: the session was pruned.
    pub digest: Option<usize>,
    /// For a pruned session: how many messages come before the first one behind the digest.
    pub border: usize,
    /// Why the messages before the border are not all there, if they are not.
    pub absent: Option<String>,
}

/// Puts a transcript and its sidecars together.
pub(super) fn whole(
    live: &Messages,
    archive: Option<&Messages>,
    compactions: Option<&[Compaction]>,
) -> Whole {
    let archived = archive.map_or(&[][..], |archive| &archive.found);
    let originals = originals(archived);
    let compactions = compactions.map(Compactions::of);
    let digest = compactions.as_ref().unwrap_or(&Compactions::default()).digest_of(&live.found);
    let (head, tail) = match digest {
        Some(at) => (&live.found[..at], &live.found[at + 1..]),
        None => (&live.found[..], &[][..]),
    };
    let dropped = match digest {
        Some(_) if archive.is_none() => Err("the archive of what was pruned is not there".to_owned()),
        Some(at) => match &compactions {
            Some(compactions) => dropped(&live.found[at..], archived, compactions, &originals),
            None => Err("the record of what was pruned is not there".to_owned()),
        },
        None => Ok(Vec::new()),
    };
    let (dropped, absent) = match dropped {
        Ok(dropped) => (dropped, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let border = head.len() + dropped.len();
    let said = |file| move |found: &Found| Said { file, lost: found.is_cut, found: found.clone() };
    let mut all: Vec<Said> = head.iter().map(said(In::Live)).collect();
    all.extend(dropped.into_iter().map(said(In::Archive)));
    all.extend(tail.iter().map(said(In::Live)));
    put_back(&mut all, archived, &originals);
    Whole { said: all, digest, border, absent }
}

/// The records of all prunes.
#[derive(Default)]
struct Compactions {
    digests: HashSet<FileHash>,
    /// Messages that were dropped, earlier digests among them.
    dropped: u64,
}

impl Compactions {
    fn of(records: &[Compaction]) -> Compactions {
        let digests = records.iter().filter_map(|record| record.digest.as_ref());
        Compactions {
            digests: digests.map(|digest| FileHash::of(digest.as_bytes())).collect(),
            dropped: records.iter().fold(0, |sum, record| sum.saturating_add(record.message_count)),
        }
    }

    fn is_digest(&self, found: &Found) -> bool {
        found.role == Role::User && (found.looks_like_digest || self.digests.contains(&found.content_hash))
    }

    /// The digest stands behind the head: at message 2, in newer versions also at 3; one less where an old
    /// transcript has no system line.
    fn digest_of(&self, live: &[Found]) -> Option<usize> {
        (1..live.len().min(4)).find(|at| self.is_digest(&live[*at]))
    }
}

/// The archive's tool lines that are uncut originals: they do not follow the call that they answer.
fn originals(archive: &[Found]) -> BTreeSet<usize> {
    let mut originals = BTreeSet::new();
    let mut open: Vec<&str> = Vec::new();
    for (at, found) in archive.iter().enumerate() {
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

/// The messages that prunes dropped, in order, proved to be all of them.
fn dropped<'a>(
    from_digest: &[Found],
    archive: &'a [Found],
    compactions: &Compactions,
    originals: &BTreeSet<usize>,
) -> Result<Vec<&'a Found>, String> {
    let moved = archive.iter().enumerate().filter(|(at, _)| !originals.contains(at));
    let moved: Vec<&Found> = moved.map(|(_, found)| found).collect();
    // A crash between the archive's append and the transcript's rewrite leaves the same messages in both:
    // the archive's end is then the transcript from its digest on.
    let agrees = |len: &usize| {
        let end = &moved[moved.len() - len..];
        end.iter().zip(from_digest).all(|(archived, live)| same(archived, live))
    };
    let overlap = (1..=moved.len().min(from_digest.len())).rev().find(agrees).unwrap_or(0);
    let kept = &moved[..moved.len() - overlap];
    // The crash may have come before or after the record of that prune was written.
    if ![moved.len() as u64, kept.len() as u64].contains(&compactions.dropped) {
        return Err(format!(
            "{} messages were pruned in all, and the archive holds {}",
            compactions.dropped,
            kept.len()
        ));
    }
    Ok(kept.iter().copied().filter(|found| !compactions.is_digest(found)).collect())
}

/// Whether an archived message is this one, which a prune may have cut on its way.
fn same(archived: &Found, live: &Found) -> bool {
    let cut = archived.is_cut || live.is_cut;
    archived.hash == live.hash || (cut && archived.answers.is_some() && archived.answers == live.answers)
}

/// Puts the originals of cut tool outputs back. An id that stands for more than one output tells nothing.
fn put_back(all: &mut [Said], archive: &[Found], originals: &BTreeSet<usize>) {
    let mut by_id: HashMap<&str, Option<&Found>> = HashMap::new();
    for original in originals.iter().map(|at| &archive[*at]) {
        let Some(id) = &original.answers else { continue };
        let only = by_id.entry(id).or_insert(Some(original));
        *only = only.filter(|known| known.hash == original.hash);
    }
    let mut uses: HashMap<Box<str>, u32> = HashMap::new();
    for id in all.iter().filter(|said| said.lost).filter_map(|said| said.found.answers.clone()) {
        *uses.entry(id).or_default() += 1;
    }
    for said in all.iter_mut().filter(|said| said.lost) {
        let Some(id) = &said.found.answers else { continue };
        if let Some(Some(original)) = by_id.get(&**id)
            && uses.get(id) == Some(&1)
        {
            *said = Said { file: In::Archive, found: (*original).clone(), lost: false };
        }
    }
}
