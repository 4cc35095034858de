//! The part of login records that all transports share: the limit of records, and the form of a host's name in a
//! record. The transport writes the content of a record.

use crate::time::Instant;
use std::time::Duration;

/// Most refusals that are logged in one second: enough to show an attack, and too few to fill a disk. Further refusals
/// are only counted.
pub const REFUSALS_PER_SECOND: u32 = 20;
/// Most characters of a host's name that are logged: neither an iSCSI name nor an NQN is longer.
const SHOWN_MAX: usize = 223;

/// The name of a host, with its control characters and quotes escaped.
#[must_use]
pub fn shown(name: &str) -> String {
    name.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect()
}

/// Counts refusals, so that the log does not grow without limit.
#[derive(Debug, Default)]
pub struct Pace {
    since: Instant,
    refusals: u32,
    omitted: u64,
}

impl Pace {
    /// Registers the end of a login. The result tells whether to log it, and how many refusals before it were not
    /// logged and must be reported first.
    pub fn look(&mut self, ended_well: bool, now: Instant) -> (Option<u64>, bool) {
        let mut omitted = None;
        if now.since(self.since) >= Duration::from_secs(1) {
            (self.since, self.refusals) = (now, 0);
            omitted = Some(std::mem::take(&mut self.omitted)).filter(|count| *count > 0);
        }
        if ended_well {
            return (omitted, true);
        }
        self.refusals = self.refusals.saturating_add(1);
        let is_written = self.refusals <= REFUSALS_PER_SECOND;
        self.omitted += u64::from(!is_written);
        (omitted, is_written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_not_written() {
        let mut pace = Pace::default();
        let now = Instant(5_000_000_000);
        let written = (0..1000).filter(|_| pace.look(false, now).1).count();
        assert_eq!(written, REFUSALS_PER_SECOND as usize);
        assert_eq!(pace.look(true, now), (None, true), "an accepted login is logged");
        assert_eq!(pace.look(false, now + Duration::from_secs(1)), (Some(980), true));
        assert_eq!(pace.look(false, now + Duration::from_secs(2)), (None, true), "told once");
    }

    #[test]
    fn names_do_not_end_lines() {
        assert_eq!(shown("a\"\nb"), "a\\\"\\nb");
        assert_eq!(shown(&"x".repeat(1000)).len(), SHOWN_MAX);
    }
}
