//! The sessions of all cores, by name: which session a login replaces (RFC 7143 6.3.5), and which TSIH is free. Used
//! only by logins and logouts.

use crate::authenticator::audit::LoginDetails;
use crate::login::Candidate;
use crate::wire::LoginStatus;
use lunar_core::time::Instant;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sessions, discovery sessions included. An idle one takes some 20 KiB, so this is some 300 MB.
pub const SESSIONS_MAX: usize = 16 << 10;

/// Where a session is served.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionLocation {
    /// The core.
    pub core: usize,
    /// The number of the connection on that core.
    pub connection: u64,
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
    /// The number of normal sessions of each target that has any.
    counts: BTreeMap<Arc<str>, usize>,
    last: u16,
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

    /// Checks the TSIH of a login. A login to an existing session is refused, because a session has one connection.
    ///
    /// # Errors
    /// The status that refuses the login.
    pub fn check_tsih(&self, candidate: &Candidate) -> Result<(), LoginStatus> {
        match candidate.tsih {
            0 => Ok(()),
            tsih if self.lock().records.contains_key(&tsih) => Err(LoginStatus::TOO_MANY_CONNECTIONS),
            _ => Err(LoginStatus::NO_SUCH_SESSION),
        }
    }

    /// Registers a session and gives it a TSIH. A target has at most `most` sessions, and all targets together
    /// `most_in_all`.
    ///
    /// # Errors
    /// When a limit is reached.
    pub fn register(
        &self,
        record: SessionRecord,
        most: usize,
        most_in_all: usize,
    ) -> Result<RegisteredSession, LoginStatus> {
        let mut sessions = self.lock();
        let target = record.candidate.target.clone().filter(|_| !record.candidate.discovery);
        let nexus = key(&record.candidate, record.port);
        let replaces = target.is_some() && sessions.nexuses.contains_key(&nexus);
        let count = target.as_ref().and_then(|target| sessions.counts.get(target)).copied().unwrap_or(0);
        // A session that replaces another one does not count towards the limits.
        if !replaces && (sessions.records.len() >= most_in_all.min(SESSIONS_MAX) || target.is_some() && count >= most) {
            return Err(LoginStatus::OUT_OF_RESOURCES);
        }
        let tsih = loop {
            sessions.last = sessions.last.wrapping_add(1);
            if sessions.last != 0 && !sessions.records.contains_key(&sessions.last) {
                break sessions.last;
            }
        };
        sessions.records.insert(tsih, record);
        let Some(target) = target else { return Ok(RegisteredSession { tsih, replaced: None }) };
        *sessions.counts.entry(target).or_insert(0) += 1;
        let replaced = sessions.nexuses.insert(nexus, tsih);
        let replaced = replaced.and_then(|old| sessions.records.get(&old)).map(|old| old.location);
        Ok(RegisteredSession { tsih, replaced })
    }

    /// Removes a session of a target port, which has ended.
    pub fn remove(&self, candidate: &Candidate, port: u16, tsih: u16) {
        let mut sessions = self.lock();
        if sessions.records.remove(&tsih).is_none() || candidate.discovery {
            return;
        }
        let nexus = key(candidate, port);
        // The nexus may belong to the session that has replaced this one.
        if sessions.nexuses.get(&nexus) == Some(&tsih) {
            sessions.nexuses.remove(&nexus);
        }
        let Some(target) = &candidate.target else { return };
        match sessions.counts.get_mut(target) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(sessions.counts.remove(target)),
        }
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
mod tests {
    use super::*;

    fn candidate(initiator: &str, isid: u8, tsih: u16) -> Candidate {
        Candidate {
            initiator: initiator.into(),
            alias: None,
            target: Some("iqn.2026-01.io.lunar:t".into()),
            discovery: false,
            isid: [0, 0, 0, 0, 0, isid],
            tsih,
            cid: 0,
        }
    }

    fn enter(
        registry: &Registry,
        candidate: &Candidate,
        port: u16,
        location: SessionLocation,
    ) -> Result<RegisteredSession, LoginStatus> {
        let login = LoginDetails::new(candidate, ([192, 0, 2, 1], 4000).into());
        let record =
            SessionRecord { candidate: candidate.clone(), login, group: 1, port, location, since: Instant::default() };
        registry.register(record, SESSIONS_MAX, SESSIONS_MAX)
    }

    const HERE: SessionLocation = SessionLocation { core: 0, connection: 1 };
    const THERE: SessionLocation = SessionLocation { core: 1, connection: 7 };

    #[test]
    fn a_session_of_the_same_nexus_is_replaced_and_another_is_not() {
        let registry = Registry::new();
        let first = enter(&registry, &candidate("a", 1, 0), 1, HERE).expect("room");
        assert_eq!(first.replaced, None);
        assert_eq!(enter(&registry, &candidate("a", 2, 0), 1, HERE).expect("room").replaced, None);
        let second = enter(&registry, &candidate("a", 1, 0), 1, THERE).expect("room");
        assert_eq!(second.replaced, Some(HERE));
        assert_ne!(first.tsih, second.tsih);
        let elsewhere = enter(&registry, &candidate("a", 1, 0), 2, HERE).expect("room");
        assert_eq!(elsewhere.replaced, None, "another target port is another nexus");
        registry.remove(&candidate("a", 1, 0), 2, elsewhere.tsih);
        registry.remove(&candidate("a", 1, 0), 1, first.tsih);
        assert_eq!(enter(&registry, &candidate("a", 1, 0), 1, HERE).expect("room").replaced, Some(THERE));
    }

    #[test]
    fn a_discovery_session_replaces_no_session() {
        let registry = Registry::new();
        let _ = enter(&registry, &candidate("a", 1, 0), 1, HERE).expect("room");
        let discovery = Candidate { discovery: true, ..candidate("a", 1, 0) };
        let registered = enter(&registry, &discovery, 1, THERE).expect("room");
        assert_eq!(registered.replaced, None);
        registry.remove(&discovery, 1, registered.tsih);
        assert_eq!(registry.len(), 1);
    }

    #[test]
    fn a_login_to_an_existing_session_is_refused() {
        let registry = Registry::new();
        assert_eq!(registry.check_tsih(&candidate("a", 1, 9)), Err(LoginStatus::NO_SUCH_SESSION));
        let tsih = enter(&registry, &candidate("a", 1, 0), 1, HERE).expect("room").tsih;
        assert_eq!(registry.check_tsih(&candidate("a", 1, tsih)), Err(LoginStatus::TOO_MANY_CONNECTIONS));
        assert_eq!(registry.check_tsih(&candidate("a", 1, 0)), Ok(()));
    }

    #[test]
    fn sessions_are_limited_and_tsihs_are_reused() {
        let registry = Registry::new();
        let registered: Vec<u16> = (0..SESSIONS_MAX)
            .map(|_| {
                enter(&registry, &Candidate { discovery: true, ..candidate("a", 1, 0) }, 1, HERE).expect("room").tsih
            })
            .collect();
        assert!(!registered.contains(&0));
        assert_eq!(
            enter(&registry, &candidate("b", 1, 0), 1, HERE).map(|e| e.tsih),
            Err(LoginStatus::OUT_OF_RESOURCES)
        );
        registry.remove(&candidate("a", 1, 0), 1, registered[0]);
        assert!(enter(&registry, &candidate("b", 1, 0), 1, HERE).is_ok());
    }

    #[test]
    fn a_target_has_its_own_limit_and_a_replacement_is_within_it() {
        let registry = Registry::new();
        let enter = |initiator: &str| {
            let candidate = candidate(initiator, 1, 0);
            let login = LoginDetails::new(&candidate, ([192, 0, 2, 1], 4000).into());
            let record =
                SessionRecord { candidate, login, group: 1, port: 1, location: HERE, since: Instant::default() };
            registry.register(record, 2, SESSIONS_MAX).map(|registered| registered.tsih)
        };
        let first = enter("a").expect("room");
        assert!(enter("b").is_ok());
        assert_eq!(enter("c"), Err(LoginStatus::OUT_OF_RESOURCES));
        assert!(enter("a").is_ok(), "it replaces its own session");
        registry.remove(&candidate("a", 1, 0), 1, first);
        assert_eq!((registry.len(), registry.locations("iqn.2026-01.io.lunar:t").len()), (2, 2));
        assert!(registry.locations("iqn.2026-01.io.lunar:u").is_empty());
    }
}
