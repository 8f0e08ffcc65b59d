//! Paths as they are written down. They are bytes on Unix: one that is not UTF-8 is written as a list of bytes.

use std::ffi::OsString;
use std::ops::Deref;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Any path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Text", into = "Text")]
pub struct PathText(PathBuf);

/// The path of something in a store, relative to the store's root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Text", into = "Text")]
pub struct StorePath(PathBuf);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Utf8(String),
    Bytes(Vec<u8>),
}

impl From<Text> for PathBuf {
    fn from(text: Text) -> PathBuf {
        match text {
            Text::Utf8(text) => text.into(),
            Text::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }
    }
}

macro_rules! is_a_path {
    ($($name:ident)*) => {$(
        impl From<$name> for Text {
            fn from(path: $name) -> Text {
                let text = path.0.into_os_string().into_string();
                text.map_or_else(|bytes| Text::Bytes(bytes.into_vec()), Text::Utf8)
            }
        }

        impl<P: Into<PathBuf>> From<P> for $name {
            fn from(path: P) -> $name {
                $name(path.into())
            }
        }

        impl Deref for $name {
            type Target = Path;

            fn deref(&self) -> &Path {
                &self.0
            }
        }

        impl AsRef<Path> for $name {
            fn as_ref(&self) -> &Path {
                self
            }
        }
    )*};
}

is_a_path!(PathText StorePath);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_path_is_read_as_it_was_written() {
        for name in [&b"a/b"[..], b"", b"a/\xff"] {
            let path = StorePath::from(OsString::from_vec(name.to_vec()));
            let text = serde_json::to_string(&path).unwrap();
            assert_eq!(serde_json::from_str::<StorePath>(&text).unwrap(), path, "{text}");
        }
    }
}
