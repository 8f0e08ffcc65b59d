//! Paths as they are written down. They are bytes on Unix: one that is not UTF-8 is written as a list of bytes.

use std::ffi::OsString;
use std::ops::Deref;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The path of something in a store, relative to the store's root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StorePath(#[serde(with = "path_text")] PathBuf);

impl<P: Into<PathBuf>> From<P> for StorePath {
    fn from(path: P) -> StorePath {
        StorePath(path.into())
    }
}

impl Deref for StorePath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for StorePath {
    fn as_ref(&self) -> &Path {
        self
    }
}

/// For serde: a path of any kind.
pub mod path_text {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Text {
        Utf8(String),
        Bytes(Vec<u8>),
    }

    /// # Errors
    /// What `to` says.
    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        match path.to_str() {
            Some(text) => Text::Utf8(text.to_owned()),
            None => Text::Bytes(path.as_os_str().as_bytes().to_vec()),
        }
        .serialize(to)
    }

    /// # Errors
    /// What `from` says, and that it holds neither a text nor a list of bytes.
    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<PathBuf, D::Error> {
        Ok(match Text::deserialize(from)? {
            Text::Utf8(text) => PathBuf::from(text),
            Text::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes)),
        })
    }
}

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
