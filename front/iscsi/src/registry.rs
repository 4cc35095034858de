//! The sessions of all cores, by name: who replaces whom (RFC 7143 6.3.5), and which number is free. Only logins and
//! logouts come here.

use crate::login::Candidate;
use crate::wire::LoginStatus;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sessions at once, discovery sessions included. Each takes some 20 KiB when idle, so this is some 300 MB.
pub const SESSIONS_MAX: usize = 16 << 10;

/// Where a session is served.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The core.
    pub core: usize,
    /// The connection, by its number on that core.
    pub connection: u64,
}

/// The sessions of a target.
#[derive(Debug, Default)]
pub struct Registry(Mutex<Sessions>);

#[derive(Debug, Default)]
struct Sessions {
    /// Normal sessions.
    ports: BTreeMap<NexusKey, (u16, Place)>,
    numbers: BTreeSet<u16>,
    last: u16,
}

/// A session that has its number.
#[derive(Debug)]
pub struct Entered {
    /// The target's part of the session identifier.
    pub tsih: u16,
    /// The session of the same initiator port: it must end before this one begins.
    pub replaced: Option<Place>,
}

impl Registry {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        // A panic elsewhere leaves nothing half-done here: each change is one insert or remove.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a login that names a session may go on: it may not, for a session has one connection.
    ///
    /// # Errors
    /// What the login is refused with.
    pub fn admit(&self, candidate: &Candidate) -> Result<(), LoginStatus> {
        match candidate.tsih {
            0 => Ok(()),
            tsih if self.lock().numbers.contains(&tsih) => Err(LoginStatus::TOO_MANY_CONNECTIONS),
            _ => Err(LoginStatus::NO_SUCH_SESSION),
        }
    }

    /// Gives a session at a portal group its number.
    ///
    /// # Errors
    /// When there are [`SESSIONS_MAX`].
    pub fn enter(&self, candidate: &Candidate, group: u16, place: Place) -> Result<Entered, LoginStatus> {
        let mut sessions = self.lock();
        if sessions.numbers.len() >= SESSIONS_MAX {
            return Err(LoginStatus::OUT_OF_RESOURCES);
        }
        let tsih = loop {
            sessions.last = sessions.last.wrapping_add(1);
            if sessions.last != 0 && !sessions.numbers.contains(&sessions.last) {
                break sessions.last;
            }
        };
        sessions.numbers.insert(tsih);
        let replaced = match candidate.discovery {
            true => None,
            false => sessions.ports.insert(key(candidate, group), (tsih, place)),
        };
        Ok(Entered { tsih, replaced: replaced.map(|(_, place)| place) })
    }

    /// A session at a portal group has ended.
    pub fn leave(&self, candidate: &Candidate, group: u16, tsih: u16) {
        let mut sessions = self.lock();
        sessions.numbers.remove(&tsih);
        let port = key(candidate, group);
        // The port may belong to the session that replaced this one.
        if sessions.ports.get(&port).is_some_and(|(number, _)| *number == tsih) {
            sessions.ports.remove(&port);
        }
    }

    /// Where the normal sessions are served.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        self.lock().ports.values().map(|(_, place)| *place).collect()
    }

    /// Sessions now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().numbers.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What names an I_T nexus (RFC 7143 4.4.3): initiator, ISID, portal group.
type NexusKey = (Arc<str>, [u8; 6], u16);

fn key(candidate: &Candidate, group: u16) -> NexusKey {
    (candidate.initiator.clone(), candidate.isid, group)
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

    const HERE: Place = Place { core: 0, connection: 1 };
    const THERE: Place = Place { core: 1, connection: 7 };

    #[test]
    fn the_same_port_replaces_and_another_does_not() {
        let registry = Registry::new();
        let first = registry.enter(&candidate("a", 1, 0), 1, HERE).expect("room");
        assert_eq!(first.replaced, None);
        assert_eq!(registry.enter(&candidate("a", 2, 0), 1, HERE).expect("room").replaced, None);
        let second = registry.enter(&candidate("a", 1, 0), 1, THERE).expect("room");
        assert_eq!(second.replaced, Some(HERE));
        assert_ne!(first.tsih, second.tsih);
        let elsewhere = registry.enter(&candidate("a", 1, 0), 2, HERE).expect("room");
        assert_eq!(elsewhere.replaced, None, "another target port is another nexus");
        registry.leave(&candidate("a", 1, 0), 2, elsewhere.tsih);
        registry.leave(&candidate("a", 1, 0), 1, first.tsih);
        assert_eq!(registry.enter(&candidate("a", 1, 0), 1, HERE).expect("room").replaced, Some(THERE));
    }

    #[test]
    fn discovery_replaces_nobody() {
        let registry = Registry::new();
        let _ = registry.enter(&candidate("a", 1, 0), 1, HERE).expect("room");
        let discovery = Candidate { discovery: true, ..candidate("a", 1, 0) };
        let entered = registry.enter(&discovery, 1, THERE).expect("room");
        assert_eq!(entered.replaced, None);
        registry.leave(&discovery, 1, entered.tsih);
        assert_eq!(registry.len(), 1);
    }

    #[test]
    fn a_named_session_is_unknown_or_full() {
        let registry = Registry::new();
        assert_eq!(registry.admit(&candidate("a", 1, 9)), Err(LoginStatus::NO_SUCH_SESSION));
        let tsih = registry.enter(&candidate("a", 1, 0), 1, HERE).expect("room").tsih;
        assert_eq!(registry.admit(&candidate("a", 1, tsih)), Err(LoginStatus::TOO_MANY_CONNECTIONS));
        assert_eq!(registry.admit(&candidate("a", 1, 0)), Ok(()));
    }

    #[test]
    fn sessions_are_bounded_and_numbers_come_back() {
        let registry = Registry::new();
        let entered: Vec<u16> = (0..SESSIONS_MAX)
            .map(|_| {
                registry.enter(&Candidate { discovery: true, ..candidate("a", 1, 0) }, 1, HERE).expect("room").tsih
            })
            .collect();
        assert!(!entered.contains(&0));
        assert_eq!(registry.enter(&candidate("b", 1, 0), 1, HERE).map(|e| e.tsih), Err(LoginStatus::OUT_OF_RESOURCES));
        registry.leave(&candidate("a", 1, 0), 1, entered[0]);
        assert!(registry.enter(&candidate("b", 1, 0), 1, HERE).is_ok());
    }
}
