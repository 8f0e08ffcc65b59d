//! Which context lines belong to which turns: replay by checkpoints, then scored matching.
