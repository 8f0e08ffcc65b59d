//! Standard output with nothing in it that a terminal would obey: ids, titles and paths come from stores, and each
//! command would have to remember that. (That a value stays on one line is up to the command.)

use std::io::{self, Write};

use crate::render;

/// Bold and red, as grep marks what it found; and back to normal.
const BOLD: &[u8] = b"\x1b[1;31m";
const PLAIN: &[u8] = b"\x1b[0m";

/// Makes control and bidi characters visible in all that is written, but for newlines and tabs; bytes that are not
/// UTF-8 become U+FFFD.
pub struct SafeOut<W: Write> {
    out: W,
    /// The beginning of a character that was not written whole yet.
    begun: Vec<u8>,
}

impl<W: Write> SafeOut<W> {
    pub fn new(out: W) -> SafeOut<W> {
        SafeOut { out, begun: Vec::new() }
    }

    /// Writes text that stands out on a terminal.
    ///
    /// # Errors
    /// As writing.
    pub fn put_bold(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(BOLD)?;
        self.put(text.as_bytes())?;
        self.out.write_all(PLAIN)
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        loop {
            match std::str::from_utf8(bytes) {
                Ok(text) => return self.out.write_all(render::visible(text).as_bytes()),
                Err(error) => {
                    let (text, rest) = bytes.split_at(error.valid_up_to());
                    // Valid as far as it was found to be: nothing is replaced here.
                    self.out.write_all(render::visible(&String::from_utf8_lossy(text)).as_bytes())?;
                    let Some(bad) = error.error_len() else {
                        self.begun = rest.to_vec();
                        return Ok(());
                    };
                    self.out.write_all("\u{fffd}".as_bytes())?;
                    bytes = &rest[bad..];
                }
            }
        }
    }
}

impl<W: Write> Write for SafeOut<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.begun.is_empty() {
            self.put(bytes)?;
        } else {
            let mut whole = std::mem::take(&mut self.begun);
            whole.extend_from_slice(bytes);
            self.put(&whole)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn what_is_written_is_safe_wherever_it_is_split() {
        let text = "a\u{1b}[31m\u{9b}é→\u{202e}\tb\n".as_bytes();
        let expected = "a␛[31m\\u{009b}é→\\u{202e}\tb\n";
        for split in 0..text.len() {
            let mut out = SafeOut::new(Vec::new());
            out.write_all(&text[..split]).unwrap();
            out.write_all(&text[split..]).unwrap();
            assert_eq!(String::from_utf8(out.out).unwrap(), expected, "split at {split}");
        }
        let mut out = SafeOut::new(Vec::new());
        out.write_all(b"a\xffb").unwrap();
        assert_eq!(String::from_utf8(out.out).unwrap(), "a\u{fffd}b");
    }
}
