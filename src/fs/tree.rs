//! From a directory and a name to a node, from a directory to its entries, and a node's attributes: the
//! part of the tree above the sessions. What is inside a session's directory is in `session_dir.rs`.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;

use super::Fs;
use super::host_links::{Found, relative};
use super::kernel_view::Attrs;
use super::node::{At, Dot, Node, Part, SessionRef, Shelf};
use crate::catalog::{Listed, Listing};
use crate::session::{Refusal, Result};

pub(super) type Entries = Vec<(OsString, Node)>;

impl Fs {
    /// The node named `name` in the directory `parent`.
    pub(super) fn child(&self, parent: &Node, name: &OsStr) -> Result<Node> {
        match parent {
            Node::Root if name == Dot::Dir.name() => Ok(Node::Dot(Dot::Dir)),
            Node::Root => {
                if let Some(overview) = self.overview_at_root(name) {
                    return Ok(overview);
                }
                let found = match self.projects {
                    Some(_) => self.on_shelf(&Shelf::Given, name),
                    None => self.in_host_directory(Path::new("/"), name),
                };
                let own = || Dot::OF_ROOT.into_iter().find(|dot| name == dot.name()).map(Node::Dot);
                match found {
                    Err(Refusal::NotFound { .. }) => own().map_or(found, Ok),
                    found => found,
                }
            }
            Node::Host(path) => self.in_host_directory(path, name),
            Node::Dot(Dot::Dir) => {
                let mut known = Dot::FILES.into_iter().chain([Dot::Options, Dot::Unplaced]);
                let known = known.find(|dot| name == dot.name()).map(Node::Dot);
                known.or_else(|| self.overview_in_dot(name)).ok_or_else(|| absent(name))
            }
            Node::Dot(Dot::Unplaced) => self.on_shelf(&Shelf::Unplaced, name),
            Node::Session(session, part) => self.inside(session, part, name),
            Node::Overview(top, overview) => self.in_overview(*top, overview, name),
            Node::Dot(_)
            | Node::HostLink(..)
            | Node::Latest(..)
            | Node::Alias(..)
            | Node::OverviewLink(..) => Err(absent(name)),
        }
    }

    /// What is listed in the directory `node`, in listing order; without `.` and `..`.
    pub(super) fn entries(&self, node: &Node) -> Result<Entries> {
        match node {
            Node::Root if self.projects.is_some() => {
                let listing = self.catalog.listing();
                let mut entries = vec![(Dot::Dir.name().into(), Node::Dot(Dot::Dir))];
                self.list_shelf(&Shelf::Given, &listing, &mut entries);
                Ok(entries)
            }
            Node::Root => {
                let listing = self.catalog.listing();
                let mut entries = vec![(Dot::Dir.name().into(), Node::Dot(Dot::Dir))];
                entries.append(&mut self.overviews_at_root());
                self.list_host_directory(Path::new("/"), &listing, &mut entries);
                Ok(entries)
            }
            Node::Host(path) => {
                let listing = self.catalog.listing();
                let mut entries = Vec::new();
                self.list_host_directory(path, &listing, &mut entries);
                // A directory that is only passed through on the way to a symlink.
                if entries.is_empty() { Err(absent(path.as_os_str())) } else { Ok(entries) }
            }
            Node::Dot(Dot::Dir) => {
                let all = Dot::FILES.into_iter().chain([Dot::Unplaced]);
                Ok(all.map(|dot| (dot.name().into(), Node::Dot(dot))).collect())
            }
            Node::Dot(Dot::Unplaced) => {
                let (listing, mut entries) = (self.catalog.listing(), Vec::new());
                self.list_shelf(&Shelf::Unplaced, &listing, &mut entries);
                Ok(entries)
            }
            Node::Session(session, part) => self.entries_inside(session, part),
            Node::Overview(top, overview) => self.entries_of_overview(*top, overview),
            Node::Dot(_)
            | Node::HostLink(..)
            | Node::Latest(..)
            | Node::Alias(..)
            | Node::OverviewLink(..) => {
                Err(Refusal::Internal { what: format!("{node:?} is listed but no directory") })
            }
        }
    }

    /// Size, time and links of a node, as they are now.
    pub(super) fn attrs(&self, node: &Node) -> Result<Attrs> {
        match node {
            Node::Root => {
                let listing = self.catalog.last_listing();
                let time = newest(listing.projects.values().flatten()).unwrap_or(self.started);
                let within = match &self.projects {
                    Some(_) => 1 + self.shelf(&Shelf::Given, &listing).len(),
                    None => 1 + self.overviews_listed(&listing) + directories_in(Path::new("/"), &listing),
                };
                Ok(Attrs::directory(within, time))
            }
            Node::Host(path) => {
                let listing = self.catalog.last_listing();
                let below = listing.projects.range(path.to_path_buf()..);
                let below = below.take_while(|(project, _)| project.starts_with(path));
                let time = newest(below.flat_map(|(_, sessions)| sessions)).unwrap_or(self.started);
                Ok(Attrs::directory(directories_in(path, &listing), time))
            }
            Node::HostLink(..) | Node::Latest(..) | Node::Alias(..) | Node::OverviewLink(..) => {
                let target = link_target(node)?;
                Ok(Attrs::file(target.as_os_str().len() as u64, self.started))
            }
            Node::Session(session, part) => self.attrs_inside(session, part),
            Node::Overview(_, overview) => self.attrs_of_overview(overview),
            Node::Dot(Dot::Dir) => Ok(Attrs::directory(1, self.started)),
            Node::Dot(Dot::Unplaced) => {
                Ok(Attrs::directory(self.catalog.last_listing().unplaced.len(), self.started))
            }
            Node::Dot(dot) => Ok(Attrs::file(self.dot_size(*dot)?, self.started)),
        }
    }

    fn in_host_directory(&self, path: &Path, name: &OsStr) -> Result<Node> {
        let below = path.join(name);
        let shelf = Shelf::Project(path.into());
        if self.is_known_session(&shelf, name) {
            return self.on_shelf(&shelf, name);
        }
        if self.catalog.leads_to_project(&below) {
            return Ok(Node::Host(below.into()));
        }
        match self.on_shelf(&shelf, name) {
            Err(Refusal::NotFound { .. }) => {}
            answer => return answer,
        }
        match self.host_links.look(&below) {
            Found::Directory => Ok(Node::Host(below.into())),
            Found::LinkTo(target) => Ok(Node::HostLink(below.into(), relative(path, &target).into())),
            Found::Nothing => Err(absent(name)),
        }
    }

    /// Whether the last listing has a session of this name there: which is not a host directory then, and
    /// need not be looked for as one.
    fn is_known_session(&self, shelf: &Shelf, name: &OsStr) -> bool {
        let known = self.catalog.last_listing();
        let is_hidden = matches!(shelf, Shelf::Project(path) if known.leads_to_project(&path.join(name)));
        !is_hidden && self.shelf(shelf, &known).iter().any(|listed| *listed.name == *name)
    }

    /// A session, `latest` or a full id.
    fn on_shelf(&self, shelf: &Shelf, name: &OsStr) -> Result<Node> {
        let Some(name) = name.to_str() else { return Err(absent(name)) };
        if name == "latest" && *shelf != Shelf::Unplaced {
            let listing = self.catalog.listing();
            let newest = self.shelf(shelf, &listing).first().map(|listed| latest(shelf, listed));
            return newest.ok_or_else(|| absent(OsStr::new(name)));
        }
        let known = self.catalog.last_listing();
        if let Some(listed) = self.shelf(shelf, &known).iter().find(|listed| listed.name == name)
            && self.catalog.is_current(&listed.session)
        {
            return Ok(session_directory(listed, shelf));
        }
        let listing = self.catalog.listing();
        let sessions = self.shelf(shelf, &listing);
        if let Some(listed) = sessions.iter().find(|listed| listed.name == name) {
            return Ok(session_directory(listed, shelf));
        }
        match sessions.iter().find(|listed| listed.session.id == name) {
            Some(listed) => {
                let (id, target) = (listed.session.id.as_str().into(), listed.name.as_str().into());
                Ok(Node::Alias(shelf.clone(), id, target))
            }
            None => Err(absent(OsStr::new(name))),
        }
    }

    /// The sessions of a shelf, newest activity first, each once, with names that differ.
    fn shelf<'l>(&self, shelf: &Shelf, listing: &'l Listing) -> Cow<'l, [Listed]> {
        match shelf {
            Shelf::Project(path) => Cow::Borrowed(listing.of(Some(path))),
            Shelf::Unplaced => Cow::Borrowed(&listing.unplaced),
            Shelf::Given => {
                let projects = self.projects.iter().flatten();
                let mut all: Vec<Listed> =
                    projects.flat_map(|project| listing.of(Some(project))).cloned().collect();
                all.sort_by(|a, b| a.session.newest_first(&b.session));
                let mut taken = std::collections::HashSet::new();
                for listed in &mut all {
                    if !taken.insert(listed.name.clone()) {
                        listed.name = format!("{}-{}", listed.name, listed.session.id.replace('/', "_"));
                    }
                }
                Cow::Owned(all)
            }
        }
    }

    fn list_shelf(&self, shelf: &Shelf, listing: &Listing, entries: &mut Entries) {
        let sessions = self.shelf(shelf, listing);
        if let Some(newest) = sessions.first().filter(|_| *shelf != Shelf::Unplaced) {
            entries.push(("latest".into(), latest(shelf, newest)));
        }
        let directories = sessions.iter().map(|listed| session_directory(listed, shelf));
        entries.extend(sessions.iter().map(|listed| OsString::from(&listed.name)).zip(directories));
    }

    fn list_host_directory(&self, path: &Path, listing: &Listing, entries: &mut Entries) {
        for name in names_below(path, listing) {
            let below = Node::Host(path.join(&name).into());
            // A directory of the host wins over a session or `latest` of the same name.
            if !entries.iter().any(|(taken, _)| *taken == name) {
                entries.push((name, below));
            }
        }
        let mut sessions = Vec::new();
        self.list_shelf(&Shelf::Project(path.into()), listing, &mut sessions);
        let directories = entries.len();
        sessions.retain(|(name, _)| !entries[..directories].iter().any(|(taken, _)| taken == name));
        entries.append(&mut sessions);
    }
}

pub(super) fn absent(name: &OsStr) -> Refusal {
    Refusal::NotFound { what: name.to_string_lossy().into_owned() }
}

/// Where a symlink leads; always relative.
pub(super) fn link_target(node: &Node) -> Result<&Path> {
    match node {
        Node::HostLink(_, target) | Node::OverviewLink(.., target) => Ok(target),
        Node::Latest(_, target) | Node::Alias(_, _, target) => Ok(Path::new(&**target)),
        // The label begins with the number.
        Node::Session(_, Part::UndoneLink(label)) => {
            Ok(Path::new(label.split_once('-').map_or(&**label, |(number, _)| number)))
        }
        _ => Err(Refusal::Internal { what: format!("{node:?} is not a symlink") }),
    }
}

fn latest(shelf: &Shelf, newest: &Listed) -> Node {
    Node::Latest(shelf.clone(), newest.name.as_str().into())
}

fn session_directory(listed: &Listed, shelf: &Shelf) -> Node {
    let session = SessionRef { key: listed.session.key.clone(), at: At::Shelf(shelf.clone()) };
    Node::Session(Arc::new(session), Part::Dir)
}

fn newest<'a>(sessions: impl Iterator<Item = &'a Listed>) -> Option<Timestamp> {
    sessions.map(|listed| listed.session.updated).max()
}

/// The names of the directories that lead from `path` towards recorded projects, sorted.
fn names_below(path: &Path, listing: &Listing) -> Vec<OsString> {
    let below = listing.projects.range(path.to_path_buf()..);
    let below = below.map(|(project, _)| project).take_while(|project| project.starts_with(path));
    let mut names: Vec<OsString> = below
        .filter_map(|project| project.strip_prefix(path).ok()?.components().next())
        .map(|component| component.as_os_str().to_owned())
        .collect();
    names.dedup();
    names
}

fn directories_in(path: &Path, listing: &Listing) -> usize {
    names_below(path, listing).len() + listing.of(Some(path)).len()
}
