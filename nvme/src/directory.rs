//! The NVM subsystems, their portals, and the hosts that may connect. One value for all cores, which is replaced as a
//! whole: a reader sees the state before a change or the state after it.

use crate::auth::authenticator::Reason;
use crate::auth::exchange::Terms;
use crate::history::History;
use crate::limits::DISCOVERY_MAX;
use crate::path::{DISCOVERY_NQN, Path};
use crate::pool::Pool;
use lunar_core::access::{Access, Credentials, Group, Mistake};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use crate::path::PortalRef;

/// An NVM subsystem, or the discovery service.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its NQN.
    pub nqn: Arc<str>,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Model number, at most 40 ASCII characters.
    pub model: String,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: String,
    /// The tags of the portal groups of its portals; `None`: all.
    pub groups: Option<BTreeSet<u16>>,
    /// The access rules.
    pub access: Arc<Access>,
    /// The terms of DH-HMAC-CHAP.
    pub terms: Terms,
    /// The history of the subsystem.
    pub history: Arc<History>,
    /// The limit of its controllers.
    pub controllers_max: usize,
    /// The pools for namespaces of hosts, by the names of the maps; hosts with other maps cannot create namespaces.
    pub pools: BTreeMap<Arc<str>, Arc<Pool>>,
}

impl Entry {
    /// Whether it is reached through this portal group.
    #[must_use]
    pub fn is_reached(&self, group: u16) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(&group))
    }
}

/// A portal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portal {
    /// Its number in this process. A host may stay while the portal exists through which it connected.
    pub id: u32,
    /// Tag of its portal group.
    pub group: u16,
    /// Its transport type.
    pub transport: u8,
    /// Its address in the discovery log page; `None`: the address that the host connected to, and only for hosts of
    /// this portal.
    pub address: Option<SocketAddr>,
    /// Whether the portal requires TLS.
    pub is_secure: bool,
}

/// An entry of the discovery log page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscoveryEntry {
    /// Its NQN.
    pub nqn: Arc<str>,
    /// The transport type of the address; `None`: that of the host.
    pub transport: Option<u8>,
    /// The address; `None`: the address that the host connected to.
    pub address: Option<SocketAddr>,
    /// The number of its portal.
    pub portal: u32,
    /// Whether the portal requires TLS.
    pub is_secure: bool,
}

/// The subsystems and their portals.
#[derive(Clone, Debug)]
pub struct Directory {
    subsystems: BTreeMap<Arc<str>, Arc<Entry>>,
    discovery: Arc<Entry>,
    /// The portals, in the order of the discovery log page; `None`: all addresses lead here, and hosts get the address
    /// that they connected to.
    pub portals: Option<Vec<Portal>>,
    /// Referrals to other discovery services.
    pub referrals: Vec<Path>,
    changes: u64,
}

impl Directory {
    /// These subsystems, and no referrals; `discovery` are the credentials of discovery, for hosts that may connect to
    /// any subsystem, and `terms` those of their authentication.
    ///
    /// # Errors
    /// Access rules that would not protect.
    pub fn new(
        all: Vec<Entry>,
        (discovery, terms): (Credentials, Terms),
        portals: Option<Vec<Portal>>,
    ) -> Result<Self, Mistake> {
        // Authentication with subsystems does not apply to the discovery service.
        let shown = |group: &Group| Group { credentials: Credentials::default(), map: None, ..group.clone() };
        let groups = all.iter().flat_map(|entry| entry.access.groups()).map(shown).collect();
        let model = all.first();
        let service = Entry {
            nqn: DISCOVERY_NQN.into(),
            serial: model.map(|model| model.serial.clone()).unwrap_or_default(),
            model: model.map(|model| model.model.clone()).unwrap_or_default(),
            firmware: model.map(|model| model.firmware.clone()).unwrap_or_default(),
            groups: None,
            access: Arc::new(Access::new(groups, discovery)?),
            terms,
            history: Arc::default(),
            controllers_max: DISCOVERY_MAX,
            pools: BTreeMap::new(),
        };
        let subsystems = all.into_iter().map(|entry| (entry.nqn.clone(), Arc::new(entry))).collect();
        Ok(Self { subsystems, discovery: Arc::new(service), portals, referrals: Vec::new(), changes: 0 })
    }

    /// An empty directory.
    #[must_use]
    pub fn nothing() -> Self {
        let service = Entry {
            nqn: DISCOVERY_NQN.into(),
            serial: String::new(),
            model: String::new(),
            firmware: String::new(),
            groups: None,
            access: Arc::new(Access::nobody()),
            terms: Terms::default(),
            history: Arc::default(),
            controllers_max: 0,
            pools: BTreeMap::new(),
        };
        let discovery = Arc::new(service);
        Self { subsystems: BTreeMap::new(), discovery, portals: None, referrals: Vec::new(), changes: 0 }
    }

    /// The subsystem of this name.
    #[must_use]
    pub fn subsystem(&self, nqn: &str) -> Option<&Arc<Entry>> {
        self.subsystems.get(nqn)
    }

    /// The subsystem of this name, if it is reached through portals of this group.
    ///
    /// # Errors
    /// [`Reason::NoSubsystem`], [`Reason::OtherPortal`].
    pub fn reached(&self, nqn: &str, group: u16) -> Result<&Arc<Entry>, Reason> {
        let entry = self.subsystem(nqn).ok_or(Reason::NoSubsystem)?;
        if entry.is_reached(group) { Ok(entry) } else { Err(Reason::OtherPortal(group)) }
    }

    /// All subsystems, by name.
    pub fn subsystems(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.subsystems.values()
    }

    /// The discovery service.
    #[must_use]
    pub fn discovery(&self) -> &Arc<Entry> {
        &self.discovery
    }

    /// The generation of the discovery log page.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The discovery log entries for a host that connected to the portal of this number.
    #[must_use]
    pub fn discovery_entries(&self, host: &str, source: IpAddr, portal: u32) -> Vec<DiscoveryEntry> {
        let host = host.to_ascii_lowercase();
        let shown = self.subsystems().filter(|entry| entry.access.group(&host, source).is_some());
        let ways = |entry: &Arc<Entry>| -> Vec<DiscoveryEntry> {
            let Some(portals) = &self.portals else {
                let nqn = entry.nqn.clone();
                return vec![DiscoveryEntry { nqn, transport: None, address: None, portal, is_secure: false }];
            };
            let reached = portals.iter().filter(|one| entry.is_reached(one.group));
            let told = reached.filter(|one| one.address.is_some() || one.id == portal);
            let way = |one: &Portal| DiscoveryEntry {
                nqn: entry.nqn.clone(),
                transport: Some(one.transport),
                address: one.address,
                portal: one.id,
                is_secure: one.is_secure,
            };
            told.map(way).collect()
        };
        shown.flat_map(ways).collect()
    }
}

/// The current directory, for all cores.
#[derive(Debug)]
pub struct SubsystemRegistry(Mutex<Arc<Directory>>);

impl Default for SubsystemRegistry {
    fn default() -> Self {
        Self(Mutex::new(Arc::new(Directory::nothing())))
    }
}

impl SubsystemRegistry {
    fn lock(&self) -> MutexGuard<'_, Arc<Directory>> {
        // A panic elsewhere leaves nothing half-done here: each change is one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> Arc<Directory> {
        self.lock().clone()
    }

    /// Replaces the directory.
    pub fn set(&self, directory: Directory) {
        let mut now = self.lock();
        let changes = now.changes + 1;
        *now = Arc::new(Directory { changes, ..directory });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::TCP;
    use lunar_core::access::Pattern;

    fn entry(nqn: &str, groups: &[u16], host: &str) -> Entry {
        let group = Group { name: host.into(), hosts: vec![Pattern::new(host)], ..Group::everybody() };
        Entry {
            nqn: nqn.into(),
            serial: "1".into(),
            model: "m".into(),
            firmware: "f".into(),
            groups: Some(groups.iter().copied().collect()),
            access: Arc::new(Access::new(vec![group], Credentials::default()).expect("right")),
            terms: Terms::default(),
            history: Arc::default(),
            controllers_max: 1,
            pools: BTreeMap::new(),
        }
    }

    #[test]
    fn discovery_reports_the_subsystems_and_addresses_for_a_host() {
        let at = |port: u16| Some(SocketAddr::from(([192, 0, 2, 1], port)));
        let portals = vec![
            Portal { id: 1, group: 1, transport: TCP, address: at(4420), is_secure: false },
            Portal { id: 2, group: 2, transport: TCP, address: at(4421), is_secure: true },
            Portal { id: 3, group: 1, transport: TCP, address: None, is_secure: false },
        ];
        let all = vec![entry("nqn.x:a", &[1], "nqn.h:*"), entry("nqn.x:b", &[1, 2], "nqn.h:one")];
        let directory = Directory::new(all, Default::default(), Some(portals)).expect("right");
        let told = |host, portal| {
            let told = directory.discovery_entries(host, IpAddr::from([192, 0, 2, 9]), portal);
            told.iter()
                .map(|told| format!("{} {}", told.nqn, told.address.map_or(0, |at| at.port())))
                .collect::<Vec<_>>()
        };
        assert_eq!(told("nqn.h:two", 1), ["nqn.x:a 4420"]);
        let all = directory.discovery_entries("nqn.h:one", IpAddr::from([192, 0, 2, 9]), 1);
        assert!(all.iter().all(|told| told.is_secure == (told.portal == 2)), "{all:?}");
        assert_eq!(told("NQN.H:ONE", 3), ["nqn.x:a 4420", "nqn.x:a 0", "nqn.x:b 4420", "nqn.x:b 4421", "nqn.x:b 0"]);
        assert_eq!(told("nqn.other", 1), [""; 0]);
        let subsystems = SubsystemRegistry::default();
        subsystems.set(directory.clone());
        subsystems.set(directory);
        assert_eq!(subsystems.directory().changes(), 2);
    }
}
