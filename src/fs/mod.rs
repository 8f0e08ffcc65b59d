//! The tree as plain values: names, nodes, inodes, handles, control files.
//!
//! No fuser type; testable without a mount. Asks the catalog for what is true now and `cut` for changes;
//! called by `fuse`, which only translates. This file is the list of what can be done: one method for each
//! request of the kernel. All writes except to control files are refused at once.
//!
//! - `node` is what a path means, `tree` finds and lists nodes above the sessions, `session_dir` in a session's
//!   directory; `kernel_view` is what the kernel has been told, `handles` are open files, `invalidation` tells
//!   how long answers hold and what takes them back.
//! - `overview` is `recent/`, `by-date/` and `search/` at the root, `searches` what is found there.
//! - `content` makes the bytes of files: those of turns are rendered, those that turnfs says itself are
//!   gathered in `status`, `metrics` and `control`, with their form in `format`. `text_cache` keeps some of the former.
//! - `control` also carries out what is written. `mount_state` is what the mount remembers, `host_links` and
//!   `project_state` look at the host outside the stores.

mod blobs;
mod content;
mod control;
mod format;
mod handles;
mod host_links;
mod invalidation;
mod kernel_view;
mod metrics;
mod mount_state;
mod node;
mod overview;
mod project_state;
mod searches;
mod session_dir;
mod status;
mod text_cache;
mod tree;

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::RwLock;

use crate::catalog::{Catalog, View};
use crate::cut::StateDir;
use crate::host::{self, Host};
use crate::session::{Errno, Refusal, Result, SessionKey};

pub use control::{Command, Target};
pub use invalidation::Invalidation;
pub use kernel_view::{Attr, Cache, ROOT, Ttl};
pub use metrics::{Op, count, count_invalidation};
pub use node::{Control, Kind};

use handles::{Handle, Handles, Shows, TextHandle};
use kernel_view::{Attrs, KernelView};
use node::{Node, Part};

/// What a mount shows, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only this project's sessions, at the root of the mount; `None`: all projects. Absolute, without `.` and `..`.
    pub project: Option<PathBuf>,
    /// Nothing in any store can be changed through this mount.
    pub read_only: bool,
    /// List `prompts/`, `records/`, `raw/` and `context.md` too.
    pub show_all: bool,
    /// What `.turnfs/options.json` says.
    pub running: String,
    /// Where the mount is; nothing below it is ever looked at through the host.
    pub mountpoint: PathBuf,
}

/// How a file is to be opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Access {
    pub write: bool,
    /// O_TRUNC.
    pub truncate: bool,
}

/// What a name in a directory leads to.
#[derive(Clone, Copy, Debug)]
pub enum Lookup {
    Found(Attr),
    /// To nothing, which the kernel may remember for so long.
    Absent {
        ttl: Duration,
    },
}

/// An open file or directory.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub handle: u64,
    pub cache: Cache,
}

/// An entry of a directory.
#[derive(Debug)]
pub struct DirEntry<'a> {
    pub name: &'a OsStr,
    pub ino: u64,
    pub kind: Kind,
    /// Where reading goes on after this entry.
    pub cookie: u64,
}

/// The file system. Shared by all threads.
pub struct Fs {
    catalog: Arc<Catalog>,
    state: StateDir,
    options: Options,
    /// The spellings of `--project`'s directory.
    projects: Option<Vec<PathBuf>>,
    kernel: KernelView,
    handles: Handles,
    host_links: host_links::HostLinks,
    project_states: project_state::ProjectStates,
    memory: mount_state::Memory,
    texts: text_cache::Texts,
    overviews: overview::Overviews,
    searches: searches::Searches,
    started: Timestamp,
    /// The size of the last `.turnfs/status`, bytes.
    summary_size: AtomicU64,
    /// Invalidations that the kernel was not given yet.
    notices_waiting: Arc<AtomicUsize>,
    /// Held shared while a write is carried out.
    commands: RwLock<()>,
}

impl Fs {
    pub fn new(catalog: Arc<Catalog>, state: StateDir, options: Options) -> Fs {
        // Our own mount, as given and as resolved, is never looked at through the host.
        let mut own = vec![options.mountpoint.clone()];
        own.extend(options.mountpoint.canonicalize().ok());
        let stores = catalog.stores();
        let relied_on = stores.iter().map(|store| store.root().to_path_buf());
        let host = Arc::new(Host::new(relied_on.chain([state.path().to_owned()]), own));
        Fs {
            projects: options.project.as_ref().map(|given| host::spellings(given, [host.resolved(given)])),
            host_links: host_links::HostLinks::new(host.clone()),
            project_states: project_state::ProjectStates::new(host),
            kernel: KernelView::new(),
            handles: Handles::default(),
            memory: mount_state::Memory::default(),
            texts: text_cache::Texts::new(),
            overviews: overview::Overviews::default(),
            searches: searches::Searches::new(catalog.clone()),
            started: crate::session::now(),
            summary_size: AtomicU64::new(0),
            notices_waiting: Arc::default(),
            commands: RwLock::new(()),
            catalog,
            state,
            options,
        }
    }

    /// Counts the notices that wait to be given to the kernel; for whoever gives them.
    pub fn notices_waiting(&self) -> Arc<AtomicUsize> {
        self.notices_waiting.clone()
    }

    /// Remembers what went wrong in a request, for `.turnfs/status`.
    pub fn note_error(&self, op: Op, refusal: &Refusal) {
        self.memory.note_error(format!("{}: {refusal}", op.name()));
    }

    /// Forgets what is remembered of the stores: a panic in a request may have left it half written.
    pub fn forget_all(&self) {
        self.catalog.forget_all();
        self.texts.forget();
    }

    /// What every request that would change something is answered.
    pub fn refusal(&self) -> Refusal {
        if self.options.read_only { Refusal::ReadOnlyMount } else { Refusal::NotPermitted }
    }

    /// Finds `name` in a directory. The kernel knows the node from now on, until [`Fs::forget`].
    ///
    /// # Errors
    /// [`Refusal::NotFound`] if the kernel must ask for the name again; or why what is there cannot be shown.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<Lookup> {
        let heard = self.catalog.heard();
        let directory = self.node(parent)?;
        let found = self.child(&directory, name).and_then(|node| Ok((self.attrs(&node)?, node)));
        match found {
            Ok((attrs, node)) => {
                let ino = self.kernel.remember(&node, parent, name);
                Ok(Lookup::Found(self.attr(ino, &node, attrs, heard)))
            }
            Err(refusal) if refusal.errno() == Errno::NOENT => {
                let ttl = self.absence_ttl(parent, name, heard);
                ttl.map(|ttl| Lookup::Absent { ttl }).ok_or(refusal)
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// The kernel forgot that many answers about a node.
    pub fn forget(&self, ino: u64, lookups: u64) {
        self.kernel.forget(ino, lookups);
    }

    /// # Errors
    /// [`Refusal::NotFound`] when it is gone; or why it cannot be shown.
    pub fn getattr(&self, ino: u64, handle: Option<u64>) -> Result<Attr> {
        let heard = self.catalog.heard();
        let node = self.node(ino)?;
        let told = self.kernel.told(ino, |told| *told).unwrap_or_default();
        let attrs = match (self.attrs(&node), told.attrs) {
            // A file that is gone is still what it was to those who have it open.
            (Err(_), Some(before)) if told.cached.handles > 0 && before.version.is_some() => Ok(before),
            (attrs, _) => attrs,
        };
        // Whoever reads through a handle reads its version, whatever the file has become.
        if let Some(handle) = handle.and_then(|number| self.handles.get(number, &self.kernel))
            && let Shows::Text(text) = &handle.shows
        {
            self.grow(&handle, text);
            let size = text.len();
            return Ok(match attrs {
                Ok(attrs) => self.attr(ino, &node, Attrs { size, ..attrs }, heard),
                // What was opened is not there any more, or is refused now.
                Err(_) => {
                    let attrs = Attrs::file(size, self.started);
                    Attr { ttl: Ttl::NOT, ..self.attr(ino, &node, attrs, heard) }
                }
            });
        }
        Ok(self.attr(ino, &node, attrs?, heard))
    }

    /// Changes of attributes: a control file may be truncated to nothing and touched, which does nothing.
    ///
    /// # Errors
    /// [`Fs::refusal`] for everything else (`anything_else`: mode, owner, flags).
    pub fn setattr(&self, ino: u64, size: Option<u64>, anything_else: bool) -> Result<Attr> {
        let node = self.node(ino)?;
        let is_control = matches!(node, Node::Session(_, Part::Control(_) | Part::BranchFork(_)));
        let harmless = size.is_none_or(|size| size == 0) && !anything_else;
        if is_control && harmless && !self.options.read_only {
            return self.getattr(ino, None);
        }
        Err(self.refusal())
    }

    /// # Errors
    /// [`Refusal::Internal`] for what is not a symlink.
    pub fn readlink(&self, ino: u64) -> Result<PathBuf> {
        Ok(tree::link_target(&self.node(ino)?)?.to_owned())
    }

    /// Whether the owner may do this.
    ///
    /// # Errors
    /// Why not.
    pub fn access(&self, ino: u64, write: bool, execute: bool) -> Result<()> {
        let node = self.node(ino)?;
        if write && self.options.read_only {
            return Err(Refusal::ReadOnlyMount);
        }
        let mode = node.mode();
        if (write && mode & 0o200 == 0) || (execute && mode & 0o100 == 0) {
            let path = PathBuf::from("this file");
            return Err(Refusal::Io { action: "no permission for", path, errno: Errno::ACCESS });
        }
        Ok(())
    }

    /// Opens a directory: its entries as they are now.
    ///
    /// # Errors
    /// Why it cannot be listed.
    pub fn opendir(&self, ino: u64) -> Result<Opened> {
        let node = self.node(ino)?;
        let mut entries: Vec<(OsString, Node)> =
            vec![(".".into(), node.clone()), ("..".into(), node.parent())];
        entries.append(&mut self.entries(&node)?);
        let cache = self.kernel.admit_entries(ino, &entries);
        Ok(Opened { handle: self.handles.add(ino, Shows::Directory(entries), cache), cache })
    }

    /// Gives the entries behind `cookie` to `sink` until it says that it is full.
    ///
    /// # Errors
    /// [`Refusal::Internal`] for a handle that is no directory.
    pub fn readdir(
        &self,
        handle: u64,
        cookie: u64,
        mut sink: impl FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let handle = self.handle(handle)?;
        for (entry, node) in entries_from(&handle, cookie)? {
            let ino = self.kernel.number(node);
            if sink(DirEntry { ino, ..entry }) {
                break;
            }
        }
        Ok(())
    }

    /// As [`Fs::readdir`], with attributes; the kernel knows what it was given, except `.` and `..`.
    ///
    /// # Errors
    /// As [`Fs::readdir`].
    pub fn readdirplus(
        &self,
        handle: u64,
        cookie: u64,
        mut sink: impl FnMut(DirEntry<'_>, Attr) -> bool,
    ) -> Result<()> {
        let heard = self.catalog.heard();
        let handle = self.handle(handle)?;
        for (entry, node) in entries_from(&handle, cookie)? {
            // What cannot be looked at is still an entry; looking at it itself tells why.
            let unknown = Attrs::file(0, self.started);
            let is_dot = entry.name == "." || entry.name == "..";
            let attrs = if is_dot { Err(()) } else { self.attrs(node).map_err(drop) };
            let ino = if is_dot {
                self.kernel.number(node)
            } else {
                self.kernel.remember(node, handle.ino, entry.name)
            };
            let attr = match attrs {
                Ok(attrs) => self.attr(ino, node, attrs, heard),
                Err(()) => Attr { ttl: Ttl::NOT, ..self.attr(ino, node, unknown, heard) },
            };
            let full = sink(DirEntry { ino, ..entry }, attr);
            if full {
                if !is_dot {
                    self.kernel.forget(ino, 1);
                }
                break;
            }
        }
        Ok(())
    }

    /// Opens a file.
    ///
    /// # Errors
    /// Why it cannot be read; for a control file opened for writing, what refuses every command.
    pub fn open(&self, ino: u64, access: Access) -> Result<Opened> {
        let node = self.node(ino)?;
        let opened = |shows, cache| Opened { handle: self.handles.add(ino, shows, cache), cache };
        if let Node::Session(session, Part::Control(control)) = &node {
            let handle = self.open_control(session, *control, None, access.write)?;
            return Ok(opened(Shows::Control(handle), Cache::Direct));
        }
        if let Node::Session(session, Part::BranchFork(branch)) = &node {
            let handle = self.open_control(session, Control::Fork, Some(*branch), access.write)?;
            return Ok(opened(Shows::Control(handle), Cache::Direct));
        }
        if access.write || access.truncate {
            return Err(self.refusal());
        }
        if let Node::Session(session, Part::RawFile(name)) = &node {
            let found = content::open_raw(&*self.catalog.session(&session.key)?, name)?;
            let told = self.kernel.told(ino, |told| told.attrs).flatten();
            let cache = if told.map(|attrs| attrs.size) == Some(found.stat.len) {
                Cache::Fresh
            } else {
                Cache::Direct
            };
            let shows = Shows::Raw { session: session.clone(), name: name.clone(), stat: found.stat };
            // Not counted as a user of what the kernel keeps: that is dropped at each open.
            return Ok(Opened { handle: self.handles.add(ino, shows, Cache::Direct), cache });
        }
        let text = self.open_text(ino, &node)?;
        let cache = match &node {
            Node::Dot(_) | Node::Session(_, Part::Status | Part::Meta | Part::BranchStatus(_)) => {
                Cache::Direct
            }
            _ => self.kernel.admit_text(ino, text.version(), text.len()),
        };
        Ok(opened(Shows::Text(text), cache))
    }

    /// Gives at most `size` bytes from `offset` on to `with`.
    ///
    /// # Errors
    /// What prevents reading.
    pub fn read<T>(&self, handle: u64, offset: u64, size: u32, with: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let handle = self.handle(handle)?;
        let size = size as usize;
        match &handle.shows {
            Shows::Text(open) => {
                let text = self.text_of(open)?;
                let text = match offset + size as u64 > text.len() as u64 && self.grow(&handle, open) {
                    true => self.text_of(open)?,
                    false => text,
                };
                Ok(with(part_of(&text, offset, size)))
            }
            Shows::Raw { session, name, stat } => {
                let file = content::open_raw(&*self.catalog.session(&session.key)?, name)?;
                if !file.stat.same_file(stat) {
                    return Err(Refusal::Changed { what: "this file".into() });
                }
                Ok(with(&file.read(offset, size)?))
            }
            Shows::Control(control) => control.read(self, offset, size, with),
            Shows::Directory(_) => Err(Refusal::Internal { what: "a directory is read like a file".into() }),
        }
    }

    /// Writes into a control file: does what the bytes say, completely, and only then returns. `stale` gets
    /// what the kernel must have forgotten before the writer goes on.
    ///
    /// # Errors
    /// Why it is refused; nothing was done then.
    pub fn write(&self, handle: u64, offset: u64, bytes: &[u8], stale: &mut Vec<Invalidation>) -> Result<()> {
        let _running = self.commands.read();
        match &self.handle(handle)?.shows {
            Shows::Control(control) => {
                let done = control.write(self, offset, bytes);
                if let Some(changed) = control.changed(self, &done) {
                    *stale = self.stale(&changed);
                }
                done
            }
            _ => Err(self.refusal()),
        }
    }

    /// Waits until no command is being carried out, and lets none begin after that; whether that came true
    /// within `limit`. For the end of a mount.
    pub fn finish_commands(&self, limit: Duration) -> bool {
        match self.commands.try_write_for(limit) {
            Some(none_running) => {
                // For good: a command that began now would be cut off by our end.
                std::mem::forget(none_running);
                true
            }
            None => false,
        }
    }

    /// Closes a file or directory.
    pub fn release(&self, handle: u64) {
        self.handles.remove(handle, &self.kernel);
    }

    fn node(&self, ino: u64) -> Result<Node> {
        self.kernel.node(ino).ok_or_else(|| Refusal::Changed { what: "this file".into() })
    }

    fn handle(&self, number: u64) -> Result<Arc<Handle>> {
        let unknown = || Refusal::Internal { what: format!("no file is open as {number}") };
        self.handles.get(number, &self.kernel).ok_or_else(unknown)
    }

    /// The attributes as they are told to the kernel.
    fn attr(&self, ino: u64, node: &Node, mut attrs: Attrs, heard: u64) -> Attr {
        // The size that the kernel knows bounds what it reads from its pages: as long as somebody reads those of
        // another version, it must stay the size of that. Whoever opens the file now reads past the pages.
        let kept = self.kernel.told(ino, |told| {
            (told.cached.handles > 0 && told.cached.version != attrs.version).then_some(told.cached.len)
        });
        if let (Some(len), true) = (kept.flatten(), attrs.version.is_some()) {
            attrs.size = len;
        }
        // Noted first: a change that comes after this takes the answer back, one before it is seen by `ttl`.
        self.kernel.told(ino, |told| told.attrs = Some(attrs));
        let ttl = self.ttl(ino, node, &attrs, heard);
        let Attrs { size, mtime, links, .. } = attrs;
        Attr { ino, kind: node.kind(), mode: node.mode(), size, mtime, links, ttl }
    }

    /// The session's view, true to the disk.
    fn view(&self, key: &SessionKey) -> Result<Arc<View>> {
        let view = self.catalog.view(key)?;
        self.memory.saw(key, view.history.state);
        Ok(view)
    }

    /// Lets an open last turn grow with its file, if what was shown is still its beginning (`tail -f`);
    /// whether it did. A turn that was rewritten stays what it was when it was opened.
    fn grow(&self, handle: &Handle, open: &TextHandle) -> bool {
        if !open.grows || !self.attrs(&open.node).is_ok_and(|attrs| attrs.size > open.len()) {
            return false;
        }
        let (Ok(before), Ok(now)) = (self.text_of(open), self.text(&open.node)) else { return false };
        if !now.bytes.starts_with(&before[..]) {
            return false;
        }
        handle.grew(&self.kernel, now.version, now.bytes.len() as u64);
        open.grow(now.bytes, now.version);
        true
    }
}

/// The entries behind a cookie. The numbers of the nodes are for the caller to fill in.
fn entries_from(handle: &Handle, cookie: u64) -> Result<impl Iterator<Item = (DirEntry<'_>, &Node)>> {
    let Shows::Directory(entries) = &handle.shows else {
        return Err(Refusal::Internal { what: "a file is listed like a directory".into() });
    };
    let from = usize::try_from(cookie).unwrap_or(usize::MAX);
    let numbered = entries.iter().enumerate().skip(from);
    Ok(numbered.map(|(index, (name, node))| {
        (DirEntry { name, ino: 0, kind: node.kind(), cookie: index as u64 + 1 }, node)
    }))
}

/// At most `size` bytes from `offset` on.
fn part_of(bytes: &[u8], offset: u64, size: usize) -> &[u8] {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let end = start.saturating_add(size).min(bytes.len());
    &bytes[start..end]
}
