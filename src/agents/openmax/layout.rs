//! Where an OpenMax store keeps what, and which sessions it has.
//!
//! The index is read once, and again only when it changed; the directory tells which transcripts are there.
//! A session belongs to the path that its entry records: nothing is looked up in that path.

use std::collections::{BTreeMap, HashSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use super::index::{self, Entry, Index};
use super::records::{Message, Role};
use crate::agents::{Discovery, is_file_name};
use crate::session::{AgentKind, Begun, Damage, FileHash, Place, Refusal, Result, Session, SessionKey};
use crate::transcript::metrics::{ReadKind, count_bytes, count_parse};
use crate::transcript::{EntryKind, Stamp, StoreDir, read_small, scan_bytes};

pub(super) const SESSIONS: &str = "sessions";
pub(super) const INDEX: &str = "sessions/index.json";
pub(super) const INDEX_LOCK: &str = "sessions/index.lock";
const MESSAGES: &str = ".messages.json";
/// The files of a session that are shown under `raw/` only.
const SIDECARS: [&str; 2] = [".manifest.json", USAGE];
/// The bill.
pub(super) const USAGE: &str = ".usage.jsonl";
pub(super) const ARCHIVE: &str = ".archive.jsonl";
const COMPACTION: &str = ".compaction.jsonl";
/// The title of a session before its first prompt.
pub(super) const NO_TITLE: &str = "New session";
/// As much of a transcript as is read to find its first prompt, bytes.
const HEAD: u64 = 256 * 1024;
/// Longest first prompt kept, characters.
const PROMPT_CHARS: usize = 1000;

/// A session's files, relative to the store's root: those that its history is made of, its manifest and its lock.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub messages: PathBuf,
    pub archive: PathBuf,
    pub compaction: PathBuf,
    pub manifest: PathBuf,
    /// The lock that a client holds as long as it has the session open.
    pub lock: PathBuf,
    /// `messages` and `archive` again, to be shared by many pieces.
    pub live: Arc<Path>,
    pub archived: Arc<Path>,
}

impl Files {
    pub fn of(key: &SessionKey) -> Files {
        let name = key.path.file_name().unwrap_or_default().to_string_lossy();
        Files::of_id(name.strip_suffix(MESSAGES).unwrap_or(&name))
    }

    pub fn of_id(id: &str) -> Files {
        let file = |suffix: &str| Path::new(SESSIONS).join(format!("{id}{suffix}"));
        let (messages, archive) = (file(MESSAGES), file(ARCHIVE));
        Files {
            live: Arc::from(messages.as_path()),
            archived: Arc::from(archive.as_path()),
            messages,
            archive,
            compaction: file(COMPACTION),
            manifest: file(".manifest.json"),
            lock: file(".lock"),
        }
    }
}

/// A look at a store, which the next one goes on from.
#[derive(Default)]
pub(super) struct Look {
    pub found: Arc<Discovery>,
    /// `None`: there was no store.
    seen: Option<Seen>,
}

struct Seen {
    /// Both before their contents were read.
    index_stat: Option<Stamp>,
    dir_stat: Option<Stamp>,
    read_at: Timestamp,
    index_hash: FileHash,
    /// The last sound index.
    index: Arc<Index>,
    /// What was wrong with the index at this look.
    damage: Option<Damage>,
    /// First prompts that had to be read out of transcripts.
    prompts: BTreeMap<String, (Stamp, Option<String>)>,
}

impl Look {
    /// Whether index and directory are certainly the ones of this look: a store with very many sessions must not
    /// cost a new list each time.
    pub fn holds(&self, root: &Path) -> bool {
        let Some(seen) = &self.seen else { return false };
        let same = || -> Result<bool> {
            let Some(store) = StoreDir::open(root)? else { return Ok(false) };
            let dir = store.stat(Path::new(SESSIONS))?;
            let index = store.stat(Path::new(INDEX))?;
            let vouch = |stat: Option<Stamp>| stat.is_none_or(|stat| stat.vouches(seen.read_at));
            Ok(dir.is_some()
                && (index, dir) == (seen.index_stat, seen.dir_stat)
                && vouch(index)
                && vouch(dir))
        };
        same().unwrap_or(false)
    }
}

/// All sessions of the store at `root`.
pub(super) fn look(root: &Path, last: Option<&Look>) -> Result<Look> {
    let Some(store) = StoreDir::open(root)? else { return Ok(Look::default()) };
    let read_at = crate::transcript::clock();
    let dir_stat = store.stat(Path::new(SESSIONS))?;
    let mut directories = vec![PathBuf::new()];
    let Some(dir) = store.dir(Path::new(SESSIONS))? else {
        let found = Arc::new(Discovery { directories, ..Discovery::default() });
        return Ok(Look { found, seen: None });
    };
    directories.push(SESSIONS.into());
    let index_stat = store.stat(Path::new(INDEX))?;
    let known = last.and_then(|last| last.seen.as_ref());
    let (index, damage, index_hash) = read_index(&store, known, index_stat)?;
    let (mut links, mut unheard) = (Vec::new(), Vec::new());
    if store.is_link(Path::new(SESSIONS)) {
        links.push(SESSIONS.into());
    }
    let entries = dir.entries()?;
    let linked = entries.iter().filter(|entry| entry.kind == EntryKind::Symlink);
    unheard.extend(linked.map(|entry| Path::new(SESSIONS).join(&entry.name)));
    let names: HashSet<String> = entries
        .into_iter()
        .filter(|entry| entry.kind != EntryKind::Dir)
        .filter_map(|entry| entry.name.into_string().ok())
        .collect();

    let mut look = Finder {
        store: &store,
        root: root.into(),
        names: &names,
        known: known.map(|known| &known.prompts),
        prompts: BTreeMap::new(),
        problems: damage.iter().cloned().collect(),
    };
    let mut sessions = Vec::with_capacity(index.entries.len());
    let mut seen: HashSet<&str> = HashSet::with_capacity(index.entries.len());
    for (at, entry) in index.entries.iter().enumerate() {
        if !seen.insert(&entry.id) {
            let what = format!(
                "the id {} stands in the index twice; the first entry is shown, cuts are refused",
                entry.id
            );
            look.problem(what);
        } else if is_file_name(&entry.id) {
            sessions.push(look.listed(at, entry));
        } else {
            look.problem(format!("the id {:?} cannot be the name of a file", entry.id));
        }
    }
    let mut unlisted: Vec<&str> =
        names.iter().filter_map(|name| name.strip_suffix(MESSAGES)).filter(|id| !seen.contains(id)).collect();
    unlisted.sort_unstable();
    for id in unlisted {
        match look.unlisted(id, damage.is_some()) {
            Ok(session) => sessions.extend(session),
            Err(refusal) => look.unread(id, &refusal),
        }
    }
    let Finder { prompts, problems, .. } = look;
    let seen = Seen { index_stat, dir_stat, read_at, index_hash, index: index.clone(), damage, prompts };
    let indexes = vec![INDEX.into()];
    let sessions = sessions.into_iter().map(Arc::new).collect();
    let found = Arc::new(Discovery { sessions, problems, indexes, directories, links, unheard });
    Ok(Look { found, seen: Some(seen) })
}

/// The index as it is now, or the last sound one with what is wrong now.
fn read_index(
    store: &StoreDir,
    known: Option<&Seen>,
    stat: Option<Stamp>,
) -> Result<(Arc<Index>, Option<Damage>, FileHash)> {
    if let Some(known) = known
        && known.index_stat == stat
        && stat.is_some_and(|stat| stat.vouches(known.read_at))
    {
        return Ok((known.index.clone(), known.damage.clone(), known.index_hash));
    }
    let last = || known.map(|known| known.index.clone()).unwrap_or_default();
    let bytes = match read_whole(store, Path::new(INDEX)) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            let damage = index::damage_of_all("the index is not there, so openmax finds no session");
            return Ok((last(), Some(damage), FileHash::of(b"")));
        }
        // What cannot be read is told, and what was listed stays.
        Err(refusal) => {
            return Ok((last(), Some(Damage::unread(INDEX, &refusal)), FileHash::of(b"")));
        }
    };
    count_bytes(AgentKind::OpenMax, ReadKind::Index, bytes.len() as u64);
    let hash = FileHash::of(&bytes);
    if let Some(known) = known.filter(|known| known.index_hash == hash && !bytes.is_empty()) {
        return Ok((known.index.clone(), known.damage.clone(), hash));
    }
    count_parse();
    match Index::parse(&bytes) {
        Ok(index) => Ok((Arc::new(index), None, hash)),
        Err(damage) => Ok((last(), Some(damage), hash)),
    }
}

/// Longest file that is read whole, bytes. Real indexes have kilobytes.
const LONGEST_WHOLE: u64 = 256 << 20;

/// A whole file of the store; `None` if it is not there.
pub(super) fn read_whole(store: &StoreDir, file: &Path) -> Result<Option<Vec<u8>>> {
    read_small(store, file, LONGEST_WHOLE)
}

/// One look at the store.
struct Finder<'a> {
    store: &'a StoreDir,
    root: Arc<Path>,
    /// Every name in the directory of sessions.
    names: &'a HashSet<String>,
    known: Option<&'a BTreeMap<String, (Stamp, Option<String>)>>,
    prompts: BTreeMap<String, (Stamp, Option<String>)>,
    problems: Vec<Damage>,
}

impl Finder<'_> {
    fn problem(&mut self, what: String) {
        self.problems.push(index::damage_of_all(&what));
    }

    /// What cannot be read hides nothing else.
    fn unread(&mut self, id: &str, why: &Refusal) {
        let file = Files::of_id(id).messages;
        self.problems.push(Damage::unread(file.to_string_lossy(), why));
    }

    /// A session that the index names.
    fn listed(&mut self, at: usize, entry: &Entry) -> Session {
        let first_prompt = match entry.title.as_str() {
            // The title is the beginning of the first prompt and, unlike the prompt, never changes.
            title if title != NO_TITLE && !title.is_empty() => Some(title.to_owned()),
            _ => self.first_prompt(&entry.id),
        };
        // Of two sessions of one second the later entry is the newer one. Their order is told in
        // nanoseconds, which no output shows.
        let updated = seconds(entry.updated_at, at.min(999_999) as i32);
        let place = Place::recorded(&entry.project);
        let title = Some(entry.title.clone());
        let session =
            self.session(&entry.id, place, title, first_prompt, seconds(entry.created_at, 0), updated);
        Session { begun: Begun::at(&entry.project), ..session }
    }

    /// A transcript that the index does not name; `None` if it is no longer there.
    fn unlisted(&mut self, id: &str, index_damaged: bool) -> Result<Option<Session>> {
        let Some(stat) = self.store.stat(&Files::of_id(id).messages)? else { return Ok(None) };
        let reason = match index_damaged {
            true => format!(
                "the index of sessions cannot be read, and only it tells the project; {}",
                index::ADVICE
            ),
            false => "the index has no entry for it, so openmax does not find it".to_owned(),
        };
        let first_prompt = self.first_prompt(id);
        let created = stat.born().unwrap_or_else(|| stat.modified());
        let place = Place::Unplaced { reason };
        Ok(Some(self.session(id, place, None, first_prompt, created, stat.modified())))
    }

    fn session(
        &self,
        id: &str,
        place: Place,
        title: Option<String>,
        first_prompt: Option<String>,
        created: Timestamp,
        updated: Timestamp,
    ) -> Session {
        let there = |suffixes: &[&str]| -> Vec<PathBuf> {
            let names = suffixes.iter().map(|suffix| format!("{id}{suffix}"));
            names
                .filter(|name| self.names.contains(name))
                .map(|name| Path::new(SESSIONS).join(name))
                .collect()
        };
        let messages = Files::of_id(id).messages;
        let mut files = vec![messages.clone()];
        files.extend(there(&[ARCHIVE, COMPACTION]));
        Session {
            key: SessionKey { agent: AgentKind::OpenMax, root: self.root.clone(), path: messages.into() },
            id: id.to_owned(),
            place,
            name: None,
            title,
            first_prompt,
            created,
            updated,
            model: None,
            archived: None,
            history_mode: None,
            forked_from: None,
            begun: Begun::default(),
            migrated_from: None,
            files,
            sidecars: there(&SIDECARS),
            subagent: None,
        }
    }

    /// The first prompt out of the transcript's head; read again only when the transcript changed. What prevents
    /// reading it is a state of that session, not of the listing.
    fn first_prompt(&mut self, id: &str) -> Option<String> {
        let file = Files::of_id(id).messages;
        let stat = self.store.stat(&file).ok()??;
        let known = self.known.and_then(|known| known.get(id));
        let prompt = match known {
            Some((seen, prompt)) if *seen == stat || (prompt.is_some() && seen.same_file(&stat)) => {
                prompt.clone()
            }
            _ if stat.kind != EntryKind::File => None,
            _ => self.read_first_prompt(&file).ok()?,
        };
        self.prompts.insert(id.to_owned(), (stat, prompt.clone()));
        prompt
    }

    fn read_first_prompt(&self, file: &Path) -> Result<Option<String>> {
        // A transcript that cannot be read is a state of that session, not of the listing.
        let Ok(Some(opened)) = self.store.file(file) else { return Ok(None) };
        let mut head = Vec::new();
        let read = opened.take(HEAD).read_to_end(&mut head);
        read.map_err(|error| Refusal::io("cannot read", &self.store.path().join(file), error))?;
        let mut prompt = None;
        scan_bytes(&head, 1, 0, |line| {
            if let (None, Ok(message)) = (&prompt, Message::parse(line.bytes))
                && message.role() == Role::User
                && !message.looks_like_note()
            {
                prompt = Some(message.content().chars().take(PROMPT_CHARS).collect());
            }
        });
        Ok(prompt)
    }
}

/// Whether the index names the session: only it gives titles.
pub(super) fn is_indexed(session: &Session) -> bool {
    session.title.is_some()
}

fn seconds(seconds: u64, nanoseconds: i32) -> Timestamp {
    let whole = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timestamp::new(whole, nanoseconds).unwrap_or(Timestamp::UNIX_EPOCH)
}
