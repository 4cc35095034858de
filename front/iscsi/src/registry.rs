//! The sessions of all cores, by name: which session a login replaces (RFC 7143 6.3.5), and which TSIH is free. Used
//! only by logins and logouts.

use crate::authenticator::audit::LoginDetails;
use crate::config::Transport;
use crate::displaced::{Displaced, SharedName};
use crate::keys::Parameters;
use crate::login::Candidate;
use crate::wire::LoginStatus;
use lunar_core::pace::host;
use lunar_core::time::Instant;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Normal sessions. An idle one takes some 20 KiB, so this is some 300 MB.
pub const SESSIONS_MAX: usize = 16 << 10;
/// Discovery sessions, apart from normal ones. Each ends by itself after `DISCOVERY_LIFETIME`.
pub const DISCOVERY_MAX: usize = 1024;
/// Discovery sessions of one host: initiators ask and log out within a second, so this is a rack behind one address.
/// One more ends the oldest of its host.
pub const DISCOVERY_PER_HOST_MAX: usize = 64;
/// From this limit of sessions on, hosts share it. A smaller limit is chosen for a few hosts, which may use all of it.
const SHARED_MIN: usize = 256;
/// The part of the places for sessions that is left to hosts with few sessions.
const RESERVE_PART: usize = 8;
/// A host has few sessions if it has at most this part of the places.
const FLOOR_PART: usize = 64;

/// Where a session is served.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionLocation {
    /// The core.
    pub core: usize,
    /// The number of the connection on that core, among those of its transport.
    pub connection: u64,
    /// Its transport.
    pub transport: Transport,
}

/// An entry of the list of sessions.
#[derive(Clone, Debug)]
pub struct SessionRecord {
    /// The names and identifiers of the session.
    pub candidate: Candidate,
    /// The names and the address of its login.
    pub login: LoginDetails,
    /// The tag of its portal group.
    pub group: u16,
    /// The relative identifier of its target port; zero for a discovery session.
    pub port: u16,
    /// Where it is served.
    pub location: SessionLocation,
    /// When it was registered.
    pub since: Instant,
    /// The negotiated parameters, which a connection that is reinstated continues with.
    pub parameters: Parameters,
}

/// The sessions of all targets.
#[derive(Debug, Default)]
pub struct Registry(Mutex<Sessions>);

#[derive(Debug, Default)]
struct Sessions {
    /// The TSIH of each normal session, by its I_T nexus.
    nexuses: BTreeMap<NexusKey, u16>,
    /// All sessions, by TSIH.
    records: BTreeMap<u16, SessionRecord>,
    /// The numbers of normal sessions: of each target that has any, of each host, and in all.
    counts: BTreeMap<Arc<str>, usize>,
    hosts: BTreeMap<IpAddr, usize>,
    normal: usize,
    /// The discovery sessions that have not been ended, the oldest first, with their hosts.
    discovery: Vec<(u16, IpAddr)>,
    last: u16,
    /// The sessions that were replaced from other addresses.
    displaced: Displaced,
}

impl Sessions {
    /// Whether a session more of this host is within the limit of all sessions. With a session of each of eight hosts
    /// left, no host can lock out another one.
    fn has_place(&self, host: IpAddr, limit: usize) -> bool {
        let of_host = self.hosts.get(&host).copied().unwrap_or(0);
        let is_few = of_host < (limit / FLOOR_PART).max(1);
        let reserve = if limit < SHARED_MIN || is_few { 0 } else { limit / RESERVE_PART };
        self.normal + reserve < limit
    }

    /// Whether a session more of this host at a target is within all limits.
    fn admits(&self, host: IpAddr, (target, most): (&str, usize), most_in_all: usize) -> bool {
        let count = self.counts.get(target).copied().unwrap_or(0);
        self.has_place(host, most_in_all.min(SESSIONS_MAX)) && count < most
    }

    fn next_tsih(&mut self) -> u16 {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.records.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Makes room for a discovery session of this host: ends the oldest of the host, or of the host that has the most.
    fn end_discovery(&mut self, host: IpAddr) -> Option<SessionLocation> {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        self.discovery.iter().for_each(|(_, other)| *counts.entry(*other).or_default() += 1);
        let from = if counts.get(&host).is_some_and(|count| *count >= DISCOVERY_PER_HOST_MAX) {
            host
        } else if self.discovery.len() >= DISCOVERY_MAX {
            counts.into_iter().max_by_key(|(_, count)| *count)?.0
        } else {
            return None;
        };
        let at = self.discovery.iter().position(|(_, other)| *other == from)?;
        let (tsih, _) = self.discovery.remove(at);
        self.records.get(&tsih).map(|record| record.location)
    }

    fn register_discovery(&mut self, record: SessionRecord) -> RegisteredSession {
        let host = host(record.login.source.ip());
        let replaced = self.end_discovery(host);
        let tsih = self.next_tsih();
        self.records.insert(tsih, record);
        self.discovery.push((tsih, host));
        RegisteredSession { tsih, replaced }
    }

    /// The session whose only connection a login reinstates (RFC 7143 6.3.4): same names, portal group, TSIH and CID.
    ///
    /// # Errors
    /// The status that refuses the login. A stranger does not learn which TSIHs are in use.
    fn reinstated(&self, candidate: &Candidate, port: u16) -> Result<&SessionRecord, LoginStatus> {
        let record = self.records.get(&candidate.tsih).ok_or(LoginStatus::NO_SUCH_SESSION)?;
        if candidate.discovery || self.nexuses.get(&key(candidate, port)) != Some(&candidate.tsih) {
            return Err(LoginStatus::NO_SUCH_SESSION);
        }
        // A connection continues with the parameters of the session, which are others over RDMA.
        if record.location.transport != candidate.transport {
            return Err(LoginStatus::NO_SUCH_SESSION);
        }
        // MaxConnections is 1.
        if record.candidate.cid == candidate.cid { Ok(record) } else { Err(LoginStatus::TOO_MANY_CONNECTIONS) }
    }

    fn add(&mut self, target: Arc<str>, host: IpAddr) {
        *self.counts.entry(target).or_insert(0) += 1;
        *self.hosts.entry(host).or_insert(0) += 1;
        self.normal += 1;
    }
}

/// Counts one less.
fn subtract<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => *count -= 1,
        _ => drop(counts.remove(key)),
    }
}

/// A session that was registered.
#[derive(Debug)]
pub struct RegisteredSession {
    /// Its TSIH.
    pub tsih: u16,
    /// The session of the same I_T nexus, which must end before this one begins.
    pub replaced: Option<SessionLocation>,
}

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        // Every change is one insert or remove, so a panic of another thread leaves the sessions consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the TSIH of a login to this target port. Returns the parameters of the session whose connection it
    /// reinstates; `None`: it begins a session.
    ///
    /// # Errors
    /// The status that refuses the login.
    pub fn check_tsih(&self, candidate: &Candidate, port: u16) -> Result<Option<Parameters>, LoginStatus> {
        match candidate.tsih {
            0 => Ok(None),
            _ => self.lock().reinstated(candidate, port).map(|record| Some(record.parameters)),
        }
    }

    /// Registers a session and gives it a TSIH, which stays the same if its connection is reinstated. A target has at
    /// most `most` sessions, and all targets together `most_in_all`. A session that replaces another one needs no
    /// place, and a discovery session takes none.
    ///
    /// # Errors
    /// When a limit is reached, or when the session of the TSIH has ended.
    pub fn register(
        &self,
        record: SessionRecord,
        most: usize,
        most_in_all: usize,
    ) -> Result<RegisteredSession, LoginStatus> {
        let mut sessions = self.lock();
        let target = record.candidate.target.clone().filter(|_| !record.candidate.discovery);
        if record.candidate.tsih != 0 {
            let tsih = record.candidate.tsih;
            let replaced = Some(sessions.reinstated(&record.candidate, record.port)?.location);
            sessions.records.insert(tsih, record);
            return Ok(RegisteredSession { tsih, replaced });
        }
        let Some(target) = target else { return Ok(sessions.register_discovery(record)) };
        let (nexus, host) = (key(&record.candidate, record.port), host(record.login.source.ip()));
        let replaces = sessions.nexuses.contains_key(&nexus);
        if !replaces && !sessions.admits(host, (&target, most), most_in_all) {
            return Err(LoginStatus::OUT_OF_RESOURCES);
        }
        let (tsih, now, source) = (sessions.next_tsih(), record.since, record.login.source.ip());
        let initiator = record.candidate.initiator.clone();
        sessions.records.insert(tsih, record);
        sessions.add(target, host);
        let replaced = sessions.nexuses.insert(nexus, tsih).and_then(|old| sessions.records.get(&old));
        let replaced = replaced.map(|old| (old.location, old.login.source.ip()));
        if let Some((_, from)) = replaced {
            sessions.displaced.add(&initiator, from, source, now);
        }
        let replaced = replaced.map(|(location, _)| location);
        Ok(RegisteredSession { tsih, replaced })
    }

    /// The initiator names that two machines use, because they end the sessions of each other.
    #[must_use]
    pub fn shared_names(&self, now: Instant) -> Vec<SharedName> {
        self.lock().displaced.shared_names(now)
    }

    /// Whether a session more of an initiator at this address is within the limits of its target and of all targets.
    #[must_use]
    pub fn admits(&self, source: IpAddr, (target, most): (&str, usize), most_in_all: usize) -> bool {
        self.lock().admits(host(source), (target, most), most_in_all)
    }

    /// Removes a session that was served at this location and has ended.
    pub fn remove(&self, tsih: u16, location: SessionLocation) {
        let mut sessions = self.lock();
        // The TSIH may belong to the connection that has reinstated this one.
        if sessions.records.get(&tsih).is_none_or(|record| record.location != location) {
            return;
        }
        let Some(SessionRecord { candidate, port, login, .. }) = sessions.records.remove(&tsih) else { return };
        let Some(target) = candidate.target.clone().filter(|_| !candidate.discovery) else {
            return sessions.discovery.retain(|(other, _)| *other != tsih);
        };
        let nexus = key(&candidate, port);
        // The nexus may belong to the session that has replaced this one.
        if sessions.nexuses.get(&nexus) == Some(&tsih) {
            sessions.nexuses.remove(&nexus);
        }
        subtract(&mut sessions.counts, &target);
        subtract(&mut sessions.hosts, &host(login.source.ip()));
        sessions.normal -= 1;
    }

    /// The locations of the normal sessions of a target.
    #[must_use]
    pub fn locations(&self, target: &str) -> Vec<SessionLocation> {
        let sessions = self.lock();
        let of_it =
            |record: &&SessionRecord| !record.candidate.discovery && record.candidate.target.as_deref() == Some(target);
        sessions.records.values().filter(of_it).map(|record| record.location).collect()
    }

    /// All sessions with their TSIHs.
    #[must_use]
    pub fn records(&self) -> Vec<(u16, SessionRecord)> {
        self.lock().records.iter().map(|(tsih, record)| (*tsih, record.clone())).collect()
    }

    /// The session with this TSIH.
    #[must_use]
    pub fn record(&self, tsih: u16) -> Option<SessionRecord> {
        self.lock().records.get(&tsih).cloned()
    }

    /// The number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().records.len()
    }

    /// Whether there are no sessions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Identifies an I_T nexus (RFC 7143 4.4.3): initiator name, ISID, and target port, which is a portal group of a
/// target.
type NexusKey = (Arc<str>, [u8; 6], u16);

fn key(candidate: &Candidate, port: u16) -> NexusKey {
    (candidate.initiator.clone(), candidate.isid, port)
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
