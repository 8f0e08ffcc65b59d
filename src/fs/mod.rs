//! The tree as plain values: names, nodes, inodes, handles, control files. No fuser type; testable without a mount.
