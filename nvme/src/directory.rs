//! What NVM subsystems there are, where they are reached, and who may come in. One value for all cores, which changes
//! as a whole: whoever asks sees what was there before or what is there after.

use crate::auth::exchange::Terms;
use crate::history::History;
use crate::limits::DISCOVERY_MAX;
use crate::path::{DISCOVERY_NQN, Path};
use crate::pool::Pool;
use lunar_core::access::{Access, Group, Mistake, Proofs};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use crate::path::Way;

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
    /// The portal groups through which it is reached, by their tags; `None`: all.
    pub groups: Option<BTreeSet<u16>>,
    /// Who may come in.
    pub access: Arc<Access>,
    /// How hosts prove their names that have to.
    pub terms: Terms,
    /// What it remembers of itself.
    pub history: Arc<History>,
    /// Controllers at once.
    pub controllers_max: usize,
    /// What hosts may make namespaces of, by the names of their maps; all others may not.
    pub pools: BTreeMap<Arc<str>, Arc<Pool>>,
}

impl Entry {
    /// Whether it is reached through this portal group.
    #[must_use]
    pub fn is_reached(&self, group: u16) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(&group))
    }
}

/// An address where hosts call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portal {
    /// Its number in this process: whoever came in by it stays as long as it is there.
    pub id: u32,
    /// Tag of its portal group.
    pub group: u16,
    /// Where it is, as discovery tells it; `None`: where the host came in, and only for those who came in by this
    /// portal.
    pub address: Option<SocketAddr>,
    /// Whether hosts come by secure channels only.
    pub is_secure: bool,
}

/// A subsystem, and a way to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Its NQN.
    pub nqn: Arc<str>,
    /// Where it is; `None`: where the host came in.
    pub address: Option<SocketAddr>,
    /// The number of the portal there.
    pub portal: u32,
    /// Whether hosts come there by secure channels only.
    pub is_secure: bool,
}

/// What subsystems there are, and where.
#[derive(Clone, Debug)]
pub struct Directory {
    subsystems: BTreeMap<Arc<str>, Arc<Entry>>,
    discovery: Arc<Entry>,
    /// In the order in which they are told; `None`: all ways lead here, and hosts are told to come again as they came.
    pub portals: Option<Vec<Portal>>,
    /// Other discovery services that hosts are told of.
    pub referrals: Vec<Path>,
    changes: u64,
}

impl Directory {
    /// These subsystems, and no referrals; `discovery` is about those who only ask what there is, and who may come in
    /// somewhere, and `terms` about their proofs.
    ///
    /// # Errors
    /// What would not protect.
    pub fn new(
        all: Vec<Entry>,
        (discovery, terms): (Proofs, Terms),
        portals: Option<Vec<Portal>>,
    ) -> Result<Self, Mistake> {
        // What is proved elsewhere is nothing to it.
        let shown = |group: &Group| Group { proofs: Proofs::default(), map: None, ..group.clone() };
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

    /// Nothing, for nobody.
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

    /// All subsystems, by name.
    pub fn subsystems(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.subsystems.values()
    }

    /// The discovery service.
    #[must_use]
    pub fn discovery(&self) -> &Arc<Entry> {
        &self.discovery
    }

    /// How often what is told has changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// What a host is told that came by the portal of this number.
    #[must_use]
    pub fn told(&self, host: &str, source: IpAddr, portal: u32) -> Vec<Told> {
        let host = host.to_ascii_lowercase();
        let shown = self.subsystems().filter(|entry| entry.access.group(&host, source).is_some());
        let ways = |entry: &Arc<Entry>| -> Vec<Told> {
            let Some(portals) = &self.portals else {
                return vec![Told { nqn: entry.nqn.clone(), address: None, portal, is_secure: false }];
            };
            let reached = portals.iter().filter(|one| entry.is_reached(one.group));
            let told = reached.filter(|one| one.address.is_some() || one.id == portal);
            let way = |one: &Portal| Told {
                nqn: entry.nqn.clone(),
                address: one.address,
                portal: one.id,
                is_secure: one.is_secure,
            };
            told.map(way).collect()
        };
        shown.flat_map(ways).collect()
    }
}

/// Where the directory hangs that is in force.
#[derive(Debug)]
pub struct Board(Mutex<Arc<Directory>>);

impl Default for Board {
    fn default() -> Self {
        Self(Mutex::new(Arc::new(Directory::nothing())))
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Arc<Directory>> {
        // A panic elsewhere leaves nothing half-done here: each change is one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> Arc<Directory> {
        self.lock().clone()
    }

    /// Puts another in force.
    pub fn set(&self, directory: Directory) {
        let mut now = self.lock();
        let changes = now.changes + 1;
        *now = Arc::new(Directory { changes, ..directory });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::access::Pattern;

    fn entry(nqn: &str, groups: &[u16], host: &str) -> Entry {
        let group = Group { name: host.into(), hosts: vec![Pattern::new(host)], ..Group::everybody() };
        Entry {
            nqn: nqn.into(),
            serial: "1".into(),
            model: "m".into(),
            firmware: "f".into(),
            groups: Some(groups.iter().copied().collect()),
            access: Arc::new(Access::new(vec![group], Proofs::default()).expect("right")),
            terms: Terms::default(),
            history: Arc::default(),
            controllers_max: 1,
            pools: BTreeMap::new(),
        }
    }

    #[test]
    fn hosts_are_told_what_they_may_see_and_where() {
        let at = |port: u16| Some(SocketAddr::from(([192, 0, 2, 1], port)));
        let portals = vec![
            Portal { id: 1, group: 1, address: at(4420), is_secure: false },
            Portal { id: 2, group: 2, address: at(4421), is_secure: true },
            Portal { id: 3, group: 1, address: None, is_secure: false },
        ];
        let all = vec![entry("nqn.x:a", &[1], "nqn.h:*"), entry("nqn.x:b", &[1, 2], "nqn.h:one")];
        let directory = Directory::new(all, Default::default(), Some(portals)).expect("right");
        let told = |host, portal| {
            let told = directory.told(host, IpAddr::from([192, 0, 2, 9]), portal);
            told.iter()
                .map(|told| format!("{} {}", told.nqn, told.address.map_or(0, |at| at.port())))
                .collect::<Vec<_>>()
        };
        assert_eq!(told("nqn.h:two", 1), ["nqn.x:a 4420"]);
        let all = directory.told("nqn.h:one", IpAddr::from([192, 0, 2, 9]), 1);
        assert!(all.iter().all(|told| told.is_secure == (told.portal == 2)), "{all:?}");
        assert_eq!(told("NQN.H:ONE", 3), ["nqn.x:a 4420", "nqn.x:a 0", "nqn.x:b 4420", "nqn.x:b 4421", "nqn.x:b 0"]);
        assert_eq!(told("nqn.other", 1), [""; 0]);
        let board = Board::default();
        board.set(directory.clone());
        board.set(directory);
        assert_eq!(board.directory().changes(), 2);
    }
}
