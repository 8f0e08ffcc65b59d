//! `blobs/NNN/`: the pictures and other files of a turn, as files.
//!
//! They are in the order in which the turn's text shows them: those whose content the turn's records hold, readably.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::Fs;
use super::content::turn;
use super::node::{Part, SessionRef};
use crate::catalog::View;
use crate::session::{Item, Refusal, Result};

/// Some clients leave the padding out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// File name extensions by media type; another type's files are `.bin`.
const EXTENSIONS: [(&str, &str); 14] = [
    ("image/png", "png"),
    ("image/jpeg", "jpg"),
    ("image/jpg", "jpg"),
    ("image/gif", "gif"),
    ("image/webp", "webp"),
    ("image/svg+xml", "svg"),
    ("image/bmp", "bmp"),
    ("application/pdf", "pdf"),
    ("audio/wav", "wav"),
    ("audio/mpeg", "mp3"),
    ("audio/ogg", "ogg"),
    ("video/mp4", "mp4"),
    ("video/webm", "webm"),
    ("text/plain", "txt"),
];

fn file_name(number: usize, media_type: &str) -> String {
    let known = EXTENSIONS.iter().find(|(of, _)| of.eq_ignore_ascii_case(media_type));
    format!("{number:02}.{}", known.map_or("bin", |(_, extension)| extension))
}

impl Fs {
    /// The names of a turn's files, in order.
    ///
    /// # Errors
    /// What prevents reading the turn.
    pub(super) fn blob_names(&self, session: &SessionRef, n: u32) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.each_blob(&*self.view(&session.key)?, n, |media_type, _| {
            names.push(file_name(names.len() + 1, media_type));
        })?;
        Ok(names)
    }

    /// The file of a turn that has this name, if there is one.
    ///
    /// # Errors
    /// As [`Fs::blob_names`].
    pub(super) fn blob_named(&self, session: &SessionRef, n: u32, name: &str) -> Result<Option<Part>> {
        let names = self.blob_names(session, n)?;
        Ok((1..).zip(names).find(|(_, it)| it == name).map(|(number, _)| Part::Blob(n, number)))
    }

    /// The content of the file of a turn with this number, which counts from 1.
    ///
    /// # Errors
    /// As [`Fs::blob_names`]; and [`Refusal::NotFound`] if there is none.
    pub(super) fn blob_in(&self, view: &View, n: u32, number: u32) -> Result<Vec<u8>> {
        let (mut at, mut found) = (0, None);
        self.each_blob(view, n, |_, bytes| {
            at += 1;
            if at == number {
                found = Some(bytes);
            }
        })?;
        found.ok_or_else(|| Refusal::NotFound { what: format!("file {number} of turn {n}") })
    }

    /// Gives type and content of each of a turn's files to `each`.
    fn each_blob(&self, view: &View, n: u32, mut each: impl FnMut(&str, Vec<u8>)) -> Result<()> {
        let turn = turn(&view.history, n)?;
        let span = self.catalog.span(view, turn)?;
        view.store.items(&view.session, turn, &span, &mut |_, item| {
            if let Item::Blob { media_type, base64, .. } = item
                && !base64.is_empty()
                && let Ok(bytes) = BASE64.decode(&*base64)
            {
                each(&media_type, bytes);
            }
        })
    }
}
