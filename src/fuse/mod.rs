//! Thin adapter between fuser and `fs`: replies, open flags, errno. No policy, no parsing.
