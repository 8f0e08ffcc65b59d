//! Values of the client's JSON, which it reads less strictly than serde_json does.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::agents::json;

/// A JSON string's text; a lone surrogate, which the client writes and reads, becomes U+FFFD.
pub(super) fn string(raw: &RawValue) -> Option<String> {
    json::text(raw).map(Cow::into_owned)
}

/// A whole number, also where it is written with a fraction.
pub(super) fn number(raw: &RawValue) -> Option<i64> {
    let json = raw.get();
    json.parse().ok().or_else(|| json.parse::<f64>().ok().filter(|n| n.is_finite()).map(|n| n as i64))
}

/// A text as it is, anything else as JSON.
pub(super) fn spelled(raw: &RawValue) -> String {
    string(raw).unwrap_or_else(|| raw.get().to_owned())
}
