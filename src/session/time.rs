//! Times of records.

use std::time::SystemTime;

use jiff::Timestamp;

use super::refusal::{Refusal, Result};

/// A Unix time in (fractional) seconds, as some stores write it; `None` if it is out of range.
pub fn from_unix_seconds(seconds: f64) -> Option<Timestamp> {
    if !seconds.is_finite() {
        return None;
    }
    Timestamp::from_microsecond((seconds * 1e6).round() as i64).ok()
}

/// The time of the system's clock; of one that is out of range, the nearest time that is in it.
pub fn now() -> Timestamp {
    let now = SystemTime::now();
    Timestamp::try_from(now).unwrap_or(match now < SystemTime::UNIX_EPOCH {
        true => Timestamp::MIN,
        false => Timestamp::MAX,
    })
}

/// The time for what is written into a store: [`now`].
///
/// # Errors
/// Before 1970, where no client has times and ids.
pub fn time_of_writing() -> Result<Timestamp> {
    let now = now();
    if now < Timestamp::UNIX_EPOCH {
        let now = rfc3339(now);
        let what = format!("this machine's clock says {now}, and no client writes a time before 1970");
        return Err(Refusal::cannot_cut(what, "set the clock, then repeat"));
    }
    Ok(now)
}

/// RFC 3339 in UTC with milliseconds, the form of all machine output.
pub fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}
