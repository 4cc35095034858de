//! Notices for operators about clients and the service.

use std::fmt;

/// The topic of a notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoticeTopic {
    /// A client was granted access.
    Login,
    /// A client was refused.
    Refusal,
    /// The service itself.
    Service,
    /// A client had the configuration changed.
    Change,
}

/// A notice for operators.
#[derive(Clone, Copy)]
pub struct Notice<'a> {
    /// The topic.
    pub topic: NoticeTopic,
    /// The client; `lunar` for a notice about the service.
    pub subject: &'a str,
    /// The text.
    pub words: &'a dyn fmt::Display,
}

impl fmt::Display for Notice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.words.fmt(f)
    }
}

impl fmt::Debug for Notice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Notice({:?} {}: {})", self.topic, self.subject, self.words)
    }
}

/// Takes notices, from any thread.
pub type AuditSink = dyn Fn(&Notice<'_>) + Send + Sync;

/// The subject of notices about the service.
pub const SERVICE: &str = "lunar";
