//! Records as turnfs wrote them up to version 0.1: a field for each kind of change. Such a cut is still rolled back,
//! redone and shown.

use serde::Deserialize;

use super::{
    Change, EntryChange, FileChange, Kind, LinkSeen, NewDir, NewFiles, Owner, RECORD_VERSION, Seen, StoreLock,
};
use crate::session::{RowChange, Rows, StorePath};

#[derive(Deserialize)]
pub(super) struct Record {
    kind: Kind,
    number: u32,
    at: i128,
    owner: Owner,
    turns_before: u32,
    turns_after: u32,
    #[serde(default)]
    grew: bool,
    changes: Vec<FileChange>,
    new_dir: Option<NewDir>,
    #[serde(default)]
    new_files: Vec<NewFile>,
    #[serde(default)]
    new_dirs: Vec<NewFile>,
    #[serde(default)]
    entry: Option<EntryChange>,
    #[serde(default)]
    row: Option<Row>,
    #[serde(default)]
    spread: bool,
    #[serde(default)]
    locks: Vec<StoreLock>,
    leaves: Vec<Seen>,
    #[serde(default)]
    links: Vec<LinkSeen>,
}

#[derive(Deserialize)]
struct NewFile {
    file: StorePath,
}

#[derive(Deserialize)]
struct Row {
    db: StorePath,
    #[serde(flatten)]
    change: RowChange,
}

impl From<Row> for Rows {
    fn from(old: Row) -> Rows {
        Rows { db: old.db, changes: vec![old.change] }
    }
}

impl From<Record> for super::Record {
    fn from(old: Record) -> super::Record {
        let paths = |files: Vec<NewFile>| files.into_iter().map(|new| new.file).collect();
        let files = NewFiles { dirs: paths(old.new_dirs), files: paths(old.new_files) };
        let files = (!files.files.is_empty()).then_some(Change::Files(files));
        // The order in which they were made.
        let mut changes = Vec::new();
        changes.extend(files);
        changes.extend(old.entry.map(Change::Entry));
        changes.extend(old.new_dir.map(Change::Dir));
        changes.extend(old.changes.into_iter().map(Change::File));
        changes.extend(old.row.map(|row| Change::Rows(row.into())));
        super::Record {
            version: RECORD_VERSION,
            kind: old.kind,
            number: old.number,
            at: old.at,
            owner: old.owner,
            turns_before: old.turns_before,
            turns_after: old.turns_after,
            grew: old.grew,
            changes,
            spread: old.spread,
            locks: old.locks,
            leaves: old.leaves,
            links: old.links,
        }
    }
}
