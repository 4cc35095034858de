//! Audit records of logins: the names, the address and the outcome. They never contain a secret, a challenge or a
//! response.

use crate::chap::Algorithm;
use crate::config::Transport;
use crate::login::Candidate;
use crate::wire::LoginStatus;
use lunar_core::access::audit::{Pace, shown};
use lunar_core::access::refusal::RefusalCode;
use lunar_core::pace::host;
use lunar_core::time::Instant;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

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
    /// Its transport.
    pub transport: Transport,
    /// The host group of the initiator.
    pub group: Option<Arc<str>>,
    /// The CHAP user name.
    pub user: Option<Arc<str>>,
    /// The CHAP algorithm.
    pub algorithm: Option<Algorithm>,
    /// The tag of the portal group of its portal, if that matters.
    pub portal_group: Option<u16>,
}

impl LoginDetails {
    /// Of a login that failed before its names were known.
    pub(crate) fn unknown(source: SocketAddr, transport: Transport) -> Self {
        Self {
            initiator: "".into(),
            source,
            target: None,
            discovery: false,
            transport,
            group: None,
            user: None,
            algorithm: None,
            portal_group: None,
        }
    }

    /// The address of the initiator: without a port over RDMA, which has none.
    #[must_use]
    pub fn shown_source(&self) -> String {
        match self.transport {
            Transport::Tcp => self.source.to_string(),
            Transport::Rdma => self.source.ip().to_string(),
        }
    }

    pub(crate) fn new(candidate: &Candidate, source: SocketAddr) -> Self {
        Self {
            initiator: candidate.initiator.clone(),
            source,
            target: candidate.target.clone(),
            discovery: candidate.discovery,
            transport: candidate.transport,
            group: None,
            user: None,
            algorithm: None,
            portal_group: None,
        }
    }
}

/// Why a login was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RefusalReason {
    /// The reason of this code.
    Code(RefusalCode),
    /// The status of the login response, and what the initiator did.
    Status(LoginStatus, Option<Arc<str>>),
}

impl RefusalReason {
    /// The code of the reason.
    #[must_use]
    pub fn code(&self) -> RefusalCode {
        match self {
            Self::Code(code) => *code,
            Self::Status(status, _) => match *status {
                LoginStatus::MOVED_TEMPORARILY | LoginStatus::MOVED_PERMANENTLY => RefusalCode::Moved,
                LoginStatus::AUTHENTICATION_FAILURE => RefusalCode::NotAuthenticated,
                LoginStatus::AUTHORIZATION_FAILURE => RefusalCode::NotShown,
                LoginStatus::NOT_FOUND | LoginStatus::REMOVED => RefusalCode::NoTarget,
                LoginStatus::UNSUPPORTED_VERSION => RefusalCode::Version,
                LoginStatus::NO_SUCH_SESSION => RefusalCode::NoSession,
                LoginStatus::SERVICE_UNAVAILABLE => RefusalCode::Stopping,
                LoginStatus::TOO_MANY_CONNECTIONS | LoginStatus::OUT_OF_RESOURCES => RefusalCode::Full,
                LoginStatus::TARGET_ERROR => RefusalCode::TargetError,
                _ => RefusalCode::Protocol,
            },
        }
    }

    /// The mistake of the initiator; empty if the code says all.
    #[must_use]
    pub fn detail(&self) -> &str {
        match self {
            Self::Code(_) | Self::Status(_, None) => "",
            Self::Status(_, Some(why)) => why,
        }
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => f.write_str(match code {
                RefusalCode::NoTarget => "no such target",
                RefusalCode::NotShown => "no host group matches",
                RefusalCode::WrongNetwork => "no host group matches the address",
                RefusalCode::OtherPortal => "not reached through this portal",
                RefusalCode::UnknownUser => "unknown user",
                RefusalCode::WrongSecret => "wrong secret",
                RefusalCode::Reflected => "reflected challenge",
                RefusalCode::NoProofOfOurs => "mutual authentication is not set up",
                RefusalCode::TooMany => "too many failed logins from this address",
                RefusalCode::TooOften => "too many logins from this address",
                code => code.word(),
            }),
            Self::Status(status, None) => write!(f, "{status:?}"),
            Self::Status(status, Some(why)) => write!(f, "{status:?}: {}", shown(why)),
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
    /// How many accepted logins were not written: repetitions of this one, or of too many initiators.
    Repeated(Option<LoginDetails>, u64),
}

impl LoginDetails {
    /// Writes the names, and the address if it is known.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.discovery { "discovery" } else { "normal" };
        if self.transport.is_rdma() {
            write!(f, " transport={}", self.transport.word())?;
        }
        let (source, initiator) = (self.shown_source(), shown(&self.initiator));
        write!(f, " source={source} session={kind} initiator=\"{initiator}\"")?;
        for (key, value) in [("target", &self.target), ("group", &self.group), ("user", &self.user)] {
            if let Some(value) = value {
                write!(f, " {key}=\"{}\"", shown(value))?;
            }
        }
        match self.algorithm {
            Some(algorithm) => write!(f, " chap={algorithm:?}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for AuditRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (login, outcome) = match self {
            Self::Omitted(count) => return write!(f, "{count} more refused logins are not listed"),
            Self::Repeated(None, count) => return write!(f, "{count} more accepted logins are not listed"),
            Self::Repeated(Some(login), count) => {
                write!(f, "login accepted {count} more times")?;
                return login.write(f);
            }
            Self::Login(login, outcome) => (login, outcome),
        };
        match outcome {
            Ok(()) => f.write_str("login accepted")?,
            Err(reason) => write!(f, "login refused reason=\"{reason}\"")?,
        }
        login.write(f)
    }
}

/// An accepted login is written once in this time; its repetitions are counted.
const REPEATED_AFTER: Duration = Duration::from_secs(60);
/// Accepted logins to targets that are written in that time, of different initiators, hosts or targets: a large cluster
/// that starts. The others are counted.
const NORMAL_MAX: usize = 1024;
/// The same for discovery sessions. Any initiator may open one, so the limit is low: their records must not displace
/// others.
const DISCOVERY_MAX: usize = 32;

/// A login that may be repeated: initiator, target and host.
type RepeatKey = (Arc<str>, Option<Arc<str>>, IpAddr);

/// The accepted logins of one session type that were written of late.
#[derive(Debug, Default)]
struct Accepted {
    /// When each was written, and how often it was repeated since.
    written: BTreeMap<RepeatKey, (Instant, LoginDetails, u64)>,
    /// Logins that were not written because there were too many different ones.
    omitted: u64,
}

impl Accepted {
    /// The records of repetitions whose time is over.
    fn expire(&mut self, now: Instant, records: &mut Vec<AuditRecord>) {
        let before = self.written.len();
        self.written.retain(|_, (since, login, count)| {
            let is_recent = now.since(*since) < REPEATED_AFTER;
            if !is_recent && *count > 0 {
                records.push(AuditRecord::Repeated(Some(login.clone()), *count));
            }
            is_recent
        });
        if self.written.len() < before && self.omitted > 0 {
            records.push(AuditRecord::Repeated(None, std::mem::take(&mut self.omitted)));
        }
    }

    /// Whether a login is written.
    fn add(&mut self, login: &LoginDetails, max: usize, now: Instant) -> bool {
        let key = (login.initiator.clone(), login.target.clone(), host(login.source.ip()));
        if let Some((_, _, count)) = self.written.get_mut(&key) {
            *count += 1;
            return false;
        }
        if self.written.len() >= max {
            self.omitted += 1;
            return false;
        }
        self.written.insert(key, (now, login.clone(), 0));
        true
    }
}

/// Creates audit records: limits the rate of refusals, and sums up repeated logins.
#[derive(Debug, Default)]
pub(super) struct AuditLog {
    pace: Pace,
    normal: Accepted,
    discovery: Accepted,
}

impl AuditLog {
    /// The records of a login.
    pub(super) fn records(
        &mut self,
        login: LoginDetails,
        outcome: Result<(), RefusalReason>,
        now: Instant,
    ) -> Vec<AuditRecord> {
        let (omitted, mut is_written) = self.pace.look(outcome.is_ok(), now);
        let mut records: Vec<_> = omitted.map(AuditRecord::Omitted).into_iter().collect();
        self.normal.expire(now, &mut records);
        self.discovery.expire(now, &mut records);
        if outcome.is_ok() {
            let (accepted, max) =
                if login.discovery { (&mut self.discovery, DISCOVERY_MAX) } else { (&mut self.normal, NORMAL_MAX) };
            is_written = accepted.add(&login, max, now);
        }
        records.extend(is_written.then_some(AuditRecord::Login(login, outcome)));
        records
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
            transport: Transport::Tcp,
            group: None,
            algorithm: Some(Algorithm::SHA256),
            portal_group: None,
            user: Some("a\"\nlogin accepted user=\"b".into()),
        }
    }

    #[test]
    fn a_record_is_one_line_whatever_the_names_contain() {
        assert_eq!(
            AuditRecord::Login(login(), Err(RefusalReason::Code(RefusalCode::WrongSecret))).to_string(),
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
        (0..1000).for_each(|_| drop(audit.records(login(), Err(RefusalReason::Code(RefusalCode::TooMany)), now)));
        let later =
            audit.records(login(), Err(RefusalReason::Code(RefusalCode::TooMany)), now + Duration::from_secs(1));
        assert_eq!((later.len(), &later[0]), (2, &AuditRecord::Omitted(980)));
    }

    #[test]
    fn repeated_logins_are_summed_up() {
        let mut audit = AuditLog::default();
        let start = Instant(5_000_000_000);
        let mut at = |seconds: u64, login: LoginDetails| {
            let records = audit.records(login, Ok(()), start + Duration::from_secs(seconds));
            records.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(at(0, login()).len(), 1);
        // The port of the initiator and the session's identifier differ each time.
        let again = LoginDetails { source: ([192, 0, 2, 1], 4001).into(), ..login() };
        assert!((1..50).all(|second| at(second, again.clone()).is_empty()));
        assert_eq!(at(50, LoginDetails { initiator: "iqn.x:other".into(), ..login() }).len(), 1);
        let later = at(60, again);
        assert_eq!(later.len(), 2);
        assert!(later[0].starts_with("login accepted 49 more times source=192.0.2.1:4000"), "{}", later[0]);
        assert!(later[1].starts_with("login accepted source="));
    }

    #[test]
    fn discovery_of_strangers_does_not_push_other_logins_out() {
        let mut audit = AuditLog::default();
        let start = Instant(5_000_000_000);
        let stranger = |count: u32| LoginDetails {
            initiator: format!("iqn.x:{count}").into(),
            target: None,
            discovery: true,
            ..login()
        };
        let written: usize = (0..16_404).map(|count| audit.records(stranger(count), Ok(()), start).len()).sum();
        assert_eq!(written, DISCOVERY_MAX);
        assert_eq!(audit.records(login(), Ok(()), start).len(), 1);
        let later = audit.records(login(), Ok(()), start + REPEATED_AFTER);
        assert!(later.contains(&AuditRecord::Repeated(None, 16_404 - DISCOVERY_MAX as u64)));
        assert!(audit.discovery.written.is_empty(), "nothing is kept without end");
    }
}
