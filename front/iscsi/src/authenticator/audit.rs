//! Audit records of logins: the names, the address and the outcome. They never contain a secret, a challenge or a
//! response.

use crate::chap::Algorithm;
use crate::login::Candidate;
use crate::wire::LoginStatus;
use lunar_core::access::audit::{Pace, shown};
use lunar_core::time::Instant;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// The names and the address of a login.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoginDetails {
    /// The initiator name.
    pub initiator: Arc<str>,
    /// The address of the initiator.
    pub source: SocketAddr,
    /// The requested target.
    pub target: Option<Arc<str>>,
    /// Whether it is a discovery session.
    pub discovery: bool,
    /// The host group of the initiator.
    pub group: Option<Arc<str>>,
    /// The CHAP user name.
    pub user: Option<Arc<str>>,
    /// The CHAP algorithm.
    pub algorithm: Option<Algorithm>,
}

impl LoginDetails {
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

/// Why a login was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalReason {
    /// The target does not exist.
    NoTarget,
    /// No host group of the target matches the name and the address of the initiator.
    NoGroup,
    /// The user does not exist.
    UnknownUser,
    /// The CHAP response does not match the secret of the user.
    WrongResponse,
    /// The initiator sent a challenge of the target back.
    Reflected,
    /// The initiator requests authentication of the target, which has no secret for it.
    NoTargetSecret,
    /// Too many logins from this address have failed.
    TooManyFailures,
    /// Too many logins from this address are waiting.
    TooManyLogins,
    /// Another reason: the status of the login response.
    Status(LoginStatus),
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTarget => f.write_str("no such target"),
            Self::NoGroup => f.write_str("no host group matches"),
            Self::UnknownUser => f.write_str("unknown user"),
            Self::WrongResponse => f.write_str("wrong secret"),
            Self::Reflected => f.write_str("reflected challenge"),
            Self::NoTargetSecret => f.write_str("mutual authentication is not set up"),
            Self::TooManyFailures => f.write_str("too many failed logins from this address"),
            Self::TooManyLogins => f.write_str("too many logins from this address"),
            Self::Status(status) => write!(f, "{status:?}"),
        }
    }
}

/// An entry of the audit log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AuditRecord {
    /// A login was accepted or refused.
    Login(LoginDetails, Result<(), RefusalReason>),
    /// The number of refusals that were not written.
    Omitted(u64),
}

impl fmt::Display for AuditRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (login, outcome) = match self {
            Self::Omitted(count) => return write!(f, "{count} more refused logins are not listed"),
            Self::Login(login, outcome) => (login, outcome),
        };
        match outcome {
            Ok(()) => f.write_str("login accepted")?,
            Err(reason) => write!(f, "login refused reason=\"{reason}\"")?,
        }
        let kind = if login.discovery { "discovery" } else { "normal" };
        write!(f, " source={} session={kind} initiator=\"{}\"", login.source, shown(&login.initiator))?;
        for (key, value) in [("target", &login.target), ("group", &login.group), ("user", &login.user)] {
            if let Some(value) = value {
                write!(f, " {key}=\"{}\"", shown(value))?;
            }
        }
        match login.algorithm {
            Some(algorithm) => write!(f, " chap={algorithm:?}"),
            None => Ok(()),
        }
    }
}

/// Creates audit records and limits the rate of refusals.
#[derive(Debug, Default)]
pub(super) struct AuditLog(Pace);

impl AuditLog {
    /// The records of a login.
    pub(super) fn records(
        &mut self,
        login: LoginDetails,
        outcome: Result<(), RefusalReason>,
        now: Instant,
    ) -> Vec<AuditRecord> {
        let (omitted, is_written) = self.0.look(outcome.is_ok(), now);
        let login = is_written.then_some(AuditRecord::Login(login, outcome));
        omitted.map(AuditRecord::Omitted).into_iter().chain(login).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login() -> LoginDetails {
        LoginDetails {
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
    fn a_record_is_one_line_whatever_the_names_contain() {
        assert_eq!(
            AuditRecord::Login(login(), Err(RefusalReason::WrongResponse)).to_string(),
            "login refused reason=\"wrong secret\" source=192.0.2.1:4000 session=normal initiator=\"iqn.x:host\" \
             target=\"iqn.x:disk\" user=\"a\\\"\\nlogin accepted user=\\\"b\" chap=SHA256"
        );
        let long =
            LoginDetails { initiator: "x".repeat(5000).into(), discovery: true, target: None, user: None, ..login() };
        let line = AuditRecord::Login(long, Ok(())).to_string();
        assert!(line.starts_with("login accepted source=192.0.2.1:4000 session=discovery") && line.len() < 320);
    }

    #[test]
    fn omitted_records_are_counted_before_the_next_one() {
        let mut audit = AuditLog::default();
        let now = Instant(5_000_000_000);
        (0..1000).for_each(|_| drop(audit.records(login(), Err(RefusalReason::TooManyFailures), now)));
        let later =
            audit.records(login(), Err(RefusalReason::TooManyFailures), now + std::time::Duration::from_secs(1));
        assert_eq!((later.len(), &later[0]), (2, &AuditRecord::Omitted(980)));
    }
}
