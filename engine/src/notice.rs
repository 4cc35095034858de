//! Notices for operators about clients and the service.

use lunar_core::access::refusal::RefusalCode;
use std::fmt;
use std::net::IpAddr;

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

/// A refused login, as a notice has it. Names are those that the client gave, whatever they contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefusedLogin<'a> {
    /// The transport: the name of its front.
    pub transport: &'static str,
    /// The code.
    pub code: RefusalCode,
    /// The address of the client; `None`: the transport has no IP addresses.
    pub source: Option<IpAddr>,
    /// The name of the target that the client asked for; empty: it asked for none.
    pub target: &'a str,
    /// The name of the user that it gave; empty: it gave none.
    pub user: &'a str,
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
    /// The refused login that the notice is about.
    pub refusal: Option<RefusedLogin<'a>>,
}

impl<'a> Notice<'a> {
    /// A notice about this subject that is about no refused login.
    #[must_use]
    pub fn new(topic: NoticeTopic, subject: &'a str, words: &'a dyn fmt::Display) -> Self {
        Self { topic, subject, words, refusal: None }
    }
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
