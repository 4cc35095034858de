//! Who may come in, one for all cores: whether a host has to prove its name, by which keys, how often it may fail, and
//! who is told of it. Decides, and does nothing else: randomness and the log come from its maker.

use super::exchange::{Party, Proven, RANDOM};
use super::key::Key;
use super::psk::{self, ChannelKey};
use super::wire::Why;
use crate::connect::DISCOVERY_NQN;
use crate::controller::Kind;
use crate::directory::{Board, Entry as Subsystem};
use lunar_core::access::audit::{Pace, shown};
use lunar_core::access::throttle::Throttle;
use lunar_core::access::{Access, Account, Group, Proofs, Secret};
use lunar_core::time::Instant;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zeroize::Zeroizing;

/// Fills memory with random bytes, as good as those of secrets; tells whether it could.
pub type Random = Box<dyn Fn(&mut [u8]) -> bool + Send + Sync>;
/// Takes records of the audit; at most [`REFUSALS_PER_SECOND`](lunar_core::access::audit::REFUSALS_PER_SECOND) and a
/// few of refusals.
pub type Sink = Box<dyn Fn(&Record) + Send + Sync>;

/// What the names of hosts begin with.
const NQN: &str = "nqn.";

/// What is known of the other end of a secure channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bearer {
    /// NQN of the host that it said it is.
    pub host: Arc<str>,
    /// NQN of the subsystem that it said it wants.
    pub subsystem: Arc<str>,
    /// The key that it knows. Others may be of other groups, which see something else.
    pub key: Secret,
}

/// Who wants a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Visitor {
    /// NQN of the host.
    pub host: Arc<str>,
    /// NQN of the subsystem that it wants.
    pub subsystem: Arc<str>,
    /// What it wants of it.
    pub kind: Kind,
    /// Which queue.
    pub queue: u16,
    /// Where it comes from.
    pub source: SocketAddr,
    /// Whose secure channel it comes by.
    pub channel: Option<Arc<Bearer>>,
}

/// What is known of a visitor that may come in, or has to prove its name first.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The group that it belongs to.
    pub group: Arc<str>,
    /// The name of the map that says which units it sees; without, it sees all.
    pub map: Option<Arc<str>>,
    /// How it has to prove its name, if it has to.
    pub party: Option<Arc<Party>>,
}

/// Why somebody was not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// No group fits its name and address.
    NotShown,
    /// It has to prove its name, and no secret of its group is a key of NVMe that it may use.
    NoKey,
    /// It comes without a secure channel, and has to have one.
    NoChannel,
    /// It comes by the secure channel of another host, for another subsystem, or by a key that is not its group's.
    OtherChannel,
    /// It knows none of the keys.
    WrongAnswer,
    /// Its source fails too often.
    TooMany,
    /// So many connects from there that it is not looked at.
    TooOften,
    /// There is no such subsystem, or not at this portal.
    NoSubsystem,
    /// Others took the last places while it proved its name.
    Full,
    /// It broke the protocol, or nothing could be agreed.
    Protocol(Why),
    /// It does not believe us, or has given up.
    Doubts(Why),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotShown => f.write_str("no group fits"),
            Self::NoKey => f.write_str("no key for this host"),
            Self::NoChannel => f.write_str("no secure channel"),
            Self::OtherChannel => f.write_str("the secure channel of another host, subsystem or group"),
            Self::WrongAnswer => f.write_str("wrong key"),
            Self::TooMany => f.write_str("too many failures from there"),
            Self::TooOften => f.write_str("too many connects from there"),
            Self::NoSubsystem => f.write_str("no such subsystem"),
            Self::Full => f.write_str("too many controllers"),
            Self::Protocol(why) => write!(f, "{why:?}"),
            Self::Doubts(why) => write!(f, "the host gives up: {why:?}"),
        }
    }
}

/// What is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A host has come in, or has not.
    Login {
        /// Who.
        visitor: Visitor,
        /// The group that it belongs to.
        group: Option<Arc<str>>,
        /// How it has proved its name.
        proven: Option<Proven>,
        /// How it ended.
        outcome: Result<(), Reason>,
    },
    /// Hands were not shaken for a secure channel.
    Channel {
        /// Where it comes from.
        source: SocketAddr,
        /// The host that it said it is, if it came that far.
        host: Option<Arc<str>>,
    },
    /// So many refusals were not written.
    Omitted(u64),
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (visitor, group, proven, outcome) = match self {
            Self::Login { visitor, group, proven, outcome } => (visitor, group, proven, outcome),
            Self::Channel { source, host } => {
                write!(f, "login refused reason=\"no secure channel was agreed\" source={source} channel=TLS1.3")?;
                return host.as_ref().map_or(Ok(()), |host| write!(f, " host=\"{}\"", shown(host)));
            }
            Self::Omitted(count) => return write!(f, "{count} more refused logins are not listed"),
        };
        match outcome {
            Ok(()) => f.write_str("login accepted")?,
            Err(reason) => write!(f, "login refused reason=\"{reason}\"")?,
        }
        let kind = if visitor.kind == Kind::Discovery { "discovery" } else { "normal" };
        write!(f, " source={} session={kind} host=\"{}\"", visitor.source, shown(&visitor.host))?;
        write!(f, " subsystem=\"{}\" queue={}", shown(&visitor.subsystem), visitor.queue)?;
        if let Some(group) = group {
            write!(f, " group=\"{}\"", shown(group))?;
        }
        if visitor.channel.is_some() {
            f.write_str(" channel=TLS1.3")?;
        }
        match proven {
            Some(Proven { user, by: (hash, group) }) => {
                write!(f, " user=\"{}\" dhchap={hash:?},{group:?}", shown(user))
            }
            None => Ok(()),
        }
    }
}

/// Who may come in.
pub struct Guard {
    board: Arc<Board>,
    throttle: Arc<Mutex<Throttle>>,
    random: Random,
    sink: Sink,
    pace: Mutex<Pace>,
}

impl Guard {
    /// The guard of a subsystem. Failures cost the same as those of others who go by this throttle.
    #[must_use]
    pub fn new(board: Arc<Board>, throttle: Arc<Mutex<Throttle>>, random: Random, sink: Sink) -> Arc<Self> {
        Arc::new(Self { board, throttle, random, sink, pace: Mutex::default() })
    }

    /// One for tests of other things: it tells nobody, and hosts prove nothing.
    #[must_use]
    pub fn quiet(board: Arc<Board>) -> Arc<Self> {
        Self::new(board, Arc::default(), Box::new(|_| false), Box::new(|_| {}))
    }

    /// A subsystem, or the discovery service, as it is at this moment.
    fn subsystem(&self, nqn: &str) -> Option<Arc<Subsystem>> {
        let directory = self.board.directory();
        match nqn {
            DISCOVERY_NQN => Some(directory.discovery().clone()),
            name => directory.subsystem(name).cloned(),
        }
    }

    /// Who may come in there.
    fn access(&self, subsystem: &str) -> Option<Arc<Access>> {
        self.subsystem(subsystem).map(|entry| entry.access.clone())
    }

    /// What failures cost, and how often somebody may come.
    #[must_use]
    pub fn throttling(&self) -> Arc<Mutex<Throttle>> {
        self.throttle.clone()
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody wants a controller: how long he has to wait until he may have one. Queues of a controller that there is
    /// come as many at once as a host has processors.
    ///
    /// # Errors
    /// He comes too often.
    pub fn arrive(&self, source: SocketAddr, now: Instant) -> Result<Duration, Reason> {
        self.throttle().arrive(source.ip(), now).ok_or(Reason::TooOften)
    }

    /// Somebody wants a queue.
    ///
    /// # Errors
    /// Why it gets none.
    pub fn knock(&self, visitor: &Visitor) -> Result<Entry, Reason> {
        let subsystem = self.subsystem(&visitor.subsystem).ok_or(Reason::NotShown)?;
        let access = &subsystem.access;
        let group = access.group(&visitor.host.to_ascii_lowercase(), visitor.source.ip()).ok_or(Reason::NotShown)?;
        let (proofs, map): (&Proofs, _) = match visitor.kind {
            // All may ask what there is; what they are told is another matter.
            Kind::Discovery => (access.discovery(), None),
            Kind::Io => (&group.proofs, group.map.clone()),
        };
        match &visitor.channel {
            Some(bearer) if !self.opens(bearer, visitor, group) => return Err(Reason::OtherChannel),
            // Who only asks what there is learns that it needs one.
            None if !group.channels.is_empty() && visitor.kind == Kind::Io => return Err(Reason::NoChannel),
            _ => {}
        }
        let entry = Entry { group: group.name.clone(), map, party: None };
        if proofs.users.is_empty() {
            return Ok(entry);
        }
        let users = users(&proofs.users, &visitor.host);
        if users.is_empty() {
            return Err(Reason::NoKey);
        }
        let party = Party {
            host: visitor.host.clone(),
            subsystem: visitor.subsystem.clone(),
            users,
            own: proofs.target.as_ref().and_then(|own| Key::parse(own.secret.bytes()).ok()),
            terms: subsystem.terms.clone(),
        };
        Ok(Entry { party: Some(Arc::new(party)), ..entry })
    }

    /// Whether a secure channel is one for this visitor, who belongs to this group.
    fn opens(&self, bearer: &Bearer, visitor: &Visitor, group: &Group) -> bool {
        let holds = |group: &Group| accounts(&group.channels, &visitor.host).any(|own| own.secret == bearer.key);
        let is_shown = match visitor.kind {
            Kind::Io => bearer.subsystem == visitor.subsystem && holds(group),
            // Whoever comes in somewhere may ask what there is, whichever subsystem the channel was made for.
            Kind::Discovery => {
                let host = visitor.host.to_ascii_lowercase();
                let group = |entry: &Arc<Subsystem>| entry.access.group(&host, visitor.source.ip()).cloned();
                self.board.directory().subsystems().filter_map(group).any(|group| holds(&group))
            }
        };
        bearer.host == visitor.host && is_shown
    }

    /// Who has this identity at the beginning of a secure channel, and the key of that.
    #[must_use]
    pub fn channel(&self, identity: &str) -> Option<(Arc<Bearer>, Zeroizing<Vec<u8>>)> {
        let (host, subsystem) = psk::names(identity)?;
        let access = self.access(subsystem)?;
        let name = host.to_ascii_lowercase();
        let mut keys = access.channels(&name).flat_map(|all| accounts(all, host));
        keys.find_map(|account| {
            let offers = ChannelKey::parse(account.secret.bytes()).ok()?.offers(host, subsystem);
            let offer = offers.into_iter().find(|offer| offer.identity == identity)?;
            let key = account.secret.clone();
            Some((Arc::new(Bearer { host: host.into(), subsystem: subsystem.into(), key }), offer.key))
        })
    }

    /// Whether a host has to come to a subsystem by a secure channel.
    #[must_use]
    pub fn wants_channel(&self, subsystem: &str, host: &str, source: IpAddr) -> bool {
        let access = self.access(subsystem);
        let group = access.as_ref().and_then(|access| access.group(&host.to_ascii_lowercase(), source));
        group.is_some_and(|group| !group.channels.is_empty())
    }

    /// What a host goes by that begins an exchange.
    ///
    /// # Errors
    /// What it is told if it cannot.
    pub(super) fn welcome(&self, visitor: &Visitor) -> Result<(Arc<Party>, Zeroizing<Vec<u8>>), Why> {
        let entry = self.knock(visitor).map_err(|_| Why::FAILED)?;
        // Nobody has to prove anything, and there is nothing that could be proved by.
        let party = entry.party.ok_or(Why::PROTOCOL)?;
        let mut random = Zeroizing::new(vec![0; RANDOM]);
        if (self.random)(&mut random) { Ok((party, random)) } else { Err(Why::FAILED) }
    }

    /// How long a reply has to wait until it is looked at; `None` if it is one too many.
    pub(super) fn turn(&self, visitor: &Visitor, now: Instant) -> Option<Duration> {
        self.throttle().turn(visitor.source.ip(), now)
    }

    /// A reply was wrong: how much later than its turn that is told. Failures count for the name that it gave.
    pub(super) fn failed(&self, visitor: &Visitor, now: Instant) -> Duration {
        self.throttle().failed(visitor.source.ip(), &visitor.host, now)
    }

    /// A reply was right.
    pub(super) fn succeeded(&self, visitor: &Visitor) {
        self.throttle().succeeded(&visitor.host);
    }

    /// A host has come in. I/O queues of a controller are as many as its processors: they are not told of.
    pub fn entered(&self, visitor: &Visitor, proven: Option<&Proven>, now: Instant) {
        if visitor.queue == 0 {
            self.tell(visitor, proven, Ok(()), now);
        }
    }

    /// A host was not let in.
    pub fn refused(&self, visitor: &Visitor, reason: Reason, now: Instant) {
        self.tell(visitor, None, Err(reason), now);
    }

    /// No secure channel was agreed with a source; `host` is who it said it is, if it came that far.
    pub fn refused_channel(&self, source: SocketAddr, host: Option<Arc<str>>, now: Instant) {
        if self.is_written(false, now) {
            (self.sink)(&Record::Channel { source, host });
        }
    }

    /// Whether the end of a login is written. What was not is told of first.
    fn is_written(&self, ended_well: bool, now: Instant) -> bool {
        let (omitted, is_written) = self.pace.lock().unwrap_or_else(PoisonError::into_inner).look(ended_well, now);
        if let Some(count) = omitted {
            (self.sink)(&Record::Omitted(count));
        }
        is_written
    }

    fn tell(&self, visitor: &Visitor, proven: Option<&Proven>, outcome: Result<(), Reason>, now: Instant) {
        if self.is_written(outcome.is_ok(), now) {
            let access = self.access(&visitor.subsystem);
            let group = access.as_ref().and_then(|access| {
                access.group(&visitor.host.to_ascii_lowercase(), visitor.source.ip()).map(|group| group.name.clone())
            });
            (self.sink)(&Record::Login { visitor: visitor.clone(), group, proven: proven.cloned(), outcome });
        }
    }
}

/// What a host may use: its own, if something is called as it is; otherwise what is not called as hosts are.
fn accounts<'a>(all: &'a [Account], host: &str) -> impl Iterator<Item = &'a Account> {
    let is_named = |account: &Account| account.name.eq_ignore_ascii_case(host);
    let has_own = all.iter().any(is_named);
    let host = host.to_owned();
    all.iter().filter(move |account| match has_own {
        true => account.name.eq_ignore_ascii_case(&host),
        false => !account.name.starts_with(NQN),
    })
}

/// The keys by which a host may prove its name.
fn users(all: &[Account], host: &str) -> Vec<(Arc<str>, Key)> {
    let key = |account: &Account| Some((account.name.clone(), Key::parse(account.secret.bytes()).ok()?));
    accounts(all, host).filter_map(key).collect()
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({:?})", self.board)
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
