//! Admission of hosts, one authenticator for all cores: whether a host must authenticate, with which keys, how often it
//! may fail, and which records the audit log gets. It only decides: the program supplies the randomness and the log.

use super::exchange::{Authenticated, Participants, RANDOM};
use super::hash::Hash;
use super::key::Key;
use super::psk::{Claim, ConfiguredPsk, Offer};
use super::wire::Why;
use crate::directory::{Entry as Subsystem, SubsystemRegistry};
use crate::path::{DISCOVERY_NQN, Kind, TCP_WORD};
use lunar_core::access::audit::{Pace, shown};
use lunar_core::access::refusal::{Refusal, RefusalCode, RefusalSink};
use lunar_core::access::throttle::Throttle;
use lunar_core::access::{Access, Account, Credentials, Group, Secret};
use lunar_core::hosts::Hosts;
use lunar_core::time::Instant;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use zeroize::Zeroizing;

/// Fills memory with random bytes that are fit for secrets; `false` if there are none.
pub type Random = Box<dyn Fn(&mut [u8]) -> bool + Send + Sync>;
/// Takes records of the audit; at most [`REFUSALS_PER_SECOND`](lunar_core::access::audit::REFUSALS_PER_SECOND) and a
/// few of refusals.
pub type Sink = Box<dyn Fn(&Record) + Send + Sync>;

/// The prefix of NVMe Qualified Names.
const NQN: &str = "nqn.";

/// The host at the other end of a TLS connection, as its PSK identity names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsPeer {
    /// NQN of the host in the PSK identity.
    pub host: Arc<str>,
    /// NQN of the subsystem in the PSK identity.
    pub subsystem: Arc<str>,
    /// The configured PSK that the host used. The key decides the group where several groups have hosts of this name.
    pub key: Secret,
}

/// A Connect command that asks for a queue, before it is admitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoginAttempt {
    /// NQN of the host.
    pub host: Arc<str>,
    /// NQN of the subsystem.
    pub subsystem: Arc<str>,
    /// The kind of the controller.
    pub kind: Kind,
    /// The queue identifier.
    pub queue: u16,
    /// The word of the transport.
    pub transport: &'static str,
    /// The address of the host.
    pub source: SocketAddr,
    /// The TLS peer of the connection; `None` without TLS.
    pub tls_peer: Option<Arc<TlsPeer>>,
}

/// The result of the admission: the group and the map of a host that may connect, perhaps after authentication.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The group of the host.
    pub group: Arc<str>,
    /// The name of the map of the namespaces that the host sees; `None`: it sees all namespaces.
    pub map: Option<Arc<str>>,
    /// The parameters of the authentication; `None` if the host need not authenticate.
    pub participants: Option<Arc<Participants>>,
}

/// The reason why a host was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// No group matches the name and the address of the host.
    NotShown,
    /// A group matches the name of the host, and none its address.
    WrongNetwork,
    /// The host must authenticate, and no secret of its group is a DH-HMAC-CHAP key for it.
    NoKey,
    /// The group requires TLS, and the connection has none.
    TlsRequired,
    /// The TLS connection belongs to another host or subsystem, or uses a key that is not in the host's group.
    TlsMismatch,
    /// The response matches none of the keys.
    WrongAnswer,
    /// Authentication from this source fails too often.
    TooMany,
    /// The source sends too many Connect commands.
    TooOften,
    /// The subsystem does not exist.
    NoSubsystem,
    /// The subsystem is not reached through portals of the group of this tag.
    OtherPortal(u16),
    /// The host identifier is zero.
    NoHostId,
    /// The host NQN is no NVMe Qualified Name.
    NotQualified,
    /// Other hosts took the last controllers while this host authenticated.
    Full,
    /// The host violated the protocol, or the two sides have no parameters in common.
    Protocol(Why),
    /// The host rejected the authentication of the subsystem, or gave up.
    Doubts(Why),
}

impl Reason {
    /// The code of the reason.
    #[must_use]
    pub fn code(self) -> RefusalCode {
        match self {
            Self::NotShown => RefusalCode::NotShown,
            Self::WrongNetwork => RefusalCode::WrongNetwork,
            Self::NoKey => RefusalCode::NoKey,
            Self::TlsRequired => RefusalCode::NoChannel,
            Self::TlsMismatch => RefusalCode::OtherChannel,
            Self::WrongAnswer => RefusalCode::WrongSecret,
            Self::TooMany => RefusalCode::TooMany,
            Self::TooOften => RefusalCode::TooOften,
            Self::NoSubsystem => RefusalCode::NoTarget,
            Self::OtherPortal(_) => RefusalCode::OtherPortal,
            Self::NoHostId => RefusalCode::NoHostId,
            Self::NotQualified => RefusalCode::NotQualified,
            Self::Full => RefusalCode::Full,
            Self::Protocol(_) => RefusalCode::Protocol,
            Self::Doubts(_) => RefusalCode::NoProofOfOurs,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotShown => f.write_str("no group matches the host"),
            Self::WrongNetwork => f.write_str("no group matches the address of the host"),
            Self::NoKey => f.write_str("no key for this host"),
            Self::TlsRequired => f.write_str("the group requires TLS"),
            Self::TlsMismatch => f.write_str("the TLS key belongs to another host, subsystem or group"),
            Self::WrongAnswer => f.write_str("wrong key"),
            Self::TooMany => f.write_str("too many failures from there"),
            Self::TooOften => f.write_str("too many connects from there"),
            Self::NoSubsystem => f.write_str("no such subsystem"),
            Self::OtherPortal(_) => f.write_str("the subsystem is not reached through this portal"),
            Self::NoHostId => f.write_str("the host identifier is zero: nvme connect --hostid"),
            Self::NotQualified => f.write_str("the host NQN does not begin with nqn.: nvme connect --hostnqn"),
            Self::Full => f.write_str("too many controllers"),
            Self::Protocol(why) => write!(f, "{why:?}"),
            Self::Doubts(why) => write!(f, "the host gives up: {why:?}"),
        }
    }
}

/// The reason why TLS was not established.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsRefusal {
    /// The connection does not use TLS, and must.
    Clear,
    /// The first bytes are no ClientHello of TLS 1.3 with PSK identities of NVMe/TCP.
    NoIdentity,
    /// The key was generated by secure channel concatenation.
    Generated,
    /// No key is configured for this host and subsystem.
    NoKey,
    /// No configured key of this host and subsystem has this identity.
    OtherKey,
    /// The configured keys have the first hash, the key of the host the second.
    OtherHash(Hash, Hash),
    /// The host does not offer the cipher suite of this hash, which its key requires.
    NoSuite(Hash),
    /// The handshake failed after a known identity. The key has this hash.
    Broken(Hash),
}

impl TlsRefusal {
    /// The code of the reason.
    #[must_use]
    pub fn code(self) -> RefusalCode {
        match self {
            Self::Clear => RefusalCode::TlsMissing,
            Self::NoIdentity => RefusalCode::TlsNoIdentity,
            Self::Generated => RefusalCode::TlsGenerated,
            Self::NoKey => RefusalCode::TlsNoKey,
            Self::OtherKey => RefusalCode::TlsOtherKey,
            Self::OtherHash(..) => RefusalCode::TlsOtherHash,
            Self::NoSuite(_) => RefusalCode::TlsNoSuite,
            Self::Broken(_) => RefusalCode::TlsBroken,
        }
    }
}

impl fmt::Display for TlsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clear => f.write_str("the connection does not use TLS: nvme connect --tls"),
            Self::NoIdentity => {
                f.write_str("the host sent no PSK identity: insert its key (nvme check-tls-key --identity=1 --insert)")
            }
            Self::Generated => {
                f.write_str("secure channel concatenation is not supported: nvme connect --tls, not --concat")
            }
            Self::NoKey => f.write_str("no group of this host has TLS keys: configure one, or check both NQNs"),
            Self::OtherKey => f.write_str("the host has another key: configure the same key on both sides"),
            Self::OtherHash(ours, theirs) => write!(
                f,
                "the host's key has the hash {theirs:?}, the key of its group {ours:?}: configure the same key on both \
                 sides"
            ),
            Self::NoSuite(hash) => write!(
                f,
                "the host's key has the hash {hash:?}, but the host does not offer its cipher suite: allow it, or make \
                 a key with the other hash (nvme gen-tls-key --hmac)"
            ),
            Self::Broken(Hash::SHA384) => f.write_str(
                "the host ended the handshake, or derives another key: GnuTLS before 3.8.11 uses SHA-256 for every \
                 key; update GnuTLS and tlshd, or make a key with nvme gen-tls-key --hmac=1",
            ),
            Self::Broken(_) => {
                f.write_str("the host ended the handshake, or has another key: configure the same key on both sides")
            }
        }
    }
}

/// A record of the audit log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A host was admitted or refused.
    Login {
        /// The Connect command.
        attempt: LoginAttempt,
        /// The group of the host.
        group: Option<Arc<str>>,
        /// The result of the authentication.
        authenticated: Option<Authenticated>,
        /// The outcome.
        outcome: Result<(), Reason>,
    },
    /// A TLS handshake failed.
    TlsRefused {
        /// The address of the host.
        source: SocketAddr,
        /// The host NQN of the PSK identity, if one was received.
        host: Option<Arc<str>>,
        /// The reason.
        why: TlsRefusal,
    },
    /// The number of refusals that were not recorded.
    Omitted(u64),
}

impl Record {
    /// The code of a refusal, the transport, the address of the host, and the NQN of the subsystem that it wanted, if
    /// it named one.
    #[must_use]
    pub fn refused(&self) -> Option<(RefusalCode, &'static str, SocketAddr, &str)> {
        match self {
            Self::Login { attempt, outcome: Err(why), .. } => {
                Some((why.code(), attempt.transport, attempt.source, &attempt.subsystem))
            }
            Self::TlsRefused { source, why, .. } => Some((why.code(), TCP_WORD, *source, "")),
            Self::Login { .. } | Self::Omitted(_) => None,
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (attempt, group, authenticated, outcome) = match self {
            Self::Login { attempt, group, authenticated, outcome } => (attempt, group, authenticated, outcome),
            Self::TlsRefused { source, host, why } => {
                write!(f, "login refused reason=\"TLS was not established: {why}\" source={source} tls=1.3")?;
                return host.as_ref().map_or(Ok(()), |host| write!(f, " host=\"{}\"", shown(host)));
            }
            Self::Omitted(count) => return write!(f, "{count} more refused logins are not listed"),
        };
        match outcome {
            Ok(()) => f.write_str("login accepted")?,
            Err(reason) => write!(f, "login refused reason=\"{reason}\"")?,
        }
        let kind = if attempt.kind == Kind::Discovery { "discovery" } else { "normal" };
        write!(f, " source={} session={kind} host=\"{}\"", attempt.source, shown(&attempt.host))?;
        write!(f, " subsystem=\"{}\" queue={}", shown(&attempt.subsystem), attempt.queue)?;
        if let Some(group) = group {
            write!(f, " group=\"{}\"", shown(group))?;
        }
        if attempt.tls_peer.is_some() {
            f.write_str(" tls=1.3")?;
        }
        match authenticated {
            Some(Authenticated { user, by: (hash, group) }) => {
                write!(f, " user=\"{}\" dhchap={hash:?},{group:?}", shown(user))
            }
            None => Ok(()),
        }
    }
}

/// Decides which hosts may connect, and which of them must authenticate first.
pub struct Authenticator {
    subsystems: Arc<SubsystemRegistry>,
    throttle: Arc<Mutex<Throttle>>,
    random: Random,
    sink: Sink,
    pace: Mutex<Pace>,
    /// Where refused hosts are counted.
    hosts: OnceLock<Arc<Hosts>>,
    /// Takes all refusals.
    refusals: OnceLock<Arc<RefusalSink>>,
}

impl Authenticator {
    /// The authenticator of these subsystems. `throttle` delays sources after failures; other authenticators may share
    /// it.
    #[must_use]
    pub fn new(
        subsystems: Arc<SubsystemRegistry>,
        throttle: Arc<Mutex<Throttle>>,
        random: Random,
        sink: Sink,
    ) -> Arc<Self> {
        Arc::new(Self {
            subsystems,
            throttle,
            random,
            sink,
            pace: Mutex::default(),
            hosts: OnceLock::new(),
            refusals: OnceLock::new(),
        })
    }

    /// An authenticator for tests of other parts: no records, no authentication.
    #[must_use]
    pub fn quiet(subsystems: Arc<SubsystemRegistry>) -> Arc<Self> {
        Self::new(subsystems, Arc::default(), Box::new(|_| false), Box::new(|_| {}))
    }

    /// A subsystem, or the discovery service, in its current state.
    fn subsystem(&self, nqn: &str) -> Option<Arc<Subsystem>> {
        let directory = self.subsystems.directory();
        match nqn {
            DISCOVERY_NQN => Some(directory.discovery().clone()),
            name => directory.subsystem(name).cloned(),
        }
    }

    /// The access rules of a subsystem.
    fn access(&self, subsystem: &str) -> Option<Arc<Access>> {
        self.subsystem(subsystem).map(|entry| entry.access.clone())
    }

    /// The throttle of failed authentications and of Connect commands.
    #[must_use]
    pub fn throttling(&self) -> Arc<Mutex<Throttle>> {
        self.throttle.clone()
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A host asks for a controller: the time that it must wait. I/O queues are not delayed: a host connects as many at
    /// once as it has processors.
    ///
    /// # Errors
    /// The source sends too many Connect commands.
    pub fn arrive(&self, source: SocketAddr, now: Instant) -> Result<Duration, Reason> {
        self.throttle().arrive(source.ip(), now).ok_or(Reason::TooOften)
    }

    /// Decides whether a host may connect a queue.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub fn admit(&self, attempt: &LoginAttempt) -> Result<Entry, Reason> {
        let subsystem = self.subsystem(&attempt.subsystem).ok_or(Reason::NotShown)?;
        let access = &subsystem.access;
        let group =
            access.admit(&attempt.host.to_ascii_lowercase(), attempt.source.ip()).map_err(|code| match code {
                RefusalCode::WrongNetwork => Reason::WrongNetwork,
                _ => Reason::NotShown,
            })?;
        let (credentials, map): (&Credentials, _) = match attempt.kind {
            // Any host may use discovery. The discovery log page depends on the host.
            Kind::Discovery => (access.discovery(), None),
            Kind::Io => (&group.credentials, group.map.clone()),
        };
        match &attempt.tls_peer {
            Some(tls_peer) if !self.opens(tls_peer, attempt, group) => return Err(Reason::TlsMismatch),
            // Discovery without TLS is allowed: the log page tells the host that it needs TLS.
            None if !group.tls_keys.is_empty() && attempt.kind == Kind::Io => return Err(Reason::TlsRequired),
            _ => {}
        }
        let entry = Entry { group: group.name.clone(), map, participants: None };
        if credentials.users.is_empty() {
            return Ok(entry);
        }
        let users = users(&credentials.users, &attempt.host);
        if users.is_empty() {
            return Err(Reason::NoKey);
        }
        let participants = Participants {
            host: attempt.host.clone(),
            subsystem: attempt.subsystem.clone(),
            users,
            own: credentials.target.as_ref().and_then(|own| Key::parse(own.secret.bytes()).ok()),
            terms: subsystem.terms.clone(),
        };
        Ok(Entry { participants: Some(Arc::new(participants)), ..entry })
    }

    /// Whether a TLS connection fits this Connect command of a host in this group.
    fn opens(&self, tls_peer: &TlsPeer, attempt: &LoginAttempt, group: &Group) -> bool {
        let holds = |group: &Group| accounts(&group.tls_keys, &attempt.host).any(|own| own.secret == tls_peer.key);
        let is_shown = match attempt.kind {
            Kind::Io => tls_peer.subsystem == attempt.subsystem && holds(group),
            // A host that may connect to any subsystem may use discovery, whichever subsystem its PSK identity names.
            Kind::Discovery => {
                let host = attempt.host.to_ascii_lowercase();
                let group = |entry: &Arc<Subsystem>| entry.access.group(&host, attempt.source.ip()).cloned();
                self.subsystems.directory().subsystems().filter_map(group).any(|group| holds(&group))
            }
        };
        tls_peer.host == attempt.host && is_shown
    }

    /// The TLS peer with this PSK identity, and the key of its connection.
    ///
    /// # Errors
    /// The reason why the identity is not accepted.
    pub fn tls_psk(&self, identity: &str) -> Result<(Arc<TlsPeer>, Offer), TlsRefusal> {
        let Claim { is_retained, hash, host, subsystem } = Claim::parse(identity).ok_or(TlsRefusal::NoIdentity)?;
        if !is_retained {
            return Err(TlsRefusal::Generated);
        }
        let access = self.access(subsystem).ok_or(TlsRefusal::NoKey)?;
        let name = host.to_ascii_lowercase();
        let mut why = TlsRefusal::NoKey;
        for account in access.tls_keys(&name).flat_map(|all| accounts(all, host)) {
            let Ok(key) = ConfiguredPsk::parse(account.secret.bytes()) else { continue };
            if key.hash() != hash {
                // A key with the right hash says more about the mistake than a key with another hash.
                why = if why == TlsRefusal::OtherKey { why } else { TlsRefusal::OtherHash(key.hash(), hash) };
                continue;
            }
            why = TlsRefusal::OtherKey;
            if let Some(offer) = key.offers(host, subsystem).into_iter().find(|offer| offer.identity == identity) {
                let key = account.secret.clone();
                return Ok((Arc::new(TlsPeer { host: host.into(), subsystem: subsystem.into(), key }), offer));
            }
        }
        Err(why)
    }

    /// The TLS peer that a host is which uses a key that is configured for it; `None` if there is none.
    #[must_use]
    pub fn tls_peer(&self, host: &str, subsystem: &str) -> Option<Arc<TlsPeer>> {
        let (access, name) = (self.access(subsystem)?, host.to_ascii_lowercase());
        let account = access.tls_keys(&name).flat_map(|all| accounts(all, host)).next()?.clone();
        Some(Arc::new(TlsPeer { host: host.into(), subsystem: subsystem.into(), key: account.secret }))
    }

    /// Whether a host must use TLS to connect to a subsystem.
    #[must_use]
    pub fn requires_tls(&self, subsystem: &str, host: &str, source: IpAddr) -> bool {
        let access = self.access(subsystem);
        let group = access.as_ref().and_then(|access| access.group(&host.to_ascii_lowercase(), source));
        group.is_some_and(|group| !group.tls_keys.is_empty())
    }

    /// The parameters and the random bytes of a new exchange.
    ///
    /// # Errors
    /// The reason code of the failure message.
    pub(super) fn welcome(&self, attempt: &LoginAttempt) -> Result<(Arc<Participants>, Zeroizing<Vec<u8>>), Why> {
        let entry = self.admit(attempt).map_err(|_| Why::FAILED)?;
        // The group requires no authentication, so there are no keys to authenticate with.
        let participants = entry.participants.ok_or(Why::PROTOCOL)?;
        let mut random = Zeroizing::new(vec![0; RANDOM]);
        if (self.random)(&mut random) { Ok((participants, random)) } else { Err(Why::FAILED) }
    }

    /// The delay before a reply is checked; `None` if too many replies of this source are waiting.
    pub(super) fn turn(&self, attempt: &LoginAttempt, now: Instant) -> Option<Duration> {
        self.throttle().turn(attempt.source.ip(), now)
    }

    /// A reply was wrong: the additional delay of the failure message. The failure counts against the source and the
    /// host NQN.
    pub(super) fn failed(&self, attempt: &LoginAttempt, now: Instant) -> Duration {
        self.throttle().failed(attempt.source.ip(), &attempt.host, now)
    }

    /// A reply was right.
    pub(super) fn succeeded(&self, attempt: &LoginAttempt) {
        self.throttle().succeeded(&attempt.host);
    }

    /// A host was admitted. I/O queues are not recorded: a host has as many as processors.
    pub fn entered(&self, attempt: &LoginAttempt, authenticated: Option<&Authenticated>, now: Instant) {
        if attempt.queue == 0 {
            self.record(attempt, authenticated, Ok(()), now);
        }
    }

    /// A host was refused.
    pub fn refused(&self, attempt: &LoginAttempt, reason: Reason, now: Instant) {
        self.record(attempt, None, Err(reason), now);
    }

    /// TLS was not established with a source; `host` is the NQN of the PSK identity, if one was received.
    pub fn tls_refused(&self, source: SocketAddr, host: Option<Arc<str>>, why: TlsRefusal, now: Instant) {
        self.report(&Refusal {
            transport: TCP_WORD,
            code: why.code(),
            host: host.as_deref().unwrap_or_default(),
            source: source.ip(),
            target: "",
            user: "",
            portal_group: None,
            detail: &why.to_string(),
        });
        if self.is_written(false, now) {
            (self.sink)(&Record::TlsRefused { source, host, why });
        }
    }

    /// Whether the outcome of a login is recorded. A count of the omitted records precedes it.
    fn is_written(&self, ended_well: bool, now: Instant) -> bool {
        let (omitted, is_written) = self.pace.lock().unwrap_or_else(PoisonError::into_inner).look(ended_well, now);
        if let Some(count) = omitted {
            (self.sink)(&Record::Omitted(count));
        }
        is_written
    }

    /// Counts refused hosts in this table and reports them from now on.
    pub fn report_refusals(&self, hosts: &Arc<Hosts>, refusals: &Arc<RefusalSink>) {
        // There is one table and one sink in a process.
        let _ = (self.hosts.set(hosts.clone()), self.refusals.set(refusals.clone()));
    }

    fn report(&self, refusal: &Refusal<'_>) {
        if let Some(hosts) = self.hosts.get() {
            hosts.refused(refusal.transport, refusal.code.word(), refusal.target, refusal.host);
        }
        if let Some(refusals) = self.refusals.get() {
            refusals(refusal);
        }
    }

    fn record(
        &self,
        attempt: &LoginAttempt,
        authenticated: Option<&Authenticated>,
        outcome: Result<(), Reason>,
        now: Instant,
    ) {
        if let Err(reason) = outcome {
            let (portal_group, detail) = match reason {
                Reason::OtherPortal(group) => (Some(group), String::new()),
                Reason::Protocol(why) | Reason::Doubts(why) => (None, format!("{why:?}")),
                _ => (None, String::new()),
            };
            self.report(&Refusal {
                transport: attempt.transport,
                code: reason.code(),
                host: &attempt.host,
                source: attempt.source.ip(),
                target: &attempt.subsystem,
                user: "",
                portal_group,
                detail: &detail,
            });
        }
        if self.is_written(outcome.is_ok(), now) {
            let access = self.access(&attempt.subsystem);
            let group = access.as_ref().and_then(|access| {
                access.group(&attempt.host.to_ascii_lowercase(), attempt.source.ip()).map(|group| group.name.clone())
            });
            (self.sink)(&Record::Login {
                attempt: attempt.clone(),
                group,
                authenticated: authenticated.cloned(),
                outcome,
            });
        }
    }
}

/// The accounts of a host: those named by its NQN if there are any, otherwise those whose name is no NQN.
fn accounts<'a>(all: &'a [Account], host: &str) -> impl Iterator<Item = &'a Account> {
    let is_named = |account: &Account| account.name.eq_ignore_ascii_case(host);
    let has_own = all.iter().any(is_named);
    let host = host.to_owned();
    all.iter().filter(move |account| match has_own {
        true => account.name.eq_ignore_ascii_case(&host),
        false => !account.name.starts_with(NQN),
    })
}

/// The DH-HMAC-CHAP keys of a host.
fn users(all: &[Account], host: &str) -> Vec<(Arc<str>, Key)> {
    let key = |account: &Account| Some((account.name.clone(), Key::parse(account.secret.bytes()).ok()?));
    accounts(all, host).filter_map(key).collect()
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authenticator({:?})", self.subsystems)
    }
}

#[cfg(test)]
#[path = "authenticator_tests.rs"]
mod tests;
