//! One file per command: arguments to exit code. Prints; asks no questions about formats.
