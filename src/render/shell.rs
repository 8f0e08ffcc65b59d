//! Words of commands that a person pastes into a shell.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::safe::one_line;

/// A word as a shell reads it (any POSIX shell). It is one line of visible text, whatever the word holds: what is not
/// visible, or not UTF-8, is written by `printf`. A newline at the word's end would be lost then; [`shell_path`] has none.
pub fn shell_word(word: &OsStr) -> String {
    let visible = word.to_str().filter(|text| one_line(text) == *text);
    let Some(text) = visible else { return printed(word.as_bytes()) };
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,=@%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => quoted(text),
    }
}

/// The path of a directory as a shell reads it, as [`shell_word`].
pub fn shell_path(dir: &Path) -> String {
    let bytes = dir.as_os_str().as_bytes();
    match bytes.ends_with(b"\n") {
        true => printed(&[bytes, b"/"].concat()),
        false => shell_word(dir.as_os_str()),
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What `printf` makes these bytes of.
fn printed(bytes: &[u8]) -> String {
    let mut format = String::new();
    let octal = |bytes: &[u8], format: &mut String| {
        for byte in bytes {
            // Writing into a String cannot fail.
            let _ = write!(format, "\\{byte:03o}");
        }
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let mut buffer = [0; 4];
            let text: &str = c.encode_utf8(&mut buffer);
            match c {
                '\\' => format.push_str(r"\\"),
                '%' => format.push_str("%%"),
                _ if one_line(text) != text => octal(text.as_bytes(), &mut format),
                _ => format.push(c),
            }
        }
        octal(chunk.invalid(), &mut format);
    }
    // A format that begins with a dash would be an option of some shells' printf.
    format!("\"$(printf -- {})\"", quoted(&format))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::Command;

    use super::*;

    #[test]
    fn words_are_quoted_only_where_they_must_be() {
        for (word, expected) in [("/a/b.c", "/a/b.c"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("", "''")] {
            assert_eq!(shell_word(OsStr::new(word)), expected);
        }
    }

    #[test]
    fn a_shell_reads_the_very_word_and_a_person_sees_one_line() {
        let words: &[&[u8]] = &[
            b"plain",
            b"with blanks  and 'quotes' and \"others\" `$(id)` $HOME \\ ! ~ # ; & | * ? [x]",
            "\u{1f600} äöü 修复".as_bytes(),
            b"two\nlines",
            b"\t tab, 100 % \\ and\x1b[31m red",
            b"not \xff UTF-8 \xc3",
            "\u{202e}backwards, it's".as_bytes(),
            b"-n\n-",
            b"\x7f9",
        ];
        for word in words {
            let word = OsStr::from_bytes(word);
            let written = shell_word(word);
            assert_eq!(one_line(&written), written);
            for shell in ["sh", "bash"] {
                let script = format!("printf %s {written}");
                let said = Command::new(shell).arg("-c").arg(script).output().unwrap();
                assert_eq!(OsStr::from_bytes(&said.stdout), word, "{shell}: {written}");
            }
        }
    }

    #[test]
    fn a_path_that_ends_with_a_newline_is_the_same_directory() {
        assert_eq!(shell_path(Path::new("/a\n")), r#""$(printf -- '/a\012/')""#);
        assert_eq!(shell_path(Path::new("/a b")), "'/a b'");
    }
}
