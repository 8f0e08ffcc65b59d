//! Bytes to records: line splitting on 0x0A, validation, byte offsets, damage classes.
