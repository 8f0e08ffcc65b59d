//! Texts that were made lately, so that the store is not read again only because the kernel forgot one.
//!
//! The kernel drops pages and inodes when it likes. A text is remembered here under the version that also
//! decides whether the kernel may keep its pages, and asked for by the version that the session has now: what
//! changed has another version, so nothing here has to be taken back. Bounded in bytes; what was not used for
//! the longest time goes first.

use std::sync::Arc;

use hashlink::LinkedHashMap;
use parking_lot::Mutex;

use super::node::Part;
use crate::session::SessionKey;

/// All texts together, bytes.
const MOST: usize = 8 << 20;
/// The longest text that is kept, bytes; of a longer one only the length is.
const LONGEST: usize = 1 << 20;
/// What an entry costs besides its text, bytes: the entry, its place in the map, the allocations.
const ENTRY: usize = 256;

/// Which text it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TextKey {
    pub session: SessionKey,
    pub part: Part,
    /// One that no other text of this part of the session ever has.
    pub version: u128,
}

/// The memory. Shared by all threads.
pub(super) struct Texts {
    kept: Mutex<Kept>,
    most: usize,
    longest: usize,
}

#[derive(Default)]
struct Kept {
    /// The one that was used last is at the end.
    texts: LinkedHashMap<TextKey, Known>,
    /// What all of them cost, bytes.
    cost: usize,
}

struct Known {
    /// `None` where it is too long.
    text: Option<Arc<Vec<u8>>>,
    /// Bytes.
    len: u64,
}

impl Known {
    fn cost(&self) -> usize {
        ENTRY + self.text.as_ref().map_or(0, |text| text.capacity())
    }
}

impl Texts {
    pub fn new() -> Texts {
        Texts::bounded(MOST, LONGEST)
    }

    /// `most`, `longest`: bytes.
    fn bounded(most: usize, longest: usize) -> Texts {
        Texts { kept: Mutex::default(), most, longest }
    }

    pub fn forget(&self) {
        *self.kept.lock() = Kept::default();
    }

    pub fn text(&self, key: &TextKey) -> Option<Arc<Vec<u8>>> {
        self.kept.lock().used(key)?.text.clone()
    }

    /// The length of a text, bytes; also of one that is too long to be kept.
    pub fn len(&self, key: &TextKey) -> Option<u64> {
        Some(self.kept.lock().used(key)?.len)
    }

    /// Remembers a text: the one that `key` certainly means, whatever happened while it was made.
    pub fn keep(&self, key: TextKey, text: &Arc<Vec<u8>>) {
        let short = text.capacity() <= self.longest;
        let known = Known { text: short.then(|| text.clone()), len: text.len() as u64 };
        let mut kept = self.kept.lock();
        kept.cost += known.cost();
        if let Some(before) = kept.texts.insert(key, known) {
            kept.cost -= before.cost();
        }
        while kept.cost > self.most
            && let Some((_, oldest)) = kept.texts.pop_front()
        {
            kept.cost -= oldest.cost();
        }
    }

    /// What is remembered costs so much, bytes.
    pub fn cost(&self) -> u64 {
        self.kept.lock().cost as u64
    }
}

impl Kept {
    fn used(&mut self, key: &TextKey) -> Option<&Known> {
        self.texts.to_back(key).map(|known| &*known)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::session::AgentKind;

    fn key(part: Part, version: u128) -> TextKey {
        let (root, path) = (Path::new("/store").into(), Path::new("session").into());
        TextKey { session: SessionKey { agent: AgentKind::KimiCli, root, path }, part, version }
    }

    fn keep(texts: &Texts, n: u32, text: &str) {
        texts.keep(key(Part::Turn(n), 1), &Arc::new(text.into()));
    }

    fn kept(texts: &Texts, numbers: std::ops::Range<u32>) -> Vec<u32> {
        // Looked at past `text` and `len`, which count as use.
        let texts = texts.kept.lock();
        let known = |n: &u32| texts.texts.contains_key(&key(Part::Turn(*n), 1));
        numbers.filter(known).collect()
    }

    #[test]
    fn a_text_is_found_by_its_own_part_and_version_only() {
        let texts = Texts::new();
        keep(&texts, 3, "three");
        let found = |part, version| texts.text(&key(part, version)).map(|text| text.to_vec());
        assert_eq!(found(Part::Turn(3), 1), Some(b"three".to_vec()));
        assert_eq!(found(Part::Turn(3), 2), None, "another version");
        assert_eq!(found(Part::Turn(4), 1), None, "another turn");
        assert_eq!(found(Part::Record(3), 1), None, "another part of the turn");
        let elsewhere = Path::new("elsewhere").into();
        let other = SessionKey { path: elsewhere, ..key(Part::Turn(3), 1).session };
        assert_eq!(texts.text(&TextKey { session: other, ..key(Part::Turn(3), 1) }), None, "another session");
    }

    #[test]
    fn what_was_not_used_for_the_longest_time_goes_first() {
        let texts = Texts::bounded(3 * (ENTRY + 10), 10);
        for n in 0..3 {
            keep(&texts, n, "ten bytes.");
        }
        assert_eq!(kept(&texts, 0..5), [0, 1, 2]);
        assert!(texts.text(&key(Part::Turn(0), 1)).is_some());
        keep(&texts, 3, "ten bytes.");
        assert_eq!(kept(&texts, 0..5), [0, 2, 3]);
        assert!(texts.len(&key(Part::Turn(2), 1)).is_some());
        keep(&texts, 4, "ten bytes.");
        assert_eq!(kept(&texts, 0..5), [2, 3, 4]);
    }

    #[test]
    fn all_texts_together_stay_within_the_bound() {
        let texts = Texts::bounded(10_000, 1000);
        for n in 0..5000 {
            keep(&texts, n % 700, &"x".repeat(n as usize % 1500));
            let kept = texts.kept.lock();
            let cost: usize = kept.texts.values().map(Known::cost).sum();
            assert_eq!(kept.cost, cost);
            assert!(cost <= 10_000, "{cost}");
        }
        assert!(texts.cost() > 8_000, "{}", texts.cost());
    }

    #[test]
    fn of_a_text_that_is_too_long_only_the_length_is_kept() {
        let texts = Texts::bounded(10_000, 1000);
        keep(&texts, 0, &"x".repeat(5000));
        assert_eq!(texts.text(&key(Part::Turn(0), 1)), None);
        assert_eq!(texts.len(&key(Part::Turn(0), 1)), Some(5000));
        assert_eq!(texts.cost(), ENTRY as u64);
        keep(&texts, 1, "short");
        assert_eq!(texts.len(&key(Part::Turn(0), 1)), Some(5000), "it takes no room from others");
    }
}
