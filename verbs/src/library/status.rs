//! Why work has failed.

use std::fmt;

/// The status of work (`enum ibv_wc_status`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// The work has succeeded.
    pub const SUCCESS: Self = Self(0);
    /// A message of the peer is longer than the memory for it.
    pub const LENGTH: Self = Self(1);
    /// The connection has ended before.
    pub const FLUSHED: Self = Self(5);
    /// The peer has refused access to its memory.
    pub const REMOTE_ACCESS: Self = Self(10);
    /// The peer does not answer.
    pub const SILENT: Self = Self(12);
    /// The peer has no memory for messages.
    pub const NOT_READY: Self = Self(13);
}

/// The names, in the order of the numbers.
const NAMES: [&str; 22] = [
    "success",
    "a message is longer than the memory for it",
    "queue pair operation error",
    "end-to-end context operation error",
    "memory that is not registered for this access",
    "the connection has ended before",
    "memory window error",
    "bad response",
    "local access error",
    "the peer calls a request invalid",
    "the peer refuses access to its memory",
    "the peer cannot execute a request",
    "the peer does not answer",
    "the peer has no memory for messages",
    "local RDD violation",
    "remote invalid RD request",
    "the peer has aborted a request",
    "invalid end-to-end context number",
    "invalid end-to-end context state",
    "fatal error of the device",
    "response time-out",
    "general error of the device",
];

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.get(self.0 as usize) {
            Some(name) => write!(f, "{name} (status {})", self.0),
            None => write!(f, "status {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_its_reason() {
        assert_eq!(format!("{:?}", Status::SILENT), "the peer does not answer (status 12)");
        assert!(format!("{:?}", Status::REMOTE_ACCESS).contains("refuses access"));
        assert_eq!(format!("{:?}", Status(99)), "status 99");
    }
}
