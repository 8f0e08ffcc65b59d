//! Background start, readiness, signals, mountinfo, stale mounts.
