//! Records of logins: who, from where, and how it ended. Never a secret, a challenge or a response.

use crate::chap::Algorithm;
use crate::login::Candidate;
use crate::wire::LoginStatus;
use lunar_core::access::audit::{Pace, shown};
use lunar_core::time::Instant;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Who logs in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Who {
    /// The name it gives itself.
    pub initiator: Arc<str>,
    /// Where it comes from.
    pub source: SocketAddr,
    /// The target that it wants.
    pub target: Option<Arc<str>>,
    /// Whether it only asks what there is.
    pub discovery: bool,
    /// The group that it belongs to.
    pub group: Option<Arc<str>>,
    /// The user whose name it gave.
    pub user: Option<Arc<str>>,
    /// How it proved that.
    pub algorithm: Option<Algorithm>,
}

impl Who {
    pub(crate) fn new(candidate: &Candidate, source: SocketAddr) -> Self {
        Self {
            initiator: candidate.initiator.clone(),
            source,
            target: candidate.target.clone(),
            discovery: candidate.discovery,
            group: None,
            user: None,
            algorithm: None,
        }
    }
}

/// Why somebody was not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// There is no such target.
    NoTarget,
    /// No group fits its name and address.
    NotShown,
    /// There is no such user.
    UnknownUser,
    /// The user has another secret.
    WrongAnswer,
    /// It has sent a challenge of ours back.
    Reflected,
    /// It wants a proof of ours, and there is none.
    NoProofOfOurs,
    /// Its source fails too often.
    TooMany,
    /// So many logins from there that it is not looked at.
    TooOften,
    /// Another, as it was told.
    Status(LoginStatus),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTarget => f.write_str("no such target"),
            Self::NotShown => f.write_str("no group fits"),
            Self::UnknownUser => f.write_str("unknown user"),
            Self::WrongAnswer => f.write_str("wrong secret"),
            Self::Reflected => f.write_str("reflected challenge"),
            Self::NoProofOfOurs => f.write_str("mutual authentication is not set up"),
            Self::TooMany => f.write_str("too many failures from there"),
            Self::TooOften => f.write_str("too many logins from there"),
            Self::Status(status) => write!(f, "{status:?}"),
        }
    }
}

/// What is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A login has ended.
    Login(Who, Result<(), Reason>),
    /// So many refusals were not written.
    Omitted(u64),
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (who, outcome) = match self {
            Self::Omitted(count) => return write!(f, "{count} more refused logins are not listed"),
            Self::Login(who, outcome) => (who, outcome),
        };
        match outcome {
            Ok(()) => f.write_str("login accepted")?,
            Err(reason) => write!(f, "login refused reason=\"{reason}\"")?,
        }
        let kind = if who.discovery { "discovery" } else { "normal" };
        write!(f, " source={} session={kind} initiator=\"{}\"", who.source, shown(&who.initiator))?;
        for (key, value) in [("target", &who.target), ("group", &who.group), ("user", &who.user)] {
            if let Some(value) = value {
                write!(f, " {key}=\"{}\"", shown(value))?;
            }
        }
        match who.algorithm {
            Some(algorithm) => write!(f, " chap={algorithm:?}"),
            None => Ok(()),
        }
    }
}

/// Makes records, not too many.
#[derive(Debug, Default)]
pub(super) struct Audit(Pace);

impl Audit {
    /// What is written of a login.
    pub(super) fn records(&mut self, who: Who, outcome: Result<(), Reason>, now: Instant) -> Vec<Record> {
        let (omitted, is_written) = self.0.look(outcome.is_ok(), now);
        let login = is_written.then_some(Record::Login(who, outcome));
        omitted.map(Record::Omitted).into_iter().chain(login).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who() -> Who {
        Who {
            initiator: "iqn.x:host".into(),
            source: ([192, 0, 2, 1], 4000).into(),
            target: Some("iqn.x:disk".into()),
            discovery: false,
            group: None,
            algorithm: Some(Algorithm::SHA256),
            user: Some("a\"\nlogin accepted user=\"b".into()),
        }
    }

    #[test]
    fn a_record_is_one_line_whatever_they_call_themselves() {
        assert_eq!(
            Record::Login(who(), Err(Reason::WrongAnswer)).to_string(),
            "login refused reason=\"wrong secret\" source=192.0.2.1:4000 session=normal initiator=\"iqn.x:host\" \
             target=\"iqn.x:disk\" user=\"a\\\"\\nlogin accepted user=\\\"b\" chap=SHA256"
        );
        let long = Who { initiator: "x".repeat(5000).into(), discovery: true, target: None, user: None, ..who() };
        let told = Record::Login(long, Ok(())).to_string();
        assert!(told.starts_with("login accepted source=192.0.2.1:4000 session=discovery") && told.len() < 320);
    }

    #[test]
    fn what_was_omitted_is_told_before_the_next() {
        let mut audit = Audit::default();
        let now = Instant(5_000_000_000);
        (0..1000).for_each(|_| drop(audit.records(who(), Err(Reason::TooMany), now)));
        let later = audit.records(who(), Err(Reason::TooMany), now + std::time::Duration::from_secs(1));
        assert_eq!((later.len(), &later[0]), (2, &Record::Omitted(980)));
    }
}
