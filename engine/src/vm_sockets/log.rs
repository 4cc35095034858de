//! Limits the lines of the log about the connections to one socket: a client that connects in a loop does not fill it.

use lunar_core::time::Instant;
use std::time::Duration;

/// Time between two lines of the log about refusals for the same reason, and the period in which connections are
/// counted.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Connections of a socket in [`REPORT_INTERVAL`] of which the log tells: more than an operator causes by hand.
const CONNECTIONS_LOGGED: u32 = 16;

/// The refusals of connections to one socket. A client tries again and again: the log shows each reason once in
/// [`REPORT_INTERVAL`].
#[derive(Default)]
pub(super) struct Refusals(Option<(&'static str, Instant)>);

impl Refusals {
    /// Whether the log tells of a refusal for this reason.
    pub(super) fn is_news(&mut self, why: &'static str, now: Instant) -> bool {
        let is_known = self.0.is_some_and(|(known, at)| known == why && now.since(at) < REPORT_INTERVAL);
        if !is_known {
            self.0 = Some((why, now));
        }
        !is_known
    }
}

/// Whether the log tells of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Logging {
    Full,
    /// The log says that it tells of no further ones.
    Last,
    None,
}

/// The connections to one socket.
#[derive(Default)]
pub(super) struct Connections {
    since: Instant,
    count: u32,
}

impl Connections {
    /// Counts one more connection.
    pub(super) fn count(&mut self, now: Instant) -> Logging {
        if self.count == 0 || now.since(self.since) >= REPORT_INTERVAL {
            (self.since, self.count) = (now, 0);
        }
        self.count = self.count.saturating_add(1);
        match self.count {
            0..CONNECTIONS_LOGGED => Logging::Full,
            CONNECTIONS_LOGGED => Logging::Last,
            _ => Logging::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_of_a_number_of_connections_in_a_while() {
        let (mut connections, now) = (Connections::default(), Instant(1));
        (1..CONNECTIONS_LOGGED).for_each(|_| assert_eq!(connections.count(now), Logging::Full));
        assert_eq!([0; 3].map(|_| connections.count(now)), [Logging::Last, Logging::None, Logging::None]);
        assert_eq!(connections.count(now + REPORT_INTERVAL), Logging::Full);
    }

    #[test]
    fn the_log_shows_each_reason_of_refusals_once_in_a_while() {
        let (mut refusals, now) = (Refusals::default(), Instant(1));
        assert!(refusals.is_news("a", now) && !refusals.is_news("a", now));
        assert!(refusals.is_news("b", now) && !refusals.is_news("b", now + REPORT_INTERVAL - Duration::from_nanos(1)));
        assert!(refusals.is_news("b", now + REPORT_INTERVAL));
    }
}
