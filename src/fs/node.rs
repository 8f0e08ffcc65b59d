//! What a path in the tree is, as a value: enough to answer every question about it, and nothing that
//! goes stale. Two paths to one thing (`turns/3` and `turns/003`) are one node.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::overview::{Overview, Top};
use crate::session::SessionKey;

/// A file, a directory or a symlink of the tree. A symlink's target is part of what it is: the kernel keeps the
/// targets of symlinks, so one that leads elsewhere must be another inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Root,
    /// A directory of the host's tree, by its absolute path on the host.
    Host(Arc<Path>),
    /// A symlink of the host that leads to a place with sessions, by the link's own path on the host; and its
    /// target in the mount.
    HostLink(Arc<Path>, Arc<Path>),
    /// `latest`, and the name that it leads to.
    Latest(Shelf, Arc<str>),
    /// A session's full id as a name: a symlink to its directory, which has the second name.
    Alias(Shelf, Arc<str>, Arc<str>),
    Session(Arc<SessionRef>, Part),
    /// `.turnfs` and what is in it.
    Dot(Dot),
    /// `recent/`, `by-date/`, `search/` and the directories in them.
    Overview(Top, Overview),
    /// A link in one of them, its name, and where it leads.
    OverviewLink(Top, Overview, Arc<str>, Arc<Path>),
}

/// A directory that holds sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shelf {
    /// A project, by its path as recorded.
    Project(Arc<Path>),
    /// The root of a mount with `--project`.
    Given,
    /// `.turnfs/unplaced/`.
    Unplaced,
}

/// A session and where in the tree its directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionRef {
    pub key: SessionKey,
    pub at: At,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum At {
    Shelf(Shelf),
    /// A sub-agent's session, below its parent's `agents/`.
    Agents(Arc<SessionRef>),
}

impl SessionRef {
    pub fn is_subagent(&self) -> bool {
        matches!(self.at, At::Agents(_))
    }
}

/// What is in a session's directory; [`Part::Dir`] is the directory itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Dir,
    Turns,
    Turn(u32),
    Status,
    Meta,
    Control(Control),
    Agents,
    Salvage,
    SalvageTurn(u32),
    Undone,
    /// `undone/<label>`, a symlink to `undone/<number>`: [`crate::cut::Undone::label`].
    UndoneLink(Arc<str>),
    Abandoned,
    /// `undone/<number>` and `abandoned/<number>`, then its `status`, its `fork`, its `turns`, then a turn by its number.
    BranchDir(Branch),
    BranchStatus(Branch),
    BranchFork(Branch),
    BranchTurns(Branch),
    BranchTurn(Branch, u32),
    Prompts,
    Prompt(u32),
    /// `blobs/`, `blobs/<turn>/`, and in that one a file by its number, from 1.
    Blobs,
    TurnBlobs(u32),
    Blob(u32, u32),
    Records,
    /// `records/head.jsonl`: what comes before turn 0.
    RecordsHead,
    Record(u32),
    /// `records/tail`: what follows the last complete line.
    RecordsTail,
    Raw,
    RawFile(OsString),
    Context,
}

/// Turns that are not part of the session any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Branch {
    /// What the undo with this number removed.
    Undone(u32),
    /// What the user left behind in the agent; from 1.
    Abandoned(u32),
}

impl Branch {
    pub fn number(self) -> u32 {
        let (Branch::Undone(number) | Branch::Abandoned(number)) = self;
        number
    }

    /// One name for each kind of branch.
    fn tag(self, [undone, abandoned]: [&'static str; 2]) -> &'static str {
        match self {
            Branch::Undone(_) => undone,
            Branch::Abandoned(_) => abandoned,
        }
    }

    /// The name of the directory that it is in.
    pub fn shelf(self) -> &'static str {
        self.tag(["undone", "abandoned"])
    }
}

/// A control file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Control {
    Undo,
    Redo,
    Fork,
}

impl Control {
    /// In the order in which they are listed.
    pub const ALL: [Control; 3] = [Control::Fork, Control::Undo, Control::Redo];

    /// Its file name.
    pub fn name(self) -> &'static str {
        match self {
            Control::Undo => "undo",
            Control::Redo => "redo",
            Control::Fork => "fork",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dot {
    Dir,
    Version,
    Status,
    Metrics,
    Readme,
    /// With which options this mount was made; not listed.
    Options,
    /// In the root, not listed: keeps git out of the mount.
    GitIgnore,
    /// In the root, not listed: keeps what goes by `.gitignore` and is not git (ripgrep, fd) in.
    Ignore,
    Unplaced,
}

/// The type of a file as `stat` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    File,
    Symlink,
}

impl Node {
    pub fn kind(&self) -> Kind {
        match self {
            Node::Root | Node::Host(_) | Node::Dot(Dot::Dir | Dot::Unplaced) => Kind::Directory,
            Node::Overview(..) => Kind::Directory,
            Node::OverviewLink(..) => Kind::Symlink,
            Node::HostLink(..) | Node::Latest(..) | Node::Alias(..) => Kind::Symlink,
            Node::Dot(Dot::Version | Dot::Status | Dot::Metrics | Dot::Readme) => Kind::File,
            Node::Dot(Dot::Options | Dot::GitIgnore | Dot::Ignore) => Kind::File,
            Node::Session(_, part) => match part {
                Part::UndoneLink(_) => Kind::Symlink,
                Part::Dir
                | Part::Turns
                | Part::Agents
                | Part::Salvage
                | Part::Undone
                | Part::Abandoned
                | Part::BranchDir(_)
                | Part::BranchTurns(_)
                | Part::Prompts
                | Part::Blobs
                | Part::TurnBlobs(_)
                | Part::Records
                | Part::Raw => Kind::Directory,
                Part::Turn(_)
                | Part::Status
                | Part::Meta
                | Part::Control(_)
                | Part::SalvageTurn(_)
                | Part::BranchStatus(_)
                | Part::BranchFork(_)
                | Part::BranchTurn(..)
                | Part::Prompt(_)
                | Part::Blob(..)
                | Part::RecordsHead
                | Part::Record(_)
                | Part::RecordsTail
                | Part::RawFile(_)
                | Part::Context => Kind::File,
            },
        }
    }

    /// Permission bits: only the owner, and nothing but control files can be written. Directories cannot
    /// either, so that `rm -rf` and `git clean` give up at once.
    pub fn mode(&self) -> u16 {
        match (self.kind(), self) {
            (Kind::Directory, _) => 0o500,
            (Kind::Symlink, _) => 0o777,
            (Kind::File, Node::Session(_, Part::Control(_) | Part::BranchFork(_))) => 0o600,
            (Kind::File, _) => 0o400,
        }
    }

    /// The directory that this is in.
    pub fn parent(&self) -> Node {
        match self {
            Node::Root => Node::Root,
            Node::Host(path) | Node::HostLink(path, _) => match path.parent() {
                Some(parent) => host_directory(parent),
                None => Node::Root,
            },
            Node::Latest(shelf, _) | Node::Alias(shelf, ..) => shelf.directory(),
            Node::Dot(Dot::Dir | Dot::GitIgnore | Dot::Ignore) => Node::Root,
            Node::Dot(_) => Node::Dot(Dot::Dir),
            Node::Overview(top, overview) => overview.parent(*top),
            Node::OverviewLink(top, overview, ..) => Node::Overview(*top, overview.clone()),
            Node::Session(session, part) => {
                let within = |part| Node::Session(session.clone(), part);
                match part {
                    Part::Dir => match &session.at {
                        At::Shelf(shelf) => shelf.directory(),
                        At::Agents(parent) => Node::Session(parent.clone(), Part::Agents),
                    },
                    Part::Turn(_) => within(Part::Turns),
                    Part::SalvageTurn(_) => within(Part::Salvage),
                    Part::BranchDir(Branch::Undone(_)) | Part::UndoneLink(_) => within(Part::Undone),
                    Part::BranchDir(Branch::Abandoned(_)) => within(Part::Abandoned),
                    Part::BranchTurns(branch) | Part::BranchStatus(branch) | Part::BranchFork(branch) => {
                        within(Part::BranchDir(*branch))
                    }
                    Part::BranchTurn(branch, _) => within(Part::BranchTurns(*branch)),
                    Part::Prompt(_) => within(Part::Prompts),
                    Part::TurnBlobs(_) => within(Part::Blobs),
                    Part::Blob(n, _) => within(Part::TurnBlobs(*n)),
                    Part::RecordsHead | Part::Record(_) | Part::RecordsTail => within(Part::Records),
                    Part::RawFile(_) => within(Part::Raw),
                    _ => within(Part::Dir),
                }
            }
        }
    }

    /// A number made of what the node is and of nothing else: the same in every mount.
    pub fn identity(&self) -> u64 {
        let mut hash = Xxh3::new();
        self.identify(&mut hash);
        hash.digest()
    }

    fn identify(&self, hash: &mut Xxh3) {
        match self {
            Node::Root => tag(hash, "root"),
            Node::Host(path) => field(hash, "host", path.as_os_str().as_bytes()),
            Node::HostLink(path, target) => {
                field(hash, "host-link", path.as_os_str().as_bytes());
                field(hash, "to", target.as_os_str().as_bytes());
            }
            Node::Latest(shelf, target) => {
                field(hash, "latest", target.as_bytes());
                shelf.identify(hash);
            }
            Node::Alias(shelf, id, target) => {
                field(hash, "alias", id.as_bytes());
                field(hash, "to", target.as_bytes());
                shelf.identify(hash);
            }
            Node::Session(session, part) => {
                session.identify(hash);
                part.identify(hash);
            }
            Node::Dot(dot) => tag(hash, dot.name()),
            Node::Overview(top, overview) => {
                field(hash, top.tag(), overview.path().as_os_str().as_bytes());
            }
            Node::OverviewLink(top, overview, name, target) => {
                field(hash, top.tag(), overview.path().as_os_str().as_bytes());
                field(hash, "link", name.as_bytes());
                field(hash, "to", target.as_os_str().as_bytes());
            }
        }
    }
}

/// A directory of the host's tree; the host's `/` is the root.
pub(super) fn host_directory(path: &Path) -> Node {
    if path == Path::new("/") { Node::Root } else { Node::Host(path.into()) }
}

impl Shelf {
    pub fn directory(&self) -> Node {
        match self {
            Shelf::Project(path) => host_directory(path),
            Shelf::Given => Node::Root,
            Shelf::Unplaced => Node::Dot(Dot::Unplaced),
        }
    }

    fn identify(&self, hash: &mut Xxh3) {
        match self {
            Shelf::Project(path) => field(hash, "project", path.as_os_str().as_bytes()),
            Shelf::Given => tag(hash, "given"),
            Shelf::Unplaced => tag(hash, "unplaced"),
        }
    }
}

impl SessionRef {
    fn identify(&self, hash: &mut Xxh3) {
        tag(hash, self.key.agent.name());
        field(hash, "store", self.key.root.as_os_str().as_bytes());
        field(hash, "session", self.key.path.as_os_str().as_bytes());
        match &self.at {
            At::Shelf(shelf) => shelf.identify(hash),
            At::Agents(parent) => {
                tag(hash, "agent-of");
                parent.identify(hash);
            }
        }
    }
}

impl Part {
    fn identify(&self, hash: &mut Xxh3) {
        let (name, numbers): (&str, [u32; 2]) = match self {
            Part::Dir => ("dir", [0, 0]),
            Part::Turns => ("turns", [0, 0]),
            Part::Turn(n) => ("turn", [*n, 0]),
            Part::Status => ("status", [0, 0]),
            Part::Meta => ("meta", [0, 0]),
            Part::Control(control) => (control.name(), [0, 0]),
            Part::Agents => ("agents", [0, 0]),
            Part::Salvage => ("salvage", [0, 0]),
            Part::SalvageTurn(n) => ("salvage-turn", [*n, 0]),
            Part::Undone => ("undone", [0, 0]),
            Part::UndoneLink(label) => return field(hash, "undone-link", label.as_bytes()),
            Part::Abandoned => ("abandoned", [0, 0]),
            Part::BranchDir(branch) => (branch.tag(["undone-dir", "abandoned-dir"]), [branch.number(), 0]),
            Part::BranchStatus(branch) => {
                (branch.tag(["undone-status", "abandoned-status"]), [branch.number(), 0])
            }
            Part::BranchFork(branch) => (branch.tag(["undone-fork", "abandoned-fork"]), [branch.number(), 0]),
            Part::BranchTurns(branch) => {
                (branch.tag(["undone-turns", "abandoned-turns"]), [branch.number(), 0])
            }
            Part::BranchTurn(branch, n) => {
                (branch.tag(["undone-turn", "abandoned-turn"]), [branch.number(), *n])
            }
            Part::Prompts => ("prompts", [0, 0]),
            Part::Prompt(n) => ("prompt", [*n, 0]),
            Part::Blobs => ("blobs", [0, 0]),
            Part::TurnBlobs(n) => ("turn-blobs", [*n, 0]),
            Part::Blob(n, number) => ("blob", [*n, *number]),
            Part::Records => ("records", [0, 0]),
            Part::RecordsHead => ("records-head", [0, 0]),
            Part::Record(n) => ("record", [*n, 0]),
            Part::RecordsTail => ("records-tail", [0, 0]),
            Part::Raw => ("raw", [0, 0]),
            Part::RawFile(name) => return field(hash, "raw-file", name.as_bytes()),
            Part::Context => ("context", [0, 0]),
        };
        tag(hash, name);
        for number in numbers {
            hash.update(&number.to_le_bytes());
        }
    }
}

impl Dot {
    /// The files, as listed.
    pub const FILES: [Dot; 4] = [Dot::Version, Dot::Status, Dot::Metrics, Dot::Readme];

    /// What the root has besides, unless something of the host has the name.
    pub const OF_ROOT: [Dot; 2] = [Dot::GitIgnore, Dot::Ignore];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Dot::Dir => ".turnfs",
            Dot::Version => "version",
            Dot::Status => "status",
            Dot::Metrics => "metrics",
            Dot::Readme => "README.md",
            Dot::Options => "options.json",
            Dot::GitIgnore => ".gitignore",
            Dot::Ignore => ".ignore",
            Dot::Unplaced => "unplaced",
        }
    }
}

/// With its length in front, so that no two different sequences of fields are the same bytes.
fn tag(hash: &mut Xxh3, name: &str) {
    hash.update(&(name.len() as u64).to_le_bytes());
    hash.update(name.as_bytes());
}

fn field(hash: &mut Xxh3, name: &str, value: &[u8]) {
    tag(hash, name);
    hash.update(&(value.len() as u64).to_le_bytes());
    hash.update(value);
}

/// The number in a turn's file name: decimal digits, leading zeros or not.
pub(super) fn turn_number(name: &str) -> Option<u32> {
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    if digits && name.len() <= 10 { name.parse().ok() } else { None }
}

/// A turn's file name as listed: three digits, more when needed.
pub(super) fn turn_name(n: u32) -> String {
    format!("{n:03}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::AgentKind;

    fn session(path: &str) -> Arc<SessionRef> {
        let key = SessionKey {
            agent: AgentKind::KimiCli,
            root: Path::new("/home/ana/.kimi").into(),
            path: Path::new(path).into(),
        };
        Arc::new(SessionRef { key, at: At::Shelf(Shelf::Project(Path::new("/w").into())) })
    }

    #[test]
    fn identities_are_the_same_in_every_mount_and_build() {
        // A changed number here means that inode numbers change for users at an upgrade.
        assert_eq!(Node::Host(Path::new("/home/ana").into()).identity(), 14749979967681459224);
        assert_eq!(Node::Session(session("sessions/m/a"), Part::Turn(3)).identity(), 16382650781924492079);
    }

    #[test]
    fn different_things_have_different_identities() {
        let a = session("sessions/m/a");
        let nodes = [
            Node::Root,
            Node::Host(Path::new("/a").into()),
            Node::HostLink(Path::new("/a").into(), Path::new("b").into()),
            Node::HostLink(Path::new("/a").into(), Path::new("c").into()),
            Node::Latest(Shelf::Project(Path::new("/a").into()), "b".into()),
            Node::Latest(Shelf::Given, "b".into()),
            Node::Latest(Shelf::Given, "c".into()),
            Node::Alias(Shelf::Given, "a".into(), "b".into()),
            Node::Alias(Shelf::Given, "a".into(), "c".into()),
            Node::Dot(Dot::Status),
            Node::Overview(Top::Root, Overview::Recent),
            Node::Overview(Top::Dot, Overview::Recent),
            Node::Overview(Top::Root, Overview::Search),
            Node::Overview(Top::Root, Overview::Query("a".into())),
            Overview::Recent.link(Top::Root, "a", Path::new("b")),
            Overview::Recent.link(Top::Root, "a", Path::new("c")),
            Node::Session(a.clone(), Part::Status),
            Node::Session(a.clone(), Part::Turn(1)),
            Node::Session(a.clone(), Part::SalvageTurn(1)),
            Node::Session(a.clone(), Part::BranchTurn(Branch::Undone(1), 2)),
            Node::Session(a.clone(), Part::BranchTurn(Branch::Undone(2), 1)),
            Node::Session(a.clone(), Part::BranchTurn(Branch::Abandoned(1), 2)),
            Node::Session(session("sessions/m/b"), Part::Turn(1)),
            Node::Session(a.clone(), Part::RawFile("status".into())),
        ];
        let identities: std::collections::HashSet<u64> = nodes.iter().map(Node::identity).collect();
        assert_eq!(identities.len(), nodes.len());
    }

    #[test]
    fn turn_names_are_numbers_with_or_without_leading_zeros() {
        for (name, expected) in [
            ("0", Some(0)),
            ("000", Some(0)),
            ("003", Some(3)),
            ("3", Some(3)),
            ("1234", Some(1234)),
            ("4294967296", None),
            ("00000000003", None),
            ("", None),
            ("+3", None),
            ("-3", None),
            ("3 ", None),
            ("0x3", None),
            ("³", None),
        ] {
            assert_eq!(turn_number(name), expected, "{name:?}");
        }
        assert_eq!((turn_name(7), turn_name(1234)), ("007".into(), "1234".into()));
    }

    #[test]
    fn every_node_is_in_its_parents_directory() {
        let a = session("sessions/m/a");
        let turn = Node::Session(a.clone(), Part::BranchTurn(Branch::Undone(1), 2));
        let mut chain = Vec::new();
        let mut node = turn;
        while node != Node::Root {
            node = node.parent();
            assert_eq!(node.kind(), Kind::Directory, "{node:?}");
            chain.push(node.clone());
        }
        assert_eq!(chain.len(), 6, "{chain:?}");
        assert_eq!(Node::Host(Path::new("/a").into()).parent(), Node::Root);
    }
}
