//! `recent/`, `by-date/` and `search/`: the sessions of all projects once more, as links to where they are.
//!
//! They are at the root of a mount of all projects, `recent/` and `by-date/` listed, and unlisted in `.turnfs/`. What a project (or a
//! directory above one, or a link to one) has at the host's own `/recent`, `/by-date` or `/search` is shown at the root
//! instead. As links they send no crawler anywhere twice.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;
use parking_lot::Mutex;

use super::Fs;
use super::host_links::Found;
use super::kernel_view::Attrs;
use super::node::{Dot, Node};
use super::tree::{Entries, absent};
use crate::catalog::Listing;
use crate::session::Result;

/// How many sessions `recent/` has.
const RECENT: usize = 50;

/// A directory of links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Overview {
    Recent,
    ByDate,
    Year(i16),
    Month(i16, i8),
    Day(Date),
    Search,
    /// The name as it was written.
    Query(Arc<str>),
}

/// The directory that the overviews are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Top {
    Root,
    Dot,
}

impl Top {
    /// For [`Node::identity`].
    pub fn tag(self) -> &'static str {
        match self {
            Top::Root => "overview",
            Top::Dot => "overview-in-dot",
        }
    }

    pub fn directory(self) -> Node {
        match self {
            Top::Root => Node::Root,
            Top::Dot => Node::Dot(Dot::Dir),
        }
    }
}

impl Overview {
    const ALL: [Overview; 3] = [Overview::Recent, Overview::ByDate, Overview::Search];
    const LISTED: [Overview; 2] = [Overview::ByDate, Overview::Recent];

    /// The one of this name in [`Top`].
    pub fn named(name: &OsStr) -> Option<Overview> {
        Overview::ALL.into_iter().find(|overview| overview.path().as_os_str() == name)
    }

    /// Below [`Top`].
    pub fn path(&self) -> PathBuf {
        match self {
            Overview::Recent => "recent".into(),
            Overview::ByDate => "by-date".into(),
            Overview::Year(year) => format!("by-date/{year:04}").into(),
            Overview::Month(year, month) => format!("by-date/{year:04}/{month:02}").into(),
            Overview::Day(day) => day.strftime("by-date/%Y/%m/%d").to_string().into(),
            Overview::Search => "search".into(),
            Overview::Query(name) => format!("search/{name}").into(),
        }
    }

    /// The directory that it is in.
    pub fn parent(&self, top: Top) -> Node {
        let parent = match self {
            Overview::Recent | Overview::ByDate | Overview::Search => return top.directory(),
            Overview::Year(_) => Overview::ByDate,
            Overview::Month(year, _) => Overview::Year(*year),
            Overview::Day(day) => Overview::Month(day.year(), day.month()),
            Overview::Query(_) => Overview::Search,
        };
        Node::Overview(top, parent)
    }

    /// A link in it to what is at `place` below the mount's root.
    pub fn link(&self, top: Top, name: &str, place: &Path) -> Node {
        let below_root = match top {
            Top::Root => self.path(),
            Top::Dot => Path::new(Dot::Dir.name()).join(self.path()),
        };
        let mut target: PathBuf = below_root.components().map(|_| "..").collect();
        target.push(place);
        Node::OverviewLink(top, self.clone(), name.into(), target.into())
    }
}

/// What the overviews have, made of one listing and kept until there is another.
#[derive(Default)]
pub(super) struct Overviews(Mutex<Option<Arc<Made>>>);

struct Made {
    of: Arc<Listing>,
    /// Names, and the places that they lead to, below the mount's root.
    recent: Vec<(String, PathBuf)>,
    days: BTreeMap<Date, BTreeMap<String, PathBuf>>,
    /// The newest activity of all.
    newest: Option<Timestamp>,
}

impl Overviews {
    fn of(&self, listing: Arc<Listing>) -> Arc<Made> {
        let mut made = self.0.lock();
        if let Some(made) = &*made
            && Arc::ptr_eq(&made.of, &listing)
        {
            return made.clone();
        }
        let all = listing.all();
        let newest = all.first().map(|(_, listed)| listed.session.updated);
        let recent = all.into_iter().take(RECENT).enumerate().map(|(number, (project, listed))| {
            (format!("{number:02}-{}", listed.name), listed.path_in_mount(project))
        });
        let recent = recent.collect();
        let of_day = |sessions: Vec<_>| {
            let place =
                |(name, project, listed): crate::catalog::OfDay<'_>| (name, listed.path_in_mount(project));
            sessions.into_iter().map(place).collect()
        };
        let days = listing.by_day().into_iter().map(|(day, sessions)| (day, of_day(sessions))).collect();
        let fresh = Arc::new(Made { of: listing, recent, days, newest });
        *made = Some(fresh.clone());
        fresh
    }
}

impl Made {
    fn day(&self, day: Date) -> impl Iterator<Item = (&String, &PathBuf)> {
        self.days.get(&day).into_iter().flatten()
    }

    /// The directories in `by-date/`, or in one of those.
    fn within(&self, overview: &Overview) -> Vec<Overview> {
        let days = self.days.keys();
        let mut within: Vec<Overview> = match overview {
            Overview::ByDate => days.map(|day| Overview::Year(day.year())).collect(),
            Overview::Year(year) => days
                .filter(|day| day.year() == *year)
                .map(|day| Overview::Month(day.year(), day.month()))
                .collect(),
            Overview::Month(year, month) => days
                .filter(|day| (day.year(), day.month()) == (*year, *month))
                .map(|day| Overview::Day(*day))
                .collect(),
            Overview::Recent | Overview::Day(_) | Overview::Search | Overview::Query(_) => Vec::new(),
        };
        within.dedup();
        within
    }

    /// Whether there is such a directory.
    fn has(&self, overview: &Overview) -> bool {
        match overview {
            Overview::Year(_) | Overview::Month(..) => !self.within(overview).is_empty(),
            Overview::Day(day) => self.days.contains_key(day),
            Overview::Recent | Overview::ByDate | Overview::Search | Overview::Query(_) => true,
        }
    }
}

impl Fs {
    /// The overview of this name at the root, unless a project has its place.
    pub(super) fn overview_at_root(&self, name: &OsStr) -> Option<Node> {
        let overview = Overview::named(name).filter(|_| self.projects.is_none())?;
        let taken = Path::new("/").join(name);
        let is_taken =
            self.catalog.leads_to_project(&taken) || matches!(self.host_links.look(&taken), Found::LinkTo(_));
        (!is_taken).then_some(Node::Overview(Top::Root, overview))
    }

    /// Those that the root lists.
    pub(super) fn overviews_at_root(&self) -> Entries {
        let listed = Overview::LISTED.into_iter().map(|overview| OsString::from(overview.path()));
        listed.filter_map(|name| self.overview_at_root(&name).map(|node| (name, node))).collect()
    }

    /// How many the root lists, by this listing alone: a link on the host is not worth a look here.
    pub(super) fn overviews_listed(&self, listing: &Listing) -> usize {
        let is_free = |overview: &&Overview| !listing.leads_to_project(&Path::new("/").join(overview.path()));
        Overview::LISTED.iter().filter(is_free).count()
    }

    /// Those in whose place at the root is something else.
    pub(super) fn overviews_aside(&self) -> Vec<Overview> {
        let aside = |overview: &Overview| self.overview_at_root(overview.path().as_os_str()).is_none();
        if self.projects.is_some() { Vec::new() } else { Overview::ALL.into_iter().filter(aside).collect() }
    }

    /// The overview of this name in `.turnfs/`.
    pub(super) fn overview_in_dot(&self, name: &OsStr) -> Option<Node> {
        let overview = Overview::named(name).filter(|_| self.projects.is_none())?;
        Some(Node::Overview(Top::Dot, overview))
    }

    fn overviews_now(&self) -> Arc<Made> {
        self.overviews.of(self.catalog.listing())
    }

    /// The node named `name` in an overview.
    pub(super) fn in_overview(&self, top: Top, overview: &Overview, name: &OsStr) -> Result<Node> {
        let text = name.to_str().ok_or_else(|| absent(name))?;
        let found = match overview {
            Overview::Search => return self.query(top, text),
            Overview::Query(query) => return self.found_turn(top, query, text),
            Overview::Recent => {
                let made = self.overviews_now();
                let recent = made.recent.iter().find(|(own, _)| own == text);
                recent.map(|(name, place)| overview.link(top, name, place))
            }
            Overview::ByDate | Overview::Year(_) | Overview::Month(..) => {
                let below = overview.path().join(text);
                let mut within = self.overviews_now().within(overview).into_iter();
                within.find(|own| own.path() == below).map(|own| Node::Overview(top, own))
            }
            Overview::Day(day) => {
                let made = self.overviews_now();
                let place = made.days.get(day).and_then(|sessions| sessions.get(text));
                place.map(|place| overview.link(top, text, place))
            }
        };
        found.ok_or_else(|| absent(name))
    }

    /// What an overview lists.
    pub(super) fn entries_of_overview(&self, top: Top, overview: &Overview) -> Result<Entries> {
        let link = |(name, place): (&String, &PathBuf)| (name.into(), overview.link(top, name, place));
        match overview {
            // Any query is a name in it.
            Overview::Search => Ok(Vec::new()),
            Overview::Query(query) => self.found_turns(top, query),
            _ => {
                let made = self.overviews_now();
                if !made.has(overview) {
                    return Err(absent(overview.path().as_os_str()));
                }
                Ok(match overview {
                    Overview::Recent => made.recent.iter().map(|(name, place)| link((name, place))).collect(),
                    Overview::Day(day) => made.day(*day).map(link).collect(),
                    _ => {
                        let name = |own: &Overview| own.path().file_name().unwrap_or_default().to_owned();
                        let within = made.within(overview).into_iter();
                        within.map(|own| (name(&own), Node::Overview(top, own))).collect()
                    }
                })
            }
        }
    }

    /// Size, time and links of an overview.
    pub(super) fn attrs_of_overview(&self, overview: &Overview) -> Result<Attrs> {
        if matches!(overview, Overview::Search | Overview::Query(_)) {
            return Ok(Attrs::directory(0, self.started));
        }
        let made = self.overviews_now();
        if !made.has(overview) {
            return Err(absent(overview.path().as_os_str()));
        }
        Ok(Attrs::directory(made.within(overview).len(), made.newest.unwrap_or(self.started)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_out_of_the_overview_to_the_session() {
        let day = Overview::Day(jiff::civil::date(2026, 12, 3));
        for (top, overview, expected) in [
            (Top::Root, Overview::Recent, "../home/ana/s"),
            (Top::Dot, Overview::Recent, "../../home/ana/s"),
            (Top::Root, day, "../../../../home/ana/s"),
            (Top::Root, Overview::Query("a b".into()), "../../home/ana/s"),
        ] {
            let Node::OverviewLink(_, _, name, target) = overview.link(top, "n", Path::new("home/ana/s"))
            else {
                unreachable!("a link is a link");
            };
            assert_eq!((&*name, &*target), ("n", Path::new(expected)));
        }
        assert_eq!(Overview::Month(2026, 3).path(), Path::new("by-date/2026/03"));
    }
}
