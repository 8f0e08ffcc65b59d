//! The sessions by the day on which they began.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::{Listed, Listing, names};

/// A session under a name that no other of its day has, with its project (`None`: unplaced).
pub type OfDay<'l> = (String, Option<&'l Path>, &'l Listed);

impl Listing {
    /// The sessions by the local date of their creation: the one in their names, which never changes. Of a day, the newest
    /// activity first.
    pub fn by_day(&self) -> BTreeMap<Date, Vec<OfDay<'_>>> {
        let zone = TimeZone::system();
        let mut days: BTreeMap<Date, Vec<OfDay<'_>>> = BTreeMap::new();
        for (project, listed) in self.all() {
            let day = listed.session.created.to_zoned_datetime(zone.clone()).date();
            days.entry(day).or_default().push((listed.name.clone(), project, listed));
        }
        for sessions in days.values_mut() {
            let mut own: Vec<String> = sessions.iter().map(|(name, ..)| name.clone()).collect();
            names::tell_apart(&mut own, |at| &sessions[at].2.session);
            sessions.iter_mut().zip(own).for_each(|(session, name)| session.0 = name);
        }
        days
    }
}
